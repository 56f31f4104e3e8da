//! Access control from outside: who is admitted over the network, who is not, and that then nothing
//! happens.

#![expect(clippy::unwrap_used, reason = "whatever a test's helper cannot do fails the test")]

mod attacks;
mod hosts;
mod journalled;
pub mod program;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use umawarden::access::{AccessControl, AccessFiles, NewToken, create_token};
use umawarden::exports::{Limits, access_table};
use umawarden::model::{Credential, Moment, OrderedBy, Role};

use crate::exports::server::{Answer, PATIENCE, Server, no_queries, parse, start_behind};

/// "correct horse", cheaply.
pub const HASH: &str = "$2y$04$abcdefghijklmnopqrstuujydOTSfIH/d5oUHpsygqV5X9xJLQc6e";
const ALICE: &str = "Authorization: Basic YWxpY2U6Y29ycmVjdCBob3JzZQ==";
const ALICE_WRONG: &str = "Authorization: Basic YWxpY2U6d3Jvbmc=";

pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/web").join(name)
}

fn clock() -> Moment {
    Moment { uptime: Duration::from_secs(100), utc: Timestamp::now() }
}

/// The files of access control, in the folder of the certificates.
pub struct Files {
    pub folder: tempfile::TempDir,
}

impl Files {
    pub fn new(web_config: &str, tokens: &str) -> Self {
        let files = Self { folder: tempfile::tempdir().unwrap() };
        for name in ["server.pem", "server.key", "authority.pem"] {
            fs::copy(fixture(name), files.path(name)).unwrap();
        }
        files.write("web.yml", web_config);
        files.write("tokens.yml", tokens);
        files
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// In one go, and readable for nobody else.
    pub fn write(&self, name: &str, text: &str) {
        let new = self.path("new");
        fs::write(&new, text).unwrap();
        fs::set_permissions(&new, fs::Permissions::from_mode(0o600)).unwrap();
        fs::rename(new, self.path(name)).unwrap();
    }

    fn open(&self) -> AccessControl {
        let web_config = Some(self.path("web.yml"));
        AccessControl::open(
            AccessFiles { web_config, tokens: Some(self.path("tokens.yml")) },
            clock,
        )
        .unwrap()
    }

    fn serve(&self) -> Server {
        start_behind(self.open(), Limits::default(), no_queries())
    }
}

pub fn token(name: &str, role: Role) -> NewToken {
    create_token(name, role, None).unwrap()
}

pub fn bearer(token: &NewToken) -> String {
    format!("Authorization: Bearer {}", token.token)
}

/// A client of TLS, with a certificate of the fixtures or without.
pub fn tls_client(certificate: Option<&str>) -> Arc<ClientConfig> {
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(fixture("authority.pem")).unwrap()).unwrap();
    let builder = builder.with_root_certificates(roots);
    Arc::new(match certificate {
        None => builder.with_no_client_auth(),
        Some(name) => {
            let chain = CertificateDer::from_pem_file(fixture(&format!("{name}.pem"))).unwrap();
            let key = PrivateKeyDer::from_pem_file(fixture(&format!("{name}.key"))).unwrap();
            builder.with_client_auth_cert(vec![chain], key).unwrap()
        }
    })
}

fn request(method: &str, target: &str, headers: &[&str]) -> String {
    let mut request = format!("{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n");
    headers.iter().for_each(|header| request.push_str(&format!("{header}\r\n")));
    request + "\r\n"
}

/// One request over TLS; `None` where the server does not let the client in.
pub fn ask_tls(
    address: SocketAddr,
    certificate: Option<&str>,
    method: &str,
    target: &str,
    headers: &[&str],
) -> Option<Answer> {
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let connection = ClientConnection::new(tls_client(certificate), name).unwrap();
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut stream = StreamOwned::new(connection, stream);
    stream.write_all(request(method, target, headers).as_bytes()).ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    Some(parse(&answer))
}

/// A path of the table with something in each of its places.
fn concrete(path: &str) -> String {
    path.replace("{id}", "1").replace("{decision}", "1").replace("{rule}", "Low")
}

