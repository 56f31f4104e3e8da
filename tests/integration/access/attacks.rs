//! Attacks on access control: ambiguous requests, stuck connections, files replaced by other types.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::symlink;
use std::process::Command;
use std::sync::atomic::{AtomicI64, Ordering};

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};

use super::*;

/// The statuses of all responses of one connection.
fn statuses(responses: &[u8]) -> Vec<u16> {
    let text = String::from_utf8_lossy(responses);
    let of = |part: &str| part.get(..3).and_then(|status| status.parse().ok());
    text.split("HTTP/1.1 ").skip(1).filter_map(of).collect()
}

/// Access control with a token, and the same with users.
fn fixtures() -> (NewToken, [Files; 2]) {
    let ops = token("ops", Role::Remedy);
    let users = format!("basic_auth_users: {{alice: {HASH}}}\n");
    let files = ["", &users].map(|web| Files::new(web, &ops.entry()));
    (ops, files)
}

#[test]
fn no_spelling_of_a_path_bypasses_its_role() {
    let (_, both) = fixtures();
    for files in both {
        let mut server = files.serve();
        for target in [
            "/-/reload",
            "//-/reload",
            "/./-/reload",
            "/x/../-/reload",
            "/%2d/reload",
            "/-%2freload",
            "/%2e/-/reload",
            "/-/reload/",
            "/-/reload;x",
            "/-/reload?x=/metrics",
            "/-/RELOAD",
            "/metrics/../-/reload",
            "http://x/-/reload",
            "http://[::1]/-/reload",
            "https://x:1/-/reload#y",
            "*",
            "x:1",
            "/api/v1/pause",
            "//api/v1/pause",
            "/api/v1//pause",
            "/api/v1/pause/",
            "/api/v1/silences",
            "/api/v1/alerts/webhook",
            "http://x/api/v1/alerts/webhook",
        ] {
            for method in ["POST", "PUT", "DELETE", "post", "TRACE", "CONNECT", "OPTIONS"] {
                for version in ["HTTP/1.1", "HTTP/1.0"] {
                    let body = r#"{"alerts": []}"#;
                    let length = body.len();
                    let response = server.raw(
                        format!(
                            "{method} {target} {version}\r\nHost: x\r\nConnection: close\r\n\
                             X-Original-URL: /metrics\r\nX-HTTP-Method-Override: GET\r\n\
                             Content-Length: {length}\r\n\r\n{body}"
                        )
                        .as_bytes(),
                    );
                    let text = String::from_utf8_lossy(&response);
                    let status = text.split(' ').nth(1).unwrap_or("none").to_owned();
                    assert!(
                        ["400", "401", "403", "404", "405", "none"].contains(&&*status),
                        "{method} {target} {version}: {text}"
                    );
                }
            }
        }
        assert!(server.orders.try_recv().is_err() && server.reloads.try_recv().is_err());
        assert!(server.received.is_empty());
        server.end();
    }
}

