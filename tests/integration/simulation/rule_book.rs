//! Random rule files, and random changes to them.

pub mod foreign;

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use umawarden::policy::guard::GuardRails;

use super::chance::Chance;
use super::{rails, settings};
use foreign::ForeignRules;

/// Rules as a person would have written them.
#[derive(Clone)]
pub struct RuleBook {
    rules: Vec<Written>,
    intervals: Vec<Duration>,
    rails: GuardRails,
    /// Alerts that inhibit every act.
    inhibitors: Vec<String>,
    foreign: Option<ForeignRules>,
}

#[derive(Clone)]
struct Written {
    name: String,
    group: usize,
    expr: String,
    lines: Vec<String>,
    remedy: Option<WrittenRemedy>,
}

#[derive(Clone)]
struct WrittenRemedy {
    aim: Option<String>,
    steps: Vec<String>,
    cooldown: Duration,
    times: u64,
    per: Duration,
    rails: Vec<String>,
    inhibited_by: Option<String>,
}

const GROUPS: usize = 3;
const NAMES: u64 = 9;

/// Parts of random rules.
pub struct Author<'a> {
    pub chance: &'a mut Chance,
    pub beat: Duration,
    /// Of the machine's memory, in bytes.
    pub total: f64,
}

impl RuleBook {
    pub fn random(author: &mut Author<'_>) -> Self {
        let intervals = (0..GROUPS).map(|_| author.beats(&[1, 1, 2, 5])).collect();
        let (rails, inhibitors) = author.rails();
        let mut book = Self { rules: Vec::new(), intervals, rails, inhibitors, foreign: None };
        for number in 0..NAMES {
            if author.chance.once_in(4) {
                continue;
            }
            let rule = author.rule(number);
            book.rules.push(rule);
        }
        if book.rules.is_empty() {
            book.rules.push(author.rule(0));
        }
        book
    }

    /// With rules about foreign alerts and nodes.
    pub fn with_foreign(mut self, author: &mut Author<'_>) -> Self {
        self.foreign = Some(ForeignRules::random(author));
        self
    }

    /// The same with one of the rules about foreign alerts and nodes changed.
    pub fn foreign_changed(&self, author: &mut Author<'_>) -> Self {
        let foreign = self.foreign.as_ref().map(|foreign| foreign.changed(author));
        Self { foreign, ..self.clone() }
    }

    /// The same with some rules changed, gone, back or in another order.
    pub fn changed(&self, author: &mut Author<'_>) -> Self {
        let mut book = self.clone();
        for _ in 0..author.chance.whole(0..=4) {
            let at = author.chance.whole(0..=book.rules.len() as u64 - 1) as usize;
            match author.chance.whole(0..=6) {
                0 if book.rules.len() > 1 => {
                    book.rules.remove(at);
                }
                1 => {
                    let number = author.chance.whole(0..=NAMES - 1);
                    if !book.rules.iter().any(|rule| rule.name == name(number)) {
                        let rule = author.rule(number);
                        book.rules.push(rule);
                    }
                }
                2 => book.rules[at].remedy = author.remedy(),
                3 => book.rules[at].lines = author.lines(),
                4 => {
                    if let Some(remedy) = &mut book.rules[at].remedy {
                        (remedy.times, remedy.per) = author.limit();
                    }
                }
                5 => (book.rails, book.inhibitors) = author.rails(),
                _ => book.rules.rotate_left(at),
            }
        }
        book
    }

    /// Removes the rules that the search for a minimal failure leaves out.
    pub fn without(&self, is_left_out: impl Fn(&str) -> bool) -> Self {
        let mut book = self.clone();
        book.rules.retain(|rule| !is_left_out(&rule.name));
        if let Some(foreign) = &mut book.foreign {
            foreign.retain(|name| !is_left_out(name));
        }
        book
    }

    /// The guard rails of the configuration.
    pub fn guard_rails(&self) -> GuardRails {
        let known = self.inhibitors.iter().filter(|name| self.has(name));
        let inhibited_by = known.map(|name| Arc::from(name.as_str())).collect();
        GuardRails { inhibited_by, ..self.rails.clone() }
    }

    fn has(&self, name: &str) -> bool {
        self.rules.iter().any(|rule| rule.name == name)
    }

    pub fn text(&self) -> String {
        let mut text = "groups:\n".to_owned();
        for (group, interval) in self.intervals.iter().enumerate() {
            let of_group = |rule: &&Written| rule.group == group;
            if !self.rules.iter().any(|rule| of_group(&rule)) {
                continue;
            }
            writeln!(text, "- name: g{group}\n  interval: {}\n  rules:", spell(*interval)).unwrap();
            for rule in self.rules.iter().filter(of_group) {
                rule.write(self, &mut text);
            }
        }
        let foreign = self.foreign.as_ref().filter(|foreign| !foreign.is_empty());
        if let Some(foreign) = foreign {
            foreign.write(self, &mut text);
        }
        match self.rules.is_empty() && foreign.is_none() {
            true => "groups: []\n".to_owned(),
            false => text,
        }
    }
}

