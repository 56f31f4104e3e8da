//! Foreign alerts, and an Alertmanager that posts them: late, twice, truncated, out of order, with
//! odd labels and by wrong clocks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use umawarden::model::{ReceivedAlert, ReceivedAlerts, ReceivedStatus};

use super::chance::Chance;
use super::disturbance::Kind;

/// Names of foreign alerts; one has no name at all.
pub const ALERTNAMES: [&str; 3] = ["Hot", "Calm", "Watchdog"];

/// Alerts that fire again and again.
const ALERTS: u64 = 14;

/// Past posts that may be posted again, late.
const REMEMBERED: usize = 40;

/// Alerts of one flood: about the limits for series and for known alerts.
const FLOODS: [u64; 7] = [20, 240, 251, 300, 700, 1_900, 2_100];

pub struct Alertmanager {
    alerts: Vec<ReceivedAlert>,
    posted: Vec<ReceivedAlert>,
    /// Those of the last flood that have not ended.
    flood: Vec<ReceivedAlert>,
    floods: u64,
}

impl Alertmanager {
    pub fn new(mut chance: Chance) -> Self {
        let alerts = (0..ALERTS).map(|number| ReceivedAlert {
            fingerprint: format!("{number:016x}").into(),
            status: ReceivedStatus::Resolved,
            starts_at: Timestamp::UNIX_EPOCH,
            ends_at: None,
            labels: labels(&mut chance, number),
            by: None,
        });
        Self { alerts: alerts.collect(), posted: Vec::new(), flood: Vec::new(), floods: 0 }
    }

    /// The next posts.
    pub fn disturb(
        &mut self,
        kind: Kind,
        chance: &mut Chance,
        utc: Timestamp,
        beat: Duration,
    ) -> Vec<ReceivedAlerts> {
        match kind {
            Kind::Flood => self.flood(chance, utc),
            _ => self.post(chance, utc, beat),
        }
    }

    /// A few alerts begin, end or go on; each is once in a post, or twice in the same form.
    fn post(&mut self, chance: &mut Chance, utc: Timestamp, beat: Duration) -> Vec<ReceivedAlerts> {
        let mut latest: BTreeMap<usize, ReceivedAlert> = BTreeMap::new();
        for _ in 0..chance.whole(0..=4) {
            let number = chance.whole(0..=ALERTS - 1) as usize;
            let Some(alert) = self.alerts.get_mut(number) else { continue };
            turn(alert, chance, utc, beat);
            let mut posted = alert.clone();
            if chance.once_in(12) {
                posted.labels = labels(chance, chance_number(number));
            }
            latest.insert(number, posted);
        }
        let mut posts = vec![latest.into_values().collect::<Vec<_>>()];
        if chance.once_in(4) && !self.posted.is_empty() {
            posts.push(vec![chance.one_of(&self.posted).clone()]);
        }
        self.posted.extend(posts.iter().flatten().cloned());
        let over = self.posted.len().saturating_sub(REMEMBERED);
        self.posted.drain(..over);
        let mut made = Vec::new();
        for mut alerts in posts {
            if chance.once_in(4) {
                alerts = alerts.into_iter().flat_map(|alert| [alert.clone(), alert]).collect();
            }
            let times = if chance.once_in(4) { 2 } else { 1 };
            made.extend(std::iter::repeat_n(post(alerts, chance), times));
        }
        made
    }

    /// The last flood ends or is never repeated; or a new one begins.
    fn flood(&mut self, chance: &mut Chance, utc: Timestamp) -> Vec<ReceivedAlerts> {
        let mut last = std::mem::take(&mut self.flood);
        if !last.is_empty() {
            if chance.once_in(3) {
                return Vec::new();
            }
            for alert in &mut last {
                alert.status = ReceivedStatus::Resolved;
                alert.ends_at = Some(utc);
            }
            return vec![post(last, chance)];
        }
        self.floods += 1;
        let count = *chance.one_of(&FLOODS);
        let alerts = (0..count).map(|number| {
            let mut labels = labels(chance, number);
            let name = format!("{}-{number}", self.floods);
            labels.insert(Arc::from("instance"), Arc::from(name.as_str()));
            ReceivedAlert {
                fingerprint: format!("f{}x{number}", self.floods).into(),
                status: ReceivedStatus::Firing,
                starts_at: utc,
                ends_at: None,
                labels,
                by: None,
            }
        });
        self.flood = alerts.collect();
        vec![post(self.flood.clone(), chance)]
    }
}

