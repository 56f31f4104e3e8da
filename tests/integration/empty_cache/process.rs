//! An engine that is a process of its own: this test binary, called as SGLang is, in this network
//! or in another.

use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use umawarden::model::ProcessId;
use umawarden::parse::process::stat;

use super::fake::{Asked, FakeEngine, Reply, recorded};

const FOLDER: &str = "UMAWARDEN_FAKE_SGLANG";
const PATIENCE: Duration = Duration::from_secs(20);

/// Serves what SGLang answers at work, and writes down what it is asked. While there is a file
/// `hang`, a flush hangs; while there is one `deaf`, it does not hear that it shall go on.
#[test]
fn sglang_of_other_tests() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let port = std::env::args().skip_while(|argument| argument != "--port").nth(1).unwrap();
    let listener = TcpListener::bind(format!("127.0.0.1:{port}")).unwrap();
    let [hang, deaf] = ["hang", "deaf"].map(|name| folder.join(name));
    let server = FakeEngine::on(listener, move |asked: &Asked| {
        let mut log = fs::OpenOptions::new().create(true).append(true).open(folder.join("asked"));
        writeln!(log.as_mut().unwrap(), "{} {}", asked.method, asked.path).unwrap();
        match asked.place() {
            "/flush_cache" if hang.exists() => Reply::Hang,
            "/continue_generation" if deaf.exists() => Reply::Close,
            "/pause_generation" | "/flush_cache" | "/continue_generation" => {
                recorded("sglang", "retracted", asked.place())
            }
            "/health" => Reply::Answer(200, String::new()),
            place => recorded("sglang", "busy", place),
        }
    });
    let _until_killed = server;
    loop {
        std::thread::park();
    }
}

/// That process. It is killed when the test ends.
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

    /// In a network of its own; `None` where this user may not make one.
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
        // What follows the name is what makes it look like SGLang, and no test is called so.
        let test = "empty_cache::process::sglang_of_other_tests";
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
            assert!(began.elapsed() < PATIENCE, "it does not listen");
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

    /// Makes one of those files.
    pub fn set(&self, name: &str) {
        fs::write(self.folder.path().join(name), "").unwrap();
    }

    pub fn unset(&self, name: &str) {
        fs::remove_file(self.folder.path().join(name)).unwrap();
    }

    /// Everything that it was asked, as `METHOD /path`.
    pub fn asked(&self) -> Vec<String> {
        let text = fs::read_to_string(self.folder.path().join("asked")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    pub fn told(&self, path: &str) -> usize {
        self.asked().iter().filter(|asked| **asked == format!("POST {path}")).count()
    }

    pub fn wait_until_told(&self, path: &str) {
        let began = Instant::now();
        while self.told(path) == 0 {
            assert!(began.elapsed() < PATIENCE, "never told {path}: {:#?}", self.asked());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Sglang {
    fn drop(&mut self) {
        let _dead_already = self.child.kill();
        let _reaped_already = self.child.wait();
    }
}
