//! Nodes that ask each other over TLS, with passwords, tokens and certificates: what each says
//! arrives, and what keeps it from that is told with what to do about it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use umawarden::access::NewToken;
use umawarden::model::Role;

use super::Node;
use crate::access::program::run_behind;
use crate::access::{HASH, TLS, token};
use crate::daemon::{Daemon, binary, write_secret};
use crate::empty_cache::fake::{FakeEngine, Reply};
use crate::{run, tls_front};

const MUTUAL: &str = "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: \
                      authority.pem\n  client_allowed_sans: [spark-1.example]\n";

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/peers").join(name)
}

fn copy(name: &str, to: &Path) {
    write_secret(to, &fs::read_to_string(fixture(name)).unwrap());
}

/// A node that lets in whom its files say.
struct Peer {
    node: run::Node,
    daemon: Daemon,
}

impl Peer {
    /// With that certificate of the fixtures.
    fn start(certificate: &str, web: &str, tokens: &str) -> Self {
        let node = run::Node::new("gb10-4k");
        show(&node, certificate);
        copy("authority.pem", &node.path("authority.pem"));
        write_secret(node.path("web.yml"), web);
        write_secret(node.path("tokens.yml"), tokens);
        let mut command = run_behind(&node, &node.path("web.yml"));
        command.arg("--gpu.interval=off").arg("--web.tokens.file").arg(node.path("tokens.yml"));
        let daemon = Daemon::from_command(&mut command);
        Self { node, daemon }
    }

    fn address(&self) -> &str {
        self.daemon.address()
    }

    /// From now on it shows that certificate; whoever is connected is to connect anew.
    fn show(&self, certificate: &str) {
        let read = |daemon: &Daemon| daemon.log().matches("web_reload result=done").count();
        let before = read(&self.daemon);
        show(&self.node, certificate);
        self.daemon.wait_until("read again", |daemon| read(daemon) > before);
    }
}

fn show(node: &run::Node, certificate: &str) {
    copy(&format!("{certificate}.key"), &node.path("server.key"));
    copy(&format!("{certificate}.pem"), &node.path("server.pem"));
}

/// What a node knows of another one.
fn known(node: &Node, peer: &str) -> Option<Value> {
    let told = node.data("/api/v1/cluster");
    told["nodes"].as_array().unwrap().iter().find(|node| node["node"] == peer).cloned()
}

/// Waits until nothing is known of that peer, for that reason.
fn wait_for_silence(node: &Node, peer: &str, reasons: &[&str]) {
    node.daemon().wait_until(&format!("{peer} unknown: {reasons:?}"), |_| {
        known(node, peer).is_some_and(|known| {
            let why = known["unknown"].as_str().unwrap_or_default();
            reasons.iter().all(|reason| why.contains(reason))
        })
    });
}

/// Waits until it counts as down: after a while without an answer.
fn wait_until_down(node: &Node, peer: &str) {
    let up = format!("uma_cluster_peer_up{{peer=\"{peer}\"}}");
    node.daemon().wait_until("down", |daemon| daemon.metrics().get(&up) == Some(&0.0));
}

/// Waits until it is known what that peer has.
fn wait_for_answer(node: &Node, peer: &Peer) {
    let address = peer.address();
    let available = peer.daemon.metric("uma_memory_available_bytes");
    node.daemon().wait_until(&format!("{address} known"), |_| {
        known(node, address).is_some_and(|known| {
            known["unknown"].is_null() && known["available_bytes"].as_f64() == Some(available)
        })
    });
    let up = format!("uma_cluster_peer_up{{peer=\"{address}\"}}");
    node.daemon().wait_until("up", |daemon| daemon.metrics().get(&up) == Some(&1.0));
}

