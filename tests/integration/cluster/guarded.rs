//! Nodes that query each other over TLS with passwords, tokens and certificates. A failure is
//! reported with its fix.

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
use crate::empty_cache::fake::{FakeServer, Reply};
use crate::{run, tls_front};

const MUTUAL: &str = "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: \
                      authority.pem\n  client_allowed_sans: [spark-1.example]\n";

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/peers").join(name)
}

fn copy(name: &str, to: &Path) {
    write_secret(to, &fs::read_to_string(fixture(name)).unwrap());
}

/// A node with access control.
struct Peer {
    node: run::Node,
    daemon: Daemon,
}

impl Peer {
    /// `certificate` names one of the fixtures.
    fn start(certificate: &str, web: &str, tokens: &str) -> Self {
        let node = run::Node::new("gb10-4k");
        copy_certificate(&node, certificate);
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

    /// Replaces the certificate; existing connections are closed.
    fn use_certificate(&self, certificate: &str) {
        let read = |daemon: &Daemon| daemon.log().matches("web_reload result=done").count();
        let before = read(&self.daemon);
        copy_certificate(&self.node, certificate);
        self.daemon.wait_until("read again", |daemon| read(daemon) > before);
    }
}

fn copy_certificate(node: &run::Node, certificate: &str) {
    copy(&format!("{certificate}.key"), &node.path("server.key"));
    copy(&format!("{certificate}.pem"), &node.path("server.pem"));
}

/// The entry of a peer in a node's cluster list.
fn known(node: &Node, peer: &str) -> Option<Value> {
    let cluster = node.data("/api/v1/cluster");
    cluster["nodes"].as_array().unwrap().iter().find(|node| node["node"] == peer).cloned()
}

/// Waits until the peer is unknown for all these reasons.
fn wait_until_unknown(node: &Node, peer: &str, reasons: &[&str]) {
    node.daemon().wait_until(&format!("{peer} unknown: {reasons:?}"), |_| {
        known(node, peer).is_some_and(|known| {
            let why = known["unknown"].as_str().unwrap_or_default();
            reasons.iter().all(|reason| why.contains(reason))
        })
    });
}

/// Waits until the peer counts as down, some time after its last response.
fn wait_until_down(node: &Node, peer: &str) {
    let up = format!("uma_cluster_peer_up{{peer=\"{peer}\"}}");
    node.daemon().wait_until("down", |daemon| daemon.metrics().get(&up) == Some(&0.0));
}

/// Waits until the available memory of the peer is known.
fn wait_until_known(node: &Node, peer: &Peer) {
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
fn only_peers_with_a_valid_certificate_that_accept_the_password_are_known() {
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
    wait_until_known(&agent, &good);
    for (peer, why) in &bad {
        wait_until_unknown(&agent, peer.address(), why);
        wait_until_down(&agent, peer.address());
    }
    // Rules that read these peers are unknown, and the log has no secret.
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
    let report: Value = serde_json::from_slice(&gate.stdout).unwrap();
    let of_peer = |address: &str| {
        let peers = report["peers"].as_array().unwrap().iter();
        let mut peers = peers.filter(|peer| peer["node"] == address);
        peers.next().unwrap_or_else(|| panic!("{report:#}"))
    };
    assert_eq!(of_peer(good.address())["says"], "open", "{report:#}");
    for (peer, why) in &bad {
        let entry = of_peer(peer.address()).to_string();
        assert!(entry.contains("\"unknown\""), "{entry}");
        assert!(why.iter().all(|why| entry.contains(why)), "{why:?}: {entry}");
    }
    assert_eq!(gate.status.code(), Some(1));
}

/// Client files for a peer that requires a certificate and a token.
struct Credentials {
    folder: tempfile::TempDir,
    token: NewToken,
}

impl Credentials {
    fn new() -> Self {
        let all = Self { folder: tempfile::tempdir().unwrap(), token: token("agent", Role::Read) };
        copy("authority.pem", &all.path("ca.pem"));
        all.use_certificate("client");
        write_secret(all.path("token"), &all.token.token);
        all
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn use_certificate(&self, certificate: &str) {
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
fn renewed_certificates_keys_and_tokens_are_used_and_wrong_ones_reported() {
    let own = Credentials::new();
    let web = format!("{TLS}{MUTUAL}basic_auth_users: {{bob: {HASH}}}\n");
    let peer = Peer::start("server", &web, &own.token.entry());
    let address = peer.address().to_owned();
    let agent = Node::with(&format!(
        "name: rack, node: agent, peers: ['{address}'], interval: 1s, timeout: 900ms, {}",
        own.settings()
    ));
    wait_until_known(&agent, &peer);
    // A renewed certificate is accepted; one of another authority is not.
    peer.use_certificate("renewed");
    wait_until_known(&agent, &peer);
    peer.use_certificate("foreign");
    wait_until_unknown(&agent, &address, &["UnknownIssuer", "certificate as ca_file"]);
    wait_until_down(&agent, &address);
    let both = ["authority.pem", "foreign-authority.pem"];
    let both = both.map(|name| fs::read_to_string(fixture(name)).unwrap()).concat();
    write_secret(own.path("ca.pem"), &both);
    wait_until_known(&agent, &peer);

    write_secret(own.path("token"), "umawarden_0000000000000000\n");
    peer.use_certificate("server");
    wait_until_unknown(&agent, &address, &["it answers 401", "bearer_token_file"]);
    write_secret(own.path("token"), &own.token.token);
    wait_until_known(&agent, &peer);

    own.use_certificate("client-expired");
    peer.use_certificate("renewed");
    wait_until_unknown(&agent, &address, &["certificate", "cert_file"]);
    own.use_certificate("client");
    wait_until_known(&agent, &peer);

    // A key file that everybody may read is refused.
    for secret in ["own.key", "token"] {
        let mode = |mode| fs::set_permissions(own.path(secret), fs::Permissions::from_mode(mode));
        mode(0o644).unwrap();
        peer.use_certificate(if secret == "token" { "renewed" } else { "server" });
        let why = [secret, "everybody on this machine may read it (mode 0644): chmod o-rwx"];
        wait_until_unknown(&agent, &address, &why);
        mode(0o640).unwrap();
        wait_until_known(&agent, &peer);
    }
    let log = agent.daemon().log();
    assert!(!log.contains(&own.token.token), "{log}");
}

#[test]
fn a_prometheus_with_a_valid_certificate_is_queried_over_tls_with_a_token() {
    let node = run::Node::new("gb10-4k");
    let prometheus = FakeServer::start(|request| match request.key.as_deref() {
        Some("Bearer s3cret") if request.path.contains("available") => {
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
    wait_until_unknown(&stranger, "prometheus", &["invalid peer certificate", "ca_file"]);
    assert!(prometheus.requests().is_empty(), "an unverified server does not get the token");
    let refused = agent("authority.pem", "bad");
    wait_until_unknown(&refused, "prometheus", &["401", "bearer_token_file"]);
    let accepted = agent("authority.pem", "good");
    accepted.daemon().wait_until("spark-2 known", |_| {
        known(&accepted, "spark-2:9942")
            .is_some_and(|known| known["available_bytes"].as_f64() == Some(5e9))
    });
}
