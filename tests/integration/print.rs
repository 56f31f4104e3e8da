//! Units of `umawarden print`, checked by systemd itself and by `umawarden doctor`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use umawarden::doctor::{AdviceTable, ContainerFacts, DoctorFacts, Fact, Severity, examine, unit};

use crate::daemon::binary;

fn printed(arguments: &[&str]) -> String {
    let output = Command::new(binary()).args(["print", "unit"]).args(arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

const ENGINE: [&str; 9] =
    ["--need", "90GiB", "--name", "chat", "--", "/usr/bin/env", "vllm", "serve", "/models/a b 50%"];

#[test]
fn systemd_accepts_the_units() {
    let analyze = Path::new("/usr/bin/systemd-analyze");
    if !analyze.exists() {
        eprintln!("skipped: systemd-analyze is not installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (name, arguments) in [("umawarden.service", &[][..]), ("chat.service", &ENGINE[..])] {
        let file = folder.path().join(name);
        fs::write(&file, printed(arguments)).unwrap();
        let output = Command::new(analyze).arg("verify").arg(&file).output().unwrap();
        let complained = String::from_utf8_lossy(&output.stderr);
        // Units of other packages on this machine may have faults.
        let own: Vec<&str> = complained.lines().filter(|line| line.contains(name)).collect();
        assert!(own.is_empty() && output.status.success(), "{complained}");
    }
    // It does find faults.
    let file = folder.path().join("bad.service");
    fs::write(&file, printed(&[]).replace("Type=notify", "Type=nonsense")).unwrap();
    let output = Command::new(analyze).arg("verify").arg(&file).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("bad.service"), "{output:?}");
}

#[test]
fn timeouts_of_the_engine_unit_exceed_those_of_the_gate() {
    let text = printed(&ENGINE);
    let value = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap();
        line.trim_end_matches('s').parse::<u64>().unwrap()
    };
    assert!(value("TimeoutStartSec=") > 600, "{text}");
    assert!(value("StartLimitIntervalSec=") > 5 * 600, "{text}");
    assert!(text.contains("\"/models/a b 50%%\""), "{text}");
    let wrong: [&[&str]; 3] =
        [&["--need", "1GiB"], &["--", "vllm"], &["--need", "0", "--", "vllm"]];
    for arguments in wrong {
        let mut command = Command::new(binary());
        let output = command.args(["print", "unit"]).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn the_doctor_finds_nothing_wrong_with_them() {
    let advice = AdviceTable::default();
    let mut missing = |_: &Path| Err(std::io::ErrorKind::NotFound.into());
    let engine = unit("chat.service", &[printed(&ENGINE)], &advice, &mut missing).unwrap();
    assert!(engine.is_launched, "{engine:?}");
    let names = ["chat.service", "umawarden.service", "network-online.target"];
    let names: BTreeSet<String> = names.into_iter().map(str::to_owned).collect();
    let findings = examine(&DoctorFacts {
        advice,
        page_bytes: 4096,
        hidden_cma_bytes: Fact::Absent,
        dgx_os: Fact::Absent,
        memory: Fact::Absent,
        kernel: Fact::Absent,
        driver: Fact::Absent,
        has_pressure: Fact::Absent,
        rules_off: Fact::Absent,
        kernel_log: Fact::Absent,
        settings: Fact::Absent,
        lacks: Fact::Absent,
        has_daemon: Fact::Absent,
        engines: Fact::Absent,
        loaders: Fact::Absent,
        raylets: Fact::Absent,
        containers: Fact::Is(Vec::<ContainerFacts>::new()),
        units: Fact::Is((vec![engine], names)),
        systemd: Fact::Absent,
        cluster: Fact::Absent,
    });
    let of_units = findings.iter().find(|finding| finding.check == "units").unwrap();
    assert_eq!(of_units.severity, Severity::Ok, "{findings:#?}");
}
