//! Sends this node's alerts to Alertmanagers, and receives the alerts that they post.
//!
//! One thread tracks the states of rules, and one for each Alertmanager sends. The loop only hands
//! over decisions, and waits for none of them.

mod current;
mod schedule;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use anyhow::Context;
use arc_swap::ArcSwap;
use serde_json::Value;

use self::current::{CurrentAlerts, Outgoing};
use self::schedule::Schedule;
use super::clock;
use super::nvsentinel::HealthReports;
use super::wake::Wake;
use crate::clients::alertmanager;
use crate::config::settings::Settings;
use crate::exports::AlertInbox;
use crate::model::{
    AlertSending, AlertmanagerServer, DecisionRecord, Moment, Observation, Reading, Readings,
    Schema, SentDecisions, SeriesKey, Source,
};
use crate::policy::status::Status;

/// How often the states of rules are read.
const UPDATE_EVERY: Duration = Duration::from_secs(1);

/// Posted alerts in one step; more wait for the next turn of the loop.
const POSTED_A_TURN: usize = 100;

/// Decisions in the queue.
const DECISIONS: usize = 64;

const ALERTS_A_POST: usize = 64;

/// A firing alert ends after this many resend intervals: two posts may be lost.
const RESENDS_MISSED: u32 = 4;

/// The loop's handle.
#[derive(Debug)]
pub(super) struct Alerting {
    which: SentDecisions,
    to: Option<SyncSender<Box<DecisionRecord>>>,
    tally: Arc<AlertingTally>,
    servers: Vec<Arc<ServerTally>>,
    /// The queue of posted alerts.
    inbox: Arc<AlertInbox>,
    /// Whether posts wait until the journal has capacity for them.
    pub(super) posts_are_held: bool,
    schema: Arc<Schema>,
    /// Those for NVSentinel.
    pub(super) health_reports: HealthReports,
}

/// Counters of all Alertmanagers.
#[derive(Debug, Default)]
struct AlertingTally {
    firing: AtomicU64,
    resolved: AtomicU64,
    left_out: AtomicU64,
    decisions_left_out: AtomicU64,
}

/// Counters of one Alertmanager.
#[derive(Debug, Default)]
struct ServerTally {
    sent: AtomicU64,
    failed: AtomicU64,
    /// The time of the last success, in milliseconds since 1970; 0: never.
    succeeded_ms: AtomicI64,
    /// The result of the last post: 0 none yet, 1 failed, 2 accepted.
    last: AtomicU64,
    took_us: AtomicU64,
}

/// The current set.
#[derive(Debug, Default)]
struct AlertingShared {
    set: Mutex<Set>,
    has_changed: Condvar,
}

#[derive(Clone, Debug, Default)]
struct Set {
    /// Increases when the set of firing alerts changes.
    version: u64,
    alerts: Arc<[Outgoing]>,
}

/// Sent with every alert.
#[derive(Clone, Debug)]
struct SendSettings {
    resend_every: Duration,
    generator: String,
}

impl Alerting {
    /// Starts the threads, if Alertmanagers are configured.
    pub(super) fn start(
        settings: &Settings,
        status: &Arc<ArcSwap<Status>>,
        wake: Wake,
    ) -> anyhow::Result<Self> {
        let sending = &settings.alertmanager.sending;
        let servers: Vec<Arc<ServerTally>> = sending.to.iter().map(|_| Arc::default()).collect();
        let mut alerting = Self {
            which: sending.decisions,
            to: None,
            tally: Arc::default(),
            inbox: Arc::new(AlertInbox::new(move || wake.notify())),
            posts_are_held: false,
            schema: Arc::new(Schema { series: series(sending) }),
            servers,
            health_reports: HealthReports::start(settings.nvsentinel.as_ref(), status)?,
        };
        if sending.to.is_empty() {
            return Ok(alerting);
        }
        let (to, decisions) = sync_channel(DECISIONS);
        alerting.to = Some(to);
        let shared = Arc::<AlertingShared>::default();
        let node = node_name();
        let settings = SendSettings {
            resend_every: sending.resend_every,
            generator: generator(settings, &node),
        };
        for (server, tally) in sending.to.iter().zip(&alerting.servers) {
            let (server, tally) = (server.clone(), Arc::clone(tally));
            let (shared, settings) = (Arc::clone(&shared), settings.clone());
            Builder::new()
                .name("alertmanager-to".to_owned())
                .spawn(move || send_loop(&server, &shared, &settings, &tally))
                .context("cannot start a thread that sends alerts")?;
        }
        let mut current = CurrentAlerts::new(common_labels(sending, &node));
        let (status, tally) = (Arc::clone(status), Arc::clone(&alerting.tally));
        Builder::new()
            .name("alertmanager".to_owned())
            .spawn(move || update_loop(&mut current, &status, &decisions, &shared, &tally))
            .context("cannot start the thread that tracks alerts")?;
        Ok(alerting)
    }

