//! Reboots through the whole policy, on a node whose driver is stuck.

mod drain;
mod evict;
mod loss;
mod sentinel;
mod slot;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::config::guard_rails::default_guard_rails;
use crate::config::mistake::SourceText;
use crate::config::rules::parse_rules_under;
use crate::model::{
    Decision, DecisionId, DecisionRecord, EarlierRuns, EngineReadings, EngineSeen, EventKind,
    GpuDriver, GpuPicture, GpuReadings, HoldReason, Holder, HolderReadings, LoggedIn,
    LoggedInReadings, LoggedInRule, Mode, Moment, Observation, OperatorCommand, OperatorOrder,
    Outcome, OutcomeResult, PastReboot, PastReboots, ProgramEvent, Reading, Readings, RebootAct,
    RebootForce, RebootLock, RebootMeans, RebootPlan, RebootResult, RebootSettings, RebootStage,
    RebootStatus, RuleId, ScheduledReboot, Schema, SeriesKey, Source, Target,
};
use crate::policy::Policy;
use crate::policy::guard::GuardRails;

const GIB: f64 = 1024.0 * 1024.0 * 1024.0;
const BOOT: &str = "this-boot";

const RULES: &str = r#"
groups:
- name: g
  interval: 1s
  rules:
  - alert: DriverWedged
    expr: uma_memory_verdict{verdict="wedged"} == 1
    remedy:
      steps: [{reboot: {why: "the driver is {{ $labels.verdict }}"}}]
  - alert: Blocking
    expr: uma_memory_free_bytes < 1e9
"#;

/// A node that has been up for an hour, with everything as it should be.
struct RebootWorld {
    policy: Policy,
    at: Moment,
    schema: Arc<Schema>,
    is_wedged: bool,
    since: Duration,
    free: Reading<f64>,
    users: Reading<Vec<LoggedIn>>,
    samples: bool,
    engines: Vec<EngineSeen>,
    /// Whether engines end on request.
    engines_end: bool,
    /// The result of acts; `None`: no outcome is reported.
    result: Option<OutcomeResult>,
    seen: Vec<Observation>,
    acts: Vec<RebootAct>,
    /// Engines with a stop request.
    stops: Vec<String>,
    holds: Vec<HoldReason>,
    results: Vec<RebootResult>,
    /// Number of reported losses of the journal.
    losses: usize,
}

impl RebootWorld {
    fn with(settings: RebootSettings, mode: Mode, past: PastReboots) -> Self {
        let mut rails = default_guard_rails();
        rails.reboot = settings;
        Self::under(rails, mode, past)
    }

    fn under(rails: GuardRails, mode: Mode, past: PastReboots) -> Self {
        let second = Duration::from_secs(1);
        let files = [SourceText::new("f", RULES)];
        let rules = parse_rules_under(&files, second, rails).unwrap();
        let at = Moment { uptime: Duration::from_secs(3_600), utc: Timestamp::UNIX_EPOCH };
        let mut policy = Policy::new(at, mode, &rules, DecisionId(1));
        policy.await_past();
        policy.resume(at, &EarlierRuns { reboots: past, ..EarlierRuns::default() });
        let key = |name| SeriesKey::new(name, &[]);
        let names = [
            "uma_memory_total_bytes",
            "uma_memory_free_bytes",
            "uma_memory_shmem_bytes",
            "uma_memory_unaccounted_bytes",
        ];
        Self {
            policy,
            at,
            schema: Arc::new(Schema { series: names.map(key).to_vec() }),
            is_wedged: false,
            since: Duration::ZERO,
            free: Reading::Value(100.0 * GIB),
            users: Reading::Value(Vec::new()),
            samples: true,
            engines: Vec::new(),
            engines_end: true,
            result: Some(OutcomeResult::Done),
            seen: Vec::new(),
            acts: Vec::new(),
            stops: Vec::new(),
            holds: Vec::new(),
            results: Vec::new(),
            losses: 0,
        }
    }

    fn new() -> Self {
        Self::with(RebootSettings::default(), Mode::Enforce, of_this_boot(Vec::new()))
    }

    /// Its driver has been stuck for long.
    fn wedge(&mut self) {
        (self.is_wedged, self.since) = (true, self.at.uptime.saturating_sub(MINUTE * 5));
        self.wait(70);
    }

