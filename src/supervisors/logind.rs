//! systemd-logind, over D-Bus: logged-in users, inhibitors of a shutdown, and the reboot itself.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use zbus::{OwnedObjectPath, OwnedVariant};

use super::bus::{ANSWER_TAKES, Address, BusConnection};
pub use super::bus::{Bus, BusError};
use super::systemd::{number, text};

const LOGIND: &str = "org.freedesktop.login1";
const MANAGER_PATH: &str = "/org/freedesktop/login1";
const MANAGER: &str = "org.freedesktop.login1.Manager";
const SESSION: &str = "org.freedesktop.login1.Session";
const PROPERTIES: &str = "org.freedesktop.DBus.Properties";

/// The most sessions that are queried. More are not needed to know that users are logged in.
const MOST_SESSIONS: usize = 64;

/// The length limit of names, terminals and reasons.
const TEXT_CHARS: usize = 160;

/// A connection to logind.
#[derive(Debug)]
pub struct Logind {
    line: BusConnection,
}

/// A program that blocks a shutdown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inhibitor {
    /// Its name, in its own words.
    pub who: String,
    /// Its reason, in its own words.
    pub why: String,
    /// The process id.
    pub pid: u32,
    /// The user id.
    pub uid: u32,
}

impl fmt::Display for Inhibitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { who, why, pid, uid } = self;
        write!(f, "{who} (pid {pid}, uid {uid}): {why}")
    }
}

/// A session as logind reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoginSession {
    /// The login name.
    pub user: String,
    /// `user`, `greeter`, `background`, `manager`, …
    pub class: String,
    /// `tty`, `x11`, `wayland`, `unspecified`, …
    pub kind: String,
    /// `online`, `active`, `closing`.
    pub state: String,
    /// The terminal below `/dev`; empty without one.
    pub terminal: String,
    /// Whether it comes from another machine.
    pub is_remote: bool,
    /// Since when, in microseconds of wall time; 0 if unknown.
    pub since_usec: u64,
}

impl LoginSession {
    /// Whether a person uses it: a shell over SSH, a console, a desktop. Excluded are a user's
    /// manager, timers, cron and lingering services, and login screens.
    pub fn is_of_a_person(&self) -> bool {
        let is_user = matches!(
            &*self.class,
            "user" | "user-early" | "user-light" | "user-early-light" | "user-incomplete"
        );
        let is_seated = self.is_remote
            || !self.terminal.is_empty()
            || matches!(&*self.kind, "x11" | "wayland" | "mir");
        is_user && is_seated && self.state != "closing"
    }
}

/// A session in a list: id, uid, user, seat, path.
type ListedSession = (String, u32, String, String, OwnedObjectPath);

/// An inhibitor in a list: what, who, why, mode, uid, pid.
type Inhibiting = (String, String, String, String, u32, u32);

fn manager() -> Address<'static> {
    Address { service: LOGIND, path: MANAGER_PATH, interface: MANAGER }
}

fn bounded(text: &str) -> String {
    let printable = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().take(TEXT_CHARS).map(printable).collect()
}

impl Logind {
    /// Connects. Whether logind is behind the bus shows at the first call.
    ///
    /// # Errors
    /// No response, or not in time.
    pub async fn connect(bus: &Bus) -> Result<Self, BusError> {
        Ok(Self { line: BusConnection::connect(bus, "logind").await? })
    }

    /// Whether a reboot may be requested: `yes`, `no`, `challenge`, `na`, or a word of a later
    /// version.
    ///
    /// # Errors
    /// There is no logind, or no response of it.
    pub async fn can_reboot(&self) -> Result<String, BusError> {
        let reply: String = self.line.query(manager(), "CanReboot", &(), ANSWER_TAKES).await?;
        Ok(bounded(&reply))
    }

    /// The inhibitors that block a shutdown. logind ignores them if root requests it, so that the
    /// caller must respect them.
    ///
    /// # Errors
    /// There is no logind, or no response of it.
    pub async fn blockers(&self) -> Result<Vec<Inhibitor>, BusError> {
        let all: Vec<Inhibiting> =
            self.line.query(manager(), "ListInhibitors", &(), ANSWER_TAKES).await?;
        let blocks = |(what, _, _, mode, _, _): &Inhibiting| {
            // logind itself waits for inhibitors that only delay. `block-weak` came with systemd
            // 257.
            mode.starts_with("block") && what.split(':').any(|what| what == "shutdown")
        };
        let reply = all.into_iter().filter(blocks).map(|(_, who, why, _, uid, pid)| Inhibitor {
            who: bounded(&who),
            why: bounded(&why),
            pid,
            uid,
        });
        Ok(reply.collect())
    }

    /// Reboots the machine, as `systemctl reboot` does, without a password prompt.
    ///
    /// # Errors
    /// There is no logind, or it refuses, or there is no response in time.
    pub async fn reboot(&self, patience: Duration) -> Result<(), BusError> {
        self.line.call(manager(), "Reboot", &false, patience).await.map(drop)
    }

    /// All sessions of any class, and whether there are more than reported.
    ///
    /// # Errors
    /// There is no logind, or no response of it.
    pub async fn sessions(&self) -> Result<(Vec<LoginSession>, bool), BusError> {
        let listed: Vec<ListedSession> =
            self.line.query(manager(), "ListSessions", &(), ANSWER_TAKES).await?;
        let is_more = listed.len() > MOST_SESSIONS;
        let mut sessions = Vec::with_capacity(listed.len().min(MOST_SESSIONS));
        for (_, _, user, _, path) in listed.into_iter().take(MOST_SESSIONS) {
            let to = Address { service: LOGIND, path: path.as_str(), interface: PROPERTIES };
            let reply: BTreeMap<String, OwnedVariant> =
                match self.line.query(to, "GetAll", &SESSION, ANSWER_TAKES).await {
                    Ok(reply) => reply,
                    // It has ended since it was listed.
                    Err(BusError::Gone(_)) => continue,
                    Err(error) => return Err(error),
                };
            sessions.push(session(&user, &reply)?);
        }
        Ok((sessions, is_more))
    }
}

/// A session without a class may be of any user.
fn session(user: &str, reply: &BTreeMap<String, OwnedVariant>) -> Result<LoginSession, BusError> {
    let of = |name: &str| reply.get(name).and_then(text).map(|text| bounded(&text));
    let lacks = |what: &str| BusError::Failed(format!("logind reports no {what} of a session"));
    let is_remote = reply.get("Remote").and_then(|value| bool::try_from(value).ok());
    Ok(LoginSession {
        user: bounded(user),
        class: of("Class").ok_or_else(|| lacks("class"))?,
        kind: of("Type").unwrap_or_default(),
        state: of("State").unwrap_or_default(),
        terminal: of("TTY").ok_or_else(|| lacks("terminal"))?,
        is_remote: is_remote.ok_or_else(|| lacks("origin"))?,
        since_usec: reply.get("Timestamp").and_then(number).unwrap_or(0),
    })
}
