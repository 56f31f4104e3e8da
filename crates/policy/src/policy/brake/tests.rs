mod properties;

use std::sync::Arc;

use super::figures::Amounts;
use super::*;
use crate::model::{Basis, EngineKind};

const GIB: u64 = 1 << 30;
const TOTAL: u64 = 24 * GIB;
/// Later than any window since boot.
const START: Duration = Duration::from_secs(1_000);

/// An engine of one process in one sample.
#[derive(Clone, Copy, Debug)]
struct Engine {
    name: &'static str,
    phase: EnginePhase,
    anonymous: u64,
    hugetlb: u64,
    cpu_ms: u64,
    age: Duration,
    /// Whether it has the driver open.
    opens: bool,
}

const OLD: Engine = Engine {
    name: "a",
    phase: EnginePhase::Serving,
    anonymous: 0,
    hugetlb: 0,
    cpu_ms: 0,
    age: Duration::from_secs(500),
    opens: true,
};

impl Engine {
    fn id(&self) -> ProcessId {
        let started = (START.saturating_sub(self.age).as_millis() / 10) as u64;
        let pid = 1_000 + u32::from(self.name.as_bytes()[0]);
        ProcessId { pid, start_ticks: started }
    }

    fn seen(&self) -> EngineSeen {
        let id = self.id();
        let process = EngineProcess {
            cpu_ms: self.cpu_ms,
            hugetlb_bytes: Reading::Value(self.hugetlb),
            ..EngineProcess::holding(id, self.name, self.anonymous)
        };
        let name = Arc::from(self.name);
        EngineSeen::new(name, EngineKind::Vllm, id, vec![process], Arc::from("test"))
    }
}

/// A process of no engine.
fn other(memory: ProcessMemory) -> ProcessMemory {
    let id = ProcessId { pid: 77, start_ticks: 1 };
    ProcessMemory { id, comm: Arc::from("other"), ..memory }
}

/// A scan that finds those engines and that memory of others.
fn scan(engines: &[Engine], others: &[ProcessMemory]) -> ProcessScan {
    let users = engines.iter().filter(|engine| engine.opens).map(Engine::id).collect();
    let (memory, hidden) = (others.to_vec(), Vec::new());
    ProcessScan { memory, socket_bytes: 0, users, hidden, is_whole: true }
}

/// What there is at one moment.
#[derive(Clone, Debug, Default)]
struct Scene {
    taken: Unreclaimable,
    engines: Vec<Engine>,
    others: Vec<ProcessMemory>,
    /// The driver's figures, by the engine's name; those of other processes by "-".
    figures: Vec<(&'static str, u64)>,
}

impl Scene {
    fn amounts(&self) -> Amounts<u32> {
        let pid = |name: &str| {
            let engine = self.engines.iter().find(|engine| engine.name == name);
            engine.map_or(78, |engine| engine.id().pid)
        };
        self.figures.iter().map(|(name, bytes)| (pid(name), *bytes)).collect()
    }

    fn show(&self, brake: &mut Brake, now: Duration) {
        brake.measured(now, TOTAL, self.taken);
        brake.scanned(now, scan(&self.engines, &self.others));
        if !self.figures.is_empty() {
            brake.figures.answered(now, self.amounts());
        }
        let engines = self.engines.iter().map(|engine| (engine.seen(), engine.phase));
        brake.take_engines(now, engines, Scope::All);
    }
}

/// A brake that saw five seconds from one scene to another, both in steps of a second.
fn seen(before: &Scene, after: &Scene) -> (Brake, Duration) {
    let mut brake = Brake::default();
    let mut now = START;
    for step in 0..=5 {
        now = START + Duration::from_secs(step);
        let scene = if step < 3 { before } else { after };
        scene.show(&mut brake, now);
    }
    (brake, now)
}

fn chosen_of(before: &Scene, after: &Scene) -> Result<String, HoldReason> {
    let (brake, now) = seen(before, after);
    brake.choose(now).map(|engine| engine.name.to_string())
}

type Usage<'e> = (Unreclaimable, &'e [Engine]);

