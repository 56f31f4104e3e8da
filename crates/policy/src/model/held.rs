//! What is started again only when there is memory for it: containers and units that ended, as
//! those tell who run them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::names::named;
use super::{Mode, Moment};

/// Who runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Supervisor {
    /// Docker, or what speaks its language.
    Docker,
    /// systemd.
    Systemd,
}

impl Supervisor {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Docker, Self::Systemd];

    /// The name to people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Docker => "Docker",
            Self::Systemd => "systemd",
        }
    }

    /// What it calls what it runs.
    pub const fn thing(self) -> &'static str {
        match self {
            Self::Docker => "container",
            Self::Systemd => "unit",
        }
    }
}

/// A container or a unit, as exactly as its supervisor knows it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HeldTarget {
    /// Who runs it.
    pub supervisor: Supervisor,
    /// What people call it: the container's name, or the unit's.
    pub name: Arc<str>,
    /// The container's id, or the unit's name again.
    pub id: Arc<str>,
}

impl fmt::Display for HeldTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.supervisor.thing(), self.name)
    }
}

/// Whether somebody wanted it to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Requested {
    /// Its supervisor was asked to end it.
    Yes,
    /// Nobody asked.
    No,
    /// Nobody who could tell was there.
    Unknown,
}

/// How a life ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldEnd {
    /// What tells this end from any other of the same thing: the time, as its supervisor writes it.
    pub mark: Arc<str>,
    /// When, by the wall clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utc: Option<Timestamp>,
    /// How long it had lived, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lived: Option<Duration>,
    /// The exit code; of a process that a signal ended, 128 and its number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Whether its supervisor says that the kernel's OOM killer was there.
    #[serde(default)]
    pub is_oom_killed: bool,
    /// What its supervisor says besides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Arc<str>>,
    /// Whether somebody wanted it.
    pub requested: Requested,
    /// Its supervisor does not tell of it when it is asked to end something.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub are_stops_silent: bool,
    /// What it wrote last, told for a while after it was noticed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<Arc<OwnLog>>,
}

/// The end of what something wrote itself while it lived.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OwnLog {
    /// The last lines, the newest last.
    Lines(Vec<String>),
    /// Why nobody knows.
    Unknown(String),
}

impl HeldEnd {
    /// One of which nothing is known.
    pub fn unknown() -> Self {
        Self {
            mark: "".into(),
            utc: None,
            lived: None,
            exit_code: None,
            is_oom_killed: false,
            error: None,
            requested: Requested::Unknown,
            are_stops_silent: false,
            log: None,
        }
    }

    /// Whether it ended as what is asked to end does: by SIGINT, SIGTERM or SIGKILL; with 0, where
    /// nobody would have told of that.
    pub fn looks_requested(&self) -> bool {
        let is_such = match self.exit_code {
            Some(130 | 137 | 143) => true,
            Some(0) => self.are_stops_silent,
            _ => false,
        };
        is_such && !self.is_oom_killed
    }
}

impl fmt::Display for HeldEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.exit_code {
            Some(code) => write!(f, "exit code {code}")?,
            None => f.write_str("no exit code")?,
        }
        if self.is_oom_killed {
            f.write_str(", killed for memory")?;
        }
        if let Some(error) = &self.error {
            write!(f, ", {error}")?;
        }
        Ok(())
    }
}

/// What its supervisor says of its health.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeldHealth {
    /// It does not count yet.
    Starting,
    /// It passes its checks; a unit has said that it is ready.
    Healthy,
    /// It does not.
    Unhealthy,
}

/// What it does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum HeldState {
    /// It runs.
    Running {
        /// What tells this life from any other: when it began, as its supervisor writes it.
        mark: Arc<str>,
        /// `None` where its supervisor does not look after that.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        health: Option<HeldHealth>,
    },
    /// It has ended.
    Ended(HeldEnd),
    /// It has never been started.
    Fresh,
    /// Anything else: it is being started, stopped, paused or removed.
    Between {
        /// What its supervisor calls it.
        told: Arc<str>,
    },
}

