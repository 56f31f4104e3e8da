//! Queries the API server of Kubernetes for the rights that the configuration needs.

use std::time::Duration;

use tokio::time::timeout;

use crate::clients::kubernetes::{ApiError, NodeApi, ResourceRight};
use crate::config::settings::Settings;
use crate::doctor::{ClusterFacts, Fact};
use crate::model::{DrainMode, Grade, KubernetesSettings, Mode};
use crate::policy::rule::RuleSet;

/// The time limit of all queries.
const TIMEOUT: Duration = Duration::from_secs(2);

pub(super) fn cluster(settings: &Settings, rules: &RuleSet) -> Fact<ClusterFacts> {
    let Some(kubernetes) = &settings.kubernetes else { return Fact::Absent };
    let taints = settings.mode == Mode::Enforce && rules.guard_rails.enforced.has(Grade::Cordon);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return Fact::Unknown(format!("no runtime can be made: {error}")),
    };
    let answer = runtime.block_on(timeout(TIMEOUT, lacks(kubernetes, taints)));
    // A name that does not resolve must not delay the end.
    runtime.shutdown_background();
    Fact::Is(match answer {
        Ok(Ok(lacks)) => ClusterFacts::Lacks(lacks),
        Ok(Err(error)) => ClusterFacts::Silent(error.to_string()),
        Err(_) => {
            let limit = TIMEOUT.as_secs();
            ClusterFacts::Silent(format!("the API server gives no answer within {limit} s"))
        }
    })
}

async fn lacks(settings: &KubernetesSettings, taints: bool) -> Result<Vec<String>, ApiError> {
    let api = NodeApi::open(&settings.access).await?;
    let mut lacks = Vec::new();
    for (right, feature) in needed(settings, taints) {
        if !api.may(right).await? {
            lacks.push(format!("{right} ({feature})"));
        }
    }
    Ok(lacks)
}

/// The rights of docs/src/operate/kubernetes.md, with the feature that needs each.
fn needed(settings: &KubernetesSettings, taints: bool) -> Vec<(ResourceRight, &'static str)> {
    let mut needed = vec![(ResourceRight::new("get", "nodes"), "all features")];
    if !settings.conditions.is_empty() {
        needed.push((ResourceRight::new("patch", "nodes/status"), "conditions"));
    } else if settings.extended_resource {
        needed.push((ResourceRight::new("patch", "nodes/status"), "extended_resource"));
    }
    if settings.events {
        needed
            .extend(["create", "patch"].map(|verb| (ResourceRight::new(verb, "events"), "events")));
    }
    let drains = settings.drain != DrainMode::None;
    if taints || drains {
        let feature = if drains { "drain" } else { "taint_node, cordon_node" };
        needed.push((ResourceRight::new("patch", "nodes"), feature));
    }
    if settings.drain == DrainMode::Evict {
        needed.push((ResourceRight::new("list", "pods"), "drain: evict"));
        needed.push((ResourceRight::new("create", "pods/eviction"), "drain: evict"));
    }
    needed
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::clients::kubernetes::scripted::serve;

    fn found(settings: KubernetesSettings, taints: bool) -> Result<Vec<String>, ApiError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(lacks(&settings, taints))
    }

    #[test]
    fn missing_rights_are_named_with_the_feature_that_needs_them() {
        let folder = tempfile::tempdir().unwrap();
        let (access, requests) = serve(folder.path(), |_, body| {
            let of = &body["spec"]["resourceAttributes"];
            let is_allowed = of["verb"] == "get" || of["resource"] == "events";
            (201, json!({"status": {"allowed": is_allowed}}))
        });
        let all = KubernetesSettings { access, drain: DrainMode::Evict, ..Default::default() };
        let lacks = found(all.clone(), true).unwrap();
        let expected = [
            "patch nodes/status (conditions)",
            "patch nodes (drain)",
            "list pods (drain: evict)",
            "create pods/eviction (drain: evict)",
        ];
        assert_eq!(lacks, expected);
        let (line, body) = requests.lock().unwrap()[1].clone();
        let path = "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        assert!(line.starts_with(path), "{line}");
        let asked = &body["spec"]["resourceAttributes"];
        assert_eq!([&asked["resource"], &asked["subresource"]], ["nodes", "status"]);
        let few = KubernetesSettings { conditions: Vec::new(), drain: DrainMode::None, ..all };
        assert!(found(few.clone(), false).unwrap().is_empty());
        assert_eq!(found(few, true).unwrap(), ["patch nodes (taint_node, cordon_node)"]);
    }

    #[test]
    fn a_server_that_refuses_is_quoted() {
        let folder = tempfile::tempdir().unwrap();
        let (access, _) = serve(folder.path(), |_, _| (401, json!({"message": "Unauthorized"})));
        let settings = KubernetesSettings { access, ..Default::default() };
        let text = found(settings, false).unwrap_err().to_string();
        assert!(text.contains("Unauthorized (401): its token is not valid there"), "{text}");
    }
}
