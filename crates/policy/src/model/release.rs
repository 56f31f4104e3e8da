//! How an engine that has died gives its memory back.

use serde::{Deserialize, Serialize};

use super::Orphan;
use super::names::named;
use super::wording::bytes_text;

/// Memory by its kind, in bytes; `None` where it cannot be told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldMemory {
    /// In no counter of the kernel: what a driver holds.
    pub unaccounted: Option<u64>,
    /// Shared memory.
    pub shmem: Option<u64>,
    /// Page cache. It is no loss: it goes when memory is wanted, and is not waited for.
    pub page_cache: Option<u64>,
    /// Of processes that outlive the engine's server.
    pub orphans: u64,
}

impl std::fmt::Display for Release {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { end, seconds, held, outstanding, orphans, curve, why_unknown } = self;
        match end {
            ReleaseEnd::Returned => {
                write!(f, "it gave back {held} within {seconds:.1} s")?;
            }
            ReleaseEnd::Stayed => write!(
                f,
                "of {held} {outstanding} stay: nothing has come back since {seconds:.1} s after \
                 its end"
            )?,
            ReleaseEnd::Overtaken => write!(
                f,
                "of {held} {outstanding} were not back when the next engine began, {seconds:.1} s \
                 after its end"
            )?,
            ReleaseEnd::Unknown => {
                f.write_str("what it held cannot be told")?;
                if let Some(why) = why_unknown {
                    write!(f, ", since {}", why.meaning())?;
                }
                f.write_str("; nothing comes back any more")?;
            }
        }
        for (place, orphan) in orphans.iter().enumerate() {
            write!(f, "{}{orphan}", if place == 0 { "; " } else { ", " })?;
        }
        let shown = shown(curve);
        for (place, point) in shown.iter().enumerate() {
            let left = point.outstanding.to_return().unwrap_or(0);
            let before = if place == 0 { "; left of it: " } else { ", " };
            write!(f, "{before}{} after {:.1} s", bytes_text(left), point.seconds)?;
        }
        Ok(())
    }
}

/// As many points as a line has room for: those at which about a quarter more was back.
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

impl std::fmt::Display for HeldMemory {
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

impl HeldMemory {
    /// What must come back: all but the page cache. `None` where that cannot be told.
    pub fn to_return(&self) -> Option<u64> {
        Some(self.unaccounted?.saturating_add(self.shmem?).saturating_add(self.orphans))
    }
}

named! {
    /// What came of a release.
    pub enum ReleaseEnd {
        /// All came back.
        Returned = "returned",
        /// It no longer falls, and not all has come back yet.
        Stayed = "stayed",
        /// Another engine began before all had come back.
        Overtaken = "overtaken",
        /// It no longer falls, and what the engine held cannot be told: others came and went beside it,
        /// or it was there before anybody looked.
        Unknown = "unknown",
    }
}

/// Why nobody can tell what an engine held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhyUnknown {
    /// It was there before anybody looked.
    BeginUnseen,
    /// Another engine came or went beside it.
    OthersBeside,
    /// Memory that no counter names, or shared memory, was not measured.
    Unmeasured,
}

impl WhyUnknown {
    /// What it says, after "since".
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::BeginUnseen => "it was there before anybody looked",
            Self::OthersBeside => "another engine came or went beside it",
            Self::Unmeasured => "memory could not be measured when it began",
        }
    }
}

/// One point of a release.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReleasePoint {
    /// Since the engine was last seen alive.
    pub seconds: f64,
    /// What had not come back.
    #[serde(flatten)]
    pub outstanding: HeldMemory,
    /// `MemFree` of the node.
    pub free: Option<u64>,
}

/// How a release went.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Release {
    /// What came of it.
    pub end: ReleaseEnd,
    /// From when the engine was last seen alive until all was back, or until it last fell.
    pub seconds: f64,
    /// What it held then, above what there was before it.
    pub held: HeldMemory,
    /// What has not come back.
    pub outstanding: HeldMemory,
    /// The processes that outlive it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub orphans: Vec<Orphan>,
    /// How it came back.
    pub curve: Vec<ReleasePoint>,
    /// Why its end is unknown, where it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why_unknown: Option<WhyUnknown>,
}
