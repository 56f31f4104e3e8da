//! Memory that is leaked for good, as far as anybody can see: 3 GiB of the real machine in no
//! counter of the kernel, under a `/proc` from which whoever holds them is missing, beside a
//! made-up driver. And the same with each other explanation, which is never taken for a leak.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::Value;

use super::enabled;
use super::gate::Holder;
use super::verdict::verdict;
use crate::daemon::{Daemon, history, of_kind};
use crate::gpu::Library;

const HELD: u64 = 3 << 30;

/// What the configuration says.
const LEAKED_AFTER: Duration = Duration::from_secs(30);

/// The first look after something is over shows it: holders are looked for every 5 s.
const SEEN_WITHIN: Duration = Duration::from_secs(15);

/// What may bring memory back is done for whatever is in no counter, and not only where the verdict
/// asks for it: so that nothing but the explanations differs.
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
    /// What it has said, and when.
    said: Vec<(Instant, String)>,
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
        Some(Self { folder, library, daemon, said: Vec::new() })
    }

    /// Looks once more what it says.
    fn look(&mut self) -> String {
        let said = verdict(&self.daemon)["verdict"].as_str().unwrap_or("nothing").to_owned();
        self.said.push((Instant::now(), said.clone()));
        said
    }

    fn place_of(&self, process: u32) -> PathBuf {
        self.folder.path().join("proc").join(process.to_string())
    }

    /// From now on it sees that process.
    fn shows(&self, process: u32) {
        symlink(format!("/proc/{process}"), self.place_of(process)).unwrap();
    }

    fn hides(&self, process: u32) {
        fs::remove_file(self.place_of(process)).unwrap();
    }

    fn has_learned(&self) -> bool {
        let told = history(&self.folder.path().join("data"));
        of_kind(&told, "unaccounted_baseline").next().is_some()
    }

    /// When acts of that kind had ended well.
    fn done(&self, action: &str) -> Vec<Timestamp> {
        let told = history(&self.folder.path().join("data"));
        let done = of_kind(&told, "outcome")
            .filter(|outcome| outcome["action"] == action && outcome["result"] == "done");
        done.map(|outcome| time(&outcome["ended"]["utc"])).collect()
    }

    fn has_tried(&self) -> bool {
        ["drop_caches", "compact_memory"].iter().all(|action| !self.done(action).is_empty())
    }

    /// When it came to that verdict, by its own clock.
    fn judged(&self, as_verdict: &str) -> Vec<Timestamp> {
        let told = history(&self.folder.path().join("data"));
        let judged =
            of_kind(&told, "memory_verdict").filter(|event| event["verdict"] == as_verdict);
        judged.map(|event| time(&event["utc"])).collect()
    }

    fn has_said(&self, as_verdict: &str) -> bool {
        self.said.iter().any(|(_, said)| said == as_verdict)
    }
}

fn time(text: &Value) -> Timestamp {
    text.as_str().unwrap_or_else(|| panic!("{text}")).parse().unwrap()
}

/// The real one, but for its processes, of which this one is left, and for the driver's folder.
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

/// Looks at all of them until it is so, five times a second.
fn until(
    nodes: &mut BTreeMap<&str, Node>,
    what: &str,
    most: Duration,
    is_so: impl Fn(&BTreeMap<&str, Node>) -> bool,
) {
    let deadline = Instant::now() + most;
    loop {
        nodes.values_mut().for_each(|node| drop(node.look()));
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

fn says(nodes: &BTreeMap<&str, Node>, name: &str, expected: &str) -> bool {
    nodes[name].said.last().is_some_and(|(_, said)| said == expected)
}

fn watch_for(nodes: &mut BTreeMap<&str, Node>, time: Duration) {
    let ends = Instant::now() + time;
    until(nodes, "over", time + SEEN_WITHIN, |_| Instant::now() >= ends);
}

#[test]
fn memory_without_owner_is_leaked_after_its_time_and_explained_memory_never() {
    if !enabled() {
        return;
    }
    // What is usual here now, and nearly all of what is to come: what is tried before the last of it
    // has come does not count.
    let storage = tempfile::tempdir().unwrap();
    let first = Daemon::start(storage.path(), &[]);
    let usual = first.metric("uma_memory_unaccounted_bytes");
    first.terminate();
    let mut nodes = BTreeMap::new();
    for name in ["nobody", "holder", "silent", "ghost"] {
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
    // All of them try all that may bring it back.
    until(&mut nodes, "tried", Duration::from_secs(90), |nodes| {
        nodes.values().all(Node::has_tried)
    });
    // Whatever else moves memory on this machine, as what the other nodes try, begins the time anew.
    until(&mut nodes, "leaked", 4 * LEAKED_AFTER, |nodes| says(nodes, "nobody", "leaked"));
    not_before_its_time(&nodes["nobody"]);
    // The others have had as long, and some more.
    watch_for(&mut nodes, Duration::from_secs(10));
    let expected =
        [("nobody", "leaked"), ("holder", "in_use"), ("silent", "unknown"), ("ghost", "unknown")];
    for (name, expected) in expected {
        assert!(says(&nodes, name, expected), "{name}: {}", verdict(&nodes[name].daemon));
        assert_eq!(nodes[name].has_said("leaked"), name == "nobody", "{name}");
    }
    explained_after_all(&mut nodes, &mut holder);
    for (name, node) in nodes {
        assert!(name == "nobody" || !node.has_said("leaked"), "{name}");
        let (took, log) = node.daemon.terminate();
        assert!(took < Duration::from_secs(2), "{name}: {took:?}: {log}");
        node.library.set_script("machine gb10");
    }
}

/// Not a second before its time.
fn not_before_its_time(node: &Node) {
    let tried: Vec<Timestamp> =
        ["drop_caches", "compact_memory"].iter().map(|action| node.done(action)[0]).collect();
    // The first of the two counts: the other may have helped as well.
    let tried = *tried.iter().min().unwrap();
    let leaked = node.judged("leaked")[0];
    let after = Duration::try_from(leaked.duration_since(tried)).unwrap();
    assert!(after >= LEAKED_AFTER, "{after:?} after it was tried");
    let before = node.said.iter().take_while(|(_, said)| said != "leaked");
    let before: Vec<&str> = before.map(|(_, said)| said.as_str()).collect();
    assert!(before.contains(&"reclaimable"), "{before:?}");
    eprintln!("leaked {after:?} after all was tried");
}

/// What explains memory that counts as leaked already ends that.
fn explained_after_all(nodes: &mut BTreeMap<&str, Node>, holder: &mut Holder) {
    nodes["nobody"].shows(holder.id());
    until(nodes, "in use", SEEN_WITHIN, |nodes| says(nodes, "nobody", "in_use"));
    nodes["nobody"].hides(holder.id());
    until(nodes, "held by nobody", SEEN_WITHIN, |nodes| !says(nodes, "nobody", "in_use"));
    // What was tried while somebody held it does not count any more.
    nodes.get_mut("nobody").unwrap().said.clear();
    watch_for(nodes, Duration::from_secs(8));
    assert!(!nodes["nobody"].has_said("leaked"), "{}", verdict(&nodes["nobody"].daemon));
    holder.release(1 << 30);
    until(nodes, "lingering", SEEN_WITHIN, |nodes| says(nodes, "nobody", "lingering"));
    assert!(!nodes["nobody"].has_said("leaked"));
}
