use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::model::{EngineKind, KernelEvent};

const GIB: u64 = 1 << 30;

/// A node on which nothing is wrong.
pub(super) fn well() -> Facts {
    Facts {
        memory: Known::Is((121 * GIB, 0)),
        kernel: Known::Is("6.17.0-1004-nvidia".to_owned()),
        driver: Known::Is(
            "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release Build"
                .to_owned(),
        ),
        has_pressure: Known::Is(true),
        kernel_log: Known::Is(Vec::new()),
        settings: Known::Is(("gb10".to_owned(), Vec::new())),
        lacks: Known::Is(Vec::new()),
        has_daemon: Known::Is(true),
        engines: Known::Is(Vec::new()),
        containers: Known::Is(Vec::new()),
        units: Known::Is((Vec::new(), BTreeSet::new())),
        systemd: Known::Absent,
    }
}

fn worst(facts: &Facts, check: &str) -> Verdict {
    let findings = examine(facts);
    let of_check = findings.iter().filter(|finding| finding.check == check);
    of_check.map(|finding| finding.verdict).max().unwrap_or_else(|| panic!("no {check}"))
}

#[test]
fn a_node_that_is_well_has_no_findings_and_what_is_wrong_stands_first() {
    let findings = examine(&well());
    assert!(findings.iter().all(|finding| finding.verdict == Verdict::Ok), "{findings:#?}");
    let ill = Facts {
        memory: Known::Is((121 * GIB, 16 * GIB)),
        kernel_log: Known::Not("no permission".to_owned()),
        ..well()
    };
    let verdicts: Vec<Verdict> = examine(&ill).iter().map(|finding| finding.verdict).collect();
    assert_eq!(verdicts[..2], [Verdict::Problem, Verdict::Warning]);
    assert!(verdicts.is_sorted_by(|one, other| one >= other));
}

#[test]
fn an_engine_that_is_not_proven_to_be_what_it_claims_is_told() {
    let read = |text: &str| {
        let engines: Vec<EngineFacts> = serde_json::from_str(text).unwrap();
        examine(&Facts { engines: Known::Is(engines), ..well() })
    };
    // As the daemon tells of them, shortened.
    let told = read(include_str!("../../tests/fixtures/doctor/engines-unproven.json"));
    let told: Vec<&Finding> = told.iter().filter(|one| one.check == "identity").collect();
    let [key, container] = told[..] else { panic!("{told:#?}") };
    assert_eq!(key.verdict, Verdict::Warning);
    assert_eq!(key.subject.as_deref(), Some("engine chat"));
    assert!(key.says.contains("queried without its key: pid 4711 runs as user 65534"), "{key:?}");
    assert!(key.fix.as_ref().unwrap().contains("user:"), "{key:?}");
    assert_eq!(container.subject.as_deref(), Some("engine coder"));
    assert!(container.says.contains("container 4f1c0ddc6a0b, and neither"), "{container:?}");
    let well_told = read(include_str!("../../tests/fixtures/doctor/engines-proven.json"));
    assert!(well_told.iter().all(|one| one.verdict == Verdict::Ok), "{well_told:#?}");
}

