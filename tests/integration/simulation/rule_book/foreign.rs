//! Rules about foreign alerts and other nodes.

use std::fmt::Write;
use std::time::Duration;

use super::{Author, RuleBook, Written, WrittenRemedy, spell};
use crate::simulation::alertmanager::ALERTNAMES;

const ALERTS: u64 = 5;
const CLUSTER: u64 = 4;

/// They have groups of their own, so that removing them changes nothing else.
#[derive(Clone)]
pub struct ForeignRules {
    alerts: Vec<Written>,
    cluster: Vec<Written>,
    interval: Duration,
}

impl ForeignRules {
    pub fn random(author: &mut Author<'_>) -> Self {
        let interval = author.beats(&[1, 1, 2, 5]);
        let alerts = (0..ALERTS).map(|number| author.about_alerts(number)).collect();
        let cluster = (0..CLUSTER).map(|number| author.about_nodes(number)).collect();
        Self { alerts, cluster, interval }
    }

    /// The same with one of them changed.
    pub fn changed(&self, author: &mut Author<'_>) -> Self {
        let mut rules = self.clone();
        let number = author.chance.whole(0..=ALERTS + CLUSTER - 1);
        let (all, rule) = match number.checked_sub(ALERTS) {
            None => (&mut rules.alerts, author.about_alerts(number)),
            Some(number) => (&mut rules.cluster, author.about_nodes(number)),
        };
        all.retain(|known| known.name != rule.name);
        if !author.chance.once_in(4) {
            all.push(rule);
        }
        rules
    }

    pub fn retain(&mut self, is_kept: impl Fn(&str) -> bool) {
        for rules in [&mut self.alerts, &mut self.cluster] {
            rules.retain(|rule| is_kept(&rule.name));
        }
    }

    pub fn is_empty(&self) -> bool {
        self.alerts.is_empty() && self.cluster.is_empty()
    }

    pub fn write(&self, book: &RuleBook, text: &mut String) {
        let groups =
            [("alerts", "", &self.alerts), ("cluster", "  scope: cluster\n", &self.cluster)];
        for (name, scope, rules) in groups.iter().filter(|(_, _, rules)| !rules.is_empty()) {
            let interval = spell(self.interval);
            writeln!(text, "- name: {name}\n{scope}  interval: {interval}\n  rules:").unwrap();
            rules.iter().for_each(|rule| rule.write(book, text));
        }
    }
}

/// As a rule's name in [`RuleBook::without`].
pub fn names() -> impl Iterator<Item = String> {
    (0..ALERTS).map(alerts_name).chain((0..CLUSTER).map(cluster_name))
}

fn alerts_name(number: u64) -> String {
    format!("Received{number}")
}

fn cluster_name(number: u64) -> String {
    format!("Cluster{number}")
}

impl Author<'_> {
    fn about_alerts(&mut self, number: u64) -> Written {
        let name = *self.chance.one_of(&ALERTNAMES);
        let bytes = self.bytes();
        let window = spell(self.beats(&[3, 10, 40]));
        let expr = match self.chance.whole(0..=8) {
            0 | 1 => format!("ALERTS{{alertname=\"{name}\"}} == 1"),
            2 => format!("ALERTS{{alertname=\"{name}\",team=\"a\"}}"),
            3 => format!("count by (team) (ALERTS{{alertname=\"{name}\"}}) > 1"),
            4 => format!("count(ALERTS) > {}", self.chance.whole(2..=8)),
            5 => {
                format!("ALERTS{{alertname=\"{name}\"}} and on() (uma_memory_free_bytes < {bytes})")
            }
            6 => format!(
                "uma_memory_free_bytes < {bytes} unless on() ALERTS{{alertname=\"{name}\"}}"
            ),
            7 => format!("absent(ALERTS{{alertname=\"{name}\"}})"),
            _ => format!("count(count_over_time(ALERTS{{team=\"b\"}}[{window}])) > 1"),
        };
        self.foreign(alerts_name(number), &expr)
    }

    fn about_nodes(&mut self, number: u64) -> Written {
        let metric = *self.chance.one_of(&["uma_memory_free_bytes", "uma_memory_available_bytes"]);
        let bytes = self.bytes();
        let node = self.chance.whole(1..=3);
        let window = spell(self.beats(&[3, 10, 40]));
        let expr = match self.chance.whole(0..=8) {
            0 => format!("min by (cluster) ({metric}) < {bytes}"),
            1 => format!("max by (cluster) ({metric}) > {bytes}"),
            2 => format!("count by (cluster) ({metric}) < {}", self.chance.whole(2..=5)),
            3 => format!("sum by (cluster) ({metric}) < {}", bytes.saturating_mul(3)),
            4 | 5 => format!("{metric} < {bytes}"),
            6 => format!("{metric}{{node=\"node-{node}\"}} < {bytes}"),
            7 => format!("{metric} < on(cluster) group_left 0.5 * max by (cluster) ({metric})"),
            _ => format!("avg by (cluster) (avg_over_time({metric}[{window}])) < {bytes}"),
        };
        let mut rule = self.foreign(cluster_name(number), &expr);
        if let Some(remedy) = &mut rule.remedy {
            let aim = format!("'min by (cluster) ({metric}) > {bytes}'");
            remedy.aim = remedy.aim.take().map(|_| aim);
        }
        rule
    }

    fn foreign(&mut self, name: String, expr: &str) -> Written {
        let mut lines = self.lines();
        lines.retain(|line| !line.starts_with("labels"));
        let remedy: Option<WrittenRemedy> = self.remedy();
        Written { name, group: usize::MAX, expr: format!("'{expr}'"), lines, remedy }
    }
}
