//! Every position of the chart's switches.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{configuration, container, daemon_set, helm, objects, path, read, rendered};
use crate::daemon::binary;
use crate::dice::rounds;

/// Versions of Kubernetes with other objects for the same values: that of the API server of the
/// tests, and one with profiles of AppArmor as a field.
pub const VERSIONS: [&str; 2] = ["1.20.2", "1.31.0"];

/// Values with each switch in each of its positions.
pub fn positions() -> Vec<Value> {
    let everything = ["notice", "evict", "drop", "cordon", "restart", "stop", "reboot"];
    let mine = json!({"groups": [{"name": "mine", "rules": [
        {"alert": "Mine", "expr": "uma_memory_free_bytes < 1e9"}]}]});
    let mut all = vec![
        json!({}),
        json!({"privileged": false}),
        json!({"enforce": everything}),
        json!({"enforce": everything, "privileged": false}),
        json!({"rights": everything, "privileged": false}),
        json!({"enterNetworks": true, "privileged": false}),
        json!({"hostNetwork": false}),
        json!({"kubernetes": {"conditions": {"UnifiedMemoryLeaked": ["MemoryLeaked"]}}}),
        json!({"kubernetes": {"drain": "evict", "drainFor": "20m"}}),
        json!({"config": {"log": {"level": "debug"}, "web": {"telemetry_path": "/uma"},
                          "guard_rails": {"budget": {"times": 3, "per": "1h"}},
                          "reboot": {"way": "sentinel"}}, "enforce": ["reboot"]}),
        json!({"rules": {"mine.yaml": mine}, "shippedRules": false}),
        json!({"rules": {"mine.yaml": mine, "b.yaml": {"groups": []}}}),
        json!({"web": {"configSecret": "web", "tokensSecret": "tokens", "scheme": "https",
                       "probe": "tcp", "port": 19942,
                       "externalUrl": "https://gpu.example.org/$(NODE_NAME)"}}),
        json!({"gpu": {"runtimeClassName": "nvidia"}}),
        json!({"gpu": {"library": "/usr/lib/aarch64-linux-gnu/libnvidia-ml.so.1"}}),
        json!({"host": {"criSocket": "", "podLogs": ""}}),
        json!({"host": {"podLogs": "/data/pods"}}),
        json!({"host": {"criSocket": "/run/crio/crio.sock", "storage": "/data/uma"}}),
        json!({"config": {"nvsentinel": {"socket": "/var/run/nvsentinel/nvsentinel.sock"}}}),
        json!({"serviceAccount": {"create": false}}),
        json!({"serviceAccount": {"name": "mine", "annotations": {"a": "b"}}}),
        json!({"rbac": {"create": false}}),
        json!({"priorityClass": {"create": true, "name": "umawarden", "value": 1_000_000}}),
        json!({"priorityClass": {"name": ""}}),
        json!({"image": {"tag": "sha256:0123456789abcdef", "pullSecrets": [{"name": "registry"}]}}),
        json!({"env": [{"name": "KEY", "value": "x"}], "podLabels": {"a": "b"},
               "podAnnotations": {"c": "d"}, "affinity": {"nodeAffinity": {}},
               "volumes": [{"name": "keys", "secret": {"secretName": "keys"}}],
               "volumeMounts": [{"name": "keys", "mountPath": "/keys", "readOnly": true}]}),
        json!({"nodeSelector": {"nvidia.com/gpu.present": "true"}, "tolerations": [],
               "resources": {}, "updateStrategy": {"type": "OnDelete", "rollingUpdate": null}}),
        json!({"podMonitor": {"enabled": true, "labels": {"release": "prom"}, "cluster": "lab",
                              "authorization": {"credentials": {"name": "t", "key": "k"}},
                              "tlsConfig": {"insecureSkipVerify": true}}}),
        json!({"podMonitor": {"enabled": true, "basicAuth": {
            "username": {"name": "t", "key": "user"}, "password": {"name": "t", "key": "word"}}}}),
        json!({"prometheusRules": {"enabled": true, "node": false, "recording": false}}),
        json!({"prometheusRules": {"enabled": true, "agents": false}, "dashboards": {"enabled": true}}),
    ];
    all.extend(super::rights::sets_of_features().into_iter().map(|(values, _)| values));
    all
}