#[test]
fn each_request_of_a_connection_is_authorized_by_itself() {
    let (ops, [files, _]) = fixtures();
    let mut server = files.serve();
    let (header, get) = (bearer(&ops), "GET /-/healthy HTTP/1.1\r\nHost: x\r\n");
    let pause = "POST /api/v1/pause HTTP/1.1\r\nHost: x\r\n";
    // Credentials of an earlier request do not count for the next one.
    let known = format!("{pause}{header}\r\nContent-Length: 1\r\n\r\nx");
    let pipelined = format!("{known}{get}\r\n{pause}\r\n{get}Connection: close\r\n\r\n");
    assert_eq!(statuses(&server.raw(pipelined.as_bytes())), [400, 200, 401, 200]);
    // No other protocol is offered.
    let upgrades = [
        "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n",
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n",
    ];
    for upgrade in upgrades {
        let request = format!("{get}{upgrade}\r\n{pause}Connection: close\r\n\r\n");
        assert_eq!(statuses(&server.raw(request.as_bytes())), [200, 401], "{upgrade}");
    }
    let preface = server.raw(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    assert!(!preface.starts_with(b"HTTP/1.1 2"), "{}", String::from_utf8_lossy(&preface));
    assert!(server.orders.try_recv().is_err());
    server.end();
}

/// A request with two lengths is rejected; neither length makes the rest of it another request.
#[test]
fn a_body_with_two_lengths_smuggles_no_request() {
    let (ops, [files, _]) = fixtures();
    let mut server = files.serve();
    // Orders without a body are valid; here they are refused.
    let (_, closed) = tokio::sync::mpsc::channel(1);
    let mut orders = std::mem::replace(&mut server.orders, closed);
    let refusing = std::thread::spawn(move || while orders.blocking_recv().is_some() {});
    let inner = "POST /-/reload HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let pause = format!("POST /api/v1/pause HTTP/1.1\r\nHost: x\r\n{}\r\n", bearer(&ops));
    let length = inner.len() + 5;
    for (lengths, body) in [
        (format!("Content-Length: {length}\r\nTransfer-Encoding: chunked"), "0\r\n\r\n"),
        (format!("Transfer-Encoding: chunked\r\nContent-Length: {length}"), "0\r\n\r\n"),
        (format!("Content-Length: {length}\r\nContent-Length: 1"), "x"),
        (format!("Content-Length: 1\r\nContent-Length: {length}"), "x"),
        (format!("Content-Length: 1, {length}"), "x"),
        ("Content-Length: +1".to_owned(), "x"),
        ("Content-Length: -1".to_owned(), "x"),
        ("Content-Length: 0x1".to_owned(), "x"),
        ("Content-Length: 99999999999999999999999".to_owned(), "x"),
        ("Transfer-Encoding: chunked, identity".to_owned(), "0\r\n\r\n"),
        ("Transfer-Encoding: xchunked".to_owned(), "0\r\n\r\n"),
        ("Transfer-Encoding : chunked".to_owned(), "0\r\n\r\n"),
        ("Transfer-Encoding: chunked".to_owned(), "ffffffffffffffffff\r\nx"),
        ("Transfer-Encoding: chunked".to_owned(), "0;\u{0}\r\n\r\n"),
    ] {
        let request = format!("{pause}{lengths}\r\n\r\n{body}{inner}");
        let mut stream = server.connect();
        stream.write_all(request.as_bytes()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut responses = Vec::new();
        // The server may reset the connection.
        let _ = stream.read_to_end(&mut responses);
        let statuses = statuses(&responses);
        let is_refused = statuses.len() == 1 && statuses[0] >= 400;
        assert!(is_refused, "one response, and the end: {lengths}: {statuses:?}");
        assert!(server.reloads.try_recv().is_err(), "{lengths} {body}");
    }
    server.end();
    refusing.join().unwrap();
}

#[test]
fn exactly_one_credential_is_accepted_if_it_matches_to_the_last_byte() {
    let (ops, [_, files]) = fixtures();
    let mut server = files.serve();
    let good = bearer(&ops);
    let token = &ops.token;
    let status = |headers: &[&str]| server.request("POST", "/api/v1/approvals/x", headers).status;
    assert_eq!(status(&[&good]), 404, "the token is valid, the approval does not exist");
    assert_eq!(status(&[&format!("{good} ")]), 404, "trailing blanks are ignored");
    let twice = format!("{good}, {good}");
    let wrong = [
        format!("Authorization: Bearer {token}\\n"),
        format!("Authorization: Bearer {token}\u{a0}"),
        format!("Authorization: Bearer {token}%0a"),
        format!("Authorization: Bearer {}", token.to_uppercase()),
        format!("Authorization: Bearer {}", &token[..token.len() - 1]),
        format!("Authorization: Bearer\t{token}"),
        format!("Authorization: {token}"),
        format!("Authorization: Token {token}"),
        format!("Proxy-Authorization: Bearer {token}"),
        "Authorization: Bearer".to_owned(),
        "Authorization: ".to_owned(),
        "Authorization: Basic".to_owned(),
        "Authorization: Basic OnBhc3N3b3Jk".to_owned(),
        twice,
    ];
    for header in &wrong {
        assert_eq!(status(&[header]), 401, "{header}");
    }
    for pair in [[&*good, &*good], [&*good, ALICE], [ALICE, &*good], [ALICE, ALICE]] {
        assert_eq!(status(&pair), 401, "two credentials are ambiguous: {pair:?}");
        assert_eq!(server.request("GET", "/metrics", &pair).status, 401);
    }
    // A folded header line is refused.
    let folded = format!("POST /api/v1/pause HTTP/1.1\r\nHost: x\r\nX-A: b\r\n {good}\r\n\r\n");
    assert!(matches!(parse(&server.raw(folded.as_bytes())).status, 400 | 401));
    assert!(server.orders.try_recv().is_err());
    server.end();
}

#[test]
fn a_slow_client_is_cut_off_over_tls_as_without_it() {
    let files = Files::new(TLS, "[]\n");
    let limits =
        ClientLimits { request_header: Duration::from_millis(200), ..ClientLimits::default() };
    let server = start_behind(files.open(), limits, no_queries());
    for begun in ["", "GET /metr", "GET /metrics HTTP/1.1\r\nX-Slow: "] {
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let connection = ClientConnection::new(tls_client(None), name).unwrap();
        let mut stream = StreamOwned::new(connection, server.connect());
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock).unwrap();
        }
        stream.write_all(begun.as_bytes()).unwrap();
        let mut rest = Vec::new();
        // The server closes the connection, orderly or not.
        let ended = stream.read_to_end(&mut rest);
        assert!(!matches!(&ended, Err(error) if is_timeout(error)), "{begun:?}: {ended:?}");
        assert!(!rest.starts_with(b"HTTP/1.1 200"), "{begun:?}");
    }
    server.end();
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
}