/// As a rule's name in [`RuleBook::without`].
pub fn names() -> impl Iterator<Item = String> {
    (0..NAMES).map(name).chain(foreign::names())
}

fn name(number: u64) -> String {
    format!("Rule{number}")
}

fn spell(duration: Duration) -> String {
    format!("{}ms", duration.as_millis())
}

impl Written {
    fn write(&self, book: &RuleBook, text: &mut String) {
        writeln!(text, "  - alert: {}\n    expr: {}", self.name, self.expr).unwrap();
        for line in &self.lines {
            writeln!(text, "    {line}").unwrap();
        }
        let Some(remedy) = &self.remedy else { return };
        writeln!(text, "    remedy:").unwrap();
        if let Some(aim) = &remedy.aim {
            writeln!(text, "      aim: {aim}").unwrap();
        }
        writeln!(text, "      steps:").unwrap();
        for step in &remedy.steps {
            writeln!(text, "      - {step}").unwrap();
        }
        let (times, per) = (remedy.times, spell(remedy.per));
        writeln!(text, "      cooldown: {}", spell(remedy.cooldown)).unwrap();
        writeln!(text, "      at_most: {{times: {times}, per: {per}}}").unwrap();
        for line in &remedy.rails {
            writeln!(text, "      {line}").unwrap();
        }
        let inhibitor = remedy.inhibited_by.as_ref().filter(|name| book.has(name));
        if let Some(inhibitor) = inhibitor.filter(|name| **name != self.name) {
            writeln!(text, "      inhibited_by: [{inhibitor}]").unwrap();
        }
    }
}

const STEPS: [&str; 12] = [
    "reclaim: {cgroup: /system.slice/backup.service, bytes: 1GiB}",
    "reclaim: {cgroup: /system.slice/database.service, bytes: 2GiB}",
    "drop_caches: {what: pagecache}",
    "drop_caches: {what: all}",
    "drop_caches: {what: all, sync: true}",
    "compact_memory: {}",
    "notify: {message: \"{{ $labels.alertname }} at {{ $value | humanize }}\"}",
    "notify: {message: look}",
    "empty_cache: {engine: held-0}",
    "empty_cache: {engine: by-hand-0, allow: [drop_prefix_cache]}",
    "empty_cache: {engine: by-hand-1, allow: [retract_requests, unpause]}",
    "evict_checkpoint: {engine: held-1, behind: 64MiB, for: 1h}",
];