#[test]
fn every_route_asks_for_the_role_that_the_table_says_and_else_nothing_happens() {
    let tokens = Role::ALL.map(|role| (role, token(role.name(), role)));
    let expired =
        create_token("expired", Role::Remedy, Some("2020-01-01T00:00:00Z".parse().unwrap()));
    let expired = expired.unwrap();
    let mut entries: String = tokens.iter().map(|(_, token)| token.entry()).collect();
    entries += &expired.entry();
    let files = Files::new(&format!("basic_auth_users: {{alice: {HASH}}}\n"), &entries);
    let mut server = files.serve();
    let wrong = "Authorization: Bearer umawarden_0000000000000000".to_owned();
    let none = "X-Nothing: x".to_owned();
    for (method, path, access) in access_table() {
        let target = concrete(path);
        let status = |header: &str| server.ask(method, &target, &[header]).status;
        let challenged = server.ask(method, &target, &[&wrong]);
        let local = access == "local";
        assert_eq!(challenged.headers.contains_key("www-authenticate"), !local, "{method} {path}");
        for refused in [&none, &wrong, &bearer(&expired), ALICE_WRONG] {
            assert_eq!(status(refused), if local { 403 } else { 401 }, "{method} {path} {refused}");
        }
        for (role, token) in &tokens {
            let enough = match access {
                "local" => false,
                needed => Role::ALL.iter().any(|one| one.name() == needed && one <= role),
            };
            if enough && path == "/-/reload" {
                // It is let in, and waits for an answer that does not come.
                continue;
            }
            let header = bearer(token);
            if enough && access != "read" {
                let body = ["Content-Length: 8", &header];
                let answer = server.raw((request(method, &target, &body) + "nonsense").as_bytes());
                assert_eq!(parse(&answer).status, 400, "{method} {path} as {role}");
                continue;
            }
            let status = status(&header);
            assert_eq!(status == 403, !enough, "{method} {path} as {role}: {status}");
            assert_ne!(status, 401, "{method} {path} as {role}");
        }
    }
    assert!(server.orders.try_recv().is_err() && server.reloads.try_recv().is_err());
    server.end();
}

#[test]
fn whoever_may_order_is_named_with_what_they_have_shown() {
    let ops = token("ops", Role::Operate);
    let files = Files::new(
        &format!("basic_auth_users: {{alice: {HASH}}}\n"),
        &format!("{}- {{user: alice, role: operate}}\n", ops.entry()),
    );
    let mut server = files.serve();
    let address = server.address;
    let header = bearer(&ops);
    for (header, credential) in [
        (header.as_str(), Credential::Token("ops".into())),
        (ALICE, Credential::User("alice".into())),
    ] {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request("POST", "/api/v1/pause", &[header]).as_bytes()).unwrap();
        let ordered = server.orders.blocking_recv().unwrap();
        let address = address.ip();
        assert_eq!(ordered.by, OrderedBy::Remote { credential: credential.clone(), address });
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream.write_all(request("POST", "/-/reload", &[header]).as_bytes()).unwrap();
        let reload = server.reloads.blocking_recv().unwrap();
        assert_eq!(reload.by, OrderedBy::Remote { credential, address });
    }
    server.end();
}

#[test]
fn what_a_page_of_another_site_sends_is_refused_whatever_it_brings_along() {
    let files = Files::new("", &token("ops", Role::Remedy).entry());
    let mut server = files.serve();
    let ops = token("late", Role::Remedy);
    files.write("tokens.yml", &ops.entry());
    // The new file is in force within moments.
    let header = bearer(&ops);
    wait_until("read again", || {
        server.ask("POST", "/-/reload", &[&header, "Origin: null"]).status == 403
    });
    for elsewhere in ["Sec-Fetch-Site: cross-site", "Origin: https://evil.example"] {
        let answer = server.ask("POST", "/api/v1/pause", &[&header, elsewhere]);
        assert_eq!(answer.status, 403, "{elsewhere}");
        assert!(answer.json()["error"].to_string().contains("cross-site"));
    }
    assert!(server.orders.try_recv().is_err());
    server.end();
}

pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "not {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub const TLS: &str = "tls_server_config:\n  cert_file: server.pem\n  key_file: server.key\n";

#[test]
fn only_clients_with_a_good_certificate_of_an_allowed_name_come_in() {
    let mutual = format!(
        "{TLS}  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: authority.pem\n  \
         client_allowed_sans: [spark-2.example]\n"
    );
    let files = Files::new(&mutual, "- {certificate: spark-2.example, role: operate}\n");
    let mut server = files.serve();
    let address = server.address;
    let get = |certificate| ask_tls(address, certificate, "GET", "/metrics", &[]);
    assert_eq!(get(Some("client")).unwrap().status, 200);
    for stranger in [None, Some("stranger"), Some("expired"), Some("forged")] {
        assert!(get(stranger).is_none(), "{stranger:?}");
    }
    // Neither does plain HTTP.
    assert!(!server.raw(request("GET", "/metrics", &[]).as_bytes()).starts_with(b"HTTP/1.1 200"));
    let ordering =
        std::thread::spawn(move || ask_tls(address, Some("client"), "POST", "/api/v1/pause", &[]));
    let ordered = server.orders.blocking_recv().unwrap();
    let credential = Credential::Certificate("spark-2.example".into());
    assert_eq!(ordered.by, OrderedBy::Remote { credential, address: address.ip() });
    drop(ordered);
    ordering.join().unwrap();
    let approval = ask_tls(address, Some("client"), "POST", "/api/v1/approvals/1", &[]).unwrap();
    assert_eq!(approval.status, 403, "that is for another role");
    assert!(server.orders.try_recv().is_err());
    server.end();
}

