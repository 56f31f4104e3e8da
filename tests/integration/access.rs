//! Access control over the network: which requests are admitted, and that refused ones have no
//! effect.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails the test")]

mod attacks;
mod hosts;
mod journalled;
mod pictures;
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
use umawarden::exports::{ClientLimits, access_table};
use umawarden::model::{Credential, Moment, OrderedBy, Role};

use crate::exports::server::{PATIENCE, Response, Server, no_queries, parse, start_behind};

/// The bcrypt hash of "correct horse", of low cost.
pub const HASH: &str = "$2y$04$abcdefghijklmnopqrstuujydOTSfIH/d5oUHpsygqV5X9xJLQc6e";
const ALICE: &str = "Authorization: Basic YWxpY2U6Y29ycmVjdCBob3JzZQ==";
const ALICE_WRONG: &str = "Authorization: Basic YWxpY2U6d3Jvbmc=";

pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/web").join(name)
}

fn clock() -> Moment {
    Moment { uptime: Duration::from_secs(100), utc: Timestamp::now() }
}

/// The files of access control, in one folder with the certificates.
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

    /// Writes the file atomically with mode 0600.
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
        start_behind(self.open(), ClientLimits::default(), no_queries())
    }
}

pub fn token(name: &str, role: Role) -> NewToken {
    create_token(name, role, None).unwrap()
}

pub fn bearer(token: &NewToken) -> String {
    format!("Authorization: Bearer {}", token.token)
}

/// A TLS client, with a certificate of the fixtures or without one.
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

/// One request over TLS; `None` if the server refuses the connection.
pub fn request_tls(
    address: SocketAddr,
    certificate: Option<&str>,
    method: &str,
    target: &str,
    headers: &[&str],
) -> Option<Response> {
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let connection = ClientConnection::new(tls_client(certificate), name).unwrap();
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut stream = StreamOwned::new(connection, stream);
    stream.write_all(request(method, target, headers).as_bytes()).ok()?;
    let mut response = Vec::new();
    stream.read_to_end(&mut response).ok()?;
    Some(parse(&response))
}

/// A path of the access table with its placeholders filled in.
fn concrete(path: &str) -> String {
    let path = path.replace("{id}", "1").replace("{decision}", "1").replace("{rule}", "Low");
    path.replace("{file}", "page.js").replace("{name}", "pool")
}