/// How often and how soon it is started again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartLimits {
    /// How long it waits after the first start that failed; twice as long after each further one.
    pub back_off: Duration,
    /// It waits no longer than that.
    pub back_off_at_most: Duration,
    /// So many starts,
    pub times: u32,
    /// in such a time.
    pub per: Duration,
    /// After so many deaths in a row in the same phase it stays down until a person says so.
    pub give_up_after: u32,
    /// What has been ready for so long has started well: its next death is a first one.
    pub healthy_after: Duration,
    /// After so long the next engine may start, ready or not.
    pub ready_within: Duration,
}

impl Default for RestartLimits {
    fn default() -> Self {
        Self {
            back_off: Duration::from_secs(10),
            back_off_at_most: Duration::from_secs(300),
            times: 10,
            per: Duration::from_secs(3_600),
            give_up_after: 5,
            healthy_after: Duration::from_secs(600),
            ready_within: Duration::from_secs(1_800),
        }
    }
}

/// What the configuration says is to be started again when there is memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeclaredRestart {
    /// Which.
    pub matches: RestartMatch,
    /// How much memory it needs.
    pub need_bytes: Option<u64>,
    /// How much of it in large blocks.
    pub contiguous_bytes: Option<u64>,
    /// How often and how soon.
    pub limits: RestartLimits,
    /// Instead of the node's.
    pub mode: Option<Mode>,
}

/// What an entry of the configuration means.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RestartMatch {
    /// Containers whose name is like that: a glob.
    Container(Arc<str>),
    /// Containers with that label, whose value is a glob.
    Label(Arc<str>, Arc<str>),
    /// The unit of that name.
    Unit(Arc<str>),
}

/// One of them, as its supervisor told of it last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldSeen {
    /// Which.
    #[serde(flatten)]
    pub target: HeldTarget,
    /// What it does.
    #[serde(flatten)]
    pub state: HeldState,
    /// How much memory it needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub need_bytes: Option<u64>,
    /// How much of it in large blocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contiguous_bytes: Option<u64>,
    /// How often and how soon.
    pub limits: RestartLimits,
    /// Instead of the node's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// What makes it one of these, for people.
    pub found_by: Arc<str>,
    /// Why it is not started all the same: its supervisor does so itself, or what is written of it
    /// makes no sense.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub obstacle: Option<Arc<str>>,
}

/// Something has ended that is not started again by us.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldEnded {
    /// What.
    #[serde(flatten)]
    pub target: HeldTarget,
    /// How.
    pub end: HeldEnd,
}

/// All of them that one supervisor has told of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldReadings {
    /// Who was asked.
    pub supervisor: Supervisor,
    /// When, on the uptime clock.
    pub read_at: Duration,
    /// All of them; nothing where there is an error.
    pub held: Vec<HeldSeen>,
    /// Ends of what engines ran in and nobody of ours starts again; each is told for a while.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ended: Vec<HeldEnded>,
    /// Why nobody can tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Arc<str>>,
}

named! {
    /// Where something stands that is started again when there is memory.
    pub enum RestartState {
        /// It runs, and is not ready yet.
        Starting = "starting",
        /// It runs, and is ready as far as can be told.
        Running = "running",
        /// It has ended, and waits to be started again.
        Waiting = "waiting",
        /// It is down because somebody wanted it, or has never been up.
        Stopped = "stopped",
        /// It died too often: a person must say that it may go on.
        GivenUp = "given_up",
        /// It is not started: its supervisor does so itself, or what is written of it makes no sense.
        NotOurs = "not_ours",
        /// Its supervisor does not tell.
        Unknown = "unknown",
    }
}

impl RestartState {
    /// What it says, for people.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Stopped => "stopped",
            Self::GivenUp => "GIVEN UP",
            Self::NotOurs => "not ours",
            Self::Unknown => "unknown",
        }
    }
}

/// Where one of them stands, for people.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RestartStatus {
    /// As it was seen last.
    #[serde(flatten)]
    pub seen: HeldSeen,
    /// Where it stands.
    pub stands: RestartState,
    /// Since when.
    #[serde(skip)]
    pub since: Moment,
    /// Why.
    pub reason: Arc<str>,
    /// Deaths in a row after starts of ours.
    pub deaths_in_a_row: u32,
}