#[test]
fn peers_are_known_only_if_they_are_who_they_say_and_take_the_password() {
    let alice = format!("{TLS}basic_auth_users: {{alice: {HASH}}}\n");
    let bob = format!("{TLS}basic_auth_users: {{bob: {HASH}}}\n");
    let good = Peer::start("server", &alice, "[]\n");
    let renew = "renew its certificate there";
    let cases = [
        ("expired", &*alice, ["certificate expired", renew]),
        ("foreign", &alice, ["UnknownIssuer", "name that authority's certificate as ca_file"]),
        ("elsewhere", &alice, ["spark-9.example", "tls: {server_name: "]),
        ("server", &bob, ["it answers 401", "(bearer_token_file, or basic_auth)"]),
        ("server", &format!("{TLS}{MUTUAL}"), ["certificate", "tls: {cert_file: "]),
        ("server", "", ["TLS failed", "it does not seem to speak TLS"]),
    ];
    let bad = cases.map(|(certificate, web, why)| (Peer::start(certificate, web, "[]\n"), why));
    let folder = tempfile::tempdir().unwrap();
    let password = folder.path().join("password");
    write_secret(&password, "correct horse\n");
    let peers: Vec<String> = std::iter::once(&good)
        .chain(bad.iter().map(|(peer, _)| peer))
        .map(|peer| format!("'{}'", peer.address()))
        .collect();
    let agent = Node::with(&format!(
        "name: rack, node: agent, peers: [{}], interval: 1s, timeout: 900ms, tls: {{ca_file: {}}}, \
         basic_auth: {{username: alice, password_file: {}}}",
        peers.join(", "),
        fixture("authority.pem").display(),
        password.display(),
    ));
    wait_for_answer(&agent, &good);
    for (peer, why) in &bad {
        wait_for_silence(&agent, peer.address(), why);
        wait_until_down(&agent, peer.address());
    }
    // Rules that would read them do not know, and the log keeps no secret.
    agent.wait_for("Imbalance", "unknown");
    agent.wait_for("Silent", "firing");
    assert!(!agent.daemon().log().contains("correct horse"), "{}", agent.daemon().log());

    let gate = Command::new(binary())
        .args(["gate", "--need=1GiB", "--timeout=0", "--peers", "--json", "--config.file"])
        .arg(agent.path("umawarden.yaml"))
        .args(
            [good.node.path("proc"), good.node.path("sys")]
                .iter()
                .zip(["procfs", "sysfs"])
                .map(|(path, name)| format!("--path.{name}={}", path.display())),
        )
        .output()
        .unwrap();
    let told: Value = serde_json::from_slice(&gate.stdout).unwrap();
    let says = |address: &str| {
        let answers = told["peers"].as_array().unwrap().iter();
        let mut answers = answers.filter(|answer| answer["node"] == address);
        answers.next().unwrap_or_else(|| panic!("{told:#}"))
    };
    assert_eq!(says(good.address())["says"], "open", "{told:#}");
    for (peer, why) in &bad {
        let answer = says(peer.address()).to_string();
        assert!(answer.contains("\"unknown\""), "{answer}");
        assert!(why.iter().all(|why| answer.contains(why)), "{why:?}: {answer}");
    }
    assert_eq!(gate.status.code(), Some(1));
}

/// What an agent needs for a peer that asks for a certificate and a token.
struct Credentials {
    folder: tempfile::TempDir,
    token: NewToken,
}