#[test]
fn every_route_requires_the_role_of_the_access_table() {
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
        let status = |header: &str| server.request(method, &target, &[header]).status;
        let challenged = server.request(method, &target, &[&wrong]);
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
            if enough && ["/-/reload", "/api/v1/live"].contains(&path) {
                // The request is admitted, and its response does not come or does not end.
                continue;
            }
            let header = bearer(token);
            if enough && access != "read" {
                let body = ["Content-Length: 8", &header];
                let response =
                    server.raw((request(method, &target, &body) + "nonsense").as_bytes());
                assert_eq!(parse(&response).status, 400, "{method} {path} as {role}");
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
fn an_order_is_attributed_to_its_credential_and_address() {
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
fn a_cross_site_request_is_refused_even_with_a_valid_token() {
    let files = Files::new("", &token("ops", Role::Remedy).entry());
    let mut server = files.serve();
    let ops = token("late", Role::Remedy);
    files.write("tokens.yml", &ops.entry());
    // The new file is loaded within moments.
    let header = bearer(&ops);
    wait_until("read again", || {
        server.request("POST", "/-/reload", &[&header, "Origin: null"]).status == 403
    });
    for elsewhere in ["Sec-Fetch-Site: cross-site", "Origin: https://evil.example"] {
        let response = server.request("POST", "/api/v1/pause", &[&header, elsewhere]);
        assert_eq!(response.status, 403, "{elsewhere}");
        assert!(response.json()["error"].to_string().contains("cross-site"));
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
fn only_clients_with_a_valid_certificate_of_an_allowed_name_are_admitted() {
    let mutual = format!(
        "{TLS}  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: authority.pem\n  \
         client_allowed_sans: [spark-2.example]\n"
    );
    let files = Files::new(&mutual, "- {certificate: spark-2.example, role: operate}\n");
    let mut server = files.serve();
    let address = server.address;
    let get = |certificate| request_tls(address, certificate, "GET", "/metrics", &[]);
    assert_eq!(get(Some("client")).unwrap().status, 200);
    for stranger in [None, Some("stranger"), Some("expired"), Some("forged")] {
        assert!(get(stranger).is_none(), "{stranger:?}");
    }
    // Plain HTTP is not served either.
    assert!(!server.raw(request("GET", "/metrics", &[]).as_bytes()).starts_with(b"HTTP/1.1 200"));
    let ordering = std::thread::spawn(move || {
        request_tls(address, Some("client"), "POST", "/api/v1/pause", &[])
    });
    let ordered = server.orders.blocking_recv().unwrap();
    let credential = Credential::Certificate("spark-2.example".into());
    assert_eq!(ordered.by, OrderedBy::Remote { credential, address: address.ip() });
    drop(ordered);
    ordering.join().unwrap();
    let approval =
        request_tls(address, Some("client"), "POST", "/api/v1/approvals/1", &[]).unwrap();
    assert_eq!(approval.status, 403, "approvals require another role");
    assert!(server.orders.try_recv().is_err());
    server.end();
}

#[test]
fn an_unverified_certificate_gives_no_role() {
    let entries = "- {certificate: spark-2.example, role: remedy}\n";
    for auth in ["RequestClientCert", "RequireAnyClientCert"] {
        let files = Files::new(&format!("{TLS}  client_auth_type: {auth}\n"), entries);
        let mut server = files.serve();
        let address = server.address;
        for name in ["client", "forged", "expired"] {
            let response = request_tls(address, Some(name), "POST", "/api/v1/pause", &[]).unwrap();
            assert_eq!(response.status, 401, "{auth} {name}");
            assert_eq!(
                request_tls(address, Some(name), "GET", "/metrics", &[]).unwrap().status,
                200
            );
        }
        let without = request_tls(address, None, "GET", "/metrics", &[]);
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
        let response = request_tls(server.address, name, "GET", "/metrics", &[]);
        response.map(|response| response.status)
    };
    assert_eq!((status(None), status(Some("client"))), (Some(200), Some(200)));
    assert_eq!((status(Some("forged")), status(Some("expired"))), (None, None));
    server.end();
}

#[test]
fn endless_handshakes_are_cut_off_and_block_no_other_client() {
    let files = Files::new(TLS, "[]\n");
    let limits = ClientLimits {
        handshake: Duration::from_millis(300),
        connections: 16,
        ..ClientLimits::default()
    };
    let server = start_behind(files.open(), limits, no_queries());
    // More connections than the limit, each before its handshake or in the middle of it.
    let mut stuck: Vec<TcpStream> = (0..40).map(|_| server.connect()).collect();
    for stream in stuck.iter_mut().step_by(2) {
        // The server may have closed the connection.
        let _ = stream.write_all(&[0x16, 0x03, 0x01, 0x02, 0x00, 0x01]);
    }
    let response = request_tls(server.address, None, "GET", "/-/healthy", &[]).unwrap();
    assert_eq!(response.status, 200);
    for mut stream in stuck {
        // The server closes the connection, or resets it.
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
    }
    server.end();
}

#[test]
fn configured_users_require_credentials_except_on_the_control_socket() {
    let web = format!(
        "basic_auth_users: {{alice: {HASH}}}\nhttp_server_config:\n  headers: {{X-Frame-Options: \
         deny, Content-Security-Policy: none}}\n"
    );
    let reader = token("scraper", Role::Read);
    let files = Files::new(&web, &reader.entry());
    let server = files.serve();
    let response = server.get("/metrics");
    assert_eq!((response.status, response.headers["x-frame-options"].as_str()), (401, "deny"));
    for path in ["/", "/-/healthy", "/nowhere", "/api/v1/status"] {
        assert_eq!(server.get(path).status, 401, "{path}");
    }
    for header in [ALICE, &bearer(&reader)] {
        assert_eq!(server.request("GET", "/metrics", &[header]).status, 200);
        assert_eq!(server.request("GET", "/nowhere", &[header]).status, 404);
        assert_eq!(server.request("POST", "/api/v1/pause", &[header]).status, 403);
    }
    let page = server.request("GET", "/", &[ALICE]);
    assert!(
        page.headers["content-security-policy"].contains("default-src"),
        "the page keeps its own policy"
    );
    let local = server.order("GET", "/metrics", "");
    assert_eq!((local.status, local.headers.get("x-frame-options")), (200, None));
    server.end();
}

#[test]
fn a_connection_from_before_a_reload_is_closed_and_its_certificate_refused() {
    let given = format!(
        "{TLS}  client_auth_type: VerifyClientCertIfGiven\n  client_ca_file: authority.pem\n"
    );
    let files = Files::new(&given, "- {certificate: spark-2.example, role: operate}\n");
    let mut server = files.serve();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let connection = ClientConnection::new(tls_client(Some("client")), name).unwrap();
    let mut stream = StreamOwned::new(connection, server.connect());
    // An admitted request with an invalid body gets status 400.
    let order = "POST /api/v1/pause HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx";
    stream.write_all(order.as_bytes()).unwrap();
    let mut start = [0; 12];
    stream.read_exact(&mut start).unwrap();
    assert_eq!(&start, b"HTTP/1.1 400", "{}", String::from_utf8_lossy(&start));
    files.write("web.yml", &format!("{given}rate_limit: {{interval: 1ms, burst: 1000}}\n"));
    let status = || request_tls(server.address, None, "GET", "/api/v1/status", &[]).unwrap();
    wait_until("read again", || {
        let metrics = server.order("GET", "/api/v1/status", "");
        assert_eq!(metrics.status, 200);
        !server.access.is_current(1)
    });
    assert_eq!(status().status, 200);
    stream.write_all(order.as_bytes()).unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    let rest = String::from_utf8(rest).unwrap();
    assert!(rest.contains("HTTP/1.1 401 ") && rest.contains("connection: close"), "{rest}");
    assert!(server.orders.try_recv().is_err());
    server.end();
}

#[test]
fn the_book_lists_the_role_of_each_route() {
    let page = include_str!("../../docs/src/tasks/access.md");
    for (method, path, access) in access_table().filter(|(_, _, access)| *access != "read") {
        let row = if access == "local" { "nobody".to_owned() } else { format!("`{access}`") };
        let row = page.lines().find(|line| line.starts_with(&format!("| {row} |"))).unwrap();
        let path = path.split("/{").next().unwrap();
        assert!(row.contains(path) || method == "DELETE", "{method} {path} is not in: {row}");
    }
}

#[test]
fn requests_beyond_the_rate_limit_get_429_with_retry_after() {
    let files = Files::new("rate_limit: {interval: 1h, burst: 3}\n", "[]\n");
    let server = files.serve();
    let statuses: Vec<u16> = (0..5).map(|_| server.get("/-/healthy").status).collect();
    assert_eq!(statuses, [200, 200, 200, 429, 429]);
    let seconds: u64 = server.get("/metrics").headers["retry-after"].parse().unwrap();
    assert!((1..=3601).contains(&seconds), "{seconds}");
    assert_eq!(
        server.order("GET", "/-/healthy", "").status,
        200,
        "the control socket has no rate limit"
    );
    server.end();
}

#[test]
fn changed_files_are_reloaded_and_broken_ones_change_nothing() {
    let first = token("first", Role::Read);
    let second = token("second", Role::Read);
    let users = format!("basic_auth_users: {{alice: {HASH}}}\n");
    let files = Files::new(&users, &first.entry());
    let server = files.serve();
    let status = |token: &NewToken| server.request("GET", "/metrics", &[&bearer(token)]).status;
    assert_eq!((status(&first), status(&second)), (200, 401));
    files.write("tokens.yml", &second.entry());
    wait_until("read again", || status(&second) == 200);
    assert_eq!(status(&first), 401, "a removed token is refused");
    files.write("tokens.yml", "- {name: second, rle: read}\n");
    let failure = || {
        let response = server.order("GET", "/api/v1/status", "").json();
        response["data"]["web_reload_failure"]["error"].as_str().map(str::to_owned)
    };
    wait_until("failure reported", || failure().is_some());
    assert!(failure().unwrap().contains("tokens.yml:1:18: unknown key \"rle\""), "{:?}", failure());
    assert_eq!(status(&second), 200, "the version before stays");
    fs::remove_file(files.path("tokens.yml")).unwrap();
    wait_until("failure reported", || {
        failure().is_some_and(|why| why.contains("there is no such file"))
    });
    assert_eq!(status(&second), 200);
    files.write("tokens.yml", &first.entry());
    wait_until("good again", || failure().is_none());
    assert_eq!((status(&first), status(&second)), (200, 401));
    // Access control without users is open to readers.
    files.write("web.yml", TLS);
    wait_until("TLS", || {
        request_tls(server.address, None, "GET", "/metrics", &[])
            .is_some_and(|one| one.status == 200)
    });
    server.end();
}

#[test]
fn chunked_bodies_are_read_up_to_the_limit_of_the_route() {
    let ops = token("ops", Role::Operate);
    let files = Files::new("", &ops.entry());
    let mut server = files.serve();
    let mut long = request("POST", "/api/v1/pause", &[&bearer(&ops), "Transfer-Encoding: chunked"]);
    for _ in 0..20 {
        long += &format!("400\r\n{}\r\n", " ".repeat(1024));
    }
    let response = parse(&server.raw(format!("{long}0\r\n\r\n").as_bytes()));
    assert_eq!(response.status, 413);
    assert!(server.orders.try_recv().is_err());
    server.end();
}

#[test]
fn an_order_of_a_browser_needs_the_header_of_the_page() {
    let files = Files::new("", &token("ops", Role::Remedy).entry());
    let server = files.serve();
    let ops = token("late", Role::Remedy);
    files.write("tokens.yml", &ops.entry());
    let header = bearer(&ops);
    let own = ["Origin: http://x", "Sec-Fetch-Site: same-origin"];
    let pause = |more: &[&str]| {
        let body = ["Content-Length: 8", &header];
        let headers: Vec<&str> = body.into_iter().chain(more.iter().copied()).collect();
        let sent = request("POST", "/api/v1/pause", &headers) + "nonsense";
        parse(&server.raw(sent.as_bytes())).status
    };
    wait_until("read again", || pause(&[]) == 400);
    for of_a_form in [&own[..1], &own[1..], &own[..]] {
        assert_eq!(pause(of_a_form), 403, "{of_a_form:?}");
    }
    assert_eq!(pause(&[own[0], own[1], "umawarden-page: 1"]), 400, "admitted, and not understood");
    assert_eq!(server.request("GET", "/api/v1/pause", &own).status, 200, "reading changes nothing");
    server.end();
}
