//! Kernel settings for a node, by its size, compared with its current ones.
//!
//! The profiles are data: `profiles.yaml`, inside the binary.

mod huge_pages;
mod reserve;
#[cfg(test)]
mod tests;

use glob::Pattern;
use serde::{Deserialize, Serialize};

use crate::model::Sysctl;

pub use huge_pages::{HugePages, is_on};
pub use reserve::{CurrentMemory, Reserve};

const PROFILES: &str = include_str!("profiles.yaml");

/// The settings of nodes of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// The argument of `--profile`.
    pub name: String,
    /// The nodes that it is for, in words.
    pub title: String,
    /// Patterns of the machine's firmware name; empty: any.
    #[serde(default)]
    models: Vec<String>,
    /// MemTotal in GiB, from and below.
    memory_gib: [u64; 2],
    /// In the order of the table.
    pub settings: Vec<SettingAdvice>,
}

/// One setting of a profile.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SettingAdvice {
    /// What is set, below `/proc/sys`.
    pub name: Sysctl,
    /// The value to set if the current one does not fit.
    pub value: u32,
    /// The range of values that fit.
    pub accept: [u32; 2],
    /// The reason.
    pub why: String,
    /// Whether `value` is measured, derived, a default or a guess.
    pub source: ValueCertainty,
    /// Its cost.
    pub trades: String,
}

/// The certainty of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ValueCertainty {
    /// A measured value.
    Measured,
    /// Computed from a measured value.
    Derived,
    /// The kernel's default.
    Default,
    /// Argued, not measured.
    Guess,
}

impl ValueCertainty {
    /// Its name in tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Derived => "derived",
            Self::Default => "default",
            Self::Guess => "guess",
        }
    }

    /// What it means, for people.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Measured => "somebody has measured it",
            Self::Derived => "computed from a measured value",
            Self::Default => "the kernel's own default",
            Self::Guess => "argued, but not measured",
        }
    }
}

#[derive(Deserialize)]
struct ProfileFile {
    profiles: Vec<Profile>,
}

/// What profiles need to know of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TuneNode {
    /// The firmware's name of the machine; may be empty.
    pub model: String,
    /// `MemTotal`, in bytes.
    pub memory_bytes: u64,
}

/// All profiles, in their order of precedence.
///
/// # Errors
/// The built-in file is invalid, which a test excludes.
pub fn profiles() -> Result<Vec<Profile>, String> {
    let file: ProfileFile = serde_saphyr::from_str(PROFILES).map_err(|error| error.to_string())?;
    Ok(file.profiles)
}

/// The first profile that fits the node.
pub fn choose<'p>(profiles: &'p [Profile], node: &TuneNode) -> Option<&'p Profile> {
    profiles.iter().find(|profile| profile.fits(node))
}

impl Profile {
    fn fits(&self, node: &TuneNode) -> bool {
        let matches = |pattern: &String| {
            Pattern::new(pattern).is_ok_and(|pattern| pattern.matches(&node.model))
        };
        let gib = node.memory_bytes >> 30;
        let [from, below] = self.memory_gib;
        (self.models.is_empty() || self.models.iter().any(matches)) && gib >= from && gib < below
    }

    /// The current value of a setting.
    pub fn value(&self, sysctl: Sysctl) -> Option<u32> {
        self.settings.iter().find(|advice| advice.name == sysctl).map(|advice| advice.value)
    }
}

/// The state of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingState {
    /// The value that is in force.
    Value(u32),
    /// It is set by its twin in bytes.
    InBytes,
    /// This kernel does not have it.
    Missing,
}

/// One row of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettingRow<'p> {
    /// The profile's advice.
    pub advice: &'p SettingAdvice,
    /// The node's state.
    pub now: SettingState,
    /// What the kernel raises a lower value to; 0: nothing.
    pub floor: u32,
}

impl<'p> SettingRow<'p> {
    /// Compares the state of a node with a profile.
    pub fn new(
        advice: &'p SettingAdvice,
        now: SettingState,
        huge_pages: Option<HugePages>,
    ) -> Self {
        let floor = match advice.name {
            Sysctl::MinFreeKbytes => huge_pages.map_or(0, |pages| pages.min_free_kib()),
            _ => 0,
        };
        Self { advice, now, floor }
    }

    /// The least and the greatest value that fit.
    pub fn bounds(&self) -> [u32; 2] {
        let [from, to] = self.advice.accept;
        [from, to.max(self.floor)]
    }

    /// Whether no change is needed. Missing settings and those in bytes count as fitting, as does
    /// all that the kernel itself sets.
    pub fn fits(&self) -> bool {
        let [from, to] = self.bounds();
        match self.now {
            SettingState::Value(now) => (from..=to).contains(&now),
            SettingState::InBytes | SettingState::Missing => true,
        }
    }

    /// The value that the node should have: a fitting one is kept. `None` if it cannot be set.
    pub fn wanted(&self) -> Option<u32> {
        match self.now {
            SettingState::Value(now) if self.fits() => Some(now),
            SettingState::Value(_) => Some(self.advice.value.max(self.floor)),
            SettingState::InBytes | SettingState::Missing => None,
        }
    }

    /// The value to which the kernel will raise a wanted one that is clearly lower.
    pub fn raised_to(&self) -> Option<u32> {
        let wanted = self.wanted()?;
        (u64::from(wanted) * 10 < u64::from(self.floor) * 9).then_some(self.floor)
    }
}
