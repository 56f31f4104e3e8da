//! Starts programs and reads their use of resources.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A program under measurement; killed when dropped.
pub struct Program {
    child: Child,
    pub address: String,
}

impl Program {
    /// Starts a server and waits until it listens on `address`.
    pub fn start(program: &str, arguments: &[&str], address: &str) -> Option<Self> {
        assert!(TcpStream::connect(address).is_err(), "another program listens on {address}");
        let child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let program = Self { child, address: address.to_owned() };
        let deadline = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(address).is_err() {
            assert!(Instant::now() < deadline, "nothing listens on {address}");
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(program)
    }

    /// umawarden in observe mode with its journal in `storage`.
    pub fn umawarden(storage: &Path, port: u16, more: &[&str]) -> Self {
        let address = format!("127.0.0.1:{port}");
        let storage = storage.display().to_string();
        let mut arguments =
            vec!["run", "--web.listen-address", &address, "--storage.path", &storage];
        arguments.extend(more);
        Self::start(env!("CARGO_BIN_EXE_umawarden"), &arguments, &address).unwrap()
    }

    /// Processor time used so far, in seconds, of all its threads. From schedstat, which counts
    /// nanoseconds.
    pub fn cpu_seconds(&self) -> f64 {
        self.cpu_seconds_of(|_| true)
    }

    /// `cpu_seconds` of the threads with that name.
    pub fn cpu_seconds_of_thread(&self, name: &str) -> f64 {
        self.cpu_seconds_of(|thread| thread == name)
    }

    fn cpu_seconds_of(&self, counts: impl Fn(&str) -> bool) -> f64 {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let nanoseconds = tasks.flatten().filter_map(|task| {
            let name = fs::read_to_string(task.path().join("comm")).ok()?;
            let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
            if !counts(name.trim_end()) {
                return Some(0.0);
            }
            text.split(' ').next()?.parse::<f64>().ok()
        });
        nanoseconds.sum::<f64>() / 1e9
    }

    /// Resident memory now, in MiB.
    pub fn resident_mib(&self) -> f64 {
        let text = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = text.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
    }

    /// A connection for scrapes as by Prometheus: kept alive.
    pub fn connect(&self) -> TcpStream {
        TcpStream::connect(&self.address).unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// GETs a path over a kept-alive connection and returns the body.
pub fn get(stream: &mut TcpStream, path: &str, headers: &str) -> Vec<u8> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: bench\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut response = Vec::new();
    let mut buffer = [0u8; 65536];
    loop {
        let length = stream.read(&mut buffer).unwrap();
        assert!(length > 0, "the server closed the connection");
        response.extend_from_slice(&buffer[..length]);
        if let Some(body) = whole_body(&response) {
            return body;
        }
    }
}

fn whole_body(response: &[u8]) -> Option<Vec<u8>> {
    let end = response.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let head = String::from_utf8_lossy(&response[..end]).to_lowercase();
    let body = &response[end..];
    if let Some(length) = head.lines().find_map(|line| line.strip_prefix("content-length:")) {
        let length: usize = length.trim().parse().unwrap();
        return (body.len() >= length).then(|| body[..length].to_vec());
    }
    assert!(head.contains("transfer-encoding: chunked"), "{head}");
    body.ends_with(b"0\r\n\r\n").then(|| body.to_vec())
}

/// The machine, the kernel and the versions of the measured programs.
pub fn machine() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name\t: "));
    let cores = cpuinfo.lines().filter(|line| line.starts_with("processor")).count();
    format!(
        "umawarden {}, Linux {}, {cores} cores {}",
        env!("CARGO_PKG_VERSION"),
        read("/proc/sys/kernel/osrelease").trim(),
        model.unwrap_or("of an unnamed kind"),
    )
}
