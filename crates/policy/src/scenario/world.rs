//! The declared world: series with their values over time, and the store that expressions read.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use promql_rules::store::{SeriesStore, stale_marker};
use promql_rules::{EvalTime, Evaluated, Expr};

use super::file::{InputSeries, TestCase};
use super::notation::{Cursor, Sequence};
use crate::model::{Moment, Observation, Reading, SeriesKey};
use crate::policy::status::{AlertStatus, RuleStatus};

/// Series at play.
#[derive(Debug)]
pub(super) struct DeclaredWorld {
    series: Vec<PlayedSeries>,
    interval: Duration,
    /// The next sample's number.
    next: u64,
    store: SeriesStore,
    /// The wall clock at the beginning, in milliseconds since 1970.
    start_ms: i64,
    /// Alerts as series, where anything asks for them.
    alerts: Option<BTreeSet<SeriesKey>>,
}

#[derive(Debug)]
struct PlayedSeries {
    key: SeriesKey,
    values: Sequence,
    cursor: Cursor,
    /// The number of its first value.
    start: u64,
}

const ALERTS: &str = "ALERTS";
const ALERTS_FOR_STATE: &str = "ALERTS_FOR_STATE";

impl DeclaredWorld {
    pub(super) fn new(test: &TestCase) -> Self {
        let mut store = SeriesStore::default();
        let mut asks_for_alerts = false;
        for (name, range_ms) in test.exprs.iter().flat_map(|test| test.expr.reads()) {
            asks_for_alerts |= matches!(&*name, ALERTS | ALERTS_FOR_STATE);
            store.retain(&name, range_ms);
        }
        let mut world = Self {
            series: Vec::new(),
            interval: test.interval,
            next: 0,
            start_ms: test.start.as_millisecond(),
            store,
            alerts: asks_for_alerts.then(BTreeSet::new),
        };
        world.replace(&test.input);
        world
    }

    /// Series take other values from the next sample on. Of two of the same name the later one
    /// counts, as in promtool.
    pub(super) fn replace(&mut self, input: &[InputSeries]) {
        for series in input {
            let (key, values) = (series.key.clone(), series.values.clone());
            let playing = PlayedSeries { key, values, cursor: Cursor::default(), start: self.next };
            match self.series.iter_mut().find(|known| known.key == series.key) {
                Some(known) => *known = playing,
                None => self.series.push(playing),
            }
        }
    }

    /// When the next sample is due, if there is any.
    pub(super) fn due(&self) -> Option<Duration> {
        let ends =
            self.series.iter().map(|series| series.start.saturating_add(series.values.count()));
        ends.max().filter(|end| self.next < *end)?;
        let number = u32::try_from(self.next).ok()?;
        self.interval.checked_mul(number)
    }

    /// Takes the samples that are due.
    pub(super) fn sample(&mut self, at: Moment, seen: &mut Vec<Observation>) {
        for series in &mut self.series {
            let Some(value) = series.values.next(&mut series.cursor) else { continue };
            let id = self.store.intern(&series.key);
            // To an expression, a reading that fails is a series that ends.
            let shown = value.value().unwrap_or_else(stale_marker);
            self.store.append(id, at.timeline_ms(), Reading::Value(shown));
            seen.push(Observation::Sample { series: series.key.clone(), value });
        }
        self.next += 1;
    }

    /// Whether any expression asks for alerts.
    pub(super) fn asks_for_alerts(&self) -> bool {
        self.alerts.is_some()
    }

    /// Shows alerts as Prometheus does, in the series `ALERTS` and `ALERTS_FOR_STATE`.
    pub(super) fn show_alerts(&mut self, at: Moment, rules: &[RuleStatus]) {
        let Some(shown) = &mut self.alerts else { return };
        let mut current = BTreeSet::new();
        let at_ms = at.timeline_ms();
        let alerts = rules.iter().flat_map(|rule| rule.alerts.iter().map(move |a| (rule, a)));
        for (rule, alert) in alerts {
            let since = alert.active_since.utc.as_second() as f64;
            let state = Some(alert.state.name());
            for (name, state, value) in [(ALERTS, state, 1.0), (ALERTS_FOR_STATE, None, since)] {
                let key = alert_key(name, rule, alert, state);
                let id = self.store.intern(&key);
                self.store.append(id, at_ms, Reading::Value(value));
                current.insert(key);
            }
        }
        for gone in shown.difference(&current) {
            let id = self.store.intern(gone);
            self.store.end(id, at_ms);
        }
        *shown = current;
    }

    /// What an expression yields over all that has been sampled.
    pub(super) fn evaluate(&self, expr: &Expr, at: Duration) -> Result<Evaluated, String> {
        let ms = i64::try_from(at.as_millis()).unwrap_or(i64::MAX);
        expr.evaluate(
            &self.store,
            EvalTime { timeline_ms: ms, utc_ms: self.start_ms.saturating_add(ms) },
        )
    }
}

/// A label of the rule that renders to nothing is kept as written, as in Prometheus.
fn alert_key(name: &str, rule: &RuleStatus, alert: &AlertStatus, state: Option<&str>) -> SeriesKey {
    let written = rule.labels.iter().chain(&alert.labels);
    let mut labels: BTreeMap<&str, &str> =
        written.map(|(name, value)| (&**name, &**value)).collect();
    labels.extend(state.map(|state| ("alertstate", state)));
    let labels: Vec<(&str, &str)> = labels.into_iter().collect();
    SeriesKey::new(name, &labels)
}
