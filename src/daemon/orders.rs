//! Carries out orders: validated, journalled, passed to the policy, confirmed. One at a time, on a
//! thread of its own.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use jiff::{SignedDuration, Timestamp};
use promql_rules::did_you_mean;
use serde_json::json;
use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_blocking;

use super::clock;
use super::pause::PauseWatch;
use super::service::{CommandSender, LoopCommand};
use crate::exports::{
    LONGEST, OrderDone, OrderKind, OrderPeriod, OrderRefused, OrderRequest, RuleChoice,
};
use crate::journal::{Journal, JournalEntry, Note};
use crate::model::{
    DecisionId, EnginePhase, LaunchedEngine, OperatorCommand, OperatorOrder, OrderedBy, Pause,
    RuleId, RuleSelector, author, because, remote_author,
};
use crate::policy::restarts;
use crate::policy::status::{ApprovalStatus, Status};

/// How long an order waits to be on disk.
const KEEPING_TAKES: Duration = Duration::from_secs(5);

/// How long a silence waits for its id, and a pause for its file.
const NUMBERING_TAKES: Duration = Duration::from_secs(2);
const WRITING_TAKES: Duration = Duration::from_secs(3);

/// How long to wait for a thread.
const SLACK: Duration = Duration::from_secs(1);

/// How long to wait for the name of a user: the lookup may use the network.
const NAMING_TAKES: Duration = Duration::from_secs(1);

/// The most silences at once.
const MOST_SILENCES: usize = 256;

/// The default validity of an approval.
const APPROVAL_LASTS: Duration = Duration::from_secs(600);

/// The default validity of a denial: the day of whoever is at it.
const DENIAL_LASTS: Duration = Duration::from_secs(12 * 3_600);

/// The longest denial. Questions are read from the journal for as long.
const LONGEST_DENIAL: SignedDuration = SignedDuration::from_hours(7 * 24);

/// Names in the error for an unknown one.
const MOST_NAMES: usize = 12;

type OrderResult = Result<OrderDone, OrderRefused>;

/// Carries out orders.
pub(super) struct Orders {
    pub(super) journal: Arc<Journal>,
    pub(super) status: Arc<ArcSwap<Status>>,
    pub(super) pause: PauseWatch,
    /// The highest used id of a silence.
    pub(super) last_silence: u64,
}

/// The user's name, if the system has one.
pub fn user_name(uid: u32) -> Option<String> {
    let user = uzers::get_user_by_uid(uid)?;
    let name: String = user.name().to_string_lossy().chars().filter(|c| !c.is_control()).collect();
    Some(name).filter(|name| !name.is_empty())
}

/// The author of an order, in words.
pub(super) async fn in_words(name: Option<&str>, by: OrderedBy) -> String {
    match by {
        OrderedBy::Local { uid } => {
            let user = tokio::time::timeout(NAMING_TAKES, spawn_blocking(move || user_name(uid)));
            let user = user.await.ok().and_then(Result::ok).flatten();
            author(name, user.as_deref(), uid)
        }
        OrderedBy::Remote { credential, address } => remote_author(name, &credential, address),
    }
}

