//! Proves that the peer of a connection is a process of the intended engine.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use tokio::net::TcpStream;

use super::cgroups::namespace_root;
use super::network;
use super::session::Endpoint;
use crate::model::{EngineTarget, ProcessId, Proof};
use crate::parse::process::{TcpSocket, is_within, stat, tcp_sockets, user_id};
use kernel_faults::container_id;

/// The size limit of a socket table: some 50,000 rows.
const MOST_SOCKET_BYTES: u64 = 8 << 20;
/// Limits of the examined open files: of a process, and of all processes of an engine.
const MOST_OPEN: usize = 4096;
const MOST_OPEN_OF_ALL: usize = 65_536;
/// The size limit of a file in `/proc/PID`, which is cut there.
const MOST_FILE_BYTES: u64 = 64 << 10;

/// Linux shows users without an id in this namespace as this one; it is also `nobody`.
const OVERFLOW_USER: u32 = 65_534;

/// The initial user namespace, in which all users have ids (PROC_USER_INIT_INO).
const ALL_USERS: &str = "user:[4026531837]";

/// Whether the process lives, and not another one with its pid.
pub fn is_alive(procfs: &Path, id: ProcessId) -> bool {
    let text = fs::read(procfs.join(id.pid.to_string()).join("stat")).ok();
    let known = text.and_then(|text| stat(&text));
    known.is_some_and(|known| {
        known.start_ticks == id.start_ticks && !matches!(known.state, 'Z' | 'X')
    })
}

/// Whether a process of the engine has the listening socket of the endpoint. `None`: no socket is
/// visible there, as for a port published by Docker.
pub fn listens(procfs: &Path, engine: &EngineTarget, endpoint: &Endpoint) -> Option<bool> {
    let claim = Claim { procfs: procfs.to_owned(), engine, endpoint };
    let sockets = claim.listening(&engine.processes.first()?.pid.to_string()).ok()?;
    if sockets.is_empty() {
        return None;
    }
    Some(!claim.holders(&sockets).ok()?.is_empty())
}

/// A connection, by the addresses of its ends.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionEnds {
    client: SocketAddr,
    server: SocketAddr,
}

impl ConnectionEnds {
    /// The connection of a socket.
    ///
    /// # Errors
    /// The socket is no longer connected.
    pub fn of(stream: &TcpStream) -> Result<Self, String> {
        let ends = stream.local_addr().and_then(|client| Ok((client, stream.peer_addr()?)));
        let (client, server) = ends.map_err(|_| "the connection has ended".to_owned())?;
        Ok(Self::new(client, server))
    }

    /// A connection between two addresses.
    pub fn new(client: SocketAddr, server: SocketAddr) -> Self {
        let plain = |end: SocketAddr| SocketAddr::new(end.ip().to_canonical(), end.port());
        Self { client: plain(client), server: plain(server) }
    }
}

/// The claim of an engine to be the server at an endpoint that gets its key.
#[derive(Clone, Debug)]
pub struct Claim<'a> {
    /// Mount point of procfs.
    pub procfs: PathBuf,
    /// The engine as last scanned.
    pub engine: &'a EngineTarget,
    /// The endpoint that gets the key.
    pub endpoint: &'a Endpoint,
}

