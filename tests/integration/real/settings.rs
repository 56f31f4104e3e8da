//! Temporary settings of the real kernel: whatever moment a `kill -9` comes at, they are put back.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use super::enabled;
use crate::daemon::Daemon;

const KILLS: u32 = 20;

/// Settings that change nothing that anybody would notice within a minute.
const SETTINGS: [&str; 2] = ["vfs_cache_pressure", "swappiness"];

/// On and off several times a second, each rule at times of its own.
const RULES: &str = "
groups:
- name: g
  interval: 20ms
  rules:
  - alert: Now
    expr: uma_memory_total_bytes * 0 + time() * 10 % 4 < 2
    remedy:
      steps: [{set_sysctl: {vm.vfs_cache_pressure: CACHE, for: 1m}}]
      cooldown: 0s
      at_most: {times: 1000, per: 1h}
      breaker: {misses: 0}
  - alert: Then
    expr: uma_memory_total_bytes * 0 + time() * 10 % 3 < 1.5
    remedy:
      steps: [{set_sysctl: {vm.swappiness: SWAP, for: 1m}}]
      cooldown: 0s
      at_most: {times: 1000, per: 1h}
      breaker: {misses: 0}
";

fn path(name: &str) -> PathBuf {
    PathBuf::from("/proc/sys/vm").join(name)
}

fn read(name: &str) -> String {
    fs::read_to_string(path(name)).unwrap().trim().to_owned()
}

/// What the settings were before the test, and are after it whatever happens.
struct Before([String; 2]);

impl Drop for Before {
    fn drop(&mut self) {
        for (name, value) in SETTINGS.iter().zip(&self.0) {
            fs::write(path(name), value).unwrap();
        }
    }
}

fn other_than(value: &str) -> String {
    let value: u32 = value.parse().unwrap();
    if value == 55 { "66" } else { "55" }.to_owned()
}

#[test]
fn real_settings_are_back_after_a_kill_nine_at_any_moment() {
    if !enabled() {
        return;
    }
    let before = Before(SETTINGS.map(read));
    let folder = tempfile::tempdir().unwrap();
    let storage = folder.path().join("data");
    let rules = folder.path().join("rules.yaml");
    let text = RULES.replace("CACHE", &other_than(&before.0[0]));
    fs::write(&rules, text.replace("SWAP", &other_than(&before.0[1]))).unwrap();
    let config = folder.path().join("config.yaml");
    fs::write(&config, "guard_rails: {budget: {times: 1000, per: 1h}}\n").unwrap();
    let arguments = [
        format!("--rules={}", rules.display()),
        format!("--config.file={}", config.display()),
        "--mode=enforce".to_owned(),
    ];
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (mut in_force, mut all) = (0, 0);
    for round in 0..KILLS {
        let daemon = Daemon::start(&storage, &arguments);
        // Reading the past takes a moment, in which nothing is set.
        std::thread::sleep(Duration::from_millis(300 + fastrand::u64(0..900)));
        daemon.kill();
        let left = SETTINGS.map(read);
        in_force += u32::from(left != before.0);
        all += 1;
        let daemon = Daemon::start(&storage, &[&format!("--rules={}", rules.display())]);
        daemon.wait_until("undone", |_| SETTINGS.map(read) == before.0);
        daemon.terminate();
        assert_eq!(SETTINGS.map(read), before.0, "round {round}: it had left {left:?}");
    }
    println!("{all} kills, {in_force} of them while something was set; all is back");
    assert!(in_force > 0, "no kill came while something was set: the test shows nothing");
}

/// Puts a disk's readahead back.
struct ReadAhead(PathBuf, String);

impl Drop for ReadAhead {
    fn drop(&mut self) {
        fs::write(&self.0, &self.1).unwrap();
    }
}

#[test]
fn real_readahead_of_the_disk_below_a_path_is_throttled_and_comes_back() {
    if !enabled() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let device = rustix::fs::stat(folder.path()).unwrap().st_dev;
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let Ok(mut disk) = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")) else {
        eprintln!("skipped: {} is on no disk", folder.path().display());
        return;
    };
    if disk.join("partition").exists() {
        disk.pop();
    }
    let file = disk.join("queue/read_ahead_kb");
    let read = || fs::read_to_string(&file).unwrap().trim().to_owned();
    let before = ReadAhead(file.clone(), read());
    let rules = folder.path().join("rules.yaml");
    let path = folder.path().display();
    let step = format!("throttle_readahead: {{kib: 64, of: ['{path}'], for: 1m}}");
    let rule = "alert: Always, expr: uma_memory_free_bytes > 0";
    let text =
        format!("groups: [{{name: g, rules: [{{{rule}, remedy: {{steps: [{{{step}}}]}}}}]}}]\n");
    fs::write(&rules, text).unwrap();
    let rules = format!("--rules={}", rules.display());
    let daemon = Daemon::start(&folder.path().join("data"), &[&rules, "--mode=enforce"]);
    daemon.wait_until("throttled", |_| read() == "64");
    daemon.terminate();
    assert_eq!(read(), before.1);
}
