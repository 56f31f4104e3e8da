//! The traps on a node, each with its fix: pure, over facts that were collected before.
//!
//! A check: a function from [`Facts`] to findings in the file of its subject, a call in
//! [`examine`], a fixture of the real thing. It says only what domain knowledge stands for, and a
//! threshold that is a guess is called one.

mod containers;
mod engines;
mod faults;
mod node;
mod systemctl;
mod time_span;
mod units;

#[cfg(test)]
mod tests;

use serde::Serialize;

use crate::model::{Event, Sysctl};
pub use containers::{ContainerFacts, HealthCheck};
pub use systemctl::{OF_OTHERS, PROPERTIES, Told, ToldUnit, told_units};
pub use units::{UnitFacts, unit};

/// A fact, or why it is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known<T> {
    /// It is so.
    Is(T),
    /// This node has no such thing.
    Absent,
    /// It could not be found out.
    Not(String),
}

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// It could not be looked at.
    CannotTell,
    /// It goes well until something else goes wrong.
    Warning,
    /// It will fail.
    Problem,
}

impl Verdict {
    /// The word for people, and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::CannotTell => "cannot_tell",
            Self::Warning => "warning",
            Self::Problem => "problem",
        }
    }
}

/// What one check says of one thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Which check.
    pub check: &'static str,
    /// How bad it is.
    pub verdict: Verdict,
    /// Of what, where there are several: `container chat`, `unit chat.service`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// What is so, and what comes of it.
    pub says: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

/// A setting of the kernel that is not as the profile for this node wants it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit {
    /// Which.
    pub name: Sysctl,
    /// As it is.
    pub now: u32,
    /// As it should be.
    pub wanted: u32,
}

/// An engine that the daemon watches.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
pub struct EngineFacts {
    /// Its name.
    pub name: String,
    /// Why it is queried without its key, if it is.
    #[serde(default)]
    pub key_withheld: Option<String>,
    /// The container that its control group names, and Docker does not confirm.
    #[serde(default)]
    pub claimed_container: Option<String>,
}

/// What the program itself cannot do here though its rules ask for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lack {
    /// What.
    pub what: String,
    /// How to mend it.
    pub remedy: String,
    /// Whether it is wanted now, or only once it may act.
    pub is_wanted_now: bool,
}

/// All that is looked at.
#[derive(Clone, Debug)]
pub struct Facts {
    /// `MemTotal` and `SwapTotal`, in bytes.
    pub memory: Known<(u64, u64)>,
    /// The release of the kernel: `6.17.0-1004-nvidia`.
    pub kernel: Known<String>,
    /// `/proc/driver/nvidia/version`.
    pub driver: Known<String>,
    /// Whether the kernel tells memory pressure.
    pub has_pressure: Known<bool>,
    /// What the kernel log of this boot tells.
    pub kernel_log: Known<Vec<Event>>,
    /// The profile's name, and what does not fit it.
    pub settings: Known<(String, Vec<Misfit>)>,
    /// What the rules ask for and cannot be done.
    pub lacks: Known<Vec<Lack>>,
    /// Whether a daemon answers.
    pub has_daemon: Known<bool>,
    /// The engines that the daemon watches; absent where there is no daemon.
    pub engines: Known<Vec<EngineFacts>>,
    /// Docker's containers.
    pub containers: Known<Vec<ContainerFacts>>,
    /// systemd's units that run engines, and the names of all units.
    pub units: Known<(Vec<UnitFacts>, std::collections::BTreeSet<String>)>,
    /// What systemd itself says of those; absent where it does not run.
    pub systemd: Known<Told>,
}

/// All findings, the worst first; what is as it should be is one of them.
pub fn examine(facts: &Facts) -> Vec<Finding> {
    let mut findings = node::examine(facts);
    findings.extend(engines::examine(facts));
    findings.extend(containers::examine(facts));
    findings.extend(units::examine(facts));
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.verdict));
    findings
}

impl Finding {
    fn new(check: &'static str, verdict: Verdict, says: impl Into<String>) -> Self {
        Self { check, verdict, subject: None, says: says.into(), fix: None }
    }

    fn ok(check: &'static str, says: impl Into<String>) -> Self {
        Self::new(check, Verdict::Ok, says)
    }

    fn of(self, subject: &str) -> Self {
        Self { subject: Some(subject.to_owned()), ..self }
    }

    fn fix(self, fix: impl Into<String>) -> Self {
        Self { fix: Some(fix.into()), ..self }
    }
}

/// The value, or what to say without it.
fn known<'f, T>(
    check: &'static str,
    fact: &'f Known<T>,
    absent: &str,
) -> Result<&'f T, Box<Finding>> {
    match fact {
        Known::Is(value) => Ok(value),
        Known::Absent => Err(Box::new(Finding::ok(check, absent))),
        Known::Not(why) => Err(Box::new(Finding::new(check, Verdict::CannotTell, why))),
    }
}
