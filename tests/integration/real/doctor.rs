//! Findings of `umawarden doctor` about real containers.

use std::process::Command;

use serde_json::Value;

use super::docker::Dockerd;
use super::enabled;
use crate::daemon::binary;

#[test]
fn real_containers_with_risky_options_are_found() {
    if !enabled() {
        return;
    }
    let dockerd = Dockerd::start();
    dockerd.import_busybox();
    for (name, options) in [
        ("racing", &["--restart", "always", "--gpus", "all"][..]),
        ("removed", &["--rm", "--gpus", "all"]),
        ("shared", &["--gpus", "all", "--shm-size", "1000g"]),
        ("plain", &["--restart", "always"]),
    ] {
        let made = [&["create", "--network", "none", "--name", name], options].concat();
        let made = dockerd.docker(&[&made, &["busybox", "/bin/busybox", "true"][..]].concat());
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }
    let storage = tempfile::tempdir().unwrap();
    let doctor = |socket: &str| {
        let output = Command::new(binary())
            .args(["doctor", "--json", "--path.docker-socket", socket, "--storage.path"])
            .arg(storage.path())
            .output()
            .unwrap();
        let lines = String::from_utf8(output.stdout).unwrap();
        let findings: Vec<Value> =
            lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        (output.status.code().unwrap(), findings)
    };
    let (code, findings) = doctor(&dockerd.socket_path());
    assert_eq!(code, 3, "a /dev/shm of 1000 GiB is a problem: {findings:#?}");
    let found = |subject: &str| {
        let of_it = findings.iter().filter(|one| one["subject"] == subject);
        of_it.map(|one| one["check"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(found("container racing"), ["restart_policy"]);
    assert_eq!(found("container removed"), ["auto_remove"]);
    assert_eq!(found("container shared"), ["shm_size"]);
    assert!(found("container plain").is_empty(), "it has no GPU, and runs no engine");
    let (_, findings) = doctor("/no/such/socket");
    let of_docker = findings.iter().find(|one| one["check"] == "containers").unwrap();
    assert_eq!(of_docker["severity"], "ok", "{of_docker}");
    drop(dockerd);
}
