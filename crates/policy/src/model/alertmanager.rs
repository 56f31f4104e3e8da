//! Alertmanagers: what is taken of them, and where alerts are sent.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::{FORGET_RECEIVED_AFTER, SecretPlace};

/// What is taken of Alertmanagers, and what they are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlertmanagerSettings {
    /// How long a received alert is kept where nobody repeats it.
    pub forget_after: Duration,
    /// Who is told of this node's alerts.
    pub sending: AlertSending,
}

impl Default for AlertmanagerSettings {
    fn default() -> Self {
        Self { forget_after: FORGET_RECEIVED_AFTER, sending: AlertSending::default() }
    }
}

/// Who is told of this node's alerts, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlertSending {
    /// All of them are told; none: nobody is.
    pub to: Vec<AlertmanagerServer>,
    /// How often what fires is told again.
    pub resend_every: Duration,
    /// Labels that every alert gets, unless it has them.
    pub labels: BTreeMap<Arc<str>, Arc<str>>,
    /// Where this node's page is found; `None`: by the node's name and its first port.
    pub external_url: Option<String>,
    /// Which decisions are sent as alerts.
    pub decisions: SentDecisions,
}

impl Default for AlertSending {
    fn default() -> Self {
        Self {
            to: Vec::new(),
            resend_every: Duration::from_secs(60),
            labels: BTreeMap::new(),
            external_url: None,
            decisions: SentDecisions::None,
        }
    }
}

/// One Alertmanager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlertmanagerServer {
    /// Its address, with a path where it lies below one.
    pub url: String,
    /// Over TLS only whoever signs with a certificate of this file is trusted; `None`: whom the
    /// system trusts.
    pub ca_file: Option<PathBuf>,
    /// What it asks for.
    pub credentials: Option<AlertmanagerCredentials>,
    /// How long one post may take.
    pub timeout: Duration,
}

/// What an Alertmanager, or who stands before it, asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AlertmanagerCredentials {
    /// A token.
    Bearer(SecretPlace),
    /// A user and a password.
    Basic {
        /// The user.
        username: String,
        /// The password.
        password: SecretPlace,
    },
}

/// The address without its scheme: the `alertmanager` label.
impl fmt::Display for AlertmanagerServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.url.split_once("://").map_or(&*self.url, |(_, rest)| rest))
    }
}

/// Which decisions are sent as alerts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SentDecisions {
    /// None.
    #[default]
    None,
    /// Those that act, or would in enforce mode.
    Acts,
    /// Those too that hold back.
    All,
}
