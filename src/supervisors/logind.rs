//! systemd-logind, over D-Bus: who is logged in, who holds a reboot up, and the reboot itself.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use zbus::{OwnedObjectPath, OwnedVariant};

use super::bus::{ANSWER_TAKES, Address, Line};
pub use super::bus::{Bus, BusError};
use super::systemd::{number, text};

const LOGIND: &str = "org.freedesktop.login1";
const MANAGER_PATH: &str = "/org/freedesktop/login1";
const MANAGER: &str = "org.freedesktop.login1.Manager";
const SESSION: &str = "org.freedesktop.login1.Session";
const PROPERTIES: &str = "org.freedesktop.DBus.Properties";

/// Of more sessions none are asked for: a node on which so many are logged in has somebody.
const MOST_SESSIONS: usize = 64;

/// Names, terminals and reasons are no longer.
const TEXT_CHARS: usize = 160;

/// A connection to logind.
#[derive(Debug)]
pub struct Logind {
    line: Line,
}

/// Somebody who does not want the machine to shut down now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inhibitor {
    /// Who, in their own words.
    pub who: String,
    /// Why, in their own words.
    pub why: String,
    /// The process.
    pub pid: u32,
    /// Its user.
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
pub struct Session {
    /// The user's name.
    pub user: String,
    /// `user`, `greeter`, `background`, `manager`, …
    pub class: String,
    /// `tty`, `x11`, `wayland`, `unspecified`, …
    pub kind: String,
    /// `online`, `active`, `closing`.
    pub state: String,
    /// The terminal, as it is called below `/dev`; empty where there is none.
    pub terminal: String,
    /// Whether it comes from another machine.
    pub is_remote: bool,
    /// Since when, in microseconds of wall time; 0 if unknown.
    pub since_usec: u64,
}

impl Session {
    /// Whether somebody sits at it: a shell over SSH, a console, a desktop. Not what runs for a
    /// user without them: their manager, timers, cron, lingering services; and no login screen.
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
type Listed = (String, u32, String, String, OwnedObjectPath);

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
        Ok(Self { line: Line::connect(bus, "logind").await? })
    }

    /// Whether it may be asked to reboot: `yes`, `no`, `challenge`, `na`, or what later versions
    /// say.
    ///
    /// # Errors
    /// There is no logind, or it does not answer.
    pub async fn can_reboot(&self) -> Result<String, BusError> {
        let reply: String = self.line.ask(manager(), "CanReboot", &(), ANSWER_TAKES).await?;
        Ok(bounded(&reply))
    }

    /// Those who block a shutdown. logind passes over them when root asks, so that they are to be
    /// asked for by whoever would rather not.
    ///
    /// # Errors
    /// There is no logind, or it does not answer.
    pub async fn blockers(&self) -> Result<Vec<Inhibitor>, BusError> {
        let all: Vec<Inhibiting> =
            self.line.ask(manager(), "ListInhibitors", &(), ANSWER_TAKES).await?;
        let blocks = |(what, _, _, mode, _, _): &Inhibiting| {
            // Who only delays is waited for by logind itself. `block-weak` came with systemd 257.
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

    /// Has the machine reboot, as `systemctl reboot` does: it asks for no password.
    ///
    /// # Errors
    /// There is no logind, or it refuses, or has not answered in time.
    pub async fn reboot(&self, patience: Duration) -> Result<(), BusError> {
        self.line.call(manager(), "Reboot", &false, patience).await.map(drop)
    }

    /// All sessions, whatever they are for, and whether there are more than reported.
    ///
    /// # Errors
    /// There is no logind, or it does not answer.
    pub async fn sessions(&self) -> Result<(Vec<Session>, bool), BusError> {
        let listed: Vec<Listed> =
            self.line.ask(manager(), "ListSessions", &(), ANSWER_TAKES).await?;
        let is_more = listed.len() > MOST_SESSIONS;
        let mut sessions = Vec::with_capacity(listed.len().min(MOST_SESSIONS));
        for (_, _, user, _, path) in listed.into_iter().take(MOST_SESSIONS) {
            let to = Address { service: LOGIND, path: path.as_str(), interface: PROPERTIES };
            let reply: BTreeMap<String, OwnedVariant> =
                match self.line.ask(to, "GetAll", &SESSION, ANSWER_TAKES).await {
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

/// What says nothing of its class might be anybody's.
fn session(user: &str, reply: &BTreeMap<String, OwnedVariant>) -> Result<Session, BusError> {
    let of = |name: &str| reply.get(name).and_then(text).map(|text| bounded(&text));
    let lacks = |what: &str| BusError::Failed(format!("logind reports no {what} of a session"));
    let is_remote = reply.get("Remote").and_then(|value| bool::try_from(value).ok());
    Ok(Session {
        user: bounded(user),
        class: of("Class").ok_or_else(|| lacks("class"))?,
        kind: of("Type").unwrap_or_default(),
        state: of("State").unwrap_or_default(),
        terminal: of("TTY").ok_or_else(|| lacks("terminal"))?,
        is_remote: is_remote.ok_or_else(|| lacks("origin"))?,
        since_usec: reply.get("Timestamp").and_then(number).unwrap_or(0),
    })
}
