//! The control socket for orders.
//!
//! The file's mode controls access: its owner and root may connect, others only if the mode is
//! widened. The kernel identifies the client.

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

/// A listening socket, and its file.
#[derive(Debug)]
pub(super) struct ControlSocket {
    pub(super) listener: UnixListener,
    pub(super) file: SocketFile,
}

/// The file of our socket, until it is replaced.
#[derive(Clone, Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl ControlSocket {
    /// Creates the socket. The file of a dead process is replaced. A socket with a listener, and
    /// any other file, is not.
    ///
    /// # Errors
    /// What is in the way, and what to do.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let explain = |error: io::Error| {
            let text = format!("cannot create the control socket {}: {error}", path.display());
            io::Error::new(error.kind(), text)
        };
        let address = address(path).map_err(explain)?;
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            fs::DirBuilder::new().recursive(true).mode(0o750).create(folder).map_err(explain)?;
        }
        clear_way(path, &address).map_err(explain)?;
        let socket = new_socket()?;
        // The kernel gives the file the mode of the socket, so that it is never wider.
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

    /// Whether the file still leads to the socket.
    pub(super) fn is_there(&self) -> bool {
        fs::symlink_metadata(&self.path).is_ok_and(|found| self.is(&found))
    }

    /// Removes the file, unless it was replaced.
    pub(super) fn remove(&self) {
        if self.is_there()
            && let Err(error) = fs::remove_file(&self.path)
        {
            let path = self.path.display();
            tracing::debug!(%path, %error, "cannot remove the control socket");
        }
    }
}

/// A unix socket's address.
///
/// # Errors
/// The path is too long.
pub fn address(path: &Path) -> io::Result<SocketAddrUnix> {
    let bytes = path.as_os_str().len();
    if bytes > MOST_PATH_BYTES {
        let text = format!(
            "its path has {bytes} bytes, and that of a unix socket at most {MOST_PATH_BYTES}: give \
             a shorter one with --web.control-socket"
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    Ok(SocketAddrUnix::new(path)?)
}

fn new_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// Removes the socket of a dead process.
fn clear_way(path: &Path, address: &SocketAddrUnix) -> io::Result<()> {
    let refuse = |text: String| Err(io::Error::new(io::ErrorKind::AddrInUse, text));
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return refuse("the file there is not a socket: move it away".to_owned());
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
        // A process listens and does not accept.
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

    /// Closes like a dead process, at once. A process that another test starts meanwhile has a copy
    /// of each descriptor until it runs exec.
    fn die(listener: UnixListener) {
        rustix::net::shutdown(&listener, rustix::net::Shutdown::Both).unwrap();
    }

    #[test]
    fn only_the_owner_can_connect_under_any_umask() {
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
    fn a_stale_socket_is_replaced_and_one_in_use_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control.sock");
        die(UnixListener::bind(&path).unwrap());
        let first = ControlSocket::open(&path).unwrap();
        let error = ControlSocket::open(&path).unwrap_err();
        let own = format!("process {} listens there", std::process::id());
        assert!(error.to_string().contains(&own), "{error}");
        UnixStream::connect(&path).unwrap();
        // A listener that does not accept is alive too.
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
    fn a_file_other_than_a_socket_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control.sock");
        fs::write(&path, "precious").unwrap();
        let error = ControlSocket::open(&path).unwrap_err();
        assert!(error.to_string().contains("not a socket: move it away"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn a_foreign_socket_is_not_removed_at_the_end() {
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
    fn an_overlong_path_is_an_error_with_the_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x".repeat(120));
        let error = ControlSocket::open(&path).unwrap_err().to_string();
        assert!(error.contains("at most 107") && error.contains("--web.control-socket"), "{error}");
        let bytes = MOST_PATH_BYTES - folder.path().as_os_str().len() - 1;
        ControlSocket::open(&folder.path().join("y".repeat(bytes))).unwrap();
        ControlSocket::open(&folder.path().join("z".repeat(bytes + 1))).unwrap_err();
    }
}
