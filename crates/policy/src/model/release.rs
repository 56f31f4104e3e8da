//! How the memory of a dead engine is returned.

use serde::{Deserialize, Serialize};

use super::Orphan;
use super::names::named;
use super::time_text::measured_seconds_text;
use super::wording::bytes_text;

/// Memory by kind, in bytes; `None` where it is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReleaseMemory {
    /// Memory that no counter of the kernel names: a driver's.
    pub unaccounted: Option<u64>,
    /// Shared memory.
    pub shmem: Option<u64>,
    /// Page cache. It can be reclaimed, so a release does not wait for it.
    pub page_cache: Option<u64>,
    /// Memory of processes that outlive the engine's server.
    pub orphans: u64,
}

impl std::fmt::Display for Release {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { end, seconds, owned, outstanding, orphans, curve, why_unknown } = self;
        let lasted = measured_seconds_text(*seconds);
        match end {
            ReleaseEnd::Returned => {
                write!(f, "it gave back {owned} within {lasted}")?;
            }
            ReleaseEnd::Stayed => write!(
                f,
                "of {owned} {outstanding} stay: nothing has come back since {lasted} after \
                 its end"
            )?,
            ReleaseEnd::Overtaken => write!(
                f,
                "of {owned} {outstanding} were not back when the next engine began, {lasted} \
                 after its end"
            )?,
            ReleaseEnd::Unknown => {
                f.write_str("what it owned is unknown")?;
                if let Some(why) = why_unknown {
                    write!(f, ", since {}", why.meaning())?;
                }
                f.write_str("; nothing comes back any more")?;
            }
        }
        for (index, orphan) in orphans.iter().enumerate() {
            write!(f, "{}{orphan}", if index == 0 { "; " } else { ", " })?;
        }
        let shown = shown(curve);
        for (index, point) in shown.iter().enumerate() {
            let left = point.outstanding.to_return().unwrap_or(0);
            let before = if index == 0 { "; left of it: " } else { ", " };
            let after = measured_seconds_text(point.seconds);
            write!(f, "{before}{} after {after}", bytes_text(left))?;
        }
        Ok(())
    }
}

/// The points for one line: those at which about a quarter more was returned.
fn shown(curve: &[ReleasePoint]) -> Vec<&ReleasePoint> {
    let left = |point: &ReleasePoint| point.outstanding.to_return();
    let Some(first) = curve.first().and_then(left) else { return Vec::new() };
    let mut shown: Vec<&ReleasePoint> = Vec::new();
    for point in curve {
        let Some(now) = left(point) else { continue };
        let last = shown.last().and_then(|point| left(point));
        if last.is_none_or(|last| last.saturating_sub(now) >= first.max(4) / 4) {
            shown.push(point);
        }
    }
    // What had fallen by less than that at its end is worth a word, too.
    if let Some(end) = curve.last().filter(|end| Some(*end) != shown.last().copied()) {
        shown.push(end);
    }
    if shown.len() > 1 { shown } else { Vec::new() }
}

impl std::fmt::Display for ReleaseMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kinds = [
            (self.unaccounted, "in no counter"),
            (self.shmem, "shared memory"),
            (Some(self.orphans), "of orphans"),
        ];
        let all = self.to_return();
        f.write_str(&all.map_or_else(|| "?".to_owned(), bytes_text))?;
        let worth = |bytes: &u64| *bytes >= all.unwrap_or(0) / 16 && *bytes > 0;
        let parts: Vec<String> = kinds
            .into_iter()
            .filter_map(|(bytes, kind)| {
                let bytes = bytes.filter(worth)?;
                Some(format!("{} {kind}", bytes_text(bytes)))
            })
            .collect();
        if parts.is_empty() { Ok(()) } else { write!(f, " ({})", parts.join(", ")) }
    }
}

impl ReleaseMemory {
    /// Memory that must be returned: all but the page cache. `None` where it is unknown.
    pub fn to_return(&self) -> Option<u64> {
        Some(self.unaccounted?.saturating_add(self.shmem?).saturating_add(self.orphans))
    }
}

named! {
    /// The result of a release.
    pub enum ReleaseEnd {
        /// All was returned.
        Returned = "returned",
        /// It no longer falls, and not all was returned.
        Stayed = "stayed",
        /// Another engine began before all was returned.
        Overtaken = "overtaken",
        /// It no longer falls, and the engine's memory is unknown: other engines came or went
        /// in that time, or it started before the first sample.
        Unknown = "unknown",
    }
}

/// Why the memory of an engine is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhyUnknown {
    /// It started before the first sample.
    BeginUnseen,
    /// Another engine came or went in that time.
    OtherEngines,
    /// Memory that no counter names, or shared memory, was not measured.
    Unmeasured,
}

impl WhyUnknown {
    /// The text after "since".
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::BeginUnseen => "it was there before the first sample",
            Self::OtherEngines => "another engine came or went in that time",
            Self::Unmeasured => "memory could not be measured when it began",
        }
    }
}

/// One point of a release.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReleasePoint {
    /// Time since the engine was last seen.
    pub seconds: f64,
    /// Memory that was not returned.
    #[serde(flatten)]
    pub outstanding: ReleaseMemory,
    /// `MemFree` of the node.
    pub free: Option<u64>,
}

/// The return of a dead engine's memory over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Release {
    /// The result.
    pub end: ReleaseEnd,
    /// Time from when the engine was last seen until all was returned, or until memory last fell.
    pub seconds: f64,
    /// Its memory then, above the state before its start.
    pub owned: ReleaseMemory,
    /// Memory that was not returned.
    pub outstanding: ReleaseMemory,
    /// Processes that outlive it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub orphans: Vec<Orphan>,
    /// Samples of the release.
    pub curve: Vec<ReleasePoint>,
    /// Why its end is unknown, where it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why_unknown: Option<WhyUnknown>,
}
