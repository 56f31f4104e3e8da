//! Orders of people: approvals, silences, pauses, breaker resets.

use core::net::IpAddr;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Credential, DecisionId, Moment, RebootForce, RuleId};

/// An order of a person, for the policy and the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperatorCommand {
    /// Time of the order.
    pub at: Moment,
    /// The person, with what the system knows of them.
    pub author: String,
    /// The reason; may be empty.
    pub comment: String,
    /// The order itself, with what it applies to.
    #[serde(flatten)]
    pub order: OperatorOrder,
    /// Why nothing has come of it. `None`: it was carried out, or that is pending.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// The kind of an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr)]
#[serde(tag = "order", rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum OperatorOrder {
    /// The remedies of these rules hold until then; their alerts go on.
    Silence {
        /// Its number, unique within the journal.
        id: u64,
        /// The rules that it applies to.
        rules: RuleSelector,
        /// When it ends by itself.
        until: Timestamp,
    },
    /// A silence ends now.
    EndSilence {
        /// Its number.
        id: u64,
    },
    /// A remedy that was held for want of approval may act once.
    Approve {
        /// The decision that was held.
        decision: DecisionId,
        /// When the approval lapses if it was not used.
        until: Timestamp,
    },
    /// An act that a remedy has asked for is not done until then.
    Deny {
        /// The decision that was held.
        decision: DecisionId,
        /// When it may be asked for again.
        until: Timestamp,
    },
    /// A remedy that missed its aim too often may try again.
    ResetBreaker {
        /// Whose remedy.
        rules: RuleSelector,
    },
    /// The machine is to be rebooted, through all guard rails that are not named here.
    Reboot {
        /// Delay instead of the configured one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        delay: Option<Duration>,
        /// Guard rails that it overrides.
        #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
        force: BTreeSet<RebootForce>,
    },
    /// The reboot that is scheduled is called off.
    CancelReboot,
    /// Reboots that did not help are forgiven: rules may reboot again.
    ClearReboots,
}

impl OperatorOrder {
    /// The name in JSON.
    pub fn name(&self) -> &'static str {
        self.into()
    }
}

/// A selector of rules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RuleSelector {
    /// All rules.
    All,
    /// All rules of this alert name.
    Alert(Arc<str>),
    /// The rule of this group and alert name.
    Rule(RuleId),
}

impl RuleSelector {
    /// Whether it selects that rule.
    pub fn selects(&self, rule: &RuleId) -> bool {
        match self {
            Self::All => true,
            Self::Alert(alert) => *alert == rule.alert,
            Self::Rule(selected) => selected == rule,
        }
    }
}

/// The author of a local order: the given name, and the user by the kernel.
pub fn author(name: Option<&str>, user: Option<&str>, uid: u32) -> String {
    match (name, user) {
        (Some(name), Some(user)) if name != user => format!("{name} ({user}, uid {uid})"),
        (Some(name), _) | (None, Some(name)) => format!("{name} (uid {uid})"),
        (None, None) => format!("uid {uid}"),
    }
}

/// The author of an order over the network: the given name, and the credential.
pub fn remote_author(name: Option<&str>, credential: &Credential, address: IpAddr) -> String {
    match name {
        Some(name) => format!("{name} ({credential}, {address})"),
        None => format!("{credential} ({address})"),
    }
}

/// A pause: nothing is done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    /// The person who paused, or why that is unknown.
    pub author: String,
    /// The reason; may be empty.
    pub comment: String,
    /// Start of the pause, where it is known.
    pub since: Option<Timestamp>,
}
