use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream as StdStream};
use std::thread::JoinHandle;

use bollard::models::{ContainerInspectResponse, ContainerSummary};
use proptest::prelude::*;

use super::*;
use crate::parse::container::{containers, event, inspected, log_end};

const PATIENCE: Duration = Duration::from_secs(5);
const LISTS: [&[u8]; 2] = [
    include_bytes!("../../../tests/fixtures/docker/containers-20.10.24.json"),
    include_bytes!("../../../tests/fixtures/podman/containers-4.3.1.json"),
];
const INSPECTIONS: [&[u8]; 5] = [
    include_bytes!("../../../tests/fixtures/podman/inspect-created-4.3.1.json"),
    include_bytes!("../../../tests/fixtures/podman/inspect-died-4.3.1.json"),
    include_bytes!("../../../tests/fixtures/podman/inspect-killed-4.3.1.json"),
    include_bytes!("../../../tests/fixtures/podman/inspect-runs-4.3.1.json"),
    include_bytes!("../../../tests/fixtures/podman/inspect-stopped-4.3.1.json"),
];
const EVENTS: &[u8] = include_bytes!("../../../tests/fixtures/podman/events-4.3.1.jsonl");
const LOG: &[u8] = include_bytes!("../../../tests/fixtures/podman/log-died-4.3.1.bin");

/// A Docker that answers one request.
struct Fake {
    folder: tempfile::TempDir,
    serving: JoinHandle<String>,
}

impl Fake {
    fn start(answer: impl FnOnce(&mut StdStream) -> io::Result<()> + Send + 'static) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("s")).unwrap();
        let serving = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 4096];
            let length = stream.read(&mut request).unwrap();
            // The client may have gone.
            let _ = answer(&mut stream);
            String::from_utf8_lossy(&request[..length]).lines().next().unwrap().to_owned()
        });
        Self { folder, serving }
    }

    fn responding(head: &str, body: &[u8]) -> Self {
        let length = body.len();
        let head = format!("HTTP/1.1 {head}\r\ncontent-length: {length}\r\n\r\n");
        let answer = [head.as_bytes(), body].concat();
        Self::start(move |stream| stream.write_all(&answer))
    }

    fn docker(&self) -> Docker {
        Docker::new(&self.folder.path().join("s"))
    }

    fn request(self) -> String {
        self.serving.join().unwrap()
    }
}

fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(work)
}

fn list(body: &[u8]) -> Result<Vec<u8>, DockerError> {
    let fake = Fake::responding("200 OK", body);
    run(fake.docker().list(true, PATIENCE))
}

fn inspect(body: &[u8]) -> Result<Inspection, DockerError> {
    let fake = Fake::responding("200 OK", body);
    run(fake.docker().inspect("a", PATIENCE))
}

#[test]
fn a_response_is_read_through_the_types_of_bollard_as_from_its_text() {
    for text in LISTS {
        assert!(serde_json::from_slice::<Vec<ContainerSummary>>(text).is_ok());
        assert_eq!(containers(&list(text).unwrap()), containers(text));
    }
    for text in INSPECTIONS {
        assert!(serde_json::from_slice::<ContainerInspectResponse>(text).is_ok());
        assert_eq!(inspected(&inspect(text).unwrap().text), inspected(text));
    }
}

