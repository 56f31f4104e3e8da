//! The program as a running daemon, for tests.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The binary under test: `UMAWARDEN_BINARY`, else the one that cargo built for the tests.
pub fn binary() -> PathBuf {
    std::env::var_os("UMAWARDEN_BINARY")
        .map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_umawarden")), PathBuf::from)
}

const LOG_LEVEL: &str = "UMAWARDEN_LOG_LEVEL";

/// A running `umawarden run` on a free port; killed when dropped.
pub struct Daemon {
    child: Child,
    log: Arc<Mutex<String>>,
    log_reader: Option<JoinHandle<()>>,
    address: String,
    /// With TLS this client uses the control socket instead of the port.
    is_tls: bool,
    client: reqwest::blocking::Client,
}

impl Daemon {
    /// Starts the daemon with its journal in `storage` and waits until it is ready.
    pub fn start(storage: &Path, arguments: &[&str]) -> Self {
        let daemon = Self::spawn(storage, arguments);
        daemon.wait_until("ready", |daemon| daemon.get("/-/ready").0 == 200);
        daemon
    }

    /// Starts the daemon and waits until it listens.
    pub fn spawn(storage: &Path, arguments: &[&str]) -> Self {
        let mut command = Command::new(binary());
        command
            .args(["run", "--web.listen-address", "127.0.0.1:0", "--storage.path"])
            .arg(storage)
            .args(arguments);
        Self::from_command(&mut command)
    }