impl Orders {
    /// Carries out orders until the queue closes.
    pub(super) async fn take(
        mut self,
        sender: CommandSender,
        mut requests: mpsc::Receiver<OrderRequest>,
    ) {
        while let Some(request) = requests.recv().await {
            let OrderRequest { kind, by, name, comment, answer } = request;
            let author = in_words(name.as_deref(), by).await;
            // A pause does not wait for a disk or another order.
            let pausing = Pausing {
                watch: self.pause.clone(),
                status: Arc::clone(&self.status),
                sender: sender.clone(),
            };
            let order = match kind {
                OrderKind::Pause => {
                    tokio::spawn(async move {
                        // The sender may have disconnected.
                        let _ = answer.send(pausing.pause(author, comment).await);
                    });
                    continue;
                }
                OrderKind::Resume => {
                    tokio::spawn(async move {
                        // The receiver may be gone.
                        let _ = answer.send(pausing.resume(&author).await);
                    });
                    continue;
                }
                OrderKind::Launched(engine) => {
                    let data = json!({ "phase": self.phase(&engine) });
                    sender.send(LoopCommand::Launched { engine });
                    // The receiver may be gone.
                    let _ = answer.send(Ok(OrderDone { data, remarks: Vec::new() }));
                    continue;
                }
                OrderKind::Died(report) => {
                    let data = json!({ "engine": report.who.name });
                    sender.send(LoopCommand::Died { report });
                    // The receiver may be gone.
                    let _ = answer.send(Ok(OrderDone { data, remarks: Vec::new() }));
                    continue;
                }
                OrderKind::Note => {
                    let note = Note { at: clock::now(), text: because(&author, &comment) };
                    self.journal.record(&JournalEntry::Note(note));
                    // The receiver may be gone.
                    let _ = answer.send(Ok(OrderDone::default()));
                    continue;
                }
                OrderKind::Silence { rules, lasts } => self.silence(rules, lasts).await,
                OrderKind::EndSilence { id } => self.end_silence(id),
                OrderKind::Approve { decision, lasts } => self.approve(decision, lasts),
                OrderKind::Deny { decision, lasts } => self.deny(decision, lasts),
                OrderKind::ResetBreaker { rules } => self.reset_breaker(rules),
                OrderKind::Reboot { delay, force } => Ok(OperatorOrder::Reboot { delay, force }),
                OrderKind::CancelReboot => Ok(OperatorOrder::CancelReboot),
                OrderKind::ClearReboots => Ok(OperatorOrder::ClearReboots),
            };
            let result = match order {
                Ok(order) => {
                    let at = clock::now();
                    let command = OperatorCommand { at, author, comment, order, refused: None };
                    self.journal_and_obey(&sender, command).await
                }
                Err(refused) => Err(refused),
            };
            // The receiver may be gone.
            let _ = answer.send(result);
        }
    }

    async fn silence(
        &mut self,
        rules: RuleChoice,
        lasts: OrderPeriod,
    ) -> Result<OperatorOrder, OrderRefused> {
        let status = self.status.load_full();
        if status.guard.silences.len() >= MOST_SILENCES {
            let text = format!("{MOST_SILENCES} silences are in force: end some first");
            return Err(OrderRefused::Conflict(text));
        }
        let rules = choose(rules, &status)?;
        let now = clock::now().utc;
        let until = end(lasts, now)?;
        Ok(OperatorOrder::Silence { id: self.next_silence(now).await, rules, until })
    }

    /// The last seen phase of an engine, if any.
    fn phase(&self, engine: &LaunchedEngine) -> Option<EnginePhase> {
        let status = self.status.load();
        let seen = status.engines.iter().find(|one| one.engine.server == engine.head);
        seen.map(|seen| seen.phase)
    }

    fn end_silence(&self, id: u64) -> Result<OperatorOrder, OrderRefused> {
        let silences = &self.status.load().guard.silences;
        if silences.iter().any(|silence| silence.id == id) {
            return Ok(OperatorOrder::EndSilence { id });
        }
        if (1..=self.last_silence).contains(&id) {
            return Err(OrderRefused::Conflict(format!("silence {id} is not in force any more")));
        }
        let ids = silences.iter().map(|silence| silence.id.to_string());
        Err(OrderRefused::NotFound(format!("there is no silence {id}{}", others("in force", ids))))
    }

    fn approve(
        &self,
        decision: DecisionId,
        lasts: Option<OrderPeriod>,
    ) -> Result<OperatorOrder, OrderRefused> {
        let pending = self.question(decision, not_waiting)?;
        if let Some(given_by) = &pending.given_by {
            let text = format!("decision {decision} was approved already, by {given_by}");
            return Err(OrderRefused::Conflict(text));
        }
        let until = end(lasts.unwrap_or(OrderPeriod::For(APPROVAL_LASTS)), clock::now().utc)?;
        Ok(OperatorOrder::Approve { decision, until })
    }

