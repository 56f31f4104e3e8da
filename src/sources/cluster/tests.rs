//! Nodes that answer, hang, report false values and leave, over real sockets.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Mutex;
use std::thread;

use super::*;
use crate::model::{
    Access, Credentials, NodeNews, PeerAddress, PrometheusServer, Reading, Rejection,
};

/// Nothing takes so long, on any machine.
const LONG: Duration = Duration::from_secs(60);

pub(super) fn uptime() -> Duration {
    rustix::time::clock_gettime(rustix::time::ClockId::Boottime).try_into().unwrap()
}

/// What a fake node does with a connection.
type Behaviour = Arc<dyn Fn(&str, &mut TcpStream) + Send + Sync>;

/// Sends the current response to each request; `None`: the connection is closed.
pub(super) fn serve(behaviour: impl Fn(&str, &mut TcpStream) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let behaviour: Behaviour = Arc::new(behaviour);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (behaviour, mut stream) = (Arc::clone(&behaviour), stream.unwrap());
            thread::spawn(move || {
                let mut request = Vec::new();
                let mut byte = [0];
                while let Ok(1) = stream.read(&mut byte) {
                    request.push(byte[0]);
                    if request.ends_with(b"\r\n\r\n") {
                        behaviour(&String::from_utf8_lossy(&request), &mut stream);
                        request.clear();
                    }
                }
            });
        }
    });
    address
}

pub(super) fn answer(stream: &mut TcpStream, head: &str, body: &str) {
    let length = body.len();
    let text = format!("HTTP/1.1 {head}\r\ncontent-length: {length}\r\n\r\n{body}");
    let _ = stream.write_all(text.as_bytes());
}

fn metrics(body: &'static str) -> String {
    serve(move |_, stream| answer(stream, "200 OK", body))
}

pub(super) fn settings(peers: &[&str]) -> ClusterSettings {
    ClusterSettings {
        name: "c".into(),
        node: None,
        peers: peers.iter().map(|peer| peer.parse().unwrap()).collect(),
        dns: Vec::new(),
        files: Vec::new(),
        prometheus: None,
        interval: Duration::from_millis(200),
        timeout: Duration::from_millis(150),
        metrics_path: "/metrics".to_owned(),
        access: Access::default(),
    }
}

const FREE: &str = "uma_memory_free_bytes";

pub(super) fn wanted() -> Arc<[Wanted]> {
    let name = |name: &str| Wanted { name: name.into(), labels: Vec::new() };
    Arc::new([
        name(FREE),
        name("uma_memory_contiguous_bytes"),
        name("uma_scrape_collector_success"),
    ])
}

struct Watching {
    watch: ClusterWatch,
}

impl Watching {
    fn new(settings: ClusterSettings) -> Self {
        let names = ClusterNames {
            cluster: "c".into(),
            node: "here".into(),
            known_for: settings.known_for(),
        };
        let setup = ClusterSetup {
            settings,
            names,
            instance: "me".into(),
            wanted: wanted(),
            clock: uptime,
        };
        Self { watch: ClusterWatch::start(setup).unwrap() }
    }

