//! A machine with 200 MiB left is still sampled.

use std::process::Command;
use std::time::{Duration, Instant};

use super::{Started, enabled};
use crate::daemon::{Daemon, meminfo_bytes};

const LEFT_BYTES: f64 = 200.0 * 1024.0 * 1024.0;

/// Takes memory until little is left, and frees it when dropped. The kernel would kill it first.
struct Glutton(Started);

impl Glutton {
    fn start() -> Self {
        let program = "
import mmap, sys, time
open('/proc/self/oom_score_adj', 'w').write('1000')
meminfo, taken = open('/proc/meminfo'), []
def available():
    meminfo.seek(0)
    return next(int(line.split()[1]) << 10 for line in meminfo if line.startswith('MemAvailable'))
while True:
    while available() > int(sys.argv[1]):
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
        taken.append(mmap.mmap(-1, 16 << 20, flags=flags))
    time.sleep(0.05)
";
        let child =
            Command::new("python3").args(["-c", program, &(LEFT_BYTES as u64).to_string()]).spawn();
        Self(Started(child.unwrap()))
    }

    fn is_alive(&mut self) -> bool {
        self.0.0.try_wait().unwrap().is_none()
    }
}

#[test]
fn real_starvation_does_not_stop_sampling() {
    if !enabled() {
        return;
    }
    let storage = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(storage.path(), &[]);
    let mut glutton = Glutton::start();
    let deadline = Instant::now() + Duration::from_secs(400);
    while meminfo_bytes("MemAvailable") > LEFT_BYTES * 1.5 && glutton.is_alive() {
        assert!(Instant::now() < deadline, "memory does not fill");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(glutton.is_alive(), "it was killed before memory was full");
    let missed = "uma_samples_missed_total";
    let (before, began) = (daemon.metric(missed), Instant::now());
    while began.elapsed() < Duration::from_secs(5) {
        let seen = daemon.metric("uma_memory_available_bytes");
        assert!(seen < LEFT_BYTES * 3.0, "an old reading: {seen}");
        std::thread::sleep(Duration::from_millis(200));
    }
    let missed = daemon.metric(missed) - before;
    println!("missed {missed} of 50 samples with {LEFT_BYTES} bytes left");
    assert!(missed <= 5.0, "{missed} of 50 samples were missed");
}
