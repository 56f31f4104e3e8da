//! Which containers of pods claimed containers are, by the runtime's CRI.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Runtime;

use super::listing::{MAX_INSPECTED, process};
use crate::model::{Pod, ProcessId};
use crate::parse::container::{
    Container, Containers, CriStatus, Sandbox, named_pod, pod_container,
};
use crate::supervisors::cri::{ContainerStatus, Cri, CriError};

/// What the runtime of Kubernetes reports. Only claimed containers are queried.
#[derive(Debug)]
pub(super) struct PodContainers {
    sockets: Vec<PathBuf>,
    procfs: PathBuf,
    patience: Duration,
    known: Containers,
    /// The last error of each socket: one is logged once.
    errors: BTreeMap<PathBuf, CriError>,
    /// Without an answer when they were queried last.
    silent: BTreeSet<Arc<str>>,
    /// Known ones whose pod is not: the runtime has not answered about it.
    without_pod: BTreeSet<Arc<str>>,
}

impl PodContainers {
    pub(super) fn new(sockets: Vec<PathBuf>, procfs: PathBuf, patience: Duration) -> Self {
        let (known, errors) = (BTreeMap::new(), BTreeMap::new());
        let (silent, without_pod) = (BTreeSet::new(), BTreeSet::new());
        Self { sockets, procfs, patience, known, errors, silent, without_pod }
    }

    pub(super) fn known(&self) -> &Containers {
        &self.known
    }

    /// Queries those of the claimed containers that are not known yet or whose first process has
    /// ended. A runtime that does not answer leaves known what was.
    pub(super) fn query(&mut self, runtime: &Runtime, claimed: &BTreeSet<&Arc<str>>) {
        self.known.retain(|id, container| {
            let lives = |init: ProcessId| process(&self.procfs, init.pid) == Some(init);
            claimed.contains(id) && container.init.is_some_and(lives)
        });
        self.silent.retain(|id| claimed.contains(id));
        self.without_pod.retain(|id| self.known.contains_key(id));
        let mut unknown: Vec<Arc<str>> =
            claimed.iter().filter(|id| !self.is_complete(id)).map(|id| Arc::clone(id)).collect();
        // One without an answer keeps no other unknown.
        unknown.sort_by_key(|id| self.silent.contains(id));
        unknown.truncate(MAX_INSPECTED);
        for socket in self.sockets.clone() {
            unknown.retain(|id| !self.is_complete(id));
            if unknown.is_empty() {
                return;
            }
            let queried = runtime.block_on(self.query_socket(&socket, &unknown));
            self.note(socket, queried.err());
        }
    }

    fn is_complete(&self, id: &Arc<str>) -> bool {
        self.known.contains_key(id) && !self.without_pod.contains(id)
    }

    async fn query_socket(&mut self, socket: &Path, ids: &[Arc<str>]) -> Result<(), CriError> {
        let cri = Cri::connect(socket, self.patience).await?;
        for id in ids {
            match self.container((&cri, socket), id).await {
                Ok(Some((container, pod))) => {
                    self.silent.remove(id);
                    self.without_pod.remove(id);
                    self.known.insert(Arc::clone(id), container);
                    if let Err(error) = pod {
                        self.without_pod.insert(Arc::clone(id));
                        self.silent.insert(Arc::clone(id));
                        return Err(error);
                    }
                }
                Ok(None) => {}
                Err(error) => {
                    self.silent.insert(Arc::clone(id));
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// A running container, and whether the runtime has answered about its pod.
    async fn container(
        &self,
        (cri, socket): (&Cri, &Path),
        id: &Arc<str>,
    ) -> Result<Option<(Container, Result<(), CriError>)>, CriError> {
        let Some(response) = cri.container_status(id).await? else { return Ok(None) };
        let Some(status) = response.status.filter(|status| *status.id == **id) else {
            return Ok(None);
        };
        let name = status.metadata.as_ref().map(|metadata| &*metadata.name).unwrap_or_default();
        let image = status.image.as_ref().map(|image| &*image.image).unwrap_or_default();
        let found = pod_container(&CriStatus {
            name,
            state: status.state,
            image: (image, &status.image_ref),
            log_path: &status.log_path,
            labels: &status.labels,
            info: &response.info,
        });
        let Some((mut container, pid)) = found else { return Ok(None) };
        let Some(init) = process(&self.procfs, pid) else { return Ok(None) };
        container.init = Some(init);
        container.socket = socket.to_str().map(Arc::from);
        let pod = pod_of(cri, id, name, &status).await;
        let answered = pod.as_ref().map(|_| ()).map_err(Clone::clone);
        // Until it answers, the labels of the kubelet name the pod.
        let pod = pod.unwrap_or_else(|_| named_pod(name, &status.labels, None));
        // Labels of the pod's author are the pod's: a kubelet gives containers only its own.
        for (key, value) in pod.iter().filter_map(|pod| pod.labels.as_ref()).flatten() {
            container.labels.entry(key.to_string()).or_insert_with(|| value.to_string());
        }
        container.pod = pod.map(Arc::new);
        Ok(Some((container, answered)))
    }

    fn note(&mut self, socket: PathBuf, error: Option<CriError>) {
        let Some(error) = error else {
            self.errors.remove(&socket);
            return;
        };
        if error != CriError::Absent && self.errors.get(&socket) != Some(&error) {
            tracing::warn!(
                socket = %socket.display(), %error,
                remedy = "check path.cri_socket", "containers of pods cannot be confirmed"
            );
        }
        self.errors.insert(socket, error);
    }
}

/// The pod of a container, by its sandbox.
async fn pod_of(
    cri: &Cri,
    id: &str,
    name: &str,
    status: &ContainerStatus,
) -> Result<Option<Pod>, CriError> {
    let Some(sandbox) = cri.sandbox_of(id).await? else { return Ok(None) };
    let Some(metadata) = &sandbox.metadata else { return Ok(None) };
    let sandbox = Sandbox {
        name: &metadata.name,
        namespace: &metadata.namespace,
        uid: &metadata.uid,
        labels: &sandbox.labels,
    };
    Ok(named_pod(name, &status.labels, Some(&sandbox)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_hanging_or_malformed_runtime_confirms_nothing_and_delays_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let socket = |name: &str| folder.path().join(name);
        let silent = UnixListener::bind(socket("silent")).unwrap();
        let odd = UnixListener::bind(socket("odd")).unwrap();
        std::thread::spawn(move || {
            for mut stream in odd.incoming().flatten() {
                let _ = std::io::Write::write_all(&mut stream, b"HTTP/1.1 200 OK\r\n\r\n");
            }
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let patience = Duration::from_millis(200);
        let sockets = ["absent", "silent", "odd"].map(socket).to_vec();
        let mut pods = PodContainers::new(sockets, "/proc".into(), patience);
        let id = Arc::from("a".repeat(64));
        pods.query(&runtime, &[&id].into());
        assert!(pods.known().is_empty());
        assert_eq!(pods.errors[&socket("absent")], CriError::Absent);
        assert_eq!(pods.errors[&socket("silent")], CriError::TimedOut(patience));
        assert!(matches!(pods.errors[&socket("odd")], CriError::Failed(_)), "{:?}", pods.errors);
        drop(silent);
    }
}
