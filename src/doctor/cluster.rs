//! Whether the API server of Kubernetes permits what the configuration needs.

use super::{DoctorFacts, Fact, Finding, Severity};

/// The answer of the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterFacts {
    /// It gives none, for this reason.
    Silent(String),
    /// It answers. The missing rights: `patch nodes (drain)`.
    Lacks(Vec<String>),
}

/// Nothing without a cluster.
pub(super) fn examine(facts: &DoctorFacts) -> Option<Finding> {
    let check = "kubernetes";
    Some(match &facts.cluster {
        Fact::Absent => return None,
        Fact::Unknown(why) => Finding::new(check, Severity::Unknown, why),
        Fact::Is(ClusterFacts::Silent(why)) => Finding::new(check, Severity::Problem, why).fix(
            "check the network, and the service account or kubernetes.kubeconfig; where umawarden \
             runs in a pod, run the doctor there: kubectl exec",
        ),
        Fact::Is(ClusterFacts::Lacks(rights)) if rights.is_empty() => {
            Finding::ok(check, "the API server permits what the configuration needs")
        }
        Fact::Is(ClusterFacts::Lacks(rights)) => {
            let text = format!("the API server does not permit: {}", rights.join(", "));
            Finding::new(check, Severity::Problem, text).fix(
                "give these rights to umawarden's role (the chart does it with rbac.create: true), \
                 or switch the features off",
            )
        }
    })
}
