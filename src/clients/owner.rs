//! Whether an engine is still the one that was meant, and is what listens where it is asked.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use super::network;
use super::session::Place;
use crate::model::{EngineTarget, ProcessId, Proof};
use crate::parse::process::{Listener, cgroup, is_within, listeners, stat, user_id};

/// Those that listen stand first.
const MOST_SOCKET_BYTES: u64 = 256 << 10;
/// The most open files of a process that are looked at.
const MOST_OPEN: usize = 4096;
/// Longer files of a process are cut.
const MOST_FILE_BYTES: u64 = 64 << 10;

/// Linux shows users that it has no number for as this one; it is also `nobody`.
const OVERFLOW_USER: u32 = 65_534;

/// The user namespace in which all users have numbers (PROC_USER_INIT_INO).
const ALL_USERS: &str = "user:[4026531837]";

/// Whether that very process lives.
pub fn is_alive(procfs: &Path, id: ProcessId) -> bool {
    let text = fs::read(procfs.join(id.pid.to_string()).join("stat")).ok();
    let known = text.and_then(|text| stat(&text));
    known.is_some_and(|known| {
        known.start_ticks == id.start_ticks && !matches!(known.state, 'Z' | 'X')
    })
}

/// Whether one of the engine's processes has the socket that listens at that place; `None` where
/// nothing listens there, as behind a port that Docker offers, or that cannot be seen.
pub fn listens(procfs: &Path, engine: &EngineTarget, place: &Place) -> Option<bool> {
    let claim = Claim { procfs: procfs.to_owned(), engine, place };
    let sockets = claim.listening(&engine.processes.first()?.pid.to_string()).ok()?;
    let holders: Vec<_> = sockets.iter().map(|socket| claim.holder(socket)).collect();
    let is_its = holders.iter().any(|holder| matches!(holder, Ok(Some(_))));
    let is_all_seen = !holders.is_empty() && holders.iter().all(Result::is_ok);
    (is_its || is_all_seen).then_some(is_its)
}

/// The sockets that a proof is about, by their inodes: while they listen, nobody else accepts.
pub type Sockets = BTreeSet<u64>;

/// An engine that says that it is what listens at a place, and is to be sent a key.
#[derive(Clone, Debug)]
pub struct Claim<'a> {
    /// Where procfs is mounted.
    pub procfs: PathBuf,
    /// The engine, as it was seen last.
    pub engine: &'a EngineTarget,
    /// Where the key is to be sent.
    pub place: &'a Place,
}

