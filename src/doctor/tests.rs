use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::engines::loaders::weight_daemon;
use crate::model::{EngineKind, GpuLossSign, KernelEvent};

const GIB: u64 = 1 << 30;

/// The advice in the program.
pub(super) fn shipped() -> AdviceTable {
    let machine = |line: &'static str| line.strip_prefix("- name: ");
    let machines: Vec<&str> =
        include_str!("../tune/profiles.yaml").lines().filter_map(machine).collect();
    AdviceTable::shipped(&machines).unwrap_or_else(|mistakes| panic!("{mistakes}"))
}

/// A unit's file without scripts.
fn unit_of(name: &str, files: &[String]) -> Option<UnitFacts> {
    unit(name, files, &shipped(), &mut |_| Err(io::ErrorKind::NotFound.into()))
}

/// A node on which nothing is wrong.
pub(super) fn well() -> DoctorFacts {
    DoctorFacts {
        advice: shipped(),
        page_bytes: 4096,
        hidden_cma_bytes: Fact::Is(0),
        dgx_os: Fact::Absent,
        memory: Fact::Is((121 * GIB, 0)),
        kernel: Fact::Is("6.17.0-1004-nvidia".to_owned()),
        driver: Fact::Is(
            "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release Build"
                .to_owned(),
        ),
        has_pressure: Fact::Is(true),
        kernel_log: Fact::Is(Vec::new()),
        settings: Fact::Is(ProfileMisfits { profile: "gb10".to_owned(), ..Default::default() }),
        lacks: Fact::Is(Vec::new()),
        rules_off: Fact::Is(Vec::new()),
        has_daemon: Fact::Is(true),
        engines: Fact::Is(Vec::new()),
        loaders: Fact::Is(Vec::new()),
        raylets: Fact::Is(Vec::new()),
        containers: Fact::Is(Vec::new()),
        units: Fact::Is((Vec::new(), BTreeSet::new())),
        cluster: Fact::Absent,
        systemd: Fact::Absent,
    }
}

fn of_cluster(cluster: ClusterFacts) -> DoctorFacts {
    DoctorFacts { cluster: Fact::Is(cluster), ..well() }
}

fn worst(facts: &DoctorFacts, check: &str) -> Severity {
    let findings = examine(facts);
    let of_check = findings.iter().filter(|finding| finding.check == check);
    of_check.map(|finding| finding.severity).max().unwrap_or_else(|| panic!("no {check}"))
}

#[test]
fn a_healthy_node_has_no_findings_and_the_most_severe_come_first() {
    let findings = examine(&well());
    assert!(findings.iter().all(|finding| finding.severity == Severity::Ok), "{findings:#?}");
    let ill = DoctorFacts {
        memory: Fact::Is((121 * GIB, 16 * GIB)),
        kernel_log: Fact::Unknown("no permission".to_owned()),
        ..well()
    };
    let severities: Vec<Severity> = examine(&ill).iter().map(|finding| finding.severity).collect();
    assert_eq!(severities[..2], [Severity::Problem, Severity::Warning]);
    assert!(severities.is_sorted_by(|one, other| one >= other));
}

#[test]
fn an_engine_of_unproven_identity_is_found() {
    let read = |text: &str| {
        let engines: Vec<EngineFacts> = serde_json::from_str(text).unwrap();
        examine(&DoctorFacts { engines: Fact::Is(engines), ..well() })
    };
    // From the daemon's API, shortened.
    let json = read(include_str!("../../tests/fixtures/doctor/engines-unproven.json"));
    let json: Vec<&Finding> = json.iter().filter(|one| one.check == "identity").collect();
    let [key, container, denied] = json[..] else { panic!("{json:#?}") };
    assert_eq!(key.severity, Severity::Warning);
    assert_eq!(key.subject.as_deref(), Some("engine chat"));
    assert!(key.text.contains("queried without its key: pid 4711 runs as user 65534"), "{key:?}");
    assert!(key.fix.as_ref().unwrap().contains("user:"), "{key:?}");
    assert_eq!(container.subject.as_deref(), Some("engine coder"));
    assert!(container.text.contains("container 4f1c0ddc6a0b, which neither"), "{container:?}");
    assert_eq!(denied.subject.as_deref(), Some("engine boxed"));
    let why = "/run/user/1001/podman/podman.sock: permission denied";
    assert!(denied.text.contains(why) && !denied.text.contains("control group"), "{denied:?}");
    assert!(denied.fix.as_ref().unwrap().contains("print drop-in rootless"), "{denied:?}");
    let proven = read(include_str!("../../tests/fixtures/doctor/engines-proven.json"));
    assert!(proven.iter().all(|one| one.severity == Severity::Ok), "{proven:#?}");
}

