//! `umawarden tune`, on files in place of those of a node.

use std::fs;
use std::path::PathBuf;
use std::process::Output;

use assert_cmd::Command;
use serde_json::Value;

struct Node {
    folder: tempfile::TempDir,
}

/// The kernel's defaults on a machine of 128 GB.
const DEFAULTS: [(&str, &str); 9] = [
    ("min_free_kbytes", "0090112"),
    ("watermark_scale_factor", "010"),
    ("watermark_boost_factor", "15000"),
    ("compaction_proactiveness", "20"),
    ("swappiness", "60"),
    ("dirty_ratio", "20"),
    ("dirty_bytes", "0"),
    ("dirty_background_ratio", "10"),
    ("dirty_background_bytes", "0"),
];

impl Node {
    /// A DGX Spark with so much memory available.
    fn new(available_gib: u64) -> Self {
        let node = Self { folder: tempfile::tempdir().unwrap() };
        fs::create_dir_all(node.path("proc/sys/vm")).unwrap();
        fs::create_dir_all(node.path("sys/class/dmi/id")).unwrap();
        fs::create_dir(node.path("sysctl.d")).unwrap();
        fs::write(node.path("sys/class/dmi/id/product_name"), "NVIDIA_DGX_Spark\n").unwrap();
        let meminfo = format!(
            "MemTotal: {} kB\nMemAvailable: {} kB\nActive(file): 1000 kB\nInactive(file): 1000 kB\n",
            121_u64 << 20,
            available_gib << 20
        );
        fs::write(node.path("proc/meminfo"), meminfo).unwrap();
        for (name, value) in DEFAULTS {
            node.set(name, value);
        }
        node
    }

    fn path(&self, below: &str) -> PathBuf {
        self.folder.path().join(below)
    }

    fn file(&self) -> PathBuf {
        self.path("sysctl.d/90-umawarden.conf")
    }

    fn set(&self, name: &str, value: &str) {
        fs::write(self.path("proc/sys/vm").join(name), format!("{value}\n")).unwrap();
    }

    fn tune(&self, arguments: &[&str]) -> Output {
        Command::cargo_bin("umawarden")
            .unwrap()
            .arg("tune")
            .arg(format!("--path.procfs={}", self.path("proc").display()))
            .arg(format!("--path.sysfs={}", self.path("sys").display()))
            .args(arguments)
            .output()
            .unwrap()
    }