    /// The next news of a node that are as wanted.
    fn next(&mut self, is_it: impl Fn(&NodeReadings) -> bool) -> NodeReadings {
        let begin = uptime();
        let mut last = None;
        loop {
            let mut seen = Vec::new();
            self.watch.take(&mut seen);
            for observation in seen {
                let Observation::Cluster(readings) = observation else { panic!() };
                for readings in readings.nodes {
                    if is_it(&readings) {
                        return readings;
                    }
                    last = Some(readings);
                }
            }
            assert!(uptime() - begin < LONG, "nothing of it came; last: {last:?}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn silence(&mut self) -> String {
        let readings = self.next(|readings| matches!(readings.news, NodeNews::Silent { .. }));
        let NodeNews::Silent { why, .. } = readings.news else { panic!() };
        why.to_string()
    }

    fn values(&mut self) -> Vec<(String, Reading<f64>)> {
        values(&self.next(|readings| matches!(readings.news, NodeNews::Answered { .. })))
    }
}

fn values(readings: &NodeReadings) -> Vec<(String, Reading<f64>)> {
    let NodeNews::Answered { schema, values } = &readings.news else { panic!("{readings:?}") };
    schema.series.iter().map(ToString::to_string).zip(values.iter().copied()).collect()
}

fn why(behaviour: impl Fn(&str, &mut TcpStream) + Send + Sync + 'static) -> String {
    Watching::new(settings(&[&serve(behaviour)])).silence()
}

#[test]
fn requested_series_have_the_name_of_their_node() {
    let peer = metrics(
        "# TYPE x gauge\numa_memory_free_bytes{node=\"liar\",cluster=\"liar\"} 5\nother{ 1\n",
    );
    let readings = Watching::new(settings(&[&peer])).values();
    let name =
        format!("uma_memory_free_bytes{{cluster=\"c\",exported_node=\"liar\",node=\"{peer}\"}}");
    assert_eq!(readings, [(name, Reading::Value(5.0))]);
}

#[test]
fn a_connection_is_kept_and_a_closed_one_is_reopened() {
    let connections = Arc::new(Mutex::new((0, 0)));
    let seen = Arc::clone(&connections);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (seen, mut stream) = (Arc::clone(&seen), stream.unwrap());
            thread::spawn(move || {
                seen.lock().unwrap().0 += 1;
                let mut buffer = [0; 4096];
                for _ in 0..3 {
                    let Ok(1..) = stream.read(&mut buffer) else { return };
                    seen.lock().unwrap().1 += 1;
                    answer(&mut stream, "200 OK", "uma_memory_free_bytes 5\n");
                }
            });
        }
    });
    let mut watching = Watching::new(settings(&[&peer]));
    for _ in 0..7 {
        watching.next(|readings| matches!(readings.news, NodeNews::Answered { .. }));
    }
    let (connections, requests) = *connections.lock().unwrap();
    assert!(requests >= 7 && connections < requests, "{connections} for {requests}");
}

#[test]
fn no_behaviour_of_a_peer_blocks() {
    let hangs = why(|_, _| thread::sleep(LONG));
    assert!(hangs.contains("no answer within 150 ms"), "{hangs}");
    let drips = why(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
        while stream.write_all(b"u").is_ok() {
            thread::sleep(Duration::from_millis(20));
        }
    });
    assert!(drips.contains("no answer within"), "{drips}");
    let breaks_off = why(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\numa");
        let _ = stream.shutdown(std::net::Shutdown::Both);
    });
    assert!(breaks_off.contains("breaks off"), "{breaks_off}");
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let refused = Watching::new(settings(&[&closed])).silence();
    assert!(refused.contains("refused"), "{refused}");
}

#[test]
fn invalid_responses_are_silence() {
    for (head, body, expected) in [
        ("302 Found\r\nlocation: http://127.0.0.1:1/", "", "it answers 302"),
        ("401 Unauthorized", "", "it wants other credentials"),
        ("500 Internal Server Error", "", "it answers 500"),
        ("200 OK", "<html>\n", "its response has no series of umawarden"),
        ("200 OK", "uma_memory_free_bytes x\n", "no metrics: line 1: it has no value"),
    ] {
        let readings = why(move |_, stream| answer(stream, head, body));
        assert!(readings.contains(expected), "{head}: {readings}");
    }
}

#[test]
fn a_million_series_are_not_read() {
    let mut long = settings(&[]);
    long.timeout = Duration::from_secs(20);
    long.interval = Duration::from_secs(30);
    let readings = |body: String| {
        let peer = serve(move |_, stream| answer(stream, "200 OK", &body));
        let mut settings = long.clone();
        settings.peers = vec![peer.parse().unwrap()];
        Watching::new(settings).next(
            |readings| !matches!(&readings.news, NodeNews::Silent { why, .. } if why.contains("within")),
        )
    };
    let line = |number: usize| format!("uma_memory_free_bytes{{x=\"{number}\"}} 1\n");
    let many = readings((0..1_000_000).map(line).collect());
    let NodeNews::Silent { why, .. } = &many.news else { panic!("{many:?}") };
    assert!(why.contains("longer than 4 MiB"), "{why}");
    let more = readings((0..1_000).map(line).collect());
    let NodeNews::Silent { why, schema } = &more.news else { panic!("{more:?}") };
    assert!(why.contains("more than 150 series") && schema.series.len() < 10, "{why}");
    assert_eq!(more.refused, [(Rejection::TooMany, 850)]);
    let wide = readings(format!("uma_memory_free_bytes{{x=\"{}\"}} 1\n", "y".repeat(300)));
    assert!(matches!(wide.news, NodeNews::Silent { .. }), "{wide:?}");
}

