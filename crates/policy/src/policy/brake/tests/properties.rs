//! Whatever was taken by whomever.

use proptest::prelude::*;

use super::*;

fn any_engine(name: &'static str) -> impl Strategy<Value = [Engine; 2]> {
    let phase = prop::sample::select(EnginePhase::ALL.to_vec());
    let amounts = || [0..24 * GIB, 0..24 * GIB, 0..20_000];
    (phase, amounts(), amounts()).prop_map(move |(phase, before, after)| {
        [before, after].map(|[anonymous, hugetlb, cpu_ms]| Engine {
            name,
            phase,
            anonymous,
            hugetlb,
            cpu_ms,
            ..OLD
        })
    })
}

fn any_taken() -> impl Strategy<Value = Unreclaimable> {
    [0..24 * GIB, 0..24 * GIB, 0..24 * GIB].prop_map(|[outside, shmem, anonymous]| Unreclaimable {
        outside,
        shmem,
        anonymous,
        ..Unreclaimable::default()
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
        let idle = Engine { anonymous: size, hugetlb: size, ..OLD };
        let of = |place: usize| [idle, others[0][place], others[1][place]];
        let chosen = chosen((before, &of(0)), (after, &of(1)));
        prop_assert_ne!(chosen, Ok("a".to_owned()));
    }

    #[test]
    fn the_chosen_engine_has_grown_most_and_engines_at_least_as_much_as_the_rest(
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
    fn the_size_of_other_processes_changes_nothing(
        size in 0..20 * GIB,
        engines in [any_engine("b"), any_engine("c")],
        before in any_taken(),
        after in any_taken(),
    ) {
        let of = |place: usize| [engines[0][place], engines[1][place]];
        let with_other = |taken: Unreclaimable| Unreclaimable { anonymous: taken.anonymous + size, ..taken };
        let alone = chosen((before, &of(0)), (after, &of(1)));
        prop_assert_eq!(chosen((with_other(before), &of(0)), (with_other(after), &of(1))), alone);
    }
}
