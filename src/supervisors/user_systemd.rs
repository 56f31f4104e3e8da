//! The systemd of a user (`systemctl --user`), at the private socket that `systemctl --user` uses
//! itself: a user's own dbus-daemon refuses root.
//!
//! On that socket systemd writes its own name as the sender of each message, and zbus ends a
//! connection whose messages have another sender than a unique name. So all messages pass through
//! here, which also bounds their size: a user may have replaced the program at the socket.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::{FileType, Mode, OFlags, fstat, open, openat};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader, copy};
use tokio::net::UnixStream;
use tokio::task::spawn_blocking;
use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::model::EngineUser;

/// The folder and the socket below the folder of a user for the time of the session.
pub(super) const PRIVATE_SOCKET: [&str; 2] = ["systemd", "private"];

/// The length limits of a message, and of a response to `AUTH`. The properties of a service have
/// about 10 KiB.
const MOST_BYTES: usize = 256 << 10;
const MOST_LINE_BYTES: usize = 1 << 10;

/// What is passed on of one user in a second, about. One thread serves the systemds of all users. A
/// login causes some hundred signals, and a query of a unit three responses of 10 KiB.
const MESSAGES_A_SECOND: usize = 500;
const BYTES_A_SECOND: usize = 4 << 20;

/// Attempts to open the socket of a user that may hang: of the watch and of a start.
const MAX_OPENING: usize = 2;

/// The attempts that go on, by user.
static OPENING: Mutex<BTreeMap<u32, usize>> = Mutex::new(BTreeMap::new());

/// The part of a message that all have: its byte order, type, flags, version, the length of its
/// body, its number, and the length of its header fields (D-Bus specification, "Message Format").
const HEAD_BYTES: usize = 16;
const BODY_LENGTH_AT: usize = 4;
const FIELDS_LENGTH_AT: usize = 12;

/// The code of the header field that names the sender.
const SENDER: u8 = 7;

/// What a unique name begins with, and the shortest one.
const UNIQUE: &[u8] = b":1.";
const SHORTEST_UNIQUE: usize = 4;

/// The number of a user in the configuration.
///
/// # Errors
/// There is no such user.
pub fn uid_of(user: &EngineUser) -> Result<u32, String> {
    match user {
        EngineUser::Id(id) => Ok(*id),
        EngineUser::Name(name) => {
            let known = uzers::get_user_by_name(&**name).map(|user| user.uid());
            known.ok_or_else(|| format!("there is no user {name} here"))
        }
    }
}

/// Whether that user's systemd has its socket below `folders` (`/run/user`).
///
/// # Errors
/// There is no such socket, or it is not that user's.
pub fn find(folders: &Path, user: u32) -> io::Result<()> {
    let found = open_socket(user, &folders.join(user.to_string()));
    found.map(drop).map_err(|error| explain(&error, user))
}

/// Connects to the systemd of a user, whose folder for the time of the session that is.
pub(super) async fn connect(user: u32, folder: &Path) -> io::Result<StdUnixStream> {
    let server = connect_to_socket(user, folder).await.map_err(|error| explain(&error, user))?;
    let (near, far) = UnixStream::pair()?;
    // It ends with the connection.
    tokio::spawn(relay(server, near));
    far.into_std()
}

fn explain(error: &io::Error, user: u32) -> io::Error {
    let why = match error.kind() {
        io::ErrorKind::NotFound => format!(
            "user {user} has no systemd now: log in as that user, or keep it without a login \
             (`loginctl enable-linger {user}`)"
        ),
        io::ErrorKind::PermissionDenied => {
            "permission denied: run as root with CAP_DAC_OVERRIDE (`umawarden print drop-in \
             rootless`)"
                .to_owned()
        }
        _ => error.to_string(),
    };
    io::Error::new(error.kind(), why)
}

/// Opens the socket without following a link. A user may make one that leads to any other socket.
/// openat2(2) would do it in one call, but `RestrictSUIDSGID=` of the packaged unit refuses it.
fn open_socket(user: u32, folder: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let [below, socket] = PRIVATE_SOCKET;
    let folder = open(folder, flags | OFlags::DIRECTORY, Mode::empty())?;
    verify(&folder, user, FileType::Directory)?;
    let folder = openat(&folder, below, flags | OFlags::DIRECTORY, Mode::empty())?;
    verify(&folder, user, FileType::Directory)?;
    let socket = openat(&folder, socket, flags, Mode::empty())?;
    verify(&socket, user, FileType::Socket)?;
    Ok(socket)
}

