use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::model::{EngineKind, EngineProcess};

const GIB: u64 = 1 << 30;
const TOTAL: u64 = 24 * GIB;
/// Later than any window since boot.
const START: Duration = Duration::from_secs(1_000);

/// An engine of one process at one look.
#[derive(Clone, Copy, Debug)]
struct Engine {
    name: &'static str,
    phase: EnginePhase,
    anonymous: u64,
    hugetlb: u64,
    file: u64,
    cpu_ms: u64,
    age: Duration,
}

const OLD: Engine = Engine {
    name: "a",
    phase: EnginePhase::Serving,
    anonymous: 0,
    hugetlb: 0,
    file: 0,
    cpu_ms: 0,
    age: Duration::from_secs(500),
};

impl Engine {
    fn seen(&self) -> EngineSeen {
        let started = (START.saturating_sub(self.age).as_millis() / 10) as u64;
        let pid = 1_000 + u32::from(self.name.as_bytes()[0]);
        let id = ProcessId { pid, start_ticks: started };
        let process = EngineProcess {
            cpu_ms: self.cpu_ms,
            file_bytes: Reading::Value(self.file),
            hugetlb_bytes: Reading::Value(self.hugetlb),
            ..EngineProcess::holding(id, self.name, self.anonymous)
        };
        let name = Arc::from(self.name);
        EngineSeen::new(name, EngineKind::Vllm, id, vec![process], Arc::from("test"))
    }
}

/// Whom it chooses after five seconds from one state to another, both in steps of a second.
fn chosen(before: (Taken, &[Engine]), after: (Taken, &[Engine])) -> Result<String, HoldReason> {
    let mut brake = Brake::default();
    let mut now = START;
    for step in 0..=5 {
        now = START + Duration::from_secs(step);
        let (taken, engines) = if step < 3 { before } else { after };
        brake.measured(now, TOTAL, taken);
        brake.looked(now, engines.iter().map(|engine| (engine.seen(), engine.phase)), Scope::All);
    }
    brake.choose(now).map(|engine| engine.name.to_string())
}

fn outside(gib: u64) -> Taken {
    Taken { outside: gib * GIB, ..Taken::default() }
}

const LOADING: Engine = Engine { name: "l", phase: EnginePhase::Loading, ..OLD };
const UNCLEAR: Result<String, HoldReason> = Err(HoldReason::UnclearTarget);

#[test]
fn what_no_process_shows_is_laid_to_the_engine_that_loads() {
    let served = Engine { anonymous: 8 * GIB, cpu_ms: 9_000, ..OLD };
    let engines = [served, LOADING];
    assert_eq!(chosen((outside(1), &engines), (outside(9), &engines)), Ok("l".to_owned()));
    // Whoever has just been started is not loading yet, as far as anybody knows.
    let starting = Engine { phase: EnginePhase::Starting, ..LOADING };
    let engines = [served, starting];
    assert_eq!(chosen((outside(1), &engines), (outside(9), &engines)), Ok("l".to_owned()));
}

#[test]
fn huge_pages_that_a_process_shows_are_its_own() {
    let grown = Engine { hugetlb: 8 * GIB, ..OLD };
    let other = Engine { name: "b", cpu_ms: 60_000, ..OLD };
    let chosen = chosen((outside(1), &[OLD, other]), (outside(9), &[grown, other]));
    assert_eq!(chosen, Ok("a".to_owned()));
}

#[test]
fn of_two_that_load_the_one_that_clearly_reads_more_has_taken_it_or_nobody() {
    let (one, other) = (LOADING, Engine { name: "m", ..LOADING });
    let reading = |engine: Engine, gib: u64| Engine { file: gib * GIB, ..engine };
    let before = (outside(1), &[one, other][..]);
    let after = [reading(one, 1), reading(other, 6)];
    assert_eq!(chosen(before, (outside(9), &after)), Ok("m".to_owned()));
    let after = [reading(one, 5), reading(other, 6)];
    assert_eq!(chosen(before, (outside(9), &after)), UNCLEAR);
    assert_eq!(chosen(before, (outside(9), &[one, other])), UNCLEAR);
}

