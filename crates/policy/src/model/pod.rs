//! The pod of a container (Kubernetes), as the container runtime reports it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The pod that a container belongs to, confirmed by the container runtime (CRI).
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Pod {
    /// Namespace of the pod.
    pub namespace: Arc<str>,
    /// Its name, unique in the namespace at a time.
    pub name: Arc<str>,
    /// Its UID, which no other pod ever has.
    pub uid: Arc<str>,
    /// Name of the container within the pod.
    pub container: Arc<str>,
    /// Labels of the pod. `None`: unknown, or too many to be kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<Arc<str>, Arc<str>>>,
}

/// `pod NAMESPACE/NAME`.
impl fmt::Display for Pod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pod {}/{}", self.namespace, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_named_by_namespace_and_name_and_read_back_as_written() {
        let pod = Pod {
            namespace: "llm".into(),
            name: "vllm-0".into(),
            uid: "6f1c0ddc-6a0b-4c2d-8e4f-5061728394a5".into(),
            container: "engine".into(),
            labels: Some([("app".into(), "llm".into())].into()),
        };
        assert_eq!(pod.to_string(), "pod llm/vllm-0");
        let written = serde_json::to_string(&pod).unwrap();
        assert_eq!(serde_json::from_str::<Pod>(&written).unwrap(), pod);
        let unknown = Pod { labels: None, ..pod };
        let written = serde_json::to_string(&unknown).unwrap();
        assert!(!written.contains("labels"), "{written}");
        assert_eq!(serde_json::from_str::<Pod>(&written).unwrap(), unknown);
    }
}