/// A pod must not mount what it has no volume for, nor have a volume that nothing mounts.
fn check_volumes(objects: &[Value], values: &Value) {
    let named = |list: &Value, key: &str| {
        let mut names: Vec<String> = list
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one[key].as_str().unwrap().to_owned())
            .collect();
        names.sort();
        names
    };
    let pod = &daemon_set(objects)["spec"]["template"]["spec"];
    let mounts = &container(objects)["volumeMounts"];
    assert_eq!(named(&pod["volumes"], "name"), named(mounts, "name"), "{values}");
    let mut paths = named(mounts, "mountPath");
    paths.dedup();
    assert_eq!(paths.len(), mounts.as_array().unwrap().len(), "{values}");
    // A volume from an object is read-only: nothing can be mounted below it.
    let configuration = "/etc/umawarden/";
    assert!(paths.iter().all(|path| !path.starts_with(configuration)), "{paths:?}");
}

fn check_common(objects: &[Value], values: &Value) {
    for object in objects {
        assert!(object["apiVersion"].is_string() && object["kind"].is_string(), "{values}");
        assert_eq!(object["metadata"]["labels"]["app.kubernetes.io/instance"], "umawarden");
        let is_of_cluster = ["ClusterRole", "ClusterRoleBinding", "PriorityClass"]
            .contains(&object["kind"].as_str().unwrap());
        let namespace = object["metadata"]["namespace"].as_str();
        assert_eq!(namespace, (!is_of_cluster).then_some("umawarden"), "{values}: {object}");
    }
    let spec = &daemon_set(objects)["spec"];
    let labels = spec["template"]["metadata"]["labels"].as_object().unwrap();
    for (key, value) in spec["selector"]["matchLabels"].as_object().unwrap() {
        assert_eq!(labels.get(key), Some(value));
    }
    assert_eq!(spec["template"]["spec"]["hostPID"], true, "engines are processes of the node");
    let security = &container(objects)["securityContext"];
    assert_eq!(
        (&security["runAsUser"], &security["readOnlyRootFilesystem"]),
        (&json!(0), &json!(true))
    );
}

/// A secret as the kubelet mounts it: links to the files of its present version.
fn secret(folder: &Path, name: &str) -> PathBuf {
    let mounted = folder.join(name);
    let version = mounted.join("..2026_11_27");
    fs::create_dir_all(&version).unwrap();
    symlink("..2026_11_27", mounted.join("..data")).unwrap();
    let pem = |name: &str| fs::read_to_string(crate::access::fixture(name)).unwrap();
    let web = "tls_server_config: {cert_file: server.pem, key_file: server.key}\n";
    for (name, text) in [
        ("web.yml", web.to_owned()),
        ("tokens.yml", "[]\n".to_owned()),
        ("server.pem", pem("server.pem")),
        ("server.key", pem("server.key")),
    ] {
        fs::write(version.join(name), text).unwrap();
        fs::set_permissions(version.join(name), PermissionsExt::from_mode(0o400)).unwrap();
        symlink(Path::new("..data").join(name), mounted.join(name)).unwrap();
    }
    mounted
}