#[test]
fn a_served_engine_is_chosen_alone_and_only_while_it_works() {
    let works = Engine { cpu_ms: 4_000, ..OLD };
    assert_eq!(chosen((outside(1), &[OLD]), (outside(9), &[works])), Ok("a".to_owned()));
    assert_eq!(chosen((outside(1), &[OLD]), (outside(9), &[OLD])), UNCLEAR, "idle");
    let other = Engine { name: "b", ..works };
    assert_eq!(chosen((outside(1), &[OLD, OLD]), (outside(9), &[works, other])), UNCLEAR);
}

#[test]
fn what_one_took_that_ends_is_not_laid_to_the_one_that_serves() {
    let served = Engine { cpu_ms: 4_000, ..OLD };
    let leaking = Engine { name: "e", ..OLD };
    let left = Engine { phase: EnginePhase::Stopping, cpu_ms: 4_000, ..leaking };
    let before = (outside(1), &[OLD, leaking][..]);
    assert_eq!(chosen(before, (outside(9), &[served, left])), UNCLEAR);
    let shows = Engine { anonymous: GIB, ..left };
    assert_eq!(chosen(before, (outside(9), &[served, shows])), UNCLEAR);
    // What hangs has taken nothing, and spares nobody.
    let hangs = Engine { cpu_ms: leaking.cpu_ms, ..left };
    assert_eq!(chosen(before, (outside(9), &[served, hangs])), Ok("a".to_owned()));
}

#[test]
fn loading_comes_before_serving_when_both_grow() {
    let (small, large) = (3 * GIB, 5 * GIB);
    let served = Engine { anonymous: large, ..OLD };
    let loading = Engine { anonymous: small, ..LOADING };
    let taken = Taken { anonymous: 8 * GIB, ..Taken::default() };
    let chosen = chosen((Taken::default(), &[OLD, LOADING]), (taken, &[served, loading]));
    assert_eq!(chosen, Ok("l".to_owned()));
}

#[test]
fn growth_that_is_mostly_somebody_elses_stops_no_engine() {
    let taken = Taken { anonymous: 8 * GIB, ..Taken::default() };
    let loading = Engine { anonymous: GIB, ..LOADING };
    assert_eq!(chosen((Taken::default(), &[LOADING]), (taken, &[loading])), UNCLEAR);
    let shmem = Taken { shmem: 8 * GIB, ..Taken::default() };
    assert_eq!(chosen((Taken::default(), &[LOADING]), (shmem, &[LOADING])), UNCLEAR);
    assert_eq!(chosen((outside(9), &[LOADING]), (outside(9), &[LOADING])), UNCLEAR, "none");
}

#[test]
fn whoever_is_ending_already_is_not_stopped() {
    let ending = Engine { phase: EnginePhase::Stopping, cpu_ms: 4_000, ..OLD };
    assert_eq!(chosen((outside(1), &[ending]), (outside(9), &[ending])), UNCLEAR);
}

#[test]
fn an_engine_that_was_found_full_and_young_has_grown_from_nothing() {
    let young = Engine { age: Duration::from_secs(2), hugetlb: 8 * GIB, ..LOADING };
    let other = Engine { name: "m", ..LOADING };
    let mut brake = Brake::default();
    for (second, gib) in [(0, 1), (4, 9)] {
        brake.measured(START + Duration::from_secs(second), TOTAL, outside(gib));
        look(&mut brake, second * 1_000, &[other], Scope::All);
    }
    let now = START + Duration::from_secs(4);
    let engines = [young, other];
    brake.looked(now, engines.iter().map(|engine| (engine.seen(), engine.phase)), Scope::All);
    assert_eq!(&*brake.choose(now).unwrap().name, "l");
}

#[test]
fn nobody_is_chosen_from_what_is_not_seen_now() {
    let mut brake = Brake::default();
    assert_eq!(brake.choose(START), Err(HoldReason::NoTarget));
    brake.measured(START, TOTAL, outside(1));
    brake.looked(START, std::iter::empty(), Scope::All);
    assert_eq!(brake.choose(START), Err(HoldReason::NoTarget), "no engine runs here");
    let engines = || std::iter::once((LOADING.seen(), LOADING.phase));
    let now = START + Duration::from_secs(1);
    brake.measured(now, TOTAL, outside(9));
    brake.looked(now, engines(), Scope::All);
    assert!(brake.choose(now).is_ok());
    let later = now + FRESH + Duration::from_millis(1);
    assert_eq!(brake.choose(later), Err(HoldReason::UnclearTarget), "seen long ago");
    brake.looked(later, engines(), Scope::Cut);
    brake.measured(later, TOTAL, outside(9));
    assert_eq!(brake.choose(later), Err(HoldReason::UnclearTarget), "there are more of them");
}

