//! `umawarden top` and `status` through a real ssh, to an own sshd on a port of the loopback.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use super::super::{Started, enabled};
use super::{Tmux, top};
use crate::daemon::binary;
use crate::terminal::{picture, picture_server};

/// sshd starts itself again, so that it needs its whole path.
const SSHD: &str = "/usr/sbin/sshd";

/// Its folder for processes without privileges, which the service of the package makes.
const SEPARATION: &str = "/run/sshd";

/// An sshd with own keys, which ends when this is dropped.
struct Sshd {
    folder: tempfile::TempDir,
    port: u16,
    has_made_folder: bool,
    _server: Started,
}

impl Sshd {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let has_made_folder = fs::create_dir(SEPARATION).is_ok();
        let path = |name: &str| folder.path().join(name);
        for key in ["host", "own"] {
            let mut make = Command::new("ssh-keygen");
            make.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(path(key));
            assert!(make.status().unwrap().success());
        }
        fs::copy(path("own.pub"), path("authorized_keys")).unwrap();
        // The port is free again before sshd takes it.
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let host = fs::read_to_string(path("host.pub")).unwrap();
        fs::write(path("known_hosts"), format!("[127.0.0.1]:{port} {host}")).unwrap();
        let config = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {}\nAuthorizedKeysFile {}\n\
             StrictModes no\nUsePAM no\nPidFile none\nPermitRootLogin prohibit-password\n\
             PasswordAuthentication no\nKbdInteractiveAuthentication no\nPrintMotd no\n\
             PrintLastLog no\n",
            path("host").display(),
            path("authorized_keys").display(),
        );
        fs::write(path("sshd_config"), config).unwrap();
        let mut command = Command::new(SSHD);
        command.args(["-D", "-e", "-f"]).arg(path("sshd_config"));
        let log = File::create(path("log")).unwrap();
        let server = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
        let sshd = Self { has_made_folder, port, _server: Started(server.unwrap()), folder };
        let deadline = Instant::now() + Duration::from_secs(20);
        while !sshd.log().contains("Server listening") {
            assert!(Instant::now() < deadline, "{}", sshd.log());
            std::thread::sleep(Duration::from_millis(50));
        }
        sshd
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// The arguments of a client, without the configuration and the agent of the user.
    fn client(&self) -> Vec<String> {
        let path = |name: &str| -> PathBuf { self.folder.path().join(name) };
        let hosts = format!("UserKnownHostsFile={}", path("known_hosts").display());
        let options = [
            &*hosts,
            "BatchMode=yes",
            "IdentitiesOnly=yes",
            "IdentityAgent=none",
            "LogLevel=ERROR",
        ];
        let mut all = vec!["-F".to_owned(), "/dev/null".to_owned(), "-tt".to_owned()];
        all.extend(options.iter().flat_map(|option| ["-o".to_owned(), (*option).to_owned()]));
        all.extend(["-i".to_owned(), path("own").display().to_string()]);
        all.extend(["-p".to_owned(), self.port.to_string(), "root@127.0.0.1".to_owned()]);
        all
    }

    /// Runs a command there, in a terminal of that kind.
    fn run(&self, terminal: &str, command: &str) -> Output {
        let mut client = Command::new("ssh");
        client.args(self.client()).arg(command).env("TERM", terminal).stdin(Stdio::null());
        client.output().unwrap()
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        if self.has_made_folder {
            // Another sshd may use it by now.
            let _ = fs::remove_dir(SEPARATION);
        }
    }
}

fn are_there() -> bool {
    let mut missing: Vec<&str> = Vec::new();
    for (program, version) in [("ssh", "-V"), ("tmux", "-V")] {
        if Command::new(program).arg(version).output().is_err() {
            missing.push(program);
        }
    }
    if !Path::new(SSHD).exists() {
        missing.push(SSHD);
    }
    if !missing.is_empty() {
        eprintln!("skipped: not installed: {}", missing.join(", "));
    }
    missing.is_empty()
}

#[test]
fn through_ssh_it_leaves_the_terminal_as_it_was_and_writes_plain_text_to_a_dumb_one() {
    if !enabled() || !are_there() {
        return;
    }
    let node = tempfile::tempdir().unwrap();
    picture_server(&node.path().join("control.sock"), &picture("warning"));
    let sshd = Sshd::start();
    let client = format!("ssh {}", sshd.client().join(" "));
    let tmux = Tmux::start(80, 24, &format!("{client} {}", top(node.path(), "")));
    let screen = tmux.wait_for("spark-1: warning");
    assert!(screen.lines().all(|line| line.chars().count() <= 80), "{screen}\n{}", sshd.log());
    let flags = tmux.tmux(&["display-message", "-p", "#{alternate_on} #{cursor_flag}"]);
    assert_eq!(flags.trim(), "1 0", "it has a screen of its own");
    tmux.keys("q");
    tmux.ended_with(0);
    let command = format!("{} status --storage.path {}", binary().display(), node.path().display());
    for (terminal, is_plain) in [("dumb", true), ("xterm-256color", false)] {
        let shown = sshd.run(terminal, &command);
        let text = String::from_utf8(shown.stdout).unwrap();
        let errors = String::from_utf8(shown.stderr).unwrap();
        assert_eq!(shown.status.code(), Some(1), "{text}{errors}{}", sshd.log());
        let is_whole = ["spark-1", "warning"].iter().all(|part| text.contains(part));
        assert!(is_whole && errors.is_empty(), "{text}{errors}");
        assert_eq!(!text.contains('\x1b'), is_plain, "{terminal}: {text:?}");
    }
}