#[test]
fn a_daemon_that_holds_weights_is_no_fault() {
    let command = ["vllm", "preload", "/m"].map(str::to_owned);
    let daemon = weight_daemon(&command).unwrap();
    let holder = Fact::Is(vec![RunningLoader::Holder { pid: 8, daemon }]);
    let findings = examine(&DoctorFacts { loaders: holder, ..well() });
    let holder = findings.iter().find(|finding| finding.check == "loader").unwrap();
    assert_eq!(holder.severity, Severity::Ok);
    assert!(holder.text.contains("wanted memory"), "{holder:?}");
    assert_eq!(holder.subject.as_deref(), Some("vllm preload (pid 8)"));
}

fn xid(xid: u32, recovery: Option<crate::model::Recovery>) -> KernelEvent {
    KernelEvent::Xid {
        xid,
        pci: "000f:01:00".to_owned(),
        gpu_instance: None,
        compute_instance: None,
        pid: None,
        process: None,
        recovery,
    }
}

/// A node on which one setting differs from its profile.
fn unfit() -> DoctorFacts {
    let misfits = vec![Misfit { name: Sysctl::MinFreeKbytes, now: 67_584, wanted: 1 << 20 }];
    let (profile, costs) = ("gb10".to_owned(), vec!["an engine then refuses to start".to_owned()]);
    DoctorFacts { settings: Fact::Is(ProfileMisfits { profile, misfits, costs }), ..well() }
}

#[test]
fn the_fix_of_the_settings_names_what_it_costs() {
    let all = examine(&unfit());
    let fix = all.iter().find(|one| one.check == "settings").and_then(|one| one.fix.as_deref());
    assert!(fix.unwrap().ends_with("--persist; mind: an engine then refuses to start"), "{fix:?}");
}

#[test]
fn each_fault_has_a_fix() {
    let event = |kind| Event { kind, utc: None, seq: None };
    let (pci, status) = (Some("0000:a1:00.0".to_owned()), "0x62:0x40:2168".to_owned());
    let failed = KernelEvent::GpuInitFailed { pci, status };
    let lost = KernelEvent::GpuLost { pci: None, gpu: Some(6), sign: GpuLossSign::ResetRequired };
    let lack = |is_wanted_now| UnmetNeed {
        what: "action drop_caches".to_owned(),
        remedy: "run as root".to_owned(),
        is_wanted_now,
    };
    let log = |kind| DoctorFacts { kernel_log: Fact::Is(vec![event(kind)]), ..well() };
    let driver = |version: &str| DoctorFacts {
        driver: Fact::Is(format!("NVRM version: NVIDIA UNIX Open Kernel Module  {version}  R")),
        ..well()
    };
    let kernel = |release: &str| DoctorFacts { kernel: Fact::Is(release.to_owned()), ..well() };
    let off = ShippedRule {
        id: crate::model::RuleId { group: "g".into(), alert: "A".into() },
        part: None,
    };
    let table = [
        ("swap", Severity::Warning, DoctorFacts { memory: Fact::Is((GIB, 1)), ..well() }),
        ("settings", Severity::Warning, unfit()),
        ("pressure", Severity::Warning, DoctorFacts { has_pressure: Fact::Is(false), ..well() }),
        ("kernel", Severity::Warning, kernel("6.2.0")),
        ("kernel", Severity::Ok, kernel("6.5.0-14-generic")),
        ("kernel", Severity::Unknown, kernel("unknown")),
        ("driver", Severity::Warning, driver("590.44.01")),
        ("driver", Severity::Ok, driver("580.95.05")),
        ("driver", Severity::Unknown, driver("none")),
        ("driver", Severity::Ok, DoctorFacts { driver: Fact::Absent, ..well() }),
        ("daemon", Severity::Warning, DoctorFacts { has_daemon: Fact::Is(false), ..well() }),
        ("kernel_log", Severity::Problem, log(KernelEvent::UvmFatal.into())),
        (
            "kernel_log",
            Severity::Problem,
            log(xid(154, Some(crate::model::Recovery::NodeReboot)).into()),
        ),
        ("kernel_log", Severity::Ok, log(xid(154, Some(crate::model::Recovery::None)).into())),
        ("kernel_log", Severity::Problem, log(xid(169, None).into())),
        ("kernel_log", Severity::Problem, log(xid(79, None).into())),
        ("kernel_log", Severity::Ok, log(xid(31, None).into())),
        ("kernel_log", Severity::Problem, log(lost.into())),
        ("kernel_log", Severity::Problem, log(failed.into())),
        (
            "permissions",
            Severity::Problem,
            DoctorFacts { lacks: Fact::Is(vec![lack(true)]), ..well() },
        ),
        ("rules", Severity::Warning, DoctorFacts { rules_off: Fact::Is(vec![off]), ..well() }),
        (
            "permissions",
            Severity::Warning,
            DoctorFacts { lacks: Fact::Is(vec![lack(false)]), ..well() },
        ),
        (
            "containers",
            Severity::Unknown,
            DoctorFacts { containers: Fact::Unknown("permission denied".to_owned()), ..well() },
        ),
        ("containers", Severity::Ok, DoctorFacts { containers: Fact::Absent, ..well() }),
    ];
    table.iter().for_each(assert_finding);
}