/// The same where only engines have memory, and the driver reports nothing.
fn chosen(before: Usage<'_>, after: Usage<'_>) -> Result<String, HoldReason> {
    let scene = |(taken, engines): (Unreclaimable, &[Engine])| Scene {
        taken,
        engines: engines.to_vec(),
        ..Scene::default()
    };
    chosen_of(&scene(before), &scene(after))
}

fn outside(gib: u64) -> Unreclaimable {
    Unreclaimable { outside: gib * GIB, ..Unreclaimable::default() }
}

const LOADING: Engine = Engine { name: "l", phase: EnginePhase::Loading, ..OLD };
const UNCLEAR: Result<String, HoldReason> = Err(HoldReason::UnclearTarget);

/// It ran in the meantime.
fn works(engine: Engine) -> Engine {
    Engine { cpu_ms: engine.cpu_ms + 4_000, ..engine }
}

const SHUT: Engine = Engine { opens: false, ..OLD };

#[test]
fn uncounted_growth_belongs_to_the_only_engine_with_the_driver_open() {
    let served = Engine { anonymous: 8 * GIB, ..SHUT };
    let before = (outside(1), &[served, LOADING][..]);
    let after = [works(served), works(LOADING)];
    assert_eq!(chosen(before, (outside(9), &after)), Ok("l".to_owned()));
    let idle = [works(served), LOADING];
    assert_eq!(chosen(before, (outside(9), &idle)), UNCLEAR, "it has not run");
    let both = Engine { opens: true, ..served };
    let before = (outside(1), &[both, LOADING][..]);
    assert_eq!(chosen(before, (outside(9), &[both, works(LOADING)])), UNCLEAR, "two have it open");
    let none = Engine { opens: false, ..LOADING };
    let before = (outside(1), &[none][..]);
    assert_eq!(chosen(before, (outside(9), &[works(none)])), UNCLEAR, "no process has it open");
}

/// A brake that saw one engine load alone while 8 GiB went outside of all counters.
fn one_that_took() -> (Brake, Duration) {
    let scene = |gib, engine: Engine| Scene {
        taken: outside(gib),
        engines: vec![engine],
        ..Scene::default()
    };
    seen(&scene(1, LOADING), &scene(9, works(LOADING)))
}

#[test]
fn another_or_unseen_user_of_the_driver_spares_the_engine() {
    let (mut brake, now) = one_that_took();
    assert!(brake.choose(now).is_ok());
    let later = now + Duration::from_millis(200);
    let alone = scan(&[LOADING], &[]);
    let mut users = alone.users.clone();
    users.push(ProcessId { pid: 9, start_ticks: 9 });
    brake.scanned(later, ProcessScan { users, ..alone });
    assert_eq!(brake.choose(later), Err(HoldReason::UnclearTarget));
    brake.scanned(later, ProcessScan { is_whole: false, ..scan(&[LOADING], &[]) });
    assert_eq!(brake.choose(later), Err(HoldReason::UnclearTarget));
    brake.figures.askers = vec![9];
    let own = ProcessId { pid: 9, start_ticks: 9 };
    let alone = scan(&[LOADING], &[]);
    brake.scanned(later, ProcessScan { users: [alone.users, vec![own]].concat(), ..alone });
    assert!(brake.choose(later).is_ok(), "this program asks the driver, and takes nothing");
}

#[test]
fn an_unreadable_process_spares_the_engine_only_while_it_runs() {
    let (mut brake, now) = one_that_took();
    let id = ProcessId { pid: 1, start_ticks: 0 };
    let hidden = |cpu_ms| ProcessScan {
        hidden: vec![HiddenProcess { id, cpu_ms }],
        ..scan(&[LOADING], &[])
    };
    brake.scans = History::default();
    brake.scanned(START, hidden(50_000));
    brake.scanned(now, hidden(50_010));
    assert!(brake.choose(now).is_ok(), "it rests");
    let later = now + APART * 2;
    brake.scanned(later, hidden(53_000));
    assert_eq!(brake.choose(later), Err(HoldReason::UnclearTarget), "it may have taken it");
}

