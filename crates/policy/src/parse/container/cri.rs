//! The verbose status of a pod's container (CRI).

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use super::state::{MAX_PATH_BYTES, MAX_TEXT_BYTES, is_time, short};
use super::{Container, Runtime, bounded_labels, cut_name};
use crate::model::WorkloadEnd;
use crate::parse::process::printable;

/// `CONTAINER_RUNNING` and `CONTAINER_EXITED`.
const RUNNING: i32 = 1;
const EXITED: i32 = 2;

/// A longer name of an image is left out.
const LONGEST_IMAGE_BYTES: usize = 256;

/// Reasons without news beyond the exit code (containerd and CRI-O alike).
const PLAIN_REASONS: [&str; 3] = ["", "Completed", "Error"];
const OOM_KILLED: &str = "OOMKilled";
/// containerd does not know how it ended, and reports 255; CRI-O reports the code -1.
const UNKNOWN: &str = "Unknown";

/// The read parts of a `ContainerStatusResponse`.
#[derive(Clone, Copy, Debug)]
pub struct CriStatus<'a> {
    /// The name within the pod.
    pub name: &'a str,
    /// `ContainerState`.
    pub state: i32,
    /// The image, as its pod or a tag names it, and as the runtime has resolved it.
    pub image: (&'a str, &'a str),
    /// The file of its log.
    pub log_path: &'a str,
    /// Labels of the container in the runtime.
    pub labels: &'a HashMap<String, String>,
    /// Of a verbose response, JSON under `info`.
    pub info: &'a HashMap<String, String>,
}

/// The container and the number of its first process, from a verbose response. `None`: it is not
/// running, or the runtime does not name the process.
///
/// containerd and CRI-O write the number as `pid` in the JSON text under the key `info`, a part
/// that the interface leaves to the runtime.
pub fn pod_container(status: &CriStatus<'_>) -> Option<(Container, u32)> {
    let verbose: Value = serde_json::from_str(status.info.get("info")?).ok()?;
    let pid = u32::try_from(verbose.get("pid")?.as_u64()?).ok().filter(|pid| *pid > 1)?;
    let container = Container {
        runtime: Runtime::Cri,
        name: Arc::from(cut_name(status.name)),
        labels: label_map(status.labels),
        image: image(status.image),
        log: log_path(status.log_path),
        ..Container::default()
    };
    (status.state == RUNNING).then_some((container, pid))
}

fn label_map(labels: &HashMap<String, String>) -> std::collections::BTreeMap<String, String> {
    let mut sorted: Vec<_> =
        labels.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    sorted.sort_unstable();
    bounded_labels(sorted.into_iter())
}

/// `NAME@ID`, the id cut to 12 digits: a tag may name another image later.
fn image((name, resolved): (&str, &str)) -> Option<Arc<str>> {
    let is_usable = |text: &&str| (1..=LONGEST_IMAGE_BYTES).contains(&text.len());
    let digest = |text: &str| {
        let (_, hex) = text.rsplit_once("sha256:")?;
        let is_hex = hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_hex.then(|| hex[..12].to_owned())
    };
    let [name, resolved] = [name, resolved].map(|text| Some(text).filter(is_usable));
    let id = resolved.and_then(digest).or(name.and_then(digest));
    let plain = |text: &str| text.split("@sha256:").next().unwrap_or(text).to_owned();
    let is_named = |text: &&str| digest(text).is_none() || text.contains('@');
    let is_bare_id = |text: &&str| text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit());
    let mut names = name.into_iter().chain(resolved).filter(is_named);
    let name = names.find(|text| !is_bare_id(text)).map(plain);
    let text = match (name, id) {
        (Some(name), Some(id)) => format!("{name}@{id}"),
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => return None,
    };
    Some(printable(text.as_bytes()).into())
}