    /// The queue of posts, which wakes the loop.
    pub(super) fn inbox(&self) -> Arc<AlertInbox> {
        Arc::clone(&self.inbox)
    }

    /// Takes posts. Returns whether there are more. Never blocks.
    pub(super) fn take(&self, seen: &mut Vec<Observation>) -> bool {
        self.inbox.take(POSTED_A_TURN, |post| {
            seen.push(Observation::ReceivedAlerts(Box::new(post)));
        })
    }

    /// Whether posts wait.
    pub(super) fn has_posts(&self) -> bool {
        !self.inbox.is_empty()
    }

    /// Accepts no more posts.
    pub(super) fn close(&self) {
        self.inbox.close();
    }

    /// Takes the remaining posts after the close. Returns whether there are more.
    pub(super) fn take_rest(&self, seen: &mut Vec<Observation>) -> bool {
        self.inbox.take_rest(POSTED_A_TURN, |post| {
            seen.push(Observation::ReceivedAlerts(Box::new(post)));
        })
    }

    /// Hands over a decision. Never blocks.
    pub(super) fn decided(&self, decision: &DecisionRecord) {
        let is_sent = match self.which {
            SentDecisions::None => false,
            // An announced act can be denied only by somebody who knows of it.
            SentDecisions::Acts => decision.is_act() || decision.goes_ahead.is_some(),
            SentDecisions::All => true,
        };
        if let Some(to) = self.to.as_ref().filter(|_| is_sent)
            && to.try_send(Box::new(decision.clone())).is_err()
        {
            self.tally.decisions_left_out.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The metrics.
    #[expect(clippy::cast_precision_loss, reason = "small counts and times")]
    pub(super) fn readings(&self) -> Readings {
        let mut values = Vec::with_capacity(self.schema.series.len());
        values.extend(self.inbox.refused().map(|count| Reading::Value(count as f64)));
        if self.to.is_some() {
            let AlertingTally { firing, resolved, left_out, decisions_left_out } = &*self.tally;
            let all = [firing, resolved, left_out, decisions_left_out];
            values.extend(all.map(|count| Reading::Value(count.load(Ordering::Relaxed) as f64)));
        }
        for server in &self.servers {
            values.extend(server.values());
        }
        Readings {
            source: Source::Alertmanager,
            schema: Arc::clone(&self.schema),
            values,
            took: Duration::ZERO,
            error: None,
        }
    }
}

impl ServerTally {
    /// In the order of [`series`].
    #[expect(clippy::cast_precision_loss, reason = "small counts and times")]
    fn values(&self) -> [Reading<f64>; 5] {
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        let succeeded_ms = self.succeeded_ms.load(Ordering::Relaxed);
        let last = count(&self.last);
        let duration = (last > 0).then(|| count(&self.took_us) as f64 / 1e6);
        [
            (last > 0).then_some(f64::from(last == 2)).into(),
            Reading::Value(count(&self.sent) as f64),
            Reading::Value(count(&self.failed) as f64),
            (succeeded_ms > 0).then_some(succeeded_ms as f64 / 1e3).into(),
            duration.into(),
        ]
    }
}

impl AlertingShared {
    /// The current set; returns after `patience`, or when the set of firing alerts differs from
    /// this version.
    fn wait(&self, version: u64, patience: Duration) -> Set {
        let set = self.set.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same = |set: &mut Set| set.version == version;
        let waited = self.has_changed.wait_timeout_while(set, patience, is_same);
        waited.unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    fn now(&self) -> Set {
        self.set.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, alerts: Vec<Outgoing>, has_changed: bool) {
        let mut set = self.set.lock().unwrap_or_else(PoisonError::into_inner);
        set.alerts = alerts.into();
        if has_changed {
            set.version += 1;
            self.has_changed.notify_all();
        }
    }
}

/// The series of [`Alerting::readings`].
fn series(sending: &AlertSending) -> Vec<SeriesKey> {
    let refused = ["malformed", "too_large", "busy"]
        .map(|reason| SeriesKey::new("uma_received_posts_refused_total", &[("reason", reason)]));
    let mut series = refused.to_vec();
    if !sending.to.is_empty() {
        for state in ["firing", "resolved"] {
            series.push(SeriesKey::new("uma_alertmanager_alerts", &[("state", state)]));
        }
        series.push(SeriesKey::new("uma_alertmanager_alerts_left_out", &[]));
        series.push(SeriesKey::new("uma_alertmanager_decisions_left_out_total", &[]));
    }
    for server in &sending.to {
        let label = server.to_string();
        for name in [
            "uma_alertmanager_up",
            "uma_alertmanager_sent_alerts_total",
            "uma_alertmanager_posts_failed_total",
            "uma_alertmanager_last_success_timestamp_seconds",
            "uma_alertmanager_post_duration_seconds",
        ] {
            series.push(SeriesKey::new(name, &[("alertmanager", &label)]));
        }
    }
    series
}

/// The name of this node: `NODE_NAME` of the environment, which a pod gets from Kubernetes, or the
/// machine's. A pod may have a host name of its own.
pub(super) fn node_name() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    first_name([std::env::var("NODE_NAME").ok(), Some(host)])
}

fn first_name(names: [Option<String>; 2]) -> String {
    let is_name = |name: &String| !name.is_empty() && !name.contains(char::is_control);
    let name = names.into_iter().flatten().find(is_name);
    name.unwrap_or_else(|| "localhost".to_owned())
}

/// The URL of this node's page.
fn generator(settings: &Settings, node: &str) -> String {
    let base = settings.web.external_url.clone().unwrap_or_else(|| {
        let port = settings.web.listen.first().map_or(0, |address| address.port);
        format!("http://{node}:{port}")
    });
    format!("{base}/")
}

/// The labels of all alerts. The node is added unless configured otherwise.
fn common_labels(sending: &AlertSending, node: &str) -> BTreeMap<Arc<str>, Arc<str>> {
    let mut labels = BTreeMap::from([(Arc::from("instance"), Arc::from(node))]);
    labels.extend(sending.labels.clone());
    labels
}

/// Ends with the loop, which has the other end of `decisions`.
fn update_loop(
    current: &mut CurrentAlerts,
    status: &ArcSwap<Status>,
    decisions: &Receiver<Box<DecisionRecord>>,
    shared: &AlertingShared,
    tally: &AlertingTally,
) {
    loop {
        let first = decisions.recv_timeout(UPDATE_EVERY);
        if matches!(first, Err(RecvTimeoutError::Disconnected)) {
            return;
        }
        let at = clock::now();
        let mut has_changed = false;
        for decision in first.into_iter().chain(decisions.try_iter().take(DECISIONS)) {
            has_changed |= current.decide(at, &decision);
        }
        has_changed |= current.update(at, &status.load().rules);
        shared.set(current.outgoing(), has_changed);
        let counts = [&tally.firing, &tally.resolved, &tally.left_out];
        for (to, count) in counts.into_iter().zip(current.counts()) {
            to.store(count as u64, Ordering::Relaxed);
        }
    }
}

/// Ends with the program, which does not wait for this thread.
fn send_loop(
    server: &AlertmanagerServer,
    shared: &AlertingShared,
    settings: &SendSettings,
    tally: &ServerTally,
) {
    let mut schedule = Schedule::default();
    loop {
        let mut set = shared.now();
        while let Some(patience) = schedule.waits(clock::uptime(), set.version) {
            set = shared.wait(set.version, patience);
        }
        let began = clock::uptime();
        match send(server, &set, settings, tally) {
            Ok(()) => {
                if schedule.has_failed() {
                    tracing::info!(alertmanager = %server, "Alertmanager accepts alerts again");
                }
                schedule.succeeded(clock::uptime(), set.version, settings.resend_every);
            }
            Err(error) => {
                if !schedule.has_failed() {
                    tracing::warn!(
                        alertmanager = %server,
                        error = error.to_string(),
                        "cannot send alerts, retrying"
                    );
                }
                schedule.failed(clock::uptime(), settings.resend_every, chance(began));
            }
        }
    }
}

/// Sends the whole set.
fn send(
    server: &AlertmanagerServer,
    set: &Set,
    settings: &SendSettings,
    tally: &ServerTally,
) -> Result<(), alertmanager::PostError> {
    let mut refused = None;
    for alerts in set.alerts.chunks(ALERTS_A_POST) {
        let began = clock::now();
        let sent = alertmanager::post(server, &body(alerts, began, settings));
        let ended = clock::now();
        let took = ended.uptime.saturating_sub(began.uptime);
        let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        tally.took_us.store(took_us, Ordering::Relaxed);
        tally.last.store(if sent.is_ok() { 2 } else { 1 }, Ordering::Relaxed);
        match sent {
            Ok(()) => _ = tally.sent.fetch_add(alerts.len() as u64, Ordering::Relaxed),
            Err(error) => {
                tally.failed.fetch_add(1, Ordering::Relaxed);
                if !error.is_of_this_post() {
                    return Err(error);
                }
                refused = Some(error);
                continue;
            }
        }
        tally.succeeded_ms.store(ended.utc_ms(), Ordering::Relaxed);
    }
    refused.map_or(Ok(()), Err)
}

fn body(alerts: &[Outgoing], now: Moment, settings: &SendSettings) -> Value {
    let lasts = settings.resend_every * RESENDS_MISSED;
    alerts.iter().map(|alert| alert.json(now.utc, lasts, &settings.generator)).collect()
}

/// A random number from 0 to 1.
#[expect(clippy::cast_precision_loss, reason = "any number will do")]
fn chance(seed: Duration) -> f64 {
    RandomState::new().hash_one(seed) as f64 / u64::MAX as f64
}
