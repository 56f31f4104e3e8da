//! Slots of a FleetLock server, which limits how many nodes of a cluster reboot at a time.
//!
//! The protocol is that of zincati, airlock and others:
//! <https://coreos.github.io/zincati/development/fleetlock/protocol/>. A slot belongs to the
//! requesting id. Repeated requests, and returns without a slot, do no harm.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use hmac::{Hmac, KeyInit as _, Mac as _};
use rustix::fs::{Mode, OFlags, open};
use serde_json::{Value, json};
use sha2::Sha256;

use super::ClientSession;
use crate::model::{TlsFiles, without_unprintable};
use crate::parse::answer::HttpResponse;

/// The header that the protocol requires.
const HEADER: (&str, &str) = ("fleet-lock-protocol", "true");

const PRE_REBOOT: &str = "/v1/pre-reboot";
const STEADY_STATE: &str = "/v1/steady-state";

/// The time limit of a request. Servers that drain the node first respond "not yet" meanwhile, and
/// are asked again.
const ANSWER_TAKES: Duration = Duration::from_secs(10);

/// The size limit of the machine-id file, in bytes.
const MOST_ID_BYTES: u64 = 256;

/// The length limit of the name of a failure, in bytes.
const KIND_CHARS: usize = 64;
/// Limit of the shown explanation, in characters.
const VALUE_CHARS: usize = 200;

/// Zincati's application id. The id of a node is derived from it and from the machine id. Servers
/// that drain Kubernetes nodes know them by this id, and two programs that reboot one node share
/// one slot.
const APPLICATION: [u8; 16] = [
    0xde, 0x35, 0x10, 0x6b, 0x6e, 0xc2, 0x46, 0x88, 0xb6, 0x3a, 0xfd, 0xda, 0xa1, 0x56, 0x67, 0x9b,
];

/// The id of a node at the server. It identifies the machine, and is never printed whole.
#[derive(Clone, PartialEq, Eq)]
pub struct LockId(String);

impl fmt::Debug for LockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The first eight characters, which suffice to find it in the server's list.
impl fmt::Display for LockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: String = self.0.chars().take(8).collect();
        write!(f, "{shown}…")
    }
}

/// The id of this node cannot be derived.
#[derive(Debug, thiserror::Error)]
pub enum LockIdError {
    /// The file cannot be read.
    #[error("{path} cannot be read: {error}: name the node with reboot.lock.id")]
    Unreadable {
        /// The path of the file.
        path: String,
        /// The error of the system.
        error: io::Error,
    },
    /// The file holds no machine id.
    #[error("{0} holds no machine id (32 hexadecimal digits): name the node with reboot.lock.id")]
    NoId(String),
}

impl LockId {
    /// A configured id.
    pub fn given(name: &str) -> Self {
        Self(name.to_owned())
    }

    /// The id that zincati uses: 32 hexadecimal digits, derived from the machine id by a one-way
    /// function, since the machine id must stay on the machine (machine-id(5)). `systemd-id128
    /// machine-id --app-specific=de35106b6ec24688b63afddaa156679b` prints it.
    ///
    /// # Errors
    /// There is no such file, or no id in it.
    pub fn of_machine(file: &Path) -> Result<Self, LockIdError> {
        let path = || file.display().to_string();
        let text = read(file).map_err(|error| LockIdError::Unreadable { path: path(), error })?;
        let id = std::str::from_utf8(&text).ok().and_then(|text| parse_id(text.trim()));
        let id = id.ok_or_else(|| LockIdError::NoId(path()))?;
        Ok(Self(format!("{:032x}", u128::from_be_bytes(specific(id, APPLICATION)))))
    }
}

fn read(file: &Path) -> io::Result<Vec<u8>> {
    // A FIFO at this path must not block.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(open(file, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    let mut text = Vec::new();
    file.take(MOST_ID_BYTES).read_to_end(&mut text)?;
    Ok(text)
}

fn parse_id(text: &str) -> Option<[u8; 16]> {
    let is_id = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let id = is_id.then(|| u128::from_str_radix(text, 16).ok())??;
    // A machine that was never set up has no id, or zeros.
    (id != 0).then(|| id.to_be_bytes())
}

/// An id derived from a machine and an application, as by `sd_id128_get_app_specific(3)`:
/// HMAC-SHA256 of the application, keyed by the machine, cut to a UUID of version 4.
fn specific(machine: [u8; 16], application: [u8; 16]) -> [u8; 16] {
    let mut id = [0; 16];
    // HMAC takes keys of any length.
    if let Ok(mut code) = Hmac::<Sha256>::new_from_slice(&machine) {
        code.update(&application);
        let code = code.finalize().into_bytes();
        for (byte, of_code) in id.iter_mut().zip(code) {
            *byte = of_code;
        }
    }
    id[6] = (id[6] & 0x0f) | 0x40;
    id[8] = (id[8] & 0x3f) | 0x80;
    id
}

