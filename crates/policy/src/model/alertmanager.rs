//! Settings for receiving alerts from Alertmanagers and sending to them.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::names::named;
use super::{FORGET_RECEIVED_AFTER, SecretSource};

/// Settings for receiving and sending alerts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlertmanagerSettings {
    /// Time after which a received alert without repetition is forgotten.
    pub forget_after: Duration,
    /// Sending of this node's alerts.
    pub sending: AlertSending,
}

impl Default for AlertmanagerSettings {
    fn default() -> Self {
        Self { forget_after: FORGET_RECEIVED_AFTER, sending: AlertSending::default() }
    }
}

/// Sending of this node's alerts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlertSending {
    /// The Alertmanagers that get each alert; may be empty.
    pub to: Vec<AlertmanagerServer>,
    /// Time between repetitions of a firing alert.
    pub resend_every: Duration,
    /// Labels that every alert gets, unless it has them.
    pub labels: BTreeMap<Arc<str>, Arc<str>>,
    /// Which decisions are sent as alerts.
    pub decisions: SentDecisions,
}

impl Default for AlertSending {
    fn default() -> Self {
        Self {
            to: Vec::new(),
            resend_every: Duration::from_secs(60),
            labels: BTreeMap::new(),
            decisions: SentDecisions::None,
        }
    }
}

/// One Alertmanager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlertmanagerServer {
    /// Its base URL, with the path prefix if it has one.
    pub url: String,
    /// Trusted certificates (PEM); `None`: those of the system.
    pub ca_file: Option<PathBuf>,
    /// Credentials that requests carry; `None`: no credentials.
    pub credentials: Option<AlertmanagerCredentials>,
    /// Longest time of a request.
    pub timeout: Duration,
}

/// Credentials of an Alertmanager or of its proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AlertmanagerCredentials {
    /// A token.
    Bearer(SecretSource),
    /// A user and a password.
    Basic {
        /// The user.
        username: String,
        /// The source of the password, which is read at its use.
        password: SecretSource,
    },
}

/// The address without its scheme: the `alertmanager` label.
impl fmt::Display for AlertmanagerServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.url.split_once("://").map_or(&*self.url, |(_, rest)| rest))
    }
}

named! {
    /// Which decisions are sent as alerts.
    #[derive(Default)]
    pub enum SentDecisions {
        /// No decision is sent.
        #[default]
        None = "none",
        /// Those that act, or would in enforce mode.
        Acts = "acts",
        /// Those too that hold.
        All = "all",
    }
}