#[test]
fn connections_closed_in_their_handshake_leave_nothing_behind() {
    let files = Files::new(TLS, "[]\n");
    let limits = ClientLimits { connections: 8, ..ClientLimits::default() };
    let server = start_behind(files.open(), limits, no_queries());
    let hello = [0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03, 0x03];
    for length in 0..=hello.len() {
        for _ in 0..8 {
            let mut stream = server.connect();
            stream.write_all(&hello[..length]).unwrap();
            let _ = stream.shutdown(std::net::Shutdown::Write);
        }
    }
    for nonsense in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 4096], &[0; 64]] {
        let mut stream = server.connect();
        // The server may have closed the connection.
        let _ = stream.write_all(nonsense);
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        assert!(!rest.starts_with(b"HTTP/1.1 2"));
    }
    let response = request_tls(server.address, None, "GET", "/-/healthy", &[]).unwrap();
    assert_eq!(response.status, 200);
    server.end();
}

/// A folder, FIFO, device or broken link in place of a file neither blocks a reload nor changes
/// what is loaded.
#[test]
fn files_replaced_by_other_types_are_reported_and_change_nothing() {
    let ops = token("ops", Role::Operate);
    let files = Files::new("", &ops.entry());
    let access = files.open();
    access.reload();
    assert!(access.failure().is_none());
    for name in ["tokens.yml", "web.yml"] {
        let path = files.path(name);
        let kept = fs::read_to_string(&path).unwrap();
        let made: [(&str, &dyn Fn()); 5] = [
            ("it is a folder", &|| fs::create_dir(&path).unwrap()),
            ("not a regular file", &|| {
                assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
            }),
            ("not a regular file", &|| symlink("/dev/zero", &path).unwrap()),
            ("symbolic links", &|| symlink(&path, &path).unwrap()),
            ("there is no such file", &|| symlink("nowhere", &path).unwrap()),
        ];
        for (why, make) in made {
            let number = access.handshake().generation;
            fs::remove_file(&path).unwrap();
            make();
            access.reload();
            let failure = access.failure().unwrap_or_else(|| panic!("{name}: {why}")).why.clone();
            assert!(failure.contains(why) && failure.contains(name), "{name}: {failure}");
            assert!(access.is_current(number), "{name}: {why}");
            match path.symlink_metadata().unwrap().is_dir() {
                true => fs::remove_dir(&path).unwrap(),
                false => fs::remove_file(&path).unwrap(),
            }
            files.write(name, &kept);
            access.reload();
            assert!(access.failure().is_none(), "{:?}", access.failure());
        }
    }
}

