//! Each feature gives the rights that it needs, and no other.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{configuration, container, daemon_set, objects, only, read, rendered, strings, yaml};

/// A version of Kubernetes whose objects the chart makes.
const VERSION: &str = "1.31.0";

/// A verb and a resource of the core group.
pub type Right = (&'static str, &'static str);

/// A feature that uses the API server.
pub struct Feature {
    /// Its value, as a JSON pointer.
    pub place: &'static str,
    /// The position in which it is on, in JSON.
    pub value: &'static str,
    /// What it does there.
    pub rights: &'static [Right],
}

const fn feature(place: &'static str, value: &'static str, rights: &'static [Right]) -> Feature {
    Feature { place, value, rights }
}

const REPORTS: &[Right] = &[("get", "nodes"), ("patch", "nodes/status")];
const CORDONS: &[Right] = &[("get", "nodes"), ("patch", "nodes")];

/// All of them.
pub const FEATURES: [Feature; 7] = [
    feature("/kubernetes/conditions", "true", REPORTS),
    feature(
        "/kubernetes/events",
        "true",
        &[("get", "nodes"), ("create", "events"), ("patch", "events")],
    ),
    feature("/kubernetes/extendedResource", "true", REPORTS),
    feature("/kubernetes/drain", "\"cordon\"", CORDONS),
    feature(
        "/kubernetes/drain",
        "\"evict\"",
        &[("get", "nodes"), ("patch", "nodes"), ("list", "pods"), ("create", "pods/eviction")],
    ),
    feature("/enforce", "[\"cordon\"]", CORDONS),
    feature("/rights", "[\"cordon\"]", CORDONS),
];

/// Values with nothing that uses the API server.
pub fn without_features() -> Value {
    let kubernetes =
        json!({"conditions": false, "events": false, "extendedResource": false, "drain": "none"});
    json!({"kubernetes": kubernetes, "enforce": [], "rights": []})
}

/// Every set of features, as values and what they may do.
pub fn sets_of_features() -> Vec<(Value, BTreeSet<Right>)> {
    let mut sets = Vec::new();
    for chosen in 0..1_u32 << FEATURES.len() {
        let (mut values, mut rights) = (without_features(), BTreeSet::new());
        let mut places = BTreeSet::new();
        let of_set = FEATURES.iter().enumerate().filter(|(at, _)| chosen & (1 << at) != 0);
        for (_, feature) in of_set {
            places.insert(feature.place);
            *values.pointer_mut(feature.place).unwrap() =
                serde_json::from_str(feature.value).unwrap();
            rights.extend(feature.rights);
        }
        // A switch has one position at a time.
        if places.len() == chosen.count_ones() as usize {
            sets.push((values, rights));
        }
    }
    sets
}

/// What a role permits.
fn permitted(role: &Value) -> BTreeSet<(&str, &str)> {
    let mut permitted = BTreeSet::new();
    for rule in role["rules"].as_array().unwrap() {
        assert_eq!(rule["apiGroups"], json!([""]), "{rule}");
        assert_eq!(rule.as_object().unwrap().len(), 3, "{rule}");
        for resource in strings(&rule["resources"]) {
            permitted.extend(strings(&rule["verbs"]).into_iter().map(|verb| (verb, resource)));
        }
    }
    permitted
}

#[test]
fn the_role_has_the_rights_of_the_features_that_are_on_and_no_other() {
    for (values, rights) in sets_of_features() {
        let Some(objects) = objects(&values, VERSION) else { return };
        let role = only(&objects, "ClusterRole", "umawarden");
        let binding = only(&objects, "ClusterRoleBinding", "umawarden");
        let pod = &daemon_set(&objects)["spec"]["template"]["spec"];
        assert_eq!(pod["automountServiceAccountToken"], !rights.is_empty(), "{values}");
        assert_eq!(role.map(permitted).unwrap_or_default(), rights, "{values}");
        assert_eq!(role.is_some(), binding.is_some());
        if let (Some(role), Some(binding)) = (role, binding) {
            assert_eq!(binding["roleRef"]["name"], role["metadata"]["name"]);
            let subject = &binding["subjects"][0];
            assert_eq!(subject["name"], pod["serviceAccountName"]);
            assert_eq!(subject["namespace"], "umawarden");
        }
    }
}

