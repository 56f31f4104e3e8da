//! Temporary settings of the real kernel are restored after a `kill -9` at any moment of a load.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::enabled;
use crate::daemon::Daemon;
use crate::loads::Engine;

const KILLS: u32 = 20;

/// Settings whose change has no effect within a minute.
const SETTINGS: [&str; 2] = ["vfs_cache_pressure", "swappiness"];

/// On and off several times a second, each rule with its own period; and one that lasts as long as
/// the load.
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
  - alert: Loads
    expr: uma_engine_phase{phase=\"loading\"} == 1
    remedy:
      steps: [{throttle_readahead: {kib: 64, of: ['FOLDER'], for: 1m}}]
      cooldown: 0s
      at_most: {times: 1000, per: 1h}
  - alert: CheckpointLoads
    expr: uma_engine_phase{phase=\"loading\"} == 1 unless on(engine) uma_engine_evicting == 1
    remedy:
      steps: [{evict_checkpoint: {behind: 64MiB, for: 1h}}]
      cooldown: 0s
      at_most: {times: 1000, per: 1h}
";

/// The process name of the engine, by which it is found.
const NAME: &str = "umawarden-killed-load";

fn read(setting: &PathBuf) -> String {
    fs::read_to_string(setting).unwrap().trim().to_owned()
}

/// The settings before the test, restored when dropped.
pub(super) struct Before(Vec<(PathBuf, String)>);

impl Before {
    pub(super) fn of(settings: impl Iterator<Item = PathBuf>) -> Self {
        Self(settings.map(|setting| (setting.clone(), read(&setting))).collect())
    }

    /// The changed settings, with their current values.
    pub(super) fn changed(&self) -> Vec<(&PathBuf, String)> {
        let now = self.0.iter().map(|(setting, before)| (setting, before, read(setting)));
        now.filter(|(_, before, now)| *before != now).map(|(at, _, now)| (at, now)).collect()
    }
}

impl Drop for Before {
    fn drop(&mut self) {
        for (setting, value) in &self.0 {
            fs::write(setting, value).unwrap();
        }
    }
}

/// The readahead of the disk of a folder, if it is on one.
pub(super) fn readahead_of(folder: &Path) -> Option<PathBuf> {
    let device = rustix::fs::stat(folder).unwrap().st_dev;
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let mut disk = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    if disk.join("partition").exists() {
        disk.pop();
    }
    Some(disk.join("queue/read_ahead_kb"))
}

fn other_than(value: &str) -> String {
    let value: u32 = value.parse().unwrap();
    if value == 55 { "66" } else { "55" }.to_owned()
}

#[test]
fn real_settings_are_restored_after_kill_nine_at_any_moment_of_a_load() {
    if !enabled() {
        return;
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let sysctls = SETTINGS.iter().map(|name| PathBuf::from("/proc/sys/vm").join(name));
    let before = Before::of(sysctls.chain(readahead_of(folder.path())));
    let (storage, model) = (folder.path().join("data"), folder.path().join("model.safetensors"));
    fs::write(&model, vec![1; 64 << 20]).unwrap();
    let rules = folder.path().join("rules.yaml");
    let text = RULES.replace("CACHE", &other_than(&before.0[0].1));
    let text = text.replace("SWAP", &other_than(&before.0[1].1));
    fs::write(&rules, text.replace("FOLDER", &folder.path().display().to_string())).unwrap();
    let config = folder.path().join("config.yaml");
    let engine = format!(
        "engines: [{{name: killed, match: {{cmdline: \"* {NAME} *\"}}, model_files: [\"{}\"]}}]\n",
        model.display()
    );
    fs::write(&config, format!("guard_rails: {{budget: {{times: 1000, per: 1h}}}}\n{engine}"))
        .unwrap();
    let arguments = [
        format!("--rules={}", rules.display()),
        format!("--config.file={}", config.display()),
        "--mode=enforce".to_owned(),
    ];
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (mut in_force, mut of_the_load) = (0, 0);
    for round in 0..KILLS {
        let engine = Engine::start(NAME, &model);
        let daemon = Daemon::start(&storage, &arguments);
        // Reading the past takes a moment, in which nothing is set.
        std::thread::sleep(Duration::from_millis(300 + fastrand::u64(0..1500)));
        daemon.kill();
        drop(engine);
        let left = before.changed();
        in_force += u32::from(!left.is_empty());
        of_the_load +=
            u32::from(left.iter().any(|(setting, _)| setting.ends_with("read_ahead_kb")));
        let daemon = Daemon::start(&storage, &[&format!("--rules={}", rules.display())]);
        daemon.wait_until("undone", |_| before.changed().is_empty());
        daemon.terminate();
        assert_eq!(before.changed(), [], "round {round}: it had left {left:?}");
    }
    println!(
        "{KILLS} kills, {in_force} of them while something was set, {of_the_load} while that was \
         for the load; all is back"
    );
    assert!(in_force > 0, "no kill came while something was set: the test shows nothing");
    if before.0.len() > SETTINGS.len() {
        assert!(of_the_load > 0, "no kill came in a load: the test shows nothing");
    }
}

#[test]
fn real_readahead_of_the_disk_below_a_path_is_throttled_and_restored() {
    if !enabled() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let Some(file) = readahead_of(folder.path()) else {
        eprintln!("skipped: {} is on no disk", folder.path().display());
        return;
    };
    let before = Before::of([file.clone()].into_iter());
    let rules = folder.path().join("rules.yaml");
    let path = folder.path().display();
    let step = format!("throttle_readahead: {{kib: 64, of: ['{path}'], for: 1m}}");
    let rule = "alert: Always, expr: uma_memory_free_bytes > 0";
    let text =
        format!("groups: [{{name: g, rules: [{{{rule}, remedy: {{steps: [{{{step}}}]}}}}]}}]\n");
    fs::write(&rules, text).unwrap();
    let rules = format!("--rules={}", rules.display());
    let daemon = Daemon::start(&folder.path().join("data"), &[&rules, "--mode=enforce"]);
    daemon.wait_until("throttled", |_| read(&file) == "64");
    daemon.terminate();
    assert_eq!(before.changed(), []);
}
