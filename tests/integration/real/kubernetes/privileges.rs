//! What the chart gives a pod without `privileged` suffices for the grades that it enforces: the
//! program itself says so, in a container of the real Docker with the same rights and folders.

use std::fs;

use rustix::thread::{CapabilitySet, capabilities};
use serde_json::{Value, json};

use super::super::docker::Dockerd;
use super::super::enabled;
use crate::chart::{Objects, container, daemon_set, objects, strings};
use crate::daemon::binary;

/// Docker's options for what the pod has: security context, folders of the node.
fn options(objects: &Objects) -> Vec<String> {
    let security = &container(objects)["securityContext"];
    let mut options: Vec<String> =
        ["--pid=host", "--network=host", "--user=0", "--read-only"].map(str::to_owned).to_vec();
    options.push("--cap-drop=ALL".to_owned());
    for name in strings(&security["capabilities"]["add"]) {
        // Some machines of developers lack it; it only keeps the program going.
        let own = capabilities(None).unwrap().permitted;
        let has_resource = own.contains(CapabilitySet::SYS_RESOURCE);
        if name != "SYS_RESOURCE" || has_resource {
            options.push(format!("--cap-add={name}"));
        }
    }
    if security["seccompProfile"]["type"] == "Unconfined" {
        options.push("--security-opt=seccomp=unconfined".to_owned());
    }
    if security["allowPrivilegeEscalation"] == false {
        options.push("--security-opt=no-new-privileges".to_owned());
    }
    let volumes = daemon_set(objects)["spec"]["template"]["spec"]["volumes"].as_array().unwrap();
    for mount in container(objects)["volumeMounts"].as_array().unwrap() {
        let volume = volumes.iter().find(|volume| volume["name"] == mount["name"]).unwrap();
        // The others are folders that this machine need not have.
        if let Some(folder @ ("/proc" | "/sys")) = volume["hostPath"]["path"].as_str() {
            let mode = if mount["readOnly"] == true { "ro" } else { "rw" };
            options
                .push(format!("--volume={folder}:{}:{mode}", mount["mountPath"].as_str().unwrap()));
        }
    }
    options
}

/// What the program lacks for `enforced` in a container of the chart with `given`.
fn lacks(dockerd: &Dockerd, given: &[&str], enforced: &[&str]) -> Option<Vec<String>> {
    let objects = objects(&json!({"privileged": false, "rights": given}), "1.31.0")?;
    let folder = tempfile::tempdir().unwrap();
    let config: Value = json!({"enforce": enforced,
        "path": {"procfs": "/host/proc", "sysfs": "/host/sys"}});
    fs::write(folder.path().join("umawarden.yaml"), config.to_string()).unwrap();
    let mut arguments = vec!["run".to_owned(), "--rm".to_owned()];
    arguments.extend(options(&objects));
    // The program and its libraries are those of this machine.
    for folder in ["/lib", "/lib64", "/usr/lib"] {
        arguments.push(format!("--volume={folder}:{folder}:ro"));
    }
    arguments.push(format!("--volume={}:/bin/umawarden:ro", binary().display()));
    arguments.push(format!("--volume={}:/etc/umawarden:ro", folder.path().display()));
    let command = ["busybox", "/bin/umawarden", "rules", "check"];
    arguments.extend(command.map(str::to_owned));
    arguments.push("--config.file=/etc/umawarden/umawarden.yaml".to_owned());
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let output = dockerd.docker(&arguments);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {output:?}");
    let lines =
        printed.lines().filter(|line| line.starts_with("on this node: not available: action"));
    // What the kernel of this machine lacks is no right.
    let is_right = |line: &&str| !line.contains("this kernel has no") && !line.contains("cgroup");
    Some(lines.filter(is_right).map(str::to_owned).collect())
}

#[test]
fn a_pod_without_privileges_lacks_nothing_for_the_grades_that_it_enforces() {
    if !enabled() || objects(&json!({}), "1.31.0").is_none() {
        return;
    }
    let dockerd = Dockerd::start();
    dockerd.import_busybox();
    for grade in ["evict", "drop", "stop"] {
        let lacking = |given: &[&str]| lacks(&dockerd, given, &[grade]).unwrap();
        assert_eq!(lacking(&[grade]), [""; 0], "{grade}");
        assert_ne!(lacking(&[]), [""; 0], "{grade} needs what it is given");
    }
    let all = ["evict", "drop", "stop"];
    assert_eq!(lacks(&dockerd, &all, &all).unwrap(), [""; 0]);
}
