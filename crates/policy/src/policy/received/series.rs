//! Received alerts as series: `ALERTS`, and what is counted of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use promql_rules::Labels;
use promql_rules::store::{SeriesId, SeriesStore};

use crate::model::{
    ALERTS, Moment, Reading, ReceivedAlerts, ReceivedIgnored, ReceivedTurn, SeriesKey,
};
use crate::policy::counters::{Cell, Counters};

/// Alerts that are series at once. Each keeps as much past as rules ask for.
pub(super) const MOST_SHOWN: usize = 250;

/// Series that there are, those included that have ended and whose past is kept.
const MOST_SLOTS: usize = 2 * MOST_SHOWN;

/// The series, whose places are used again: the labels of alerts are without number.
#[derive(Debug, Default)]
pub(super) struct Slots {
    slots: Vec<SeriesSlot>,
    /// Index of a series in them.
    places: BTreeMap<SeriesKey, usize>,
    shown: usize,
}

#[derive(Debug)]
struct SeriesSlot {
    id: SeriesId,
    key: SeriesKey,
    /// Alerts of which labels were left out may be one series.
    holders: usize,
    ended: Duration,
}

impl Slots {
    /// A series for an alert with these labels, which fires.
    pub(super) fn take(
        &mut self,
        labels: &BTreeMap<Arc<str>, Arc<str>>,
        at: Moment,
        store: &mut SeriesStore,
    ) -> Option<usize> {
        let key = key(labels);
        let same = self.places.get(&key).copied();
        let is_shown = same.is_some_and(|place| self.slots[place].holders > 0);
        if !is_shown && self.shown >= MOST_SHOWN {
            return None;
        }
        let place = match same {
            Some(place) => place,
            None if self.slots.len() < MOST_SLOTS => self.add(key, store)?,
            None => self.reuse(key, store)?,
        };
        let slot = self.slots.get_mut(place)?;
        self.shown += usize::from(slot.holders == 0);
        slot.holders += 1;
        store.append(slot.id, at.timeline_ms(), Reading::Value(1.0));
        Some(place)
    }

    fn add(&mut self, key: SeriesKey, store: &mut SeriesStore) -> Option<usize> {
        let id = store.intern(&key);
        if id == SeriesId::REFUSED {
            return None;
        }
        let place = self.slots.len();
        self.places.insert(key.clone(), place);
        self.slots.push(SeriesSlot { id, key, holders: 0, ended: Duration::ZERO });
        Some(place)
    }

    /// The place of the one that ended the longest ago.
    fn reuse(&mut self, key: SeriesKey, store: &mut SeriesStore) -> Option<usize> {
        let over = self.slots.iter_mut().enumerate().filter(|(_, slot)| slot.holders == 0);
        let (place, slot) = over.min_by_key(|(_, slot)| slot.ended)?;
        store.replace(slot.id, &key);
        self.places.remove(&slot.key);
        self.places.insert(key.clone(), place);
        slot.key = key;
        Some(place)
    }

    /// One alert with this series has ended.
    pub(super) fn release(&mut self, place: usize, at: Moment, store: &mut SeriesStore) {
        let Some(slot) = self.slots.get_mut(place) else { return };
        slot.holders = slot.holders.saturating_sub(1);
        if slot.holders == 0 {
            self.shown -= 1;
            slot.ended = at.uptime;
            store.end(slot.id, at.timeline_ms());
        }
    }

    /// All that fire go on.
    pub(super) fn write(&self, at: Moment, store: &mut SeriesStore) {
        for slot in self.slots.iter().filter(|slot| slot.holders > 0) {
            store.append(slot.id, at.timeline_ms(), Reading::Value(1.0));
        }
    }
}

/// As Prometheus names the series of an alert that fires.
fn key(labels: &BTreeMap<Arc<str>, Arc<str>>) -> SeriesKey {
    let state = (Arc::from("alertstate"), Arc::from("firing"));
    let labels = labels.iter().map(|(name, value)| (Arc::clone(name), Arc::clone(value)));
    let mut all: Vec<(Arc<str>, Arc<str>)> = labels.chain([state]).collect();
    all.sort();
    SeriesKey { name: Arc::from(ALERTS), labels: Labels::from(all) }
}

/// What is counted of posts.
#[derive(Debug)]
pub(super) struct ReceivedCells {
    firing: Cell,
    turns: [Cell; ReceivedTurn::ALL.len()],
    ignored: [Cell; ReceivedIgnored::ALL.len()],
    posts: Cell,
    last_post: Cell,
    unusable_labels: Cell,
    truncated: Cell,
}

impl ReceivedCells {
    pub(super) fn new(counters: &mut Counters, store: &mut SeriesStore) -> Self {
        let mut cell = |name: &str, labels: &[(&str, &str)]| {
            counters.cell(store, &SeriesKey::new(name, labels))
        };
        let cells = Self {
            firing: cell("uma_received_alerts", &[]),
            turns: ReceivedTurn::ALL
                .map(|to| cell("uma_received_alert_turns_total", &[("to", to.name())])),
            ignored: ReceivedIgnored::ALL.map(|reason| {
                cell("uma_received_alerts_ignored_total", &[("reason", reason.name())])
            }),
            posts: cell("uma_received_posts_total", &[]),
            last_post: cell("uma_received_last_post_timestamp_seconds", &[]),
            unusable_labels: cell("uma_received_labels_left_out_total", &[]),
            truncated: cell("uma_received_alerts_truncated_total", &[]),
        };
        // Nothing was ever posted.
        counters.retire(cells.last_post);
        cells
    }

    #[expect(clippy::cast_precision_loss, reason = "milliseconds since 1970, and small counts")]
    pub(super) fn count_post(&self, post: &ReceivedAlerts, at: Moment, counters: &mut Counters) {
        counters.add(self.posts, 1.0);
        counters.set(self.last_post, at.utc_ms() as f64 / 1_000.0);
        counters.add(self.unusable_labels, post.unusable_labels as f64);
        counters.add(self.truncated, post.truncated as f64);
    }

    pub(super) fn count_turn(&self, to: ReceivedTurn, counters: &mut Counters) {
        let place = ReceivedTurn::ALL.iter().position(|known| *known == to);
        if let Some(cell) = place.and_then(|place| self.turns.get(place)) {
            counters.add(*cell, 1.0);
        }
    }

    pub(super) fn count_ignored(&self, why: ReceivedIgnored, counters: &mut Counters) {
        let place = ReceivedIgnored::ALL.iter().position(|known| *known == why);
        if let Some(cell) = place.and_then(|place| self.ignored.get(place)) {
            counters.add(*cell, 1.0);
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "a small count")]
    pub(super) fn set_firing(&self, firing: usize, counters: &mut Counters) {
        counters.set(self.firing, firing as f64);
    }
}
