//! The verbose status of a pod's container (CRI).

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;

use super::{Container, Runtime, bounded_labels, cut_name};

/// `CONTAINER_RUNNING`.
const RUNNING: i32 = 1;

/// The container and the number of its first process, from the parts of a verbose
/// `ContainerStatusResponse`. `None`: it is not running, or the runtime does not name the process.
///
/// containerd and CRI-O write the number as `pid` in the JSON text under the key `info`, a part
/// that the interface leaves to the runtime.
pub fn pod_container(
    (name, state): (&str, i32),
    labels: &HashMap<String, String>,
    info: &HashMap<String, String>,
) -> Option<(Container, u32)> {
    let verbose: Value = serde_json::from_str(info.get("info")?).ok()?;
    let pid = u32::try_from(verbose.get("pid")?.as_u64()?).ok().filter(|pid| *pid > 1)?;
    let mut sorted: Vec<_> =
        labels.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    sorted.sort_unstable();
    let container = Container {
        runtime: Runtime::Cri,
        name: Arc::from(cut_name(name)),
        labels: bounded_labels(sorted.into_iter()),
        ..Container::default()
    };
    (state == RUNNING).then_some((container, pid))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Shortened from what containerd 1.6.20 answered.
    const INFO: &str = r#"{"sandboxID":"8c0f","pid":4711,"removing":false,"snapshotter":"native",
        "runtimeType":"io.containerd.runc.v2","config":{"metadata":{"name":"engine"}}}"#;

    fn found(state: i32, info: &str) -> Option<(Container, u32)> {
        let labels = [("app".to_owned(), "llm".to_owned()), ("x".repeat(5000), String::new())];
        let info = [("info".to_owned(), info.to_owned())].into();
        pod_container(("engine\n", state), &labels.into(), &info)
    }

    #[test]
    fn a_running_container_has_its_name_its_labels_and_its_first_process() {
        let (container, pid) = found(RUNNING, INFO).unwrap();
        assert_eq!((&*container.name, container.runtime, pid), ("engine\\x0a", Runtime::Cri, 4711));
        assert_eq!(container.labels, [("app".to_owned(), "llm".to_owned())].into());
    }

    #[test]
    fn a_container_without_a_running_process_is_not_confirmed() {
        assert!(found(2, INFO).is_none());
        for info in ["", "{}", "[]", r#"{"pid":"4711"}"#, r#"{"pid":0}"#, r#"{"pid":1}"#] {
            assert!(found(RUNNING, info).is_none(), "{info}");
        }
        assert!(found(RUNNING, r#"{"pid":4294967297}"#).is_none(), "no process has that number");
    }

    proptest! {
        #[test]
        fn arbitrary_text_does_not_panic(text in ".*", pid in any::<i64>()) {
            let _ = found(RUNNING, &text);
            let known = found(RUNNING, &format!(r#"{{"pid":{pid}}}"#));
            prop_assert!(known.is_none_or(|(_, known)| i64::from(known) == pid && pid > 1));
        }
    }
}