#[test]
fn whatever_is_wrong_comes_with_what_to_do() {
    let event = |kind| Event { kind, utc: None, seq: None };
    let xid = |xid, recovery| KernelEvent::Xid {
        xid,
        pci: "000f:01:00".to_owned(),
        gpu_instance: None,
        compute_instance: None,
        pid: None,
        process: None,
        recovery,
    };
    let misfit = Misfit { name: Sysctl::MinFreeKbytes, now: 67_584, wanted: 1 << 20 };
    let lack = |is_wanted_now| Lack {
        what: "action drop_caches".to_owned(),
        remedy: "run as root".to_owned(),
        is_wanted_now,
    };
    let log = |kind| Facts { kernel_log: Known::Is(vec![event(kind)]), ..well() };
    let driver = |version: &str| Facts {
        driver: Known::Is(format!("NVRM version: NVIDIA UNIX Open Kernel Module  {version}  R")),
        ..well()
    };
    let kernel = |release: &str| Facts { kernel: Known::Is(release.to_owned()), ..well() };
    let table = [
        ("swap", Verdict::Warning, Facts { memory: Known::Is((GIB, 1)), ..well() }),
        (
            "settings",
            Verdict::Warning,
            Facts { settings: Known::Is(("gb10".to_owned(), vec![misfit])), ..well() },
        ),
        ("pressure", Verdict::Warning, Facts { has_pressure: Known::Is(false), ..well() }),
        ("kernel", Verdict::Warning, kernel("6.2.0")),
        ("kernel", Verdict::Ok, kernel("6.5.0-14-generic")),
        ("kernel", Verdict::CannotTell, kernel("unknown")),
        ("driver", Verdict::Warning, driver("590.44.01")),
        ("driver", Verdict::Ok, driver("580.95.05")),
        ("driver", Verdict::CannotTell, driver("none")),
        ("driver", Verdict::Ok, Facts { driver: Known::Absent, ..well() }),
        ("daemon", Verdict::Warning, Facts { has_daemon: Known::Is(false), ..well() }),
        ("kernel_log", Verdict::Problem, log(KernelEvent::UvmFatal.into())),
        (
            "kernel_log",
            Verdict::Problem,
            log(xid(154, Some(crate::model::Recovery::NodeReboot)).into()),
        ),
        ("kernel_log", Verdict::Ok, log(xid(154, Some(crate::model::Recovery::None)).into())),
        ("kernel_log", Verdict::Problem, log(xid(169, None).into())),
        ("kernel_log", Verdict::Problem, log(xid(79, None).into())),
        ("kernel_log", Verdict::Ok, log(xid(31, None).into())),
        ("permissions", Verdict::Problem, Facts { lacks: Known::Is(vec![lack(true)]), ..well() }),
        ("permissions", Verdict::Warning, Facts { lacks: Known::Is(vec![lack(false)]), ..well() }),
        (
            "containers",
            Verdict::CannotTell,
            Facts { containers: Known::Not("permission denied".to_owned()), ..well() },
        ),
        ("containers", Verdict::Ok, Facts { containers: Known::Absent, ..well() }),
    ];
    for (check, verdict, facts) in table {
        assert_eq!(worst(&facts, check), verdict, "{check}: {:#?}", examine(&facts));
        for finding in examine(&facts) {
            let is_wrong = finding.verdict >= Verdict::Warning;
            assert_eq!(finding.fix.is_some(), is_wrong, "{finding:?}");
        }
    }
}

/// What Docker 28.2.2 answered for containers that were made for it.
const CONTAINERS: &str = include_str!("../../tests/fixtures/doctor/containers-28.2.2.json");

fn recorded() -> Vec<ContainerFacts> {
    let told: Vec<Value> = serde_json::from_str(CONTAINERS).unwrap();
    told.iter().map(|one| ContainerFacts::read(one).unwrap()).collect()
}

fn with(containers: Vec<ContainerFacts>) -> Facts {
    Facts { containers: Known::Is(containers), ..well() }
}

#[test]
fn real_containers_are_judged_by_what_docker_would_do_with_them() {
    let findings = |name: &str| {
        let one = recorded().into_iter().find(|one| one.name == name).unwrap();
        let found = examine(&with(vec![one]));
        let of_it = found.into_iter().filter(|one| one.subject.is_some());
        of_it.map(|one| (one.check, one.verdict)).collect::<Vec<_>>()
    };
    use Verdict::{Problem, Warning};
    assert_eq!(findings("racing"), [("restart_policy", Warning)]);
    assert_eq!(findings("liar"), [("restart_policy", Problem)], "vLLM ends with 0");
    assert_eq!(findings("removed"), [("auto_remove", Warning)], "it has the GPU");
    assert_eq!(findings("shared"), [("shm_size", Problem), ("health_check", Warning)]);
    assert_eq!(findings("held"), [("restart_policy", Problem)], "two would start it");
    assert_eq!(findings("patient"), [("health_check", Warning)], "20 s, when it is paused");
    assert_eq!(findings("good"), []);
    assert_eq!(findings("database"), [], "it is no engine");
}