impl Claim<'_> {
    /// Proves that what accepts connections at that place is a process of the engine, and that no
    /// unprivileged user can have made it: it runs as `user`, or is in the system service or
    /// container that the service manager or Docker confirms. Returns the sockets that it listens
    /// on.
    ///
    /// # Errors
    /// What is not proven, and what to write so that it is.
    pub fn prove(&self, user: u32) -> Result<Sockets, String> {
        let Some(server) = self.engine.processes.first() else {
            return Err(format!("no process of {} is known", self.engine.name));
        };
        if !is_alive(&self.procfs, *server) {
            return Err(format!("pid {server} has ended"));
        }
        if self.is_elsewhere(server.pid) {
            return self.prove_elsewhere();
        }
        let sockets = self.listening(&server.pid.to_string())?;
        if sockets.is_empty() {
            return Err(format!("no socket is seen to listen at {}", self.place.origin));
        }
        for socket in &sockets {
            let holder = self.holder(socket).map_err(|error| {
                format!("the open files of pid {server} cannot be read: {error}: run as root")
            })?;
            let holder = holder.ok_or_else(|| {
                let (origin, name) = (&self.place.origin, &self.engine.name);
                format!("what listens at {origin} is no process of {name}")
            })?;
            self.prove_process(holder, socket, user)?;
        }
        Ok(sockets.iter().map(|socket| socket.inode).collect())
    }

    fn prove_process(&self, id: ProcessId, socket: &Listener, user: u32) -> Result<(), String> {
        if !self.engine.proof.is_claimed() && self.is_in_its_cgroup(id) {
            return Ok(());
        }
        let status = self.read(id.pid, "status").unwrap_or_default();
        let runs_as = user_id(&status);
        if runs_as == Some(user) && socket.uid == user && self.is_told_apart(user) {
            return Ok(());
        }
        let is = match runs_as {
            Some(user) => format!("runs as user {user}"),
            None => "has several user ids, as a setuid program has".to_owned(),
        };
        let claims = match &self.engine.claimed_container {
            Some(id) => format!(" and Docker does not confirm its container {id:.12}"),
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

    /// In another network than ours, and asked from here: at the address of its container, or at
    /// a port that its host offers.
    fn prove_elsewhere(&self) -> Result<Sockets, String> {
        if self.engine.proof != Proof::Container {
            return Err(format!(
                "{} is in another network, and no container is confirmed that is at {}",
                self.engine.name, self.place.origin
            ));
        }
        // Who offers the port of a container is Docker, which is root.
        let sockets = self.listening("self")?;
        match sockets.iter().find(|socket| socket.uid != 0) {
            Some(other) => {
                let origin = &self.place.origin;
                Err(format!("what listens at {origin} was made by user {}", other.uid))
            }
            None => Ok(sockets.iter().map(|socket| socket.inode).collect()),
        }
    }

    /// The sockets that may accept a connection to that place, as seen by a process.
    fn listening(&self, process: &str) -> Result<Vec<Listener>, String> {
        let (to, port) = (self.addresses()?, self.place.port().unwrap_or(80));
        let of = |name: &str| {
            let mut text = Vec::new();
            let file = File::open(self.procfs.join(process).join(name)).ok()?;
            file.take(MOST_SOCKET_BYTES).read_to_end(&mut text).ok()?;
            Some(text)
        };
        let files = [of("net/tcp"), of("net/tcp6")];
        let all = files.iter().flatten().flat_map(|text| listeners(text, port));
        Ok(all.filter(|socket| to.iter().any(|to| socket.accepts(*to))).collect())
    }

    /// Where the key is sent: a name may lead anywhere.
    fn addresses(&self) -> Result<Vec<IpAddr>, String> {
        let (_, authority) = self.place.origin.split_once("://").unwrap_or_default();
        let (host, _) = authority.rsplit_once(':').unwrap_or((authority, ""));
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host == "localhost" {
            return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
        }
        let address = host.parse::<IpAddr>().map(|address| vec![address]);
        address.map_err(|_| format!("{host} is a name, which may lead anywhere: write an address"))
    }

    /// The process of the engine that has that socket. An error: not all can be looked at.
    fn holder(&self, socket: &Listener) -> io::Result<Option<ProcessId>> {
        let wanted = format!("socket:[{}]", socket.inode);
        let mut unseen = None;
        for id in &self.engine.processes {
            match fs::read_dir(self.procfs.join(id.pid.to_string()).join("fd")) {
                Ok(open) => {
                    let mut open = open.flatten().take(MOST_OPEN);
                    let is_it = |entry: &fs::DirEntry| {
                        let target = fs::read_link(entry.path()).ok();
                        target.is_some_and(|target| target.to_str() == Some(&wanted))
                    };
                    if open.any(|entry| is_it(&entry)) && is_alive(&self.procfs, *id) {
                        return Ok(Some(*id));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => unseen = Some(error),
            }
        }
        unseen.map_or(Ok(None), Err)
    }

    /// Whether its place is meant in our network, and it lives in another.
    fn is_elsewhere(&self, pid: u32) -> bool {
        let of = |process: &str| network::of(&self.procfs, process).map(|network| network.name);
        let (own, its) = (of("self"), of(&pid.to_string()));
        self.place.network.is_none() && own.is_some() && its.is_some() && own != its
    }

    fn is_in_its_cgroup(&self, id: ProcessId) -> bool {
        let text = self.read(id.pid, "cgroup").unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let known = self.engine.cgroup.as_deref().filter(|known| *known != "/");
        known.is_some_and(|known| cgroup(&text).is_some_and(|now| is_within(now, known)))
    }

    /// Whether that number means one user here.
    fn is_told_apart(&self, user: u32) -> bool {
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
