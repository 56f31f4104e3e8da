//! Leaked memory: 3 GiB of the real machine in no counter of the kernel, under a `/proc` without
//! their owner, with a fake driver. Each other explanation is tested too, and never counts as a
//! leak.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::Value;

use super::enabled_nightly;
use super::gate::Holder;
use super::verdict::verdict;
use crate::daemon::{Daemon, history, of_kind};
use crate::gpu::Library;

const HELD: u64 = 3 << 30;

/// Values of the configuration.
const LEAKED_AFTER: Duration = Duration::from_secs(30);

/// The first scan after a change shows it: owners are searched for every 5 s.
const SEEN_WITHIN: Duration = Duration::from_secs(15);

/// Actions that may bring memory back run for all unaccounted memory, and not only on a verdict
/// that asks for them: so only the explanations differ.
const RULES: &str = "\
groups:
- name: leak
  interval: 1s
  rules:
  - alert: MemoryInNoCounter
    expr: uma_memory_unaccounted_bytes > THRESHOLD
    for: 2s
    remedy:
      steps:
      - drop_caches: {what: all, sync: true}
      - compact_memory: {}
      cooldown: 1h
      at_most: {times: 6, per: 6h}
";

/// A daemon on the real memory, with processes and a driver of the test's own.
struct Node {
    folder: tempfile::TempDir,
    library: Library,
    daemon: Daemon,
    /// Verdicts so far, with their times.
    verdicts: Vec<(Instant, String)>,
}

impl Node {
    fn start(threshold: f64) -> Option<Self> {
        let library = Library::new("machine gb10")?;
        let folder = tempfile::tempdir().unwrap();
        fake_proc(&folder.path().join("proc"));
        let path = |name: &str| folder.path().join(name).display().to_string();
        let rules = RULES.replace("THRESHOLD", &format!("{threshold:.0}"));
        fs::write(path("rules.yaml"), rules).unwrap();
        fs::write(path("kmsg"), "").unwrap();
        let seconds = LEAKED_AFTER.as_secs();
        let config = format!("verdict: {{leaked_size: 2GiB, leaked_after: {seconds}s}}\n");
        fs::write(path("umawarden.yaml"), config).unwrap();
        let daemon = Daemon::start(
            &folder.path().join("data"),
            &[
                "--mode=enforce",
                "--gpu.interval=200ms",
                &format!("--config.file={}", path("umawarden.yaml")),
                &format!("--rules={}", path("rules.yaml")),
                &format!("--path.kmsg={}", path("kmsg")),
                &format!("--path.procfs={}", path("proc")),
                &format!("--gpu.library={}", library.path().display()),
            ],
        );
        Some(Self { folder, library, daemon, verdicts: Vec::new() })
    }

    /// Polls the verdict once more.
    fn poll(&mut self) -> String {
        let verdict = verdict(&self.daemon)["verdict"].as_str().unwrap_or("nothing").to_owned();
        self.verdicts.push((Instant::now(), verdict.clone()));
        verdict
    }

    fn path_of(&self, process: u32) -> PathBuf {
        self.folder.path().join("proc").join(process.to_string())
    }

    /// From now on that process is visible to the daemon.
    fn shows(&self, process: u32) {
        symlink(format!("/proc/{process}"), self.path_of(process)).unwrap();
    }

    fn hides(&self, process: u32) {
        fs::remove_file(self.path_of(process)).unwrap();
    }

    fn has_learned(&self) -> bool {
        let entries = history(&self.folder.path().join("data"));
        of_kind(&entries, "unaccounted_baseline").next().is_some()
    }

    /// Times of successful acts of that kind.
    fn done(&self, action: &str) -> Vec<Timestamp> {
        let entries = history(&self.folder.path().join("data"));
        let done = of_kind(&entries, "outcome")
            .filter(|outcome| outcome["action"] == action && outcome["result"] == "done");
        done.map(|outcome| time(&outcome["ended"]["utc"])).collect()
    }

    fn has_tried(&self) -> bool {
        ["drop_caches", "compact_memory"].iter().all(|action| !self.done(action).is_empty())
    }

    /// Time of that verdict, by the daemon's own clock.
    fn times_of(&self, as_verdict: &str) -> Vec<Timestamp> {
        let entries = history(&self.folder.path().join("data"));
        let verdicts =
            of_kind(&entries, "memory_verdict").filter(|event| event["verdict"] == as_verdict);
        verdicts.map(|event| time(&event["utc"])).collect()
    }

    fn has_shown(&self, as_verdict: &str) -> bool {
        self.verdicts.iter().any(|(_, verdict)| verdict == as_verdict)
    }
}

fn time(text: &Value) -> Timestamp {
    text.as_str().unwrap_or_else(|| panic!("{text}")).parse().unwrap()
}

/// The real /proc, but with this one process and a folder for the driver.
fn fake_proc(folder: &std::path::Path) {
    fs::create_dir_all(folder.join("driver/nvidia")).unwrap();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        let is_other = |pid: u32| pid != std::process::id();
        let is_other_process = name.parse().is_ok_and(is_other);
        if !is_other_process && name != "driver" {
            symlink(entry.path(), folder.join(name)).unwrap();
        }
    }
}