#[test]
fn huge_pages_that_a_process_shows_are_its_own() {
    let grown = Engine { hugetlb: 8 * GIB, ..OLD };
    let other = Engine { name: "b", ..OLD };
    let before = (outside(1), &[OLD, other][..]);
    assert_eq!(chosen(before, (outside(9), &[grown, works(other)])), Ok("a".to_owned()));
}

#[test]
fn huge_pages_pipes_and_sockets_of_others_are_not_the_engines() {
    let huge = ProcessMemory { hugetlb_bytes: 8 * GIB, ..ProcessMemory::default() };
    let pipes = ProcessMemory { pipe_bytes: 8 * GIB, ..ProcessMemory::default() };
    let sockets = ProcessMemory { socket_bytes: 8 * GIB, ..ProcessMemory::default() };
    for memory in [huge, pipes, sockets] {
        for engine in [LOADING, OLD] {
            let before = Scene { taken: outside(1), engines: vec![engine], ..Scene::default() };
            let after = Scene {
                taken: outside(9),
                engines: vec![works(engine)],
                others: vec![other(memory.clone())],
                ..Scene::default()
            };
            let (brake, now) = seen(&before, &after);
            assert_eq!(brake.choose(now), Err(HoldReason::UnclearTarget), "{memory:?}");
            let account = Account::of(&brake, now, CLOSE).report(now);
            assert_eq!(account.of_label("other_processes"), 8 * GIB);
            assert_eq!(account.of_label("unattributed"), 0);
        }
    }
}

#[test]
fn pipes_that_an_engine_fills_are_its_own() {
    let before = Scene { taken: outside(1), engines: vec![SHUT], ..Scene::default() };
    let own = ProcessMemory { id: SHUT.id(), pipe_bytes: 8 * GIB, ..ProcessMemory::default() };
    let after = Scene {
        taken: outside(9),
        engines: vec![works(SHUT)],
        others: vec![own],
        ..Scene::default()
    };
    assert_eq!(chosen_of(&before, &after), Ok("a".to_owned()));
}

