//! The table of results.

use std::fmt;

use crate::gib;
use crate::policy::Policy;
use crate::scenario::{Run, Scenario, Stopped};

/// All runs of one scenario.
#[derive(Debug)]
pub struct Table {
    scenario: Scenario,
    runs: Vec<(Policy, Run)>,
}

impl Table {
    pub fn new(scenario: Scenario) -> Self {
        Self { scenario, runs: Vec::new() }
    }

    pub fn add(&mut self, policy: Policy, run: Run) {
        self.runs.push((policy, run));
    }

    fn of(&self, policy: Policy) -> impl Iterator<Item = &Run> {
        self.runs.iter().filter(move |(of, _)| *of == policy).map(|(_, run)| run)
    }
}

const PROCESSES: [(&str, Option<Stopped>); 6] = [
    ("no process", None),
    ("the hog", Some(Stopped::Hog)),
    ("the innocent", Some(Stopped::Innocent)),
    ("the served model", Some(Stopped::Served)),
    ("an engine that took nothing", Some(Stopped::Bystander)),
    ("the taker, by this program", Some(Stopped::ByWatchdog)),
];

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n{}", self.scenario)?;
        for policy in Policy::ALL {
            let runs = self.of(policy).count();
            if runs == 0 {
                continue;
            }
            writeln!(f, "  {}, {runs} runs", policy.version())?;
            for (name, process) in PROCESSES {
                let times = self.of(policy).filter(|run| run.stopped == process).count();
                if times > 0 {
                    writeln!(f, "    stopped {name:<26} {times} of {runs}")?;
                }
            }
            let [lowest, median, _] = spread(self.of(policy).map(|run| gib(run.lowest_free_bytes)));
            writeln!(f, "    lowest MemFree GiB: min {lowest:.2}, median {median:.2}")?;
            let took = self.of(policy).map(|run| run.took.as_secs_f64());
            let [first, median, last] = spread(took);
            writeln!(f, "    ended after s: min {first:.2}, p50 {median:.2}, p99 {last:.2}")?;
        }
        Ok(())
    }
}

/// Least, median, and the 99th percentile.
fn spread(values: impl Iterator<Item = f64>) -> [f64; 3] {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let last = (values.len() * 99).div_ceil(100) - 1;
    [0, values.len() / 2, last].map(|index| values[index])
}
