use super::*;
use crate::kubernetes::publisher::MOST_EVENTS;
use crate::model::{
    DecisionId, EngineKind, EnginePhase, EngineSeen, GateRequest, LeaseRequest, Mode, Moment,
    ProcessId, RuleId,
};
use crate::policy::Policy;
use crate::policy::rule::RuleSet;
use crate::policy::status::{EngineStatus, RuleState, RuleStatus};

const NOW: Duration = Duration::from_secs(1_000);

pub(in crate::kubernetes) fn rule(alert: &str, state: RuleState) -> RuleStatus {
    RuleStatus {
        rule: RuleId { group: "g".into(), alert: alert.into() },
        file: String::new(),
        overridden: None,
        is_idle: false,
        interval: Duration::from_secs(1),
        expr: "vector(1)".into(),
        hold_for: Duration::ZERO,
        keep_firing_for: Duration::ZERO,
        labels: Vec::new(),
        annotations: Vec::new(),
        mode: Mode::Observe,
        state,
        unknown: Vec::new(),
        alerts: Vec::new(),
        remedy: None,
    }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

fn entry(second: i64, text: &str, times: u64) -> RecentEvent {
    RecentEvent {
        at: at(second),
        kind: RecentEventKind::Event,
        level: RecentEventLevel::Warning,
        text: text.to_owned(),
        id: None,
        rule: None,
        engine: None,
        times,
    }
}

pub(in crate::kubernetes) fn status(happened: &[RecentEvent]) -> Status {
    let moment = Moment { uptime: Duration::ZERO, utc: at(0) };
    let policy = Policy::new(moment, Mode::Observe, &RuleSet::default(), DecisionId(1));
    let mut status = { policy }.status(moment);
    status.happened = happened.iter().cloned().collect();
    status
}

fn book() -> EventBook {
    EventBook::new("node-1".to_owned(), at(0))
}

/// Writes all that is due; returns each Event's text, count and whether it was new.
fn written(book: &mut EventBook, now: Duration) -> Vec<(Option<String>, u64)> {
    let mut all = Vec::new();
    while let Some(request) = book.next(now) {
        all.push((request.name.clone(), request.count));
        let name = format!("event-{}", all.len());
        book.written(&request, Some(name), now);
    }
    all
}

#[test]
fn the_same_text_is_one_event_whose_count_grows() {
    let mut book = book();
    book.take(&status(&[entry(1, "Xid 31", 1)]), NOW);
    let request = book.next(NOW).unwrap();
    let body = &request.body;
    assert_eq!(body["involvedObject"]["uid"], "node-1");
    assert_eq!([&body["type"], &body["reason"]], ["Warning", "UnifiedMemory"]);
    assert_eq!((&*request.namespace, &body["message"]), ("default", &"Xid 31".into()));
    book.written(&request, Some("a".to_owned()), NOW);
    // Again, twice within a second; nothing new in between.
    book.take(&status(&[entry(1, "Xid 31", 1)]), NOW);
    assert_eq!(book.next(NOW), None);
    book.take(&status(&[entry(3, "Xid 31", 3)]), NOW);
    assert_eq!(book.next(NOW), None, "an Event is changed once a minute");
    let later = NOW + UPDATED_EVERY;
    let request = book.next(later).unwrap();
    assert_eq!((request.name.as_deref(), &request.body["count"]), (Some("a"), &3.into()));
    book.written(&request, None, later);
    // Ten minutes later the entry is a new one.
    book.take(&status(&[entry(700, "Xid 31", 1)]), later);
    assert_eq!(written(&mut book, later + UPDATED_EVERY), [(Some("a".to_owned()), 4)]);
}

/// NTP has corrected it.
#[test]
fn a_clock_that_is_set_back_hides_nothing_new_and_repeats_nothing_old() {
    let mut book = book();
    let earlier = [entry(-100, "of an earlier run", 1), entry(-9_000, "of the day before", 1)];
    let mut take = |second: i64, newest: &[RecentEvent]| {
        let mut node = status(&[newest, &earlier].concat());
        node.at.utc = at(second);
        book.take(&node, NOW);
        let waiting = book.waiting.iter().map(|waiting| (waiting.key.text.clone(), waiting.times));
        waiting.collect::<Vec<_>>()
    };
    let found = |text: &str, times| (text.to_owned(), times);
    assert_eq!(take(11, &[entry(10, "Xid 31", 1)]), [found("Xid 31", 1)]);
    assert_eq!(take(-7_200, &[entry(10, "Xid 31", 1)]), [found("Xid 31", 1)]);
    let both = [entry(-7_180, "Xid 31", 2), entry(-7_190, "leak", 1)];
    for second in [-7_179, -7_178, 20] {
        assert_eq!(take(second, &both), [found("Xid 31", 2), found("leak", 1)], "{second}");
    }
}

#[test]
fn an_event_that_has_expired_is_written_anew() {
    let mut book = book();
    book.take(&status(&[entry(1, "a", 1)]), NOW);
    assert_eq!(written(&mut book, NOW).len(), 1);
    book.take(&status(&[entry(2, "a", 2)]), NOW);
    let later = NOW + UPDATED_EVERY;
    assert!(book.next(later).unwrap().name.is_some());
    book.expired();
    assert_eq!(book.next(later).unwrap().name, None);
}

#[test]
fn what_waits_is_kept_while_the_server_is_away_and_bounded() {
    let mut book = book();
    for number in 0..2 * MOST_WAITING {
        let seconds = i64::try_from(number).unwrap();
        // A bucket admits one in five minutes.
        let now = NOW + REFILLED_EVERY * u32::try_from(number).unwrap();
        book.take(&status(&[entry(seconds, &format!("text {number}"), 1)]), now);
    }
    let last = book.waiting.back().map(|waiting| waiting.key.text.clone());
    assert_eq!((book.waiting.len(), last.as_deref()), (MOST_WAITING, Some("text 511")));
    assert_eq!(book.take_dropped(), MOST_WAITING as u64);
}

#[test]
fn a_refused_event_waits_behind_the_others() {
    let mut book = book();
    book.take(&status(&[entry(2, "b", 1), entry(1, "a", 1)]), NOW);
    assert_eq!(book.next(NOW).unwrap().body["message"], "a");
    book.refused(NOW);
    let request = book.next(NOW).unwrap();
    assert_eq!(request.body["message"], "b");
    book.written(&request, Some("b".to_owned()), NOW);
    assert_eq!(book.next(NOW), None);
    let later = NOW + REFUSED_FOR;
    assert_eq!(book.next(later).unwrap().body["message"], "a");
}

/// A namespace whose quota permits no Events.
#[test]
fn refused_events_do_not_use_up_the_requests_of_the_node() {
    let mut book = book();
    let refused: Vec<RecentEvent> =
        (1..=25).map(|second| entry(second, &format!("text {second}"), 1)).collect();
    book.take(&status(&refused), NOW);
    while book.next(NOW).is_some() {
        book.refused(NOW);
    }
    // All of them are due again when one of another object is to be written.
    let later = NOW + REFUSED_FOR;
    book.requests = EventBucket { left: 1.0, since: later };
    let key =
        Key { object: InvolvedObject::Node, reason: "r".to_owned(), text: "of another".to_owned() };
    book.add(
        PendingEvent { key, is_warning: true, times: 1, at: at(30), refused_until: None },
        later,
    );
    assert_eq!(book.next(later).unwrap().body["message"], "of another");
}

#[test]
fn a_storm_of_different_texts_is_cut_off() {
    let mut book = book();
    for number in 0..100 {
        book.take(&status(&[entry(number, &format!("text {number}"), 1)]), NOW);
    }
    assert_eq!(written(&mut book, NOW).len(), 25);
    assert_eq!(book.take_dropped(), 75);
}

/// Requests of a thousand nodes, second by second. `texts`: how many Events a node has in a second.
fn of_a_thousand(seconds: u32, texts: impl Fn(u32, u32) -> u32) -> Vec<usize> {
    let mut books: Vec<EventBook> = (0..1_000).map(|_| book()).collect();
    let mut status = status(&[]);
    let mut each_second = Vec::new();
    for second in 0..seconds {
        let now = NOW + Duration::from_secs(second.into());
        let mut requests = 0;
        for (node, book) in (0..).zip(&mut books) {
            let texts = texts(node, second);
            if texts > 0 {
                let entries = (0..texts).map(|text| entry(second.into(), &text.to_string(), 1));
                status.happened = entries.collect();
                book.take(&status, now);
            }
            for _ in 0..MOST_EVENTS {
                let Some(request) = book.next(now) else { break };
                book.written(&request, Some("e".to_owned()), now);
                requests += 1;
            }
        }
        each_second.push(requests);
    }
    each_second
}

/// The figures of docs/src/operate/kubernetes.md. Each node has an alert that begins and ends every
/// ten minutes.
#[test]
fn alerts_of_a_thousand_nodes_are_three_requests_a_second() {
    let each_second =
        of_a_thousand(
            1_800,
            |node, second| if (second + node * 37).is_multiple_of(600) { 2 } else { 0 },
        );
    let mean = each_second.iter().sum::<usize>() / each_second.len();
    assert_eq!(mean, 3);
    assert!(each_second.iter().max() < Some(&20), "{:?}", each_second.iter().max());
}

/// All nodes have thirty faults in the same second, and again each minute.
#[test]
fn a_storm_on_a_thousand_nodes_is_a_hundred_requests_a_second() {
    let each_second =
        of_a_thousand(600, |_, second| if second.is_multiple_of(60) { 30 } else { 0 });
    assert_eq!(each_second.iter().max(), Some(&(1_000 * MOST_EVENTS)));
    assert_eq!(each_second[..60].iter().sum::<usize>(), 25_000);
    // Each bucket has used its burst in the first two minutes.
    let later: usize = each_second[120..].iter().sum();
    assert!((90..=102).contains(&(later / 480)), "{later} in 480 s");
}

#[test]
fn what_was_before_the_start_or_needs_nobody_is_left_out() {
    let mut book = book();
    let calm = RecentEvent { level: RecentEventLevel::Info, ..entry(5, "calm", 1) };
    book.take(&status(&[entry(-5, "before", 1), calm.clone()]), NOW);
    assert_eq!(book.next(NOW), None);
    let ended = RecentEvent {
        kind: RecentEventKind::Alert,
        rule: Some("memory/MemoryLeaked".to_owned()),
        ..calm
    };
    book.take(&status(&[ended]), NOW);
    let request = book.next(NOW).unwrap();
    assert_eq!([&request.body["type"], &request.body["reason"]], ["Normal", "MemoryLeaked"]);
}

pub(in crate::kubernetes) fn engine(engine: EngineSeen) -> EngineStatus {
    EngineStatus {
        engine,
        phase: EnginePhase::Ready,
        since: Moment { uptime: NOW, utc: at(0) },
        reason: "".into(),
        is_stuck: false,
        lost_rank: None,
        other_ranks: Vec::new(),
        without_progress: None,
        began: NOW,
        last_load_took: None,
        load_read_bytes: None,
        memory_bytes: 0,
        health: None,
        scanned_at: NOW,
        serving: [].into(),
    }
}

#[test]
fn a_pod_that_waits_for_memory_is_given_the_reason_once() {
    let pod = Pod { namespace: "m".into(), name: "p".into(), uid: "u".into(), ..Pod::default() };
    let need = GateRequest::of(90 << 30);
    let request = LeaseRequest {
        pod: Some(Arc::new(pod)),
        ..LeaseRequest::new("u".into(), "p".into(), need)
    };
    let mut lease = Lease { request, since: NOW, state: LeaseState::waiting(NOW) };
    let (mut book, mut status) = (book(), status(&[]));
    let mut said = |lease: &Lease| {
        status.leases = [lease.clone()].into();
        book.take(&status, NOW);
        let request = book.next(NOW)?;
        book.written(&request, Some("e".to_owned()), NOW);
        Some(request.body["message"].as_str().unwrap().to_owned())
    };
    assert_eq!(said(&lease).as_deref(), Some("waits for 90.0 GiB of memory on node-1"));
    assert_eq!(said(&lease), None);
    let LeaseState::Waiting { behind, .. } = &mut lease.state else { panic!() };
    behind.push("llm".into());
    assert_eq!(said(&lease).as_deref(), Some("waits for 90.0 GiB of memory on node-1, after llm"));
    lease.state = LeaseState::Granted { at: NOW, shares: vec![], progress: NOW, renew_by: None };
    assert_eq!(said(&lease).as_deref(), Some("node-1 has reserved 90.0 GiB"));
}

/// An Event of the node, and one of the pod `models/llm-0`.
pub(in crate::kubernetes) fn of_an_engine_that_died() -> Status {
    let id = ProcessId { pid: 1, start_ticks: 1 };
    let mut seen = EngineSeen::new("llm".into(), EngineKind::Vllm, id, vec![], "t".into());
    let pod = Pod {
        namespace: "models".into(),
        name: "llm-0".into(),
        uid: "u-1".into(),
        ..Pod::default()
    };
    seen.pod = Some(Arc::new(pod));
    let died = RecentEvent { engine: Some("llm".to_owned()), ..entry(1, "llm has died", 1) };
    let mut status = status(&[died]);
    status.engines = [engine(seen)].into();
    status
}

#[test]
fn an_event_of_an_engine_is_written_to_its_pod_too() {
    let status = of_an_engine_that_died();
    let mut book = book();
    book.take(&status, NOW);
    let mut objects = Vec::new();
    while let Some(request) = book.next(NOW) {
        let object = &request.body["involvedObject"];
        objects.push((object["kind"].clone(), object["name"].clone(), request.namespace.clone()));
        book.written(&request, Some("e".to_owned()), NOW);
    }
    let expected = [("Node", "node-1", "default"), ("Pod", "llm-0", "models")];
    let expected = expected.map(|(kind, name, of)| (kind.into(), name.into(), of.to_owned()));
    assert_eq!(objects, expected);
}
