//! A fake SGLang in a process of its own: this test binary under SGLang's name, in this network
//! namespace or in another.

use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use umawarden::model::ProcessId;
use umawarden::parse::process::stat;

use super::fake::{FakeServer, Reply, Request, recorded};

const FOLDER: &str = "UMAWARDEN_FAKE_SGLANG";
const PATIENCE: Duration = Duration::from_secs(20);

/// Serves the responses of a busy SGLang and logs its requests. A flush hangs while the file `hang`
/// exists; /continue_generation fails while the file `deaf` exists.
#[test]
fn sglang_for_other_tests() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let port = std::env::args().skip_while(|argument| argument != "--port").nth(1).unwrap();
    let listener = TcpListener::bind(format!("127.0.0.1:{port}")).unwrap();
    let [hang, deaf] = ["hang", "deaf"].map(|name| folder.join(name));
    let server = FakeServer::on(listener, move |request: &Request| {
        let mut log =
            fs::OpenOptions::new().create(true).append(true).open(folder.join("requests"));
        writeln!(log.as_mut().unwrap(), "{} {}", request.method, request.path).unwrap();
        match request.endpoint() {
            "/flush_cache" if hang.exists() => Reply::Hang,
            "/continue_generation" if deaf.exists() => Reply::Close,
            "/pause_generation" | "/flush_cache" | "/continue_generation" => {
                recorded("sglang", "retracted", request.endpoint())
            }
            "/health" => Reply::Answer(200, String::new()),
            endpoint => recorded("sglang", "busy", endpoint),
        }
    });
    let _server = server;
    loop {
        std::thread::park();
    }
}

/// The process, killed when dropped.
pub struct Sglang {
    child: Child,
    folder: tempfile::TempDir,
    pub port: u16,
}

impl Sglang {
    pub fn start() -> Self {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        Self::run(Command::new(std::env::current_exe().unwrap()), free, true)
    }

    /// In a network namespace of its own; `None` without the right to create one.
    pub fn start_elsewhere() -> Option<Self> {
        let can = Command::new("unshare").args(["--net", "ip", "link", "set", "lo", "up"]).output();
        if !can.is_ok_and(|output| output.status.success()) {
            return None;
        }
        let mut command = Command::new("unshare");
        let program = std::env::current_exe().unwrap().display().to_string();
        command.args(["--net", "sh", "-c", "ip link set lo up; exec \"$0\" \"$@\"", &program]);
        Some(Self::run(command, 31_000, false))
    }

    fn run(mut command: Command, port: u16, is_named: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        if is_named {
            std::os::unix::process::CommandExt::arg0(&mut command, "sglang");
        }
        // The arguments after the name make it look like SGLang; no test has such a name.
        let test = "empty_cache::process::sglang_for_other_tests";
        let child = command
            .args(["serve", "--exact", test, "--nocapture", "--", "--port", &port.to_string()])
            .env(FOLDER, folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let sglang = Self { child, folder, port };
        let began = Instant::now();
        while !sglang.listens() {
            assert!(began.elapsed() < PATIENCE, "the fake SGLang does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        sglang
    }

    fn listens(&self) -> bool {
        let text = fs::read(self.proc().join("net/tcp")).unwrap_or_default();
        umawarden::parse::process::listening(&text, self.port).next().is_some()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn proc(&self) -> PathBuf {
        Path::new("/proc").join(self.pid().to_string())
    }

    pub fn id(&self) -> ProcessId {
        let text = fs::read(self.proc().join("stat")).unwrap();
        ProcessId { pid: self.pid(), start_ticks: stat(&text).unwrap().start_ticks }
    }

    /// Creates the file `hang` or `deaf`.
    pub fn set(&self, name: &str) {
        fs::write(self.folder.path().join(name), "").unwrap();
    }

    pub fn unset(&self, name: &str) {
        fs::remove_file(self.folder.path().join(name)).unwrap();
    }

    /// All requests, as `METHOD /path`.
    pub fn requests(&self) -> Vec<String> {
        let text = fs::read_to_string(self.folder.path().join("requests")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    pub fn posted(&self, path: &str) -> usize {
        self.requests().iter().filter(|request| **request == format!("POST {path}")).count()
    }

    pub fn wait_until_posted(&self, path: &str) {
        let began = Instant::now();
        while self.posted(path) == 0 {
            assert!(began.elapsed() < PATIENCE, "no POST {path}: {:#?}", self.requests());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Sglang {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
