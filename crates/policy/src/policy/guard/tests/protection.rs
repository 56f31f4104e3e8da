use std::sync::Arc;

use promql_rules::Labels;

use crate::model::{EngineTarget, Pod, Proof, Supervisor, Target};
use crate::policy::guard::{Glob, Protected};

fn globs(texts: &[&str]) -> Vec<Glob> {
    texts.iter().map(|text| Glob::try_from((*text).to_owned()).unwrap()).collect()
}

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(name, value)| (Arc::from(*name), Arc::from(*value))).collect()
}

fn protects(protected: &Protected, path: &str, alert: &[(&str, &str)]) -> bool {
    protected.protects(&Target::Cgroup { path: Arc::from(path) }, &labels(alert))
}

const CONTAINER: &str = "/system.slice/\
    docker-0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef.scope";

#[test]
fn a_unit_matches_by_its_cgroup_and_by_the_alerts_label() {
    let own = Protected { units: globs(&["vllm*.service"]), ..Protected::default() };
    assert!(protects(&own, "/system.slice/vllm-7b.service", &[]));
    assert!(protects(&own, "/system.slice/vllm-7b.service/sub", &[]), "and all below it");
    assert!(!protects(&own, "/system.slice/backup.service", &[]));
    assert!(protects(&own, "/system.slice/backup.service", &[("unit", "vllm.service")]));
}

#[test]
fn a_protected_slice_protects_its_units() {
    let own = Protected { units: globs(&["vllm*.service"]), ..Protected::default() };
    for path in ["/", "/system.slice", "/user.slice/user-1000.slice"] {
        assert!(protects(&own, path, &[]), "{path}");
        assert!(!protects(&Protected::default(), path, &[]), "{path}");
    }
}

#[test]
fn a_container_matches_by_id_and_by_name_only_from_a_label() {
    let by_id = Protected { containers: globs(&["0123456789ab*"]), ..Protected::default() };
    assert!(protects(&by_id, CONTAINER, &[("container", "other")]));
    let by_name = Protected { containers: globs(&["prod-*"]), ..Protected::default() };
    assert!(protects(&by_name, CONTAINER, &[("container", "prod-7b")]));
    assert!(!protects(&by_name, CONTAINER, &[("container", "test")]));
    assert!(protects(&by_name, CONTAINER, &[]), "it may be any");
    assert!(!protects(&by_name, "/system.slice/backup.service", &[]), "no container");
}

#[test]
fn processes_match_only_if_the_alert_names_them() {
    let own = Protected { processes: globs(&["python3", "vllm?"]), ..Protected::default() };
    let path = "/system.slice/a.service";
    assert!(protects(&own, path, &[]), "doubt means hold");
    assert!(protects(&own, path, &[("comm", "vllm1")]));
    assert!(!protects(&own, path, &[("process", "backup")]));
}

#[test]
fn labels_protect_every_target_and_the_node_is_never_protected() {
    let own = Protected {
        labels: vec![(Arc::from("tenant"), globs(&["gold-*"]).remove(0))],
        units: globs(&["*"]),
        ..Protected::default()
    };
    let gold = [("tenant", "gold-1")];
    let only_labels = Protected { units: Vec::new(), ..own.clone() };
    assert!(protects(&only_labels, "/a", &gold));
    assert!(!protects(&only_labels, "/a", &[("tenant", "silver")]));
    assert!(!own.protects(&Target::Node, &labels(&gold)));
}

