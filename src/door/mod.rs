//! Who comes in over the network: TLS, credentials and roles, as two files say.
//!
//! The files are `--web.config.file`, in the format of Prometheus, and `--web.tokens.file`. Both,
//! and what they name, are looked at every second by whoever calls [`Door::look`]; a version with
//! mistakes leaves the one before it in force. Nothing here reads a clock.

mod files;
mod judge;
mod load;
mod passwords;
mod rate;
mod secrecy;
#[cfg(test)]
mod tests;
mod tls;
mod token;
mod tokens;
mod turns;
mod web_config;

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use hyper::HeaderMap;
use hyper::header::HeaderValue;
use jiff::Timestamp;
use rustls::ServerConfig;

use crate::model::{Credential, Moment, Reading, RefusalReason, Role, SeriesKey};
use files::Files;
use passwords::Passwords;
use rate::Limiter;
use web_config::User;

pub use judge::{Access, Refused};
pub use load::{Checked, DoorError, check};
pub use tls::Names;
pub use token::{NewToken, create as create_token};
pub use turns::network;

/// Refusals for one reason are logged no more often.
const TOLD_EVERY: Duration = Duration::from_secs(10);

/// The files that say who may come in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DoorFiles {
    /// `--web.config.file`.
    pub web_config: Option<PathBuf>,
    /// `--web.tokens.file`.
    pub tokens: Option<PathBuf>,
}

/// Judges what comes in over the network.
pub struct Door {
    files: DoorFiles,
    clock: fn() -> Moment,
    terms: ArcSwap<Terms>,
    passwords: Passwords,
    limiter: Limiter,
    looked: Mutex<Looked>,
    failure: ArcSwapOption<DoorFailure>,
    /// When the terms in force were read, in milliseconds since 1970.
    read_ms: AtomicU64,
    refused: [AtomicU64; RefusalReason::ALL.len()],
    failed_handshakes: AtomicU64,
    told: Mutex<[Told; RefusalReason::ALL.len()]>,
}

impl std::fmt::Debug for Door {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Door").field("files", &self.files).finish_non_exhaustive()
    }
}

/// How a connection begins.
#[derive(Clone, Debug)]
pub struct Greeting {
    /// How TLS is spoken; `None`: it is not.
    pub tls: Option<Arc<ServerConfig>>,
    /// Whether the names in a client's certificate are to be believed.
    pub verifies_clients: bool,
    /// For [`Door::still_greets`].
    pub number: u64,
}

/// The files have changed, and cannot be used: what was in force before still is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DoorFailure {
    /// When.
    pub at: Timestamp,
    /// What is wrong, with every mistake.
    pub why: String,
}

/// What the files said when they were read last.
#[derive(Debug, Default)]
struct Looked {
    files: Files,
    /// Why they cannot be used, where the log does not have it yet.
    untold: Option<String>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Told {
    last: Option<Duration>,
    withheld: u64,
}

/// On which terms people come in.
#[derive(Default)]
struct Terms {
    /// Which ones these are: others have another number.
    number: u64,
    tls: Option<tls::Tls>,
    headers: Vec<(&'static str, HeaderValue)>,
    users: Vec<User>,
    /// Those of the users who may do more than look.
    people: Vec<Named>,
    tokens: Vec<([u8; 32], Named)>,
    certificates: Vec<Named>,
    rate_limit: Option<web_config::RateLimit>,
    remarks: Vec<String>,
}

/// Somebody, and what they may do.
#[derive(Clone, Debug)]
struct Named {
    name: Arc<str>,
    role: Role,
    expires: Option<Timestamp>,
}

impl Terms {
    /// As with Prometheus: users close the door for everybody else.
    fn is_open_to_readers(&self) -> bool {
        self.users.is_empty()
    }

