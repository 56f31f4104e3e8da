//! A container that is killed at its limit is named by its id.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::enabled;
use crate::daemon::{Daemon, history, of_kind};

/// A dockerd of our own: own data, own socket, no bridge and no firewall rules.
pub struct Dockerd {
    child: Child,
    socket: String,
    folder: tempfile::TempDir,
}

impl Dockerd {
    pub fn start() -> Self {
        // Not below the temporary folder of the session: containerd's socket path must stay short.
        let folder = tempfile::tempdir_in("/tmp").unwrap();
        let socket = format!("unix://{}", folder.path().join("sock").display());
        let child = Self::spawn(folder.path(), &socket);
        let dockerd = Self { child, socket, folder };
        dockerd.wait();
        dockerd
    }

    fn spawn(folder: &Path, socket: &str) -> Child {
        let path = |name: &str| folder.join(name).display().to_string();
        Command::new("dockerd")
            .args(["--bridge=none", "--iptables=false", "--host", socket])
            .args(["--data-root", &path("data"), "--exec-root", &path("exec")])
            .args(["--pidfile", &path("pid")])
            .stdout(Stdio::null())
            .stderr(fs::File::create(path("log")).unwrap())
            .spawn()
            .unwrap()
    }

    fn wait(&self) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !self.docker(&["version"]).status.success() {
            let log = fs::read_to_string(self.folder.path().join("log")).unwrap();
            assert!(Instant::now() < deadline, "dockerd does not answer:\n{log}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Terminates it, waits for that time, and starts it again with the same data.
    pub fn restart(&mut self, away: Duration) {
        self.end();
        std::thread::sleep(away);
        self.child = Self::spawn(self.folder.path(), &self.socket);
        self.wait();
    }

    fn end(&mut self) {
        let pid = i32::try_from(self.child.id()).unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        // It may have ended.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.child.wait();
    }

    pub fn socket_path(&self) -> String {
        self.socket.trim_start_matches("unix://").to_owned()
    }

    pub fn docker(&self, arguments: &[&str]) -> std::process::Output {
        Command::new("docker")
            .env("DOCKER_HOST", &self.socket)
            .env_remove("DOCKER_CONTEXT")
            .args(arguments)
            .output()
            .unwrap()
    }

    /// Imports an image that holds busybox alone.
    pub fn import_busybox(&self) {
        let root = self.folder.path().join("root");
        fs::create_dir_all(root.join("bin")).unwrap();
        fs::copy("/bin/busybox", root.join("bin/busybox")).unwrap();
        let archive = self.folder.path().join("root.tar");
        let packed = Command::new("tar")
            .args(["-C", root.to_str().unwrap(), "-cf", archive.to_str().unwrap(), "."])
            .status();
        assert!(packed.unwrap().success());
        let imported = self.docker(&["import", archive.to_str().unwrap(), "busybox"]);
        assert!(imported.status.success(), "{}", String::from_utf8_lossy(&imported.stderr));
    }
}

impl Drop for Dockerd {
    fn drop(&mut self) {
        self.end();
    }
}

#[test]
fn real_container_killed_at_its_limit_is_named() {
    if !enabled() {
        return;
    }
    if !Path::new("/bin/busybox").exists() {
        panic!("busybox-static is not installed: tests/run installs it");
    }
    let dockerd = Dockerd::start();
    dockerd.import_busybox();
    let storage = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(storage.path(), &[]);
    let kills = "uma_kernel_events_total{event=\"oom_kill\"}";
    let before = daemon.metric(kills);
    let created = dockerd.docker(&[
        "create",
        "--network",
        "none",
        "--memory",
        "30m",
        "busybox",
        "/bin/busybox",
        "tail",
        "/dev/zero",
    ]);
    let id = String::from_utf8(created.stdout).unwrap().trim().to_owned();
    let ran = dockerd.docker(&["start", "--attach", &id]);
    assert_eq!(ran.status.code(), Some(137), "{}", String::from_utf8_lossy(&ran.stderr));
    daemon.wait_until("reported", |daemon| daemon.metric(kills) > before);
    daemon.terminate();
    let history = history(storage.path());
    let of_container: Vec<_> =
        of_kind(&history, "oom_kill").filter(|event| event["container"] == id).collect();
    assert_eq!(of_container.len(), 1, "{history:#?}");
    assert_eq!(of_container[0]["comm"], "busybox");
    assert_eq!(of_container[0]["constraint"], "memcg");
}