impl Credentials {
    fn new() -> Self {
        let all = Self { folder: tempfile::tempdir().unwrap(), token: token("agent", Role::Read) };
        copy("authority.pem", &all.path("ca.pem"));
        all.show("client");
        write_secret(all.path("token"), &all.token.token);
        all
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn show(&self, certificate: &str) {
        copy(&format!("{certificate}.key"), &self.path("own.key"));
        copy(&format!("{certificate}.pem"), &self.path("own.pem"));
    }

    fn settings(&self) -> String {
        let path = |name: &str| self.path(name).display().to_string();
        format!(
            "tls: {{ca_file: {}, cert_file: {}, key_file: {}}}, bearer_token_file: {}",
            path("ca.pem"),
            path("own.pem"),
            path("own.key"),
            path("token")
        )
    }
}

#[test]
fn certificates_keys_and_tokens_may_change_meanwhile_and_what_is_wrong_then_is_told() {
    let own = Credentials::new();
    let web = format!("{TLS}{MUTUAL}basic_auth_users: {{bob: {HASH}}}\n");
    let peer = Peer::start("server", &web, &own.token.entry());
    let address = peer.address().to_owned();
    let agent = Node::with(&format!(
        "name: rack, node: agent, peers: ['{address}'], interval: 1s, timeout: 900ms, {}",
        own.settings()
    ));
    wait_for_answer(&agent, &peer);
    // One that is renewed is nothing to speak of; another authority's is nobody's.
    peer.show("renewed");
    wait_for_answer(&agent, &peer);
    peer.show("foreign");
    wait_for_silence(&agent, &address, &["UnknownIssuer", "certificate as ca_file"]);
    wait_until_down(&agent, &address);
    let both = ["authority.pem", "foreign-authority.pem"];
    let both = both.map(|name| fs::read_to_string(fixture(name)).unwrap()).concat();
    write_secret(own.path("ca.pem"), &both);
    wait_for_answer(&agent, &peer);

    write_secret(own.path("token"), "umawarden_0000000000000000\n");
    peer.show("server");
    wait_for_silence(&agent, &address, &["it answers 401", "bearer_token_file"]);
    write_secret(own.path("token"), &own.token.token);
    wait_for_answer(&agent, &peer);

    own.show("client-expired");
    peer.show("renewed");
    wait_for_silence(&agent, &address, &["certificate", "cert_file"]);
    own.show("client");
    wait_for_answer(&agent, &peer);

    // A key that everybody may read is no key.
    for secret in ["own.key", "token"] {
        let mode = |mode| fs::set_permissions(own.path(secret), fs::Permissions::from_mode(mode));
        mode(0o644).unwrap();
        peer.show(if secret == "token" { "renewed" } else { "server" });
        let why = [secret, "everybody on this machine may read it (mode 0644): chmod o-rwx"];
        wait_for_silence(&agent, &address, &why);
        mode(0o640).unwrap();
        wait_for_answer(&agent, &peer);
    }
    let log = agent.daemon().log();
    assert!(!log.contains(&own.token.token), "{log}");
}

#[test]
fn a_prometheus_is_asked_over_tls_with_a_token_and_believed_only_if_it_is_who_it_says() {
    let node = run::Node::new("gb10-4k");
    let prometheus = FakeEngine::start(|asked| match asked.key.as_deref() {
        Some("Bearer s3cret") if asked.path.contains("available") => {
            let one = r#"{"metric":{"instance":"spark-2:9942"},"value":[1,"5000000000"]}"#;
            let data = format!(r#"{{"resultType":"vector","result":[{one}]}}"#);
            Reply::Answer(200, format!(r#"{{"status":"success","data":{data}}}"#))
        }
        Some("Bearer s3cret") => Reply::Answer(
            200,
            r#"{"status":"success","data":{"resultType":"vector","result":[]}}"#.to_owned(),
        ),
        _ => Reply::Answer(401, String::new()),
    });
    let port = tls_front::before(prometheus.port);
    write_secret(node.path("good"), "s3cret\n");
    write_secret(node.path("bad"), "s3crets\n");
    let agent = |authority: &str, token: &str| {
        Node::with(&format!(
            "name: rack, node: here, interval: 500ms, prometheus: {{url: \
             'https://localhost:{port}', tls: {{ca_file: {}}}, bearer_token_file: {}}}",
            tls_front::fixture(authority).display(),
            node.path(token).display()
        ))
    };
    let stranger = agent("other.pem", "good");
    wait_for_silence(&stranger, "prometheus", &["invalid peer certificate", "ca_file"]);
    assert!(prometheus.asked().is_empty(), "a stranger is not shown the token");
    let refused = agent("authority.pem", "bad");
    wait_for_silence(&refused, "prometheus", &["401", "bearer_token_file"]);
    let knows = agent("authority.pem", "good");
    knows.daemon().wait_until("spark-2 known", |_| {
        known(&knows, "spark-2:9942")
            .is_some_and(|known| known["available_bytes"].as_f64() == Some(5e9))
    });
}
