//! Where the pictures of nodes come from: this node's daemon, and others over the network.

use std::time::Duration;

use anyhow::Context;
use clap::Args;
use hyper::Method;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::time::timeout;

use super::control::{ControlClient, DaemonArguments};
use crate::clients::connection::{ConnectionRequest, Server, ServerConnection};
use crate::config::flags::RunFlags;
use crate::model::{MemoryHistory, PeerAddress, Picture, printable};

/// The path of a picture, and of the past hour of its memory.
const PICTURE: &str = "/api/v1/picture";
const MEMORY: &str = "/api/v1/memory?since=1h";

/// The time limit of a response.
const ANSWER_TAKES: Duration = Duration::from_secs(5);

/// The size limit of a response, in bytes.
const MOST_BYTES: usize = 4 << 20;

const OLDER: &str = "the daemon has no pictures: it is older than this program; restart it";

/// The most nodes at a time.
const MOST_NODES: usize = 64;

/// Statuses other than 200 whose body says why.
const REFUSALS: [u16; 5] = [400, 404, 405, 500, 503];

/// The nodes to show.
#[derive(Clone, Debug, Default, Args)]
pub struct NodesArguments {
    /// Another node instead of this one: HOST or HOST:PORT (9942 unless given) of the umawarden
    /// that runs there; may be repeated or given with commas. Access is that of cluster in the
    /// configuration file, as for gate --peers; the role read suffices.
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    pub node: Vec<PeerAddress>,
}

/// A node whose picture can be queried. It connects to nothing before.
pub(super) struct NodeSource {
    /// Its name: that of the address, or `this node`.
    pub(super) name: String,
    origin: PictureOrigin,
}

enum PictureOrigin {
    Daemon(ControlClient),
    Far(Box<RemoteConnection>),
}

struct RemoteConnection {
    runtime: Runtime,
    connection: ServerConnection,
}

impl NodesArguments {
    /// The nodes, or else this one.
    ///
    /// # Errors
    /// The configuration file cannot be used, or there are too many.
    pub(super) fn sources(&self, daemon: &DaemonArguments) -> anyhow::Result<Vec<NodeSource>> {
        if self.node.is_empty() {
            let client = daemon.client()?.with_patience(ANSWER_TAKES);
            let name = "this node".to_owned();
            return Ok(vec![NodeSource { name, origin: PictureOrigin::Daemon(client) }]);
        }
        anyhow::ensure!(self.node.len() <= MOST_NODES, "at most {MOST_NODES} nodes can be shown");
        let settings = daemon.storage.settings(RunFlags::default())?;
        let access = settings.cluster.map(|cluster| cluster.access).unwrap_or_default();
        let far = |address: &PeerAddress| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .with_context(|| format!("cannot query {address}"))?;
            let (host, access) = (address.host().to_owned(), access.clone());
            let connection = ServerConnection::new(Server { host, port: address.port(), access });
            let origin = PictureOrigin::Far(Box::new(RemoteConnection { runtime, connection }));
            Ok(NodeSource { name: address.to_string(), origin })
        };
        self.node.iter().map(far).collect()
    }
}

/// What a node has answered: its picture, and the past hour of its memory if that was wanted.
pub(super) struct NodeResponse {
    /// An error names the node, unless it is this one.
    pub(super) picture: Result<Picture, String>,
    pub(super) memory: Option<MemoryHistory>,
}

/// Queries all nodes at once, since any may hang. The answers are in the order of the nodes.
pub(super) fn query_all(sources: Vec<NodeSource>, with_memory: bool) -> Vec<NodeResponse> {
    let query = |mut source: NodeSource| {
        let picture = source.picture().map_err(|why| source.error_text(why));
        let memory = picture.is_ok().then(|| with_memory.then(|| source.memory()).flatten());
        NodeResponse { picture, memory: memory.flatten() }
    };
    std::thread::scope(|scope| {
        let started: Vec<_> = sources
            .into_iter()
            .map(|source| (source.name.clone(), scope.spawn(move || query(source))))
            .collect();
        let ended = started.into_iter().map(|(name, thread)| {
            thread.join().unwrap_or_else(|_| {
                let picture = Err(format!("{name}: the thread that queries it has failed"));
                NodeResponse { picture, memory: None }
            })
        });
        ended.collect()
    })
}

impl NodeSource {
    /// The present picture.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn picture(&mut self) -> Result<Picture, String> {
        self.data(PICTURE)
    }

    /// Why there is no picture, with the name of another node.
    fn error_text(&self, why: String) -> String {
        match self.origin {
            PictureOrigin::Daemon(_) => why,
            PictureOrigin::Far(_) => format!("{}: {why}", self.name),
        }
    }

    /// Where memory was in the past hour; `None` if the node does not record that.
    pub(super) fn memory(&mut self) -> Option<MemoryHistory> {
        self.data(MEMORY).ok()
    }

    fn data<T: DeserializeOwned>(&mut self, path: &str) -> Result<T, String> {
        let data = match &mut self.origin {
            PictureOrigin::Daemon(client) => {
                let reply = client.request("GET", path, None).map_err(|why| why.to_string())?;
                if reply.status == 404 {
                    return Err(OLDER.to_owned());
                }
                if reply.status != 200 {
                    return Err(printable(&reply.problem).into_owned());
                }
                reply.data
            }
            PictureOrigin::Far(far) => {
                far.data(path).map_err(|why| printable(&why).into_owned())?
            }
        };
        serde_json::from_value(data).map_err(|error| {
            format!("umawarden there has another version: its response cannot be read: {error}")
        })
    }
}

impl RemoteConnection {
    fn data(&mut self, path: &str) -> Result<Value, String> {
        let method = &Method::GET;
        let accept = "application/json";
        let question =
            ConnectionRequest { method, path, accept, most_bytes: MOST_BYTES, also: &REFUSALS };
        let (runtime, connection) = (&self.runtime, &mut self.connection);
        let received =
            runtime.block_on(async { timeout(ANSWER_TAKES, connection.receive(question)).await });
        let (head, body) = received
            .map_err(|_| format!("it has not answered within {} s", ANSWER_TAKES.as_secs()))??;
        let mut answer: Value = serde_json::from_slice(&body)
            .map_err(|_| format!("it answers {}, without JSON: is it umawarden?", head.status))?;
        match head.status {
            200 => Ok(answer["data"].take()),
            404 => Err(OLDER.to_owned()),
            status => Err(match answer["error"].as_str() {
                Some(why) => format!("it answers {status}: {why}"),
                None => format!("it answers {status}"),
            }),
        }
    }
}