impl Author<'_> {
    fn beats(&mut self, numbers: &[u32]) -> Duration {
        self.beat * *self.chance.one_of(numbers)
    }

    fn rule(&mut self, number: u64) -> Written {
        let expr = self.condition(2);
        Written {
            name: name(number),
            // A rule stays in its group, since the group is part of its name.
            group: number as usize % GROUPS,
            expr: format!("'{expr}'"),
            lines: self.lines(),
            remedy: self.remedy(),
        }
    }

    fn lines(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        if self.chance.once_in(2) {
            lines.push(format!("for: {}", spell(self.beats(&[1, 3, 10]))));
        }
        if self.chance.once_in(3) {
            lines.push(format!("keep_firing_for: {}", spell(self.beats(&[1, 5, 20]))));
        }
        if self.chance.once_in(6) {
            lines.push("labels: {level: \"{{ $value | humanize }}\"}".to_owned());
        }
        match self.chance.whole(0..=5) {
            0 => lines.push("mode: observe".to_owned()),
            1 => lines.push("mode: enforce".to_owned()),
            _ => {}
        }
        lines
    }

    fn remedy(&mut self) -> Option<WrittenRemedy> {
        if self.chance.once_in(8) {
            return None;
        }
        let steps = self.steps();
        let aim = self.chance.once_in(2).then(|| format!("'{}'", self.aim()));
        let cooldown = self.beats(&[0, 1, 5, 30, 120]);
        let (times, per) = self.limit();
        let (rails, inhibited_by) = self.own_rails();
        Some(WrittenRemedy { aim, steps, cooldown, times, per, rails, inhibited_by })
    }

    /// Random steps, perhaps a temporary setting, perhaps the brake.
    fn steps(&mut self) -> Vec<String> {
        let count = self.chance.whole(1..=4);
        let mut steps: Vec<String> =
            (0..count).map(|_| (*self.chance.one_of(&STEPS)).to_owned()).collect();
        if self.chance.once_in(3) {
            let time = self.beats(&[2, 10, 100]).max(Duration::from_secs(1));
            let time = spell(time.min(Duration::from_secs(86_400)));
            let at = self.chance.whole(0..=count) as usize;
            steps.insert(at, self.chance.one_of(&settings::STEPS).replace("TIME", &time));
        }
        if self.chance.once_in(4) {
            steps.push("stop_engine: {grace: 0s}".to_owned());
        }
        steps
    }

    fn own_rails(&mut self) -> (Vec<String>, Option<String>) {
        let mut rails = Vec::new();
        if self.chance.once_in(4) {
            let expires = self.beats(&[20, 200]).max(Duration::from_secs(10));
            let expires = expires.min(Duration::from_secs(7 * 86_400));
            // People have a day at most to deny what goes ahead.
            let is_announced = self.chance.once_in(2);
            let (key, most) = match is_announced {
                true => ("unless_denied_within", Duration::from_secs(86_400)),
                false => ("expires", expires),
            };
            rails.push(format!("require_approval: {{{key}: {}}}", spell(expires.min(most))));
        }
        if self.chance.once_in(4) {
            let misses = self.chance.whole(0..=3);
            let after = spell(self.beats(&[0, 30, 300]));
            rails.push(format!("breaker: {{misses: {misses}, reset_after: {after}}}"));
        }
        match self.chance.whole(0..=9) {
            0 => rails.push(format!("only_in: [{}]", self.chance.one_of(&rails::WINDOWS))),
            1 => rails.push(format!("never_in: [{}]", self.chance.one_of(&rails::WINDOWS))),
            _ => {}
        }
        let inhibited_by = self.chance.once_in(5).then(|| name(self.chance.whole(0..=NAMES - 1)));
        (rails, inhibited_by)
    }

    fn rails(&mut self) -> (GuardRails, Vec<String>) {
        let inhibitor = self.chance.once_in(6).then(|| name(self.chance.whole(0..=NAMES - 1)));
        (rails::random(self.chance, self.beat), Vec::from_iter(inhibitor))
    }

    fn limit(&mut self) -> (u64, Duration) {
        let times = *self.chance.one_of(&[1, 1, 2, 3, 10]);
        (times, self.beats(&[10, 60, 300, 1000]))
    }

    fn bytes(&mut self) -> u64 {
        (self.total * self.chance.between(0.01, 0.9)) as u64
    }

    fn aim(&mut self) -> String {
        let bytes = self.bytes();
        match self.chance.whole(0..=4) {
            0 => format!("uma_memory_contiguous_bytes{{block=\"2MiB\"}} > {bytes}"),
            1 => format!("uma_memory_headroom_bytes > {bytes}"),
            2 => format!("uma_memory_free_bytes > uma_memory_reserve_bytes + {bytes}"),
            _ => format!("uma_memory_free_bytes > {bytes}"),
        }
    }

    /// An expression that is joined from at most `2^depth` simple ones.
    fn condition(&mut self, depth: u32) -> String {
        if depth == 0 || self.chance.once_in(2) {
            return self.simple();
        }
        let (left, right) = (self.condition(depth - 1), self.condition(depth - 1));
        match self.chance.whole(0..=3) {
            0 => format!("({left}) or on() ({right})"),
            1 => format!("({left}) unless on() ({right})"),
            _ => format!("({left}) and on() ({right})"),
        }
    }

    fn simple(&mut self) -> String {
        let bytes = self.bytes();
        let window = spell(self.beats(&[3, 10, 40]));
        match self.chance.whole(0..=16) {
            0..=3 => format!("uma_memory_free_bytes < {bytes}"),
            4 => format!("uma_memory_page_cache_bytes{{state=\"clean\"}} > {bytes}"),
            5 => format!("uma_memory_page_cache_bytes > {bytes}"),
            6 => format!("deriv(uma_memory_available_bytes[{window}]) * 100 < 0 - {bytes}"),
            7 => format!("sum(rate(uma_memory_allocation_stalls_total[{window}])) > 0.5"),
            8 => format!("increase(uma_memory_oom_kills_total[{window}]) > 0"),
            9 => format!(
                "sum(increase(uma_kernel_events_total{{event=~\"nv_no_memory|xid\"}}[{window}])) > 2"
            ),
            10 => "uma_pressure_ratio{resource=\"memory\",share=\"full\",window=\"10s\"} > 0.2"
                .to_owned(),
            11 => "uma_scrape_collector_success == 0".to_owned(),
            12 => format!("sum(increase(uma_decisions_total{{decision=\"act\"}}[{window}])) > 3"),
            13 => format!(
                "predict_linear(uma_memory_available_bytes[{window}], 10) < on() \
                 uma_memory_watermark_bytes{{watermark=\"low\"}}"
            ),
            14 => "sum(uma_memory_contiguous_bytes{block=\"2MiB\"}) < \
                   sum(uma_zone_free_bytes) / 2"
                .to_owned(),
            15 => "sum(uma_rule_state{state=\"unknown\"}) > 2".to_owned(),
            _ => format!("increase(uma_kernel_log_lost_records_total[{window}]) > 0"),
        }
    }
}
