//! A real OOM kill becomes one event, at once.

use std::time::{Duration, Instant};

use super::{LimitedCgroup, enabled};
use crate::daemon::{Daemon, history, of_kind};

const KILLS: usize = 7;

#[test]
fn real_oom_kill_is_one_event_in_metrics_and_journal_within_50_ms() {
    if !enabled() {
        return;
    }
    // After a burst of kills the kernel omits traces for five seconds.
    std::thread::sleep(Duration::from_secs(6));
    let storage = tempfile::tempdir().unwrap();
    let cgroup = LimitedCgroup::new("oom", 30 << 20);
    let daemon = Daemon::start(storage.path(), &[]);
    let before = daemon.metric("uma_kernel_events_total{event=\"oom_kill\"}");
    let mut delays = Vec::new();
    let mut pids = Vec::new();
    for kill in 1..=KILLS {
        let seen = watch_events(&daemon, before, kill);
        pids.push(cgroup.oom_kill());
        delays.push(seen.join().unwrap());
    }
    delays.sort_unstable();
    println!("kernel's line to /metrics and /api/v1/events, the polling included: {delays:?}");
    assert!(delays[KILLS / 2] <= Duration::from_millis(50), "{delays:?}");
    let after = daemon.metric("uma_kernel_events_total{event=\"oom_kill\"}");
    assert!((after - before - KILLS as f64).abs() < f64::EPSILON, "{before} → {after}");
    drop(daemon);

    let history = history(storage.path());
    for pid in pids {
        let kills: Vec<_> =
            of_kind(&history, "oom_kill").filter(|event| event["pid"] == pid).collect();
        let [kill] = kills.as_slice() else { panic!("{pid}: {kills:#?}") };
        assert_eq!(kill["comm"], "tail");
        assert_eq!(kill["constraint"], "memcg");
        assert_eq!(kill["memcg"], cgroup.path());
        assert_eq!(kill["oom_memcg"], cgroup.path());
        assert_eq!(kill["trigger_comm"], "tail");
        assert_eq!(kill["driver"], false);
        assert!(kill["anon_rss_bytes"].as_u64().unwrap() > 20 << 20);
    }
}

/// Time from the kernel's `Killed process` line until metric and journal both have the kill.
fn watch_events(daemon: &Daemon, before: f64, kill: usize) -> std::thread::JoinHandle<Duration> {
    let address = daemon.address().to_owned();
    let kernel = KernelLines::open();
    std::thread::spawn(move || {
        let client = crate::daemon::http_client().build().unwrap();
        let get = |path: &str| {
            client.get(format!("http://{address}{path}")).send().unwrap().text().unwrap()
        };
        kernel.wait_for("Killed process");
        let line_at = Instant::now();
        let wanted = format!(
            "uma_kernel_events_total{{event=\"oom_kill\"}} {}",
            before as u64 + kill as u64
        );
        while !get("/metrics").contains(&wanted) {
            assert!(line_at.elapsed() < Duration::from_secs(10), "not in the metrics");
        }
        let journalled = |body: &str| body.matches("\"oom_kill\"").count() >= kill;
        while !journalled(&get("/api/v1/events?kind=oom_kill&limit=1000")) {
            assert!(line_at.elapsed() < Duration::from_secs(10), "not in the journal");
        }
        line_at.elapsed()
    })
}

/// The kernel log from now on.
struct KernelLines {
    file: std::fs::File,
}

impl KernelLines {
    fn open() -> Self {
        use std::io::{Seek, SeekFrom};
        let mut file = std::fs::File::open("/dev/kmsg").unwrap();
        file.seek(SeekFrom::End(0)).unwrap();
        Self { file }
    }

    fn wait_for(mut self, text: &str) {
        use std::io::Read;
        let mut buffer = [0u8; 8192];
        loop {
            let length = self.file.read(&mut buffer).unwrap();
            if String::from_utf8_lossy(&buffer[..length]).contains(text) {
                return;
            }
        }
    }
}