/// Kubernetes mounts secrets so: a symlink to a folder that is swapped.
#[test]
fn the_target_of_a_symlink_is_reloaded_when_the_link_changes() {
    let (first, second) = (token("first", Role::Read), token("second", Role::Read));
    let users = format!("basic_auth_users: {{alice: {HASH}}}\n");
    let files = Files::new(&users, "[]\n");
    for (version, one) in [("v1", &first), ("v2", &second)] {
        fs::create_dir(files.path(version)).unwrap();
        files.write("made.yml", &one.entry());
        fs::rename(files.path("made.yml"), files.path(version).join("tokens.yml")).unwrap();
    }
    symlink("v1", files.path("data")).unwrap();
    fs::remove_file(files.path("tokens.yml")).unwrap();
    symlink("data/tokens.yml", files.path("tokens.yml")).unwrap();
    let server = files.serve();
    let status = |token: &NewToken| server.request("GET", "/metrics", &[&bearer(token)]).status;
    assert_eq!((status(&first), status(&second)), (200, 401));
    symlink("v2", files.path("data.new")).unwrap();
    fs::rename(files.path("data.new"), files.path("data")).unwrap();
    wait_until("read again", || status(&second) == 200);
    assert_eq!(status(&first), 401);
    server.end();
}

/// An empty file admits nobody or is a mistake; it never admits everybody.
#[test]
fn an_empty_tokens_file_admits_no_orders() {
    for text in ["", "\n", "---\n", "# nobody\n", "[]\n", "null\n"] {
        let files = Files::new("", text);
        let web_config = Some(files.path("web.yml"));
        let tokens = Some(files.path("tokens.yml"));
        let Ok(access) = AccessControl::open(AccessFiles { web_config, tokens }, clock) else {
            continue;
        };
        let mut server = start_behind(access, ClientLimits::default(), no_queries());
        for header in ["X-Nothing: x", "Authorization: Bearer ", "Authorization: Bearer x", ALICE] {
            let status = server.request("POST", "/api/v1/pause", &[header]).status;
            assert!(matches!(status, 401 | 403), "{text:?} {header}: {status}");
        }
        assert!(server.orders.try_recv().is_err());
        server.end();
    }
}

/// The fake wall clock, in seconds since 1970.
static WALL_CLOCK: AtomicI64 = AtomicI64::new(0);

fn wall_clock() -> Moment {
    let utc = Timestamp::from_second(WALL_CLOCK.load(Ordering::Relaxed)).unwrap();
    Moment { uptime: Duration::from_secs(100), utc }
}

/// Expiry follows the wall clock at each request; the rate limit follows the time since boot, which
/// cannot be set.
#[test]
fn a_set_clock_expires_tokens_but_resets_no_rate_limit() {
    let expires: Timestamp = "2030-01-01T00:00:00Z".parse().unwrap();
    let dated = create_token("dated", Role::Operate, Some(expires)).unwrap();
    let files = Files::new("rate_limit: {interval: 1h, burst: 4}\n", &dated.entry());
    let paths = AccessFiles {
        web_config: Some(files.path("web.yml")),
        tokens: Some(files.path("tokens.yml")),
    };
    WALL_CLOCK.store(expires.as_second() - 1, Ordering::Relaxed);
    let access = AccessControl::open(paths, wall_clock).unwrap();
    let server = start_behind(access, ClientLimits::default(), no_queries());
    let header = bearer(&dated);
    let status = |seconds: i64| {
        WALL_CLOCK.store(expires.as_second() + seconds, Ordering::Relaxed);
        server.request("DELETE", "/api/v1/silences/x", &[&header]).status
    };
    assert_eq!([status(-1), status(0), status(1_000_000), status(-1)], [404, 401, 401, 404]);
    for seconds in [-1_000_000_000, 1_000_000_000] {
        assert_eq!(status(seconds), 429);
    }
    server.end();
}
