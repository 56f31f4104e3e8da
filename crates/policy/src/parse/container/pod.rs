//! The pod of a container: what its control group claims, and what the runtime reports.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::model::Pod;
use crate::parse::process::printable;

/// Labels of the kubelet (`pkg/kubelet/kuberuntime/labels.go` of Kubernetes). It writes them over
/// labels of the pod with the same names.
const NAME: &str = "io.kubernetes.pod.name";
const NAMESPACE: &str = "io.kubernetes.pod.namespace";
const UID: &str = "io.kubernetes.pod.uid";
const CONTAINER: &str = "io.kubernetes.container.name";

/// Longer names are none: a subdomain in the sense of Kubernetes.
const LONGEST_NAME_BYTES: usize = 253;
/// The same of UIDs: 36 characters from the API server, 32 of a static pod.
const LONGEST_UID_BYTES: usize = 64;

/// The most labels of a pod that are kept, and the longest key and value: `PREFIX/NAME` with 253
/// and 63 characters, and 63 (Kubernetes, "Labels and Selectors").
const MOST_LABELS: usize = 64;
const LONGEST_KEY_BYTES: usize = 317;
const LONGEST_VALUE_BYTES: usize = 63;

/// A pod as the runtime reports its sandbox.
#[derive(Clone, Copy, Debug)]
pub struct Sandbox<'a> {
    /// Name of the pod.
    pub name: &'a str,
    /// Namespace of the pod.
    pub namespace: &'a str,
    /// UID of the pod, which no other pod ever has.
    pub uid: &'a str,
    /// Its labels, with those of the kubelet.
    pub labels: &'a HashMap<String, String>,
}

/// The pod of a container. `name`: of the container, as the runtime has it; `labels`: of the
/// container. Without a sandbox the kubelet's labels name the pod, and its own are unknown.
///
/// `None`: it has none, one of its names cannot be one, or labels and sandbox name different pods.
pub fn named_pod(
    name: &str,
    labels: &HashMap<String, String>,
    sandbox: Option<&Sandbox<'_>>,
) -> Option<Pod> {
    let label = |key: &str| labels.get(key).map(String::as_str);
    let of_kubelet = [label(NAMESPACE), label(NAME), label(UID)];
    let named = match sandbox {
        Some(sandbox) => [sandbox.namespace, sandbox.name, sandbox.uid],
        None => [of_kubelet[0]?, of_kubelet[1]?, of_kubelet[2]?],
    };
    if of_kubelet.iter().zip(named).any(|(label, named)| label.is_some_and(|label| label != named))
    {
        return None;
    }
    let [namespace, pod, uid] = named;
    let is_whole = is_name(namespace) && is_name(pod) && is_uid(uid);
    let container = label(CONTAINER).unwrap_or(name);
    is_whole.then(|| Pod {
        namespace: namespace.into(),
        name: pod.into(),
        uid: uid.into(),
        container: printable(&container.as_bytes()[..container.len().min(LONGEST_NAME_BYTES)])
            .into(),
        labels: sandbox.and_then(|sandbox| pod_labels(sandbox.labels)),
    })
}

fn is_name(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    (1..=LONGEST_NAME_BYTES).contains(&text.len()) && text.bytes().all(is_plain)
}

fn is_uid(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    (1..=LONGEST_UID_BYTES).contains(&text.len()) && text.bytes().all(is_plain)
}

/// The labels of the pod's author. `None`: too many, or one is longer than Kubernetes permits; a
/// label that is left out might be the one that protects the pod.
fn pod_labels(labels: &HashMap<String, String>) -> Option<BTreeMap<Arc<str>, Arc<str>>> {
    let own = labels.iter().filter(|(key, _)| ![NAME, NAMESPACE, UID].contains(&key.as_str()));
    let mut kept = BTreeMap::new();
    for (key, value) in own {
        let is_short = key.len() <= LONGEST_KEY_BYTES && value.len() <= LONGEST_VALUE_BYTES;
        let is_plain = !key.chars().chain(value.chars()).any(char::is_control);
        if !is_short || !is_plain || kept.len() >= MOST_LABELS {
            return None;
        }
        kept.insert(Arc::from(key.as_str()), Arc::from(value.as_str()));
    }
    Some(kept)
}