    fn deny(
        &self,
        decision: DecisionId,
        lasts: Option<OrderPeriod>,
    ) -> Result<OperatorOrder, OrderRefused> {
        if let Some(denied_by) = self.question(decision, not_deniable)?.denied_by {
            let text = format!("decision {decision} was denied already, by {denied_by}");
            return Err(OrderRefused::Conflict(text));
        }
        let now = clock::now().utc;
        let until = end(lasts.unwrap_or(OrderPeriod::For(DENIAL_LASTS)), now)?;
        if until.duration_since(now) > LONGEST_DENIAL {
            let text = "duration: a denial lasts at most 7d; a silence lasts longer";
            return Err(OrderRefused::Unusable(text.to_owned()));
        }
        Ok(OperatorOrder::Deny { decision, until })
    }

    /// The question that people are asked with that decision.
    fn question(
        &self,
        decision: DecisionId,
        unknown: fn(DecisionId, &[ApprovalStatus]) -> String,
    ) -> Result<ApprovalStatus, OrderRefused> {
        let approvals = &self.status.load().guard.approvals;
        let found = approvals.iter().find(|one| one.asked.decision == decision);
        found.cloned().ok_or_else(|| OrderRefused::NotFound(unknown(decision, approvals)))
    }

    fn reset_breaker(&self, rules: RuleChoice) -> Result<OperatorOrder, OrderRefused> {
        let status = self.status.load_full();
        let rules = choose(rules, &status)?;
        if status.guard.breakers.iter().any(|one| rules.selects(&one.rule)) {
            return Ok(OperatorOrder::ResetBreaker { rules });
        }
        let text = "its remedy has not missed its aim: there is nothing to reset";
        Err(OrderRefused::Conflict(text.to_owned()))
    }

    async fn journal_and_obey(
        &self,
        sender: &CommandSender,
        command: OperatorCommand,
    ) -> OrderResult {
        let mut remarks = Vec::new();
        if let Err(error) = self.keep(command.clone()).await {
            if matches!(command.order, OperatorOrder::Approve { .. }) {
                let text = format!("nothing is approved, since it could not be kept: {error}");
                return Err(OrderRefused::Failed(text));
            }
            remarks.push(format!(
                "it holds for as long as umawarden runs, and may not survive a restart: {error}"
            ));
        }
        let data = serde_json::to_value(&command).unwrap_or_default();
        let (reply, obeyed) = oneshot::channel();
        sender.send(LoopCommand::Obey { command: Box::new(command.clone()), reply });
        match obeyed.await {
            Ok(Ok(())) => Ok(OrderDone { data, remarks }),
            Ok(Err(why)) => {
                let refused = Some(why.clone());
                let kept = self.keep(OperatorCommand { refused, ..command }).await;
                let not_kept = kept.err().map(|error| format!("; the journal lacks that: {error}"));
                Err(OrderRefused::Conflict(why + &not_kept.unwrap_or_default()))
            }
            Err(_) => Err(ending()),
        }
    }

    async fn keep(&self, command: OperatorCommand) -> Result<(), String> {
        let journal = Arc::clone(&self.journal);
        within(KEEPING_TAKES + SLACK, move || {
            journal.keep_order(&command, KEEPING_TAKES).map_err(|error| error.to_string())
        })
        .await
    }

    /// Above every used id: from the journal, or from the time if it is unavailable.
    async fn next_silence(&mut self, now: Timestamp) -> u64 {
        let journal = Arc::clone(&self.journal);
        let memory = within(NUMBERING_TAKES + SLACK, move || {
            journal.operator_memory(now, NUMBERING_TAKES).map_err(|error| error.to_string())
        });
        let last = match memory.await {
            Ok(memory) => memory.last_silence,
            Err(_) => u64::try_from(now.as_millisecond()).unwrap_or(0),
        };
        self.last_silence = self.last_silence.max(last).saturating_add(1);
        self.last_silence
    }
}

/// Pauses and resumes.
struct Pausing {
    watch: PauseWatch,
    status: Arc<ArcSwap<Status>>,
    sender: CommandSender,
}

