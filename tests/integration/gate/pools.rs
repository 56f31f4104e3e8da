//! `umawarden gate` on machines whose memory has several places.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::daemon::binary;
use crate::gpu::Library;

/// A machine of `tests/fixtures/machines`, with its NVML.
struct Machine {
    folder: PathBuf,
    library: Library,
    config: tempfile::NamedTempFile,
}

impl Machine {
    /// `None` without a C compiler.
    fn new(name: &str) -> Option<Self> {
        let folder =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/machines").join(name);
        let script = fs::read_to_string(folder.join("nvml.script")).unwrap();
        let library = Library::new(&script)?;
        let config = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
        let text = format!("gpu: {{library: {}}}\n", library.path().display());
        fs::write(config.path(), text).unwrap();
        Some(Self { folder, library, config })
    }

    fn command(&self, command: &str, arguments: &str) -> Command {
        let mut own = Command::new(binary());
        own.arg(command)
            .args(arguments.split_whitespace())
            .arg(format!("--config.file={}", self.config.path().display()))
            .arg(format!("--path.procfs={}", self.folder.join("proc").display()))
            .arg(format!("--path.sysfs={}", self.folder.join("sys").display()))
            .env_remove("CUDA_VISIBLE_DEVICES")
            .stdin(Stdio::null());
        own
    }

    fn gate(&self, arguments: &str) -> (i32, String) {
        all(&self.command("gate", &format!("--timeout=0 {arguments}")).output().unwrap())
    }
}

fn all(output: &Output) -> (i32, String) {
    let text = [&output.stdout[..], &output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(text).unwrap())
}

/// Each machine, a request, the exit code and words of the answer.
#[test]
fn the_gate_looks_where_the_machines_engines_put_their_weights() {
    let cases: [(&str, &str, i32, &str); 22] = [
        // 37 MiB of HBM are free, and 20 GB of LPDDR beside 400 GB of cache.
        ("gh200-numa", "--need=90GiB", 1, "gpu0: 32.0 MiB available, 90.0 GiB needed"),
        ("gh200-numa", "--need=300GiB", 2, "gpu0: there is never 300.0 GiB"),
        ("gh200-numa", "--need=90GiB --pool=host", 0, "available in host, 90.0 GiB needed"),
        ("gh200-numa", "--need=16MiB --host-need=300GiB", 0, "available in gpu0"),
        ("gh200-numa", "--need=16MiB --host-need=450GiB", 1, "host: "),
        (
            "gh200-numa",
            "--need=1GiB --pool=gpu1",
            2,
            "there is no pool \"gpu1\"; this node has host, gpu0",
        ),
        ("gh200-cdmm", "--need=15GiB", 0, "15.8 GiB available in gpu0"),
        ("gh200-cdmm", "--need=60GiB", 1, "gpu0: 15.8 GiB available, 60.0 GiB needed"),
        ("gh200-cdmm", "--need=60GiB --pool=host", 0, "available in host"),
        // Each of four could be the engine's, and gpu3 has least.
        ("gb200", "--need=110GiB", 0, "117.2 GiB available in gpu3"),
        ("gb200", "--need=150GiB", 1, "gpu2: 136.7 GiB available, 150.0 GiB needed"),
        ("gb200", "--need=150GiB --pool=gpu0", 0, "175.8 GiB available in gpu0"),
        ("gb200", "--need=440GiB --pool=gpu0,gpu1,gpu2,gpu3", 0, "in gpu0, gpu1, gpu2, gpu3"),
        ("gb200", "--need=600GiB", 2, "name the GPUs that share it with --pool gpu0,gpu1"),
        ("thor", "--need=90GiB", 0, "needed"),
        ("thor", "--need=60GiB --host-need=60GiB", 1, "120.0 GiB needed"),
        ("orin", "--need=12GiB", 0, "needed"),
        ("n1x", "--need=20GiB", 1, "where engines put their memory is not known here"),
        ("n1x", "--need=20GiB --pool=host", 0, "available in host"),
        ("workstation", "--need=30GiB", 0, "30.5 GiB available in gpu0"),
        ("workstation", "--need=60GiB", 2, "gpu0: there is never 60.0 GiB"),
        ("workstation", "--need=20GiB --host-need=60GiB", 0, "available in gpu0"),
    ];
    let mut last: Option<(&str, Machine)> = None;
    for (name, arguments, code, words) in cases {
        if last.as_ref().is_none_or(|(of, _)| *of != name) {
            let Some(machine) = Machine::new(name) else { return };
            last = Some((name, machine));
        }
        let (_, machine) = last.as_ref().unwrap();
        let (exit, text) = machine.gate(arguments);
        assert_eq!(exit, code, "{name} {arguments}: {text}");
        assert!(text.contains(words), "{name} {arguments}: {text}");
    }
}

#[test]
fn one_pool_has_no_label_and_needs_no_driver() {
    let Some(thor) = Machine::new("thor") else { return };
    let (exit, text) = thor.gate("--need=200GiB");
    assert_eq!(exit, 2, "{text}");
    assert!(!text.contains("host") && !text.contains("pool"), "{text}");
    // The driver's library is not even loaded: a GB10's number on the PCI bus says enough.
    assert_eq!(thor.library.calls("nvmlInit_v2"), 0);
}