fn assert_finding((check, severity, facts): &(&str, Severity, DoctorFacts)) {
    assert_eq!(worst(facts, check), *severity, "{check}: {:#?}", examine(facts));
    for finding in examine(facts) {
        let is_wrong = finding.severity >= Severity::Warning;
        assert_eq!(finding.fix.is_some(), is_wrong, "{finding:?}");
    }
}

#[test]
fn rights_that_are_missing_in_the_cluster_have_a_fix() {
    let lacks = vec!["patch nodes (drain)".to_owned()];
    let table = [
        ("kubernetes", Severity::Ok, of_cluster(ClusterFacts::Lacks(Vec::new()))),
        ("kubernetes", Severity::Problem, of_cluster(ClusterFacts::Lacks(lacks))),
        ("kubernetes", Severity::Problem, of_cluster(ClusterFacts::Silent("away".to_owned()))),
    ];
    table.iter().for_each(assert_finding);
}

/// What Docker 28.2.2 answered for containers that were made for it.
const CONTAINERS: &str = include_str!("../../tests/fixtures/doctor/containers-28.2.2.json");

fn recorded() -> Vec<ContainerFacts> {
    let json: Vec<Value> = serde_json::from_str(CONTAINERS).unwrap();
    json.iter().map(|one| ContainerFacts::read(one).unwrap()).collect()
}

#[test]
fn a_socket_that_cannot_be_used_is_reported_once() {
    let what = "action stop_engine: /run/docker.sock cannot be used: Permission denied";
    for (is_wanted_now, severity) in [(false, Severity::Unknown), (true, Severity::Problem)] {
        let lack = UnmetNeed { what: what.to_owned(), remedy: "as root".to_owned(), is_wanted_now };
        let containers = Fact::Unknown("/run/docker.sock: Permission denied".to_owned());
        let facts = DoctorFacts { containers, lacks: Fact::Is(vec![lack]), ..well() };
        let findings = examine(&facts);
        let of_socket: Vec<&Finding> =
            findings.iter().filter(|finding| finding.text.contains("docker.sock")).collect();
        assert_eq!(of_socket.len(), 1, "{findings:#?}");
        assert_eq!((of_socket[0].check, of_socket[0].severity), ("containers", severity));
        assert_eq!(of_socket[0].fix.as_deref(), Some("as root"));
        assert!(of_socket[0].text.starts_with("containers were not examined; "));
    }
}

fn with(containers: Vec<ContainerFacts>) -> DoctorFacts {
    DoctorFacts { containers: Fact::Is(containers), ..well() }
}