/// A pod leaves its taints to the next one only where the DaemonSet says that there is one.
#[test]
fn pods_that_may_taint_can_read_their_own_daemon_set_and_no_other() {
    for (values, hands_over) in [
        (json!({"enforce": ["cordon"]}), true),
        (json!({"rights": ["cordon"]}), true),
        (json!({"enforce": ["evict"], "kubernetes": {"drain": "cordon"}}), false),
    ] {
        let Some(objects) = objects(&values, VERSION) else { return };
        let role = only(&objects, "Role", "umawarden");
        assert_eq!(role.is_some(), hands_over, "{values}");
        assert_eq!(only(&objects, "RoleBinding", "umawarden").is_some(), hands_over, "{values}");
        let annotations = &daemon_set(&objects)["spec"]["template"]["metadata"]["annotations"];
        assert_eq!(annotations["umawarden.dev/takes-over"] == "true", hands_over, "{values}");
        let settings = yaml(configuration(&objects));
        let named = &settings["kubernetes"]["daemon_set"];
        let Some(role) = role else {
            assert_eq!(*named, Value::Null, "{values}");
            continue;
        };
        let rule = json!({"apiGroups": ["apps"], "resources": ["daemonsets"],
            "resourceNames": ["umawarden"], "verbs": ["get"]});
        assert_eq!(role["rules"], json!([rule]));
        let metadata = &daemon_set(&objects)["metadata"];
        let [namespace, name] = ["namespace", "name"].map(|key| metadata[key].as_str().unwrap());
        assert_eq!(*named, format!("{namespace}/{name}"));
    }
}

/// `policy.rs` evaluates its expressions.
#[test]
fn the_admission_policy_bounds_this_account_and_is_refused_where_tokens_name_no_node() {
    let values = |more: Value| {
        let mut values = json!({"admissionPolicy": {"enabled": true}, "enforce": ["cordon"]});
        values.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        values
    };
    let Some(old) = rendered(&values(json!({})), "1.29.9") else { return };
    let error = old.expect_err("1.29 has no node in tokens");
    assert!(error.contains("admissionPolicy needs Kubernetes 1.30"), "{error}");
    let made = objects(&values(json!({"serviceAccount": {"name": "mine"}})), "1.30.0").unwrap();
    let policy = only(&made, "ValidatingAdmissionPolicy", "umawarden").unwrap();
    let binding = only(&made, "ValidatingAdmissionPolicyBinding", "umawarden").unwrap();
    assert_eq!(binding["spec"]["policyName"], policy["metadata"]["name"]);
    assert_eq!(binding["spec"]["validationActions"], json!(["Deny"]));
    let spec = &policy["spec"];
    assert_eq!(spec["failurePolicy"], "Fail");
    let account = r#"request.userInfo.username == "system:serviceaccount:umawarden:mine""#;
    assert_eq!(spec["matchConditions"][0]["expression"], account);
    let own = spec["variables"][0]["expression"].as_str().unwrap();
    assert!(own.contains("authentication.kubernetes.io/node-name"), "{own}");
    // Whatever the role lets it write is bounded, but for evictions.
    let rules = spec["matchConstraints"]["resourceRules"].as_array().unwrap();
    let bounded: BTreeSet<&str> =
        rules.iter().flat_map(|rule| strings(&rule["resources"])).collect();
    assert_eq!(bounded, ["events", "nodes", "nodes/status"].into());
    let role = only(&made, "ClusterRole", "umawarden").unwrap();
    let mut written = permitted(role).into_iter().filter(|(verb, _)| *verb != "get");
    assert!(written.all(|(_, resource)| bounded.contains(resource)), "{role}");
    let unused = without_features();
    let more = json!({"kubernetes": unused["kubernetes"], "enforce": []});
    let none = objects(&values(more), "1.30.0").unwrap();
    assert!(only(&none, "ValidatingAdmissionPolicy", "umawarden").is_none());
    let usual = objects(&json!({}), "1.31.0").unwrap();
    assert!(only(&usual, "ValidatingAdmissionPolicy", "umawarden").is_none());
}

/// What NPD is given, and clusters already have: the defaults fit into it.
#[test]
fn the_defaults_stay_within_the_role_of_node_problem_detectors() {
    let Some(objects) = objects(&json!({}), VERSION) else { return };
    let within = [
        ("get", "nodes"),
        ("patch", "nodes/status"),
        ("create", "events"),
        ("patch", "events"),
        ("update", "events"),
    ];
    let role = permitted(only(&objects, "ClusterRole", "umawarden").unwrap());
    assert!(role.is_subset(&within.into()), "{role:?}");
}

/// Without capabilities, `CAP_` left out.
fn capabilities_of(unit: &str) -> BTreeSet<String> {
    let lines = read(&format!("packaging/systemd/{unit}"));
    let lines = lines.lines().filter_map(|line| line.strip_prefix("CapabilityBoundingSet="));
    let names = lines.flat_map(str::split_whitespace);
    names.map(|name| name.strip_prefix("CAP_").unwrap().to_owned()).collect()
}

