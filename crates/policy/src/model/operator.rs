//! What people tell the program: approvals, silences, a pause, a breaker reset.

use core::net::IpAddr;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Credential, DecisionId, Moment, RebootForce, RuleId};

/// One word from a person, as the policy is told it and the journal keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperatorCommand {
    /// When it was given.
    pub at: Moment,
    /// Who gave it.
    pub author: String,
    /// Why; may be empty.
    pub comment: String,
    /// What is asked for.
    #[serde(flatten)]
    pub order: OperatorOrder,
}

/// What a person asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr)]
#[serde(tag = "order", rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum OperatorOrder {
    /// The remedies of these rules hold until then; their alerts go on.
    Silence {
        /// Its number, unique within the journal.
        id: u64,
        /// Which rules.
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
    /// A remedy that missed its aim too often may try again.
    ResetBreaker {
        /// Whose remedy.
        rules: RuleSelector,
    },
    /// The machine is to be rebooted, through all guard rails that are not named here.
    Reboot {
        /// Instead of the configured one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        delay: Option<Duration>,
        /// What does not matter.
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

/// Which rules a person means.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RuleSelector {
    /// All of them.
    All,
    /// Those of this alert name, in every group.
    Alert(Arc<str>),
    /// This one.
    Rule(RuleId),
}

impl RuleSelector {
    /// Whether it means that rule.
    pub fn selects(&self, rule: &RuleId) -> bool {
        match self {
            Self::All => true,
            Self::Alert(alert) => *alert == rule.alert,
            Self::Rule(selected) => selected == rule,
        }
    }
}

/// Who somebody is, in words: the name that they give, and what the kernel knows of them.
pub fn author(name: Option<&str>, user: Option<&str>, uid: u32) -> String {
    match (name, user) {
        (Some(name), Some(user)) if name != user => format!("{name} ({user}, uid {uid})"),
        (Some(name), _) | (None, Some(name)) => format!("{name} (uid {uid})"),
        (None, None) => format!("uid {uid}"),
    }
}

/// The same of somebody on the network: the name that they give, and what they have shown.
pub fn remote_author(name: Option<&str>, credential: &Credential, address: IpAddr) -> String {
    match name {
        Some(name) => format!("{name} ({credential}, {address})"),
        None => format!("{credential} ({address})"),
    }
}

/// That nothing is to be done, and on whose word.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    /// Who paused, or what stands in the way of telling.
    pub author: String,
    /// Why; may be empty.
    pub comment: String,
    /// Since when, where that is known.
    pub since: Option<Timestamp>,
}
