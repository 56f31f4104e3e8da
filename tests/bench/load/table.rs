//! The table of results.

use std::fmt;

use crate::engine::Load;
use crate::gib;
use crate::measure::Impact;
use crate::options::{Loader, Policy};
use crate::policy::Used;

/// One load under one policy.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    pub load: Load,
    pub impact: Impact,
    pub bystander_faults: u64,
    /// Bytes that the bystander had to read again.
    pub bystander_bytes: u64,
    pub served_faults: u64,
    /// Processor time of the policy.
    pub used: Used,
}

/// All runs of one loader.
#[derive(Debug)]
pub struct Table {
    loader: Loader,
    runs: Vec<(Policy, Run)>,
}

impl Table {
    pub fn new(loader: Loader) -> Self {
        Self { loader, runs: Vec::new() }
    }

    pub fn add(&mut self, policy: Policy, run: Run) {
        self.runs.push((policy, run));
    }

    fn of(&self, policy: Policy) -> impl Iterator<Item = &Run> {
        self.runs.iter().filter(move |(of, _)| *of == policy).map(|(_, run)| run)
    }
}

type Row = (&'static str, fn(&Run) -> f64, usize);

const ROWS: [Row; 14] = [
    ("load s", |run| run.load.seconds, 1),
    ("weights GiB", |run| gib(run.load.weights_bytes), 1),
    ("KV GiB", |run| gib(run.load.cache_bytes), 1),
    ("direct scans", |run| run.impact.direct_reclaim_scans as f64, 0),
    ("alloc stalls", |run| run.impact.allocation_stalls as f64, 0),
    ("lowest free GiB", |run| gib(run.impact.lowest_free_bytes), 2),
    ("major faults", |run| run.impact.major_faults as f64, 0),
    ("engine's own", |run| run.load.major_faults as f64, 0),
    ("bystander's", |run| run.bystander_faults as f64, 0),
    ("it read again GiB", |run| gib(run.bystander_bytes), 2),
    ("served model's", |run| run.served_faults as f64, 0),
    ("policy CPU s", |run| run.used.seconds, 2),
    ("of it in the kernel", |run| run.used.in_kernel_seconds, 2),
    ("policy CPU %", |run| run.used.seconds / run.load.seconds * 100.0, 1),
];

impl fmt::Display for Table {
    /// A column for each policy: lowest, median and highest of its runs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n{} (lowest/median/highest)", self.loader)?;
        let present = |policy: &Policy| self.runs.iter().any(|(of, _)| of == policy);
        let policies: Vec<Policy> = Policy::ALL.into_iter().filter(present).collect();
        write!(f, "{:<19}", "")?;
        policies.iter().try_for_each(|policy| write!(f, " {:>20}", policy.name()))?;
        writeln!(f)?;
        for (name, value, digits) in ROWS {
            write!(f, "{name:<19}")?;
            for policy in &policies {
                let mut values: Vec<f64> = self.of(*policy).map(value).collect();
                values.sort_by(f64::total_cmp);
                let [lowest, median, highest] =
                    [0, values.len() / 2, values.len() - 1].map(|index| values[index]);
                let text = format!("{lowest:.digits$}/{median:.digits$}/{highest:.digits$}");
                write!(f, " {text:>20}")?;
            }
            writeln!(f)?;
        }
        write!(f, "{:<19}", "killed of runs")?;
        for policy in policies {
            let killed = self.of(policy).filter(|run| run.load.killed).count();
            write!(f, " {:>20}", format!("{killed} of {}", self.of(policy).count()))?;
        }
        writeln!(f)
    }
}
