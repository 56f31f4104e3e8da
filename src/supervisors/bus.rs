//! D-Bus: connections and calls, each with a deadline.

use std::fmt;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::timeout;
use zbus::connection::Builder;
use zbus::{Connection, DynamicType, Message, fdo};

use super::user_systemd::{self, PRIVATE_SOCKET};
use crate::model::printable_beginning;

/// The socket of the system bus on all distributions.
const SYSTEM_SOCKET: &str = "/run/dbus/system_bus_socket";

/// The time limit of a connection, and of each response.
pub(super) const ANSWER_TAKES: Duration = Duration::from_secs(5);

/// The length limit of the text of a failure.
const TEXT_CHARS: usize = 300;

/// The socket of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bus {
    /// The bus behind a socket.
    System(PathBuf),
    /// A peer at the other end of a socket, without a bus.
    Peer(PathBuf),
    /// The systemd of a user, without a bus; see [`Bus::of_user`].
    OfUser {
        /// Number of the user.
        user: u32,
        /// The user's folder for the time of the session.
        folder: PathBuf,
        /// The socket in it.
        socket: PathBuf,
    },
}

impl Bus {
    /// The bus of the system at the address of D-Bus: `DBUS_SYSTEM_BUS_ADDRESS`, or the usual
    /// path.
    pub fn system() -> Self {
        let address = std::env::var("DBUS_SYSTEM_BUS_ADDRESS").unwrap_or_default();
        Self::System(socket_of(&address).unwrap_or(SYSTEM_SOCKET).into())
    }

    /// The systemd of a user; `folders` has those of users for the time of their sessions
    /// (`/run/user`).
    pub fn of_user(folders: &Path, user: u32) -> Self {
        let folder = folders.join(user.to_string());
        let socket = folder.join(PRIVATE_SOCKET.iter().collect::<PathBuf>());
        Self::OfUser { user, folder, socket }
    }

    /// Path of the socket, of the bus or of the peer.
    pub fn socket(&self) -> &Path {
        match self {
            Self::System(socket) | Self::Peer(socket) | Self::OfUser { socket, .. } => socket,
        }
    }
}

/// The path of the first address that is a socket; there may be several, each with options.
fn socket_of(addresses: &str) -> Option<&str> {
    let mut paths = addresses.split(';').filter_map(|address| {
        let options = address.strip_prefix("unix:")?.split(',');
        options.filter_map(|option| option.strip_prefix("path=")).next()
    });
    paths.find(|path| path.starts_with('/'))
}

/// A call has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BusError {
    /// There is no bus, or no service of that name on it.
    Absent(String),
    /// The requested object does not exist, or no longer.
    Gone(String),
    /// There was no response in time. The service may have acted.
    Silent(String),
    /// The call was refused or malformed.
    Failed(String),
}

impl fmt::Display for BusError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent(text) | Self::Gone(text) | Self::Silent(text) | Self::Failed(text) => {
                f.write_str(text)
            }
        }
    }
}

impl From<BusError> for String {
    fn from(error: BusError) -> Self {
        error.to_string()
    }
}

/// The destination of a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Address<'a> {
    /// The name on the bus.
    pub(super) service: &'a str,
    pub(super) path: &'a str,
    pub(super) interface: &'a str,
}

/// A connection to one service.
#[derive(Debug)]
pub(super) struct BusConnection {
    pub(super) connection: Connection,
    is_peer: bool,
    /// The name of the service, for texts.
    who: &'static str,
}

