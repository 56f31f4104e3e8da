//! Connections from within the network namespace of a container, whose loopback is its own.

use std::fs::{self, File};
use std::io;
use std::net::{self, SocketAddr};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::Builder;

use rustix::fs::fstat;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::thread::{CapabilitySet, LinkNameSpaceType, capabilities, move_into_link_name_space};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::oneshot;

/// The network namespace of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// `/proc/PID/ns/net`.
    pub file: PathBuf,
    /// The target of the link, `net:[4026531840]`, since the pid may be reused.
    pub name: Arc<str>,
}

/// Whether this process may enter other network namespaces.
pub fn may_enter() -> bool {
    let sets = capabilities(None);
    sets.is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN))
}

impl Network {
    /// Connects from within the namespace, to its loopback or another address as seen inside.
    pub async fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        let (answer, received) = oneshot::channel();
        let network = self.clone();
        // A socket stays in the namespace in which it was made. The thread that entered the
        // namespace ends, so that no thread stays in another one.
        Builder::new().name("engine-network".to_owned()).spawn(move || {
            // The caller may have given up.
            let _ = answer.send(network.socket(to));
        })?;
        let socket = received.await.map_err(io::Error::other)??;
        TcpSocket::from_std_stream(net::TcpStream::from(socket)).connect(to).await
    }

    /// Moves the calling thread into the namespace. The thread must do nothing else and end there.
    pub(super) fn enter(&self) -> io::Result<()> {
        let file = File::open(&self.file)?;
        let entered = format!("net:[{}]", fstat(&file)?.st_ino);
        if *entered != *self.name {
            return Err(io::Error::other(format!(
                "{} leads to {entered} by now",
                self.file.display()
            )));
        }
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
        Ok(())
    }

    fn socket(&self, to: SocketAddr) -> io::Result<OwnedFd> {
        self.enter()?;
        let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        Ok(socket_with(family, SocketType::STREAM, flags, None)?)
    }
}

/// The network namespace of a process.
pub fn of(procfs: &Path, process: &str) -> Option<Network> {
    let file = procfs.join(process).join("ns/net");
    let name = fs::read_link(&file).ok()?.into_os_string().into_string().ok()?;
    Some(Network { file, name: name.into() })
}