/// The UID of the pod that the path of a control group claims: `/kubepods/burstable/podUID/…`
/// (cgroupfs driver), `…/kubepods-burstable-podUID.slice/…` with `_` for `-` (systemd driver).
/// Guaranteed pods are directly below `kubepods`.
///
/// The kubelet names them so in `pkg/kubelet/cm/pod_container_manager_linux.go`, and converts them
/// in `cgroup_manager_linux.go` there.
pub fn pod_uid(cgroup: &str) -> Option<String> {
    let mut above = "";
    for part in cgroup.split('/') {
        // containerd without the systemd driver of its kubelet: `SLICE:cri-containerd:ID`.
        let name = part.split(':').next().unwrap_or(part);
        let uid = match name.strip_suffix(".slice") {
            Some(name) => uid_of_slice(name),
            None => name.strip_prefix("pod").filter(|_| is_above_pods(above)).map(str::to_owned),
        };
        if let Some(uid) = uid.filter(|uid| is_uid(uid)) {
            return Some(uid);
        }
        above = part;
    }
    None
}

fn is_above_pods(part: &str) -> bool {
    matches!(part, "kubepods" | "burstable" | "besteffort")
}

fn uid_of_slice(name: &str) -> Option<String> {
    let (above, rest) = name.split_once("kubepods-")?;
    let is_own = above.is_empty() || above.ends_with('-');
    let rest = rest.strip_prefix("burstable-").or(rest.strip_prefix("besteffort-")).unwrap_or(rest);
    rest.strip_prefix("pod").filter(|_| is_own).map(|uid| uid.replace('_', "-"))
}