#[test]
fn the_drivers_figures_choose_between_two_loading_engines() {
    let two = [LOADING, Engine { name: "m", ..LOADING }];
    let scene = |gib, figures: &[(&'static str, u64)]| Scene {
        taken: outside(gib),
        engines: if gib == 1 { two.to_vec() } else { two.map(works).to_vec() },
        figures: figures.to_vec(),
        ..Scene::default()
    };
    let before = scene(1, &[("l", GIB), ("m", GIB)]);
    let after = scene(9, &[("l", GIB), ("m", 9 * GIB)]);
    assert_eq!(chosen_of(&before, &after), Ok("m".to_owned()));
    let both = scene(9, &[("l", 5 * GIB), ("m", 5 * GIB)]);
    assert_eq!(chosen_of(&before, &both), UNCLEAR);
    assert_eq!(chosen_of(&scene(1, &[]), &scene(9, &[])), UNCLEAR, "unreported");
}

#[test]
fn growth_that_the_driver_attributes_to_others_stops_no_engine() {
    let scene = |gib, engine: Engine, figures: &[(&'static str, u64)]| Scene {
        taken: outside(gib),
        engines: vec![engine],
        figures: figures.to_vec(),
        ..Scene::default()
    };
    let before = scene(1, OLD, &[("a", 8 * GIB)]);
    let after = scene(9, works(OLD), &[("a", 8 * GIB), ("-", 8 * GIB)]);
    assert_eq!(chosen_of(&before, &after), UNCLEAR);
    let (brake, now) = seen(&before, &after);
    let account = Account::of(&brake, now, CLOSE).report(now);
    assert_eq!(account.of_label("driver_other"), 8 * GIB);
    assert_eq!(account.entries[0].basis, Basis::DriverFigures);
    // It reports no growth, although memory has gone by then.
    let after = scene(9, works(OLD), &[("a", 8 * GIB)]);
    assert_eq!(chosen_of(&before, &after), UNCLEAR);
}

#[test]
fn the_drivers_last_figures_are_extrapolated_for_a_short_time() {
    let two = [OLD, Engine { name: "b", ..OLD }];
    let mut brake = Brake::default();
    let show = |brake: &mut Brake, second: u64, gib: u64, figures: Option<u64>| {
        let engines = if second == 0 { two } else { two.map(works) };
        let figures = figures.map(|gib| vec![("a", gib * GIB), ("b", GIB)]);
        let scene = Scene {
            taken: outside(gib),
            engines: engines.to_vec(),
            figures: figures.unwrap_or_default(),
            ..Scene::default()
        };
        scene.show(brake, START + Duration::from_secs(second));
    };
    show(&mut brake, 0, 1, Some(1));
    show(&mut brake, 2, 3, Some(3));
    // Silent from here on.
    show(&mut brake, 4, 5, None);
    show(&mut brake, 6, 7, None);
    assert_eq!(choice(&brake, 6_000), Ok("a".to_owned()), "at the same pace");
    let age =
        Account::of(&brake, START + Duration::from_secs(6), CLOSE).report(START).driver_figures_age;
    assert_eq!(age, Some(Duration::from_secs(4)));
    show(&mut brake, 7, 40, None);
    assert_eq!(choice(&brake, 7_000), UNCLEAR, "far more is gone than at that pace");
    for second in 8..19 {
        show(&mut brake, second, 32 + second, None);
    }
    assert_eq!(choice(&brake, 18_000), UNCLEAR, "too old");
}

#[test]
fn a_lone_serving_engine_is_chosen_only_while_it_works() {
    assert_eq!(chosen((outside(1), &[OLD]), (outside(9), &[works(OLD)])), Ok("a".to_owned()));
    assert_eq!(chosen((outside(1), &[OLD]), (outside(9), &[OLD])), UNCLEAR, "idle");
    let barely = Engine { cpu_ms: 40, ..OLD };
    assert_eq!(chosen((outside(1), &[OLD]), (outside(9), &[barely])), UNCLEAR, "idle");
}

#[test]
fn memory_of_an_ending_engine_is_not_attributed_to_a_serving_one() {
    let leaking = Engine { name: "e", ..OLD };
    let left = Engine { phase: EnginePhase::Stopping, ..works(leaking) };
    let before = (outside(1), &[OLD, leaking][..]);
    assert_eq!(chosen(before, (outside(9), &[works(OLD), left])), UNCLEAR);
    let gone = Engine { opens: false, ..left };
    assert_eq!(chosen(before, (outside(9), &[works(OLD), gone])), Ok("a".to_owned()));
}

#[test]
fn slow_growth_is_attributed_over_minutes() {
    let mut brake = Brake::default();
    let engine = |second: u64| Engine { cpu_ms: second * 500, ..LOADING };
    let mut now = START;
    // 8 MiB a second.
    for second in 0..240 {
        now = START + Duration::from_secs(second);
        let scene = Scene {
            taken: Unreclaimable { outside: second * (8 << 20), ..Unreclaimable::default() },
            engines: vec![engine(second)],
            ..Scene::default()
        };
        scene.show(&mut brake, now);
    }
    assert_eq!(brake.taken(brake.since(now, CLOSE)).sum(), 80 << 20);
    assert_eq!(brake.choose(now).unwrap().name, "l".into());
    // A process of no engine with as much growth makes it unclear.
    let memory = ProcessMemory { hugetlb_bytes: GIB, ..ProcessMemory::default() };
    brake.scanned(now + APART * 2, scan(&[engine(239)], &[other(memory)]));
    assert_eq!(brake.choose(now), Err(HoldReason::UnclearTarget));
}

#[test]
fn growing_slab_is_the_kernels_and_swapped_memory_may_be_compressed() {
    let slab = Unreclaimable { kernel: 16 * GIB, ..outside(2) };
    assert_eq!(chosen((outside(1), &[LOADING]), (slab, &[works(LOADING)])), UNCLEAR);
    let swapped = Unreclaimable { swapped: 8 * GIB, ..outside(9) };
    assert_eq!(chosen((outside(1), &[LOADING]), (swapped, &[works(LOADING)])), UNCLEAR);
}

#[test]
fn loading_comes_before_serving_when_both_grow() {
    let (small, large) = (3 * GIB, 5 * GIB);
    let served = Engine { anonymous: large, ..OLD };
    let loading = Engine { anonymous: small, ..LOADING };
    let taken = Unreclaimable { anonymous: 8 * GIB, ..Unreclaimable::default() };
    let chosen = chosen((Unreclaimable::default(), &[OLD, LOADING]), (taken, &[served, loading]));
    assert_eq!(chosen, Ok("l".to_owned()));
}

#[test]
fn growth_mostly_of_others_stops_no_engine() {
    let taken = Unreclaimable { anonymous: 8 * GIB, ..Unreclaimable::default() };
    let loading = Engine { anonymous: GIB, ..LOADING };
    assert_eq!(chosen((Unreclaimable::default(), &[LOADING]), (taken, &[loading])), UNCLEAR);
    let shmem = Unreclaimable { shmem: 8 * GIB, ..Unreclaimable::default() };
    assert_eq!(chosen((Unreclaimable::default(), &[LOADING]), (shmem, &[LOADING])), UNCLEAR);
    assert_eq!(chosen((outside(9), &[LOADING]), (outside(9), &[LOADING])), UNCLEAR, "none");
}

#[test]
fn an_ending_engine_is_not_stopped() {
    let ending = Engine { phase: EnginePhase::Stopping, cpu_ms: 4_000, ..OLD };
    assert_eq!(chosen((outside(1), &[ending]), (outside(9), &[ending])), UNCLEAR);
}

#[test]
fn a_young_engine_found_full_has_grown_from_zero() {
    let young = Engine { age: Duration::from_secs(2), hugetlb: 8 * GIB, ..LOADING };
    let other = Engine { name: "m", ..LOADING };
    let mut brake = Brake::default();
    for (second, gib) in [(0, 1), (4, 9)] {
        brake.measured(START + Duration::from_secs(second), TOTAL, outside(gib));
        sample(&mut brake, second * 1_000, &[other], Scope::All);
    }
    let now = START + Duration::from_secs(4);
    let engines = [young, other];
    brake.take_engines(now, engines.iter().map(|engine| (engine.seen(), engine.phase)), Scope::All);
    assert_eq!(&*brake.choose(now).unwrap().name, "l");
}

#[test]
fn no_engine_is_chosen_by_outdated_samples() {
    let mut brake = Brake::default();
    assert_eq!(brake.choose(START), Err(HoldReason::NoTarget));
    brake.measured(START, TOTAL, outside(1));
    brake.take_engines(START, std::iter::empty(), Scope::All);
    brake.scanned(START, scan(&[], &[]));
    assert_eq!(brake.choose(START), Err(HoldReason::NoTarget), "no engine runs here");
    let new = Engine { cpu_ms: 500, age: Duration::ZERO, ..LOADING };
    let engines = || std::iter::once((new.seen(), new.phase));
    let now = START + Duration::from_secs(1);
    brake.measured(now, TOTAL, outside(9));
    brake.take_engines(now, engines(), Scope::All);
    brake.scanned(now, scan(&[new], &[]));
    assert!(brake.choose(now).is_ok());
    let later = now + FRESH + Duration::from_millis(1);
    assert_eq!(brake.choose(later), Err(HoldReason::UnclearTarget), "seen long ago");
    brake.take_engines(later, engines(), Scope::Cut);
    brake.measured(later, TOTAL, outside(9));
    assert_eq!(brake.choose(later), Err(HoldReason::UnclearTarget), "there are more of them");
}

#[test]
fn the_decision_has_the_whole_target_and_the_growth_of_each_engine() {
    let mut brake = Brake::default();
    for (second, gib) in [(0, 1), (1, 9)] {
        let now = START + Duration::from_secs(second);
        brake.measured(now, TOTAL, outside(gib));
        let engines = [SHUT, Engine { cpu_ms: second * 900, ..LOADING }];
        brake.take_engines(
            now,
            engines.iter().map(|engine| (engine.seen(), engine.phase)),
            Scope::All,
        );
        brake.scanned(now, scan(&engines, &[]));
    }
    let now = START + Duration::from_secs(1);
    assert_eq!(brake.choose(now).unwrap().name, EngineTarget::from(&LOADING.seen()).name);
    let report = brake.evidence(now);
    let report: Vec<_> =
        report.iter().map(|report| (report.series.as_str(), report.value)).collect();
    let grown = [
        ("uma_engine_growth_bytes{engine=\"a\"}", Reading::Value(0.0)),
        ("uma_engine_growth_bytes{engine=\"l\"}", Reading::Value((8 * GIB) as f64)),
        ("uma_memory_growth_evidence_age_seconds{source=\"processes\"}", Reading::Value(0.0)),
    ];
    assert_eq!(report, grown);
}

/// A sample of those engines, of that scope, so many milliseconds after the start.
fn sample(brake: &mut Brake, milliseconds: u64, engines: &[Engine], scope: Scope) {
    let at = START + Duration::from_millis(milliseconds);
    if scope == Scope::All {
        brake.scanned(at, scan(engines, &[]));
    }
    brake.take_engines(at, engines.iter().map(|engine| (engine.seen(), engine.phase)), scope);
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
fn growth_since_the_last_scan_may_be_any_process() {
    let works = |cpu_ms| Engine { cpu_ms, ..OLD };
    let mut brake = Brake::default();
    measure(&mut brake, 0, 1, 16);
    sample(&mut brake, 0, &[works(0)], Scope::All);
    measure(&mut brake, 800, 9, 8);
    assert_eq!(choice(&brake, 800), UNCLEAR, "a process may have started since");
    sample(&mut brake, 900, &[works(900)], Scope::Known);
    assert_eq!(choice(&brake, 900), UNCLEAR, "without a scan for others");
    sample(&mut brake, 1_000, &[works(1_000)], Scope::All);
    assert_eq!(choice(&brake, 1_000), Ok("a".to_owned()), "there is no other process");
    // What comes after that is little compared with its growth, and soon is not.
    measure(&mut brake, 1_500, 16, 1);
    assert_eq!(choice(&brake, 1_500), Ok("a".to_owned()));
    measure(&mut brake, 1_600, 18, 0);
    assert_eq!(choice(&brake, 1_600), UNCLEAR);
}

#[test]
fn growth_before_an_engine_is_found_belongs_to_it() {
    let mut brake = Brake::default();
    measure(&mut brake, 0, 1, 16);
    sample(&mut brake, 0, &[SHUT], Scope::All);
    measure(&mut brake, 800, 9, 8);
    let began = Engine { age: Duration::ZERO, cpu_ms: 500, ..LOADING };
    sample(&mut brake, 900, &[SHUT, began], Scope::All);
    assert_eq!(choice(&brake, 900), Ok("l".to_owned()));
}

#[test]
fn growth_during_a_vanished_process_is_attributed_to_no_engine() {
    let mut brake = Brake::default();
    measure(&mut brake, 0, 1, 16);
    sample(&mut brake, 0, &[OLD, LOADING], Scope::All);
    measure(&mut brake, 1_000, 13, 4);
    let works = Engine { cpu_ms: 2_000, ..OLD };
    sample(&mut brake, 1_100, &[works], Scope::All);
    assert_eq!(choice(&brake, 1_100), UNCLEAR, "the other one has taken it, and is dead");
    let works = Engine { cpu_ms: 2_500, ..OLD };
    measure(&mut brake, 1_200, 13, 4);
    measure(&mut brake, 1_600, 15, 2);
    sample(&mut brake, 1_600, &[works], Scope::All);
    assert_eq!(choice(&brake, 1_600), Ok("a".to_owned()), "this goes on without the dead one");
}

#[test]
fn a_larger_growth_before_an_end_spares_the_engine_that_took_the_rest() {
    let mut brake = Brake::default();
    let mut show = |milliseconds, gib, pipes_gib, engines: &[Engine]| {
        let at = START + Duration::from_millis(milliseconds);
        brake.measured(at, TOTAL, outside(gib));
        let pipes =
            other(ProcessMemory { pipe_bytes: pipes_gib * GIB, ..ProcessMemory::default() });
        brake.scanned(at, scan(engines, &[pipes]));
        let seen = engines.iter().map(|engine| (engine.seen(), engine.phase));
        brake.take_engines(at, seen, Scope::All);
        choice(&brake, milliseconds)
    };
    show(0, 1, 0, &[OLD, LOADING]).unwrap_err();
    show(4_000, 21, 16, &[OLD, LOADING]).unwrap_err();
    show(5_000, 17, 16, &[works(OLD)]).unwrap_err();
    assert_eq!(show(6_000, 19, 16, &[works(works(OLD))]), UNCLEAR);
    for second in 7..=13 {
        show(second * 1_000, 19, 16, &[works(works(OLD))]).unwrap_err();
    }
    let thrice = works(works(works(OLD)));
    assert_eq!(show(16_000, 21, 16, &[thrice]), Ok("a".to_owned()));
}

#[test]
fn a_full_scan_is_due_when_a_quarter_of_free_memory_went_unseen() {
    let needs = |brake: &Brake, milliseconds| {
        brake.needs_sample(START + Duration::from_millis(milliseconds))
    };
    let mut brake = Brake::default();
    measure(&mut brake, 0, 1, 20);
    assert!(!needs(&brake, 0), "there is no engine");
    sample(&mut brake, 0, &[OLD], Scope::All);
    measure(&mut brake, 500, 3, 18);
    assert!(!needs(&brake, 500), "there is time until the next sample");
    measure(&mut brake, 700, 6, 15);
    assert!(needs(&brake, 700));
    sample(&mut brake, 700, &[OLD], Scope::Known);
    assert!(needs(&brake, 700), "without a scan for others");
    sample(&mut brake, 750, &[OLD], Scope::All);
    assert!(!needs(&brake, 750));
    measure(&mut brake, 800, 10, 8);
    assert!(!needs(&brake, 800), "a sample takes its time as well");
    assert!(needs(&brake, 850));
    brake.available = None;
    assert!(!needs(&brake, 850), "the rest is unknown");
}

#[test]
fn a_recently_loading_engine_may_own_uncounted_growth() {
    let idle = Engine { cpu_ms: 1, ..LOADING };
    let ready = Engine { phase: EnginePhase::Ready, ..idle };
    let mut brake = Brake::default();
    measure(&mut brake, 0, 1, 16);
    sample(&mut brake, 0, &[LOADING], Scope::All);
    measure(&mut brake, 2_000, 9, 8);
    sample(&mut brake, 2_000, &[ready], Scope::All);
    assert_eq!(choice(&brake, 2_000), Ok("l".to_owned()));
}

#[test]
fn growth_without_samples_is_attributed_to_no_engine() {
    let grows = |anonymous| Engine { anonymous, cpu_ms: 4_000, ..SHUT };
    let works = |second: u64| Engine { cpu_ms: second * 500, ..LOADING };
    let mut brake = Brake::default();
    measure(&mut brake, 0, 1, 16);
    sample(&mut brake, 0, &[grows(0), works(0)], Scope::All);
    measure(&mut brake, 12_000, 2, 15);
    measure(&mut brake, 19_000, 12, 5);
    sample(&mut brake, 19_500, &[grows(2 * GIB), works(19)], Scope::All);
    assert_eq!(choice(&brake, 19_500), UNCLEAR, "that is the first sample for long");
    measure(&mut brake, 20_000, 13, 4);
    sample(&mut brake, 20_500, &[grows(2 * GIB), works(20)], Scope::All);
    measure(&mut brake, 20_500, 13, 4);
    assert_eq!(choice(&brake, 20_500), UNCLEAR, "nothing has been taken since");
    measure(&mut brake, 21_000, 15, 2);
    sample(&mut brake, 21_000, &[grows(2 * GIB), works(21)], Scope::All);
    assert_eq!(choice(&brake, 21_000), Ok("l".to_owned()));
}