#[test]
fn an_impossible_value_is_a_failed_reading() {
    let peer = metrics(
        "uma_memory_free_bytes -5\numa_memory_contiguous_bytes{block=\"a\"} 1e300\n\
         uma_memory_contiguous_bytes{block=\"b\"} NaN\numa_memory_contiguous_bytes{block=\"c\"} \
         +Inf\numa_memory_contiguous_bytes{block=\"d\"} 1\numa_memory_contiguous_bytes{block=\"d\"} \
         2\numa_memory_contiguous_bytes{block=\"e\"} 7\n",
    );
    let mut watching = Watching::new(settings(&[&peer]));
    let readings = watching.next(|readings| matches!(readings.news, NodeNews::Answered { .. }));
    assert_eq!(readings.refused, [(Rejection::Impossible, 4), (Rejection::Twice, 1)]);
    let known: Vec<_> =
        values(&readings).into_iter().filter(|(_, v)| *v != Reading::Failed).collect();
    assert_eq!(known.len(), 1);
    assert_eq!(known[0].1, Reading::Value(7.0));
}

#[test]
fn unreadable_values_of_a_node_are_unknown_and_unsupported_ones_absent() {
    let lines = Arc::new(Mutex::new("uma_memory_free_bytes 5\n".to_owned()));
    let body = Arc::clone(&lines);
    let peer = serve(move |_, stream| answer(stream, "200 OK", &body.lock().unwrap()));
    let mut watching = Watching::new(settings(&[&peer]));
    assert_eq!(watching.values()[0].1, Reading::Value(5.0));
    let free = |readings: &NodeReadings| {
        values(readings).into_iter().find(|(name, _)| name.contains(FREE)).unwrap().1
    };
    let is = |readings: &NodeReadings, up: bool, reading| {
        matches!(readings.news, NodeNews::Answered { .. })
            && values(readings).iter().any(|(name, value)| {
                name.contains("uma_scrape_collector_success")
                    && *value == Reading::Value(f64::from(up))
            })
            && free(readings) == reading
    };
    *lines.lock().unwrap() = "uma_scrape_collector_success{collector=\"meminfo\"} 0\n".to_owned();
    watching.next(|readings| is(readings, false, Reading::Failed));
    *lines.lock().unwrap() = "uma_scrape_collector_success{collector=\"meminfo\"} 1\n".to_owned();
    watching.next(|readings| is(readings, true, Reading::Unsupported));
    // One of which nothing was known before its source failed.
    let down = metrics(
        "uma_scrape_collector_success{collector=\"buddyinfo\"} 0\numa_memory_free_bytes 1\n",
    );
    let readings = Watching::new(settings(&[&down])).values();
    let contiguous = readings.iter().find(|(name, _)| name.contains("contiguous")).unwrap();
    assert_eq!(contiguous.1, Reading::Failed);
}

#[test]
fn this_node_is_recognised_among_its_peers() {
    let peer = serve(|_, stream| {
        answer(stream, "200 OK\r\numawarden-instance: me", "uma_memory_free_bytes 5\n");
    });
    let readings = Watching::new(settings(&[&peer])).next(|_| true);
    assert_eq!(readings.news, NodeNews::Gone);
}

