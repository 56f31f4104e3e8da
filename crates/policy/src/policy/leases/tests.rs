//! Starts that reserve memory: one after the other, never more than there is, and nobody for ever.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::model::{GateMemory, GateRequest, MemoryTrends, ProcessId, Trend};

const GIB: u64 = 1 << 30;

/// A node of so many GiB, of which some are held; nothing moves.
pub(super) fn node(total: u64, held: u64) -> MemoryPools {
    let still = Some(Trend::default());
    MemoryPools::single(GateMemory {
        total: Reading::Value(total * GIB),
        free: Reading::Value((total - held) * GIB),
        clean_cache: Reading::Value(0),
        dirty_cache: Reading::Value(0),
        mapped_cache: Reading::Value(0),
        unaccounted: Reading::Value(0),
        shmem: Reading::Value(0),
        motion: MemoryTrends {
            available: still,
            contiguous: still,
            unaccounted: still,
            shmem: still,
        },
        ..GateMemory::UNKNOWN
    })
}

pub(super) fn request(id: &str, gib: u64) -> LeaseRequest {
    LeaseRequest::new(id.into(), id.into(), GateRequest::of(gib * GIB))
}

fn advance(
    book: &mut LeaseBook,
    second: u64,
    memory: &MemoryPools,
    at_once: u32,
) -> Vec<(Arc<str>, LeaseChange)> {
    let known = book.news().last().map_or(0, |news| news.number);
    book.advance(&LeaseContext {
        now: Duration::from_secs(second),
        utc_ms: i64::try_from(second).unwrap() * 1_000,
        memory,
        sampled: Duration::from_secs(second),
        at_once,
        has_ended: &|holder| holder.process.pid == 666,
    });
    // Who lives repeats its request.
    for lease in book.leases().to_vec().iter().filter(|lease| lease.is_granted()) {
        book.request(Duration::from_secs(second), &lease.request).unwrap();
    }
    let news = book.news().filter(|news| news.number > known);
    news.map(|news| (Arc::clone(&news.lease.request.id), news.change)).collect()
}

fn waits_for(book: &LeaseBook, id: &str) -> String {
    match &book.get(id).unwrap().state {
        LeaseState::Waiting { reasons, .. } => reasons.join("; "),
        LeaseState::Granted { .. } => panic!("{id} is granted"),
    }
}

#[test]
fn two_starts_of_12_gib_on_21_are_let_in_one_after_the_other() {
    let mut book = LeaseBook::default();
    for id in ["one", "two"] {
        book.request(Duration::ZERO, &request(id, 12)).unwrap();
    }
    let granted = advance(&mut book, 0, &node(22, 1), 1);
    assert_eq!(granted, [("one".into(), LeaseChange::Granted)]);
    assert_eq!(waits_for(&book, "two"), "it waits its turn: one is starting");
    // Where several may start at once, the memory is missing.
    assert_eq!(advance(&mut book, 1, &node(22, 1), 4), []);
    let text = waits_for(&book, "two");
    assert!(text.contains("9.0 GiB available"), "{text}");
    assert!(text.ends_with("12.0 GiB are reserved for one"), "{text}");
    // Half of it is taken: the rest stays reserved.
    book.request(Duration::from_secs(8), &request("two", 12)).unwrap();
    assert_eq!(advance(&mut book, 8, &node(22, 7), 4), []);
    let text = waits_for(&book, "two");
    assert!(text.contains("9.0 GiB available"), "{text}");
    book.request(Duration::from_secs(9), &request("two", 12)).unwrap();
    let ended = advance(&mut book, 9, &node(22, 13), 1);
    assert_eq!(ended, [("one".into(), LeaseChange::Ended(LeaseEnd::Taken))]);
    assert!(!waits_for(&book, "two").contains("reserved"));
    book.request(Duration::from_secs(10), &request("two", 12)).unwrap();
    let granted = advance(&mut book, 10, &node(22, 1), 1);
    assert_eq!(granted, [("two".into(), LeaseChange::Granted)]);
}