impl BusConnection {
    /// Connects to a service.
    pub(super) async fn connect(bus: &Bus, who: &'static str) -> Result<Self, BusError> {
        let describe = |error: &dyn fmt::Display| {
            format!("{who} at {}: {}", bus.socket().display(), shown(error))
        };
        let connecting = async {
            let stream = match bus {
                Bus::System(socket) | Bus::Peer(socket) => UnixStream::connect(socket),
                Bus::OfUser { user, folder, .. } => user_systemd::connect(*user, folder).await,
            };
            let stream = stream.map_err(|error| match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                    BusError::Absent(describe(&error))
                }
                _ => BusError::Failed(describe(&error)),
            })?;
            let builder = Builder::unix_stream(stream);
            let builder = match bus {
                Bus::System(_) => builder,
                Bus::Peer(_) | Bus::OfUser { .. } => builder.p2p(),
            };
            builder.build().await.map_err(|error| BusError::Failed(describe(&error)))
        };
        let connection = timeout(ANSWER_TAKES, connecting).await;
        let silent = |_| BusError::Silent(describe(&"it has not answered in time"));
        let connection = connection.map_err(silent)??;
        Ok(Self { connection, is_peer: !matches!(bus, Bus::System(_)), who })
    }

    /// Calls a method.
    pub(super) async fn call<B>(
        &self,
        to: Address<'_>,
        method: &str,
        body: &B,
        patience: Duration,
    ) -> Result<Message, BusError>
    where
        B: serde::Serialize + DynamicType,
    {
        let Address { service, path, interface } = to;
        let service = (!self.is_peer).then_some(service);
        let called = self.connection.call_method(service, path, Some(interface), method, body);
        let answer = timeout(patience, called).await;
        let who = self.who;
        let answer = answer
            .map_err(|_| BusError::Silent(format!("{who} has not answered {method} in time")))?;
        answer.map_err(|error| self.failure(method, &error))
    }

    /// Calls a method, and parses the response.
    pub(super) async fn query<B, A>(
        &self,
        to: Address<'_>,
        method: &str,
        body: &B,
        patience: Duration,
    ) -> Result<A, BusError>
    where
        B: serde::Serialize + DynamicType,
        A: serde::de::DeserializeOwned + zbus::Type,
    {
        let answer = self.call(to, method, body, patience).await?;
        answer.body().deserialize().map_err(|error| self.failure(method, &error))
    }

    fn failure(&self, method: &str, error: &zbus::Error) -> BusError {
        let text = format!("{}, {method}: {}", self.who, shown(error));
        let zbus::Error::FDO(known) = error else { return BusError::Failed(text) };
        match **known {
            fdo::Error::ServiceUnknown(_) | fdo::Error::NameHasNoOwner(_) => BusError::Absent(text),
            fdo::Error::UnknownObject(_) => BusError::Gone(text),
            _ => BusError::Failed(text),
        }
    }
}

/// The text of an error. The service writes a part of it, and a user may have replaced the program
/// at the socket.
fn shown(error: &dyn fmt::Display) -> String {
    printable_beginning(&error.to_string(), TEXT_CHARS)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn what_a_server_says_in_its_handshake_is_printable_and_short() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("private");
        let listener = UnixListener::bind(&socket).unwrap();
        std::thread::spawn(move || {
            let (mut server, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            let _ = server.read(&mut request);
            let text = format!("ERROR \u{1b}[2J{}\r\n", "x".repeat(900));
            // The client may have gone. It is to read before the connection ends.
            let _ = server.write_all(text.as_bytes());
            while server.read(&mut request).is_ok_and(|length| length > 0) {}
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let bus = Bus::Peer(socket.clone());
        let connected = runtime.block_on(BusConnection::connect(&bus, "systemd"));
        let error = connected.unwrap_err().to_string();
        let error = error.strip_prefix(&format!("systemd at {}: ", socket.display())).unwrap();
        assert!(error.contains(r"ERROR \u{1b}[2Jxxx"), "{error}");
        assert!(error.chars().count() < 2 * TEXT_CHARS, "{error}");
    }

    #[test]
    fn the_bus_socket_is_parsed_from_its_address() {
        assert_eq!(socket_of("unix:path=/run/bus"), Some("/run/bus"));
        let several = "tcp:host=h,port=1;unix:guid=0a,path=/a/b,x=y;unix:path=/c";
        assert_eq!(socket_of(several), Some("/a/b"));
        for nothing in
            ["", "unix:abstract=bus", "unix:path=relative", "path=/x", "unixexec:path=/x"]
        {
            assert_eq!(socket_of(nothing), None, "{nothing}");
        }
    }
}
