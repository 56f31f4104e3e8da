//! Passes the acts of earlier runs from the journal to the policy, as soon as they can be read.
//!
//! A thread reads the journal, so that the loop waits for no disk. Until the past is known,
//! everything holds.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use anyhow::Context;
use jiff::{Timestamp, ToSpan};

use super::clock;
use super::wake::Wake;
use crate::journal::{Journal, JournalReader, StoredAct};
use crate::model::{DecisionRecord, EarlierRuns, Moment, Observation, PastAct, PendingApproval};
use crate::policy::guard::{LONGEST_APPROVAL_EXPIRES, PastMoment, on_this_boots_clock};

/// How long the start waits, so that the first decisions know the past.
const START_WAITS: Duration = Duration::from_secs(5);

/// How long one attempt waits for the journal's writer.
const WRITER_TAKES: Duration = Duration::from_secs(5);

/// Earlier loads of an engine that later ones are compared with.
const LOADS_OF_ENGINE: usize = 8;

/// First and longest pause between attempts.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// What the reader needs.
pub(super) struct Search {
    /// The journal's folder.
    pub(super) storage: PathBuf,
    pub(super) journal: Arc<Journal>,
    /// The id of this boot's kernel log.
    pub(super) boot_id: Arc<str>,
    /// The id of this boot, if known.
    pub(super) boot: Option<Arc<str>>,
}

/// Receives the past, once.
#[derive(Debug)]
pub(super) struct PastReceiver {
    from: Receiver<Option<EarlierRuns>>,
}

impl Search {
    /// Starts the reader, and waits a moment for the result.
    pub(super) fn start(self, wake: Wake) -> anyhow::Result<(PastReceiver, Option<Observation>)> {
        let (to, from) = channel();
        std::thread::Builder::new()
            .name("past".to_owned())
            .spawn(move || self.run(&to, &wake))
            .context("cannot start the thread that reads what earlier runs did")?;
        // If the first attempt fails, the loop starts without waiting for the next.
        let found = from.recv_timeout(START_WAITS).ok().flatten().map(observation);
        if found.is_none() {
            tracing::error!(
                effect = "nothing but watching is done until the journal can be read",
                "what earlier runs did is unknown"
            );
        }
        Ok((PastReceiver { from }, found))
    }

    fn run(&self, to: &Sender<Option<EarlierRuns>>, wake: &Wake) {
        let mut pause = FIRST_PAUSE;
        let mut logged = String::new();
        loop {
            match self.read() {
                Ok(past) => {
                    // The loop may have ended.
                    if to.send(Some(past)).is_ok() {
                        wake.notify();
                    }
                    return;
                }
                Err(error) => {
                    let again_in = pause;
                    let error = format!("{error:#}");
                    if error == logged {
                        tracing::debug!(?again_in, error, "cannot read the acts of earlier runs");
                    } else {
                        tracing::warn!(?again_in, error, "cannot read the acts of earlier runs");
                        logged.clone_from(&error);
                    }
                    if to.send(None).is_err() {
                        return;
                    }
                }
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn read(&self) -> anyhow::Result<EarlierRuns> {
        let begins_after = self.journal.boot_begins_after(&self.boot_id, WRITER_TAKES)?;
        let reader = JournalReader::open(&self.storage)?;
        let now = clock::now();
        let acts = reader.acts(None)?;
        // A question is denied while it is open, for as long again at most.
        let reach = i64::try_from(LONGEST_APPROVAL_EXPIRES.as_secs()).unwrap_or(i64::MAX);
        let since = now.utc.checked_sub((2 * reach).seconds()).unwrap_or(Timestamp::MIN);
        let asked = reader.asked_for_approval(since)?;
        let mut open = Vec::new();
        for (position, decision) in asked {
            // Of another boot, or of an alert that has ended since: it is announced anew.
            let is_over = decision.goes_ahead.is_some()
                && (position <= begins_after || reader.has_ended_since(&decision)?);
            open.extend((!is_over).then(|| asked_for(decision)));
        }
        let restarts = reader.restarts()?;
        Ok(EarlierRuns {
            acts: past_acts(now, begins_after, acts),
            asked: open,
            commands: self.journal.operator_memory(now.utc, WRITER_TAKES)?.commands,
            unaccounted_baselines: reader.unaccounted_baselines(&self.boot_id)?,
            restart_states: restarts.states,
            restart_ranks: restarts.ranks,
            loads: reader.loads(LOADS_OF_ENGINE)?,
            reboots: reader.reboots(self.boot.as_deref())?,
            received: reader.received()?,
            lost_before_ms: reader.lost_before()?.map(|lost| lost_before_ms(now, lost)),
        })
    }
}

impl PastReceiver {
    /// The past, if it has been read now.
    pub(super) fn take(&self) -> Option<Observation> {
        self.from.try_iter().flatten().next().map(observation)
    }
}

fn observation(past: EarlierRuns) -> Observation {
    tracing::debug!(acts = past.acts.len(), "past acts restored");
    Observation::Past(Box::new(past))
}

fn past_acts(now: Moment, begins_after: i64, acts: Vec<StoredAct>) -> Vec<PastAct> {
    let moment =
        |act: &StoredAct| PastMoment { at: act.at, is_this_boot: act.position > begins_after };
    let moments: Vec<PastMoment> = acts.iter().map(moment).collect();
    let uptimes = on_this_boots_clock(now, &moments);
    acts.into_iter().zip(uptimes).map(|(act, uptime)| act.on_uptime_clock(uptime)).collect()
}

/// The question of a decision. Its uptime is valid where the decision is of this boot.
fn asked_for(decision: DecisionRecord) -> PendingApproval {
    let Moment { utc, uptime } = decision.at;
    let goes_ahead = decision.goes_ahead.map(|due| {
        let left = Duration::try_from(due.duration_since(utc)).unwrap_or_default();
        Moment { utc: due, uptime: uptime.saturating_add(left) }
    });
    PendingApproval {
        decision: decision.id,
        rule: decision.rule,
        mode: decision.mode,
        step: decision.step,
        action: decision.action,
        target: decision.target,
        since: utc,
        goes_ahead,
    }
}

/// In another boot. Where the wall clock is not plausible, it counts as just now.
fn lost_before_ms(now: Moment, lost: Timestamp) -> i64 {
    let ago_ms = now.utc.as_millisecond().saturating_sub(lost.as_millisecond());
    now.timeline_ms().saturating_sub(ago_ms.max(0))
}
