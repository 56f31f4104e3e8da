//! Access control over the network: TLS, credentials and roles, from two files.
//!
//! The files are `--web.config.file`, in the format of Prometheus, and `--web.tokens.file`.
//! [`AccessControl::reload`], called every second, checks them and the files that they name. A
//! version with mistakes leaves the previous one in force. Nothing here reads a clock.

mod decide;
mod files;
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

pub use decide::{AccessRefusal, Requirement};
pub use load::{AccessError, AccessSummary, check};
pub use tls::CertificateNames;
pub use token::{NewToken, create as create_token};
pub use turns::network;

/// Refusals for one reason are logged at most this often.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// The files of access control.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessFiles {
    /// `--web.config.file`.
    pub web_config: Option<PathBuf>,
    /// `--web.tokens.file`.
    pub tokens: Option<PathBuf>,
}

/// Authenticates and authorizes requests from the network.
pub struct AccessControl {
    files: AccessFiles,
    clock: fn() -> Moment,
    rules: ArcSwap<Rules>,
    passwords: Passwords,
    limiter: Limiter,
    checked: Mutex<AccessFileState>,
    failure: ArcSwapOption<AccessReloadFailure>,
    /// When the rules in force were read, in milliseconds since 1970.
    read_ms: AtomicU64,
    refused: [AtomicU64; RefusalReason::ALL.len()],
    failed_handshakes: AtomicU64,
    logged: Mutex<[RefusalLog; RefusalReason::ALL.len()]>,
}

impl std::fmt::Debug for AccessControl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AccessControl").field("files", &self.files).finish_non_exhaustive()
    }
}

/// How a new connection begins.
#[derive(Clone, Debug)]
pub struct Handshake {
    /// The TLS configuration. `None` without TLS.
    pub tls: Option<Arc<ServerConfig>>,
    /// Whether the names in a client's certificate are verified.
    pub verifies_clients: bool,
    /// The generation of the rules, for [`AccessControl::is_current`].
    pub generation: u64,
}

/// Changed files that cannot be used. The previous rules stay in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessReloadFailure {
    /// When the files were read.
    pub at: Timestamp,
    /// All mistakes.
    pub why: String,
}

/// The state of the files at the last check.
#[derive(Debug, Default)]
struct AccessFileState {
    files: Files,
    /// Mistakes that are not logged yet.
    unlogged: Option<String>,
}

#[derive(Clone, Copy, Debug, Default)]
struct RefusalLog {
    last: Option<Duration>,
    suppressed: u64,
}

/// Subject may do what.
#[derive(Default)]
struct Rules {
    /// Increases with each reload.
    generation: u64,
    tls: Option<tls::Tls>,
    headers: Vec<(&'static str, HeaderValue)>,
    users: Vec<User>,
    /// Users with a role beyond reading.
    user_roles: Vec<Principal>,
    tokens: Vec<([u8; 32], Principal)>,
    certificates: Vec<Principal>,
    rate_limit: Option<web_config::RateLimit>,
    remarks: Vec<String>,
}

/// An authenticated identity and its role.
#[derive(Clone, Debug)]
struct Principal {
    name: Arc<str>,
    role: Role,
    expires: Option<Timestamp>,
}

impl Rules {
    /// As with Prometheus, users exclude anonymous readers.
    fn is_open_to_readers(&self) -> bool {
        self.users.is_empty()
    }

    fn takes_any_credential(&self) -> bool {
        !(self.users.is_empty() && self.tokens.is_empty() && self.certificates.is_empty())
    }
}

impl AccessControl {
    /// Reads the files. Without files everybody may read, and nobody may do more.
    ///
    /// # Errors
    /// All mistakes in the files.
    pub fn open(files: AccessFiles, clock: fn() -> Moment) -> Result<Self, AccessError> {
        let (read, rules) = load::load(&files, clock().utc);
        let rules = rules?;
        for remark in &rules.remarks {
            tracing::warn!("{remark}");
        }
        let access = Self {
            files,
            clock,
            passwords: Passwords::new().map_err(AccessError::Failed)?,
            limiter: Limiter::default(),
            checked: Mutex::new(AccessFileState { files: read, unlogged: None }),
            failure: ArcSwapOption::empty(),
            read_ms: AtomicU64::default(),
            refused: Default::default(),
            failed_handshakes: AtomicU64::default(),
            logged: Mutex::default(),
            rules: ArcSwap::default(),
        };
        access.install(rules);
        Ok(access)
    }

    fn install(&self, mut rules: Rules) {
        rules.generation = self.rules.load().generation + 1;
        self.limiter.set(rules.rate_limit);
        self.passwords.keep(&rules.users);
        self.rules.store(Arc::new(rules));
        let now = u64::try_from((self.clock)().utc_ms()).unwrap_or(0);
        self.read_ms.store(now, Ordering::Relaxed);
    }

    /// Whether any file is configured.
    pub fn has_files(&self) -> bool {
        self.files != AccessFiles::default()
    }