    fn wait(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.at.uptime += Duration::from_secs(1);
            self.at.utc += Duration::from_secs(1);
            self.step();
        }
    }

    fn step(&mut self) {
        let at = self.at;
        let is_failed = self.free == Reading::Failed;
        let gib = |gib: f64| if is_failed { Reading::Failed } else { Reading::Value(gib * GIB) };
        self.seen.push(Observation::Readings(Readings {
            source: Source::Meminfo,
            schema: Arc::clone(&self.schema),
            values: vec![gib(120.0), self.free, gib(0.0), gib(1.0)],
            took: Duration::ZERO,
            error: is_failed.then(|| "gone".into()),
        }));
        if self.samples {
            self.sample();
        }
        let seen = std::mem::take(&mut self.seen);
        let step = self.policy.step(at, &seen);
        for event in step.events {
            match event.kind {
                EventKind::Program(ProgramEvent::RebootChecked { result, .. }) => {
                    self.results.push(result)
                }
                EventKind::Program(ProgramEvent::JournalLost { boot_id, .. })
                    if boot_id == BOOT =>
                {
                    self.losses += 1
                }
                _ => {}
            }
        }
        for decision in step.decisions {
            match decision.decision {
                Decision::Hold(reason) => self.holds.push(reason),
                Decision::Act => self.carry_out(&decision),
            }
        }
    }

    fn sample(&mut self) {
        let read_at = self.at.uptime;
        let engines = self.engines.clone();
        let engines = EngineReadings { read_at, engines, ..EngineReadings::default() };
        self.seen.push(Observation::Engines(Box::new(engines)));
        let holders = if self.is_wedged { vec![Holder::of_driver(7, 'D')] } else { Vec::new() };
        self.seen.push(Observation::Holders(Box::new(HolderReadings {
            read_at,
            holders,
            processes: 100,
            unseen: 0,
            is_driver_loaded: Reading::Value(true),
            hidden: Vec::new(),
            memory: Vec::new(),
            socket_bytes: Reading::Unsupported,
            tasks: Vec::new(),
            error: None,
        })));
        let driver = match self.is_wedged {
            true => GpuDriver::Silent { since: self.since, process_state: Some('D') },
            false => GpuDriver::Responsive,
        };
        self.seen.push(Observation::Gpu(Box::new(GpuReadings {
            read_at,
            picture: (!self.is_wedged).then(Arc::<GpuPicture>::default),
            driver,
            answered_at: None,
            askers: Vec::new(),
        })));
        let readings = LoggedInReadings { at: read_at, users: self.users.clone(), error: None };
        self.seen.push(Observation::LoggedIn(Box::new(readings)));
    }

    fn carry_out(&mut self, decision: &DecisionRecord) {
        if let Some(act) = decision.action.reboot() {
            self.acts.push(act.clone());
        }
        if let Target::Engine(engine) = &decision.target {
            self.stops.push(engine.name.to_string());
            if self.engines_end {
                self.engines.retain(|seen| seen.name != engine.name);
            }
        }
        let result = match decision.mode {
            Mode::Observe => Some(OutcomeResult::Skipped),
            Mode::Enforce => self.result.clone(),
        };
        if let Some(result) = result {
            let outcome = Outcome::at_once(decision, result, self.at);
            self.seen.push(Observation::Outcome(outcome));
        }
    }

    /// Gives an order; an error says why nothing comes of it.
    fn order(&mut self, order: OperatorOrder) -> Result<(), String> {
        let (author, comment) = ("carol".to_owned(), "new driver".to_owned());
        let command = OperatorCommand { at: self.at, author, comment, order, refused: None };
        let step = self.policy.step(self.at, &[Observation::Operator(command)]);
        for decision in &step.decisions {
            self.carry_out(decision);
        }
        step.answers[0].refused.clone().map_or(Ok(()), Err)
    }

    fn reboot(&mut self, force: &[RebootForce]) -> Result<(), String> {
        let force: BTreeSet<RebootForce> = force.iter().copied().collect();
        self.order(OperatorOrder::Reboot { delay: None, force })
    }

    fn status(&mut self) -> Arc<RebootStatus> {
        self.policy.status(self.at).reboot
    }

    fn stage(&mut self) -> RebootStage {
        self.status().stage
    }

    fn acts(&mut self) -> Vec<&'static str> {
        std::mem::take(&mut self.acts).iter().map(RebootAct::name).collect()
    }
}

const MINUTE: Duration = Duration::from_secs(60);

fn of_this_boot(attempts: Vec<PastReboot>) -> PastReboots {
    PastReboots { boot_id: Some(BOOT.into()), attempts, ..PastReboots::default() }
}