#[test]
fn a_container_without_privileges_has_the_capabilities_of_the_unit_and_its_drop_ins() {
    // The unit has the last three by LimitMEMLOCK, Nice and OOMScoreAdjust.
    let mut base = capabilities_of("umawarden.service");
    base.extend(["IPC_LOCK", "SYS_NICE", "SYS_RESOURCE"].map(str::to_owned));
    let cases: [(Value, &[&str]); 8] = [
        (json!({}), &[]),
        (json!({"enforce": ["notice"]}), &[]),
        (json!({"enforce": ["evict"]}), &["evict.conf", "engines.conf"]),
        (json!({"enforce": ["drop"]}), &["memory.conf"]),
        (json!({"enforce": ["stop"]}), &["stop.conf"]),
        (json!({"enforce": ["reboot", "restart", "cordon"]}), &["reboot.conf"]),
        (json!({"enterNetworks": true}), &["engines.conf"]),
        (
            json!({"rights": ["evict", "stop"], "enforce": ["drop"]}),
            &["evict.conf", "engines.conf", "stop.conf"],
        ),
    ];
    for (mut values, drop_ins) in cases {
        values["privileged"] = false.into();
        let Some(objects) = objects(&values, VERSION) else { return };
        let security = &container(&objects)["securityContext"];
        let mut expected = base.clone();
        expected
            .extend(drop_ins.iter().flat_map(|one| capabilities_of(&format!("drop-ins/{one}"))));
        let given: BTreeSet<String> =
            strings(&security["capabilities"]["add"]).into_iter().map(str::to_owned).collect();
        assert_eq!(given, expected, "{values}");
        assert_eq!(security["capabilities"]["drop"], json!(["ALL"]));
        let is_admin = given.contains("SYS_ADMIN");
        let escalates = security["allowPrivilegeEscalation"].as_bool();
        assert_eq!(escalates, (!is_admin).then_some(false), "{values}");
        assert_eq!(security.get("privileged"), None);
    }
}

/// The folders of the node that the pod can see, and whether it can write there.
fn folders(values: &Value) -> Option<BTreeSet<(String, bool)>> {
    let objects = objects(values, VERSION)?;
    let pod = &daemon_set(&objects)["spec"]["template"]["spec"];
    let volumes = pod["volumes"].as_array().unwrap();
    let mounts = container(&objects)["volumeMounts"].as_array().unwrap();
    let of_node = mounts.iter().filter_map(|mount| {
        let volume = volumes.iter().find(|volume| volume["name"] == mount["name"]).unwrap();
        let folder = volume["hostPath"]["path"].as_str()?.to_owned();
        Some((folder, mount["readOnly"] != true))
    });
    Some(of_node.collect())
}

#[test]
fn each_grade_reaches_the_folders_that_it_needs() {
    let own = [("/var/lib/umawarden", true), ("/run/umawarden", true)];
    let always = [("/run/containerd", false), ("/var/log/pods", false)];
    let by_sentinel = json!({"reboot": {"way": "sentinel", "sentinel_file": "/run/kured/wanted"}});
    let cases: [(Value, &[(&str, bool)]); 10] = [
        (json!({}), &[]),
        (json!({"enforce": ["evict", "drop", "stop", "cordon"]}), &[]),
        (json!({"enforce": ["restart"]}), &[("/run/dbus", false)]),
        (json!({"enforce": ["reboot"]}), &[("/run/dbus", false)]),
        (json!({"enforce": ["reboot"], "config": by_sentinel}), &[("/run/kured", true)]),
        (
            json!({"config": {"nvsentinel": {"socket": "/var/run/nvsentinel/nvsentinel.sock"}}}),
            &[("/var/run/nvsentinel", false)],
        ),
        (json!({"privileged": false}), &[("/proc", false), ("/sys", false)]),
        (
            json!({"privileged": false, "enforce": ["evict", "stop"]}),
            &[("/proc", false), ("/sys", false)],
        ),
        (json!({"privileged": false, "enforce": ["drop"]}), &[("/proc", true), ("/sys", true)]),
        (
            json!({"privileged": false, "enforce": ["reboot"],
                   "config": {"reboot": {"sysrq": "allowed"}}}),
            &[("/proc", true), ("/sys", true), ("/run/dbus", false)],
        ),
    ];
    for (values, more) in cases {
        let expected = own.iter().chain(&always).chain(more);
        let expected = expected.map(|(folder, writable)| ((*folder).to_owned(), *writable));
        let Some(folders) = folders(&values) else { return };
        assert_eq!(folders, expected.collect(), "{values}");
    }
}
