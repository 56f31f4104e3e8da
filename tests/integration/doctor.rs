//! `umawarden doctor` with a fake systemctl.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::daemon::binary;

/// A unit file whose KillMode leaves workers behind.
const UNIT: &str = "\
[Unit]
After=network-online.target

[Service]
ExecStart=/opt/venv/bin/vllm serve /models/big
KillMode=process
";

/// Output of `systemctl show`: a block for each unit, in the order of the arguments.
const SYSTEMCTL: &str = "\
case \"$*\" in
  *Restart*) printf 'Id=chat.service\\nLoadState=loaded\\nNeedDaemonReload=no\\nRestart=always\\n'
    printf 'RestartUSec=30s\\nTimeoutStartUSec=infinity\\nStartLimitIntervalUSec=1h\\n'
    printf 'StartLimitBurst=5\\nKillMode=mixed\\nAfter=network-online.target nvidia.target\\n' ;;
  *) printf 'Id=network-online.target\\nLoadState=loaded\\n\\n'
    printf 'Id=nvidia.target\\nLoadState=not-found\\n' ;;
esac
";

struct Bench(TempDir);

impl Bench {
    fn new() -> Self {
        let bench = Self(TempDir::new().unwrap());
        fs::create_dir(bench.0.path().join("units")).unwrap();
        fs::write(bench.0.path().join("units/chat.service"), UNIT).unwrap();
        fs::write(bench.0.path().join("units/chat@.service"), UNIT).unwrap();
        bench
    }

    /// Findings (check and text) about the unit with a systemctl of that script, and all findings.
    fn found(&self, script: &str) -> (Vec<(String, String)>, Vec<Value>) {
        let program = self.0.path().join("systemctl");
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let path = |name: &str| self.0.path().join(name).display().to_string();
        let output = Command::new(binary())
            .args(["doctor", "--json", "--path.docker-socket=/no/such/socket"])
            .arg(format!("--path.units={}", path("units")))
            .arg(format!("--path.systemctl={}", path("systemctl")))
            .arg(format!("--path.kmsg={}", path("no-kmsg")))
            .arg(format!("--storage.path={}", path("storage")))
            .output()
            .unwrap();
        let lines = String::from_utf8(output.stdout).unwrap();
        let all: Vec<Value> =
            lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let of_unit = all.iter().filter(|one| one["subject"] == "unit chat.service");
        let found = of_unit.map(|one| (text(&one["check"]), text(&one["text"]))).collect();
        (found, all)
    }
}

fn names(found: &[(String, String)]) -> Vec<&str> {
    found.iter().map(|(check, _)| check.as_str()).collect()
}

#[test]
fn units_are_checked_by_their_systemd_state() {
    let bench = Bench::new();
    let (found, all) = bench.found(SYSTEMCTL);
    assert_eq!(names(&found), ["restart_policy", "unit_order"], "{all:#?}");
    assert!(found[0].1.contains("restarts it after 30s"), "{found:?}");
    assert!(found[1].1.contains("nvidia.target") && !found[1].1.contains("online"), "{found:?}");
    // A template has no state without an instance: its file counts.
    let template = all.iter().find(|one| one["subject"] == "unit chat@.service").unwrap();
    assert_eq!(template["check"], "kill_mode");
}

#[test]
fn unit_files_are_checked_if_systemctl_hangs_fails_or_prints_nonsense() {
    let bench = Bench::new();
    for (script, why) in [
        ("exec sleep 60", "did not respond within"),
        ("echo LoadState=loaded; exec sleep 60", "did not respond within"),
        ("exit 1", "show failed"),
        ("exec yes LoadState=loaded", "output of"),
        ("echo Id=a; echo; echo Id=b", "reported 2 units for 1 names"),
        ("echo Id=chat.service", "no LoadState"),
    ] {
        let began = Instant::now();
        let (found, all) = bench.found(script);
        assert!(began.elapsed() < Duration::from_secs(20), "{script}");
        let finding = all.iter().find(|one| one["check"] == "systemd").unwrap_or(&Value::Null);
        assert_eq!(finding["severity"], "unknown", "{script}: {all:#?}");
        assert!(finding["text"].as_str().unwrap().contains(why), "{script}: {finding}");
        assert!(names(&found).contains(&"kill_mode"), "{script}: {found:?}");
    }
}