/// Any of them, as labels of another alert.
fn chance_number(number: usize) -> u64 {
    number as u64 + 1
}

fn post(alerts: Vec<ReceivedAlert>, chance: &mut Chance) -> ReceivedAlerts {
    let (unusable_labels, truncated) = match chance.once_in(5) {
        true => (chance.whole(0..=3), chance.whole(0..=u64::from(u32::MAX))),
        false => (0, 0),
    };
    let alerts = alerts.into_iter().map(Arc::new).collect();
    ReceivedAlerts { alerts, is_rest: chance.once_in(5), unusable_labels, truncated }
}

/// The alert begins, ends, or is repeated.
fn turn(alert: &mut ReceivedAlert, chance: &mut Chance, utc: Timestamp, beat: Duration) {
    let fires = alert.status == ReceivedStatus::Firing;
    match (fires, chance.whole(0..=3)) {
        (true, 0 | 1) => {
            alert.status = ReceivedStatus::Resolved;
            alert.ends_at = ends_at(chance, utc, beat);
        }
        (true, 2) => alert.ends_at = ends_at(chance, utc, beat),
        // Its end was lost, and it has begun again.
        (true, _) if chance.once_in(3) => alert.starts_at = starts_at(chance, utc),
        (true, _) => {}
        (false, 0) => {}
        (false, _) => {
            alert.status = ReceivedStatus::Firing;
            alert.starts_at = starts_at(chance, utc);
            alert.ends_at = ends_at(chance, utc, beat).filter(|_| chance.once_in(2));
        }
    }
}

fn starts_at(chance: &mut Chance, utc: Timestamp) -> Timestamp {
    let seconds = match chance.whole(0..=9) {
        0 => return Timestamp::UNIX_EPOCH,
        1 => return *chance.one_of(&[Timestamp::MIN, Timestamp::MAX]),
        2 => *chance.one_of(&[-86_400 * 400, -3_600, 3_600, 86_400 * 400]),
        _ => -(chance.whole(0..=30) as i64),
    };
    utc + SignedDuration::from_secs(seconds)
}

fn ends_at(chance: &mut Chance, utc: Timestamp, beat: Duration) -> Option<Timestamp> {
    let beats = SignedDuration::try_from(chance.until(beat * 20)).unwrap();
    match chance.whole(0..=7) {
        0 => None,
        1 => Some(utc - beats),
        2 => Some(Timestamp::MAX),
        3 => Some(Timestamp::MIN),
        4 => Some(utc),
        _ => Some(utc + beats),
    }
}

fn labels(chance: &mut Chance, number: u64) -> BTreeMap<Arc<str>, Arc<str>> {
    let mut labels = BTreeMap::new();
    let mut add = |name: &str, value: &str| {
        labels.insert(Arc::from(name), Arc::from(value));
    };
    if !chance.once_in(8) {
        add("alertname", chance.one_of::<&str>(&ALERTNAMES));
    }
    if !chance.once_in(4) {
        add("team", chance.one_of::<&str>(&["a", "b"]));
    }
    if !chance.once_in(3) {
        add("node", chance.one_of::<&str>(&["here", "node-1", "node-2"]));
    }
    if !chance.once_in(5) {
        add("number", &number.to_string());
    }
    match chance.whole(0..=9) {
        0 => add("instance", "a\"b\\c\n{}\u{202e}ü"),
        1 => add("cluster", "elsewhere"),
        2 => add("summary", &"x".repeat(1_024)),
        3 => add("le", "NaN"),
        _ => {}
    }
    labels
}
