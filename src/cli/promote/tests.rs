use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::cli::targets::AlertLabels;
use crate::journal::{Note, StoredEvent, TimelineItem};
use crate::model::{
    Action, AlertChange, AlertState, CacheKind, Decision, DecisionId, DecisionRecord, EnginePhase,
    EngineTarget, Event, EventKind, Evidence, HoldReason, KernelEvent, Moment, OomConstraint,
    ProcessId, ProgramEvent, Reading, RestartState, SYSLOG_SEQ_BASE, Supervisor, Target,
};
use readiness::EpisodeResult;

/// A journal, minute by minute.
struct World {
    observed: Observed,
    decisions: u64,
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_795_000_000 + seconds).unwrap()
}

fn moment(seconds: i64) -> Moment {
    Moment { uptime: Duration::from_secs(100_000), utc: at(seconds) }
}

fn rule() -> RuleId {
    RuleId { group: "g".into(), alert: "Low".into() }
}

impl World {
    fn new() -> Self {
        Self { observed: Observed::from(at(0), None), decisions: 0 }
    }

    fn take(&mut self, seconds: i64, item: &TimelineItem) {
        self.observed.take(at(seconds), item);
    }

    fn event(&mut self, seconds: i64, kind: impl Into<EventKind>, seq: Option<u64>) {
        let event = Event { kind: kind.into(), utc: Some(at(seconds)), seq };
        let stored = StoredEvent { id: 1, boot_id: "b".to_owned(), event };
        self.take(seconds, &TimelineItem::Event(stored));
    }

    fn phase(&mut self, seconds: i64, pid: u32, to: EnginePhase) {
        let (engine, reason) = ("llm".to_owned(), String::new());
        let kind = ProgramEvent::EnginePhase { engine, from: None, to, reason, pid, pod: None };
        self.event(seconds, kind, None);
    }

    fn oom(&mut self, seconds: i64, constraint: OomConstraint, seq: u64) {
        let kind = KernelEvent::OomKill {
            pid: 7,
            comm: "bystander".to_owned(),
            constraint: Some(constraint),
            memcg: None,
            oom_memcg: None,
            trigger_comm: None,
            anon_rss_bytes: None,
            driver: false,
            manual: false,
            container: None,
        };
        self.event(seconds, EventKind::Kernel(kind), Some(seq));
    }

    fn alert(&mut self, seconds: i64, to: AlertState) {
        self.alert_with(seconds, to, AlertLabels::new());
    }

    fn alert_with(&mut self, seconds: i64, to: AlertState, labels: AlertLabels) {
        let change = AlertChange {
            at: moment(seconds),
            rule: rule(),
            labels,
            from: AlertState::Inactive,
            to,
            value: Reading::Value(1.0),
            annotations: Default::default(),
        };
        self.take(seconds, &TimelineItem::Alert(change));
    }

    fn decide(&mut self, seconds: i64, action: Action, mode: Mode, decision: Decision) {
        self.decisions += 1;
        let target = match &action {
            Action::StopEngine { .. } => Target::Engine(Box::new(EngineTarget {
                name: "llm".into(),
                processes: vec![ProcessId { pid: 7, start_ticks: 1 }],
                ..EngineTarget::default()
            })),
            other => other.target(),
        };
        let evidence = |series: &str, value: f64| Evidence {
            series: series.to_owned(),
            value: Reading::Value(value),
        };
        let record = DecisionRecord {
            id: DecisionId(self.decisions),
            at: moment(seconds),
            rule: rule(),
            mode,
            decision,
            step: 0,
            action,
            target,
            approved: None,
            goes_ahead: None,
            because: vec![
                evidence("uma_memory_page_cache_bytes{state=\"clean\"}", 4096.0),
                evidence("uma_engine_growth_bytes{engine=\"llm\"}", 8192.0),
            ],
        };
        self.take(seconds, &TimelineItem::Decision(record));
    }

    fn would(&mut self, seconds: i64, action: Action) {
        self.decide(seconds, action, Mode::Observe, Decision::Act);
    }

    fn note(&mut self, seconds: i64, text: &str) {
        let note = Note { at: moment(seconds), text: text.to_owned() };
        self.take(seconds, &TimelineItem::Note(note));
    }

    /// The results of all episodes of the rule, in order.
    fn results(&self, grade: Grade) -> Vec<EpisodeResult> {
        self.reviews(grade).into_iter().map(|review| review.result).collect()
    }

    fn reviews(&self, grade: Grade) -> Vec<EpisodeReview> {
        let pair = (rule(), grade);
        let episodes = self.observed.episodes.get(&pair).map_or(&[][..], Vec::as_slice);
        episodes.iter().map(|episode| review(&pair, episode, &self.observed)).collect()
    }