fn log_path(path: &str) -> Option<PathBuf> {
    let is_path = path.starts_with('/') && path.len() < MAX_PATH_BYTES && !path.contains('\0');
    is_path.then(|| PathBuf::from(path))
}

/// The end of a container, as its status has it.
#[derive(Clone, Copy, Debug, Default)]
pub struct CriExit<'a> {
    /// `ContainerState`.
    pub state: i32,
    /// Nanoseconds since 1970, and 0 for never.
    pub started_at: i64,
    /// The same.
    pub finished_at: i64,
    /// 128 and its number for a signal.
    pub exit_code: i32,
    /// One word of the runtime's.
    pub reason: &'a str,
    /// Its text.
    pub message: &'a str,
}

/// The end of a container. `None`: it has not ended.
pub fn cri_end(exit: &CriExit<'_>) -> Option<WorkloadEnd> {
    let time = |ns: i64| Timestamp::from_nanosecond(ns.into()).ok().filter(|at| is_time(*at));
    let finished = time(exit.finished_at).filter(|_| exit.state == EXITED)?;
    let lived = time(exit.started_at)
        .and_then(|started| Duration::try_from(finished.duration_since(started)).ok());
    let is_known = exit.reason != UNKNOWN && (0..=255).contains(&exit.exit_code);
    let has_news = exit.reason != OOM_KILLED && !PLAIN_REASONS.contains(&exit.reason);
    let error = match exit.message {
        "" => exit.reason.to_owned(),
        message => format!("{}: {message}", exit.reason),
    };
    Some(WorkloadEnd {
        mark: finished.to_string().into(),
        utc: Some(finished),
        lived,
        exit_code: is_known.then_some(exit.exit_code),
        is_oom_killed: exit.reason == OOM_KILLED,
        error: has_news.then(|| short(&error, MAX_TEXT_BYTES)),
        ..WorkloadEnd::unknown()
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Shortened from what containerd 1.6.20 answered.
    const INFO: &str = r#"{"sandboxID":"8c0f","pid":4711,"removing":false,"snapshotter":"native",
        "runtimeType":"io.containerd.runc.v2","config":{"metadata":{"name":"engine"}}}"#;

    /// As CRI-O writes it (`containerInfo` in its server/container_status.go).
    const INFO_OF_CRIO: &str = r#"{"sandboxID":"8c0f","pid":4711,"runtimeSpec":{
        "ociVersion":"1.0.2","process":{"args":["vllm","serve"],"cwd":"/"},
        "annotations":{"io.kubernetes.cri-o.TTY":"false"}},"privileged":false}"#;

    const DIGEST: &str = "sha256:1f2e3d4c5b6a79880f1e2d3c4b5a69781f2e3d4c5b6a79880f1e2d3c4b5a6978";

    fn found(state: i32, info: &str) -> Option<(Container, u32)> {
        let labels = [("app".to_owned(), "llm".to_owned()), ("x".repeat(5000), String::new())];
        let (labels, info) = (labels.into(), [("info".to_owned(), info.to_owned())].into());
        let image = ("docker.io/vllm/vllm-openai:v0.29.0", DIGEST);
        let log_path = "/var/log/pods/llm_vllm-0_6f1c/engine/0.log";
        let (labels, info) = (&labels, &info);
        pod_container(&CriStatus { name: "engine\n", state, image, log_path, labels, info })
    }

    #[test]
    fn a_running_container_has_its_name_its_labels_and_its_first_process() {
        for info in [INFO, INFO_OF_CRIO] {
            let (container, pid) = found(RUNNING, info).unwrap();
            let name = (&*container.name, container.runtime, pid);
            assert_eq!(name, ("engine\\x0a", Runtime::Cri, 4711));
            assert_eq!(container.labels, [("app".to_owned(), "llm".to_owned())].into());
            assert!(container.log.unwrap().ends_with("engine/0.log"));
        }
    }

    #[test]
    fn a_container_without_a_running_process_is_not_confirmed() {
        assert!(found(2, INFO).is_none());
        for info in ["", "{}", "[]", r#"{"pid":"4711"}"#, r#"{"pid":0}"#, r#"{"pid":1}"#] {
            assert!(found(RUNNING, info).is_none(), "{info}");
        }
        assert!(found(RUNNING, r#"{"pid":4294967297}"#).is_none(), "no process has that number");
    }

    #[test]
    fn an_image_has_its_name_and_the_beginning_of_its_id() {
        let id = &DIGEST[7..];
        let by_digest = format!("docker.io/vllm/vllm-openai@{DIGEST}");
        for (name, resolved, wanted) in [
            ("vllm/vllm-openai:v0.29.0", &*by_digest, "vllm/vllm-openai:v0.29.0@1f2e3d4c5b6a"),
            ("vllm/vllm-openai:v0.29.0", DIGEST, "vllm/vllm-openai:v0.29.0@1f2e3d4c5b6a"),
            (DIGEST, &by_digest, "docker.io/vllm/vllm-openai@1f2e3d4c5b6a"),
            (&by_digest, &by_digest, "docker.io/vllm/vllm-openai@1f2e3d4c5b6a"),
            ("", DIGEST, "1f2e3d4c5b6a"),
            ("vllm\u{1b}", "", "vllm\\x1b"),
            // CRI-O names the id of an image without a prefix.
            (id, &by_digest, "docker.io/vllm/vllm-openai@1f2e3d4c5b6a"),
        ] {
            assert_eq!(image((name, resolved)).as_deref(), Some(wanted), "{name} {resolved}");
        }
        assert_eq!(image(("", "")), None);
        assert_eq!(image((&"x".repeat(300), "")), None);
    }

    #[test]
    fn an_end_has_what_the_runtime_reports() {
        let second = 1_000_000_000;
        let at = 1_795_219_200 * second;
        let exit = CriExit {
            state: EXITED,
            started_at: at,
            finished_at: at + 3 * second,
            exit_code: 137,
            reason: "OOMKilled",
            message: "",
        };
        let end = cri_end(&exit).unwrap();
        assert_eq!(
            (end.exit_code, end.is_oom_killed, end.error.as_deref()),
            (Some(137), true, None)
        );
        assert_eq!(end.lived, Some(Duration::from_secs(3)));
        assert_eq!(end.utc.unwrap().as_nanosecond(), i128::from(at + 3 * second));
        let error = |reason, message| cri_end(&CriExit { reason, message, ..exit }).unwrap().error;
        assert_eq!(error("Error", "x"), None);
        assert_eq!(
            error("StartError", "no such file").as_deref(),
            Some("StartError: no such file")
        );
        assert_eq!(error("seccomp killed", "").as_deref(), Some("seccomp killed"));
        for (exit_code, reason) in [(255, "Unknown"), (-1, "Error")] {
            let end = cri_end(&CriExit { exit_code, reason, ..exit }).unwrap();
            assert_eq!(end.exit_code, None, "{reason}");
        }
        // It runs, or was never started.
        assert_eq!(cri_end(&CriExit { state: RUNNING, ..exit }), None);
        assert_eq!(cri_end(&CriExit { finished_at: 0, ..exit }), None);
    }

    proptest! {
        #[test]
        fn arbitrary_text_does_not_panic(text in ".*", pid in any::<i64>(), at in any::<i64>()) {
            let _ = found(RUNNING, &text);
            let known = found(RUNNING, &format!(r#"{{"pid":{pid}}}"#));
            prop_assert!(known.is_none_or(|(_, known)| i64::from(known) == pid && pid > 1));
            let _ = image((&text, &text));
            let exit = CriExit { state: EXITED, started_at: pid, ..CriExit::default() };
            let exit = CriExit { finished_at: at, reason: &text, message: &text, ..exit };
            let _ = cri_end(&exit);
        }
    }
}