/// Polls all of them five times a second until it is so.
fn until(
    nodes: &mut BTreeMap<&str, Node>,
    what: &str,
    most: Duration,
    is_so: impl Fn(&BTreeMap<&str, Node>) -> bool,
) {
    let deadline = Instant::now() + most;
    loop {
        nodes.values_mut().for_each(|node| drop(node.poll()));
        if is_so(nodes) {
            return;
        }
        let now: Vec<_> = nodes
            .iter()
            .map(|(name, node)| format!("{name}: {}\n{}", verdict(&node.daemon), node.daemon.log()))
            .collect();
        assert!(Instant::now() < deadline, "not {what} in {most:?}\n{}", now.join("\n"));
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn shows_verdict(nodes: &BTreeMap<&str, Node>, name: &str, expected: &str) -> bool {
    nodes[name].verdicts.last().is_some_and(|(_, verdict)| verdict == expected)
}

fn watch_for(nodes: &mut BTreeMap<&str, Node>, time: Duration) {
    let ends = Instant::now() + time;
    until(nodes, "over", time + SEEN_WITHIN, |_| Instant::now() >= ends);
}

#[test]
fn memory_without_owner_is_leaked_after_its_time_and_explained_memory_never() {
    if !enabled_nightly() {
        return;
    }
    // The usual level here, and nearly all of the memory to come: attempts before the last of it do
    // not count.
    let storage = tempfile::tempdir().unwrap();
    let first = Daemon::start(storage.path(), &[]);
    let usual = first.metric("uma_memory_unaccounted_bytes");
    first.terminate();
    let mut nodes = BTreeMap::new();
    for name in ["leaking", "holder", "silent", "ghost"] {
        let Some(node) = Node::start(usual + (HELD / 16 * 15) as f64) else { return };
        nodes.insert(name, node);
    }
    until(&mut nodes, "learned", Duration::from_secs(90), |nodes| {
        nodes.values().all(Node::has_learned)
    });
    nodes["silent"].library.set_script("machine gb10\nhang nvmlDeviceGetCount_v2");
    nodes["ghost"].library.set_script("machine gb10\nprocess 4000000 3221225472");
    let mut holder = Holder::of(HELD);
    nodes["holder"].shows(holder.id());
    // All of them try every action that may bring it back.
    until(&mut nodes, "tried", Duration::from_secs(90), |nodes| {
        nodes.values().all(Node::has_tried)
    });
    // Other changes of memory on this machine, as attempts of the other nodes, restart the time.
    until(&mut nodes, "leaked", 4 * LEAKED_AFTER, |nodes| {
        shows_verdict(nodes, "leaking", "leaked")
    });
    assert_not_early(&nodes["leaking"]);
    // The others have had as long, and more.
    watch_for(&mut nodes, Duration::from_secs(10));
    let expected =
        [("leaking", "leaked"), ("holder", "in_use"), ("silent", "unknown"), ("ghost", "unknown")];
    for (name, expected) in expected {
        assert!(shows_verdict(&nodes, name, expected), "{name}: {}", verdict(&nodes[name].daemon));
        assert_eq!(nodes[name].has_shown("leaked"), name == "leaking", "{name}");
    }
    assert_explanations_end_it(&mut nodes, &mut holder);
    for (name, node) in nodes {
        assert!(name == "leaking" || !node.has_shown("leaked"), "{name}");
        let (took, log) = node.daemon.terminate();
        assert!(took < Duration::from_secs(2), "{name}: {took:?}: {log}");
        node.library.set_script("machine gb10");
    }
}

/// Not a second before its time.
fn assert_not_early(node: &Node) {
    let tried: Vec<Timestamp> =
        ["drop_caches", "compact_memory"].iter().map(|action| node.done(action)[0]).collect();
    // The first of the two counts: the other may have helped as well.
    let tried = *tried.iter().min().unwrap();
    let leaked = node.times_of("leaked")[0];
    let after = Duration::try_from(leaked.duration_since(tried)).unwrap();
    assert!(after >= LEAKED_AFTER, "{after:?} after it was tried");
    let before = node.verdicts.iter().take_while(|(_, verdict)| verdict != "leaked");
    let before: Vec<&str> = before.map(|(_, verdict)| verdict.as_str()).collect();
    assert!(before.contains(&"reclaimable"), "{before:?}");
    eprintln!("leaked {after:?} after all was tried");
}

/// An explanation for memory that already counts as leaked ends that.
fn assert_explanations_end_it(nodes: &mut BTreeMap<&str, Node>, holder: &mut Holder) {
    nodes["leaking"].shows(holder.id());
    until(nodes, "in use", SEEN_WITHIN, |nodes| shows_verdict(nodes, "leaking", "in_use"));
    nodes["leaking"].hides(holder.id());
    until(nodes, "without an owner", SEEN_WITHIN, |nodes| {
        !shows_verdict(nodes, "leaking", "in_use")
    });
    // Attempts while the memory had an owner do not count any more.
    nodes.get_mut("leaking").unwrap().verdicts.clear();
    watch_for(nodes, Duration::from_secs(8));
    assert!(!nodes["leaking"].has_shown("leaked"), "{}", verdict(&nodes["leaking"].daemon));
    holder.release(1 << 30);
    until(nodes, "lingering", SEEN_WITHIN, |nodes| shows_verdict(nodes, "leaking", "lingering"));
    assert!(!nodes["leaking"].has_shown("leaked"));
}