/// An attempt to open the socket of a user, until it ends.
struct Opening(u32);

impl Opening {
    fn begin(user: u32) -> io::Result<Self> {
        let mut all = opening();
        let attempts = all.entry(user).or_default();
        if *attempts >= MAX_OPENING {
            return Err(io::Error::other("the file system of its folder does not respond"));
        }
        *attempts += 1;
        Ok(Self(user))
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        let mut all = opening();
        let left = all.remove(&self.0).and_then(|attempts| attempts.checked_sub(1));
        if let Some(left @ 1..) = left {
            all.insert(self.0, left);
        }
    }
}

fn opening() -> MutexGuard<'static, BTreeMap<u32, usize>> {
    OPENING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens the socket on another thread. A user may have a file system of their own over the folder
/// (FUSE), which never responds, and one thread serves the systemds of all users.
async fn open_apart(user: u32, folder: &Path) -> io::Result<OwnedFd> {
    let opening = Opening::begin(user)?;
    let folder = folder.to_owned();
    let opened = spawn_blocking(move || {
        let socket = open_socket(user, &folder);
        drop(opening);
        socket
    });
    opened.await.map_err(io::Error::other)?
}

fn verify(file: &OwnedFd, user: u32, kind: FileType) -> io::Result<()> {
    let found = fstat(file)?;
    if FileType::from_raw_mode(found.st_mode) != kind {
        return Err(io::Error::other("it is no socket"));
    }
    of_that_user(found.st_uid, user)
}

fn of_that_user(found: u32, user: u32) -> io::Result<()> {
    let why = || format!("it is of user {found} and not of user {user}: it is not queried");
    if found == user { Ok(()) } else { Err(io::Error::other(why())) }
}

/// Does not block where the queue of the socket is full. The kernel reports the user of the process
/// that listens (SO_PEERCRED, unix(7)).
async fn connect_to_socket(user: u32, folder: &Path) -> io::Result<UnixStream> {
    let socket = open_apart(user, folder).await?;
    // connect(2) takes a path alone.
    let stream = UnixStream::connect(format!("/proc/self/fd/{}", socket.as_raw_fd())).await?;
    of_that_user(stream.peer_cred()?.uid(), user)?;
    Ok(stream)
}

/// Passes everything between both until one of them ends the connection.
async fn relay(server: UnixStream, client: UnixStream) {
    let (from_server, mut to_server) = server.into_split();
    let (mut from_client, mut to_client) = client.into_split();
    let mut from_server = BufReader::new(from_server);
    // The client sees the end of the connection, whatever ended it.
    tokio::select! {
        _ = copy(&mut from_client, &mut to_server) => {}
        _ = pass_on(&mut from_server, &mut to_client) => {}
    }
}

/// Bounds what is passed on of one user. More waits, and with it the responses to that user's
/// queries, which then miss their deadlines.
struct RelayLimit {
    seconds: Interval,
    messages: usize,
    bytes: usize,
}

impl RelayLimit {
    fn new() -> Self {
        let mut seconds = interval(Duration::from_secs(1));
        // What a quiet connection has not used is not left for later.
        seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { seconds, messages: 0, bytes: 0 }
    }

    async fn wait(&mut self) {
        if self.messages >= MESSAGES_A_SECOND || self.bytes >= BYTES_A_SECOND {
            self.seconds.tick().await;
            (self.messages, self.bytes) = (0, 0);
        }
    }

    fn count(&mut self, bytes: usize) {
        self.messages += 1;
        self.bytes += bytes;
    }
}

/// Passes on what systemd sends, until the end or the first message that is too long.
async fn pass_on(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
) -> io::Result<()> {
    let mut message = Vec::new();
    let mut limit = RelayLimit::new();
    loop {
        limit.wait().await;
        message.clear();
        let first = from.read_u8().await?;
        message.push(first);
        match first {
            // The byte order of a message. No response to AUTH begins so.
            b'l' | b'B' => read_message(from, &mut message).await?,
            _ => read_line(from, &mut message).await?,
        }
        limit.count(message.len());
        to.write_all(&message).await?;
    }
}

async fn read_line(from: &mut (impl AsyncRead + Unpin), line: &mut Vec<u8>) -> io::Result<()> {
    while line.last() != Some(&b'\n') {
        if line.len() >= MOST_LINE_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        line.push(from.read_u8().await?);
    }
    // zbus 6.2 panics at a line that has nothing before its line feed.
    match line.ends_with(b"\r\n") {
        true => Ok(()),
        false => Err(io::ErrorKind::InvalidData.into()),
    }
}