    fn persist(&self, more: &[&str]) -> Output {
        let file = format!("--file={}", self.file().display());
        self.tune(&[&["--persist", &file], more].concat())
    }
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

fn printed(output: &Output) -> String {
    let (out, error) = (&output.stdout, &output.stderr);
    String::from_utf8_lossy(out).into_owned() + &String::from_utf8_lossy(error)
}

#[test]
fn kernel_defaults_are_reported_as_unsuitable_with_the_reason() {
    let node = Node::new(118);
    let output = node.tune(&["--check", "--json"]);
    assert_eq!(output.status.code(), Some(1), "{}", printed(&output));
    let report = json(&output);
    assert_eq!((&report["profile"], &report["fits"]), (&"dgx-spark".into(), &false.into()));
    let boost = report["settings"].as_array().unwrap().iter();
    let boost = boost.clone().find(|row| row["name"] == "vm.watermark_boost_factor").unwrap();
    assert_eq!((&boost["now"], &boost["profile"]), (&15_000.into(), &0.into()));
    assert_eq!(boost["source"], "measured");
    assert!(boost["why"].as_str().unwrap().contains("15 GiB"));
    let output = node.tune(&[]);
    assert_eq!(output.status.code(), Some(0), "a check changes nothing");
    let text = printed(&output);
    assert!(text.contains("! vm.watermark_boost_factor"), "{text}");
    assert!(text.contains("60         10  0 to 60             guess"), "{text}");
    assert!(text.contains("; guess, argued, but not measured."), "{text}");
}

#[test]
fn unsuitable_settings_are_changed_and_suitable_ones_stay() {
    let node = Node::new(118);
    // A file, unlike a sysctl, keeps the rest of a longer value.
    node.set("watermark_boost_factor", "7");
    let output = node.tune(&["--apply", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", printed(&output));
    let applied = &json(&output)["applied"];
    assert_eq!(applied["vm.min_free_kbytes"], 1_048_576);
    assert_eq!(applied.get("vm.swappiness"), None);
    let read = |name: &str| fs::read_to_string(node.path("proc/sys/vm").join(name)).unwrap();
    assert_eq!(read("min_free_kbytes").trim(), "1048576");
    assert_eq!(read("swappiness").trim(), "60");
    assert_eq!(node.tune(&["--check"]).status.code(), Some(0));
}

#[test]
fn an_unwritable_setting_is_reported_and_the_others_are_set() {
    let node = Node::new(118);
    let file = node.path("proc/sys/vm/watermark_boost_factor");
    fs::remove_file(&file).unwrap();
    let output = node.tune(&["--json"]);
    let missing = json(&output)["settings"].to_string();
    assert!(missing.contains("\"missing\""), "this kernel does not have it: {missing}");
    // A setting of the kernel alone: it has a number, and is read-only for every user.
    std::os::unix::fs::symlink("/proc/sys/kernel/ngroups_max", &file).unwrap();
    let output = node.tune(&["--apply", "--json"]);
    assert_eq!(output.status.code(), Some(2), "{}", printed(&output));
    let failed = json(&output)["failed"].to_string();
    assert!(failed.contains("cannot set vm.watermark_boost_factor to 0"), "{failed}");
}

#[test]
fn the_file_is_rewritten_unless_it_was_edited() {
    let node = Node::new(118);
    for _ in 0..2 {
        let output = node.persist(&[]);
        assert_eq!(output.status.code(), Some(0), "{}", printed(&output));
    }
    let text = fs::read_to_string(node.file()).unwrap();
    assert!(text.contains("\nvm.min_free_kbytes = 1048576\n"), "{text}");
    assert!(text.contains("\nvm.swappiness = 60\n"), "what fits stays: {text}");
    let changed = text.replace("= 60", "= 1");
    fs::write(node.file(), &changed).unwrap();
    let output = node.persist(&[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        printed(&output).contains("was changed since: nothing is written"),
        "{}",
        printed(&output)
    );
    assert_eq!(fs::read_to_string(node.file()).unwrap(), changed);
    let output = node.persist(&["--force"]);
    assert_eq!(output.status.code(), Some(0), "{}", printed(&output));
    assert!(printed(&output).contains("what was there is kept as"), "{}", printed(&output));
    assert_eq!(fs::read_to_string(node.file()).unwrap(), text);
    let kept = node.path("sysctl.d/90-umawarden.conf.before-umawarden");
    assert_eq!(fs::read_to_string(kept).unwrap(), changed);
    assert_eq!(fs::read_dir(node.path("sysctl.d")).unwrap().count(), 2, "nothing else is left");
}

#[test]
fn a_link_or_folder_in_place_of_the_file_is_not_overwritten() {
    let node = Node::new(118);
    let elsewhere = node.path("elsewhere.conf");
    fs::write(&elsewhere, "vm.swappiness = 1\n").unwrap();
    std::os::unix::fs::symlink(&elsewhere, node.file()).unwrap();
    assert_eq!(node.persist(&[]).status.code(), Some(2));
    fs::remove_file(node.file()).unwrap();
    fs::create_dir(node.file()).unwrap();
    assert_eq!(node.persist(&["--force"]).status.code(), Some(2));
    assert_eq!(fs::read_to_string(elsewhere).unwrap(), "vm.swappiness = 1\n");
}

#[test]
fn a_later_file_that_overrides_a_setting_is_reported() {
    let node = Node::new(118);
    fs::write(node.path("sysctl.d/99-other.conf"), "vm.dirty_ratio=40\nvm.swappiness=60\n")
        .unwrap();
    fs::write(node.path("sysctl.d/10-other.conf"), "vm.dirty_ratio=41\n").unwrap();
    let output = node.persist(&["--json"]);
    let warnings = json(&output)["warnings"].to_string();
    assert!(warnings.contains("99-other.conf is read later and sets vm.dirty_ratio to 40"));
    assert!(!warnings.contains("swappiness") && !warnings.contains("to 41"), "{warnings}");
}

#[test]
fn a_reserve_that_keeps_vllm_from_starting_is_a_warning() {
    let warnings = |available, share: &str| {
        let output = Node::new(available).tune(&["--json", "--gpu-memory-utilization", share]);
        json(&output)["warnings"].to_string()
    };
    let warning = warnings(115, "0.92");
    let refusal = "vLLM with --gpu-memory-utilization 0.92 then refuses to start below 111.3 GiB";
    assert!(warning.contains(refusal), "{warning}");
    assert_eq!(warnings(118, "0.90"), "[]");
    assert!(warnings(90, "0.92").contains("refuses already now"));
}

/// vLLM's share is of the GPU's memory there, which these settings do not touch.
#[test]
fn a_gpu_with_memory_of_its_own_needs_no_such_warning() {
    let node = Node::new(90);
    let device = node.path("sys/bus/pci/devices/0009:01:00.0");
    fs::create_dir_all(&device).unwrap();
    for (file, text) in [("class", "0x030200\n"), ("vendor", "0x10de\n"), ("device", "0x2342\n")] {
        fs::write(device.join(file), text).unwrap();
    }
    assert_eq!(json(&node.tune(&["--json"]))["warnings"].to_string(), "[]");
}

#[test]
fn unusable_arguments_exit_2_with_the_reason() {
    let node = Node::new(118);
    for (arguments, expected) in [
        (&["--profile", "nope"][..], "there is no profile nope"),
        (&["--check", "--apply"], "cannot be used with"),
        (&["--file", "/tmp/x"], "--persist"),
        (&["--gpu-memory-utilization", "92"], "no share of all memory"),
    ] {
        let output = node.tune(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(printed(&output).contains(expected), "{arguments:?}: {}", printed(&output));
    }
    let small = "MemTotal: 4000000 kB\nMemAvailable: 1 kB\n";
    fs::write(node.path("proc/meminfo"), small).unwrap();
    let output = node.tune(&["--profile", "gh200"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(printed(&output).contains("more than a quarter"), "{}", printed(&output));
    fs::write(node.path("proc/meminfo"), "nothing\n").unwrap();
    let output = node.tune(&[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        printed(&output).contains("check that --path.procfs is a procfs"),
        "{}",
        printed(&output)
    );
    assert!(printed(&Node::new(1).tune(&["--profile", "list"])).contains("jetson-64"));
    let listed = printed(&Node::new(1).tune(&["--profile", "list", "--json"]));
    assert!(listed.starts_with(r#"{"profiles":[{"name":"#), "{listed}");
}
