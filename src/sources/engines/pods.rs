//! Which containers of pods claimed containers are, by the runtime's CRI.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Runtime;

use super::listing::{MAX_INSPECTED, process};
use crate::model::ProcessId;
use crate::parse::container::{Container, Containers, pod_container};
use crate::parse::process::printable;
use crate::supervisors::cri::{Cri, CriError};

/// A longer name of an image is left out.
const LONGEST_IMAGE_BYTES: usize = 256;

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
}

impl PodContainers {
    pub(super) fn new(sockets: Vec<PathBuf>, procfs: PathBuf, patience: Duration) -> Self {
        let (known, errors, silent) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        Self { sockets, procfs, patience, known, errors, silent }
    }

    /// Those that are known.
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
        let mut unknown: Vec<Arc<str>> = claimed
            .iter()
            .filter(|id| !self.known.contains_key(**id))
            .map(|id| Arc::clone(id))
            .collect();
        // One without an answer keeps no other unknown.
        unknown.sort_by_key(|id| self.silent.contains(id));
        unknown.truncate(MAX_INSPECTED);
        for socket in self.sockets.clone() {
            unknown.retain(|id| !self.known.contains_key(id));
            if unknown.is_empty() {
                return;
            }
            let queried = runtime.block_on(self.query_socket(&socket, &unknown));
            self.note(socket, queried.err());
        }
    }

    async fn query_socket(&mut self, socket: &Path, ids: &[Arc<str>]) -> Result<(), CriError> {
        let cri = Cri::connect(socket, self.patience).await?;
        for id in ids {
            match self.container(&cri, id).await {
                Ok(Some(container)) => {
                    self.silent.remove(id);
                    self.known.insert(Arc::clone(id), container);
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

    async fn container(&self, cri: &Cri, id: &Arc<str>) -> Result<Option<Container>, CriError> {
        let Some(response) = cri.container_status(id).await? else { return Ok(None) };
        let Some(status) = response.status.filter(|status| *status.id == **id) else {
            return Ok(None);
        };
        let name = status.metadata.unwrap_or_default().name;
        let is_usable = |image: &String| (1..=LONGEST_IMAGE_BYTES).contains(&image.len());
        let image = Some(status.image_ref).filter(is_usable);
        let image: Option<Arc<str>> = image.map(|image| printable(image.as_bytes()).into());
        let found = pod_container((&name, status.state), &status.labels, &response.info);
        Ok(found.and_then(|(container, pid)| {
            let init = Some(process(&self.procfs, pid)?);
            Some(Container { init, image: image.clone(), ..container })
        }))
    }

    fn note(&mut self, socket: PathBuf, error: Option<CriError>) {
        let Some(error) = error else {
            self.errors.remove(&socket);
            return;
        };
        if error != CriError::Absent && self.errors.get(&socket) != Some(&error) {
            tracing::warn!(
                socket = %socket.display(), %error,
                "containers of pods cannot be confirmed: check path.cri_socket"
            );
        }
        self.errors.insert(socket, error);
    }
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