#[test]
fn what_a_container_runs_is_known_by_its_command_or_its_image() {
    let kinds: Vec<_> = recorded().into_iter().map(|one| (one.name, one.engine)).collect();
    let of = |name: &str| kinds.iter().find(|(other, _)| other == name).unwrap().1;
    assert_eq!(of("racing"), Some(EngineKind::Sglang));
    assert_eq!(of("liar"), Some(EngineKind::Vllm));
    assert_eq!(of("removed"), None);
    let named = |image: &str| {
        let told = serde_json::json!({ "Name": "/x", "Config": { "Image": image } });
        ContainerFacts::read(&told).unwrap().engine
    };
    assert_eq!(named("mirror.example:5000/vllm/vllm-openai@sha256:0"), Some(EngineKind::Vllm));
    assert_eq!(named("nvcr.io/nim/meta/llama:1"), Some(EngineKind::Declared));
    assert_eq!(named("openmmlab/lmdeploy:latest-cu12"), Some(EngineKind::Lmdeploy));
    let tgi = "ghcr.io/huggingface/text-generation-inference:3.3.5";
    assert_eq!(named(tgi), Some(EngineKind::Tgi));
    assert_eq!(named("vllm/vllm-openai-tools:1"), None);
    assert_eq!(named("myvllm/vllm-openai"), None);
    let bare = ContainerFacts::read(&serde_json::json!({ "Name": "x" })).unwrap();
    assert_eq!((&*bare.restart, bare.shm_bytes, bare.health), ("no", None, None));
    assert_eq!(ContainerFacts::read(&serde_json::json!([])), None);
}

const RACING: &str = "\
[Unit]
Description=vLLM
After=docker.target \\
  network-online.target nvidia-persistenced.service
Wants=network-online.target

[Service]
# ExecStart=/usr/bin/sleep 1
ExecStart=/bin/sh -c /usr/bin/true
ExecStart=
ExecStart=-/opt/venv/bin/vllm serve \"/models/big one\" --port 8000
Restart=always
KillMode=process
";

fn names() -> BTreeSet<String> {
    ["network-online.target", "engine@.service", "docker.service"].map(str::to_owned).into()
}

fn judged(text: &str) -> Vec<(&'static str, Verdict)> {
    let Some(unit) = unit("vllm.service", &[text.to_owned()]) else { return Vec::new() };
    let found = examine(&Facts { units: Known::Is((vec![unit], names())), ..well() });
    let of_it = found.into_iter().filter(|one| one.subject.is_some());
    of_it.map(|one| (one.check, one.verdict)).collect()
}

#[test]
fn units_are_judged_by_what_systemd_would_do_with_them() {
    use Verdict::{Problem, Warning};
    let all = [
        ("kill_mode", Problem),
        ("restart_policy", Warning),
        ("start_limit", Warning),
        ("unit_order", Warning),
    ];
    assert_eq!(judged(RACING), all);
    let without = |check: &str| all.into_iter().filter(|one| one.0 != check).collect::<Vec<_>>();
    assert_eq!(judged(&RACING.replace("KillMode=process\n", "")), without("kill_mode"));
    let ordered = RACING
        .replace("docker.target", "docker.service engine@7.service")
        .replace("nvidia-persistenced.service", "");
    assert_eq!(judged(&ordered), without("unit_order"));
    let limited = format!("{RACING}\n[Unit]\nStartLimitIntervalSec=1h\n");
    assert_eq!(judged(&limited), without("start_limit"));
    let gate = "ExecStartPre=/usr/bin/umawarden gate --need 90GiB --timeout 10m\n";
    let gated = |more: &str| judged(&format!("{limited}[Service]\n{gate}{more}"));
    assert!(gated("").contains(&("start_timeout", Problem)), "90 s, as is usual");
    assert!(gated("TimeoutStartSec=5min\n").contains(&("start_timeout", Problem)));
    for enough in ["TimeoutStartSec=11min\n", "TimeoutStartSec=infinity\n", "TimeoutStartSec=0\n"] {
        let found = gated(enough);
        assert_eq!(found, [("kill_mode", Problem), ("unit_order", Warning)], "{enough}");
    }
    // systemd waits for one that says when it is up, and not for long.
    let notifies = |more: &str| judged(&format!("{limited}[Service]\nType=notify\n{more}"));
    assert!(notifies("").contains(&("start_timeout", Warning)));
    assert!(!notifies("TimeoutStartSec=15min\n").contains(&("start_timeout", Warning)));
    let liar = limited.replace("Restart=always", "Restart=on-failure");
    assert!(judged(&liar).contains(&("restart_policy", Problem)), "vLLM ends with 0");
    let launched = liar.replace("/opt/venv", "/usr/bin/umawarden launch -- /opt/venv");
    assert_eq!(judged(&launched), [("kill_mode", Problem), ("unit_order", Warning)]);
    let never = RACING.replace("Restart=always", "Restart=no");
    assert_eq!(judged(&never), [("kill_mode", Problem), ("unit_order", Warning)]);
}