    fn readiness(&self, grade: Grade) -> (PromotionReadiness, String) {
        let counts = ResultCounts::of(&self.reviews(grade));
        readiness(grade, &counts, (self.observed.span(), SignedDuration::ZERO))
    }
}

fn stop() -> Action {
    Action::StopEngine { engine: None, grace_ms: 0, unless_free_bytes: None, for_reboot: None }
}

fn drop() -> Action {
    Action::DropCaches { what: CacheKind::PageCache, sync: false }
}

fn notify() -> Action {
    Action::Notify { message: "low".to_owned() }
}

const HOUR: i64 = 3_600;

#[test]
fn an_engine_that_served_on_would_have_been_stopped_wrongly() {
    let mut world = World::new();
    world.phase(10, 7, EnginePhase::Serving);
    world.alert(100, AlertState::Firing);
    world.would(100, stop());
    world.alert(103, AlertState::Inactive);
    world.phase(HOUR, 7, EnginePhase::Ready);
    let review = &world.reviews(Grade::Stop)[0];
    assert_eq!(review.result, EpisodeResult::Wrong);
    let why = "llm ran on and answered for at least 58m20s; the trouble ended by itself after 3s";
    assert_eq!(review.why, why);
    assert_eq!(review.episode.amount.map(|amount| amount.bytes), Some(8192));
    assert_eq!(world.readiness(Grade::Stop).0, PromotionReadiness::WouldHaveBeenWrong);
}

#[test]
fn a_kill_soon_after_shows_that_a_stop_would_have_been_in_time() {
    let mut world = World::new();
    for begin in [0, HOUR] {
        world.phase(begin + 10, 7, EnginePhase::Serving);
        world.alert(begin + 100, AlertState::Firing);
        world.would(begin + 100, stop());
        world.oom(begin + 140, OomConstraint::None, 1);
        world.phase(begin + 141, 7, EnginePhase::Gone);
        world.alert(begin + 150, AlertState::Inactive);
    }
    assert_eq!(world.results(Grade::Stop), [EpisodeResult::InTime, EpisodeResult::InTime]);
    assert!(world.reviews(Grade::Stop)[0].why.starts_with("40s later: "));
    assert_eq!(world.readiness(Grade::Stop).0, PromotionReadiness::Ready);
}

#[test]
fn an_engine_that_outlived_a_kill_of_another_is_no_proof() {
    for killed in [140, 100 + HOUR / 2] {
        let mut world = World::new();
        world.phase(10, 7, EnginePhase::Serving);
        world.would(100, stop());
        world.oom(killed, OomConstraint::None, 1);
        world.phase(2 * HOUR, 7, EnginePhase::Ready);
        let review = &world.reviews(Grade::Stop)[0];
        assert_eq!(review.result, EpisodeResult::Unclear, "{}", review.why);
        assert!(review.why.contains("llm ran on"), "{}", review.why);
        assert_eq!(world.readiness(Grade::Stop).0, PromotionReadiness::NotEnoughSeen);
    }
}

#[test]
fn a_boot_that_ended_without_order_confirms_only_what_fired_then() {
    let unclean = |firing: &[&str]| {
        let mut world = World::new();
        world.alert(100, AlertState::Firing);
        world.would(100, drop());
        let kind = ProgramEvent::UncleanBoot {
            ended_boot_id: "b".to_owned(),
            last_record: Some(at(130)),
            gap_seconds: None,
            memory_free_bytes: None,
            memory_available_bytes: None,
            memory_unaccounted_bytes: None,
            memory_pressure_full: None,
            loop_age_seconds: None,
            last_event: None,
            firing: firing.iter().map(|name| (*name).to_owned()).collect(),
        };
        world.note(700, "started: 39 rules");
        world.event(701, kind, None);
        world.results(Grade::Drop)
    };
    assert_eq!(unclean(&["Low"]), [EpisodeResult::InTime]);
    assert_eq!(unclean(&["Other"]), [EpisodeResult::Unclear]);
}

#[test]
fn kills_at_a_limit_and_forged_ones_confirm_nothing() {
    let mut world = World::new();
    world.phase(10, 7, EnginePhase::Serving);
    world.would(100, stop());
    world.oom(140, OomConstraint::Memcg, 1);
    world.oom(141, OomConstraint::None, SYSLOG_SEQ_BASE);
    world.phase(2 * HOUR, 7, EnginePhase::Ready);
    assert_eq!(world.results(Grade::Stop), [EpisodeResult::Wrong]);
}