#[test]
fn the_target_is_complete_and_the_decision_says_how_much_each_engine_has_grown() {
    let mut brake = Brake::default();
    for (second, gib) in [(0, 1), (1, 9)] {
        let now = START + Duration::from_secs(second);
        brake.measured(now, TOTAL, outside(gib));
        let engines = [OLD, LOADING];
        brake.looked(now, engines.iter().map(|engine| (engine.seen(), engine.phase)), Scope::All);
    }
    let now = START + Duration::from_secs(1);
    assert_eq!(brake.choose(now), Ok(EngineTarget::from(&LOADING.seen())));
    let told: Vec<Evidence> = brake.evidence(now).collect();
    let told: Vec<_> = told.iter().map(|told| (told.series.as_str(), told.value)).collect();
    let grown = [
        ("uma_engine_growth_bytes{engine=\"a\"}", Reading::Value(0.0)),
        ("uma_engine_growth_bytes{engine=\"l\"}", Reading::Value((8 * GIB) as f64)),
    ];
    assert_eq!(told, grown);
}

#[test]
fn what_is_remembered_is_bounded_however_fast_memory_is_sampled() {
    let mut brake = Brake::default();
    for step in 0..20_000 {
        brake.measured(START + Duration::from_millis(step), TOTAL, outside(1));
    }
    assert!(brake.node.len() <= 110, "{}", brake.node.len());
}

fn any_engine(name: &'static str) -> impl Strategy<Value = [Engine; 2]> {
    let phase = prop::sample::select(EnginePhase::ALL.to_vec());
    let amounts = || [0..24 * GIB, 0..24 * GIB, 0..24 * GIB, 0..20_000];
    (phase, amounts(), amounts()).prop_map(move |(phase, before, after)| {
        [before, after].map(|[anonymous, hugetlb, file, cpu_ms]| Engine {
            name,
            phase,
            anonymous,
            hugetlb,
            file,
            cpu_ms,
            ..OLD
        })
    })
}

fn any_taken() -> impl Strategy<Value = Taken> {
    [0..24 * GIB, 0..24 * GIB, 0..24 * GIB].prop_map(|[outside, shmem, anonymous]| Taken {
        outside,
        shmem,
        anonymous,
    })
}

proptest! {
    #[test]
    fn an_idle_engine_that_has_not_grown_is_never_chosen_however_large_it_is(
        size in 0..24 * GIB,
        others in [any_engine("b"), any_engine("c")],
        before in any_taken(),
        after in any_taken(),
    ) {
        let idle = Engine { anonymous: size, hugetlb: size, file: size, ..OLD };
        let of = |place: usize| [idle, others[0][place], others[1][place]];
        let chosen = chosen((before, &of(0)), (after, &of(1)));
        prop_assert_ne!(chosen, Ok("a".to_owned()));
    }

    #[test]
    fn who_is_chosen_has_grown_most_among_its_like_and_with_the_others_as_much_as_all_the_rest(
        engines in [any_engine("b"), any_engine("c"), any_engine("d")],
        before in any_taken(),
        after in any_taken(),
    ) {
        let of = |place: usize| [engines[0][place], engines[1][place], engines[2][place]];
        let chosen = chosen((before, &of(0)), (after, &of(1)));
        if let Ok(name) = chosen {
            let victim = engines.iter().find(|engine| engine[0].name == name).unwrap();
            let phase = victim[0].phase;
            prop_assert!(!matches!(phase, EnginePhase::Stopping | EnginePhase::Gone));
            let grown = |engine: &[Engine; 2]| {
                engine[1].anonymous.saturating_sub(engine[0].anonymous)
                    + engine[1].hugetlb.saturating_sub(engine[0].hugetlb)
            };
            // Somebody has really taken something.
            let taken = after.outside.saturating_sub(before.outside)
                + after.shmem.saturating_sub(before.shmem)
                + after.anonymous.saturating_sub(before.anonymous);
            prop_assert!(taken >= TOTAL / LEAST_SHARE);
            if phase.is_up() {
                let loading = engines.iter().filter(|engine| {
                    matches!(engine[0].phase, EnginePhase::Loading | EnginePhase::Starting)
                });
                for engine in loading {
                    prop_assert!(grown(engine) < (taken / 4).max(TOTAL / LEAST_SHARE));
                }
            }
        }
    }

    #[test]
    fn a_process_that_is_no_engine_changes_nothing_by_its_size(
        size in 0..20 * GIB,
        engines in [any_engine("b"), any_engine("c")],
        before in any_taken(),
        after in any_taken(),
    ) {
        let of = |place: usize| [engines[0][place], engines[1][place]];
        let beside = |taken: Taken| Taken { anonymous: taken.anonymous + size, ..taken };
        let alone = chosen((before, &of(0)), (after, &of(1)));
        prop_assert_eq!(chosen((beside(before), &of(0)), (beside(after), &of(1))), alone);
    }
}