impl Claim<'_> {
    /// Proves that the process that accepts connections at the endpoint belongs to the engine, and
    /// that no unprivileged user can have started it. The process runs as `user`, or is in a system
    /// service or container confirmed by systemd or Docker.
    ///
    /// # Errors
    /// The missing proof, and the configuration that would give it.
    pub fn prove(&self, user: u32) -> Result<(), String> {
        let server = self.server()?;
        if self.is_elsewhere(server.pid) {
            return self.prove_elsewhere();
        }
        let sockets = self.listening(&server.pid.to_string())?;
        if sockets.is_empty() {
            return Err(format!("no socket is seen to listen at {}", self.endpoint.origin));
        }
        self.prove_sockets(&sockets, user)
    }

    /// Proves the same of the peer of an established connection. A socket that listened only for a
    /// moment either has accepted it, which is visible, or was closed, which resets the connection.
    ///
    /// # Errors
    /// As of [`Self::prove`].
    pub fn prove_connection(&self, user: u32, made: &ConnectionEnds) -> Result<(), String> {
        if self.has_accepted(user, made)? {
            return Ok(());
        }
        // Not accepted yet: it is in the queue of a listening socket.
        self.prove(user)?;
        self.has_accepted(user, made).map(drop)
    }

    /// Whether the engine has accepted the connection. An error: another process has, or it has
    /// ended.
    fn has_accepted(&self, user: u32, made: &ConnectionEnds) -> Result<bool, String> {
        let server = self.server()?;
        let is_elsewhere = self.is_elsewhere(server.pid);
        let process = if is_elsewhere { "self".to_owned() } else { server.pid.to_string() };
        let origin = &self.endpoint.origin;
        let is_end = |socket: &TcpSocket| {
            !socket.is_listening && socket.local == made.server && socket.remote == made.client
        };
        let ends = self.sockets(&process, is_end)?;
        match ends.first() {
            Some(TcpSocket { inode: 0, .. }) => Ok(false),
            Some(end) if is_elsewhere && end.uid != 0 => {
                Err(format!("the connection to {origin} was accepted by user {}", end.uid))
            }
            Some(_) if is_elsewhere => Ok(true),
            Some(_) => self.prove_sockets(&ends, user).map(|()| true),
            // The peer is in the network of the container.
            None if is_elsewhere => self.prove_elsewhere().map(|()| true),
            None => Err(format!("the connection to {origin} has ended")),
        }
    }

    fn server(&self) -> Result<ProcessId, String> {
        let Some(server) = self.engine.processes.first() else {
            return Err(format!("no process of {} is known", self.engine.name));
        };
        let is_there = is_alive(&self.procfs, *server);
        is_there.then_some(*server).ok_or_else(|| format!("pid {server} has ended"))
    }

    fn prove_sockets(&self, sockets: &[TcpSocket], user: u32) -> Result<(), String> {
        let name = &self.engine.name;
        let holders = self.holders(sockets).map_err(|error| {
            format!("the open files of {name} cannot be read: {error}: run as root")
        })?;
        for socket in sockets {
            let holder = holders.get(&socket.inode).ok_or_else(|| {
                format!("what listens at {} is no process of {name}", self.endpoint.origin)
            })?;
            self.prove_process(*holder, socket, user)?;
        }
        Ok(())
    }

    fn prove_process(&self, id: ProcessId, socket: &TcpSocket, user: u32) -> Result<(), String> {
        if self.engine.proof.is_of_system() && self.is_in_its_cgroup(id) {
            return Ok(());
        }
        if self.is_contained(id) {
            return Err(format!(
                "pid {id} is in a container that no runtime confirms, in which its user number \
                 proves nothing: give the program the socket of Docker or Podman \
                 (path.docker_socket) or of the CRI (path.cri_socket)"
            ));
        }
        let status = self.read(id.pid, "status").unwrap_or_default();
        let runs_as = user_id(&status);
        if runs_as == Some(user) && socket.uid == user && self.is_unambiguous(user) {
            return Ok(());
        }
        let is = match runs_as {
            Some(user) => format!("runs as user {user}"),
            None => "has several user ids, as a setuid program has".to_owned(),
        };
        let claims = match &self.engine.claimed_container {
            Some(id) => format!(" and no runtime confirms its container {id:.12}"),
            None => String::new(),
        };
        let made = match runs_as == Some(user) {
            true => format!(", its socket was made by user {}", socket.uid),
            false => String::new(),
        };
        Err(format!(
            "pid {id} {is}{made}, the key is for user {user}, it is in no service of the \
             system{claims}: name its user in its entry (user:), or run it as a service or in a \
             container"
        ))
    }

    /// For an engine in another network that is reached from here: at the address of its container,
    /// or at a published port.
    fn prove_elsewhere(&self) -> Result<(), String> {
        if self.engine.proof != Proof::Container {
            return Err(format!(
                "{} is in another network, and no container is confirmed that is at {}",
                self.engine.name, self.endpoint.origin
            ));
        }
        // Published ports belong to Docker, which runs as root.
        let sockets = self.listening("self")?;
        match sockets.iter().find(|socket| socket.uid != 0) {
            Some(other) => {
                let origin = &self.endpoint.origin;
                Err(format!("what listens at {origin} was made by user {}", other.uid))
            }
            None => Ok(()),
        }
    }

    /// The sockets that may accept a connection to the endpoint, as seen by a process.
    fn listening(&self, process: &str) -> Result<Vec<TcpSocket>, String> {
        let (to, port) = (self.addresses()?, self.endpoint.port().unwrap_or(80));
        self.sockets(process, |socket| {
            let is_open = socket.is_listening && socket.local.port() == port;
            is_open && to.iter().any(|to| socket.accepts(*to))
        })
    }

    /// The selected TCP sockets in the network of a process. An error: the table is too long to
    /// read, so that a socket could hide in it.
    fn sockets(
        &self,
        process: &str,
        is_wanted: impl Fn(&TcpSocket) -> bool,
    ) -> Result<Vec<TcpSocket>, String> {
        let mut wanted = Vec::new();
        for name in ["net/tcp", "net/tcp6"] {
            let mut text = Vec::new();
            // A kernel without IPv6 has no such file.
            let Ok(file) = File::open(self.procfs.join(process).join(name)) else { continue };
            let read = file.take(MOST_SOCKET_BYTES).read_to_end(&mut text);
            if read.is_ok_and(|read| read as u64 == MOST_SOCKET_BYTES) {
                return Err(format!(
                    "/proc/{process}/{name} is longer than {MOST_SOCKET_BYTES} bytes: check which \
                     process has so many sockets (ss -tanp)"
                ));
            }
            wanted.extend(tcp_sockets(&text).filter(&is_wanted));
        }
        Ok(wanted)
    }

    /// The address of the endpoint. A name could resolve to any address.
    fn addresses(&self) -> Result<Vec<IpAddr>, String> {
        let (_, authority) = self.endpoint.origin.split_once("://").unwrap_or_default();
        let (host, _) = authority.rsplit_once(':').unwrap_or((authority, ""));
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host == "localhost" {
            return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
        }
        let address = host.parse::<IpAddr>().map(|address| vec![address]);
        address.map_err(|_| format!("{host} is a name, which may lead anywhere: write an address"))
    }

    /// The processes of the engine that have the sockets, by inode. An error: one was not found,
    /// and not all processes can be examined.
    fn holders(&self, sockets: &[TcpSocket]) -> io::Result<BTreeMap<u64, ProcessId>> {
        let mut wanted: BTreeSet<u64> = sockets.iter().map(|socket| socket.inode).collect();
        let (mut found, mut unseen) = (BTreeMap::new(), None);
        let mut left = MOST_OPEN_OF_ALL;
        for id in &self.engine.processes {
            if wanted.is_empty() {
                break;
            }
            let open = match fs::read_dir(self.procfs.join(id.pid.to_string()).join("fd")) {
                Ok(open) => open.flatten().take(MOST_OPEN.min(left)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => {
                    unseen = Some(error);
                    continue;
                }
            };
            let mut own = Vec::new();
            for entry in open {
                left -= 1;
                let inode = fs::read_link(entry.path()).ok().and_then(|link| socket_inode(&link));
                own.extend(inode.filter(|inode| wanted.remove(inode)));
            }
            if is_alive(&self.procfs, *id) {
                found.extend(own.into_iter().map(|inode| (inode, *id)));
            }
            if left == 0 {
                unseen = Some(io::Error::other("it has too many files open"));
            }
        }
        unseen.filter(|_| !wanted.is_empty()).map_or(Ok(found), Err)
    }

    /// Whether a process is in another container than this program, and in the same user namespace.
    /// Root of the container can give it any user id.
    fn is_contained(&self, id: ProcessId) -> bool {
        let is_ours = |namespace: &str| {
            let of = |process: &str| fs::read_link(self.procfs.join(process).join(namespace)).ok();
            of("self") == of(&id.pid.to_string())
        };
        let root = namespace_root(&self.procfs);
        let container = |pid| {
            let text = self.read(pid, "cgroup").unwrap_or_default();
            root.cgroup(&String::from_utf8_lossy(&text)).and_then(|path| container_id(&path))
        };
        let is_in_other = || {
            let its = container(id.pid);
            its.is_some() && its != container(std::process::id())
        };
        is_ours("ns/user") && (is_in_other() || !is_ours("ns/pid"))
    }

    /// Whether the endpoint is in this network, and the engine in another.
    fn is_elsewhere(&self, pid: u32) -> bool {
        let of = |process: &str| network::of(&self.procfs, process).map(|network| network.name);
        let (own, its) = (of("self"), of(&pid.to_string()));
        self.endpoint.network.is_none() && own.is_some() && its.is_some() && own != its
    }

    fn is_in_its_cgroup(&self, id: ProcessId) -> bool {
        let text = self.read(id.pid, "cgroup").unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let known = self.engine.cgroup.as_deref().filter(|known| *known != "/");
        let now = namespace_root(&self.procfs).cgroup(&text);
        known.is_some_and(|known| now.is_some_and(|now| is_within(&now, known)))
    }

    /// Whether the user id means one user in this namespace.
    fn is_unambiguous(&self, user: u32) -> bool {
        let namespace = fs::read_link(self.procfs.join("self/ns/user")).ok();
        user != OVERFLOW_USER || namespace.is_some_and(|own| own.to_str() == Some(ALL_USERS))
    }

    fn read(&self, pid: u32, name: &str) -> Option<Vec<u8>> {
        let mut text = Vec::new();
        let file = File::open(self.procfs.join(pid.to_string()).join(name)).ok()?;
        file.take(MOST_FILE_BYTES).read_to_end(&mut text).ok()?;
        Some(text)
    }
}