#[test]
fn only_units_that_run_engines_are_of_interest_and_drop_ins_count() {
    assert_eq!(unit("ssh.service", &["[Service]\nExecStart=/usr/sbin/sshd -D\n".to_owned()]), None);
    assert_eq!(unit("masked.service", &[String::new()]), None);
    let drop_in = "[Service]\nRestart=no\nTimeoutStartSec=1h\n".to_owned();
    let both = unit("vllm.service", &[RACING.to_owned(), drop_in]).unwrap();
    assert_eq!(both.restart.as_deref(), Some("no"));
    assert_eq!(both.start_takes, Some(Duration::from_secs(3600)));
    assert!(both.named.contains("nvidia-persistenced.service"), "{both:?}");
}

/// `systemctl show --property=…`, in the format that systemctl(1) documents.
const SHOWN: &str = "\
Id=vllm.service
LoadState=loaded
NeedDaemonReload=no
Restart=always
RestartUSec=30s
TimeoutStartUSec=1min 30s
StartLimitIntervalUSec=1h
StartLimitBurst=5
KillMode=control-group
After=sysinit.target docker.target network-online.target system.slice
Requires=system.slice sysinit.target
Wants=network-online.target
BindsTo=
Requisite=
PartOf=
Upholds=
";

fn told(shown: &str) -> Vec<(&'static str, Verdict)> {
    let vllm = unit("vllm.service", &[RACING.to_owned()]).unwrap();
    let units = told_units(shown, &["vllm.service".to_owned()]).unwrap();
    let loads = [("docker.target", "not-found"), ("sysinit.target", "loaded")];
    let loads = loads.map(|(name, state)| (name.to_owned(), state.to_owned())).into();
    let systemd = Known::Is(Told { units, loads });
    let found = examine(&Facts { units: Known::Is((vec![vllm], names())), systemd, ..well() });
    let of_it = found.into_iter().filter(|one| one.subject.is_some());
    of_it.map(|one| (one.check, one.verdict)).collect()
}

#[test]
fn what_systemd_says_of_a_unit_counts_more_than_its_files() {
    use Verdict::{Problem, Warning};
    // The files have KillMode=process and no limit; a drop-in elsewhere may have mended that.
    assert_eq!(told(SHOWN), [("restart_policy", Warning), ("unit_order", Warning)]);
    let calm = SHOWN.replace("Restart=always", "Restart=no").replace("docker.target ", "");
    assert_eq!(told(&calm), []);
    let limit = told(&SHOWN.replace("StartLimitBurst=5", "StartLimitBurst=0"));
    assert!(limit.contains(&("start_limit", Warning)), "{limit:?}");
    let slow = told(&format!("{calm}Type=notify\n"));
    assert_eq!(slow, [("start_timeout", Warning)]);
    let kill = told(&calm.replace("control-group", "process"));
    assert_eq!(kill, [("kill_mode", Problem)]);
    let outdated = told(&calm.replace("NeedDaemonReload=no", "NeedDaemonReload=yes"));
    assert_eq!(outdated, [("unit_outdated", Warning)]);
    let broken = told(&SHOWN.replace("LoadState=loaded", "LoadState=bad-setting"));
    assert_eq!(broken, [("unit_load", Problem)]);
    assert_eq!(told(&SHOWN.replace("LoadState=loaded", "LoadState=masked")), []);
    // What it does not tell, the files do.
    let silent = told("Id=vllm.service\nLoadState=loaded\n");
    assert!(silent.contains(&("kill_mode", Problem)), "{silent:?}");
}