#[test]
fn a_lease_ends_with_its_process_its_time_or_its_requester() {
    let mut book = LeaseBook::default();
    let holder = |pid| {
        let process = ProcessId { pid, start_ticks: 1 };
        Some(LeaseHolder { process, procfs: 1 })
    };
    for (id, pid) in [("dead", 666), ("late", 5), ("given", 6)] {
        book.request(Duration::ZERO, &LeaseRequest { holder: holder(pid), ..request(id, 1) })
            .unwrap();
    }
    book.request(Duration::ZERO, &request("gone", 500)).unwrap();
    assert_eq!(advance(&mut book, 0, &node(22, 1), 9).len(), 2, "the dead one is not granted");
    assert!(book.end("given", LeaseEnd::Withdrawn) && !book.end("given", LeaseEnd::Ready));
    assert_eq!(book.leases().len(), 2);
    assert_eq!(advance(&mut book, 20, &node(22, 1), 9), [], "a request is not an event");
    assert!(book.get("gone").is_none());
    let ended = advance(&mut book, 600, &node(22, 1), 9);
    assert_eq!(ended, [("late".into(), LeaseChange::Ended(LeaseEnd::Expired))]);
}

#[test]
fn after_a_reboot_nothing_is_taken() {
    let mut book = LeaseBook::default();
    let granted = |book: &mut LeaseBook, second, id: &str, held| {
        book.request(Duration::from_secs(second), &request(id, 12)).unwrap();
        advance(book, second, &node(30, held), 1)
    };
    assert_eq!(granted(&mut book, 5_000, "before", 1).len(), 1);
    assert_eq!(advance(&mut book, 5_001, &node(30, 8), 1), []);
    assert_eq!(granted(&mut book, 10, "after", 1).len(), 1);
    assert_eq!(advance(&mut book, 11, &node(30, 7), 1), [], "6 of 12 GiB are taken");
    assert_eq!(book.reserved().map(|(_, bytes, _)| bytes).sum::<u64>(), 6 * GIB);
}

#[test]
fn a_stuck_start_gives_way_and_keeps_its_memory() {
    let mut book = LeaseBook::default();
    book.request(Duration::ZERO, &request("stuck", 12)).unwrap();
    advance(&mut book, 0, &node(30, 1), 1);
    for (second, expected) in [(59, 0), (60, 1)] {
        book.request(Duration::from_secs(second), &request("next", 10)).unwrap();
        assert_eq!(advance(&mut book, second, &node(30, 1), 1).len(), expected, "{second}");
    }
    book.request(Duration::from_secs(61), &request("third", 10)).unwrap();
    assert_eq!(advance(&mut book, 61, &node(30, 1), 9), [], "22 of 29 GiB are reserved");
}

#[test]
fn priority_goes_first_and_what_does_not_fit_is_passed_for_a_minute() {
    let mut book = LeaseBook::default();
    book.request(Duration::ZERO, &request("low", 5)).unwrap();
    book.request(Duration::ZERO, &LeaseRequest { priority: 5, ..request("high", 5) }).unwrap();
    let granted = advance(&mut book, 0, &node(22, 1), 1);
    assert_eq!(granted, [("high".into(), LeaseChange::Granted)]);

    let mut book = LeaseBook::default();
    book.request(Duration::ZERO, &request("large", 20)).unwrap();
    for second in [0, 59, 60, 61] {
        book.request(Duration::from_secs(second), &request("large", 20)).unwrap();
        let small = format!("small at {second}");
        book.request(Duration::from_secs(second), &request(&small, 1)).unwrap();
        let granted = advance(&mut book, second, &node(22, 10), 9);
        assert_eq!(granted.len(), usize::from(second < 60), "{second}");
        if second >= 60 {
            assert_eq!(waits_for(&book, &small), "it waits its turn: large waits before it");
        }
    }
}