#[test]
fn a_certificate_that_nobody_has_verified_is_worth_nothing() {
    let entries = "- {certificate: spark-2.example, role: remedy}\n";
    for auth in ["RequestClientCert", "RequireAnyClientCert"] {
        let files = Files::new(&format!("{TLS}  client_auth_type: {auth}\n"), entries);
        let mut server = files.serve();
        let address = server.address;
        for name in ["client", "forged", "expired"] {
            let answer = ask_tls(address, Some(name), "POST", "/api/v1/pause", &[]).unwrap();
            assert_eq!(answer.status, 401, "{auth} {name}");
            assert_eq!(ask_tls(address, Some(name), "GET", "/metrics", &[]).unwrap().status, 200);
        }
        let without = ask_tls(address, None, "GET", "/metrics", &[]);
        assert_eq!(without.is_some(), auth == "RequestClientCert");
        assert!(server.orders.try_recv().is_err());
        server.end();
    }
    let given = format!(
        "{TLS}  client_auth_type: VerifyClientCertIfGiven\n  client_ca_file: authority.pem\n"
    );
    let files = Files::new(&given, entries);
    let server = files.serve();
    let status = |name| {
        let answer = ask_tls(server.address, name, "GET", "/metrics", &[]);
        answer.map(|answer| answer.status)
    };
    assert_eq!((status(None), status(Some("client"))), (Some(200), Some(200)));
    assert_eq!((status(Some("forged")), status(Some("expired"))), (None, None));
    server.end();
}

#[test]
fn handshakes_that_never_end_are_cut_off_and_hold_nobody_up() {
    let files = Files::new(TLS, "[]\n");
    let limits =
        Limits { handshake: Duration::from_millis(300), connections: 16, ..Limits::default() };
    let server = start_behind(files.open(), limits, no_queries());
    // More than may be connected, each in the middle of its handshake, or before it.
    let mut stuck: Vec<TcpStream> = (0..40).map(|_| server.connect()).collect();
    for stream in stuck.iter_mut().step_by(2) {
        let _may_be_cut_off_already = stream.write_all(&[0x16, 0x03, 0x01, 0x02, 0x00, 0x01]);
    }
    let answer = ask_tls(server.address, None, "GET", "/-/healthy", &[]).unwrap();
    assert_eq!(answer.status, 200);
    for mut stream in stuck {
        // It ends by the server's doing: with an end, or with a reset.
        let mut rest = Vec::new();
        let _cut_off = stream.read_to_end(&mut rest);
    }
    server.end();
}

#[test]
fn users_close_the_door_for_readers_and_the_control_socket_knows_nothing_of_it() {
    let web = format!(
        "basic_auth_users: {{alice: {HASH}}}\nhttp_server_config:\n  headers: {{X-Frame-Options: \
         deny, Content-Security-Policy: none}}\n"
    );
    let reader = token("scraper", Role::Read);
    let files = Files::new(&web, &reader.entry());
    let server = files.serve();
    let answer = server.get("/metrics");
    assert_eq!((answer.status, answer.headers["x-frame-options"].as_str()), (401, "deny"));
    for path in ["/", "/-/healthy", "/nowhere", "/api/v1/status"] {
        assert_eq!(server.get(path).status, 401, "{path}");
    }
    for header in [ALICE, &bearer(&reader)] {
        assert_eq!(server.ask("GET", "/metrics", &[header]).status, 200);
        assert_eq!(server.ask("GET", "/nowhere", &[header]).status, 404);
        assert_eq!(server.ask("POST", "/api/v1/pause", &[header]).status, 403);
    }
    let page = server.ask("GET", "/", &[ALICE]);
    assert!(page.headers["content-security-policy"].contains("default-src"), "the page's own");
    let local = server.order("GET", "/metrics", "");
    assert_eq!((local.status, local.headers.get("x-frame-options")), (200, None));
    server.end();
}