async fn read_message(
    from: &mut (impl AsyncRead + Unpin),
    message: &mut Vec<u8>,
) -> io::Result<()> {
    let known = message.len();
    message.resize(HEAD_BYTES, 0);
    from.read_exact(&mut message[known..]).await?;
    let size = size(message).filter(|size| *size <= MOST_BYTES);
    message.resize(size.ok_or(io::ErrorKind::InvalidData)?, 0);
    from.read_exact(&mut message[HEAD_BYTES..]).await?;
    rename_sender(message);
    Ok(())
}

/// Makes a message what is passed on of it, and returns the size that its head has.
#[cfg(feature = "fuzzing")]
pub fn passed_on(message: &mut [u8]) -> Option<usize> {
    rename_sender(message);
    size(message)
}

fn number(message: &[u8], at: usize) -> Option<usize> {
    let bytes = message.get(at..at.checked_add(4)?)?.try_into().ok()?;
    let number = match message.first()? {
        b'l' => u32::from_le_bytes(bytes),
        _ => u32::from_be_bytes(bytes),
    };
    usize::try_from(number).ok()
}

/// The size of a message whose head that is.
fn size(head: &[u8]) -> Option<usize> {
    let fields = number(head, FIELDS_LENGTH_AT)?.checked_next_multiple_of(8)?;
    fields.checked_add(number(head, BODY_LENGTH_AT)?)?.checked_add(HEAD_BYTES)
}

/// Makes the sender of a message a unique name of the same length.
fn rename_sender(message: &mut [u8]) {
    let Some(name) = sender(message).and_then(|place| message.get_mut(place)) else { return };
    if name.len() >= SHORTEST_UNIQUE && !name.starts_with(b":") {
        name.fill(b'0');
        name[..UNIQUE.len()].copy_from_slice(UNIQUE);
    }
}