#[test]
fn paths_of_the_configuration_are_checked_unless_flags_override_them() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name);
    for (name, release) in [("configured", "5.10.0-of-the-file"), ("named", "6.1.0-of-the-flag")] {
        fs::create_dir_all(path(name).join("sys/kernel")).unwrap();
        fs::write(path(name).join("sys/kernel/osrelease"), format!("{release}\n")).unwrap();
    }
    let config = path("umawarden.yaml");
    fs::write(&config, "path: {procfs: configured}\n").unwrap();
    let all = |more: &[String]| {
        let output = Command::new(binary())
            .args(["doctor", "--all", "--json"])
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.path={}", path("storage").display()))
            .args(more)
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let configured = all(&[]);
    assert!(configured.contains("5.10.0-of-the-file"), "{configured}");
    let named = all(&[format!("--path.procfs={}", path("named").display())]);
    assert!(named.contains("6.1.0-of-the-flag"), "{named}");
}

#[test]
fn loaders_of_running_engines_are_found_by_their_command_lines() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name);
    for (pid, line) in [
        ("7", "/app/llama-server\0-m\0/m/x.gguf\0-ngl\099\0"),
        ("8", "/env/bin/python3\0/env/bin/vllm\0preload\0/m\0"),
        ("9", "/bin/sh\0"),
    ] {
        fs::create_dir_all(path("proc").join(pid)).unwrap();
        fs::write(path("proc").join(pid).join("cmdline"), line).unwrap();
    }
    let output = Command::new(binary())
        .args(["doctor", "--all", "--json", "--path.docker-socket=/no/such/socket"])
        .arg(format!("--path.procfs={}", path("proc").display()))
        .arg(format!("--path.units={}", path("units").display()))
        .arg(format!("--path.kmsg={}", path("no-kmsg").display()))
        .arg(format!("--storage.path={}", path("storage").display()))
        .output()
        .unwrap();
    let lines = String::from_utf8(output.stdout).unwrap();
    let all: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let found: Vec<&Value> = all.iter().filter(|one| one["check"] == "loader").collect();
    let [llama, costs, holder] = found[..] else { panic!("{all:#?}") };
    assert_eq!(
        (&llama["severity"], &llama["subject"]),
        (&Value::from("warning"), &Value::from("llama-server (pid 7)"))
    );
    assert!(llama["fix"].as_str().unwrap().contains("--direct-io"), "{llama}");
    assert_eq!(
        (&llama["id"], &llama["certainty"]),
        (&"llama-direct-io".into(), &"measured".into())
    );
    assert_eq!((&costs["severity"], &costs["subject"]), (&"ok".into(), &llama["subject"]));
    assert_eq!(
        (&holder["severity"], &holder["subject"]),
        (&Value::from("ok"), &Value::from("vllm preload (pid 8)"))
    );
}

/// A node in a folder: its procfs, and its units.
fn node(folder: &Path, more: &[&str]) -> (Option<i32>, Vec<Value>, String) {
    let path = |name: &str| folder.join(name).display().to_string();
    let output = Command::new(binary())
        .args(["doctor", "--all", "--json", "--path.docker-socket=/no/such/socket"])
        .arg(format!("--path.procfs={}", path("proc")))
        .arg(format!("--path.sysfs={}", path("sys")))
        .arg(format!("--path.units={}", path("units")))
        .arg(format!("--path.systemctl={}", path("no-systemctl")))
        .arg(format!("--path.kmsg={}", path("no-kmsg")))
        .arg(format!("--storage.path={}", path("storage")))
        .args(more)
        .output()
        .unwrap();
    let lines = String::from_utf8(output.stdout).unwrap();
    let all = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (output.status.code(), all, String::from_utf8(output.stderr).unwrap())
}