#[test]
fn credentials_are_sent_and_read_from_files() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key");
    fs::write(&file, "secret\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let scraped = |credentials| {
        let peer = serve(|request, stream| {
            let line =
                request.lines().find(|line| line.to_lowercase().starts_with("authorization"));
            let is_known = matches!(
                line.and_then(|line| line.split_once(": ")).map(|(_, value)| value),
                Some("Bearer secret" | "Basic dTpzZWNyZXQ=")
            );
            let head = if is_known { "200 OK" } else { "401 Unauthorized" };
            answer(stream, head, "uma_memory_free_bytes 5\n");
        });
        let mut settings = settings(&[&peer]);
        settings.access.credentials = credentials;
        Watching::new(settings).next(|_| true).news
    };
    let basic = Credentials::Basic { username: "u".to_owned(), password: file.clone() };
    for credentials in [Credentials::Bearer(file), basic] {
        let readings = scraped(Some(credentials));
        assert!(matches!(readings, NodeNews::Answered { .. }), "{readings:?}");
    }
    assert!(matches!(scraped(None), NodeNews::Silent { .. }));
    let missing = Credentials::Bearer("/nonexistent/key".into());
    let NodeNews::Silent { why, .. } = scraped(Some(missing)) else { panic!() };
    assert!(why.contains("/nonexistent/key cannot be read"), "{why}");
}

#[test]
fn files_are_reread_and_keep_their_nodes_while_they_are_malformed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("peers.yaml");
    let pattern = folder.path().join("*.yaml");
    let mut settings = settings(&[]);
    settings.files = vec![pattern.clone()];
    let mut discovery = Discovery::new(&settings);
    let found = discovery.discover();
    assert!(found.faults[0].1.contains("there is no such file"), "{found:?}");
    fs::write(&file, "- targets: [127.0.0.1:1, 127.0.0.1:2]\n").unwrap();
    let found = discovery.discover();
    assert_eq!((found.peers.len(), found.faults.len()), (2, 0));
    fs::write(&file, "- targets: 5\n").unwrap();
    let found = discovery.discover();
    assert_eq!((found.peers.len(), found.faults.len()), (2, 0));
    assert!(found.remarks[0].contains("stay"), "{found:?}");
    fs::write(&file, "- targets: [127.0.0.1:1]\n  labels: {node: one}\n").unwrap();
    assert_eq!(&**discovery.discover().peers[0].name(), "one");
    let many: Vec<String> = (1..100).map(|port| format!("127.0.0.1:{port}")).collect();
    fs::write(&file, format!("- targets: [{}]\n", many.join(", "))).unwrap();
    let found = discovery.discover();
    assert_eq!(found.peers.len(), 64);
    let (what, why) = &found.faults[0];
    assert_eq!(&**what, "nodes beyond 64", "who is left out is unknown, not absent");
    assert!(why.starts_with("35 of them are not scraped"), "{why}");
}

#[test]
fn an_unreadable_folder_may_have_nodes() {
    let folder = tempfile::tempdir().unwrap();
    let allow = |name: &str, mode| {
        let path = folder.path().join(name);
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    for name in ["open", "shut"] {
        fs::create_dir(folder.path().join(name)).unwrap();
        let file = folder.path().join(name).join("peers.yaml");
        fs::write(file, "- targets: [127.0.0.1:1]\n").unwrap();
    }
    allow("", 0o755);
    let mut settings = settings(&[]);
    settings.files = vec![folder.path().join("*/*.yaml")];
    let discover = || {
        let mut discovery = Discovery::new(&settings);
        // Root may read everything: the thread runs as nobody.
        let thread = thread::spawn(move || {
            // Without root it is another user already.
            let _ = rustix::thread::set_thread_uid(rustix::fs::Uid::from_raw(65_534));
            discovery.discover()
        });
        thread.join().unwrap()
    };
    assert_eq!((discover().peers.len(), discover().faults), (1, Vec::new()));
    allow("shut", 0o000);
    let found = discover();
    allow("shut", 0o755);
    assert_eq!((found.peers.len(), found.faults.len()), (0, 1), "{found:?}");
    let why = &found.faults[0].1;
    assert!(why.contains("shut") && why.contains("Permission denied"), "{why}");
}

#[test]
fn removed_nodes_are_gone_and_new_ones_are_scraped() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("peers.json");
    let [one, two] = [5, 6].map(|number| {
        serve(move |_, stream| {
            answer(stream, "200 OK", &format!("uma_memory_free_bytes {number}\n"))
        })
    });
    let write =
        |target: &str| fs::write(&file, format!("[{{\"targets\": [\"{target}\"]}}]")).unwrap();
    write(&one);
    let mut settings = settings(&[]);
    settings.files = vec![file.clone()];
    let mut watching = Watching::new(settings);
    watching.next(|readings| {
        *readings.node == *one && matches!(readings.news, NodeNews::Answered { .. })
    });
    write(&two);
    watching.next(|readings| *readings.node == *one && readings.news == NodeNews::Gone);
    watching.next(|readings| {
        *readings.node == *two && matches!(readings.news, NodeNews::Answered { .. })
    });
}

