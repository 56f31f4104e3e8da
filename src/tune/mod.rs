//! What a node's settings should be, by its size, and what is wrong with those that it has.
//!
//! The profiles are data: `profiles/settings.yaml`, inside the binary.

mod reserve;
#[cfg(test)]
mod tests;

use glob::Pattern;
use serde::{Deserialize, Serialize};

use crate::model::Sysctl;

pub use reserve::{Memory, Reserve};

const PROFILES: &str = include_str!("../../profiles/settings.yaml");

/// The settings of nodes of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// For `--profile`.
    pub name: String,
    /// Which nodes it is for, in words.
    pub title: String,
    /// Patterns of the names that firmware gives them; none: any.
    #[serde(default)]
    models: Vec<String>,
    /// MemTotal, from and below, in GiB.
    memory_gib: [u64; 2],
    /// In the order of the table.
    pub settings: Vec<Advice>,
}

/// One setting of a profile.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Advice {
    /// Which.
    pub name: Sysctl,
    /// What it is set to where it does not fit.
    pub value: u32,
    /// From where to where another value is as good.
    pub accept: [u32; 2],
    /// Why that value.
    pub why: String,
    /// How surely.
    pub source: Certainty,
    /// What it costs.
    pub trades: String,
}

/// How surely a value is the right one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Certainty {
    /// Somebody has measured it.
    Measured,
    /// Arithmetic on a measured value.
    Derived,
    /// The kernel's own.
    Default,
    /// Argued, and measured by nobody.
    Guess,
}

impl Certainty {
    /// The word in tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Derived => "derived",
            Self::Default => "default",
            Self::Guess => "guess",
        }
    }
}

#[derive(Deserialize)]
struct File {
    profiles: Vec<Profile>,
}

/// What a node is, as far as profiles ask.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// The name that firmware gives the machine; empty where it gives none.
    pub model: String,
    /// MemTotal.
    pub memory_bytes: u64,
}

/// All profiles, in the order in which they are tried.
///
/// # Errors
/// The file inside the binary is not as it should be, which a test of the build makes sure of.
pub fn profiles() -> Result<Vec<Profile>, String> {
    let file: File = serde_saphyr::from_str(PROFILES).map_err(|error| error.to_string())?;
    Ok(file.profiles)
}

/// The profile for a node: the first that fits.
pub fn choose<'p>(profiles: &'p [Profile], node: &Node) -> Option<&'p Profile> {
    profiles.iter().find(|profile| profile.fits(node))
}

impl Profile {
    fn fits(&self, node: &Node) -> bool {
        let matches = |pattern: &String| {
            Pattern::new(pattern).is_ok_and(|pattern| pattern.matches(&node.model))
        };
        let gib = node.memory_bytes >> 30;
        let [from, below] = self.memory_gib;
        (self.models.is_empty() || self.models.iter().any(matches)) && gib >= from && gib < below
    }

    /// The value of a setting.
    pub fn value(&self, sysctl: Sysctl) -> Option<u32> {
        self.settings.iter().find(|advice| advice.name == sysctl).map(|advice| advice.value)
    }
}

/// What a node has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Present {
    /// This value.
    Value(u32),
    /// Its twin in bytes is in force.
    InBytes,
    /// This kernel does not have it.
    Missing,
}

/// One row of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row<'p> {
    /// What the profile says.
    pub advice: &'p Advice,
    /// What the node has.
    pub now: Present,
}

impl Row<'_> {
    /// Whether it may stay as it is. What is not there, or was set in bytes, is nobody's fault.
    pub fn fits(&self) -> bool {
        let [from, to] = self.advice.accept;
        match self.now {
            Present::Value(now) => (from..=to).contains(&now),
            Present::InBytes | Present::Missing => true,
        }
    }

    /// The value that a node should have: what fits stays. `None`: nothing can be set.
    pub fn wanted(&self) -> Option<u32> {
        match self.now {
            Present::Value(now) if self.fits() => Some(now),
            Present::Value(_) => Some(self.advice.value),
            Present::InBytes | Present::Missing => None,
        }
    }
}
