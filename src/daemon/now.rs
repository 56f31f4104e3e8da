//! Which rules hold on this node at this moment, by a few seconds of observation.

use std::sync::Arc;
use std::time::Duration;

use super::begin::{watch_engines, watch_gpu, watch_holders};
use super::clock;
use crate::config::settings::Settings;
use crate::model::{DecisionId, Mode, Observation, RuleId, Source, metric};
use crate::policy::Policy;
use crate::policy::explain::Explanation;
use crate::policy::rule::{Rule, RuleScope, RuleSet};
use crate::sources::memory::MemorySource;

/// How long the node is observed: the first scan of all processes and the first answer of the
/// driver take about a second.
pub const OBSERVED: Duration = Duration::from_secs(3);

/// Between two samples.
const TICK: Duration = Duration::from_millis(100);

/// What only a daemon has, which counts over its life.
const OF_DAEMON: [Source; 5] =
    [Source::KernelLog, Source::Journal, Source::Daemon, Source::BlackBox, Source::Alertmanager];

/// A rule at this moment.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleNow {
    /// The rule that was evaluated.
    pub rule: RuleId,
    /// What it follows from; the error names what it reads and a few seconds on this node do not
    /// show.
    pub explained: Result<Explanation, Arc<str>>,
}

/// Observes this node as the daemon does, without acting, and evaluates rules at the end. `advance`
/// gets the time since the first sample, at each of them.
///
/// # Errors
/// A thread cannot be started.
pub fn rules_now(
    settings: &Settings,
    rules: &RuleSet,
    advance: &mut dyn FnMut(Duration),
) -> anyhow::Result<Vec<RuleNow>> {
    let mut memory = MemorySource::open(&settings.path.procfs, &settings.path.sysfs);
    let mut engines = watch_engines(settings)?;
    let mut gpu = watch_gpu(settings)?;
    let mut holders = watch_holders(settings)?;
    let mut policy = Policy::new(clock::now(), Mode::Observe, rules, DecisionId(1));
    let mut seen: Vec<Observation> = Vec::new();
    let began = clock::uptime();
    loop {
        let now = clock::now();
        let elapsed = now.uptime.saturating_sub(began);
        advance(elapsed);
        memory.read_all(&clock::uptime, &mut seen);
        engines.take(now.uptime, &mut seen);
        if let Some(gpu) = &mut gpu {
            gpu.take(now.uptime, &mut seen);
        }
        holders.take(now.uptime, &mut seen);
        policy.step(now, &seen);
        memory.recycle(&mut seen);
        if elapsed >= OBSERVED {
            let all = rules.groups.iter().flat_map(|group| &group.rules);
            return Ok(all.map(|rule| rule_now(rule, &policy)).collect());
        }
        std::thread::sleep(TICK);
    }
}

fn rule_now(rule: &Rule, policy: &Policy) -> RuleNow {
    let is_unseen = |name: &str| {
        let source = metric(name).map(|metric| metric.source);
        source.is_none_or(|source| OF_DAEMON.contains(&source))
    };
    let mut reads = rule.expr.expr.reads().into_iter().map(|(name, _)| name);
    let unseen = match rule.scope {
        RuleScope::Cluster => Some("series of other nodes".into()),
        RuleScope::Node => reads.find(|name| is_unseen(name)),
    };
    let explained = || policy.explain(&rule.id, clock::now(), true).ok_or("no evaluation".into());
    RuleNow { rule: rule.id.clone(), explained: unseen.map_or_else(explained, Err) }
}