    /// Starts `command` and waits until it listens.
    pub fn from_command(command: &mut Command) -> Self {
        // Some tests wait for lines of the start, which people do not need.
        if !command.get_envs().any(|(name, _)| name == LOG_LEVEL) {
            command.env(LOG_LEVEL, "debug");
        }
        let mut child = command
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let kept = Arc::clone(&log);
        let log_reader = std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                let mut kept = kept.lock().unwrap();
                kept.push_str(&line);
                kept.push('\n');
            }
        });
        let client = http_client().timeout(Duration::from_secs(10)).build().unwrap();
        let log_reader = Some(log_reader);
        let mut daemon =
            Self { child, log, log_reader, address: String::new(), is_tls: false, client };
        (daemon.is_tls, daemon.address) = daemon.wait_for_log("listening on http", |line| {
            let (scheme, rest) = line.split("listening on http").nth(1)?.split_once("://")?;
            Some((scheme == "s", rest.split([' ', '/', '"']).next()?.to_owned()))
        });
        daemon
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    fn wait_for_log<T>(&self, what: &str, find: impl Fn(&str) -> Option<T>) -> T {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(found) = self.log().lines().find_map(&find) {
                return found;
            }
            assert!(Instant::now() < deadline, "no {what:?} in the log:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Status and body of a GET.
    pub fn get(&self, path: &str) -> (u16, String) {
        let response = match self.is_tls {
            true => self.by_control_socket().get(format!("http://node{path}")).send(),
            false => self.client.get(format!("http://{}{path}", self.address)).send(),
        };
        match response {
            Ok(response) => (response.status().as_u16(), response.text().unwrap_or_default()),
            Err(error) => (0, error.to_string()),
        }
    }

    /// Status and body of a POST by the control socket.
    pub fn post(&self, path: &str) -> (u16, String) {
        let client = self.by_control_socket();
        let response = client.post(format!("http://node{path}")).send().unwrap();
        (response.status().as_u16(), response.text().unwrap_or_default())
    }

    fn by_control_socket(&self) -> reqwest::blocking::Client {
        let socket = self.wait_for_log("control socket open at ", |line| {
            let rest = line.split("control socket open at ").nth(1)?;
            Some(rest.split([' ', '"']).next()?.to_owned())
        });
        control_client(socket)
    }

    /// Every sample of `/metrics`, by its name and labels as exported.
    pub fn metrics(&self) -> BTreeMap<String, f64> {
        self.samples("/metrics")
    }

    fn samples(&self, path: &str) -> BTreeMap<String, f64> {
        let mut body = String::new();
        // 503 until the first sample.
        self.wait_until("sampled", |daemon| {
            let (status, text) = daemon.get(path);
            assert!([200, 503].contains(&status), "{status}: {text}");
            body = text;
            status == 200
        });
        body.lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| {
                let (series, value) = line.rsplit_once(' ')?;
                Some((series.to_owned(), value.parse().ok()?))
            })
            .collect()
    }

    /// The value of one series, also if a scrape of everything leaves it out; panics without it.
    pub fn metric(&self, series: &str) -> f64 {
        let name = series.split('{').next().unwrap();
        let metrics = self.samples(&format!("/metrics?name[]={name}"));
        *metrics.get(series).unwrap_or_else(|| panic!("no {series} in {metrics:#?}"))
    }

    /// The value of a series that appears with its first event, and while a flag is set; 0 before.
    pub fn count(&self, series: &str) -> f64 {
        self.metrics().get(series).copied().unwrap_or(0.0)
    }

    /// Waits until the condition holds; fails after 20 s.
    pub fn wait_until(&self, what: &str, holds: impl FnMut(&Self) -> bool) {
        self.wait_until_within(Duration::from_secs(20), what, holds);
    }

    /// Waits until the condition holds; fails after `limit`.
    pub fn wait_until_within(
        &self,
        limit: Duration,
        what: &str,
        mut holds: impl FnMut(&Self) -> bool,
    ) {
        let deadline = Instant::now() + limit;
        while !holds(self) {
            assert!(Instant::now() < deadline, "not {what} in {limit:?}; log:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Sends SIGKILL.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = i32::try_from(self.child.id()).unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Sends SIGTERM; returns the time until the end, and the log.
    pub fn terminate(mut self) -> (Duration, String) {
        let began = Instant::now();
        self.signal(rustix::process::Signal::TERM);
        let status = self.child.wait().unwrap();
        let took = began.elapsed();
        // Its last lines may still be in the pipe.
        if let Some(reader) = self.log_reader.take() {
            reader.join().unwrap();
        }
        assert!(status.success(), "{status}:\n{}", self.log());
        (took, self.log())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What daemons send to systemd as services with `WatchdogSec=`.
pub struct Notifications {
    socket: PathBuf,
    /// When each sign of life came.
    alive: Arc<Mutex<Vec<Instant>>>,
}

impl Notifications {
    /// Listens on a socket in that folder.
    pub fn listen(folder: &Path) -> Self {
        let socket = folder.join("notify");
        let listener = UnixDatagram::bind(&socket).unwrap();
        let alive = Arc::<Mutex<Vec<Instant>>>::default();
        let seen = Arc::clone(&alive);
        // A notification waits until it is read. The thread ends with the tests.
        std::thread::spawn(move || {
            let mut buffer = [0; 1024];
            while let Ok(length) = listener.recv(&mut buffer) {
                if buffer[..length].trim_ascii() == b"WATCHDOG=1" {
                    seen.lock().unwrap().push(Instant::now());
                }
            }
        });
        Self { socket, alive }
    }

    /// Sets what systemd sets for a unit with `WatchdogSec=`.
    pub fn watch(&self, command: &mut Command, patience: Duration) {
        command.env("NOTIFY_SOCKET", &self.socket);
        command.env("WATCHDOG_USEC", patience.as_micros().to_string());
    }

    /// The longest time without a sign of life between `since` and now.
    pub fn longest_silence(&self, since: Instant) -> Duration {
        let alive = self.alive.lock().unwrap();
        let (mut last, mut longest) = (since, Duration::ZERO);
        for at in alive.iter().copied().filter(|at| *at >= since).chain([Instant::now()]) {
            longest = longest.max(at.duration_since(last));
            last = at;
        }
        longest
    }
}

/// Writes a file atomically with mode 0600.
pub fn write_secret(path: impl AsRef<Path>, text: &str) {
    let path = path.as_ref();
    let new = path.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::set_permissions(&new, fs::Permissions::from_mode(0o600)).unwrap();
    fs::rename(new, path).unwrap();
}

/// A builder of clients for plain HTTP. The program's reqwest has TLS without a provider of
/// cryptography: a client needs one, or cannot be built.
pub fn http_client() -> reqwest::blocking::ClientBuilder {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    reqwest::blocking::Client::builder().tls_backend_preconfigured(tls).no_proxy()
}

/// A client of the control socket.
pub fn control_client(socket: impl AsRef<Path>) -> reqwest::blocking::Client {
    let client = http_client().timeout(Duration::from_secs(20));
    client.unix_socket(socket.as_ref()).build().unwrap()
}

/// Runs `umawarden history --json` on a journal and returns its objects.
pub fn history(storage: &Path) -> Vec<serde_json::Value> {
    let output = Command::new(binary())
        .args(["history", "--json", "--limit", "1000000", "--storage.path"])
        .arg(storage)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Waits for objects of that kind: the journal is written later than the metrics change.
pub fn once_journalled(storage: &Path, kind: &str) -> Vec<serde_json::Value> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let mut entries = history(storage);
        entries.retain(|entry| entry["kind"] == kind);
        if !entries.is_empty() {
            return entries;
        }
        assert!(Instant::now() < deadline, "no {kind} is journalled in 20 s");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The objects of one kind.
pub fn of_kind<'a>(
    history: &'a [serde_json::Value],
    kind: &'a str,
) -> impl Iterator<Item = &'a serde_json::Value> {
    history.iter().filter(move |entry| entry["kind"] == kind)
}

/// A field of the real `/proc/meminfo`, in bytes.
pub fn meminfo_bytes(field: &str) -> f64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap();
    let line = text.lines().find(|line| line.starts_with(&format!("{field}:"))).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() * 1024.0
}