/// Whether the program accepts the configuration of the pods. Files and folders of the node are
/// those of this machine.
fn check_configuration(objects: &[Value], values: &Value) {
    let folder = tempfile::tempdir().unwrap();
    let mut settings: Value = serde_saphyr::from_str(configuration(objects)).unwrap();
    settings["storage"]["path"] = folder.path().join("storage").to_str().unwrap().into();
    for (key, path) in [("procfs", "/proc"), ("sysfs", "/sys")] {
        if let Some(named) = settings.pointer_mut(&format!("/path/{key}")) {
            *named = path.into();
        }
    }
    let own_rules = folder.path().join("rules");
    fs::create_dir(&own_rules).unwrap();
    let rules = objects.iter().find(|one| one["metadata"]["name"] == "umawarden-rules");
    for (name, text) in rules.into_iter().flat_map(|map| map["data"].as_object().unwrap()) {
        fs::write(own_rules.join(name), text.as_str().unwrap()).unwrap();
    }
    for entry in settings["rule_files"].as_array_mut().unwrap() {
        let here = own_rules.display().to_string();
        *entry = entry.as_str().unwrap().replace("/etc/umawarden-rules", &here).into();
    }
    for (key, volume, name) in
        [("config_file", "web", "web.yml"), ("tokens_file", "tokens", "tokens.yml")]
    {
        if let Some(named) = settings.pointer_mut(&format!("/web/{key}")) {
            *named = secret(folder.path(), volume).join(name).to_str().unwrap().into();
        }
    }
    let file = folder.path().join("umawarden.yaml");
    fs::write(&file, settings.to_string()).unwrap();
    let mut program = std::process::Command::new(binary());
    let output = program.args(["config", "check", "--config.file"]).arg(&file).output().unwrap();
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8_lossy(&printed);
    assert!(output.status.success(), "{values}\n{settings:#}\n{printed}");
}

#[test]
fn every_position_of_a_switch_makes_pods_that_fit() {
    for (number, values) in positions().into_iter().enumerate() {
        // Each position is rendered for one of the versions in turn, nightly for all.
        let one = number % VERSIONS.len();
        for version in rounds(&VERSIONS[one..=one], &VERSIONS[..]) {
            let Some(objects) = objects(&values, version) else { return };
            check_common(&objects, &values);
            check_volumes(&objects, &values);
        }
    }
}

#[test]
fn the_program_accepts_the_configuration_of_every_position() {
    let mut checked = BTreeSet::new();
    for values in positions() {
        let Some(objects) = objects(&values, VERSIONS[1]) else { return };
        if checked.insert(configuration(&objects).to_owned()) {
            check_configuration(&objects, &values);
        }
    }
}

#[test]
fn an_old_kubernetes_gets_the_apparmor_profile_as_an_annotation() {
    let values = json!({"privileged": false});
    let profile = |version| {
        let objects = objects(&values, version)?;
        let annotations = &daemon_set(&objects)["spec"]["template"]["metadata"]["annotations"];
        let annotation = "container.apparmor.security.beta.kubernetes.io/umawarden";
        let annotated = annotations[annotation] == "unconfined";
        Some((annotated, container(&objects)["securityContext"].get("appArmorProfile").is_some()))
    };
    let Some(old) = profile("1.29.9") else { return };
    assert_eq!(old, (true, false));
    assert_eq!(profile("1.30.0"), Some((false, true)));
}

/// Below `/sys` are mounts of their own, such as those of cgroups.
#[test]
fn the_nodes_files_are_read_only_with_all_mounts_below() {
    let sys = |values: Value, version| {
        let objects = objects(&values, version)?;
        let mounts = container(&objects)["volumeMounts"].as_array().unwrap().clone();
        mounts.into_iter().find(|mount| mount["name"] == "sys")
    };
    let values = || json!({"privileged": false});
    let Some(new) = sys(values(), "1.31.0") else { return };
    assert_eq!((&new["readOnly"], &new["recursiveReadOnly"]), (&json!(true), &json!("IfPossible")));
    assert!(sys(values(), "1.30.0").unwrap().get("recursiveReadOnly").is_none());
    let writing = json!({"privileged": false, "enforce": ["drop"]});
    assert!(sys(writing, "1.31.0").unwrap().get("recursiveReadOnly").is_none());
}

#[test]
fn logs_of_pods_are_mounted_where_the_runtime_says_they_are() {
    let values = json!({"host": {"podLogs": "/data/pods"}});
    let Some(objects) = objects(&values, VERSIONS[1]) else { return };
    let mounts = container(&objects)["volumeMounts"].as_array().unwrap();
    let logs = mounts.iter().find(|mount| mount["name"] == "pod-logs").unwrap();
    assert_eq!(logs["mountPath"], "/data/pods");
}