impl Pausing {
    async fn pause(&self, author: String, comment: String) -> OrderResult {
        if let Some(pause) = &self.status.load().guard.pause {
            let remarks =
                vec![format!("it was paused already, by {}: that pause stays", pause.author)];
            return Ok(OrderDone { data: json!({ "paused": true, "pause": pause }), remarks });
        }
        let pause = Pause { author, comment, since: Some(clock::now().utc) };
        let data = json!({ "paused": true, "pause": pause });
        // The loop finds this at its next sample. The file must exist even if it does not.
        self.watch.order(pause.clone());
        let switch = self.watch.switch();
        let mut remarks = Vec::new();
        if let Err(error) = within(WRITING_TAKES, move || switch.write(&pause)).await {
            remarks.push(format!(
                "it holds for as long as umawarden runs, and may not survive a restart: {error}"
            ));
        }
        self.check_pause().await?;
        Ok(OrderDone { data, remarks })
    }

    async fn resume(&self, author: &str) -> OrderResult {
        let was_held = self.status.load().guard.pause.is_some();
        self.watch.set_resumed_by(author);
        let switch = self.watch.switch();
        let resumed = within(WRITING_TAKES, move || switch.resume()).await;
        let was_paused = resumed.map_err(OrderRefused::Failed)?;
        let watch = self.watch.clone();
        within(WRITING_TAKES, move || {
            watch.check();
            Ok(())
        })
        .await
        .map_err(OrderRefused::Failed)?;
        self.check_pause().await?;
        if !was_paused && !was_held {
            return Err(OrderRefused::Conflict("it is not paused".to_owned()));
        }
        let still = self.status.load().guard.pause.clone();
        let mut remarks = Vec::new();
        if let Some(pause) = &still {
            remarks
                .push(format!("it is still paused, by {}", because(&pause.author, &pause.comment)));
        }
        Ok(OrderDone { data: json!({ "paused": still.is_some(), "pause": still }), remarks })
    }

    /// Has the loop pass the pause to the policy.
    async fn check_pause(&self) -> Result<(), OrderRefused> {
        let (reply, seen) = oneshot::channel();
        self.sender.send(LoopCommand::CheckPause { reply });
        seen.await.map_err(|_| ending())
    }
}

/// Runs work on a thread that is abandoned after a timeout.
async fn within<T: Send + 'static>(
    patience: Duration,
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    match tokio::time::timeout(patience, spawn_blocking(work)).await {
        Ok(Ok(done)) => done,
        Ok(Err(failure)) => Err(failure.to_string()),
        Err(_) => Err(format!("the disk has not answered within {} s", patience.as_secs())),
    }
}

fn ending() -> OrderRefused {
    OrderRefused::Failed("umawarden is ending".to_owned())
}

/// A list of the first existing names, for the error about an unknown one.
fn others(what: &str, names: impl ExactSizeIterator<Item = String>) -> String {
    let more = names.len().saturating_sub(MOST_NAMES);
    let listed: Vec<String> = names.take(MOST_NAMES).collect();
    if listed.is_empty() {
        return format!("; {what}: none");
    }
    let mut text = format!("; {what}: {}", listed.join(", "));
    if more > 0 {
        // Writing to a String cannot fail.
        write!(text, " and {more} more").unwrap_or_default();
    }
    text
}

/// Why that decision cannot be approved, with those that can.
fn not_waiting(decision: DecisionId, approvals: &[ApprovalStatus]) -> String {
    let ids = approvals.iter().map(|one| one.asked.decision.to_string());
    let those = others("decisions that do", ids);
    format!("decision {decision} does not wait for approval{those}")
}

/// Why that decision cannot be denied, with those that can.
fn not_deniable(decision: DecisionId, approvals: &[ApprovalStatus]) -> String {
    let open = approvals.iter().filter(|one| one.denied_by.is_none());
    let named = open.map(|one| format!("{} ({})", one.asked.decision, one.asked.rule));
    let named: Vec<String> = named.collect();
    let those = others("decisions that can be denied", named.into_iter());
    format!(
        "decision {decision} neither waits for approval nor goes ahead unless it is denied{those}"
    )
}

/// That no rule has the name, with the one that may be meant, or with all.
fn no_rule(name: &str, rules: &[RuleId]) -> String {
    let full: Vec<String> = rules.iter().map(ToString::to_string).collect();
    let hint = did_you_mean(name, rules.iter().map(|rule| &*rule.alert))
        .or_else(|| did_you_mean(name, full.iter().map(String::as_str)));
    let rest = hint.map(|hint| format!(": {hint}"));
    let rest = rest.unwrap_or_else(|| others("rules", full.into_iter()));
    format!("there is no rule {name:?}{rest}")
}