/// A look at those engines, of that scope, so many milliseconds after the start.
fn look(brake: &mut Brake, milliseconds: u64, engines: &[Engine], scope: Scope) {
    let at = START + Duration::from_millis(milliseconds);
    brake.looked(at, engines.iter().map(|engine| (engine.seen(), engine.phase)), scope);
}

/// What is taken then, in GiB, while so much is available.
fn measure(brake: &mut Brake, milliseconds: u64, gib: u64, available_gib: u64) {
    brake.available = Some(available_gib * GIB);
    brake.measured(START + Duration::from_millis(milliseconds), TOTAL, outside(gib));
}

fn choice(brake: &Brake, milliseconds: u64) -> Result<String, HoldReason> {
    let chosen = brake.choose(START + Duration::from_millis(milliseconds));
    chosen.map(|engine| engine.name.to_string())
}

#[test]
fn what_was_taken_since_everybody_was_looked_at_may_be_anybodys() {
    let works = |cpu_ms| Engine { cpu_ms, ..OLD };
    let mut brake = Brake::default();
    measure(&mut brake, 0, 1, 16);
    look(&mut brake, 0, &[works(0)], Scope::All);
    measure(&mut brake, 800, 9, 8);
    assert_eq!(choice(&brake, 800), UNCLEAR, "somebody may have begun since");
    look(&mut brake, 900, &[works(900)], Scope::Known);
    assert_eq!(choice(&brake, 900), UNCLEAR, "nobody has looked for others");
    look(&mut brake, 1_000, &[works(1_000)], Scope::All);
    assert_eq!(choice(&brake, 1_000), Ok("a".to_owned()), "there is nobody else");
    // What comes after that is little beside what it has taken, and soon is not.
    measure(&mut brake, 1_500, 16, 1);
    assert_eq!(choice(&brake, 1_500), Ok("a".to_owned()));
    measure(&mut brake, 1_600, 18, 0);
    assert_eq!(choice(&brake, 1_600), UNCLEAR);
}

#[test]
fn whoever_is_found_to_have_begun_takes_what_was_taken_meanwhile() {
    let mut brake = Brake::default();
    measure(&mut brake, 0, 1, 16);
    look(&mut brake, 0, &[OLD], Scope::All);
    measure(&mut brake, 800, 9, 8);
    let works = Engine { cpu_ms: 900, ..OLD };
    look(&mut brake, 900, &[works, LOADING], Scope::All);
    assert_eq!(choice(&brake, 900), Ok("l".to_owned()));
}

#[test]
fn what_was_taken_while_one_that_has_gone_was_there_is_laid_to_nobody() {
    let mut brake = Brake::default();
    measure(&mut brake, 0, 1, 16);
    look(&mut brake, 0, &[OLD, LOADING], Scope::All);
    measure(&mut brake, 1_000, 13, 4);
    let works = Engine { cpu_ms: 2_000, ..OLD };
    look(&mut brake, 1_100, &[works], Scope::All);
    assert_eq!(choice(&brake, 1_100), UNCLEAR, "the other one has taken it, and is dead");
    let works = Engine { cpu_ms: 2_500, ..OLD };
    measure(&mut brake, 1_200, 13, 4);
    measure(&mut brake, 1_600, 15, 2);
    look(&mut brake, 1_600, &[works], Scope::All);
    assert_eq!(choice(&brake, 1_600), Ok("a".to_owned()), "this goes on without the dead one");
}

