//! Which actions are enforced: their grades, stated again.

use umawarden::model::{Grade, Mode};
use umawarden::policy::guard::GuardRails;
use umawarden::policy::rule::Rule;

use super::Checker;

/// The grade of an action of that name. `reclaim` is random of control groups alone.
fn grade(action: &str) -> Grade {
    match action {
        "notify" => Grade::Notice,
        "evict_checkpoint" | "empty_cache" => Grade::Evict,
        "start_container" | "start_unit" => Grade::Restart,
        "stop_engine" => Grade::Stop,
        name if name.contains("reboot") => Grade::Reboot,
        _ => Grade::Drop,
    }
}

fn enforces(rails: &GuardRails, action: &str) -> bool {
    rails.enforced.has(grade(action))
}

/// The mode of a rule: a remedy of which nothing is enforced observes.
pub fn mode_of(rails: &GuardRails, of_node: Mode, rule: &Rule) -> Mode {
    let steps = rule.remedy.iter().flat_map(|remedy| &remedy.steps);
    let mut names = steps.map(|step| step.name()).peekable();
    let is_idle = names.peek().is_some() && !names.any(|name| enforces(rails, name));
    if is_idle { Mode::Observe } else { rule.mode.unwrap_or(of_node) }
}

impl Checker {
    pub fn enforces(&self, action: &str) -> bool {
        enforces(&self.rails, action)
    }

    /// Whether that rule may have set something in that mode.
    pub fn sets(&self, rule: &Rule, mode: Mode) -> bool {
        self.mode_of(rule) == mode && (mode == Mode::Observe || self.enforces("set_sysctl"))
    }

    pub fn mode_of(&self, rule: &Rule) -> Mode {
        mode_of(&self.rails, self.mode, rule)
    }
}