/// Where the sender of a message is. Each header field is a code and a variant, and begins at a
/// multiple of 8 bytes.
fn sender(message: &[u8]) -> Option<Range<usize>> {
    let end = number(message, FIELDS_LENGTH_AT)?.checked_add(HEAD_BYTES)?;
    let mut at = HEAD_BYTES;
    while at < end {
        let &[code, 1, kind, 0] = message.get(at..at.checked_add(4)?)? else { return None };
        let value = at.checked_add(4)?;
        let (begin, length) = match kind {
            b's' | b'o' => (value.checked_add(4)?, number(message, value)?),
            b'g' => (value.checked_add(1)?, usize::from(*message.get(value)?)),
            // A number has no zero at its end.
            b'u' => (value, 3),
            _ => return None,
        };
        let end_of_value = begin.checked_add(length)?;
        if code == SENDER && kind == b's' {
            return Some(begin..end_of_value);
        }
        at = end_of_value.checked_add(1)?.checked_next_multiple_of(8)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use proptest::prelude::*;
    use tokio::time::timeout;

    use super::*;

    /// The response of systemd 252 to `LoadUnit`, at the private socket of a user.
    const LOADED: &[u8] = b"l\x02\x01\x011\0\0\0\x01\0\0\x007\0\0\0\x05\x01u\0\x01\0\0\0\
        \x07\x01s\0\x18\0\0\0org.freedesktop.systemd1\0\0\0\0\0\0\0\0\
        \x08\x01g\0\x01o\0\0,\0\0\0/org/freedesktop/systemd1/unit/eng_2eservice\0";

    /// The same as if a bus had sent it.
    const OF_A_BUS: &[u8] = b"l\x02\x01\x011\0\0\0\x01\0\0\x007\0\0\0\x05\x01u\0\x01\0\0\0\
        \x07\x01s\0\x18\0\0\0:1.000000000000000000000\0\0\0\0\0\0\0\0\
        \x08\x01g\0\x01o\0\0,\0\0\0/org/freedesktop/systemd1/unit/eng_2eservice\0";

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
    }

    fn passed(mut sent: &[u8]) -> (Vec<u8>, io::ErrorKind) {
        let runtime = runtime();
        let mut passed = Vec::new();
        let end = runtime.block_on(pass_on(&mut sent, &mut passed)).unwrap_err();
        (passed, end.kind())
    }

    #[test]
    fn the_sender_of_each_message_becomes_a_unique_name() {
        let answers = b"OK 87cb90c9ddae4c5a83621520f981e2e4\r\nAGREE_UNIX_FD\r\n".as_slice();
        let (got, end) = passed(&[answers, LOADED, OF_A_BUS, LOADED].concat());
        assert_eq!(got, [answers, OF_A_BUS, OF_A_BUS, OF_A_BUS].concat());
        assert_eq!(end, io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_message_or_a_line_that_is_too_long_ends_the_connection() {
        let mut long = LOADED.to_vec();
        long[BODY_LENGTH_AT..BODY_LENGTH_AT + 4].copy_from_slice(&(1_u32 << 20).to_le_bytes());
        assert_eq!(passed(&long), (Vec::new(), io::ErrorKind::InvalidData));
        assert_eq!(passed(&[b'O'; 4096]), (Vec::new(), io::ErrorKind::InvalidData));
    }

    #[test]
    fn a_line_without_a_whole_end_ends_the_connection() {
        let end = io::ErrorKind::InvalidData;
        assert_eq!(passed(b"\n"), (Vec::new(), end));
        assert_eq!(passed(b"OK 0\r\n\n"), (b"OK 0\r\n".to_vec(), end));
        assert_eq!(passed(b"OK 0\n"), (Vec::new(), end));
    }

    #[test]
    fn a_flood_of_messages_is_passed_on_slowly() {
        let flood = LOADED.repeat(4 * MESSAGES_A_SECOND);
        let (mut sent, mut passed) = (flood.as_slice(), Vec::new());
        let end = runtime().block_on(async {
            timeout(Duration::from_millis(500), pass_on(&mut sent, &mut passed)).await
        });
        assert!(end.is_err(), "{end:?}");
        let messages = passed.len() / LOADED.len();
        assert!((MESSAGES_A_SECOND..=2 * MESSAGES_A_SECOND).contains(&messages), "{messages}");
    }

    /// A folder as of that user, with a socket; and who owns it.
    fn folders() -> (tempfile::TempDir, u32, UnixListener) {
        let folders = tempfile::tempdir().unwrap();
        let user = rustix::process::geteuid().as_raw();
        let below = folders.path().join(user.to_string()).join("systemd");
        std::fs::create_dir_all(&below).unwrap();
        let listener = UnixListener::bind(below.join("private")).unwrap();
        (folders, user, listener)
    }

    #[test]
    fn only_the_users_own_socket_is_opened_and_no_link_is_followed() {
        let (folders, user, _listener) = folders();
        let path = |user: u32| folders.path().join(user.to_string());
        find(folders.path(), user).unwrap();
        let other = user + 1;
        let why = find(folders.path(), other).unwrap_err().to_string();
        assert!(why.contains(&format!("loginctl enable-linger {other}")), "{why}");
        std::fs::create_dir(path(other)).unwrap();
        let why = find(folders.path(), other).unwrap_err().to_string();
        assert_eq!(why, format!("it is of user {user} and not of user {other}: it is not queried"));
        std::fs::rename(path(user).join("systemd"), path(user).join("moved")).unwrap();
        symlink("moved", path(user).join("systemd")).unwrap();
        find(folders.path(), user).unwrap_err();
        std::fs::remove_file(path(user).join("systemd")).unwrap();
        std::fs::create_dir(path(user).join("systemd")).unwrap();
        symlink("../moved/private", path(user).join("systemd/private")).unwrap();
        let why = find(folders.path(), user).unwrap_err().to_string();
        assert_eq!(why, "it is no socket");
    }

    #[test]
    fn a_user_whose_folder_hangs_blocks_few_threads_and_no_other_user() {
        let user = u32::MAX - 7;
        let attempts = [(); MAX_OPENING].map(|()| Opening::begin(user).unwrap());
        assert!(Opening::begin(user).is_err());
        assert!(Opening::begin(user - 1).is_ok());
        drop(attempts);
        assert!(Opening::begin(user).is_ok());
        assert!(!opening().contains_key(&user), "nothing is kept of a user");
    }

    #[test]
    fn an_unknown_user_is_named() {
        assert_eq!(uid_of(&EngineUser::Id(7)), Ok(7));
        assert_eq!(uid_of(&EngineUser::Name("root".into())), Ok(0));
        let nobody = EngineUser::Name("no-such-user".into());
        assert_eq!(uid_of(&nobody), Err("there is no user no-such-user here".to_owned()));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
            fields in 0_u8..200,
        ) {
            let head = [b'l', 2, 1, 1, 0, 0, 0, 0, 1, 0, 0, 0, fields, 0, 0, 0];
            passed(&[head.as_slice(), &bytes].concat());
            passed(&bytes);
        }
    }
}