#[test]
fn how_long_systemd_waits_before_a_restart_is_told() {
    let with = |after: &str| {
        let text = RACING.replace("Restart=always", &format!("Restart=always\n{after}"));
        let racing = unit("vllm.service", &[text]).unwrap();
        let found = examine(&Facts { units: Known::Is((vec![racing], names())), ..well() });
        found.into_iter().find(|one| one.check == "restart_policy").unwrap().says
    };
    assert!(with("RestartSec=30\n").contains("again after 30s, whether or not"));
    assert!(with("").contains("again at once, whether or not"));
}

#[test]
fn a_systemd_that_does_not_tell_leaves_the_files() {
    let racing = || unit("vllm.service", &[RACING.to_owned()]).unwrap();
    let units = Known::Is((vec![racing()], names()));
    let systemd = Known::Not("systemctl has not answered within 5 s".to_owned());
    let facts = Facts { units, systemd, ..well() };
    assert_eq!(worst(&facts, "systemd"), Verdict::CannotTell);
    assert_eq!(worst(&facts, "kill_mode"), Verdict::Problem);
    let names = ["a.service".to_owned(), "b.service".to_owned()];
    let two = format!("{SHOWN}\n{SHOWN}");
    assert_eq!(told_units(&two, &names).unwrap().len(), 2);
    for lie in [SHOWN, "", "\n\n\n", "Id=a\n\nId=b\n", &format!("{two}\n{SHOWN}")] {
        assert!(told_units(lie, &names).is_err(), "{lie}");
    }
}

proptest! {
    #[test]
    fn no_file_and_no_answer_does_harm(text in "\\PC{0,300}", at in 0_usize..400) {
        let _read = unit("x.service", std::slice::from_ref(&text));
        let mut damaged = RACING.to_owned();
        let at = (0..=at.min(damaged.len())).rev().find(|at| damaged.is_char_boundary(*at));
        damaged.insert_str(at.unwrap_or(0), &text);
        let _read = unit("x.service", &[damaged]);
        let one = ["x.service".to_owned()];
        let _read = told_units(&text, &one);
        let mut damaged = SHOWN.to_owned();
        let at = (0..=at.unwrap_or(0).min(damaged.len())).rev();
        let at = at.into_iter().find(|at| damaged.is_char_boundary(*at)).unwrap_or(0);
        damaged.insert_str(at, &text);
        if let Ok(units) = told_units(&damaged, &one) {
            let vllm = unit("x.service", &[RACING.to_owned()]).unwrap();
            let systemd = Known::Is(Told { units, loads: BTreeMap::new() });
            let facts = Facts { units: Known::Is((vec![vllm], names())), systemd, ..well() };
            let found = examine(&facts);
            prop_assert!(found.iter().all(|one| !one.says.contains(char::is_control)));
        }
        if let Ok(told) = serde_json::from_str::<Value>(&text) {
            let _read = ContainerFacts::read(&told);
        }
        let told = serde_json::json!({ "Name": text, "Path": text, "Args": [text, 5],
            "Config": { "Image": text, "Healthcheck": { "Test": [text], "Interval": u64::MAX,
            "Retries": u64::MAX, "StartPeriod": -1 } }, "HostConfig": { "ShmSize": u64::MAX } });
        if let Some(facts) = ContainerFacts::read(&told) {
            let found = examine(&with(vec![facts]));
            prop_assert!(found.iter().all(|one| !one.says.contains(char::is_control)));
        }
    }
}
