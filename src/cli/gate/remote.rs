//! The gate of another umawarden: an init container has that of its node reserve memory.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::json;

use super::lease::LeaseArguments;
use super::wait::WaitEnd;
use crate::cli::Exit;
use crate::cli::output::{errln, outln};
use crate::clients::peer::Peer;
use crate::config::settings::Settings;
use crate::model::{
    Access, Credentials, GateRequest, LeaseRequest, PeerAddress, PeerGate, Pod, bytes_text,
    duration_text, printable,
};

/// Between two requests: the node ends what is no longer requested after half a minute.
const EVERY: Duration = Duration::from_secs(2);

/// Between two lines without news.
const SAID_EVERY: Duration = Duration::from_secs(30);

/// What to ask of whom.
pub(super) struct RemoteGate<'a> {
    pub(super) node: &'a PeerAddress,
    pub(super) token: Option<PathBuf>,
    pub(super) who: String,
    pub(super) request: GateRequest,
    pub(super) lease: &'a LeaseArguments,
    pub(super) timeout: Duration,
    pub(super) json: bool,
}

impl RemoteGate<'_> {
    /// Waits until the node has reserved the memory.
    ///
    /// # Errors
    /// The system has no resources for a client.
    pub(super) fn wait(&self, settings: &Settings) -> anyhow::Result<Exit> {
        let mut access: Access =
            settings.cluster.as_ref().map(|cluster| cluster.access.clone()).unwrap_or_default();
        if let Some(token) = &self.token {
            access.credentials = Some(Credentials::Bearer(token.clone()));
        }
        let mut peer = Peer::open(self.node, &access, self.request.clone())
            .context("cannot make a client for --node")?;
        let lease = self.lease();
        let began = Instant::now();
        let (mut said, mut said_at) = (String::new(), None);
        loop {
            let gate = peer.reserve(&lease);
            let waited = began.elapsed();
            let ended = match &gate {
                PeerGate::Open => Some(WaitEnd::Open),
                PeerGate::Closed { is_hopeless: true, .. } => Some(WaitEnd::Hopeless),
                _ if waited >= self.timeout => Some(WaitEnd::TimedOut),
                _ => None,
            };
            if let Some(ended) = ended {
                if ended != WaitEnd::Open {
                    peer.end(&lease.id);
                }
                return Ok(self.end(ended, &gate, waited));
            }
            let text = text(&gate);
            if text != said || said_at.is_none_or(|at: Instant| at.elapsed() >= SAID_EVERY) {
                errln!("umawarden: {} waits: {}", printable(&lease.who), printable(&text));
                (said, said_at) = (text, Some(Instant::now()));
            }
            sleep(EVERY.min(self.timeout.saturating_sub(waited)));
        }
    }

    /// In a pod, the lease is the pod's: whoever starts it again goes on with it.
    fn lease(&self) -> LeaseRequest {
        let pod = pod().map(Arc::new);
        let id = match &pod {
            Some(pod) => pod.uid.to_string(),
            None => format!("gate-{}-{}", self.who, std::process::id()),
        };
        let request = LeaseRequest::new(id.into(), self.who.as_str().into(), self.request.clone());
        let priority = self.lease.priority;
        LeaseRequest { priority, lasts: self.lease.lasts, pod, ..request }
    }

    fn end(&self, ended: WaitEnd, gate: &PeerGate, waited: Duration) -> Exit {
        let need = bytes_text(self.request.need_bytes);
        let (is_open, node) = (ended == WaitEnd::Open, self.node);
        if self.json {
            let reasons: Vec<String> = if is_open { Vec::new() } else { vec![text(gate)] };
            let seconds = waited.as_secs_f64();
            let reply = json!({
                "open": is_open,
                "node": node.to_string(),
                "need_bytes": self.request.need_bytes,
                "waited_seconds": seconds,
                "reasons": reasons,
            });
            outln!("{reply}");
        } else if is_open {
            outln!("open: {node} has reserved {need}, after {}", duration_text(waited));
        } else {
            errln!("closed after {}: {}", duration_text(waited), printable(&text(gate)));
        }
        match ended {
            WaitEnd::Open => Exit::Fine,
            WaitEnd::TimedOut | WaitEnd::Stopped => Exit::Findings,
            WaitEnd::Hopeless => Exit::Unusable,
        }
    }
}

fn text(gate: &PeerGate) -> String {
    match gate {
        PeerGate::Open => "open".to_owned(),
        PeerGate::Closed { reasons, .. } if reasons.is_empty() => "it is not its turn".to_owned(),
        PeerGate::Closed { reasons, .. } => reasons.join("; "),
        PeerGate::Unknown { why } => format!("the node does not answer: {why}"),
    }
}

/// The pod that this process runs in, as the downward API names it in the environment.
fn pod() -> Option<Pod> {
    let [namespace, name, uid] = ["POD_NAMESPACE", "POD_NAME", "POD_UID"]
        .map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()));
    Some(Pod {
        namespace: namespace?.into(),
        name: name?.into(),
        uid: uid?.into(),
        ..Pod::default()
    })
}
