use proptest::prelude::*;

use super::log::tests::pieces;
use super::*;
use crate::model::{OnRequest, WorkloadState};

/// What dockerd 20.10.24 answered of four containers: a bridge with a published port, the host's
/// network, none, and a network of its own.
const RECORDED: &[u8] =
    include_bytes!("../../../../../tests/fixtures/docker/containers-20.10.24.json");

fn named(name: &str) -> Container {
    let all = containers(RECORDED).unwrap();
    all.into_values().find(|container| &*container.name == name).unwrap()
}

/// What Podman 4.3.1 answered of five containers: one that was never started, one that runs, one
/// that died by itself with an own restart policy, and two that were asked to end, by `podman stop`
/// and `podman kill`.
macro_rules! podman {
    ($name:literal) => {
        include_bytes!(concat!("../../../../../tests/fixtures/podman/", $name))
    };
}

#[test]
fn docker_responses_are_read() {
    assert_eq!(containers(RECORDED).unwrap().len(), 4);
    let bridge = named("llm-bridge");
    assert_eq!(bridge.labels["app"], "deepseek");
    assert_eq!(bridge.labels["com.example.role"], "engine");
    assert!(!bridge.is_in_host_network);
    assert_eq!(bridge.addresses, ["172.17.0.2".parse::<IpAddr>().unwrap()]);
    assert_eq!(bridge.published_at(8000), Some("127.0.0.1:18000".parse().unwrap()));
    assert_eq!(bridge.published_at(8001), None);
    let host = named("llm-host");
    assert!(host.is_in_host_network && host.addresses.is_empty() && host.published.is_empty());
    let none = named("llm-none");
    assert!(!none.is_in_host_network && none.addresses.is_empty());
    assert_eq!(none.labels["esc"], "\u{1b}[2Jred\nline");
    assert_eq!(named("llm-inner").addresses, ["172.18.0.2".parse::<IpAddr>().unwrap()]);
}

fn read(entries: &str) -> Containers {
    let id = "ab".repeat(32);
    containers(entries.replace("ID", &id).as_bytes()).unwrap()
}

#[test]
fn malformed_entries_are_skipped() {
    let podman = r#"[{"Id":"ID","Names":["/other/alias","llm\u001b[2J"],"Labels":null,"Ports":[
        {"IP":"","PrivatePort":8000,"PublicPort":8001},
        {"IP":"x","PrivatePort":8000,"PublicPort":8002,"Type":"tcp"},
        {"IP":"::","PrivatePort":9000,"PublicPort":9001,"Type":"tcp"},
        {"IP":"","PrivatePort":53,"PublicPort":53,"Type":"udp"},
        {"IP":"","PrivatePort":70000,"PublicPort":0,"Type":"tcp"}],
        "State":"what nobody has heard of","NetworkSettings":{"Networks":null}},
        {"Id":"short"},{"Id":7},null,{}]"#;
    let all = read(podman);
    assert_eq!(all.len(), 1);
    let one = all.values().next().unwrap();
    assert_eq!(&*one.name, "llm\\x1b[2J");
    assert_eq!(one.published_at(8000), Some("127.0.0.1:8001".parse().unwrap()));
    assert_eq!(one.published_at(9000), Some("[::1]:9001".parse().unwrap()));
    assert_eq!(one.published.len(), 2, "{:?}", one.published);
    assert!(containers(b"{\"message\":\"too new\"}").unwrap_err().contains("no list"));
    assert!(containers(b"<html>").unwrap_err().contains("no JSON"));
    assert!(containers(&b"[".repeat(100_000)).is_err());
}

