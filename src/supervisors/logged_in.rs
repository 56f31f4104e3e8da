//! Logged-in users, from logind or, on machines without it, from utmp(5).
//!
//! A logind that does not respond is not replaced by utmp(5): its users are unknown, and the file
//! may be empty.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use rustix::fs::{Mode, OFlags, open};

use super::logind::{Bus, BusError, LoginSession, Logind};
use super::{NotEnded, within};
use crate::model::{LoggedIn, LoggedInReadings, Reading};
use crate::parse::utmp::{Login, MOST_BYTES, UtmpLayout, logins};

/// The time limit of all calls together.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// The most users that are listed.
const MOST_NAMED: usize = 64;

/// Sources of the logged-in users.
#[derive(Clone, Debug)]
pub struct LoginSources {
    /// The bus of logind.
    pub bus: Bus,
    /// The utmp(5) file, for machines without logind.
    pub utmp: PathBuf,
    /// Mount point of procfs.
    pub procfs: PathBuf,
}

/// The path of utmp(5) on all distributions.
pub const UTMP: &str = "/run/utmp";

/// Reads the logged-in users. Returns within seconds, even if logind hangs.
pub fn read_users(sources: &LoginSources, at: Duration) -> LoggedInReadings {
    let bus = sources.bus.clone();
    let sessions = within("logged-in", READ_TIMEOUT, move || async move {
        Logind::connect(&bus).await?.sessions().await
    });
    let users = match sessions {
        Ok(Ok((sessions, is_more))) => Ok(Some(of_logind(&sessions, is_more))),
        Ok(Err(BusError::Absent(_))) => of_utmp(sources),
        Ok(Err(error)) => Err(error.to_string()),
        Err(NotEnded::TimedOut) => Err("logind has not responded within 10 s".to_owned()),
        Err(NotEnded::Broken(why)) => Err(why),
    };
    match users {
        Ok(Some(users)) => LoggedInReadings { at, users: Reading::Value(users), error: None },
        Ok(None) => {
            let why = format!("there is neither logind nor {}", sources.utmp.display());
            LoggedInReadings { at, users: Reading::Unsupported, error: Some(why.into()) }
        }
        Err(why) => LoggedInReadings { at, users: Reading::Failed, error: Some(why.into()) },
    }
}

fn of_logind(sessions: &[LoginSession], is_more: bool) -> Vec<LoggedIn> {
    let people = sessions.iter().filter(|session| session.is_of_a_person());
    let mut users: Vec<LoggedIn> = people.map(person).collect();
    if is_more {
        // The sessions that were not examined may belong to people.
        users.push(LoggedIn { user: "others".into(), terminal: None, since: None });
    }
    users
}

fn person(session: &LoginSession) -> LoggedIn {
    let since = i64::try_from(session.since_usec).ok().filter(|usec| *usec > 0);
    LoggedIn {
        user: session.user.as_str().into(),
        terminal: Some(session.terminal.as_str()).filter(|text| !text.is_empty()).map(Arc::from),
        since: since.and_then(|usec| Timestamp::from_microsecond(usec).ok()),
    }
}

/// `None`: the file does not exist.
fn of_utmp(sources: &LoginSources) -> Result<Option<Vec<LoggedIn>>, String> {
    let describe = |error: &dyn std::fmt::Display| format!("{}: {error}", sources.utmp.display());
    let text = match read(&sources.utmp) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(describe(&error)),
    };
    let all = logins(&text, UtmpLayout::NATIVE).map_err(|error| describe(&error))?;
    let alive = all.into_iter().filter(|login| may_live(&sources.procfs, login));
    let user = |login: Login| LoggedIn {
        user: login.user.into(),
        terminal: Some(login.terminal).filter(|text| !text.is_empty()).map(Arc::from),
        since: login.since,
    };
    Ok(Some(alive.take(MOST_NAMED).map(user).collect()))
}

/// A record whose process is gone is stale. A record in doubt is kept.
fn may_live(procfs: &Path, login: &Login) -> bool {
    let is_procfs = procfs.join("self").symlink_metadata().is_ok();
    let process = fs::symlink_metadata(procfs.join(login.pid.to_string()));
    let is_gone = process.is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    !(is_gone && is_procfs)
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    // A FIFO at this path must not block.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(open(path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    let mut text = Vec::new();
    file.take(MOST_BYTES as u64 + 1).read_to_end(&mut text)?;
    if text.len() > MOST_BYTES {
        return Err(io::Error::other("it is longer than such a file ever is"));
    }
    Ok(text)
}