fn rule() -> RuleId {
    RuleId { group: "g".into(), alert: "DriverWedged".into() }
}

fn attempt(boot: &str, ago: Duration, result: Option<RebootResult>) -> PastReboot {
    let now = i64::try_from(Duration::from_secs(3_600).as_millis()).unwrap();
    PastReboot {
        decision: DecisionId(7),
        rule: rule(),
        boot_id: boot.into(),
        uptime_ms: now - i64::try_from(ago.as_millis()).unwrap(),
        utc: Timestamp::UNIX_EPOCH,
        is_long_past: false,
        plan: RebootPlan::default(),
        way: None,
        was_begun: Some(true),
        result,
        is_cleared: false,
    }
}

fn seen_by(settings: impl FnOnce(&mut RebootSettings)) -> RebootWorld {
    let mut all = RebootSettings::default();
    settings(&mut all);
    RebootWorld::with(all, Mode::Enforce, of_this_boot(Vec::new()))
}

#[test]
fn a_wedged_node_is_rebooted_once_and_after_its_delay() {
    let mut node = RebootWorld::new();
    node.wedge();
    assert_eq!(node.acts(), ["reboot"]);
    assert_eq!(node.stage(), RebootStage::Scheduled);
    let scheduled = node.status().scheduled.clone().unwrap();
    assert_eq!(scheduled.plan.why, "the driver is wedged");
    assert_eq!((&*scheduled.plan.boot_id, scheduled.rule), (BOOT, rule()));
    node.wait(100);
    assert!(node.acts().is_empty(), "not before it is due");
    node.wait(30);
    let [RebootAct::Perform(order)] = &node.acts[..] else { panic!("{:?}", node.acts) };
    assert!(matches!(order.how, RebootMeans::Way(_)));
    assert_eq!(node.stage(), RebootStage::HandedOver);
    node.acts.clear();
    // It agrees, and nothing happens: then nothing happens for hours.
    node.wait(3_600);
    assert!(node.acts.is_empty());
    assert_eq!(node.results, [RebootResult::NotRebooted]);
    assert!(node.holds.contains(&HoldReason::RebootBudget), "{:?}", node.holds);
}

#[test]
fn a_reboot_whose_cause_ends_before_it_is_due_is_cancelled() {
    let mut node = RebootWorld::new();
    node.wedge();
    node.is_wedged = false;
    node.wait(30);
    assert_eq!(node.acts(), ["reboot", "call_off_reboot"]);
    let status = node.status();
    assert_eq!((status.stage, &status.scheduled), (RebootStage::None, &None));
    assert!(status.called_off.as_ref().unwrap().contains("now"), "{status:?}");
    node.wait(600);
    assert!(node.acts().is_empty());
}

#[test]
fn a_node_with_unknown_state_is_never_rebooted() {
    let mut node = RebootWorld::new();
    // For the rule it goes on.
    node.wedge();
    assert_eq!(node.acts(), ["reboot"]);
    node.samples = false;
    node.wait(3_600);
    assert!(!node.acts().contains(&"perform_reboot"), "without samples");
    let mut node = RebootWorld::new();
    (node.free, node.samples) = (Reading::Failed, false);
    node.wait(3_600);
    assert!(node.acts().is_empty(), "all sources fail");
    let mut node =
        RebootWorld::with(RebootSettings::default(), Mode::Enforce, PastReboots::default());
    node.wedge();
    node.wait(3_600);
    assert!(node.acts().is_empty() && node.holds.contains(&HoldReason::BootUnknown));
}

#[test]
fn no_reboot_before_earlier_runs_are_known() {
    let mut node = RebootWorld::new();
    node.policy.await_past();
    node.policy.reboots.is_restored = false;
    node.wedge();
    node.wait(600);
    assert!(node.acts().is_empty() && node.holds == [HoldReason::JournalUnreadable]);
    let refused = node.reboot(&RebootForce::ALL).unwrap_err();
    assert!(refused.contains("not known"), "{refused}");
}