#[test]
fn what_the_journal_does_not_show_is_unclear_or_too_recent() {
    let mut recent = World::new();
    recent.phase(10, 7, EnginePhase::Serving);
    recent.would(100, stop());
    recent.note(200, "reloaded");
    assert_eq!(recent.results(Grade::Stop), [EpisodeResult::TooRecent]);
    // The daemon ended soon after, and another process has the name when it is back.
    let mut gap = World::new();
    gap.phase(10, 7, EnginePhase::Serving);
    gap.would(100, stop());
    gap.note(130, "stopped");
    gap.note(9_000, "started: 39 rules");
    gap.phase(9_010, 8, EnginePhase::Serving);
    assert_eq!(gap.results(Grade::Stop), [EpisodeResult::Unclear]);
    // The same process is there again: it has run all the time.
    let mut same = World::new();
    same.phase(10, 7, EnginePhase::Serving);
    same.would(100, stop());
    same.note(130, "stopped");
    same.note(9_000, "started: 39 rules");
    same.phase(9_010, 7, EnginePhase::Serving);
    assert_eq!(same.results(Grade::Stop), [EpisodeResult::Wrong]);
    let mut ended = World::new();
    ended.phase(10, 7, EnginePhase::Serving);
    ended.would(100, stop());
    ended.phase(160, 7, EnginePhase::Gone);
    ended.note(2 * HOUR, "reloaded");
    assert_eq!(ended.results(Grade::Stop), [EpisodeResult::Unclear]);
    let mut loading = World::new();
    loading.phase(10, 7, EnginePhase::Loading);
    loading.would(100, stop());
    loading.note(2 * HOUR, "reloaded");
    assert_eq!(loading.results(Grade::Stop), [EpisodeResult::Unclear]);
    for world in [recent, gap, ended, loading] {
        assert_eq!(world.readiness(Grade::Stop).0, PromotionReadiness::NotEnoughSeen);
    }
}

#[test]
fn acts_for_one_trouble_are_one_episode() {
    let mut world = World::new();
    for begin in [0, HOUR, 2 * HOUR] {
        world.alert(begin + 5, AlertState::Firing);
        for act in 0..10 {
            world.would(begin + 5 + act * 30, drop());
        }
        world.alert(begin + 305, AlertState::Inactive);
    }
    world.alert(3 * HOUR, AlertState::Firing);
    world.would(3 * HOUR, drop());
    world.alert(3 * HOUR + 20, AlertState::Inactive);
    let reviews = world.reviews(Grade::Drop);
    let acts: Vec<u64> = reviews.iter().map(|review| review.episode.acts).collect();
    assert_eq!(acts, [10, 10, 10, 1]);
    let lasted = EpisodeResult::Lasted;
    assert_eq!(world.results(Grade::Drop), [lasted, lasted, lasted, EpisodeResult::ByItself]);
    assert_eq!(reviews[0].why, "the trouble lasted 5m");
    assert_eq!(reviews[0].episode.amount.map(|amount| amount.bytes), Some(4096));
    assert_eq!(world.readiness(Grade::Drop).0, PromotionReadiness::Ready);
}

#[test]
fn what_mostly_ends_by_itself_is_not_ready() {
    let mut world = World::new();
    for begin in [0, HOUR, 2 * HOUR, 3 * HOUR] {
        world.alert(begin, AlertState::Firing);
        world.would(begin, drop());
        world.alert(begin + if begin == 0 { 90 } else { 9 }, AlertState::Inactive);
    }
    let (readiness, why) = world.readiness(Grade::Drop);
    assert_eq!(readiness, PromotionReadiness::NotEnoughSeen);
    assert!(why.contains("by itself 3 of 4 times"), "{why}");
    assert_eq!(world.reviews(Grade::Drop)[3].why, "after 9s");
}

#[test]
fn the_trouble_of_one_engine_ends_with_its_own_alert() {
    let mut world = World::new();
    let of = |engine: &str| AlertLabels::from([("engine".into(), engine.into())]);
    world.alert_with(10, AlertState::Firing, of("llm"));
    world.would(10, stop());
    world.alert_with(11, AlertState::Firing, of("other"));
    world.alert_with(12, AlertState::Inactive, of("llm"));
    world.alert_with(600, AlertState::Inactive, of("other"));
    let ended: Vec<_> =
        world.reviews(Grade::Stop).iter().map(|review| review.episode.ended).collect();
    assert_eq!(ended, [Some(at(12))]);
}

#[test]
fn a_step_whose_grade_is_not_enforced_counts_and_an_act_of_another_is_help() {
    let mut world = World::new();
    world.alert(10, AlertState::Firing);
    let unenforced = Decision::Hold(HoldReason::NotEnforced);
    world.decide(10, drop(), Mode::Enforce, unenforced);
    world.decide(10, notify(), Mode::Enforce, Decision::Act);
    world.alert(20, AlertState::Inactive);
    assert_eq!(world.results(Grade::Drop), [EpisodeResult::ByItself], "a notice helps nobody");
    world.alert(100, AlertState::Firing);
    world.decide(100, drop(), Mode::Enforce, unenforced);
    world.decide(101, Action::CompactMemory, Mode::Enforce, Decision::Act);
    world.alert(102, AlertState::Inactive);
    assert_eq!(world.results(Grade::Drop), [EpisodeResult::ByItself, EpisodeResult::Unclear]);
    assert_eq!(world.observed.acted[&(rule(), Grade::Notice)], 1);
    // A hold for another reason is nothing that it would have done.
    world.decide(200, drop(), Mode::Observe, Decision::Hold(HoldReason::Cooldown));
    assert_eq!(world.results(Grade::Drop).len(), 2);
}