#[test]
fn everything_is_bounded() {
    let long = "x".repeat(MAX_LABEL_BYTES + 1);
    let labels = (0..1000).map(|number| format!("\"{number}\":\"a\"")).collect::<Vec<_>>();
    let labels = format!("{},\"long\":\"{long}\"", labels.join(","));
    let all = read(&format!(r#"[{{"Id":"ID","Names":["/{long}"],"Labels":{{{labels}}}}}]"#));
    let one = all.values().next().unwrap();
    assert_eq!((one.name.len(), one.labels.len()), (MAX_NAME_BYTES, MAX_LABELS));
    let one = read(&format!(r#"[{{"Id":"ID","Labels":{{"a":"{long}"}}}}]"#));
    assert!(one.values().next().unwrap().labels.is_empty(), "a part of it is another label");
    let entries = (0..2 * MAX_CONTAINERS).map(|number| format!(r#"{{"Id":"{number:064x}"}}"#));
    let entries = entries.collect::<Vec<_>>().join(",");
    assert_eq!(read(&format!("[{entries}]")).len(), MAX_CONTAINERS);
}

#[test]
fn an_image_has_its_name_and_the_begin_of_its_id() {
    let id = format!("sha256:{}", "0123456789abcdef".repeat(4));
    let image = |name: &str, id: &str| {
        let entry = serde_json::json!([{"Id": "a".repeat(64), "Image": name, "ImageID": id}]);
        let found = containers(entry.to_string().as_bytes()).unwrap();
        found.into_values().next().unwrap().image.map(|image| image.to_string())
    };
    let of = |name: &str, id: &str| image(name, id).unwrap_or_default();
    assert_eq!(of("vllm/vllm-openai:v0.32", &id), "vllm/vllm-openai:v0.32@0123456789ab");
    assert_eq!(of(&id, &id), "0123456789ab", "a container of an image without a name");
    assert_eq!(of("a\u{1b}[2J", ""), "a\\x1b[2J");
    assert_eq!(of("a", "sha256:../../etc/x"), "a");
    assert_eq!(image("", ""), None);
}

proptest! {
    #[test]
    fn any_response_is_read(
        text in prop::collection::vec(any::<u8>(), 0..300),
        value in "(null|7|-1|1e99|\"[a-f0-9/:.]{0,70}\"|\\[\\]|\\{\\}|\\[null\\])",
        key in "(Id|Names|Labels|Ports|HostConfig|NetworkSettings)",
    ) {
        let _ = containers(&text);
        let id = "0".repeat(64);
        let read = format!("[{{\"Id\":\"{id}\",\"{key}\":{value}}}]");
        prop_assert!(containers(read.as_bytes()).is_ok());
    }
}

#[test]
fn podman_responses_are_read() {
    let all = containers(podman!("containers-4.3.1.json")).unwrap();
    let mut names: Vec<&str> = all.values().map(|container| &*container.name).collect();
    names.sort_unstable();
    assert_eq!(names, ["llm-created", "llm-died", "llm-killed", "llm-runs", "llm-stopped"]);
    assert!(all.values().all(|container| container.labels["umawarden.restart"] == "when-ready"));
    let created = inspected(podman!("inspect-created-4.3.1.json")).unwrap();
    assert_eq!((created.state, &*created.restart_policy), (WorkloadState::Fresh, "no"));
    let runs = inspected(podman!("inspect-runs-4.3.1.json")).unwrap();
    assert!(matches!(runs.state, WorkloadState::Running { health: None, .. }), "{runs:?}");
    let died = inspected(podman!("inspect-died-4.3.1.json")).unwrap();
    assert_eq!((&*died.restart_policy, died.restart_most), ("on-failure", 3));
    let events: Vec<ContainerEvent> =
        podman!("events-4.3.1.jsonl").split(|byte| *byte == b'\n').filter_map(event).collect();
    // `podman kill` is an event, with no signal in it; `podman stop` is none.
    for (text, code, wanted) in [
        (&podman!("inspect-died-4.3.1.json")[..], 3, OnRequest::No),
        (podman!("inspect-killed-4.3.1.json"), 137, OnRequest::Yes),
        (podman!("inspect-stopped-4.3.1.json"), 0, OnRequest::No),
    ] {
        let found = inspected(text).unwrap();
        let WorkloadState::Ended(end) = found.state else { panic!("{found:?}") };
        assert_eq!(end.exit_code, Some(code));
        let mut its = events.clone();
        its.retain(|event| event.id == found.id);
        its.sort_by_key(|event| event.time_ns);
        assert_eq!(requested(&end, &its), wanted, "{}", found.name);
    }
}

#[test]
fn podman_logs_are_read() {
    let died = inspected(podman!("inspect-died-4.3.1.json")).unwrap();
    let has_cause = |line: &str| line.contains("CUDA out of memory");
    let log =
        log_end(&pieces(podman!("log-died-4.3.1.bin"), false), time(&died.started), has_cause);
    // It writes whole seconds: what other lives wrote in the same one is not distinguished.
    assert_eq!(log.last().unwrap(), "RuntimeError: CUDA out of memory");
    assert!(
        log.len().is_multiple_of(2) && log.iter().all(|line| !line.contains("2026")),
        "{log:?}"
    );
    let killed = inspected(podman!("inspect-killed-4.3.1.json")).unwrap();
    let log =
        log_end(&pieces(podman!("log-killed-4.3.1.bin"), true), time(&killed.started), has_cause);
    assert_eq!(log, ["hello"]);
}

/// What rootless Podman 4.3.1 of user 1001 answered of a container.
const ROOTLESS: &[u8] =
    include_bytes!("../../../../../tests/fixtures/docker/inspect-podman-rootless-4.3.1.json");

#[test]
fn the_log_of_a_container_is_where_its_runtime_says() {
    let found = inspected(ROOTLESS).unwrap();
    let id = &found.id;
    let storage = "/home/umwexp/.local/share/containers/storage/vfs-containers";
    let log = format!("{storage}/{id}/userdata/ctr.log");
    assert_eq!(found.log.as_deref(), Some(std::path::Path::new(&log)));
    assert_eq!((&*found.name, found.pid), ("lives", Some(2833)));
    let text = String::from_utf8(ROOTLESS.to_vec()).unwrap();
    // journald has no file; a relative path and one with a NUL are none.
    for none in ["", "ctr.log", "/a\\u0000b", &"/a".repeat(3000)] {
        let other = inspected(text.replace(&log, none).as_bytes()).unwrap();
        assert_eq!(other.log, None, "{none}");
    }
}