/// The state, the port and the label of one entry are such as no type of bollard's holds.
#[test]
fn one_odd_entry_does_not_lose_the_others() {
    let entry = |id: char, rest: &str| {
        let id = String::from(id).repeat(64);
        format!(r#"{{"Id":"{id}","Names":["/{id:.1}"]{rest}}}"#)
    };
    for odd in [
        r#","State":"initialized""#,
        r#","Ports":[{"PrivatePort":99999,"Type":"tcp"}]"#,
        r#","Labels":{"a":null}"#,
        r#","Created":"2026-11-22T10:00:00Z""#,
    ] {
        let all = format!("[{},{}]", entry('a', ""), entry('b', odd));
        assert!(serde_json::from_str::<Vec<ContainerSummary>>(&all).is_err(), "{odd}");
        assert_eq!(containers(&list(all.as_bytes()).unwrap()).unwrap().len(), 2, "{odd}");
    }
    let odd = r#"{"Id":"ID","State":{"Status":"initialized"}}"#.replace("ID", &"a".repeat(64));
    assert!(serde_json::from_str::<ContainerInspectResponse>(&odd).is_err());
    assert!(inspected(&inspect(odd.as_bytes()).unwrap().text).is_ok());
    let page = list(b"<html>").unwrap();
    assert!(containers(&page).unwrap_err().contains("no JSON"));
}

#[test]
fn a_response_without_end_or_whole_is_an_error() {
    let endless = |head: &'static str| {
        Fake::start(move |stream| {
            stream.write_all(head.as_bytes())?;
            loop {
                stream.write_all(&[b' '; 65536])?;
            }
        })
    };
    let fake = endless("HTTP/1.1 200 OK\r\n\r\n[");
    let error = run(fake.docker().inspect("a", PATIENCE)).unwrap_err();
    assert_eq!(error.to_string(), "it answered more than 1.0 MiB");
    let fake = endless("HTTP/1.1 500 x\r\n\r\n[");
    let error = run(fake.docker().start("a", PATIENCE)).unwrap_err();
    assert_eq!(error.to_string(), "it answered more than 1.0 MiB");
    let fake = endless("HTTP/1.1 200 OK\r\nx: ");
    assert!(matches!(run(fake.docker().list(true, PATIENCE)), Err(DockerError::Failed(_))));
    let fake = endless("HTTP/1.1 200 OK\r\n\r\n{");
    let mut events = run_events(&fake);
    assert!(!events.0.block_on(events.1.next()), "a line that does not end");
    let cut =
        Fake::start(|stream| stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n["));
    assert!(matches!(run(cut.docker().list(true, PATIENCE)), Err(DockerError::Failed(_))));
    let silent = Fake::start(|stream| stream.read(&mut [0; 1]).map(drop));
    let short = Duration::from_millis(50);
    let error = run(silent.docker().list(true, short)).unwrap_err();
    assert_eq!(error, DockerError::TimedOut(short));
    let slow = Fake::start(|stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n[")?;
        stream.read(&mut [0; 1]).map(drop)
    });
    assert_eq!(run(slow.docker().list(true, short)), Err(DockerError::TimedOut(short)));
}

fn run_events(fake: &Fake) -> (tokio::runtime::Runtime, Events) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let events = runtime.block_on(fake.docker().events(HashMap::new(), PATIENCE)).unwrap();
    (runtime, events)
}

#[test]
fn events_are_tracked_from_the_head_of_the_response_on() {
    let fake = Fake::start(|stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
        std::thread::sleep(Duration::from_millis(100));
        for _ in 0..2 * MAX_EVENT_BYTES / 1000 {
            let line = format!("{{\"Type\":\"container\",\"Action\":\"{}\"}}\n", "x".repeat(1000));
            stream.write_all(line.as_bytes())?;
        }
        Ok(())
    });
    let (runtime, mut events) = run_events(&fake);
    let count = runtime.block_on(async {
        let mut count = 0;
        while events.next().await {
            count += 1;
        }
        count
    });
    assert_eq!(count, 2 * MAX_EVENT_BYTES / 1000, "each event has the limit of its own");
    assert_eq!(fake.request(), "GET /events?filters=%7B%7D HTTP/1.1");
}

#[test]
fn past_events_are_those_of_the_text() {
    let of_text: Vec<_> = EVENTS.split(|byte| *byte == b'\n').filter_map(event).collect();
    let fake = Fake::responding("200 OK", EVENTS);
    let span = ("7".to_owned(), None);
    let found = run(fake.docker().past_events(HashMap::new(), span, 4 << 20, PATIENCE)).unwrap();
    let found: Vec<_> = found.iter().filter_map(|text| event(text)).collect();
    assert_eq!(found, of_text);
    assert_eq!(fake.request(), "GET /events?since=7&filters=%7B%7D&stream=false HTTP/1.1");
    assert!(!found.is_empty());
}