#[test]
fn a_restart_was_right_if_a_person_did_the_same() {
    let restart = |states: &[(i64, RestartState)], covered: i64| {
        let mut world = World::new();
        for (seconds, to) in states {
            let (engine, reason) = ("llm".to_owned(), String::new());
            let (to, container, ranks) = (*to, None, None);
            let kind = ProgramEvent::EngineRestart { engine, to, reason, container, ranks };
            world.event(*seconds, kind, None);
        }
        world.note(covered, "reloaded");
        let episode = episode::Episode {
            first: at(100),
            last: at(100),
            acts: 1,
            ended: None,
            cut: None,
            is_helped: false,
            action: "start_container",
            target: Target::held(Supervisor::Docker, "llm", "ab").to_string(),
            subject: None,
            engine: None,
            amount: None,
        };
        let pair = (restarts::rule(&Arc::from("llm")), Grade::Restart);
        review(&pair, &episode, &world.observed).result
    };
    use RestartState::{Running, Starting, Stopped, Waiting};
    assert_eq!(
        restart(&[(50, Waiting), (700, Starting), (800, Running)], 9_000),
        EpisodeResult::Lasted
    );
    assert_eq!(restart(&[(700, Running), (800, Waiting)], 9_000), EpisodeResult::Unclear);
    assert_eq!(restart(&[(700, Stopped)], 9_000), EpisodeResult::Wrong);
    assert_eq!(restart(&[], 9_000), EpisodeResult::Unclear);
    assert_eq!(restart(&[(700, Running)], 800), EpisodeResult::TooRecent);
}

#[test]
fn a_reboot_would_have_been_wrong_if_the_trouble_ended_without_it() {
    let reboot = || Action::Reboot(Box::new(crate::model::RebootAct::Schedule(Default::default())));
    let mut world = World::new();
    world.alert(10, AlertState::Firing);
    world.decide(10, reboot(), Mode::Enforce, Decision::Hold(HoldReason::NotEnforced));
    world.alert(600, AlertState::Inactive);
    assert_eq!(world.results(Grade::Reboot), [EpisodeResult::Wrong]);
    let mut served = World::new();
    served.phase(5, 7, EnginePhase::Serving);
    served.would(10, reboot());
    served.note(HOUR, "reloaded");
    assert_eq!(served.results(Grade::Reboot), [EpisodeResult::Wrong]);
}

#[test]
fn a_short_observation_is_no_evidence() {
    let counts = ResultCounts { episodes: 9, acts: 9, lasted: 9, ..ResultCounts::default() };
    let day = SignedDuration::from_hours(24);
    let of = |span, least| readiness(Grade::Drop, &counts, (span, least));
    assert_eq!(
        of(day, day * 3),
        (PromotionReadiness::NotEnoughSeen, "observed for 1d, of 3d".to_owned())
    );
    assert_eq!(of(day * 3, day * 3).0, PromotionReadiness::Ready);
    let many = ResultCounts { acts: 100, ..counts };
    assert_eq!(readiness(Grade::Notice, &many, (day, day)).0, PromotionReadiness::NotEnoughSeen);
    assert_eq!(readiness(Grade::Notice, &many, (day * 7, day)).0, PromotionReadiness::Ready);
}

proptest! {
    #[test]
    fn doubt_is_never_ready(
        grade in prop::sample::select(Grade::ALL.to_vec()),
        of in prop::array::uniform6(0u64..6),
    ) {
        let [in_time, lasted, by_itself, wrong, unclear, too_recent] = of;
        let episodes = of.iter().sum();
        let counts = ResultCounts {
            episodes, acts: episodes, in_time, lasted, by_itself, wrong, unclear, too_recent,
        };
        let span = SignedDuration::from_hours(24 * 7);
        let (readiness, _) = readiness(grade, &counts, (span, span));
        prop_assert_eq!(readiness == PromotionReadiness::WouldHaveBeenWrong, wrong > 0);
        if readiness == PromotionReadiness::Ready {
            prop_assert!(in_time + lasted > by_itself + unclear);
            let is_severe = matches!(grade, Grade::Restart | Grade::Stop | Grade::Reboot);
            prop_assert!(!is_severe || by_itself + unclear == 0 && in_time + lasted >= 2);
        }
    }
}