    /// Reads changed files. May hang like any file, so that it needs a thread of its own.
    pub fn reload(&self) {
        let mut checked = self.checked.lock().unwrap_or_else(PoisonError::into_inner);
        if !checked.files.have_changed() {
            // Files are replaced one after the other: mistakes in between are not logged.
            if let Some(why) = checked.unlogged.take() {
                tracing::error!(
                    "web_reload result=failed, the previous access control stays in force: {why}"
                );
            }
            return;
        }
        let now = (self.clock)().utc;
        let (read, rules) = load::load(&self.files, now);
        checked.files = read;
        match rules {
            Ok(rules) => {
                checked.unlogged = None;
                for remark in &rules.remarks {
                    tracing::warn!("{remark}");
                }
                self.install(rules);
                self.failure.store(None);
                tracing::info!("web_reload result=done");
            }
            Err(error) => {
                let why = error.to_string();
                self.failure
                    .store(Some(Arc::new(AccessReloadFailure { at: now, why: why.clone() })));
                checked.unlogged = Some(why);
            }
        }
    }

    /// Why the current files are not in force. `None` if they are.
    pub fn failure(&self) -> Option<Arc<AccessReloadFailure>> {
        self.failure.load_full()
    }

    /// How a connection that is accepted now begins.
    pub fn handshake(&self) -> Handshake {
        let rules = self.rules.load();
        Handshake {
            tls: rules.tls.as_ref().map(|tls| Arc::clone(&tls.config)),
            verifies_clients: rules.tls.as_ref().is_some_and(|tls| tls.verifies_clients),
            generation: rules.generation,
        }
    }

    /// Whether the rules are still of this generation.
    pub fn is_current(&self, generation: u64) -> bool {
        self.rules.load().generation == generation
    }

    /// Counts a failed handshake.
    pub fn count_failed_handshake(&self) {
        self.failed_handshakes.fetch_add(1, Ordering::Relaxed);
    }

    /// Decides about a request. Returns the credential, if one was needed.
    ///
    /// # Errors
    /// Why the request is refused. The refusal is counted.
    pub async fn decide(
        &self,
        needs: Requirement,
        from: IpAddr,
        headers: &HeaderMap,
        certificate: Option<&CertificateNames>,
    ) -> Result<Option<Credential>, AccessRefusal> {
        let now = (self.clock)();
        let decided = match self.limiter.take(now.uptime) {
            Ok(()) => {
                let rules = self.rules.load_full();
                let passwords = &self.passwords;
                decide::decide(&rules, passwords, now.utc, needs, from, headers, certificate).await
            }
            Err(wait) => {
                let refused =
                    AccessRefusal::new(RefusalReason::RateLimit, "too many requests (rate_limit)");
                Err(AccessRefusal { retry_after_seconds: Some(wait.as_secs() + 1), ..refused })
            }
        };
        decided.inspect_err(|refused| {
            if let Some(count) = self.refused.get(refused.reason as usize) {
                count.fetch_add(1, Ordering::Relaxed);
            }
        })
    }

    /// The credential of a client that shows a valid one, and its role. Nothing is counted: what a
    /// request may do is decided by [`AccessControl::decide`].
    pub async fn identify(
        &self,
        from: IpAddr,
        headers: &HeaderMap,
        certificate: Option<&CertificateNames>,
    ) -> Option<(Credential, Role)> {
        let rules = self.rules.load_full();
        let now = (self.clock)().utc;
        decide::identify(&rules, &self.passwords, now, from, headers, certificate).await
    }

    /// Logs a refusal, at most once per reason in [`LOG_EVERY`].
    pub fn log_refusal(&self, what: &str, address: IpAddr, refused: &AccessRefusal) {
        let now = (self.clock)().uptime;
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(logged) = logged.get_mut(refused.reason as usize) else { return };
        if logged.last.is_some_and(|last| now.saturating_sub(last) < LOG_EVERY) {
            logged.suppressed += 1;
            return;
        }
        logged.last = Some(now);
        let suppressed = std::mem::take(&mut logged.suppressed);
        let (reason, text) = (refused.reason.name(), &refused.text);
        tracing::warn!(reason, %address, suppressed, "refused {what}: {text}");
    }

    /// Counts and logs a refusal before or after [`AccessControl::decide`].
    pub fn refuse(&self, reason: RefusalReason, what: &str, address: IpAddr, text: &str) {
        if let Some(count) = self.refused.get(reason as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.log_refusal(what, address, &AccessRefusal::new(reason, text));
    }

    /// Headers that every response to the network carries.
    pub fn headers(&self) -> impl Iterator<Item = (&'static str, HeaderValue)> {
        self.rules.load_full().headers.clone().into_iter()
    }

    /// The series of access control, in the order of [`AccessControl::values`].
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

    /// The values of [`AccessControl::series`].
    #[expect(clippy::cast_precision_loss, reason = "exact up to 2^53")]
    pub fn values(&self) -> impl Iterator<Item = Reading<f64>> {
        let rules = self.rules.load();
        let of_files = |value: f64| match self.has_files() {
            true => Reading::Value(value),
            false => Reading::Unsupported,
        };
        let expires = match &rules.tls {
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

/// Mistakes in the text of a tokens file, or else of a web configuration.
#[cfg(feature = "fuzzing")]
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
#[cfg(feature = "fuzzing")]
pub fn reads_authorization(header: &[u8]) -> bool {
    HeaderValue::from_bytes(header)
        .is_ok_and(|header| decide::read_authorization(&header).is_some())
}

/// Fills a buffer with random bytes of the system.
fn fill_with_random(bytes: &mut [u8]) -> Result<(), String> {
    let random = rustls::crypto::ring::default_provider().secure_random;
    random.fill(bytes).map_err(|_| "cannot read random bytes from the system".to_owned())
}
