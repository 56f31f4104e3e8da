//! Reports a launched engine to the daemon of this node, if there is one: again and again, since
//! the daemon may start later; and finally the cause of death.
//!
//! It has a thread of its own, since the daemon may hang.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::cli::control::{ClientError, ControlClient};
use crate::model::{
    Action, DeathReport, DecisionRecord, EnginePhase, Mode, Outcome, ProcessId, Target,
};
use crate::policy::death::OwnStop;

/// Between two reports. The last phase is at most this old.
const BEAT: Duration = Duration::from_secs(2);

/// Timeout of one report. The last one has a longer timeout, since it is written to disk.
const PATIENCE: Duration = Duration::from_secs(3);
const PATIENCE_AT_LAST: Duration = Duration::from_secs(6);

/// The daemon's limit of a request.
const MOST_BODY_BYTES: usize = 15 << 10;

#[derive(Clone, Debug, Default)]
struct LinkState {
    phase: Option<EnginePhase>,
    /// Why the daemon cannot be reached.
    trouble: Option<String>,
    is_reported: bool,
}

/// The connection to the daemon.
#[derive(Debug)]
pub(super) struct DaemonLink {
    client: ControlClient,
    known: Arc<Mutex<LinkState>>,
    ends: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl DaemonLink {
    /// For the daemon there, which may not exist.
    pub(super) fn new(client: ControlClient) -> Self {
        Self { client, known: Arc::default(), ends: None, thread: None }
    }

    /// Starts to report the process.
    pub(super) fn begin(&mut self, name: &str, head: ProcessId) {
        let (ends, end) = channel();
        let (client, known) =
            (self.client.clone().with_patience(PATIENCE), Arc::clone(&self.known));
        let body = json!({ "name": name, "pid": head.pid, "start_ticks": head.start_ticks });
        let printer = move || beat(&client, &known, &body, &end);
        // Without the thread the daemon gets no reports, and the command runs.
        match Builder::new().name("daemon-link".to_owned()).spawn(printer) {
            Ok(thread) => (self.ends, self.thread) = (Some(ends), Some(thread)),
            Err(error) => self.set(|known| known.trouble = Some(error.to_string())),
        }
    }

    /// The last phase that the daemon saw before the end.
    pub(super) fn phase(&self) -> Option<EnginePhase> {
        self.get().phase
    }

    /// Why the daemon does not know the engine.
    pub(super) fn trouble(&self) -> Option<String> {
        let known = self.get();
        known.trouble.filter(|_| !known.is_reported)
    }

    /// Stops reporting, except for the death.
    pub(super) fn stop(&mut self) {
        self.ends = None;
        if let Some(thread) = self.thread.take() {
            // At most the timeout of a request.
            let _ = thread.join();
        }
    }

    /// Engines that the daemon has stopped since.
    pub(super) fn own_stops(&self, since: Timestamp) -> Result<Vec<OwnStop>, String> {
        let target = format!("/api/v1/decisions?limit=500&since={since:.0}");
        let response = self.client.clone().with_patience(PATIENCE).request("GET", &target, None);
        let reply = response.map_err(|error| error.to_string())?;
        let decisions = reply.data.get("decisions").and_then(Value::as_array);
        Ok(decisions.into_iter().flatten().filter_map(own_stop).collect())
    }

    /// Sends the report to be recorded.
    pub(super) fn keep(&self, report: &DeathReport) -> Result<(), String> {
        let client = self.client.clone().with_patience(PATIENCE_AT_LAST);
        let body = short(report);
        let response = client.request("POST", "/api/v1/deaths", Some(&body));
        let reply = response.map_err(|error| error.to_string())?;
        if reply.status == 200 { Ok(()) } else { Err(reply.problem) }
    }

    fn get(&self) -> LinkState {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, change: impl FnOnce(&mut LinkState)) {
        change(&mut self.known.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

fn beat(client: &ControlClient, known: &Mutex<LinkState>, body: &Value, end: &Receiver<()>) {
    loop {
        let response = client.request("PUT", "/api/v1/launches", Some(body));
        let set = |change: &dyn Fn(&mut LinkState)| {
            change(&mut known.lock().unwrap_or_else(PoisonError::into_inner));
        };
        match response {
            Ok(reply) if reply.status == 200 => {
                let phase = serde_json::from_value(reply.data["phase"].clone()).ok();
                // The phase before stopping is the relevant one.
                let is_life = |phase: &EnginePhase| !phase.is_ending();
                set(&|known| {
                    known.is_reported = true;
                    known.phase = phase.filter(is_life).or(known.phase);
                });
            }
            Ok(reply) => set(&|known| known.trouble = Some(reply.problem.clone())),
            Err(error) => set(&|known| known.trouble = Some(words(&error))),
        }
        match end.recv_timeout(BEAT) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn words(error: &ClientError) -> String {
    match error {
        ClientError::Absent(_) => "no daemon runs here".to_owned(),
        ClientError::Forbidden(path) => {
            format!(
                "this user may not connect to the daemon: only its owner may open {}",
                path.display()
            )
        }
        error => error.to_string(),
    }
}

/// An act that stopped an engine, from the daemon's decisions.
fn own_stop(item: &Value) -> Option<OwnStop> {
    let decision: DecisionRecord = serde_json::from_value(item.clone()).ok()?;
    let outcome: Option<Outcome> = serde_json::from_value(item["outcome"].clone()).ok();
    let is_stop = matches!(decision.action, Action::StopEngine { .. });
    let is_done = decision.mode == Mode::Enforce && decision.is_act();
    // An act without an outcome may have stopped it.
    let is_void = outcome.is_some_and(|outcome| !outcome.may_have_ended());
    let Target::Engine(engine) = decision.target else { return None };
    (is_stop && is_done && !is_void).then_some(OwnStop {
        is_for_start: false,
        is_for_lost_rank: false,
        decision: Some(decision.id),
        rule: Some(decision.rule),
        at: decision.at,
        processes: engine.processes,
    })
}

/// The report with fewer proofs, so that it fits into a request.
fn short(report: &DeathReport) -> Value {
    let mut report = report.clone();
    loop {
        let body = json!(report);
        let is_short = body.to_string().len() <= MOST_BODY_BYTES;
        if is_short {
            return body;
        }
        let longest = [
            report.proofs.pop().is_some(),
            report.orphans.len() > 4 && report.orphans.pop().is_some(),
            report.killed_workers.len() > 4 && report.killed_workers.pop().is_some(),
        ];
        if longest == [false; 3] {
            return body;
        }
    }
}