/// Whatever their priorities, and whenever they came.
#[test]
fn starts_that_never_fit_hold_nobody_up_for_longer_than_minutes() {
    let mut book = LeaseBook::default();
    let never = [("a", 60, 0), ("b", 180, 0), ("c", 230, 5)];
    let comes = 240;
    let granted = (60..900).find(|second| {
        let at = Duration::from_secs(*second);
        for (id, since, priority) in never.iter().filter(|(_, since, _)| since <= second) {
            let request = LeaseRequest { priority: *priority, ..request(id, 60) };
            book.request(
                at,
                &LeaseRequest { requested_ms: i64::try_from(*since).unwrap(), ..request },
            )
            .unwrap();
        }
        if *second >= comes {
            book.request(at, &LeaseRequest { requested_ms: 999, ..request("fits", 5) }).unwrap();
        }
        !advance(&mut book, *second, &node(80, 40), 1).is_empty()
    });
    assert_eq!(granted, Some(300), "in the next minute in which nobody waits behind another");
}

#[test]
fn a_start_that_was_granted_by_others_must_be_heard_of_once_more() {
    let mut book = LeaseBook::default();
    book.request(Duration::ZERO, &request("killed", 5)).unwrap();
    let context = |second, memory| LeaseContext {
        now: Duration::from_secs(second),
        utc_ms: 0,
        memory,
        sampled: Duration::from_secs(second),
        at_once: 1,
        has_ended: &|_| false,
    };
    let memory = node(22, 1);
    book.advance(&context(1, &memory));
    assert!(book.get("killed").unwrap().is_granted(), "by the daemon, say");
    book.advance(&context(10, &memory));
    assert!(book.get("killed").is_some());
    book.advance(&context(11, &memory));
    assert!(book.get("killed").is_none());
    book.request(Duration::from_secs(20), &request("lives", 5)).unwrap();
    book.advance(&context(20, &memory));
    let state = book.call(&request("lives", 5), LeaseCall::Take, &context(21, &memory));
    assert!(matches!(state, Ok(Some(LeaseState::Granted { renew_by: None, .. }))));
}

/// Today people stagger them with sleeps of minutes.
#[test]
fn four_engines_start_each_when_the_one_before_has_its_memory() {
    const PACE: u64 = 2;
    let needs = [45, 30, 20, 10];
    let mut book = LeaseBook::default();
    let (mut taken, mut granted) = ([0; 4], Vec::new());
    for second in 0..120 {
        for (index, need) in needs.iter().enumerate().skip(granted.len()) {
            book.request(Duration::from_secs(second), &request(&index.to_string(), *need)).unwrap();
        }
        let held = 6 + taken.iter().sum::<u64>();
        for (id, change) in advance(&mut book, second, &node(121, held), 1) {
            match change {
                LeaseChange::Granted => granted.push((second, id.to_string())),
                LeaseChange::Ended(why) => assert_eq!(why, LeaseEnd::Taken, "{id}"),
            }
        }
        if let Some((_, last)) = granted.last() {
            let index: usize = last.parse().unwrap();
            taken[index] = needs[index].min(taken[index] + PACE);
        }
    }
    let expected = [(0, "0"), (23, "1"), (38, "2"), (48, "3")];
    assert_eq!(granted, expected.map(|(second, id)| (second, id.to_owned())));
    assert!(book.leases().is_empty());
}

/// The daemon comes with what the driver said before the last engine gave its memory back.
#[test]
fn an_older_answer_of_the_driver_is_no_progress() {
    let of_driver = |held, read_at| {
        let mut memory = node(80, held);
        memory.pools[0].read_at = Some(Duration::from_secs(read_at));
        memory
    };
    let mut book = LeaseBook::default();
    book.request(Duration::from_secs(10), &request("next", 45)).unwrap();
    assert_eq!(advance(&mut book, 10, &of_driver(1, 10), 1).len(), 1);
    assert_eq!(advance(&mut book, 11, &of_driver(46, 8), 1), []);
    book.request(Duration::from_secs(12), &request("third", 40)).unwrap();
    assert_eq!(advance(&mut book, 12, &of_driver(1, 12), 2), [], "45 of 79 GiB are reserved");
    let taken = [("next".into(), LeaseChange::Ended(LeaseEnd::Taken))];
    assert_eq!(advance(&mut book, 13, &of_driver(46, 13), 1)[..1], taken);
}