#[test]
fn a_log_is_read_in_pieces_and_its_end_may_be_cut() {
    let read = |log: &[u8]| {
        let fake = Fake::responding("200 OK", log);
        let found = run(fake.docker().logs("a", ("7", Some("8.5")), 20, 1 << 20, PATIENCE));
        assert_eq!(
            fake.request(),
            "GET /containers/a/logs?follow=false&stdout=true&stderr=true&timestamps=true&tail=20\
             &since=7&until=8.5 HTTP/1.1"
        );
        found.unwrap()
    };
    let end = |log: &[u8]| log_end(&read(log), None, |_| false);
    assert_eq!(end(LOG).last().unwrap(), "RuntimeError: CUDA out of memory");
    assert_eq!(end(&LOG[..LOG.len() - 8]).last().unwrap(), "RuntimeError: CUDA out of");
    assert_eq!(end(b"2026-11-22T10:00:01Z a\r\n2026-11-22T10:00:02Z b"), ["a", "b"]);
    assert_eq!(end(b"\x01\0\0\0\xff\xff\xff\xffx"), ["x"]);
    assert_eq!(end(b""), Vec::<String>::new());
}

#[test]
fn starts_are_distinguished_by_the_status_of_their_response() {
    let start = |head| {
        let fake = Fake::responding(head, br#"{"message":"no \u0007room"}"#);
        run(fake.docker().start("a", PATIENCE))
    };
    let fake = Fake::responding("204 No Content", b"");
    assert_eq!(run(fake.docker().start("a", PATIENCE)), Ok(StartOutcome::Now));
    assert_eq!(fake.request(), "POST /containers/a/start HTTP/1.1");
    let fake = Fake::responding("304 Not Modified", b"");
    assert_eq!(run(fake.docker().start("a", PATIENCE)), Ok(StartOutcome::Before));
    let error = start("500 x").unwrap_err();
    assert_eq!(error.to_string(), "Docker answered 500: no room");
    assert!(start("404 x").unwrap_err().is_not_found());
    let docker = Docker::new(Path::new("/nonexistent"));
    assert_eq!(run(docker.list(true, PATIENCE)), Err(DockerError::Absent));
    let policy = run(docker.set_restart_policy("a", "sometimes", 0, PATIENCE));
    assert!(matches!(policy, Err(DockerError::Failed(_))));
    for hostile in ["", "../x", "a/b", "a?b", "%2e%2e", "-a", "a\n"] {
        let error = run(docker.inspect(hostile, PATIENCE)).unwrap_err();
        assert_eq!(error, DockerError::NotAContainer(hostile.to_owned()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn arbitrary_log_bytes_do_not_panic(bytes in prop::collection::vec(prop_oneof![Just(0_u8), 1_u8..4, any::<u8>()], 0..300)) {
        let fake = Fake::responding("200 OK", &bytes);
        let _read = run(fake.docker().logs("a", ("0", None), 20, 1 << 20, PATIENCE));
        let fake = Fake::responding("200 OK", &bytes);
        let _read = run(fake.docker().past_events(HashMap::new(), ("0".to_owned(), None), 1 << 20, PATIENCE));
        let fake = Fake::responding("200 OK", &bytes);
        let _read = run(fake.docker().list(false, PATIENCE));
    }
}

#[tokio::test]
async fn nothing_is_sent_to_a_server_of_another_user() {
    let own = rustix::process::geteuid().as_raw();
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    let listener = UnixListener::bind(&socket).unwrap();
    let refused = Docker::of_user(&socket, own + 1).list(false, PATIENCE).await.unwrap_err();
    assert_eq!(refused, DockerError::OfAnother { user: own + 1, found: Some(own) });
    let mut sent = Vec::new();
    listener.accept().unwrap().0.read_to_end(&mut sent).unwrap();
    assert_eq!(sent, b"");
    let serving = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = [0; 1024];
        let length = stream.read(&mut request).unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]").unwrap();
        length
    });
    assert_eq!(Docker::of_user(&socket, own).list(false, PATIENCE).await.unwrap(), b"[]");
    assert!(serving.join().unwrap() > 0);
}
