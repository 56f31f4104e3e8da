//! Settings from environment variables, and sockets from systemd.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::Node;
use crate::daemon::{Daemon, binary};

#[test]
fn variables_set_what_no_flag_sets() {
    let node = Node::new("gb10-4k");
    let daemon = Daemon::from_command(
        Command::new(binary())
            .args(["run", "--log.level=debug"])
            .args(node.arguments())
            .env("UMAWARDEN_WEB_LISTEN_ADDRESS", "127.0.0.1:0,[::1]:0")
            .env("UMAWARDEN_STORAGE_PATH", node.storage())
            .env("UMAWARDEN_MODE", "enforce")
            .env("UMAWARDEN_LOG_LEVEL", "error")
            .env("UMAWARDEN_LOG_FORMAT", "logfmt")
            .env("UMAWARDEN_RECORDING_SIZE", "")
            .env("UMAWARDEN_MOD", "enforce"),
    );
    daemon.wait_until("ready", |daemon| daemon.get("/-/ready").0 == 200);
    assert!(daemon.get("/metrics").1.contains("uma_mode{mode=\"enforce\"} 1"));
    let (_, log) = daemon.terminate();
    assert!(log.contains("UMAWARDEN_MOD is no setting"), "{log}");
    assert_eq!(log.matches("listening on http").count(), 2, "{log}");
    for line in log.lines() {
        assert!(line.starts_with("ts=") && line.contains(" level="), "{line}");
    }
}

#[test]
fn an_unusable_variable_is_named() {
    let refused = |arguments: &[&str]| {
        let mut command = Command::new(binary());
        command.arg("run").args(arguments).env("UMAWARDEN_SAMPLING_INTERVAL", "1h");
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    };
    let error = refused(&[]);
    assert!(error.contains("10ms to 1s"), "{error}");
    assert!(error.contains("of the environment variable UMAWARDEN_SAMPLING_INTERVAL"), "{error}");
    let error = refused(&["--sampling-interval=2h"]);
    assert!(error.contains("2h") && !error.contains("environment variable"), "{error}");
}

#[test]
fn the_socket_of_systemd_is_served() {
    let program = Path::new("/usr/bin/systemd-socket-activate");
    if !program.exists() {
        eprintln!("skipped: systemd is not installed");
        return;
    }
    let node = Node::new("gb10-4k");
    let port = super::start::free_port();
    let storage = node.storage().display().to_string();
    // It starts the program at the first connection.
    let started = Command::new(program)
        .args(["--listen", &format!("127.0.0.1:{port}")])
        .arg(binary())
        .args(["run", "--web.systemd-socket", "--storage.path", &storage])
        .args(node.arguments())
        .spawn();
    let _daemon = super::start::Killed(started.unwrap());
    let began = Instant::now();
    loop {
        if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) {
            let request = "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
            stream.write_all(request.as_bytes()).unwrap();
            let mut response = String::new();
            stream.read_to_string(&mut response).unwrap();
            if response.contains("uma_memory_total_bytes 129945600000") {
                break;
            }
        }
        assert!(began.elapsed() < Duration::from_secs(30), "not served");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn without_a_socket_of_systemd_the_error_names_the_flag() {
    let output = Command::new(binary()).args(["run", "--web.systemd-socket"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("--web.systemd-socket: systemd passed no socket"), "{error}");
}
