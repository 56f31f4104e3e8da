//! `utmp(5)`: who is logged in, where there is no logind.

#[cfg(test)]
mod tests;

use jiff::Timestamp;

use super::process::printable;

/// Records that are read; there is one for each terminal, and a few more.
const MOST_RECORDS: usize = 4096;

/// Bytes of the file that are read.
pub const MOST_BYTES: usize = MOST_RECORDS * UtmpLayout::Wide.record_bytes();

/// Offsets of the fields that both layouts share (`struct utmp` of glibc).
const KIND: usize = 0;
const PID: usize = 4;
const LINE: usize = 8;
const LINE_BYTES: usize = 32;
const USER: usize = 44;
const USER_BYTES: usize = 32;
const HOST: usize = 76;
const HOST_BYTES: usize = 256;

/// Kind of record: a user is logged in (`USER_PROCESS`).
const USER_PROCESS: i16 = 7;

/// How long a record is, which is a matter of the architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UtmpLayout {
    /// 32 bits for the time, as where programs of 32 bits are run too: x86-64.
    Narrow,
    /// 64 bits: aarch64.
    Wide,
}

impl UtmpLayout {
    /// The one of this machine.
    pub const NATIVE: Self = match cfg!(target_arch = "aarch64") {
        true => Self::Wide,
        false => Self::Narrow,
    };

    /// Bytes of a record.
    pub const fn record_bytes(self) -> usize {
        match self {
            Self::Narrow => 384,
            Self::Wide => 400,
        }
    }

    /// Seconds since 1970 in a record.
    fn seconds(self, record: &[u8]) -> Option<i64> {
        match self {
            // It was signed once, and counts on past 2038 as if it never was.
            Self::Narrow => Some(i64::from(u32::from_ne_bytes(field(record, 340)?))),
            Self::Wide => Some(i64::from_ne_bytes(field(record, 344)?)),
        }
    }
}

/// A logged-in user, if that process still runs: a process killed by SIGKILL leaves its record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Login {
    /// The user's name, printable.
    pub user: String,
    /// The terminal as it is called below `/dev`, printable; or a display.
    pub terminal: String,
    /// From where, printable; empty: from here.
    pub host: String,
    /// The process that leads the session.
    pub pid: u32,
    /// Time of the login.
    pub since: Option<Timestamp>,
}

/// The file is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it has {length} bytes, and each record {record}: it is of another architecture, or torn")]
pub struct NotUtmp {
    length: usize,
    record: usize,
}

/// Everybody in it. A record that is none is left out.
///
/// # Errors
/// It is not made of such records.
pub fn logins(text: &[u8], layout: UtmpLayout) -> Result<Vec<Login>, NotUtmp> {
    let record = layout.record_bytes();
    if !text.len().is_multiple_of(record) {
        return Err(NotUtmp { length: text.len(), record });
    }
    let records = text.chunks_exact(record).take(MOST_RECORDS);
    Ok(records.filter_map(|record| login(record, layout)).collect())
}

fn login(record: &[u8], layout: UtmpLayout) -> Option<Login> {
    if i16::from_ne_bytes(field(record, KIND)?) != USER_PROCESS {
        return None;
    }
    let user = text(record, USER, USER_BYTES);
    let pid = u32::try_from(i32::from_ne_bytes(field(record, PID)?)).ok().filter(|pid| *pid > 0)?;
    if user.is_empty() {
        return None;
    }
    let since = layout.seconds(record).filter(|seconds| *seconds > 0);
    let since = since.and_then(|seconds| Timestamp::from_second(seconds).ok());
    let (terminal, host) = (text(record, LINE, LINE_BYTES), text(record, HOST, HOST_BYTES));
    Some(Login { user, terminal, host, pid, since })
}

fn field<const LENGTH: usize>(record: &[u8], at: usize) -> Option<[u8; LENGTH]> {
    record.get(at..at + LENGTH)?.try_into().ok()
}

/// Text up to its first 0, which one that fills its field does not have.
fn text(record: &[u8], at: usize, length: usize) -> String {
    let bytes = record.get(at..at + length).unwrap_or_default();
    printable(bytes.split(|byte| *byte == 0).next().unwrap_or_default())
}
