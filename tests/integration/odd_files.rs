//! FIFOs, sockets, folders and devices in place of files: no command waits for them.

use std::fs;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::daemon::binary;

/// Runs the command, and kills it if it hangs.
fn run(arguments: &[&str], input: Stdio) -> Output {
    let child = Command::new(binary())
        .args(arguments)
        .stdin(input)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id().to_string();
    let (ended, end) = std::sync::mpsc::channel::<()>();
    let guard = std::thread::spawn(move || {
        let hangs = end.recv_timeout(Duration::from_secs(20)).is_err();
        // It may have ended.
        let _ = hangs.then(|| Command::new("kill").args(["-9", &pid]).status());
        hangs
    });
    let output = child.wait_with_output().unwrap();
    let _ = ended.send(());
    assert!(!guard.join().unwrap(), "{arguments:?} hangs");
    output
}

fn make_fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout)
}

#[test]
fn fifos_and_folders_are_refused_by_name_without_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    for name in ["journal", "wal", "recording", "empty"] {
        fs::create_dir(path(name)).unwrap();
    }
    make_fifo(Path::new(&path("fifo")));
    make_fifo(Path::new(&path("journal/journal.sqlite3")));
    fs::write(path("wal/journal.sqlite3"), "").unwrap();
    make_fifo(Path::new(&path("wal/journal.sqlite3-wal")));
    make_fifo(Path::new(&path("recording/00000001.umarec")));
    let _listener = UnixListener::bind(path("socket")).unwrap();
    let (fifo, socket) = (path("fifo"), path("socket"));
    let journal = format!("--storage.path={}", path("journal"));
    let wal = format!("--storage.path={}", path("wal"));
    let (recording, empty) = (path("recording"), path("empty"));
    fs::write(path("file"), "").unwrap();
    let in_file = format!("--storage.path={}", path("file"));
    let (as_config, as_rules) = (format!("--config.file={fifo}"), format!("--rules={fifo}"));
    let cases: &[(&[&str], &str, i32)] = &[
        (&["history", &journal], "journal.sqlite3: it is a FIFO", 2),
        (&["history", &wal], "journal.sqlite3-wal: it is a FIFO", 2),
        (&["history", "--json", &journal], "journal.sqlite3: it is a FIFO", 2),
        (&["rules", "report", &journal], "journal.sqlite3: it is a FIFO", 2),
        (&["explain", "Any", &journal], "journal.sqlite3: it is a FIFO", 2),
        (&["explain", "--release=x", &journal], "journal.sqlite3: it is a FIFO", 2),
        (&["explain", "Any", "--recording", &fifo], "fifo: it is a FIFO", 2),
        (&["replay", &fifo], "fifo: a FIFO", 2),
        (&["replay", &socket], "socket", 2),
        (&["replay", "/dev/zero"], "/dev/zero: a device", 2),
        (&["replay", &recording], "has no recording", 2),
        (&["replay", &empty], "has no recording", 2),
        (&["explain", "Any", "--recording", &empty], "has no recording", 2),
        (&["dmesg", &empty], "a folder: name a file in it", 2),
        (&["config", "check", "--web.config.file", &empty], "it is a folder", 2),
        (&["config", "check", "--web.tokens.file", &empty], "it is a folder", 2),
        (&["history", &in_file], "there is no journal at ", 2),
        (&["dmesg", &fifo], "fifo: a FIFO", 2),
        (&["dmesg", &socket], "socket", 2),
        (&["dmesg", "/dev/zero"], "/dev/zero: a device", 2),
        (&["config", "check", &as_config], "fifo: it is a pipe", 2),
        (&["config", "check", &as_rules], "fifo: it is a pipe", 2),
        (&["config", "check", "--rules=/dev/zero"], "/dev/zero: it is a device", 2),
        (&["rules", "check", &fifo], "fifo: it is a pipe", 2),
        (&["rules", "check", "/dev/tty"], "/dev/tty: it is a device", 2),
        (&["rules", "test", &fifo], "fifo: it is a pipe", 2),
        (&["run", &as_config], "fifo: it is a pipe", 2),
    ];
    for (arguments, what, code) in cases {
        let output = run(arguments, Stdio::null());
        let text = printed(&output);
        assert!(text.contains(what), "{arguments:?}: {text}");
        assert_eq!(output.status.code(), Some(*code), "{arguments:?}: {text}");
    }
}

#[test]
fn a_daemon_whose_journal_is_a_fifo_samples_and_reports_it() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("data")).unwrap();
    make_fifo(&folder.path().join("data/journal.sqlite3"));
    let daemon = crate::daemon::Daemon::spawn(&folder.path().join("data"), &[]);
    daemon.wait_until("reported", |daemon| daemon.log().contains("journal.sqlite3: it is a FIFO"));
    assert_eq!(daemon.get("/-/healthy").0, 200);
    daemon.terminate();
}

#[test]
fn standard_input_and_pipes_with_a_writer_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let log = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/kernel/xid.log");
    let whole = run(&["dmesg", "--json", log.to_str().unwrap()], Stdio::null());
    assert!(whole.status.code() == Some(1) && !whole.stdout.is_empty());
    let open = || Stdio::from(fs::File::open(&log).unwrap());
    let piped = || {
        let late = "sleep 0.3; cat \"$0\"";
        let mut shell = Command::new("sh");
        let child = shell.args(["-c", late]).arg(&log).stdout(Stdio::piped()).spawn().unwrap();
        let pipe = child.stdout.as_ref().unwrap().as_fd().try_clone_to_owned().unwrap();
        (Stdio::from(pipe), child)
    };
    for name in ["-", "/dev/stdin"] {
        let output = run(&["dmesg", "--json", name], open());
        assert_eq!(output.stdout, whole.stdout, "{name}: {}", printed(&output));
        let (pipe, mut child) = piped();
        let output = run(&["dmesg", "--json", name], pipe);
        assert_eq!(output.stdout, whole.stdout, "{name}, a pipe: {}", printed(&output));
        child.wait().unwrap();
    }
    let fifo = folder.path().join("fifo");
    make_fifo(&fifo);
    let script = "sleep 0.3; exec > \"$1\"; sleep 0.3; cat \"$0\"";
    let mut writer = Command::new("sh").args(["-c", script]).arg(&log).arg(&fifo).spawn().unwrap();
    let began = Instant::now();
    let output = run(&["dmesg", "--json", fifo.to_str().unwrap()], Stdio::null());
    assert_eq!(output.stdout, whole.stdout, "{:?}: {}", began.elapsed(), printed(&output));
    writer.wait().unwrap();
}
