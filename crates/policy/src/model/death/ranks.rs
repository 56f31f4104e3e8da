//! The ends of the ranks of one engine over several nodes: which was first.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Killer;

/// What is known of the other ranks at the end of one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankDeaths {
    /// Which rank ended first.
    pub first: FirstDeath,
    /// The other ranks that have ended, the earliest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<RankDeath>,
}

/// Which rank of an engine ended first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FirstDeath {
    /// The one of the report.
    This,
    /// The first of the others.
    Other,
    /// They ended too close to each other, or another node has not reported its rank's end.
    Unknown,
}

/// The end of a rank on another node, as that node reports it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankDeath {
    /// Name of the node on which the rank ended.
    pub node: Arc<str>,
    /// Name of the engine there.
    pub engine: Arc<str>,
    /// Number of the rank, or `unknown`.
    pub rank: Arc<str>,
    /// Its cause of death: a name of [`Killer`].
    pub killer: Arc<str>,
    /// Seconds from the end of this rank to that of the other one, to about a second; negative if
    /// the other one ended first.
    pub seconds: f64,
}

impl fmt::Display for RankDeath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = if *self.rank == *"unknown" { "" } else { &*self.rank };
        let space = if number.is_empty() { "" } else { " " };
        write!(f, "rank{space}{number} on {} ({})", self.node, self.engine)
    }
}

impl RankDeath {
    /// How it ended, for people.
    fn how(&self) -> &'static str {
        match &*self.killer {
            "kernel_oom" => "killed by the kernel's OOM killer",
            "userspace_oom" => "killed for memory by a daemon",
            "umawarden" => "stopped by umawarden there",
            "signal" => "killed by a signal",
            "itself" => "by itself",
            _ => "of an unknown cause",
        }
    }
}

impl RankDeaths {
    /// The rank on another node that ended first.
    pub fn first_elsewhere(&self) -> Option<&RankDeath> {
        self.others.first().filter(|_| self.first == FirstDeath::Other)
    }

    /// The order for people, to follow a sentence on this rank's end.
    pub fn text(&self) -> String {
        match (self.first, self.others.first()) {
            (FirstDeath::This, _) => "; it ended first of its ranks".to_owned(),
            (FirstDeath::Other, Some(first)) => {
                format!("; its {first} had ended first, {}", first.how())
            }
            (_, Some(other)) => format!(
                "; its {other} ended at about the same time, {}: which was first is not known",
                other.how()
            ),
            (_, None) => "; whether another rank ended before it is not known".to_owned(),
        }
    }
}

impl Killer {
    /// Whether it came from outside the engine: an end by itself may be the answer to another end.
    pub fn is_from_outside(name: &str) -> bool {
        matches!(name, "kernel_oom" | "userspace_oom" | "signal")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_killer_has_a_text_and_the_order_is_one_clause() {
        let of = |killer: &str| RankDeath {
            node: "spark-2".into(),
            engine: "vllm".into(),
            rank: "1".into(),
            killer: killer.into(),
            seconds: -2.0,
        };
        let hows: Vec<&str> = Killer::NAMES.iter().map(|name| of(name).how()).collect();
        let unknown = hows.iter().filter(|how| **how == "of an unknown cause").count();
        assert_eq!(unknown, 1, "only that of `unknown`: {hows:?}");
        let deaths = |first, others| RankDeaths { first, others }.text();
        let expected = "; its rank 1 on spark-2 (vllm) had ended first, killed by the kernel's OOM \
                        killer";
        assert_eq!(deaths(FirstDeath::Other, vec![of("kernel_oom")]), expected);
        let nameless = RankDeath { rank: "unknown".into(), ..of("itself") };
        assert!(deaths(FirstDeath::Unknown, vec![nameless]).contains("its rank on spark-2 (vllm)"));
        assert!(deaths(FirstDeath::Unknown, Vec::new()).ends_with("before it is not known"));
    }
}