#[test]
fn every_address_of_a_name_is_a_node() {
    let mut settings = settings(&[]);
    settings.dns = vec!["localhost:4711".parse().unwrap()];
    let found = Discovery::new(&settings).discover();
    let names: Vec<String> = found.peers.iter().map(ToString::to_string).collect();
    assert!(names.contains(&"127.0.0.1:4711".to_owned()), "{found:?}");
    settings.dns = vec!["no-such-host.invalid:1".parse().unwrap()];
    let found = Discovery::new(&settings).discover();
    assert!(found.faults[0].1.contains("cannot be resolved"), "{found:?}");
}

#[test]
fn two_names_of_one_address_are_one_node_and_one_name_of_two_addresses_is_two() {
    let mut settings = settings(&["127.0.0.1:1", "127.0.0.1:2"]);
    let named = |address: &str| address.parse::<PeerAddress>().unwrap().named("a".into());
    settings.peers = vec![named("127.0.0.1:1"), named("127.0.0.1:2"), named("127.0.0.1:2")];
    let found = Discovery::new(&settings).discover();
    let names: Vec<String> = found.peers.iter().map(ToString::to_string).collect();
    assert_eq!(names, ["a", "127.0.0.1:2"]);
}

/// What a made-up server answers to a query for free memory.
fn vector(nodes: &[(&str, &str)]) -> String {
    let one = |(node, value): &(&str, &str)| {
        format!(
            "{{\"metric\":{{\"instance\":\"{node}\",\"job\":\"x\"}},\"value\":[1,\"{value}\"]}}"
        )
    };
    let all: Vec<String> = nodes.iter().map(one).collect();
    let all = all.join(",");
    format!("{{\"status\":\"success\",\"data\":{{\"resultType\":\"vector\",\"result\":[{all}]}}}}")
}

fn of_server(address: &str) -> ClusterSettings {
    ClusterSettings {
        prometheus: Some(PrometheusServer {
            url: format!("http://{address}/prefix"),
            node_label: "instance".into(),
            matchers: None,
            access: Access::default(),
        }),
        timeout: Duration::from_secs(20),
        ..settings(&[])
    }
}

#[test]
fn a_prometheus_reports_all_nodes_and_its_silence_is_theirs() {
    let is_up = Arc::new(Mutex::new(false));
    let up = Arc::clone(&is_up);
    let address = serve(move |request, stream| {
        assert!(request.starts_with("GET /prefix/api/v1/query?query=uma"), "{request}");
        assert!(request.contains("cluster%3D%22c%22"), "{request}");
        let nodes = [("here:1", "1"), ("there:1", "5"), ("odd:1", "-5")];
        match (*up.lock().unwrap(), request.contains("free")) {
            (false, _) => answer(stream, "503 Service Unavailable", ""),
            (true, true) => answer(stream, "200 OK", &vector(&nodes)),
            (true, false) => answer(stream, "200 OK", &vector(&[])),
        }
    });
    let mut watching = Watching::new(of_server(&address));
    let readings = watching.next(|_| true);
    let NodeNews::Silent { why, schema } = readings.news else { panic!() };
    assert!(why.contains("it answers 503") && &*readings.node == "prometheus", "{why}");
    assert_eq!(schema.series.len(), 2, "the wanted series are unknown");
    *is_up.lock().unwrap() = true;
    watching.next(|readings| &*readings.node == "prometheus" && readings.news == NodeNews::Gone);
    let readings = watching.next(|readings| &*readings.node == "odd:1");
    assert_eq!(values(&readings)[0].1, Reading::Failed);
    let readings = watching.next(|readings| &*readings.node == "there:1");
    let name = "uma_memory_free_bytes{cluster=\"c\",node=\"there:1\"}".to_owned();
    assert_eq!(values(&readings), [(name, Reading::Value(5.0))]);
    *is_up.lock().unwrap() = false;
    watching.next(|readings| {
        &*readings.node == "there:1" && matches!(readings.news, NodeNews::Silent { .. })
    });
}

