//! The control socket: where orders are taken, from whoever may open it.
//!
//! The file's mode is the lock: its owner and root come in, others only where somebody widens it.
//! The kernel says who has come.

use std::fs::{self, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};

/// Only the owner.
const MODE: Mode = Mode::RUSR.union(Mode::WUSR);
/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;
/// The bytes of a path that fit into a unix socket's address.
const MOST_PATH_BYTES: usize = 107;

/// A socket that is listened on, and the file that leads to it.
#[derive(Debug)]
pub(super) struct ControlSocket {
    pub(super) listener: UnixListener,
    pub(super) file: SocketFile,
}

/// A file that leads to a socket of ours, for as long as nobody replaces it.
#[derive(Clone, Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl ControlSocket {
    /// Makes it. A file that a dead process has left is replaced; one that somebody listens on, or
    /// that is no socket, is not.
    ///
    /// # Errors
    /// Says what is in the way, and what to do.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let explain = |error: io::Error| {
            let text = format!("cannot make the control socket {}: {error}", path.display());
            io::Error::new(error.kind(), text)
        };
        let address = address(path).map_err(explain)?;
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            fs::DirBuilder::new().recursive(true).mode(0o750).create(folder).map_err(explain)?;
        }
        clear_way(path, &address).map_err(explain)?;
        let socket = new_socket()?;
        // The kernel gives the file the socket's own mode, so that it never has a wider one.
        fchmod(&socket, MODE)?;
        bind(&socket, &address).map_err(|error| explain(error.into()))?;
        let file = SocketFile::new(path).map_err(explain)?;
        listen(&socket, BACKLOG).map_err(|error| explain(error.into()))?;
        Ok(Self { listener: UnixListener::from(socket), file })
    }
}

impl SocketFile {
    fn new(path: &Path) -> io::Result<Self> {
        let metadata = fs::symlink_metadata(path)?;
        Ok(Self { path: path.to_owned(), device: metadata.dev(), inode: metadata.ino() })
    }

    fn is(&self, found: &Metadata) -> bool {
        (found.dev(), found.ino()) == (self.device, self.inode)
    }

    /// Whether it still leads to the socket.
    pub(super) fn is_there(&self) -> bool {
        fs::symlink_metadata(&self.path).is_ok_and(|found| self.is(&found))
    }

    /// Removes it, unless it leads to somebody else's by now.
    pub(super) fn remove(&self) {
        if self.is_there()
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::debug!(path = %self.path.display(), %error, "the control socket stays");
        }
    }
}

/// A unix socket's address.
///
/// # Errors
/// The path does not fit into one.
pub fn address(path: &Path) -> io::Result<SocketAddrUnix> {
    let bytes = path.as_os_str().len();
    if bytes > MOST_PATH_BYTES {
        let text = format!(
            "its path has {bytes} bytes, and a unix socket's has at most {MOST_PATH_BYTES}: give a \
             shorter one with --web.control-socket"
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    Ok(SocketAddrUnix::new(path)?)
}

fn new_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// Removes what a dead process has left.
fn clear_way(path: &Path, address: &SocketAddrUnix) -> io::Result<()> {
    let refuse = |text: String| Err(io::Error::new(io::ErrorKind::AddrInUse, text));
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return refuse("the file there is no socket: move it away".to_owned());
        }
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    }
    let probe = new_socket()?;
    match connect(&probe, address) {
        Err(Errno::CONNREFUSED) => fs::remove_file(path),
        Err(Errno::NOENT) => Ok(()),
        Ok(()) => {
            let pid = socket_peercred(&probe).map(|peer| peer.pid.as_raw_nonzero().get());
            let holder = pid.map_or_else(|_| "another".to_owned(), |pid| pid.to_string());
            refuse(format!(
                "process {holder} listens there: stop it, or give this one another --storage.path"
            ))
        }
        // Somebody listens who does not get round to it.
        Err(Errno::AGAIN) => refuse("a process listens there already".to_owned()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    /// Ends as a dead process's does, at once: a process that another test is just starting has a
    /// copy of each descriptor until it runs.
    fn die(listener: UnixListener) {
        rustix::net::shutdown(&listener, rustix::net::Shutdown::Both).unwrap();
    }

    #[test]
    fn only_the_owner_may_come_in_whatever_the_umask() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/control.sock");
        let before = rustix::process::umask(Mode::empty());
        let opened = ControlSocket::open(&path);
        rustix::process::umask(before);
        let opened = opened.unwrap();
        assert_eq!(mode(&path), 0o600);
        UnixStream::connect(&path).unwrap();
        opened.file.remove();
        assert!(!path.exists());
    }

    #[test]
    fn a_dead_processs_socket_is_replaced_and_a_living_ones_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control.sock");
        die(UnixListener::bind(&path).unwrap());
        let first = ControlSocket::open(&path).unwrap();
        let error = ControlSocket::open(&path).unwrap_err();
        let own = format!("process {} listens there", std::process::id());
        assert!(error.to_string().contains(&own), "{error}");
        UnixStream::connect(&path).unwrap();
        // One that nobody accepts on is not dead either.
        let hoard: Vec<_> = (0..2 * BACKLOG)
            .map(|_| {
                let socket = new_socket().unwrap();
                let _full = connect(&socket, &address(&path).unwrap());
                socket
            })
            .collect();
        let error = ControlSocket::open(&path).unwrap_err();
        assert!(error.to_string().contains("listens there already"), "{error}");
        drop(hoard);
        die(first.listener);
        let second = ControlSocket::open(&path).unwrap();
        assert!(second.file.is_there());
    }

    #[test]
    fn a_file_that_is_no_socket_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control.sock");
        fs::write(&path, "precious").unwrap();
        let error = ControlSocket::open(&path).unwrap_err();
        assert!(error.to_string().contains("no socket: move it away"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn somebody_elses_socket_is_not_removed_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control.sock");
        let ours = ControlSocket::open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert!(!ours.file.is_there());
        let theirs = UnixListener::bind(&path).unwrap();
        ours.file.remove();
        UnixStream::connect(&path).unwrap();
        drop(theirs);
    }

    #[test]
    fn a_path_that_is_too_long_is_told_with_the_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x".repeat(120));
        let error = ControlSocket::open(&path).unwrap_err().to_string();
        assert!(error.contains("at most 107") && error.contains("--web.control-socket"), "{error}");
        let bytes = MOST_PATH_BYTES - folder.path().as_os_str().len() - 1;
        ControlSocket::open(&folder.path().join("y".repeat(bytes))).unwrap();
        ControlSocket::open(&folder.path().join("z".repeat(bytes + 1))).unwrap_err();
    }
}