fn put(folder: &Path, name: &str, text: &str) {
    let path = folder.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

#[test]
fn a_units_script_is_read_and_a_fifo_or_a_device_is_not_opened() {
    let folder = TempDir::new().unwrap();
    let script = folder.path().join("sglang-fg.sh");
    let exec = script.display().to_string();
    put(
        folder.path(),
        "sglang-fg.sh",
        "#!/bin/bash\nMODEL=$(head -1 /data/model)\nexec docker run --gpus all \\\n  \
         lmsysorg/sglang:spark python3 -m sglang.launch_server --model-path \"$MODEL\"\n",
    );
    put(
        folder.path(),
        "units/chat.service",
        &format!("[Service]\nExecStart={exec}\nRestart=always\nKillMode=process\n"),
    );
    put(folder.path(), "units/nvidia-gpu-reset.target", "[Unit]\n");
    put(folder.path(), "units/a.service", "[Service]\nExecStart=/dev/zero\n");
    let fifo = folder.path().join("fifo");
    let made = Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    let text = format!("[Service]\nExecStart=/bin/sh {}\n", fifo.display());
    put(folder.path(), "units/b.service", &text);
    let began = Instant::now();
    let (_, all, _) = node(folder.path(), &[]);
    assert!(began.elapsed() < Duration::from_secs(9), "nothing waits for a writer");
    let of = |subject: &str| -> Vec<(String, String)> {
        let found = all.iter().filter(|one| one["subject"] == subject);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        found.map(|one| (text(&one["check"]), text(&one["text"]))).collect()
    };
    let chat = of("unit chat.service");
    let checks = ["kill_mode", "loader", "gpu_reset", "restart_policy", "start_limit"];
    for check in checks {
        assert!(chat.iter().any(|(found, _)| found == check), "{check}: {chat:#?}");
    }
    let (_, unseen) = chat.iter().find(|(check, _)| check == "unit_script").unwrap();
    assert_eq!(
        *unseen,
        format!("{exec}: line 3: $MODEL is not known: $(…) is not evaluated in line 2")
    );
    let (_, reset) = chat.iter().find(|(check, _)| check == "gpu_reset").unwrap();
    assert!(reset.contains("not ordered after nvidia-gpu-reset.target"), "{reset}");
    for (subject, what) in [("unit a.service", "a device"), ("unit b.service", "a FIFO")] {
        let [(check, text)] = &of(subject)[..] else { panic!("{all:#?}") };
        assert!(check == "unit_script" && text.contains(what), "{text}");
    }
}

#[test]
fn the_version_of_a_running_engine_decides_and_a_file_replaces_the_advice() {
    let folder = TempDir::new().unwrap();
    put(folder.path(), "proc/7/cmdline", "/env/bin/python3\0/env/bin/vllm\0serve\0m\0");
    put(folder.path(), "proc/7/environ", "A=b\0");
    let maps = "7f00-7f01 r-xp 0 fd:01 1 /env/lib/python3.12/site-packages/torch/t.so\n";
    put(folder.path(), "proc/7/maps", maps);
    let packages = "proc/7/root/env/lib/python3.12/site-packages";
    put(folder.path(), &format!("{packages}/vllm-0.23.0.dist-info/METADATA"), "");
    let advice = "advice:\n- id: own\n  when:\n    engines: [vllm]\n    packages: {vllm: {before: \
                  0.24}}\n  severity: problem\n  cause: breaks\n  cure: update\n  source: \
                  https://example.com\n  certainty: documented\n";
    put(folder.path(), "advice.yaml", advice);
    let file = format!("--advice={}", folder.path().join("advice.yaml").display());
    let (code, all, _) = node(folder.path(), &[&file]);
    let found = all.iter().find(|one| one["id"] == "own").unwrap_or_else(|| panic!("{all:#?}"));
    assert_eq!(found["text"], "vllm 0.23.0 breaks (documented: https://example.com)");
    assert_eq!((&found["subject"], code), (&"vLLM (pid 7)".into(), Some(3)));
    put(folder.path(), "advice.yaml", &advice.replace("0.24", "latest"));
    let (code, all, error) = node(folder.path(), &[&file]);
    assert_eq!((code, all.len()), (Some(2), 0));
    assert!(error.contains("advice.yaml:5:31: ") && error.contains("\"latest\""), "{error}");
    let (code, _, error) = node(folder.path(), &["--advice=/dev/zero"]);
    assert_eq!(code, Some(2));
    assert!(error.contains("cannot read the advice /dev/zero: it is a device"), "{error}");
    // What is printed can be given back.
    let printed = Command::new(binary()).args(["print", "advice"]).output().unwrap();
    put(folder.path(), "advice.yaml", &String::from_utf8(printed.stdout).unwrap());
    assert_ne!(node(folder.path(), &[&file]).0, Some(2));
}