/// The selected rules: loaded ones, or those of deferred restarts.
fn choose(choice: RuleChoice, status: &Status) -> Result<RuleSelector, OrderRefused> {
    let restarts = status.restarts.iter().map(|restart| restarts::rule(&restart.seen.target.name));
    let rules = status.rules.iter().map(|rule| rule.rule.clone());
    let rules: Vec<RuleId> = rules.chain(restarts).collect();
    let ids = || rules.iter();
    let selector = match choice {
        RuleChoice::Selected(selector) => selector,
        RuleChoice::Named(name) => match ids().find(|rule| rule.to_string() == name) {
            Some(rule) => RuleSelector::Rule(rule.clone()),
            None => RuleSelector::Alert(name.into()),
        },
    };
    if selector == RuleSelector::All || ids().any(|rule| selector.selects(rule)) {
        return Ok(selector);
    }
    let name = match &selector {
        RuleSelector::All => String::new(),
        RuleSelector::Alert(alert) => alert.to_string(),
        RuleSelector::Rule(rule) => rule.to_string(),
    };
    Err(OrderRefused::NotFound(no_rule(&name, &rules)))
}

fn end(lasts: OrderPeriod, now: Timestamp) -> Result<Timestamp, OrderRefused> {
    let unusable = |text: &str| Err(OrderRefused::Unusable(text.to_owned()));
    let furthest = now.checked_add(LONGEST).unwrap_or(Timestamp::MAX);
    match lasts {
        OrderPeriod::For(duration) => {
            now.checked_add(duration).or_else(|_| unusable("duration: it reaches too far"))
        }
        OrderPeriod::Until(until) if until <= now => {
            unusable(&format!("until: {until} is over; it is {now:.0} now"))
        }
        OrderPeriod::Until(until) if until > furthest => {
            unusable("until: it must be within the next 366 days")
        }
        OrderPeriod::Until(until) => Ok(until),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Action, Mode, PendingApproval, Target};

    fn rule(alert: &str) -> RuleId {
        RuleId { group: "memory".into(), alert: alert.into() }
    }

    #[test]
    fn an_unknown_rule_is_answered_with_the_nearest_name_or_with_all() {
        let rules = [rule("MemoryLeaked"), rule("SourceDown")];
        let near = "there is no rule \"MemoryLeakd\": did you mean \"MemoryLeaked\"?";
        assert_eq!(no_rule("MemoryLeakd", &rules), near);
        let full = no_rule("memory/SourceDwn", &rules);
        assert!(full.ends_with("did you mean \"memory/SourceDown\"?"), "{full}");
        let far = "there is no rule \"Nope\"; rules: memory/MemoryLeaked, memory/SourceDown";
        assert_eq!(no_rule("Nope", &rules), far);
    }

    #[test]
    fn an_unknown_decision_is_answered_with_those_that_can_be_denied() {
        let status = |decision, denied_by: Option<&str>| ApprovalStatus {
            asked: PendingApproval {
                decision: DecisionId(decision),
                rule: rule("MemoryLeaked"),
                mode: Mode::Enforce,
                step: 0,
                action: Action::CompactMemory,
                target: Target::Node,
                since: Timestamp::UNIX_EPOCH,
                goes_ahead: None,
            },
            lapses: Timestamp::UNIX_EPOCH,
            given_by: None,
            denied_by: denied_by.map(str::to_owned),
        };
        let all = [status(7, None), status(8, Some("ann"))];
        let text = not_deniable(DecisionId(42), &all);
        assert!(text.starts_with("decision 42 neither waits for approval nor"), "{text}");
        assert!(
            text.ends_with("; decisions that can be denied: 7 (memory/MemoryLeaked)"),
            "{text}"
        );
        let none = not_deniable(DecisionId(42), &[]);
        assert!(none.ends_with("; decisions that can be denied: none"), "{none}");
        let waiting = not_waiting(DecisionId(42), &all);
        assert!(waiting.ends_with("; decisions that do: 7, 8"), "{waiting}");
    }
}