#[test]
fn logged_in_users_block_a_reboot_or_get_a_warning_and_time() {
    let alice = LoggedIn { user: "alice".into(), terminal: Some("pts/0".into()), since: None };
    let mut node = RebootWorld::new();
    node.users = Reading::Value(vec![alice.clone()]);
    node.wedge();
    assert_eq!((node.acts(), node.holds.clone()), (Vec::new(), vec![HoldReason::LoggedIn]));
    node.users = Reading::Failed;
    node.wait(60);
    assert!(node.acts().is_empty());
    node.users = Reading::Value(Vec::new());
    node.wait(5);
    assert_eq!(node.acts(), ["reboot"]);
    // Somebody comes before it is due.
    node.users = Reading::Value(vec![alice.clone()]);
    node.wait(600);
    assert_eq!((node.acts(), node.stage()), (Vec::new(), RebootStage::Waiting));
    assert_eq!(node.status().waits_for.as_deref(), Some("logged in: alice on pts/0"));

    let mut node = seen_by(|settings| settings.logged_in = LoggedInRule::Warn);
    node.users = Reading::Value(vec![alice]);
    node.wedge();
    node.wait(125);
    assert_eq!(node.acts(), ["reboot", "warn_users"]);
    assert_eq!(node.stage(), RebootStage::Warning);
    node.wait(570);
    assert!(node.acts().is_empty());
    node.wait(30);
    assert_eq!(node.acts(), ["perform_reboot"]);
}

#[test]
fn a_blocking_alert_and_a_recent_boot_block_a_reboot() {
    let mut node = seen_by(|settings| settings.blocked_by = vec!["Blocking".into()]);
    node.free = Reading::Value(0.5 * GIB);
    node.wedge();
    assert_eq!((node.acts(), node.holds.clone()), (Vec::new(), vec![HoldReason::Blocked]));
    let mut node = seen_by(|settings| settings.minimum_uptime = Duration::from_secs(7_200));
    node.wedge();
    assert_eq!((node.acts(), node.holds.clone()), (Vec::new(), vec![HoldReason::MinimumUptime]));
    node.wait(3_800);
    assert_eq!(node.acts(), ["reboot", "perform_reboot"]);
}

#[test]
fn after_two_vain_reboots_a_person_must_clear() {
    let (long, did_not) = (Duration::from_secs(9 * 86_400), Some(RebootResult::DidNotHelp));
    let attempts = vec![attempt("a", long, did_not), attempt("b", long, None)];
    let mut node =
        RebootWorld::with(RebootSettings::default(), Mode::Enforce, of_this_boot(attempts));
    node.wedge();
    node.wait(600);
    assert_eq!(node.results, [RebootResult::DidNotHelp]);
    assert_eq!((node.acts(), node.holds.clone()), (Vec::new(), vec![HoldReason::GivenUp]));
    assert!(node.status().is_given_up);
    node.order(OperatorOrder::ClearReboots).unwrap();
    node.wait(5);
    assert_eq!(node.acts(), ["reboot"]);
    assert!(node.order(OperatorOrder::ClearReboots).is_err(), "there is nothing to clear");
}

#[test]
fn a_reboot_has_helped_when_memory_is_well_after_it() {
    let attempts = vec![attempt("before", MINUTE * 60, None)];
    let mut node =
        RebootWorld::with(RebootSettings::default(), Mode::Enforce, of_this_boot(attempts));
    node.wait(590);
    assert!(node.results.is_empty(), "it was not watched for long enough");
    node.wait(20);
    assert_eq!(node.results, [RebootResult::Helped]);
    let attempts = vec![attempt("before", MINUTE * 60, None)];
    let mut node =
        RebootWorld::with(RebootSettings::default(), Mode::Enforce, of_this_boot(attempts));
    node.samples = false;
    node.wait(1_250);
    assert_eq!(node.results, [RebootResult::Unknown], "it is unknown");
    assert_eq!(node.status().did_not_help, 1);
}

#[test]
fn a_scheduled_reboot_survives_a_restart_and_waits_for_its_cause() {
    let at = Moment { uptime: Duration::from_secs(3_700), utc: Timestamp::UNIX_EPOCH };
    let memory_state = Some(crate::model::MemoryState::Wedged);
    let of = |boot: &str| {
        let (boot_id, due) = (boot.into(), Some(at));
        let plan = RebootPlan { boot_id, due, memory_state, ..RebootPlan::default() };
        let scheduled = ScheduledReboot { decision: DecisionId(3), rule: rule(), plan };
        PastReboots { scheduled: Some(scheduled), ..of_this_boot(Vec::new()) }
    };
    let mut node = RebootWorld::with(RebootSettings::default(), Mode::Enforce, of(BOOT));
    node.is_wedged = true;
    node.since = node.at.uptime;
    node.wait(50);
    assert_eq!(node.stage(), RebootStage::Scheduled, "its cause does not show yet");
    node.wait(60);
    assert_eq!(node.acts(), ["perform_reboot"]);
    let mut node = RebootWorld::with(RebootSettings::default(), Mode::Enforce, of("another"));
    node.wait(5);
    assert_eq!(node.stage(), RebootStage::None, "it has happened, or by another program");
    let mut node = RebootWorld::with(RebootSettings::default(), Mode::Enforce, of(BOOT));
    node.wait(30);
    assert_eq!(node.acts(), ["call_off_reboot"], "memory is well");
}