    fn takes_any_credential(&self) -> bool {
        !(self.users.is_empty() && self.tokens.is_empty() && self.certificates.is_empty())
    }
}

impl Door {
    /// Reads the files; without any, everybody may look, and nobody may do more.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn open(files: DoorFiles, clock: fn() -> Moment) -> Result<Self, DoorError> {
        let (read, terms) = load::load(&files, clock().utc);
        let terms = terms?;
        for remark in &terms.remarks {
            tracing::warn!("{remark}");
        }
        let door = Self {
            files,
            clock,
            passwords: Passwords::new().map_err(DoorError::Failed)?,
            limiter: Limiter::default(),
            looked: Mutex::new(Looked { files: read, untold: None }),
            failure: ArcSwapOption::empty(),
            read_ms: AtomicU64::default(),
            refused: Default::default(),
            failed_handshakes: AtomicU64::default(),
            told: Mutex::default(),
            terms: ArcSwap::default(),
        };
        door.install(terms);
        Ok(door)
    }

    fn install(&self, mut terms: Terms) {
        terms.number = self.terms.load().number + 1;
        self.limiter.set(terms.rate_limit);
        self.passwords.keep(&terms.users);
        self.terms.store(Arc::new(terms));
        let now = u64::try_from((self.clock)().utc_ms()).unwrap_or(0);
        self.read_ms.store(now, Ordering::Relaxed);
    }

    /// Whether there is anything to look at.
    pub fn has_files(&self) -> bool {
        self.files != DoorFiles::default()
    }

    /// Reads again what has changed. It may hang as files do: not for the threads of others.
    pub fn look(&self) {
        let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        if !looked.files.have_changed() {
            // Two files are replaced one after the other: what is wrong in between is not told.
            if let Some(why) = looked.untold.take() {
                tracing::error!(
                    "who may come in stays as it was, since what says so is broken: {why}"
                );
            }
            return;
        }
        let now = (self.clock)().utc;
        let (read, terms) = load::load(&self.files, now);
        looked.files = read;
        match terms {
            Ok(terms) => {
                looked.untold = None;
                for remark in &terms.remarks {
                    tracing::warn!("{remark}");
                }
                self.install(terms);
                self.failure.store(None);
                tracing::info!("read again who may come in over the network");
            }
            Err(error) => {
                let why = error.to_string();
                self.failure.store(Some(Arc::new(DoorFailure { at: now, why: why.clone() })));
                looked.untold = Some(why);
            }
        }
    }

    /// Why what the files say now is not in force, if it is not.
    pub fn failure(&self) -> Option<Arc<DoorFailure>> {
        self.failure.load_full()
    }

    /// How to speak with whoever comes now.
    pub fn greeting(&self) -> Greeting {
        let terms = self.terms.load();
        Greeting {
            tls: terms.tls.as_ref().map(|tls| Arc::clone(&tls.config)),
            verifies_clients: terms.tls.as_ref().is_some_and(|tls| tls.verifies_clients),
            number: terms.number,
        }
    }

    /// Whether people are still greeted like that.
    pub fn still_greets(&self, number: u64) -> bool {
        self.terms.load().number == number
    }

    /// A handshake came to nothing.
    pub fn count_failed_handshake(&self) {
        self.failed_handshakes.fetch_add(1, Ordering::Relaxed);
    }

    /// Judges a request, and says who it is, where that had to be known.
    ///
    /// # Errors
    /// Why it is not served; it is counted already.
    pub async fn judge(
        &self,
        access: Access,
        from: IpAddr,
        headers: &HeaderMap,
        certificate: Option<&Names>,
    ) -> Result<Option<Credential>, Refused> {
        let now = (self.clock)();
        let judged = match self.limiter.take(now.uptime) {
            Ok(()) => {
                let terms = self.terms.load_full();
                let passwords = &self.passwords;
                judge::judge(&terms, passwords, now.utc, access, from, headers, certificate).await
            }
            Err(wait) => {
                let refused =
                    Refused::new(RefusalReason::RateLimit, "too many requests (rate_limit)");
                Err(Refused { retry_after_seconds: Some(wait.as_secs() + 1), ..refused })
            }
        };
        judged.inspect_err(|refused| {
            if let Some(count) = self.refused.get(refused.reason as usize) {
                count.fetch_add(1, Ordering::Relaxed);
            }
        })
    }