/// The response of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SlotResponse {
    /// Granted: the slot is ours, or returned.
    Granted,
    /// Refused for now.
    Refused {
        /// The kind of the failure, such as `failed_lock_semaphore_full`.
        kind: String,
        /// The explanation of the server.
        value: String,
    },
    /// No valid response in time. The server may have acted.
    NoResponse(String),
}

impl fmt::Display for SlotResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Granted => f.write_str("the lock server has agreed"),
            Self::Refused { kind, value } => {
                write!(f, "the lock server refuses ({kind}): {value}")
            }
            Self::NoResponse(why) => write!(f, "the lock server has given no response: {why}"),
        }
    }
}

/// A server, and the id and group of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetLock {
    origin: String,
    group: String,
    id: LockId,
    ca_file: Option<PathBuf>,
}

impl FleetLock {
    /// A server at `http://host:port/path` or `https://…`, and the id and group of this node there.
    pub fn new(url: &str, group: &str, id: LockId) -> Self {
        let origin = url.trim_end_matches('/').to_owned();
        Self { origin, group: group.to_owned(), id, ca_file: None }
    }

    /// The certificate authorities to trust; `None`: those of the system.
    #[must_use]
    pub fn with_ca_file(self, ca_file: Option<&Path>) -> Self {
        Self { ca_file: ca_file.map(Path::to_owned), ..self }
    }

    /// Requests a slot. A node that has one gets it again.
    pub fn take(&self) -> SlotResponse {
        self.post(PRE_REBOOT, ANSWER_TAKES)
    }

    /// Returns the slot. Without one, nothing happens.
    pub fn release(&self) -> SlotResponse {
        self.post(STEADY_STATE, ANSWER_TAKES)
    }

    fn post(&self, path: &str, patience: Duration) -> SlotResponse {
        let trust = match self.origin.split_once("://") {
            Some(("http", _)) => None,
            Some(("https", _)) => Some(TlsFiles::trusting(self.ca_file.clone())),
            _ => {
                let why = "only http:// and https:// are spoken with lock servers";
                return SlotResponse::NoResponse(why.to_owned());
            }
        };
        let body = json!({ "client_params": { "id": self.id.0, "group": self.group } });
        let response = ClientSession::open_far("fleet-lock", &self.origin, trust)
            .and_then(|session| session.post_with(path, HEADER, &body, patience));
        match response {
            Ok(answer) => parse(path, &answer),
            Err(error) => SlotResponse::NoResponse(error.to_string()),
        }
    }
}

/// 200 is a grant, and everything else a refusal. A refusal without the fields of the protocol is
/// not from a FleetLock server.
fn parse(path: &str, answer: &HttpResponse) -> SlotResponse {
    let refusal = answer.json().as_ref().and_then(refusal);
    match (answer.status, refusal) {
        // A grant with the reason of a refusal is invalid.
        (200, Some((kind, value))) => SlotResponse::Refused { kind, value },
        (200, None) => SlotResponse::Granted,
        (400..=599, Some((kind, value))) => SlotResponse::Refused { kind, value },
        (status, _) => {
            SlotResponse::NoResponse(format!("{status} at {path}: {}", answer.beginning()))
        }
    }
}

fn refusal(body: &Value) -> Option<(String, String)> {
    let of = |name: &str, most: usize| {
        let text: String = body.get(name)?.as_str()?.chars().take(most).collect();
        (!text.trim().is_empty()).then(|| without_unprintable(&text, ' '))
    };
    let value = of("value", VALUE_CHARS).unwrap_or_else(|| "it does not say why".to_owned());
    Some((of("kind", KIND_CHARS)?, value))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_fleet_lock_id_is_that_of_zincati() {
        // What systemd's own test expects (src/test/test-id128.c).
        let id = |text: &str| parse_id(text).unwrap();
        let derived = specific(
            id("51df0b4bc3b04c9780e299b98ca373b8"),
            id("f03daaeb1c334b43a732172944bf772e"),
        );
        assert_eq!(derived, id("1dee5954e75c4d6fb96cc6c04ca18a86"));
        // What poseidon/fleetlock's own test expects of zincati.
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("machine-id");
        fs::write(&file, "1c09ca98649c4c7abc779cd04c96812e\n").unwrap();
        let id = LockId::of_machine(&file).unwrap();
        assert_eq!(id.0, "978a225b3d7b40e9acd7ce9b62f68444");
        let shown = format!("{id} {id:?}");
        assert!(!shown.contains(&id.0) && shown.contains(&id.0[..8]), "{shown}");
    }

    #[test]
    fn a_machine_without_an_id_has_no_name() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("machine-id");
        let error_of = |path: &Path| LockId::of_machine(path).unwrap_err().to_string();
        assert!(error_of(&file).contains("cannot be read: No such file"), "{}", error_of(&file));
        for text in
            ["", "uninitialized\n", "0".repeat(32).as_str(), "+fd7882acda64c34aca76193c46f5d4e"]
        {
            fs::write(&file, text).unwrap();
            assert!(error_of(&file).contains("holds no machine id"), "{text}");
        }
        assert!(error_of(folder.path()).contains("it is no file"));
    }
}