#[test]
fn a_reboot_begun_before_a_crash_is_not_repeated() {
    let mut begun = attempt(BOOT, MINUTE, None);
    begun.was_begun = None;
    let mut node =
        RebootWorld::with(RebootSettings::default(), Mode::Enforce, of_this_boot(vec![begun]));
    node.wedge();
    assert_eq!((node.acts(), node.stage()), (Vec::new(), RebootStage::HandedOver));
    node.wait(1_200);
    assert_eq!(node.results, [RebootResult::NotRebooted]);
    assert!(
        node.acts().is_empty()
            && node.holds == [HoldReason::RebootUnderWay, HoldReason::RebootBudget]
    );
}

#[test]
fn sysrq_follows_only_a_hanging_orderly_reboot_if_allowed() {
    let mut node = seen_by(|settings| settings.sysrq_after = Some(MINUTE * 10));
    node.wedge();
    node.result = Some(OutcomeResult::TimedOut);
    node.wait(120);
    assert_eq!(node.acts(), ["reboot", "perform_reboot"]);
    node.wait(590);
    assert!(node.acts().is_empty());
    node.wait(30);
    let [RebootAct::Perform(order)] = &node.acts[..] else { panic!("{:?}", node.acts) };
    assert_eq!(order.how, RebootMeans::Sysrq);
    assert_eq!(node.policy.reboots.attempts.len(), 1, "it is the same reboot");
}

#[test]
fn a_refused_reboot_is_retried_and_not_counted() {
    let mut node = RebootWorld::new();
    node.wedge();
    node.wait(100);
    node.result = Some(OutcomeResult::NotDone("apt blocks it: installs".to_owned()));
    node.wait(150);
    assert_eq!(node.acts(), ["reboot", "perform_reboot", "perform_reboot", "perform_reboot"]);
    assert!(node.policy.reboots.attempts.is_empty());
}

#[test]
fn an_order_is_subject_to_all_rails_that_it_does_not_force() {
    let mut node = RebootWorld::new();
    node.wait(5);
    node.users = Reading::Value(vec![LoggedIn { user: "bob".into(), terminal: None, since: None }]);
    node.wait(2);
    let refused = node.reboot(&[]).unwrap_err();
    assert!(refused.contains("bob") && refused.contains("--force users"), "{refused}");
    node.reboot(&[RebootForce::Users]).unwrap();
    assert!(node.reboot(&RebootForce::ALL).unwrap_err().contains("already"));
    node.wait(3);
    node.order(OperatorOrder::CancelReboot).unwrap();
    assert_eq!(node.acts(), ["reboot", "call_off_reboot"]);
    assert!(node.order(OperatorOrder::CancelReboot).unwrap_err().contains("no reboot"));
    node.reboot(&[RebootForce::Users]).unwrap();
    node.wait(130);
    assert_eq!(node.acts(), ["reboot", "perform_reboot"]);
    let refused = node.order(OperatorOrder::CancelReboot).unwrap_err();
    assert!(refused.contains("too late"), "{refused}");
}

#[test]
fn observe_mode_never_reboots_even_on_an_order() {
    let past = of_this_boot(Vec::new());
    let mut node = RebootWorld::with(RebootSettings::default(), Mode::Observe, past);
    node.wedge();
    assert_eq!((node.acts(), node.stage()), (vec!["reboot"], RebootStage::None));
    node.wait(600);
    assert!(!node.acts().contains(&"perform_reboot"));
    assert!(node.reboot(&[]).unwrap_err().contains("observe"));
}

#[test]
fn a_cancelled_reboot_is_not_rescheduled_while_its_cause_persists() {
    let mut node = RebootWorld::new();
    node.wedge();
    node.order(OperatorOrder::CancelReboot).unwrap();
    node.wait(3_600);
    assert_eq!(node.acts(), ["reboot", "call_off_reboot"]);
    assert!(node.holds.contains(&HoldReason::CalledOff));
    node.order(OperatorOrder::ClearReboots).unwrap();
    node.wait(5);
    assert_eq!(node.acts(), ["reboot"]);
}