#[test]
fn everybody_is_looked_at_when_a_quarter_of_what_is_left_has_gone_unseen() {
    let needs = |brake: &Brake, milliseconds| {
        brake.needs_a_look(START + Duration::from_millis(milliseconds))
    };
    let mut brake = Brake::default();
    measure(&mut brake, 0, 1, 20);
    assert!(!needs(&brake, 0), "there is no engine");
    look(&mut brake, 0, &[OLD], Scope::All);
    measure(&mut brake, 500, 3, 18);
    assert!(!needs(&brake, 500), "there is time until the next look");
    measure(&mut brake, 700, 6, 15);
    assert!(needs(&brake, 700));
    look(&mut brake, 700, &[OLD], Scope::Known);
    assert!(needs(&brake, 700), "others have not been looked for");
    look(&mut brake, 750, &[OLD], Scope::All);
    assert!(!needs(&brake, 750));
    measure(&mut brake, 800, 10, 8);
    assert!(!needs(&brake, 800), "a look takes its time as well");
    assert!(needs(&brake, 850));
    brake.available = None;
    assert!(!needs(&brake, 850), "nobody knows what is left");
}

#[test]
fn an_engine_that_was_loading_a_moment_ago_may_have_taken_what_no_process_shows() {
    let slow = Engine { name: "s", ..LOADING };
    let quick = |phase, file| Engine { name: "q", phase, file, ..LOADING };
    let mut brake = Brake::default();
    measure(&mut brake, 0, 1, 16);
    look(&mut brake, 0, &[slow, quick(EnginePhase::Loading, 0)], Scope::All);
    measure(&mut brake, 2_000, 9, 8);
    let read = quick(EnginePhase::Loading, 8 * GIB);
    look(&mut brake, 2_000, &[slow, read], Scope::All);
    measure(&mut brake, 3_000, 11, 6);
    let ready = quick(EnginePhase::Ready, 8 * GIB);
    look(&mut brake, 3_000, &[slow, ready], Scope::All);
    assert_eq!(choice(&brake, 3_000), Ok("q".to_owned()));
}

#[test]
fn an_engine_that_loads_and_shows_nothing_of_it_is_not_chosen_beside_one_that_grows() {
    let grows = Engine { anonymous: GIB, cpu_ms: 4_000, ..OLD };
    let before = (outside(1), &[OLD, LOADING][..]);
    let taken = Taken { anonymous: GIB, ..outside(9) };
    assert_eq!(chosen(before, (taken, &[grows, LOADING])), UNCLEAR);
    let reads = Engine { file: GIB, ..LOADING };
    assert_eq!(chosen(before, (taken, &[grows, reads])), Ok("l".to_owned()));
}

#[test]
fn what_was_taken_while_nobody_looked_is_laid_to_nobody() {
    let grows = |anonymous| Engine { anonymous, cpu_ms: 4_000, ..OLD };
    let mut brake = Brake::default();
    measure(&mut brake, 0, 1, 16);
    look(&mut brake, 0, &[grows(0), LOADING], Scope::All);
    measure(&mut brake, 12_000, 2, 15);
    measure(&mut brake, 19_000, 12, 5);
    look(&mut brake, 19_500, &[grows(2 * GIB), LOADING], Scope::All);
    assert_eq!(choice(&brake, 19_500), UNCLEAR, "that is the first look for long");
    measure(&mut brake, 20_000, 13, 4);
    look(&mut brake, 20_500, &[grows(2 * GIB), LOADING], Scope::All);
    measure(&mut brake, 20_500, 13, 4);
    assert_eq!(choice(&brake, 20_500), UNCLEAR, "nothing has been taken since");
    measure(&mut brake, 21_000, 15, 2);
    look(&mut brake, 21_000, &[grows(2 * GIB), LOADING], Scope::All);
    assert_eq!(choice(&brake, 21_000), Ok("l".to_owned()));
}