/// The kubelet has neither password nor certificate for what a secret may demand.
#[test]
fn the_kubelet_probes_the_port_alone_where_a_secret_may_demand_users() {
    let liveness = |web: Value| {
        let objects = objects(&json!({"web": web}), VERSIONS[1])?;
        Some(container(&objects)["livenessProbe"].clone())
    };
    let Some(usual) = liveness(json!({})) else { return };
    assert_eq!(usual["httpGet"]["path"], "/-/healthy");
    let secret = liveness(json!({"configSecret": "web"})).unwrap();
    assert_eq!(
        (&secret["tcpSocket"]["port"], &secret["httpGet"]),
        (&json!("metrics"), &Value::Null)
    );
    let chosen = json!({"configSecret": "web", "scheme": "https", "probe": "http"});
    assert_eq!(liveness(chosen).unwrap()["httpGet"]["scheme"], "HTTPS");
}

#[test]
fn a_changed_configuration_or_rule_starts_the_pods_anew() {
    let mark = |values: Value| {
        let objects = objects(&values, VERSIONS[1])?;
        let metadata = &daemon_set(&objects)["spec"]["template"]["metadata"];
        Some(metadata["annotations"]["umawarden.dev/configuration"].to_string())
    };
    let rule = |group: &str| json!({"rules": {"a.yaml": {"groups": [{"name": group}]}}});
    let Some(usual) = mark(json!({})) else { return };
    let marks = [usual, mark(json!({"enforce": ["evict"]})).unwrap(), mark(rule("a")).unwrap()];
    assert!(marks[0] != marks[1] && marks[0] != marks[2]);
    assert_ne!(mark(rule("b")).unwrap(), marks[2]);
}

/// Values that the schema refuses, and where the error says they are.
#[test]
fn the_schema_refuses_what_cannot_work() {
    for (values, location) in [
        (json!({"enforce": ["boom"]}), "/enforce/0"),
        (json!({"enforce": ["evict", "evict"]}), "/enforce"),
        (json!({"config": {"mode": "enforce"}}), "/config/mode"),
        (json!({"config": {"kubernetes": {}}}), "/config/kubernetes"),
        (json!({"config": {"web": {"listen_address": ":1"}}}), "/config/web/listen_address"),
        (json!({"config": {"storage": {"path": "/x"}}}), "/config/storage/path"),
        (json!({"config": {"path": {"procfs": "/x"}}}), "/config/path/procfs"),
        (json!({"config": {"reboot": {"way": "command"}}}), "/config/reboot/way"),
        (json!({"kubernetes": {"drain": "maybe"}}), "/kubernetes/drain"),
        (json!({"kubernetes": {"taints": true}}), "taints"),
        (json!({"priorityClass": {"create": true}}), "/priorityClass/name"),
        (json!({"web": {"scheme": "https"}}), "/web/configSecret"),
        (json!({"web": {"port": 0}}), "/web/port"),
        (json!({"rules": {"mine": {"groups": []}}}), "mine"),
        (json!({"rules": {"mine.yaml": {}}}), "/rules/mine.yaml"),
        (json!({"prometheusRules": {"enabled": true, "cluster": true}}), "/podMonitor/cluster"),
        (json!({"host": {"storage": "relative"}}), "/host/storage"),
        (json!({"terminationGracePeriodSeconds": 5}), "/terminationGracePeriodSeconds"),
        (json!({"privileged": "yes"}), "/privileged"),
        (json!({"admissionPolicy": {"enabled": "yes"}}), "/admissionPolicy/enabled"),
    ] {
        let Some(rendered) = rendered(&values, VERSIONS[1]) else { return };
        let error = rendered.expect_err(&values.to_string());
        assert!(error.contains(location), "{values}: {error}");
    }
}

#[test]
fn helm_finds_nothing_wrong_with_the_chart() {
    let chart = path("packaging/kubernetes/chart/umawarden");
    let Some(linted) = helm(&["lint", "--strict", chart.to_str().unwrap()]) else { return };
    let printed = linted.unwrap_or_else(|error| panic!("{error}"));
    assert!(printed.contains("1 chart(s) linted, 0 chart(s) failed"), "{printed}");
    let notes = read("packaging/kubernetes/chart/umawarden/templates/NOTES.txt");
    assert!(notes.contains("umawarden status"));
}
