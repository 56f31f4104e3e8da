//! A person keeps remedies from acting for a while; their alerts go on.

use jiff::Timestamp;

use crate::model::{OperatorCommand, OperatorOrder, RuleId};
use crate::policy::status::SilenceStatus;

/// Most silences; more are a mistake of a script.
pub const MOST_SILENCES: usize = 1_000;

/// The silences in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Silences(Vec<SilenceStatus>);

impl Silences {
    /// Takes what a person has ordered; an error says why nothing comes of it.
    pub(super) fn obey(&mut self, command: &OperatorCommand, now: Timestamp) -> Result<(), String> {
        match &command.order {
            OperatorOrder::Silence { id, until, .. } if *until <= now => {
                Err(format!("silence {id} would have ended at {until} already"))
            }
            OperatorOrder::Silence { id, rules, until } => {
                self.0.retain(|silence| silence.id != *id);
                if self.0.len() >= MOST_SILENCES {
                    return Err(format!("there are {MOST_SILENCES} silences; end some first"));
                }
                self.0.push(SilenceStatus {
                    id: *id,
                    rules: rules.clone(),
                    until: *until,
                    since: command.at.utc,
                    author: command.author.clone(),
                    comment: command.comment.clone(),
                });
                Ok(())
            }
            OperatorOrder::EndSilence { id } => {
                let known = self.0.len();
                self.0.retain(|silence| silence.id != *id);
                if self.0.len() == known {
                    return Err(format!("no silence {id} is in force"));
                }
                Ok(())
            }
            OperatorOrder::Approve { .. }
            | OperatorOrder::Deny { .. }
            | OperatorOrder::ResetBreaker { .. }
            | OperatorOrder::Reboot { .. }
            | OperatorOrder::CancelReboot
            | OperatorOrder::ClearReboots => Ok(()),
        }
    }

    /// Forgets those that have ended.
    pub(super) fn expire(&mut self, now: Timestamp) {
        self.0.retain(|silence| silence.until > now);
    }

    pub(super) fn silence(&self, rule: &RuleId, now: Timestamp) -> bool {
        self.0.iter().any(|silence| silence.until > now && silence.rules.selects(rule))
    }

    pub(super) fn all(&self) -> &[SilenceStatus] {
        &self.0
    }
}