#[test]
fn an_engine_matches_by_name_processes_and_their_cgroups() {
    let engine = EngineTarget {
        name: Arc::from("prod-7b"),
        comms: [Arc::from("VLLM::EngineCor"), Arc::from("vllm")].into(),
        cgroup: Some(Arc::from("/system.slice/vllm-7b.service")),
        ..EngineTarget::default()
    };
    let protects = |own: &Protected, engine: &EngineTarget| {
        own.protects(&Target::Engine(Box::new(engine.clone())), &labels(&[]))
    };
    let by_comm = Protected { processes: globs(&["VLLM::*"]), ..Protected::default() };
    let by_name = Protected { processes: globs(&["prod-*"]), ..Protected::default() };
    let by_unit = Protected { units: globs(&["vllm*.service"]), ..Protected::default() };
    let by_container = Protected { containers: globs(&["prod-*"]), ..Protected::default() };
    for own in [&by_comm, &by_name, &by_unit] {
        assert!(protects(own, &engine));
    }
    assert!(!protects(&by_container, &engine), "it is in none");
    let other = EngineTarget { name: Arc::from("test"), comms: [].into(), ..engine.clone() };
    assert!(!protects(&by_comm, &other) && !protects(&by_name, &other));
    let lost = EngineTarget { cgroup: None, ..other };
    assert!(protects(&by_unit, &lost) && protects(&by_container, &lost), "doubt means hold");
    let inside = EngineTarget { container: Some(Arc::from("0123")), ..engine };
    assert!(protects(&by_container, &inside), "its name is not known");
    let named = |name: &str| EngineTarget { container_name: Some(name.into()), ..inside.clone() };
    assert!(protects(&by_container, &named("prod-1")), "Docker has reported it");
    assert!(!protects(&by_container, &named("test-1")));
    let by_unit = Protected { units: globs(&["prod.service"]), ..Protected::default() };
    let client_unit = Some("prod.service".into());
    let run = EngineTarget { client_unit, ..named("test-1") };
    assert!(protects(&by_unit, &run) && !protects(&by_unit, &named("test-1")));
}

#[test]
fn an_engine_hides_behind_no_name_that_a_user_can_choose() {
    let id = "0123456789abcdef".repeat(4);
    let protects = |protected: &Protected, cgroup: String, claimed: Option<&str>| {
        let engine = EngineTarget {
            name: "hog".into(),
            cgroup: Some(cgroup.into()),
            claimed_container: claimed.map(Arc::from),
            ..EngineTarget::default()
        };
        protected.protects(&Target::Engine(Box::new(engine)), &labels(&[]))
    };
    let user = "/user.slice/user-7.slice/user@7.service/app.slice";
    let units = Protected { units: globs(&["vllm.service"]), ..Protected::default() };
    assert!(protects(&units, "/system.slice/vllm.service/sub".into(), None));
    assert!(!protects(&units, format!("{user}/vllm.service"), None));
    let users = Protected { units: globs(&["user@7.service"]), ..Protected::default() };
    assert!(protects(&users, format!("{user}/vllm.service"), None), "root chose that name");
    // Docker is silent, so that it may be any container; but no user makes one of root's.
    let by_name = Protected { containers: globs(&["prod-*"]), ..Protected::default() };
    assert!(protects(&by_name, format!("/system.slice/docker-{id}.scope"), Some(&id)));
    assert!(!protects(&by_name, format!("{user}/docker-{id}.scope"), Some(&id)));
}

const POD_GROUP: &str = "/kubepods.slice/kubepods-burstable.slice/\
    kubepods-burstable-pod6f1c0ddc_6a0b_4c2d_8e4f_5061728394a5.slice/\
    cri-containerd-0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef.scope";

/// An engine in a pod of that namespace, with that label `app`.
fn in_pod(namespace: &str, app: Option<&str>) -> EngineTarget {
    let pod = Pod {
        namespace: namespace.into(),
        name: "vllm-0".into(),
        uid: "6f1c0ddc-6a0b-4c2d-8e4f-5061728394a5".into(),
        container: "engine".into(),
        labels: app.map(|app| [("app".into(), app.into())].into()),
    };
    EngineTarget {
        name: "vllm".into(),
        cgroup: Some(POD_GROUP.into()),
        container: Some("0123456789abcdef".repeat(4).into()),
        container_name: Some("engine".into()),
        proof: Proof::PodContainer,
        pod: Some(Arc::new(pod)),
        ..EngineTarget::default()
    }
}

fn protects_engine(own: &Protected, engine: EngineTarget) -> bool {
    own.protects(&Target::Engine(Box::new(engine)), &labels(&[]))
}