#[test]
fn a_node_lost_by_the_server_is_reported_as_silent() {
    let nodes = Arc::new(Mutex::new(vec![("one:1", "5"), ("two:1", "6")]));
    let readings = Arc::clone(&nodes);
    let address = serve(move |request, stream| {
        let is_free = request.contains("free");
        let body = if is_free { vector(&readings.lock().unwrap()) } else { vector(&[]) };
        answer(stream, "200 OK", &body);
    });
    let mut watching = Watching::new(of_server(&address));
    watching.next(|readings| {
        &*readings.node == "two:1" && matches!(readings.news, NodeNews::Answered { .. })
    });
    nodes.lock().unwrap().pop();
    let readings = watching.next(|readings| {
        &*readings.node == "two:1" && !matches!(readings.news, NodeNews::Answered { .. })
    });
    assert!(matches!(readings.news, NodeNews::Silent { .. }), "{readings:?}");
}

#[test]
fn responses_of_the_server_are_bounded() {
    for (body, expected) in [
        ("{}", "it is no answer"),
        ("{\"status\":\"error\",\"error\":\"no\"}", "the server refuses: no"),
    ] {
        let address = serve(move |_, stream| answer(stream, "200 OK", body));
        let readings = Watching::new(of_server(&address)).silence();
        assert!(readings.contains(expected), "{readings}");
    }
    let endless = serve(|_, stream| {
        let head = "HTTP/1.1 200 OK\r\n\r\n{\"status\":\"success\",\"data\":";
        let _ = stream.write_all(head.as_bytes());
        while stream.write_all(&[b' '; 1 << 16]).is_ok() {}
    });
    let readings = Watching::new(of_server(&endless)).silence();
    assert!(readings.contains("the answer is longer than 16 MiB"), "{readings}");
}

#[test]
fn a_prometheus_without_nodes_is_silent_and_not_an_empty_cluster() {
    let address = serve(|_request, stream| answer(stream, "200 OK", &vector(&[])));
    let mut watching = Watching::new(of_server(&address));
    let readings = watching.next(|_| true);
    let NodeNews::Silent { why, .. } = readings.news else { panic!("{readings:?}") };
    assert!(why.contains("it reports no node"), "{why}");
}

#[test]
fn another_node_with_the_same_name_is_reported_and_not_taken_for_this_one() {
    let address = serve(|_request, stream| {
        answer(stream, "200 OK\r\numawarden-instance: another", "uma_memory_free_bytes 5\n");
    });
    let mut peers = settings(&[&address]);
    peers.peers[0] = peers.peers[0].clone().named("here".into());
    let readings = Watching::new(peers).next(|_| true);
    let NodeNews::Silent { why, .. } = readings.news else { panic!("{readings:?}") };
    assert!(why.contains("another node has this one's name"), "{why}");
}

#[test]
fn nodes_do_not_scrape_in_step() {
    let second = Duration::from_secs(1);
    let times: Vec<Duration> = (0..200).map(|_| jittered(second)).collect();
    let (least, most) = (times.iter().min().unwrap(), times.iter().max().unwrap());
    assert!(*least >= second.mul_f64(0.9) && *most <= second.mul_f64(1.1), "{least:?} {most:?}");
    assert!(*most - *least > second / 10, "{least:?} to {most:?}");
}
