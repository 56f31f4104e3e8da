//! The package in a real systemd, the first process of a container on this machine's own files:
//! installed, observing, started by its socket, acting under the hardened unit with one drop-in
//! at a time, hanging, upgraded, removed and purged.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use rustix::fs::{XattrFlags, setxattr};

use super::enabled;

/// A setting that no test measures.
const SYSCTL: &str = "/proc/sys/vm/compaction_proactiveness";

const GROUP: &str = "
groups:
- name: test
  interval: 100ms
  rules:";

/// Of the drop-in `memory`.
const MEMORY: &str = "
  - alert: Drops
    expr: uma_memory_free_bytes > 0
    remedy:
      aim: uma_memory_free_bytes > 1e15
      steps: [{drop_caches: {what: pagecache}}, {compact_memory: {}}]
      cooldown: 1h
  - alert: Sets
    expr: uma_memory_free_bytes > 0
    remedy: {steps: [{set_sysctl: {vm.compaction_proactiveness: 21, for: 1h}}], cooldown: 1s}
  - alert: Throttles
    expr: uma_engine_phase{engine=\"loader\",phase=\"loading\"} == 1
    remedy: {steps: [{throttle_readahead: {kib: 8, of: [/models], for: 1h}}], cooldown: 1s}
  - alert: Reclaims
    expr: uma_engine_phase{engine=\"loader\",phase=\"loading\"} == 1
    remedy:
      aim: uma_memory_free_bytes > 1e15
      steps: [{reclaim: {engine: loader, bytes: 16MiB}}]
      cooldown: 1h
";

/// Of the drop-in `evict`.
const EVICT: &str = "
  - alert: Evicts
    expr: uma_engine_phase{engine=\"loader\",phase=\"loading\"} == 1
    remedy: {steps: [{evict_checkpoint: {behind: 64MiB, for: 1m}}], cooldown: 1h}
";

/// Of the drop-in `engines`.
const ENGINES: &str = "
  - alert: Empties
    expr: |
      uma_engine_phase{phase=\"ready\"} == 1 and on(engine) uma_engine_info{kind=\"sglang\"} == 1
    remedy: {aim: uma_memory_free_bytes > 1e15, steps: [{empty_cache: {}}], cooldown: 1h}
";

/// Of the drop-in `stop`.
const STOP: &str = "
  - alert: Stops
    expr: uma_engine_growth_bytes > 5e8
    remedy: {aim: uma_memory_free_bytes > 1e15, steps: [{stop_engine: {grace: 1s}}], cooldown: 1h}
";

const CONFIGURATION: &str = "
mode: enforce
rule_files: [rules.yaml]
engines:
- {name: hog, match: {comm: hog}}
- {name: loader, match: {comm: loader}, model_files: [/models/*.safetensors]}
reboot: {way: sentinel, sentinel_file: /run/reboot-please, delay: 10s, minimum_uptime: 5m}
";

/// Takes 300 MiB a second for four seconds, and ends by SIGKILL alone.
const HOG: &str = "
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
a = []
for i in range(20):
    a.append(bytearray(64 << 20))
    time.sleep(0.2)
time.sleep(120)
";
/// Reads 50 MiB a second.
const LOADER: &str = "
import time
f = open('/models/m.safetensors', 'rb')
for i in range(60):
    f.read(10 << 20)
    time.sleep(0.2)
";

/// A server that answers as an idle SGLang has answered.
const SGLANG: &str = "
import http.server, json, sys
answers = json.load(open(sys.argv[1]))['idle']
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        path = self.path.split('?')[0]
        found = [one for one in answers if one['path'].split('?')[0] == path]
        status, body = (found[0]['status'], found[0]['body']) if found else (404, '{}')
        self.rfile.read(int(self.headers.get('content-length') or 0))
        self.send_response(status)
        self.send_header('content-length', str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())
    do_POST = do_GET
http.server.ThreadingHTTPServer(('127.0.0.1', 30000), Handler).serve_forever()
";

/// The API of a Docker without containers, at the socket of user 1.
const ROOTLESS: &str = "
import http.server, os, socketserver
class Handler(http.server.BaseHTTPRequestHandler):
    def address_string(self):
        return 'local'
    def do_GET(self):
        is_list = self.path.split('?')[0].endswith('/containers/json')
        self.send_response(200 if is_list else 404)
        self.send_header('content-type', 'application/json')
        self.send_header('content-length', '2')
        self.end_headers()
        self.wfile.write(b'[]' if is_list else b'{}')
os.umask(0o077)
socketserver.ThreadingUnixStreamServer('/run/user/1/docker.sock', Handler).serve_forever()
";

/// Where the drop-ins of the unit are.
const DROP_INS: &str = "/etc/systemd/system/umawarden.service.d";

/// What the tests need beside the drop-ins of remedies.
const QUICK: &str = "[Service]\nWatchdogSec=4s\nTimeoutAbortSec=1s\n";

struct System {
    name: String,
    folder: tempfile::TempDir,
}

impl System {
    /// The files of the machine, with changes in a folder of their own.
    fn start() -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let name = format!("umawarden-installed-{}", std::process::id());
        for part in ["upper", "work", "root", "models"] {
            fs::create_dir(folder.path().join(part)).unwrap();
        }
        let model = folder.path().join("models/m.safetensors");
        fs::write(&model, vec![1; 600 << 20]).unwrap();
        // Dirty pages are not evicted.
        fs::File::open(&model).unwrap().sync_all().unwrap();
        // Which of its pages are cached is seen only with a capability.
        chown(&model, Some(65_534), Some(65_534)).unwrap();
        let system = Self { name, folder };
        let path = |part: &str| system.folder.path().join(part).display().to_string();
        // They hide those of the machine, which Podman would copy into its own. A second mount at
        // the same path would stay writable under `ProtectSystem=`.
        for hidden in ["upper/run", "upper/tmp"] {
            fs::create_dir(path(hidden)).unwrap();
            setxattr(path(hidden), "trusted.overlay.opaque", b"y", XattrFlags::empty()).unwrap();
        }
        fs::set_permissions(path("upper/tmp"), fs::Permissions::from_mode(0o1777)).unwrap();
        let layers = format!("lowerdir=/,upperdir={},workdir={}", path("upper"), path("work"));
        let root = path("root");
        must("mount", &["-t", "overlay", "overlay", "-o", &layers, &root]);
        // The default limits may exceed those of the machine.
        let limits = ["--ulimit", "nofile=20000:20000", "--ulimit", "nproc=1000:1000"];
        let mut arguments = vec!["run", "--detach", "--name", &system.name, "--network=none"];
        arguments.extend(["--systemd=always", "--privileged", "--cgroupns=private"]);
        let models = format!("{}:/models", path("models"));
        arguments.extend(["--volume", &models]);
        arguments.extend(limits);
        arguments.extend(["--rootfs", &root, "/lib/systemd/systemd", "--unit=basic.target"]);
        system.podman(&arguments);
        system.wait_for("booted", 60, |system| {
            system.call(&["systemctl", "is-active", "basic.target"]).status.success()
        });
        system
    }

    fn podman(&self, arguments: &[&str]) {
        let mut all = vec!["--cgroup-manager=cgroupfs"];
        all.extend(arguments);
        must("podman", &all);
    }

    fn call(&self, command: &[&str]) -> Output {
        Command::new("podman").args(["exec", &self.name]).args(command).output().unwrap()
    }

    /// The output of a command that succeeds.
    fn must(&self, command: &[&str]) -> String {
        let done = self.call(command);
        assert!(done.status.success(), "{command:?}: {done:?}\n{}", self.log());
        String::from_utf8(done.stdout).unwrap()
    }

    fn sh(&self, script: &str) -> String {
        self.must(&["sh", "-c", script])
    }

    fn log(&self) -> String {
        let log = self.call(&["journalctl", "--no-pager", "--unit=umawarden"]);
        String::from_utf8_lossy(&log.stdout).into_owned()
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.folder.path().join("root").join(path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn wait_for(&self, what: &str, seconds: u64, mut is_so: impl FnMut(&Self) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(seconds);
        while !is_so(self) {
            assert!(Instant::now() < deadline, "not {what} in {seconds} s:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(300));
        }
    }

    fn property(&self, name: &str) -> String {
        let text = self.must(&["systemctl", "show", "--value", "--property", name, "umawarden"]);
        text.trim().to_owned()
    }

    fn scrape(&self) -> String {
        let response = self.call(&["curl", "--silent", "http://127.0.0.1:9942/metrics"]);
        String::from_utf8_lossy(&response.stdout).into_owned()
    }

    fn history(&self) -> String {
        String::from_utf8_lossy(&self.call(&["umawarden", "history", "--limit", "0"]).stdout)
            .into_owned()
    }

    /// Begins anew with these rules, and with a drop-in as `umawarden print drop-in` prints it: all
    /// of them for no name.
    fn restart(&self, drop_in: Option<&str>, rules: &str) {
        self.write("/etc/umawarden/rules.yaml", rules);
        self.sh(&format!("rm -rf {DROP_INS} && mkdir {DROP_INS}"));
        self.write(&format!("{DROP_INS}/quick.conf"), QUICK);
        if let Some(name) = drop_in {
            self.sh(&format!("umawarden print drop-in {name} >{DROP_INS}/acting.conf"));
        }
        self.must(&["systemctl", "daemon-reload"]);
        // The limit of starts is for a daemon that fails.
        self.must(&["systemctl", "reset-failed", "umawarden"]);
        self.must(&["systemctl", "restart", "umawarden"]);
    }

    /// Runs a command as a service with these properties.
    fn begin(&self, name: &str, properties: &[&str], command: &[&str]) {
        let unit = format!("--unit={name}");
        let run = ["systemd-run", "--collect", unit.as_str()];
        self.must(&[&run[..], properties, command].concat());
    }

    fn begin_engine(&self, name: &str) {
        let program = format!("/usr/local/bin/{name}");
        let script = format!("/usr/local/{name}.py");
        // Another user than the daemon's.
        let properties = ["--uid=daemon", "--setenv=PYTHONHOME=/usr"];
        self.begin(name, &properties, &[&program, &script]);
    }

    fn end(&self, name: &str) {
        // A service that has ended is not known any more.
        self.call(&["systemctl", "kill", "--signal=KILL", name]);
        self.call(&["systemctl", "stop", name]);
    }

    fn wait_for_outcome(&self, outcome: &str) {
        let outcome = format!(": {outcome}");
        self.wait_for(&outcome, 40, |system| system.history().contains(&outcome));
    }

    fn runs(&self, name: &str) -> bool {
        self.call(&["pgrep", "-x", name]).status.success()
    }

    fn install(&self, package: &Path) {
        let inside = "/root/umawarden.deb";
        fs::copy(package, self.folder.path().join("root").join(&inside[1..])).unwrap();
        self.must(&["dpkg", "--install", inside]);
    }
}

impl Drop for System {
    fn drop(&mut self) {
        // Whatever has failed: nothing is to stay.
        let _ = Command::new("podman")
            .args(["--cgroup-manager=cgroupfs", "rm", "--force", "--time=3", &self.name])
            .output();
        let _ = Command::new("umount").arg(self.folder.path().join("root")).output();
    }
}

fn must(program: &str, arguments: &[&str]) {
    let done = Command::new(program).args(arguments).output().unwrap();
    assert!(done.status.success(), "{program} {arguments:?}: {done:?}");
}

/// The package of this architecture with this ending, if packages are to be tested.
fn package(endings: [&str; 2]) -> Option<PathBuf> {
    let folder = std::env::var_os("UMAWARDEN_PACKAGES").filter(|folder| !folder.is_empty())?;
    let mut paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let own = endings[usize::from(cfg!(target_arch = "aarch64"))];
    paths.find(|path| path.display().to_string().ends_with(own))
}

/// The same package with a higher version.
fn next(package: &Path, folder: &Path) -> PathBuf {
    let (parts, next) = (folder.join("parts"), folder.join("next.deb"));
    let (from, to) = (package.display().to_string(), parts.display().to_string());
    must("dpkg-deb", &["--raw-extract", &from, &to]);
    let control = parts.join("DEBIAN/control");
    let text = fs::read_to_string(&control).unwrap();
    let version = concat!("Version: ", env!("CARGO_PKG_VERSION"), "-1\n");
    assert!(text.contains(version), "{text}");
    fs::write(&control, text.replace(version, "Version: 99.0-1\n")).unwrap();
    must("dpkg-deb", &["--build", "-Znone", &to, &next.display().to_string()]);
    next
}

#[test]
fn the_package_observes_acts_recovers_and_is_upgraded_and_removed_without_a_trace() {
    if !enabled() {
        return;
    }
    let (deb, rpm) =
        (package(["_amd64.deb", "_arm64.deb"]), package([".x86_64.rpm", ".aarch64.rpm"]));
    let (Some(package), Some(rpm)) = (deb, rpm) else {
        eprintln!("skipped: UMAWARDEN_PACKAGES names no folder with a deb and an rpm");
        return;
    };
    let before = fs::read_to_string(SYSCTL).unwrap();
    let system = System::start();
    system.install(&package);
    observes(&system);
    is_started_by_its_socket(&system);
    prepare_engines(&system);
    stops(&system);
    evicts(&system);
    empties(&system);
    queries_a_rootless_server(&system);
    corrects_memory(&system);
    requests_a_reboot(&system);
    let rules = [GROUP, MEMORY, EVICT, ENGINES, STOP].concat();
    system.restart(Some(""), &rules);
    recovers_from_a_hang(&system);
    is_upgraded(&system, &package);
    assert_eq!(fs::read_to_string(SYSCTL).unwrap().trim(), "21");
    is_removed(&system, &package);
    assert_eq!(fs::read_to_string(SYSCTL).unwrap(), before);
    is_installed_by_rpm(&system, &rpm);
}

fn observes(system: &System) {
    system.wait_for("sampled", 20, |system| system.scrape().contains("uma_memory_free_bytes "));
    let metrics = system.scrape();
    for line in [
        "uma_mode{mode=\"observe\"} 1",
        "uma_scrape_collector_success{collector=\"kernel_log\"} 1",
        "uma_journal_up 1",
    ] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }
    assert_eq!(system.property("NRestarts"), "0");
    assert_eq!(system.must(&["systemctl", "is-enabled", "umawarden"]).trim(), "enabled");
    system.must(&["umawarden", "config", "check"]);
    // What acting lacks is in the log, with the drop-in that gives it.
    system.write(
        &format!("{DROP_INS}/debug.conf"),
        "[Service]\nEnvironment=UMAWARDEN_LOG_LEVEL=debug\n",
    );
    system.must(&["systemctl", "daemon-reload"]);
    system.must(&["systemctl", "restart", "umawarden"]);
    system.wait_for("what acting lacks", 20, |system| {
        let log = system.log();
        log.contains("print drop-in memory") && log.contains("print drop-in stop")
    });
    system.sh(&format!("rm -r {DROP_INS}"));
    let log = system.log();
    assert!(!log.contains("ERROR"), "{log}");
}

/// As in `docs/src/reference/configuration.md`.
fn is_started_by_its_socket(system: &System) {
    system.must(&["systemctl", "daemon-reload"]);
    system.must(&["systemctl", "stop", "umawarden"]);
    system.sh("echo 'web: {systemd_socket: true}' >>/etc/umawarden/umawarden.yaml");
    system.must(&["systemctl", "start", "umawarden.socket"]);
    assert_eq!(system.property("ActiveState"), "inactive");
    system.wait_for("sampled", 20, |system| system.scrape().contains("uma_memory_free_bytes "));
    assert_eq!(system.property("ActiveState"), "active");
    assert_eq!(system.property("TriggeredBy"), "umawarden.socket");
    system.must(&["systemctl", "stop", "umawarden.socket", "umawarden"]);
    assert_eq!(system.scrape(), "", "nothing listens");
}

fn prepare_engines(system: &System) {
    system.write("/etc/umawarden/umawarden.yaml", CONFIGURATION);
    system.write("/usr/local/hog.py", HOG);
    system.write("/usr/local/loader.py", LOADER);
    system.write("/usr/local/rootless.py", ROOTLESS);
    system.sh("cp $(readlink -f /usr/bin/python3) /usr/local/bin/loader");
    system.sh("cp /usr/local/bin/loader /usr/local/bin/hog");
    system.sh("chmod a+rx /usr/local/bin/loader /usr/local/bin/hog /usr/local/*.py");
    system.write("/usr/local/fake/sglang/__init__.py", "");
    system.write("/usr/local/fake/sglang/launch_server.py", SGLANG);
}

/// With its drop-in an engine of another user is stopped. Without it the log and the outcome name
/// the capability.
fn stops(system: &System) {
    let lack = "not available what=\"action stop_engine: without CAP_KILL";
    system.restart(Some("stop"), &[GROUP, STOP].concat());
    system.begin_engine("hog");
    system.wait_for_outcome("stop_engine done");
    system.wait_for("stopped", 10, |system| !system.runs("hog"));
    let log = system.log();
    assert!(!log.contains(lack) && !log.contains("openat2(2) is refused"), "{log}");
    // The cooldown of a rule outlives a restart.
    let in_vain = STOP.replace("Stops", "StopsInVain");
    system.restart(None, &format!("{GROUP}{in_vain}"));
    system.wait_for("naming what it lacks", 20, |system| {
        let log = system.log();
        let line = log.lines().find(|line| line.contains(lack));
        line.is_some_and(|line| line.contains("umawarden print drop-in stop"))
    });
    system.begin_engine("hog");
    system.wait_for_outcome("stop_engine failed");
    assert!(system.history().contains("CAP_KILL"), "{}", system.history());
    assert!(system.runs("hog"), "it cannot be stopped");
    system.end("hog");
}

fn evicts(system: &System) {
    system.restart(Some("evict"), &[GROUP, EVICT].concat());
    system.begin_engine("loader");
    system.wait_for_outcome("evict_checkpoint done");
    system.wait_for("evicting", 30, |system| {
        let metrics = system.scrape();
        let evicted = metrics.lines().find(|line| line.starts_with("uma_evicted_bytes_total"));
        evicted.is_some_and(|line| !line.ends_with(" 0"))
    });
    system.end("loader");
}

/// The server can be reached only from within a network of its own.
fn empties(system: &System) {
    let answers =
        concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/engines/answers/sglang.json");
    let properties = ["--property=PrivateNetwork=yes", "--setenv=PYTHONPATH=/usr/local/fake"];
    let serve = ["/usr/bin/python3", "-m", "sglang.launch_server", answers, "--port", "30000"];
    system.begin("sglang", &properties, &serve);
    system.restart(Some("engines"), &[GROUP, ENGINES].concat());
    system.wait_for_outcome("empty_cache done");
    let log = system.log();
    assert!(log.contains("within its own network"), "{log}");
    system.end("sglang");
}

fn queries_a_rootless_server(system: &System) {
    let configuration =
        format!("{CONFIGURATION}path: {{docker_socket: /run/user/1/docker.sock}}\n");
    system.write("/etc/umawarden/umawarden.yaml", &configuration);
    system.sh("mkdir -p /run/user/1 && chown daemon /run/user/1 && chmod 700 /run/user/1");
    let serve = ["/usr/bin/python3", "/usr/local/rootless.py"];
    system.begin("rootless", &["--uid=daemon"], &serve);
    system.wait_for("serving", 20, |system| {
        system.call(&["test", "-S", "/run/user/1/docker.sock"]).status.success()
    });
    let is_queried = |system: &System| {
        let log = system.must(&["journalctl", "--no-pager", "--unit=rootless"]);
        log.contains("/containers/json")
    };
    system.restart(None, "groups: []\n");
    std::thread::sleep(Duration::from_secs(3));
    assert!(!is_queried(system), "without its drop-in");
    system.restart(Some("rootless"), "groups: []\n");
    system.wait_for("queried", 20, is_queried);
    system.end("rootless");
    system.write("/etc/umawarden/umawarden.yaml", CONFIGURATION);
}

fn corrects_memory(system: &System) {
    system.restart(Some("memory"), &[GROUP, MEMORY].concat());
    system.begin_engine("loader");
    for action in ["drop_caches", "compact_memory", "set_sysctl", "throttle_readahead", "reclaim"] {
        system.wait_for_outcome(&format!("{action} done"));
    }
    system.end("loader");
}

fn requests_a_reboot(system: &System) {
    system.restart(Some("reboot"), "groups: []\n");
    let ignored = ["budget", "uptime", "users", "engines", "alerts", "windows", "slot"];
    let mut order = vec!["umawarden", "reboot", "--why", "test", "--delay", "0s"];
    order.extend(ignored.iter().flat_map(|one| ["--force", one]));
    system.must(&order);
    system.wait_for("requested", 30, |system| {
        system.call(&["test", "-e", "/run/reboot-please"]).status.success()
    });
}

fn recovers_from_a_hang(system: &System) {
    assert_eq!(system.property("NRestarts"), "0");
    let hung = system.property("MainPID");
    system.must(&["kill", "-STOP", &hung]);
    system.wait_for("restarted", 40, |system| system.property("NRestarts") == "1");
    system.wait_for("active", 20, |system| system.property("ActiveState") == "active");
    assert_ne!(system.property("MainPID"), hung);
    let log = system.log();
    assert!(log.contains("Watchdog timeout"), "{log}");
    // The journal outlives it.
    assert!(system.history().contains("stop_engine done"), "{}", system.history());
    system.wait_for("journalling", 20, |system| system.scrape().contains("uma_journal_up 1"));
}

fn is_upgraded(system: &System, package: &Path) {
    system.install(&next(package, system.folder.path()));
    system.wait_for("active", 20, |system| system.property("ActiveState") == "active");
    let kept = system.sh("cat /etc/umawarden/umawarden.yaml");
    assert_eq!(kept, CONFIGURATION, "a changed configuration stays");
    system.wait_for("journalling", 20, |system| system.history().contains("stop_engine done"));
    system.wait_for("setting", 20, |_| fs::read_to_string(SYSCTL).unwrap().trim() == "21");
}

fn is_removed(system: &System, package: &Path) {
    system.must(&["dpkg", "--remove", "umawarden"]);
    assert!(!system.call(&["pgrep", "-x", "umawarden"]).status.success());
    assert!(system.call(&["test", "-e", "/var/lib/umawarden/journal.sqlite3"]).status.success());
    // Installed again, it is as before.
    system.install(package);
    system.wait_for("active", 20, |system| system.property("ActiveState") == "active");
    assert_eq!(system.sh("cat /etc/umawarden/umawarden.yaml"), CONFIGURATION);
    system.must(&["dpkg", "--purge", "umawarden"]);
    assert!(!system.call(&["systemctl", "is-enabled", "umawarden"]).status.success());
    for gone in ["/var/lib/umawarden", "/etc/umawarden/umawarden.yaml", "/usr/share/umawarden"] {
        assert!(!system.call(&["test", "-e", gone]).status.success(), "{gone}");
    }
}

/// Debian's rpm runs the package's scripts as that of RHEL does.
fn is_installed_by_rpm(system: &System, rpm: &Path) {
    fs::copy(rpm, system.folder.path().join("root/root/umawarden.rpm")).unwrap();
    system.must(&["rpm", "--install", "--nodeps", "/root/umawarden.rpm"]);
    assert_eq!(system.must(&["systemctl", "is-enabled", "umawarden"]).trim(), "enabled");
    assert_eq!(system.property("ActiveState"), "inactive", "the administrator starts it");
    system.must(&["systemctl", "start", "umawarden"]);
    let began = system.property("MainPID");
    system.must(&["rpm", "--upgrade", "--nodeps", "--force", "/root/umawarden.rpm"]);
    system.wait_for("restarted", 20, |system| system.property("MainPID") != began);
    system.wait_for("sampled", 20, |system| system.scrape().contains("uma_memory_free_bytes "));
    system.must(&["rpm", "--erase", "--nodeps", "umawarden"]);
    assert!(!system.call(&["pgrep", "-x", "umawarden"]).status.success());
    assert!(!system.call(&["systemctl", "is-enabled", "umawarden"]).status.success());
    for gone in ["/usr/bin/umawarden", "/usr/share/umawarden", "/usr/share/licenses/umawarden"] {
        assert!(!system.call(&["test", "-e", gone]).status.success(), "{gone}");
    }
}