fn socket_inode(link: &Path) -> Option<u64> {
    link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::process::{Command, Stdio};
    use std::sync::Arc;

    use super::*;
    use crate::model::{EngineKind, EngineProcess, EngineSeen};

    /// Listens, accepts one connection, and listens no longer.
    const SNATCHES: &str = "
import socket
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(('127.0.0.1', 0))
listener.listen()
print(listener.getsockname()[1], flush=True)
connection, _ = listener.accept()
listener.close()
print('accepted', flush=True)
input()";

    /// This process, as an engine.
    fn own() -> EngineTarget {
        let pid = std::process::id();
        let text = fs::read(format!("/proc/{pid}/stat")).unwrap();
        let id = ProcessId { pid, start_ticks: stat(&text).unwrap().start_ticks };
        let processes = vec![EngineProcess::holding(id, "vllm", 0)];
        let (name, why) = (Arc::from("own"), Arc::from("test"));
        EngineTarget::from(&EngineSeen::new(name, EngineKind::Vllm, id, processes, why))
    }

    fn connection(stream: &TcpStream) -> ConnectionEnds {
        ConnectionEnds::new(stream.local_addr().unwrap(), stream.peer_addr().unwrap())
    }

    fn prove(port: u16, made: Option<&TcpStream>) -> Result<(), String> {
        let engine = own();
        let endpoint = Endpoint { origin: format!("http://127.0.0.1:{port}"), network: None };
        let claim = Claim { procfs: PathBuf::from("/proc"), engine: &engine, endpoint: &endpoint };
        let user = rustix::process::geteuid().as_raw();
        match made {
            Some(stream) => claim.prove_connection(user, &connection(stream)),
            None => claim.prove(user),
        }
    }

    #[test]
    fn the_end_of_a_connection_is_proven_before_and_after_it_is_accepted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        prove(port, Some(&client)).unwrap();
        let accepted = listener.accept().unwrap();
        prove(port, Some(&client)).unwrap();
        drop((accepted, listener));
        let error = prove(port, Some(&client)).unwrap_err();
        assert!(error.contains("ended") || error.contains("no socket"), "{error}");
    }

    #[test]
    fn a_process_that_accepts_and_no_longer_listens_gets_no_key() {
        let mut python = Command::new("python3")
            .args(["-c", SNATCHES])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(python.stdout.take().unwrap()).lines();
        let port: u16 = lines.next().unwrap().unwrap().parse().unwrap();
        let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        lines.next().unwrap().unwrap();
        let _listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        prove(port, None).unwrap();
        let error = prove(port, Some(&client)).unwrap_err();
        assert!(error.contains("is no process of own"), "{error}");
        python.stdin.take().unwrap().write_all(b"\n").unwrap();
        python.wait().unwrap();
    }
}
