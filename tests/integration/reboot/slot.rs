//! The cluster's slot: taken, refused, released; and servers that are no lock servers.

use umawarden::model::RebootLock;

use super::fake_lock::FakeLock;
use super::*;
use crate::empty_cache::fake::{FakeServer, Reply};

/// The machine id of the tests as zincati derives it.
const DERIVED: &str = "978a225b3d7b40e9acd7ce9b62f68444";

fn lock(url: String, id: Option<&str>) -> RebootLock {
    RebootLock { url, group: "gpu".to_owned(), id: id.map(str::to_owned), ..Default::default() }
}

#[test]
fn a_slot_is_taken_once_refused_to_others_and_released() {
    let (machine, server) = (Machine::new(), FakeLock::start(1));
    let ours = || lock(server.url(), None);
    let (result, effect) = machine.perform(RebootAct::TakeSlot(ours()));
    assert_eq!(result, OutcomeResult::Done);
    assert_eq!(effect.unwrap(), "the lock server has agreed (as 978a225b…)");
    assert_eq!(server.holders()["gpu"], [DERIVED]);
    assert_eq!(machine.perform(RebootAct::TakeSlot(ours())).0, OutcomeResult::Done, "again");
    let other = lock(server.url() + "/", Some("other-node"));
    let outcome = machine.perform(RebootAct::TakeSlot(other.clone()));
    let expected = "the lock server refuses (failed_lock_semaphore_full): semaphore currently full";
    assert_eq!(failed(&outcome), expected);
    // A node without a slot cannot release that of another.
    assert_eq!(machine.perform(RebootAct::ReleaseSlot(other.clone())).0, OutcomeResult::Done);
    assert_eq!(server.holders()["gpu"], [DERIVED]);
    assert_eq!(machine.perform(RebootAct::ReleaseSlot(ours())).0, OutcomeResult::Done);
    assert_eq!(machine.perform(RebootAct::ReleaseSlot(ours())).0, OutcomeResult::Done, "again");
    assert_eq!(machine.perform(RebootAct::TakeSlot(other)).0, OutcomeResult::Done);
    assert_eq!(server.holders()["gpu"], ["other-node"]);
    let request = &server.requests()[0];
    assert_eq!((&*request.method, &*request.path), ("POST", "/v1/pre-reboot"));
    assert_eq!(request.fleet_lock.as_deref(), Some("true"));
    let body = format!("{{\"client_params\":{{\"id\":\"{DERIVED}\",\"group\":\"gpu\"}}}}");
    assert_eq!(request.body, body);
}

#[test]
fn broken_hanging_and_foreign_servers_grant_no_slot() {
    let machine = Machine::new();
    let refusal = r#"{"kind":"k\u001b[2J","value":"v\nw"}"#;
    let cases = [
        (Reply::Answer(500, refusal.to_owned()), "refuses (k [2J): v w"),
        (Reply::Answer(404, r#"{"kind":"k"}"#.to_owned()), "refuses (k): it does not say why"),
        // Contradicting responses.
        (Reply::Answer(200, refusal.to_owned()), "refuses (k [2J)"),
        (Reply::Answer(200, r#"{"kind":""}"#.to_owned()), "agreed"),
        (Reply::Answer(201, String::new()), "no response: 201 at /v1/pre-reboot: nothing"),
        (Reply::Answer(204, String::new()), "no response: 204"),
        (Reply::Answer(302, String::new()), "no response: 302"),
        (Reply::Answer(502, "<html>proxy</html>".to_owned()), "no response: 502 at /v1/pre-reboot"),
        (Reply::Answer(500, format!(r#"{{"kind":"{}"}}"#, "x".repeat(500))), &"x".repeat(64)),
        (Reply::Raw("garbage\r\n\r\n".to_owned()), "the request to /"),
        (Reply::Close, "the request to /"),
    ];
    for (reply, expected) in cases {
        let shown = format!("{reply:?}");
        let server = FakeServer::start(move |_| reply.clone());
        let url = format!("http://127.0.0.1:{}", server.port);
        let outcome = machine.perform(RebootAct::TakeSlot(lock(url, None)));
        match &outcome.0 {
            OutcomeResult::Done => assert_eq!(expected, "agreed", "{shown}"),
            OutcomeResult::Failed(why) => {
                assert!(why.contains(expected) && why.len() < 400, "{shown}: {why}");
                assert!(!why.chars().any(char::is_control) && !why.contains(DERIVED), "{why}");
            }
            other => panic!("{shown}: {other:?}"),
        }
    }
    let endless = FakeServer::start(|_| Reply::Endless);
    let url = format!("http://127.0.0.1:{}", endless.port);
    // 200 grants the slot, whatever follows.
    let outcome =
        within(Duration::from_secs(13), || machine.perform(RebootAct::TakeSlot(lock(url, None))));
    assert_eq!(outcome.0, OutcomeResult::Done);
}

#[test]
fn a_hanging_or_absent_server_is_given_up() {
    let machine = Machine::new();
    let hanging = FakeServer::start(|_| Reply::Hang);
    let url = format!("http://127.0.0.1:{}", hanging.port);
    let outcome =
        within(Duration::from_secs(13), || machine.perform(RebootAct::TakeSlot(lock(url, None))));
    assert!(failed(&outcome).contains("/v1/pre-reboot was not answered within"), "{outcome:?}");
    for url in
        ["http://127.0.0.1:1", "http://umawarden.invalid:8080", "ftp://127.0.0.1", "", "https://"]
    {
        let outcome = machine.perform(RebootAct::TakeSlot(lock(url.to_owned(), None)));
        assert!(failed(&outcome).contains("has given no response"), "{url}: {outcome:?}");
    }
}

#[test]
fn a_node_without_a_name_sends_no_request() {
    let (machine, server) = (Machine::new(), FakeLock::start(1));
    fs::write(machine.path("machine-id"), "uninitialized\n").unwrap();
    let outcome = machine.perform(RebootAct::TakeSlot(lock(server.url(), None)));
    assert!(failed(&outcome).contains("name the node with reboot.lock.id"), "{outcome:?}");
    assert!(server.requests().is_empty());
}