#[test]
fn a_pod_is_protected_by_its_namespace_and_its_labels() {
    let usual = Protected::usual();
    assert!(protects_engine(&usual, in_pod("kube-system", None)));
    assert!(!protects_engine(&usual, in_pod("llm", None)));
    let prod = Protected { namespaces: globs(&["prod-*"]), ..Protected::default() };
    assert!(protects_engine(&prod, in_pod("prod-1", None)));
    assert!(!protects_engine(&prod, in_pod("test", None)));
    let app = globs(&["db*"]).remove(0);
    let by_label = Protected { pod_labels: vec![("app".into(), app)], ..Protected::default() };
    assert!(protects_engine(&by_label, in_pod("llm", Some("db-1"))));
    assert!(!protects_engine(&by_label, in_pod("llm", Some("llm"))));
    assert!(protects_engine(&by_label, in_pod("llm", None)), "its labels are unknown");
    // An alert that names the namespace is about a pod of it.
    let engine = Target::Engine(Box::new(in_pod("llm", Some("llm"))));
    assert!(usual.protects(&engine, &labels(&[("namespace", "kube-system")])));
    let held = Target::held(Supervisor::Cri, "kube-system/dns-0/dns", "ab");
    assert!(usual.protects(&held, &labels(&[])));
    assert!(!usual.protects(&Target::held(Supervisor::Docker, "a/b", "ab"), &labels(&[])));
}

#[test]
fn a_unit_of_a_user_is_protected_by_its_name_or_with_the_users_systemd() {
    let held = |user| Target::held(Supervisor::SystemdOfUser(user), "vllm.service", "vllm.service");
    let units = |name| Protected { units: globs(&[name]), ..Protected::default() };
    for (name, of_7, of_8) in [
        ("vllm.service", true, true),
        ("user@7.service", true, false),
        ("other.service", false, false),
    ] {
        let protects = |user| units(name).protects(&held(user), &labels(&[]));
        assert_eq!((protects(7), protects(8)), (of_7, of_8), "{name}");
    }
}

#[test]
fn a_pod_that_no_runtime_confirms_may_be_in_any_namespace() {
    let usual = Protected::usual();
    let unproven = EngineTarget { pod: None, ..in_pod("llm", None) };
    assert!(protects_engine(&usual, unproven.clone()), "the runtime does not name its pod");
    let claimed = unproven.container.clone();
    let claims = EngineTarget {
        container: None,
        claimed_container: claimed,
        proof: Proof::Claimed,
        ..unproven
    };
    assert!(protects_engine(&usual, claims.clone()));
    assert!(!protects_engine(&Protected::default(), claims.clone()));
    // A user's own groups hold no pod of a kubelet, whatever they are called.
    let of_user: Arc<str> = format!("/user.slice/user-7.slice/user@7.service{POD_GROUP}").into();
    let hidden = EngineTarget { cgroup: Some(of_user), ..claims.clone() };
    assert!(!protects_engine(&usual, hidden));
    let elsewhere: Arc<str> = "/system.slice/vllm.service".into();
    let service =
        EngineTarget { cgroup: Some(elsewhere), claimed_container: None, ..claims.clone() };
    assert!(!protects_engine(&usual, service.clone()));
    // Without a control group only what somebody has written counts in doubt.
    let lost = EngineTarget { cgroup: None, ..service };
    assert!(!protects_engine(&usual, lost.clone()));
    let prod = Protected { namespaces: globs(&["prod"]), ..Protected::default() };
    assert!(protects_engine(&prod, lost));
}

#[test]
fn a_control_group_of_pods_is_protected_unless_its_namespace_is_known() {
    let usual = Protected::usual();
    for path in [POD_GROUP, "/kubepods.slice", "/kubepods/burstable"] {
        assert!(protects(&usual, path, &[]), "{path}");
    }
    assert!(!protects(&usual, POD_GROUP, &[("namespace", "llm")]));
    assert!(protects(&usual, "/kubepods.slice", &[("namespace", "llm")]), "it has others too");
    for path in ["/", "/system.slice", "/system.slice/vllm.service", CONTAINER] {
        assert!(!protects(&usual, path, &[]), "{path}");
    }
}