    /// Has the log tell of somebody who was refused, unless it has just told of another.
    pub fn tell_refused(&self, what: &str, address: IpAddr, refused: &Refused) {
        let now = (self.clock)().uptime;
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(told) = told.get_mut(refused.reason as usize) else { return };
        if told.last.is_some_and(|last| now.saturating_sub(last) < TOLD_EVERY) {
            told.withheld += 1;
            return;
        }
        told.last = Some(now);
        let withheld = std::mem::take(&mut told.withheld);
        let (reason, text) = (refused.reason.name(), &refused.text);
        tracing::warn!(reason, %address, withheld, "refused {what}: {text}");
    }

    /// Counts, and has the log tell of, what is refused before or after a request is judged.
    pub fn refuse(&self, reason: RefusalReason, what: &str, address: IpAddr, text: &str) {
        if let Some(count) = self.refused.get(reason as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.tell_refused(what, address, &Refused::new(reason, text));
    }

    /// Headers that every response to the network carries.
    pub fn headers(&self) -> impl Iterator<Item = (&'static str, HeaderValue)> {
        self.terms.load_full().headers.clone().into_iter()
    }

    /// What it says of itself, in the order of [`Door::values`].
    pub fn series() -> Vec<SeriesKey> {
        let refused = RefusalReason::ALL.map(|reason| {
            SeriesKey::new("uma_web_refused_requests_total", &[("reason", reason.name())])
        });
        let others = [
            "uma_web_failed_handshakes_total",
            "uma_web_certificate_expiry_timestamp_seconds",
            "uma_web_config_last_reload_successful",
            "uma_web_config_last_reload_success_timestamp_seconds",
        ];
        refused.into_iter().chain(others.map(|name| SeriesKey::new(name, &[]))).collect()
    }

    /// The values of [`Door::series`].
    #[expect(clippy::cast_precision_loss, reason = "exact up to 2^53")]
    pub fn values(&self) -> impl Iterator<Item = Reading<f64>> {
        let terms = self.terms.load();
        let of_files = |value: f64| match self.has_files() {
            true => Reading::Value(value),
            false => Reading::Unsupported,
        };
        let expires = match &terms.tls {
            Some(tls) => Reading::Value(tls.expires.as_second() as f64),
            None => Reading::Unsupported,
        };
        let others = [
            Reading::Value(self.failed_handshakes.load(Ordering::Relaxed) as f64),
            expires,
            of_files(f64::from(self.failure.load().is_none())),
            of_files(self.read_ms.load(Ordering::Relaxed) as f64 / 1000.0),
        ];
        let count = |count: &AtomicU64| Reading::Value(count.load(Ordering::Relaxed) as f64);
        self.refused.each_ref().map(count).into_iter().chain(others)
    }
}

/// What is wrong with the text of a tokens file, or else of a web configuration.
#[cfg(fuzzing)]
pub fn written_wrongly(
    is_tokens: bool,
    source: &crate::config::mistake::SourceText,
) -> Option<crate::config::mistake::Mistakes> {
    match is_tokens {
        true => tokens::parse(source).err(),
        false => web_config::parse(source).err(),
    }
}

/// Whether an `Authorization` header can be read.
#[cfg(fuzzing)]
pub fn reads_authorization(header: &[u8]) -> bool {
    HeaderValue::from_bytes(header).is_ok_and(|header| judge::read_authorization(&header).is_some())
}

/// Fills it from the system's source of randomness.
fn fill_with_random(bytes: &mut [u8]) -> Result<(), String> {
    let random = rustls::crypto::ring::default_provider().secure_random;
    random.fill(bytes).map_err(|_| "the system has no randomness to give".to_owned())
}