#[test]
fn real_containers_are_checked_by_their_effective_settings_in_docker() {
    let findings = |name: &str| {
        let one = recorded().into_iter().find(|one| one.name == name).unwrap();
        let found = examine(&with(vec![one]));
        let of_it = found.into_iter().filter(|one| one.subject.is_some());
        of_it.map(|one| (one.check, one.severity)).collect::<Vec<_>>()
    };
    use Severity::{Problem, Warning};
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
fn the_engine_of_a_container_is_recognised_by_its_command_or_image() {
    let kinds: Vec<_> = recorded().into_iter().map(|one| (one.name, one.engine)).collect();
    let of = |name: &str| kinds.iter().find(|(other, _)| other == name).unwrap().1;
    assert_eq!(of("racing"), Some(EngineKind::Sglang));
    assert_eq!(of("liar"), Some(EngineKind::Vllm));
    assert_eq!(of("removed"), None);
    let named = |image: &str| {
        let json = serde_json::json!({ "Name": "/x", "Config": { "Image": image } });
        ContainerFacts::read(&json).unwrap().engine
    };
    assert_eq!(named("mirror.example:5000/vllm/vllm-openai@sha256:0"), Some(EngineKind::Vllm));
    assert_eq!(named("nvcr.io/nim/meta/llama:1"), Some(EngineKind::Declared));
    assert_eq!(named("openmmlab/lmdeploy:latest-cu12"), Some(EngineKind::Lmdeploy));
    let tgi = "ghcr.io/huggingface/text-generation-inference:3.3.5";
    assert_eq!(named(tgi), Some(EngineKind::Tgi));
    assert_eq!(named("nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.6.0"), Some(EngineKind::Dynamo));
    assert_eq!(named("nvcr.io/nvidia/ai-dynamo/kubernetes-operator:1.6.0"), None);
    assert_eq!(named("localai/localai:latest"), Some(EngineKind::LocalAi));
    assert_eq!(named("ghcr.io/theroyallab/tabbyapi"), Some(EngineKind::TabbyApi));
    assert_eq!(named("ghcr.io/ericlbuehler/mistral.rs:latest"), Some(EngineKind::MistralRs));
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

fn checked(text: &str) -> Vec<(&'static str, Severity)> {
    let Some(unit) = unit_of("vllm.service", &[text.to_owned()]) else { return Vec::new() };
    let found = examine(&DoctorFacts { units: Fact::Is((vec![unit], names())), ..well() });
    let of_it = found.into_iter().filter(|one| one.subject.is_some());
    of_it.map(|one| (one.check, one.severity)).collect()
}

#[test]
fn units_are_checked_by_their_effective_settings_in_systemd() {
    use Severity::{Problem, Warning};
    let all = [
        ("kill_mode", Problem),
        ("restart_policy", Warning),
        ("start_limit", Warning),
        ("unit_order", Warning),
    ];
    assert_eq!(checked(RACING), all);
    let without = |check: &str| all.into_iter().filter(|one| one.0 != check).collect::<Vec<_>>();
    assert_eq!(checked(&RACING.replace("KillMode=process\n", "")), without("kill_mode"));
    let ordered = RACING
        .replace("docker.target", "docker.service engine@7.service")
        .replace("nvidia-persistenced.service", "");
    assert_eq!(checked(&ordered), without("unit_order"));
    let limited = format!("{RACING}\n[Unit]\nStartLimitIntervalSec=1h\n");
    assert_eq!(checked(&limited), without("start_limit"));
    let gate = "ExecStartPre=/usr/bin/umawarden gate --need 90GiB --timeout 10m\n";
    let gated = |more: &str| checked(&format!("{limited}[Service]\n{gate}{more}"));
    assert!(gated("").contains(&("start_timeout", Problem)), "90 s, as is usual");
    assert!(gated("TimeoutStartSec=5min\n").contains(&("start_timeout", Problem)));
    for enough in ["TimeoutStartSec=11min\n", "TimeoutStartSec=infinity\n", "TimeoutStartSec=0\n"] {
        let found = gated(enough);
        assert_eq!(found, [("kill_mode", Problem), ("unit_order", Warning)], "{enough}");
    }
    // systemd waits for a unit that notifies, with a timeout.
    let notifies = |more: &str| checked(&format!("{limited}[Service]\nType=notify\n{more}"));
    assert!(notifies("").contains(&("start_timeout", Warning)));
    assert!(!notifies("TimeoutStartSec=15min\n").contains(&("start_timeout", Warning)));
    let liar = limited.replace("Restart=always", "Restart=on-failure");
    assert!(checked(&liar).contains(&("restart_policy", Problem)), "vLLM ends with 0");
    let launched = liar.replace("/opt/venv", "/usr/bin/umawarden launch -- /opt/venv");
    assert_eq!(checked(&launched), [("kill_mode", Problem), ("unit_order", Warning)]);
    let never = RACING.replace("Restart=always", "Restart=no");
    assert_eq!(checked(&never), [("kill_mode", Problem), ("unit_order", Warning)]);
}

#[test]
fn an_engine_that_may_hold_the_gpu_before_its_reset_is_found() {
    let found = |exec: &str, after: &str, target: Option<&str>, state: Option<&str>| {
        let text = format!("[Unit]\nAfter={after}\n[Service]\nExecStart={exec}\n");
        let unit = unit_of("x.service", &[text]).unwrap();
        let own = state.map(|state| UnitState { load_state: state.into(), ..UnitState::default() });
        let units = own.map(|own| (unit.name.clone(), own)).into_iter().collect();
        let systemd = Fact::Is(SystemdState { units, ..SystemdState::default() });
        let names = target.into_iter().map(str::to_owned).collect();
        let facts = DoctorFacts { units: Fact::Is((vec![unit], names)), systemd, ..well() };
        examine(&facts).iter().any(|finding| finding.check == "gpu_reset")
    };
    let target = Some("nvidia-gpu-reset.target");
    let (native, docker) = ("/env/bin/vllm serve m", "docker run vllm/vllm-openai m");
    assert!(found(native, "", target, None) && found(docker, "", target, None));
    assert!(found(native, "docker.service", target, None), "Docker does not run it");
    assert!(!found(docker, "docker.service", target, None));
    assert!(!found(native, "nvidia-gpu-reset.target", target, None));
    assert!(!found(native, "", None, None), "this node has no such target");
    assert!(found(native, "", target, Some("loaded")));
    assert!(!found(native, "", target, Some("masked")));
}

#[test]
fn only_units_with_an_engine_are_read_and_drop_ins_apply() {
    let ssh = "[Service]\nExecStart=/usr/sbin/sshd -D\n".to_owned();
    assert!(unit_of("ssh.service", &[ssh]).is_none_or(|unit| unit.engine.is_none()));
    assert!(unit_of("masked.service", &[String::new()]).is_none());
    let drop_in = "[Service]\nRestart=no\nTimeoutStartSec=1h\n".to_owned();
    let both = unit_of("vllm.service", &[RACING.to_owned(), drop_in]).unwrap();
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

fn shown(output: &str) -> Vec<(&'static str, Severity)> {
    let vllm = unit_of("vllm.service", &[RACING.to_owned()]).unwrap();
    let units = unit_states(output, &["vllm.service".to_owned()]).unwrap();
    let loads = [("docker.target", "not-found"), ("sysinit.target", "loaded")];
    let loads = loads.map(|(name, state)| (name.to_owned(), state.to_owned())).into();
    let systemd = Fact::Is(SystemdState { units, loads });
    let found = examine(&DoctorFacts { units: Fact::Is((vec![vllm], names())), systemd, ..well() });
    let of_it = found.into_iter().filter(|one| one.subject.is_some());
    of_it.map(|one| (one.check, one.severity)).collect()
}

#[test]
fn the_state_in_systemd_takes_precedence_over_unit_files() {
    use Severity::{Problem, Warning};
    // The files have KillMode=process and no limit. A drop-in elsewhere may have corrected that.
    assert_eq!(shown(SHOWN), [("restart_policy", Warning), ("unit_order", Warning)]);
    let calm = SHOWN.replace("Restart=always", "Restart=no").replace("docker.target ", "");
    assert_eq!(shown(&calm), []);
    let limit = shown(&SHOWN.replace("StartLimitBurst=5", "StartLimitBurst=0"));
    assert!(limit.contains(&("start_limit", Warning)), "{limit:?}");
    let slow = shown(&format!("{calm}Type=notify\n"));
    assert_eq!(slow, [("start_timeout", Warning)]);
    let kill = shown(&calm.replace("control-group", "process"));
    assert_eq!(kill, [("kill_mode", Problem)]);
    let outdated = shown(&calm.replace("NeedDaemonReload=no", "NeedDaemonReload=yes"));
    assert_eq!(outdated, [("unit_outdated", Warning)]);
    let broken = shown(&SHOWN.replace("LoadState=loaded", "LoadState=bad-setting"));
    assert_eq!(broken, [("unit_load", Problem)]);
    assert_eq!(shown(&SHOWN.replace("LoadState=loaded", "LoadState=masked")), []);
    // What systemd does not report is read from the files.
    let silent = shown("Id=vllm.service\nLoadState=loaded\n");
    assert!(silent.contains(&("kill_mode", Problem)), "{silent:?}");
}

#[test]
fn the_finding_names_the_restart_delay_of_systemd() {
    let with = |after: &str| {
        let text = RACING.replace("Restart=always", &format!("Restart=always\n{after}"));
        let racing = unit_of("vllm.service", &[text]).unwrap();
        let found = examine(&DoctorFacts { units: Fact::Is((vec![racing], names())), ..well() });
        found.into_iter().find(|one| one.check == "restart_policy").unwrap().text
    };
    assert!(with("RestartSec=30\n").contains("restarts it after 30s, before"));
    assert!(with("").contains("restarts it at once, before"));
}

#[test]
fn unit_files_apply_without_a_state_in_systemd() {
    let racing = || unit_of("vllm.service", &[RACING.to_owned()]).unwrap();
    let units = Fact::Is((vec![racing()], names()));
    let systemd = Fact::Unknown("systemctl did not respond within 5 s".to_owned());
    let facts = DoctorFacts { units, systemd, ..well() };
    assert_eq!(worst(&facts, "systemd"), Severity::Unknown);
    assert_eq!(worst(&facts, "kill_mode"), Severity::Problem);
    let names = ["a.service".to_owned(), "b.service".to_owned()];
    let two = format!("{SHOWN}\n{SHOWN}");
    assert_eq!(unit_states(&two, &names).unwrap().len(), 2);
    for wrong in [SHOWN, "", "\n\n\n", "Id=a\n\nId=b\n", &format!("{two}\n{SHOWN}")] {
        assert!(unit_states(wrong, &names).is_err(), "{wrong}");
    }
}

proptest! {
    #[test]
    fn arbitrary_unit_files_and_systemctl_output_do_not_panic(text in "\\PC{0,300}", at in 0_usize..400) {
        let _read = unit_of("x.service", std::slice::from_ref(&text));
        let mut damaged = RACING.to_owned();
        let at = (0..=at.min(damaged.len())).rev().find(|at| damaged.is_char_boundary(*at));
        damaged.insert_str(at.unwrap_or(0), &text);
        let _read = unit_of("x.service", &[damaged]);
        let one = ["x.service".to_owned()];
        let _read = unit_states(&text, &one);
        let mut damaged = SHOWN.to_owned();
        let at = (0..=at.unwrap_or(0).min(damaged.len())).rev();
        let at = at.into_iter().find(|at| damaged.is_char_boundary(*at)).unwrap_or(0);
        damaged.insert_str(at, &text);
        if let Ok(units) = unit_states(&damaged, &one) {
            let vllm = unit_of("x.service", &[RACING.to_owned()]).unwrap();
            let systemd = Fact::Is(SystemdState { units, loads: BTreeMap::new() });
            let facts = DoctorFacts { units: Fact::Is((vec![vllm], names())), systemd, ..well() };
            let found = examine(&facts);
            prop_assert!(found.iter().all(|one| !one.text.contains(char::is_control)));
        }
        if let Ok(json) = serde_json::from_str::<Value>(&text) {
            let _read = ContainerFacts::read(&json);
        }
        let json = serde_json::json!({ "Name": text, "Path": text, "Args": [text, 5],
            "Config": { "Image": text, "Healthcheck": { "Test": [text], "Interval": u64::MAX,
            "Retries": u64::MAX, "StartPeriod": -1 } }, "HostConfig": { "ShmSize": u64::MAX } });
        if let Some(facts) = ContainerFacts::read(&json) {
            let found = examine(&with(vec![facts]));
            prop_assert!(found.iter().all(|one| !one.text.contains(char::is_control)));
        }
    }
}

#[test]
fn rays_memory_monitor_is_a_warning_unless_its_threshold_is_high_or_it_is_off() {
    let found = |variables| {
        let raylet = Raylet { pid: 7, variables };
        let findings = examine(&DoctorFacts { raylets: Fact::Is(vec![raylet]), ..well() });
        findings.into_iter().find(|finding| finding.check == "ray").unwrap()
    };
    let set = |threshold: &str, refresh_ms: &str| {
        let owned = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        found(Ok(RayVariables { threshold: owned(threshold), refresh_ms: owned(refresh_ms) }))
    };
    for (threshold, refresh_ms, severity) in [
        ("", "", Severity::Warning),
        ("0.9", "250", Severity::Warning),
        ("x", "", Severity::Warning),
        ("0.99", "", Severity::Ok),
        ("", "0", Severity::Ok),
    ] {
        let finding = set(threshold, refresh_ms);
        assert_eq!(finding.severity, severity, "{finding:?}");
        assert_eq!(finding.subject.as_deref(), Some("raylet (pid 7)"));
        assert_eq!(finding.fix.is_some(), severity == Severity::Warning);
    }
    assert!(set("", "").text.contains("95 %"), "{:?}", set("", ""));
    assert_eq!(found(Err("no right".to_owned())).severity, Severity::Unknown);
}
