//! Whether a DaemonSet runs another pod of umawarden on this node once this one has ended.

use std::collections::BTreeMap;

use serde_json::Value;

/// The annotation of pods that take over what an earlier pod has left.
const TAKES_OVER: &str = "umawarden.dev/takes-over";

/// Checks that a pod which takes over will follow, by the DaemonSet and the labels of the node. A
/// taint that nobody would undo is the worse mistake, so that every doubt is an error.
pub(super) fn check(set: &Value, labels: &BTreeMap<String, String>) -> Result<(), &'static str> {
    if set.pointer("/metadata/deletionTimestamp").is_some_and(|at| !at.is_null()) {
        return Err("it is being deleted");
    }
    let template = set.pointer("/spec/template").unwrap_or(&Value::Null);
    let annotations = template.pointer("/metadata/annotations");
    let takes_over = annotations.and_then(|all| all.get(TAKES_OVER)).and_then(Value::as_str);
    if takes_over != Some("true") {
        return Err("its pods take over nothing");
    }
    let is_no_surge = |surge: &Value| {
        surge.is_null() || surge.as_u64() == Some(0) || matches!(surge.as_str(), Some("0" | "0%"))
    };
    let surge = set.pointer("/spec/updateStrategy/rollingUpdate/maxSurge");
    if surge.is_some_and(|surge| !is_no_surge(surge)) {
        // It may have undone already what was left to it.
        return Err("its next pod runs beside this one (maxSurge)");
    }
    let selector = template.pointer("/spec/nodeSelector").and_then(Value::as_object);
    let is_label = |(key, value): (&String, &Value)| {
        labels.get(key).is_some_and(|label| value.as_str() == Some(label))
    };
    let is_selected = selector.is_none_or(|selector| selector.iter().all(is_label));
    if !is_selected {
        return Err("it does not select this node");
    }
    let affinity = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution";
    if template.pointer(affinity).is_some_and(|required| !required.is_null()) {
        return Err("it selects nodes by affinity, which is not evaluated");
    }
    let tolerations = template.pointer("/spec/tolerations").and_then(Value::as_array);
    let is_of_all = |one: &Value| {
        let is_empty = |key: &str| one.get(key).and_then(Value::as_str).is_none_or(str::is_empty);
        one.get("operator").and_then(Value::as_str) == Some("Exists")
            && is_empty("key")
            && is_empty("effect")
    };
    let tolerates_all = tolerations.is_some_and(|all| all.iter().any(is_of_all));
    if !tolerates_all {
        return Err("its pods do not tolerate every taint");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A DaemonSet whose pods run everywhere, as the chart makes it.
    fn set() -> Value {
        json!({
            "metadata": {"name": "umawarden", "namespace": "umawarden"},
            "spec": {
                "template": {
                    "metadata": {"annotations": {"umawarden.dev/takes-over": "true"}},
                    "spec": {
                        "nodeSelector": {"kubernetes.io/os": "linux"},
                        "affinity": {"nodeAffinity": {}},
                        "tolerations": [{"operator": "Exists"}],
                    },
                },
                "updateStrategy": {
                    "type": "RollingUpdate",
                    "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "10%"},
                },
            },
        })
    }

    #[test]
    fn a_pod_follows_only_where_nothing_speaks_against_it() {
        let labels: BTreeMap<String, String> =
            [("kubernetes.io/os".to_owned(), "linux".to_owned())].into();
        assert_eq!(check(&set(), &labels), Ok(()));
        let affinity = json!({"nodeSelectorTerms": []});
        for (place, key, value, part) in [
            ("/metadata", "deletionTimestamp", json!("2026-11-28T00:00:00Z"), "being deleted"),
            ("/spec/template/metadata", "annotations", json!({}), "take over nothing"),
            ("/spec/updateStrategy/rollingUpdate", "maxSurge", json!(1), "beside this one"),
            ("/spec/updateStrategy/rollingUpdate", "maxSurge", json!("10%"), "beside this one"),
            ("/spec/template/spec", "nodeSelector", json!({"gpu": "true"}), "does not select"),
            (
                "/spec/template/spec/affinity/nodeAffinity",
                "requiredDuringSchedulingIgnoredDuringExecution",
                affinity,
                "by affinity",
            ),
            ("/spec/template/spec", "tolerations", json!([]), "every taint"),
            (
                "/spec/template/spec",
                "tolerations",
                json!([{"operator": "Exists", "effect": "NoExecute"}]),
                "every taint",
            ),
        ] {
            let mut changed = set();
            changed.pointer_mut(place).unwrap()[key] = value;
            let why = check(&changed, &labels).unwrap_err();
            assert!(why.contains(part), "{place}: {why}");
        }
        assert!(check(&json!({}), &labels).is_err());
        let mut bare = set();
        bare["spec"]["template"]["spec"]["nodeSelector"] = Value::Null;
        assert_eq!(check(&bare, &BTreeMap::new()), Ok(()));
    }
}