/// Others that give memory back and take it again take nothing of what is reserved.
#[test]
fn the_comings_and_goings_of_others_end_no_lease() {
    let mut book = LeaseBook::default();
    book.request(Duration::ZERO, &request("one", 12)).unwrap();
    assert_eq!(advance(&mut book, 0, &node(80, 20), 1).len(), 1);
    for second in 1..20 {
        let held = if second % 2 == 0 { 20 } else { 12 };
        assert_eq!(advance(&mut book, second, &node(80, held), 1), [], "{second}");
    }
    assert_eq!(advance(&mut book, 20, &node(80, 24), 1).len(), 1, "it has all by then");
}

#[test]
fn a_book_survives_its_file() {
    let mut book = LeaseBook::default();
    book.request(Duration::ZERO, &request("one", 12)).unwrap();
    book.request(Duration::ZERO, &request("two", 12)).unwrap();
    advance(&mut book, 0, &node(22, 1), 1);
    let json = serde_json::to_string(&book).unwrap();
    assert_eq!(serde_json::from_str::<LeaseBook>(&json).unwrap(), book);
}

/// One start: when it comes, how much it needs and how fast it takes it, whether it dies early.
#[derive(Clone, Debug)]
struct Start {
    comes: u64,
    gib: u64,
    pace: u64,
    dies_at: Option<u64>,
    priority: i32,
}

prop_compose! {
    fn start()(
        comes in 0..200_u64,
        gib in 1..=20_u64,
        pace in 1..=8_u64,
        dies_at in prop::option::weighted(0.3, 0..200_u64),
        priority in -1..=1_i32,
    ) -> Start {
        Start { comes, gib, pace, dies_at, priority }
    }
}

proptest! {
    /// Whatever comes, the node never holds more than it has, everybody who fits gets a turn, and
    /// nothing stays reserved at the end.
    #[test]
    fn nothing_is_overcommitted_and_nobody_starves(
        starts in prop::collection::vec(start(), 1..12),
        at_once in 1..4_u32,
    ) {
        let total = 22;
        let mut book = LeaseBook::default();
        // What each has taken so far, in GiB, of those that were granted and live.
        let mut taken: BTreeMap<usize, u64> = BTreeMap::new();
        let mut done = vec![false; starts.len()];
        for second in 0..3_000 {
            for (index, start) in starts.iter().enumerate() {
                if start.comes <= second && !done[index] && !taken.contains_key(&index) {
                    let mut request = request(&index.to_string(), start.gib);
                    request.priority = start.priority;
                    book.request(Duration::from_secs(second), &request).unwrap();
                }
            }
            let held: u64 = 1 + taken.values().sum::<u64>();
            prop_assert!(held <= total, "{held} of {total} GiB at {second}: {starts:?}");
            for (id, change) in advance(&mut book, second, &node(total, held), at_once) {
                if change == LeaseChange::Granted {
                    taken.insert(id.parse().unwrap(), 0);
                }
            }
            for (index, own) in &mut taken {
                *own = (*own + starts[*index].pace).min(starts[*index].gib);
            }
            // A life ends early, or a while after all was taken.
            taken.retain(|index, own| {
                let start = &starts[*index];
                let dies = start.dies_at.is_some_and(|at| start.comes + at <= second);
                let lives = !dies && (*own < start.gib || second % 97 != 0);
                if !lives {
                    done[*index] = true;
                    book.end(&index.to_string(), LeaseEnd::ProcessEnded);
                }
                lives
            });
            if done.iter().all(|done| *done) {
                break;
            }
        }
        prop_assert!(done.iter().all(|done| *done), "{starts:?} {done:?} {book:?}");
        prop_assert!(book.leases().is_empty(), "{book:?}");
    }
}