#[test]
fn a_connection_that_began_on_other_terms_ends_and_its_certificate_counts_no_more() {
    let given = format!(
        "{TLS}  client_auth_type: VerifyClientCertIfGiven\n  client_ca_file: authority.pem\n"
    );
    let files = Files::new(&given, "- {certificate: spark-2.example, role: operate}\n");
    let mut server = files.serve();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let connection = ClientConnection::new(tls_client(Some("client")), name).unwrap();
    let mut stream = StreamOwned::new(connection, server.connect());
    // A body that makes no sense gets as far as to whoever reads bodies.
    let order = "POST /api/v1/pause HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx";
    stream.write_all(order.as_bytes()).unwrap();
    let mut start = [0; 12];
    stream.read_exact(&mut start).unwrap();
    assert_eq!(&start, b"HTTP/1.1 400", "{}", String::from_utf8_lossy(&start));
    files.write("web.yml", &format!("{given}rate_limit: {{interval: 1ms, burst: 1000}}\n"));
    let told = || ask_tls(server.address, None, "GET", "/api/v1/status", &[]).unwrap();
    wait_until("read again", || {
        let metrics = server.order("GET", "/api/v1/status", "");
        assert_eq!(metrics.status, 200);
        !server.access.is_current(1)
    });
    assert_eq!(told().status, 200);
    stream.write_all(order.as_bytes()).unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    let rest = String::from_utf8(rest).unwrap();
    assert!(rest.contains("HTTP/1.1 401 ") && rest.contains("connection: close"), "{rest}");
    assert!(server.orders.try_recv().is_err());
    server.end();
}

#[test]
fn the_book_says_who_may_do_what() {
    let page = include_str!("../../docs/src/tasks/access.md");
    for (method, path, access) in access_table().filter(|(_, _, access)| *access != "read") {
        let row = if access == "local" { "nobody".to_owned() } else { format!("`{access}`") };
        let row = page.lines().find(|line| line.starts_with(&format!("| {row} |"))).unwrap();
        let path = path.split("/{").next().unwrap();
        assert!(row.contains(path) || method == "DELETE", "{method} {path} is not in: {row}");
    }
}

#[test]
fn beyond_the_limit_requests_are_told_when_to_come_again() {
    let files = Files::new("rate_limit: {interval: 1h, burst: 3}\n", "[]\n");
    let server = files.serve();
    let statuses: Vec<u16> = (0..5).map(|_| server.get("/-/healthy").status).collect();
    assert_eq!(statuses, [200, 200, 200, 429, 429]);
    let seconds: u64 = server.get("/metrics").headers["retry-after"].parse().unwrap();
    assert!((1..=3601).contains(&seconds), "{seconds}");
    assert_eq!(server.order("GET", "/-/healthy", "").status, 200, "on this node there is none");
    server.end();
}

#[test]
fn files_are_read_again_and_broken_ones_leave_the_door_as_it_was() {
    let first = token("first", Role::Read);
    let second = token("second", Role::Read);
    let users = format!("basic_auth_users: {{alice: {HASH}}}\n");
    let files = Files::new(&users, &first.entry());
    let server = files.serve();
    let status = |token: &NewToken| server.ask("GET", "/metrics", &[&bearer(token)]).status;
    assert_eq!((status(&first), status(&second)), (200, 401));
    files.write("tokens.yml", &second.entry());
    wait_until("read again", || status(&second) == 200);
    assert_eq!(status(&first), 401, "what is not there any more is good for nothing");
    files.write("tokens.yml", "- {name: second, rle: read}\n");
    let failure = || {
        let answer = server.order("GET", "/api/v1/status", "").json();
        answer["data"]["web_reload_failure"]["error"].as_str().map(str::to_owned)
    };
    wait_until("told", || failure().is_some());
    assert!(failure().unwrap().contains("tokens.yml:1:18: unknown key \"rle\""), "{:?}", failure());
    assert_eq!(status(&second), 200, "the version before stays");
    fs::remove_file(files.path("tokens.yml")).unwrap();
    wait_until("told", || failure().is_some_and(|why| why.contains("there is no such file")));
    assert_eq!(status(&second), 200);
    files.write("tokens.yml", &first.entry());
    wait_until("good again", || failure().is_none());
    assert_eq!((status(&first), status(&second)), (200, 401));
    // Access control without users is open to readers.
    files.write("web.yml", TLS);
    wait_until("TLS", || {
        ask_tls(server.address, None, "GET", "/metrics", &[]).is_some_and(|one| one.status == 200)
    });
    server.end();
}

#[test]
fn bodies_that_announce_no_length_are_read_to_the_routes_limit() {
    let ops = token("ops", Role::Operate);
    let files = Files::new("", &ops.entry());
    let mut server = files.serve();
    let mut long = request("POST", "/api/v1/pause", &[&bearer(&ops), "Transfer-Encoding: chunked"]);
    for _ in 0..20 {
        long += &format!("400\r\n{}\r\n", " ".repeat(1024));
    }
    let answer = parse(&server.raw(format!("{long}0\r\n\r\n").as_bytes()));
    assert_eq!(answer.status, 413);
    assert!(server.orders.try_recv().is_err());
    server.end();
}