/// Whether the path of a control group is below those of pods, or among them.
pub fn is_of_pods(cgroup: &str) -> bool {
    let is_pods = |part: &str| {
        let mut names = part.split(['-', '.', ':']);
        names.any(|name| name == "kubepods")
    };
    cgroup.split('/').any(is_pods)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const POD: &str = "6f1c0ddc-6a0b-4c2d-8e4f-5061728394a5";
    const ID: &str = "4f1c0ddc6a0b1c2d3e4f5061728394a5b6c7d8e9fa0b1c2d3e4f506172839401";

    fn map(pairs: &[(&str, &str)]) -> HashMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_path_claims_a_pod_in_the_forms_of_both_drivers_and_both_runtimes() {
        let systemd = POD.replace('-', "_");
        for path in [
            format!("/kubepods/burstable/pod{POD}/{ID}"),
            format!("/kubepods/besteffort/pod{POD}/crio-{ID}"),
            format!("/kubepods/pod{POD}/{ID}"),
            format!("/kubepods.slice/kubepods-pod{systemd}.slice/cri-containerd-{ID}.scope"),
            format!(
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{systemd}.slice/\
                 crio-{ID}.scope/container"
            ),
            format!(
                "/system.slice/containerd.service/kubepods-besteffort-pod{systemd}.slice:\
                 cri-containerd:{ID}"
            ),
            format!(
                "/system.slice/docker-{ID}.scope/kubelet.slice/kubelet-kubepods.slice/\
                 kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod{systemd}.slice/\
                 cri-containerd-{ID}.scope"
            ),
        ] {
            assert_eq!(pod_uid(&path).as_deref(), Some(POD), "{path}");
            assert!(is_of_pods(&path), "{path}");
        }
        // A static pod has a checksum instead.
        let fixed = "0123456789abcdef0123456789abcdef";
        assert_eq!(pod_uid(&format!("/kubepods/pod{fixed}/{ID}")).as_deref(), Some(fixed));
    }

    #[test]
    fn other_paths_claim_none() {
        for path in [
            "/",
            "/kubepods",
            "/kubepods.slice/kubepods-burstable.slice",
            "/system.slice/podman.service",
            "/machine.slice/libpod-1.scope",
            "/kubepods/burstable/pod",
            "/user.slice/pod1",
            "/mykubepods-pod1.slice",
            "/kubepods/pod1;rm",
        ] {
            assert_eq!(pod_uid(path), None, "{path}");
        }
        for path in ["/system.slice/docker.service", "/mykubepods-pod1.slice", "/"] {
            assert!(!is_of_pods(path), "{path}");
        }
        assert!(is_of_pods("/kubepods.slice") && is_of_pods("/kubepods/burstable"));
    }

    #[test]
    fn a_pod_is_named_by_its_sandbox_and_the_labels_of_the_kubelet_must_agree() {
        let own = map(&[("app", "llm"), (NAME, "vllm-0"), (NAMESPACE, "llm"), (UID, POD)]);
        let sandbox = Sandbox { name: "vllm-0", namespace: "llm", uid: POD, labels: &own };
        let known = named_pod("engine", &HashMap::new(), Some(&sandbox)).unwrap();
        assert_eq!(known.to_string(), "pod llm/vllm-0");
        assert_eq!((&*known.uid, &*known.container), (POD, "engine"));
        assert_eq!(known.labels, Some([("app".into(), "llm".into())].into()));
        // As a kubelet does it.
        let labels =
            map(&[(NAME, "vllm-0"), (NAMESPACE, "llm"), (UID, POD), (CONTAINER, "engine")]);
        assert_eq!(named_pod("engine", &labels, Some(&sandbox)).as_ref(), Some(&known));
        assert_eq!(named_pod("engine", &labels, None), Some(Pod { labels: None, ..known }));
        assert_eq!(named_pod("engine", &map(&[(UID, "other")]), Some(&sandbox)), None);
        assert_eq!(named_pod("engine", &map(&[(UID, POD)]), None), None, "not all of its names");
        for (name, namespace, uid) in
            [("", "llm", POD), ("a/b", "llm", POD), ("a", "\u{1b}[2J", POD), ("a", "llm", "x y")]
        {
            let odd = Sandbox { name, namespace, uid, labels: &own };
            assert_eq!(named_pod("engine", &HashMap::new(), Some(&odd)), None, "{odd:?}");
        }
    }

    #[test]
    fn labels_that_are_not_all_kept_are_unknown() {
        let of = |labels: &HashMap<String, String>| {
            let sandbox = Sandbox { name: "a", namespace: "b", uid: "c", labels };
            named_pod("engine", &HashMap::new(), Some(&sandbox)).unwrap().labels
        };
        let many =
            |number: usize| (0..number).map(|at| (format!("l{at}"), String::new())).collect();
        assert_eq!(of(&many(MOST_LABELS)).map(|labels| labels.len()), Some(MOST_LABELS));
        assert_eq!(of(&many(MOST_LABELS + 1)), None);
        assert_eq!(of(&map(&[("app", &"x".repeat(64))])), None);
        assert_eq!(of(&map(&[("app", "a\nb")])), None);
    }

    proptest! {
        #[test]
        fn arbitrary_paths_and_names_do_not_panic(path in ".{0,200}", name in ".{0,300}") {
            prop_assert!(pod_uid(&path).is_none_or(|uid| is_uid(&uid)));
            let _ = is_of_pods(&path);
            let labels = HashMap::new();
            let sandbox = Sandbox { name: &name, namespace: &name, uid: &name, labels: &labels };
            let found = named_pod(&name, &labels, Some(&sandbox));
            prop_assert!(found.is_none_or(|pod| is_uid(&pod.uid)));
        }
    }
}
