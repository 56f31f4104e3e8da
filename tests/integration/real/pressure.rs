//! Tasks that wait for memory wake the loop, however much memory is free.

use std::fs;
use std::time::{Duration, Instant};

use super::{LimitedCgroup, Started, enabled_nightly};
use crate::daemon::Daemon;

const INTERVAL: &str = "uma_sampling_interval_seconds";
const CALM_SECONDS: f64 = 0.25;

/// Longer than the calm phase before the baseline is known.
const CALM_FOR: Duration = Duration::from_secs(10);

/// How long tasks have waited for memory since boot.
fn waited() -> Duration {
    let text = fs::read_to_string("/proc/pressure/memory").unwrap();
    let total = text.lines().find(|line| line.starts_with("some ")).unwrap().rsplit_once('=');
    Duration::from_micros(total.unwrap().1.parse().unwrap())
}

/// Reads of cached data would not wait.
fn write_uncached(path: &str) {
    fs::write(path, vec![1; 256 << 20]).unwrap();
    let file = fs::File::open(path).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
}

#[test]
fn real_memory_is_sampled_more_often_while_tasks_wait_for_it() {
    if !enabled_nightly() {
        return;
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    // Neither a rule nor the kernel log asks for it.
    fs::write(path("rules.yaml"), "groups: []\n").unwrap();
    fs::write(path("kmsg"), "").unwrap();
    write_uncached(&path("file"));
    let daemon = Daemon::start(
        &folder.path().join("data"),
        &[&format!("--rules={}", path("rules.yaml")), &format!("--path.kmsg={}", path("kmsg"))],
    );
    let calm = |daemon: &Daemon| daemon.metric(INTERVAL) >= CALM_SECONDS;
    // Once the baseline is known, which is an event too, nothing more happens.
    let mut since = Instant::now();
    let deadline = since + Duration::from_secs(60);
    while since.elapsed() < CALM_FOR {
        assert!(Instant::now() < deadline, "never calm");
        if !calm(&daemon) {
            since = Instant::now();
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let cgroup = LimitedCgroup::new("pressure", 16 << 20);
    let (before, began) = (waited(), Instant::now());
    let script = "while :; do cat \"$0\" >/dev/null; done";
    let reader = |_| Started(cgroup.spawn("sh", &["-c", script, &path("file")]));
    let readers: Vec<_> = (0..4).map(reader).collect();
    while calm(&daemon) && began.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let was_woken = !calm(&daemon);
    drop(readers);
    let waited = waited() - before;
    assert!(waited > Duration::from_millis(50), "no task waited for memory: {waited:?}");
    assert!(was_woken, "tasks have waited {waited:?}, and nothing was measured sooner");
    daemon.wait_until("calm again", calm);
}