#[test]
fn a_gpu_that_is_visible_alone_is_the_engines() {
    let Some(machine) = Machine::new("gb200") else { return };
    let mut command = machine.command("gate", "--timeout=0 --need=150GiB --json");
    let output = command.env("CUDA_VISIBLE_DEVICES", "1").output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["open"], &report["pool"]), (&true.into(), &"gpu1".into()), "{report}");
    assert_eq!(report["pools"].as_array().unwrap().len(), 5);
    assert_eq!(report["engines_use"], Value::Null, "it is of the pools, not of the response");
}

#[test]
fn a_driver_that_hangs_or_fails_makes_the_answer_unknown_and_not_wrong() {
    let Some(machine) = Machine::new("gh200-cdmm") else { return };
    for (script, words) in [
        ("error nvmlInit_v2 9", "the NVIDIA driver does not report its memory"),
        (
            "gpu NVIDIA GH200 480GB|97871|81000|16200|-\nerror nvmlDeviceGetMemoryInfo_v2 15",
            "cannot be read",
        ),
        ("gpu \u{1b}[31mX|10|5|5|-", "is no kind that is known here"),
    ] {
        machine.library.set_script(script);
        let (exit, text) = machine.gate("--need=1GiB");
        assert_eq!(exit, 1, "{script}: {text}");
        assert!(text.contains(words), "{script}: {text}");
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }
}

#[test]
fn a_model_must_fit_the_gpus_own_memory() {
    let fit = |machine: &Machine, arguments: &str| {
        all(&machine.command("fit", arguments).output().unwrap())
    };
    let Some(gh200) = Machine::new("gh200-cdmm") else { return };
    // LPDDR has 420 GB free, and HBM 16.
    let (exit, text) = fit(&gh200, "--weights=60GiB");
    assert_eq!(exit, 1, "{text}");
    let (exit, text) = fit(&gh200, "--weights=300GiB");
    assert_eq!(exit, 1, "{text}");
    let Some(gb200) = Machine::new("gb200") else { return };
    let (exit, text) = fit(&gb200, "--weights=300GiB");
    assert_eq!(exit, 1, "one GPU: {text}");
    let (exit, text) = fit(&gb200, "--weights=300GiB --pool=gpu0,gpu1,gpu2,gpu3 --json");
    assert_eq!(exit, 0, "{text}");
    let report: Value = serde_json::from_str(&text).unwrap();
    let nodes = report["nodes"].as_array().unwrap();
    assert!(nodes[3]["node"].as_str().unwrap().ends_with(" gpu3"), "{report}");
    assert_eq!(nodes.len(), 4);
    let Some(n1x) = Machine::new("n1x") else { return };
    let (exit, text) = fit(&n1x, "--weights=20GiB");
    assert_eq!(exit, 1, "{text}");
    assert!(text.contains("not known here"), "{text}");
    let (exit, text) = fit(&n1x, "--weights=12GiB --pool=host");
    assert_eq!(exit, 0, "{text}");
}

/// A helper that queries the driver while the lease is there.
#[test]
fn the_process_that_queries_the_driver_is_none_of_the_commands() {
    let Some(machine) = Machine::new("workstation") else { return };
    let folder = tempfile::tempdir().unwrap();
    let config = format!(
        "gpu: {{library: {}}}\nstarts: {{folder: {}}}\n",
        machine.library.path().display(),
        folder.path().display()
    );
    fs::write(machine.config.path(), config).unwrap();
    let mut launch = Command::new(binary());
    launch.args(["launch", "--need=8GiB", "--timeout=20s", "--name=card"]);
    launch.arg(format!("--config.file={}", machine.config.path().display()));
    launch.arg(format!("--path.sysfs={}", machine.folder.join("sys").display()));
    launch.args(["--", "sh", "-c", "sleep 3"]).env_remove("CUDA_VISIBLE_DEVICES");
    let launched = launch.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let own = format!("PPid:\t{}\n", launched.id());
    let children = || {
        let pids = fs::read_dir("/proc").unwrap().flatten();
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let read = |pid: u32, file| fs::read_to_string(format!("/proc/{pid}/{file}")).ok();
        let is_child = |pid: &u32| read(*pid, "status").is_some_and(|text| text.contains(&own));
        let command = |pid| (pid, read(pid, "cmdline").unwrap_or_default());
        pids.filter(is_child).map(command).collect::<Vec<_>>()
    };
    let began = Instant::now();
    let helper = loop {
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", children());
        let all = children();
        let helper = all.iter().find(|(_, command)| command.contains("nvml-child"));
        if let (Some((pid, _)), true) = (helper, all.iter().any(|(_, it)| it.contains("sleep"))) {
            break *pid;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    std::thread::sleep(Duration::from_millis(500));
    kill_process(Pid::from_raw(i32::try_from(helper).unwrap()).unwrap(), Signal::KILL).unwrap();
    let (code, text) = all(&launched.wait_with_output().unwrap());
    assert_eq!(code, 0, "{text}");
    assert!(!text.contains("kill"), "{text}");
}
