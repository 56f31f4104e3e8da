//! Attacks by user `nobody` on the real kernel.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use jiff::Timestamp;
use umawarden::model::{KernelRecord, Moment, Observation};
use umawarden::sources::kernel_log::{KernelLogReader, KernelLogSource, ReadClock, ReadEnd};

use super::enabled;
use crate::daemon::{Daemon, binary, history, of_kind};
use crate::run::Node;

/// Records in the log so far.
fn records(mut source: KernelLogSource) -> Vec<KernelRecord> {
    let mut seen = Vec::new();
    for _ in 0..200 {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let monotonic = Duration::from_secs(now.tv_sec.unsigned_abs());
        let at = Moment { uptime: monotonic, utc: Timestamp::now() };
        let end = source.read(ReadClock { at, monotonic }, &mut seen, 10_000);
        if end == ReadEnd::Drained && source.drained_once() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let records = seen.into_iter().filter_map(|seen| match seen {
        Observation::KernelRecord(record) => Some(record),
        _ => None,
    });
    records.collect()
}

/// Has user `nobody` make the kernel log a record with a newline in it, and a line behind that.
/// `None` where users may not create namespaces.
fn forge(line: &str) -> Option<()> {
    let script = format!("mount -t tmpfs -o 'x\n{line}' none /mnt");
    let mounted = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "unshare", "-Urm"])
        .args(["sh", "-c", &script])
        .output()
        .unwrap();
    assert!(!mounted.status.success(), "that is no option of tmpfs");
    let kmsg = records(KernelLogSource::open(Path::new("/dev/kmsg"), None));
    let is_logged = kmsg.iter().any(|record| record.text.contains(line));
    if !is_logged {
        eprintln!("skipped: user nobody may not create a user namespace here: {mounted:?}");
    }
    is_logged.then_some(())
}

fn xid(mark: &str) -> String {
    format!("NVRM: Xid (PCI:0000:01:00): 79 umawarden-{mark}-{}", std::process::id())
}

#[test]
fn real_line_forged_by_user_nobody_is_only_claimed() {
    if !enabled() {
        return;
    }
    let forged = xid("line");
    let Some(()) = forge(&forged) else { return };
    let kmsg = records(KernelLogSource::open(Path::new("/dev/kmsg"), None));
    let begins = |record: &&KernelRecord| record.text.starts_with(&forged);
    assert!(!kmsg.iter().any(|record| begins(&record)), "/dev/kmsg escapes the newline");
    assert!(kmsg.iter().all(|record| !record.is_claimed()));
    let source = KernelLogSource::open_or_syslog(Path::new("/nowhere/kmsg"), None);
    assert_eq!(source.reader(), KernelLogReader::Syslog);
    let reason = source.reason().unwrap().to_string();
    assert!(reason.contains("local users can forge lines"), "{reason}");
    let syslog = records(source);
    let line = syslog.iter().find(begins).expect("syslog(2) shows a line of its own");
    assert!(line.facility == 0 && line.is_claimed(), "{line:?}");
}

const ON_XID: &str = "
groups:
- name: g
  rules:
  - alert: Xid
    expr: increase(uma_kernel_events_total{event=\"xid\"}[1h]) > 0
    remedy: {aim: uma_memory_free_bytes < 0, steps: [drop_caches: {}]}
";

#[test]
fn real_daemon_with_syslog_alone_shows_a_forged_line_and_does_not_act() {
    if !enabled() {
        return;
    }
    let Some(()) = forge(&xid("daemon")) else { return };
    let node = Node::new("gb10-4k");
    node.write_rules(ON_XID);
    let mut command = Command::new("unshare");
    let hide = "mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && exec \"$@\"";
    command.args(["--mount", "sh", "-c", hide, "sh"]).arg(binary());
    command.args(["run", "--mode=enforce", "--web.listen-address=127.0.0.1:0"]);
    command.arg("--storage.path").arg(node.storage());
    command.args(node.arguments().iter().filter(|flag| !flag.starts_with("--path.kmsg")));
    let daemon = Daemon::from_command(&mut command);
    let claimed = "uma_kernel_claimed_events_total{event=\"xid\"}";
    let counts = |daemon: &Daemon| daemon.metrics().get(claimed).is_some_and(|count| *count >= 1.0);
    daemon.wait_until("shown", counts);
    let metrics = daemon.metrics();
    assert_eq!(metrics.get("uma_kernel_log_reader{reader=\"syslog\"}"), Some(&1.0));
    assert!(!metrics.contains_key("uma_kernel_events_total{event=\"xid\"}"), "{metrics:?}");
    let state = "uma_rule_state{group=\"g\",rule=\"Xid\",state=\"unknown\"}";
    daemon.wait_until("unknown", |daemon| daemon.count(state) == 1.0);
    let (_, verdict) = daemon.get("/api/v1/verdict");
    assert!(!verdict.contains("wedged"), "{verdict}");
    daemon.terminate();
    let history = history(&node.storage());
    let marked = of_kind(&history, "xid").filter(|event| event["claimed_by"] == "syslog").count();
    assert_eq!((marked > 0, marked), (true, of_kind(&history, "xid").count()), "{history:?}");
    assert_eq!(of_kind(&history, "decision").count(), 0);
}
