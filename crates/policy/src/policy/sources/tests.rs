use jiff::Timestamp;
use proptest::prelude::*;

use super::*;

fn schema(number: usize) -> Arc<Schema> {
    // The last one holds a series twice.
    let names = [&["a", "b", "c"][..], &["b", "d"], &["a", "c", "a"]][number];
    Arc::new(Schema { series: names.iter().map(|name| SeriesKey::new(name, &[])).collect() })
}

fn reading() -> impl Strategy<Value = Reading<f64>> {
    prop_oneof![
        6 => (0..3_i32).prop_map(|value| Reading::Value(f64::from(value))),
        1 => prop::sample::select(vec![
            Reading::Failed,
            Reading::Unsupported,
            Reading::Value(-0.0),
            Reading::Value(f64::NAN),
        ]),
    ]
}

fn picture(store: &SeriesStore, ids: &[SeriesId], now_ms: i64) -> String {
    let of = |id: &SeriesId| {
        let points: Vec<_> = store.window(*id, now_ms - 3000, now_ms).points().collect();
        (store.latest(*id), store.at(*id, now_ms), store.at(*id, now_ms - 700), points)
    };
    format!("{:?}", ids.iter().map(of).collect::<Vec<_>>())
}

/// A rule on what is not configured, or has not happened yet, has nothing to read.
#[test]
fn only_what_the_machine_lacks_is_unsupported() {
    let at = Moment { uptime: Duration::from_secs(9), utc: Timestamp::UNIX_EPOCH };
    for (source, is_unsupported) in [
        (Source::Pressure, true),
        (Source::Gpu, true),
        (Source::Daemon, false),
        (Source::BlackBox, false),
        (Source::Alertmanager, false),
    ] {
        let (mut table, mut store) = (SourceTable::default(), SeriesStore::default());
        let (schema, took) = (schema(1), Duration::ZERO);
        let id = store.intern(&schema.series[0]);
        for value in [Reading::Unsupported, Reading::Value(1.0), Reading::Unsupported] {
            let values = vec![value; 2];
            let schema = Arc::clone(&schema);
            table.take(at, &Readings { source, schema, values, took, error: None }, &mut store);
            let lacks = store.latest_read(id) == Some(Reading::Unsupported);
            assert_eq!(lacks, is_unsupported && value == Reading::Unsupported, "{source:?}");
        }
        assert_eq!(store.at(id, at.timeline_ms()), None);
    }
}

proptest! {
    /// A past that is asked for later, other writers, changed schemas and series that are there
    /// twice included.
    #[test]
    fn unchanged_values_read_as_if_written_again(
        runs in prop::collection::vec(
            (0..900_u64, 0..9_usize, prop::collection::vec(reading(), 3), prop::bool::ANY),
            1..40,
        ),
        retained_from in 0..40_usize,
    ) {
        let schemas: Vec<_> = (0..3).map(schema).collect();
        let (mut table, mut store, mut plain) =
            (SourceTable::default(), SeriesStore::default(), SeriesStore::default());
        let ids: Vec<SeriesId> = ["a", "b", "c", "d"]
            .map(|name| SeriesKey::new(name, &[]))
            .iter()
            .map(|key| (store.intern(key), plain.intern(key)).0)
            .collect();
        let mut at = Moment { uptime: Duration::from_secs(9), utc: Timestamp::UNIX_EPOCH };
        let mut current: BTreeMap<Source, usize> = BTreeMap::new();
        let mut values = vec![Reading::Value(1.0); 3];
        for (number, (pause_ms, what, fresh, changes)) in runs.into_iter().enumerate() {
            at.uptime += Duration::from_millis(pause_ms);
            let at_ms = at.timeline_ms();
            if number == retained_from {
                store.retain("b", 2000);
                plain.retain("b", 2000);
            }
            if changes {
                values = fresh;
            }
            if what == 8 {
                store.append(ids[0], at_ms, values[0]);
                plain.append(ids[0], at_ms, values[0]);
            } else {
                let source = if what % 2 == 0 { Source::Meminfo } else { Source::Numa };
                let place = [0, 0, 0, 0, 1, 0, 2, 0][what];
                let series = |place: usize| schemas[place].series.iter();
                let was = current.insert(source, place).filter(|was| *was != place);
                for gone in was.into_iter().flat_map(series) {
                    if !series(place).any(|key| key == gone) {
                        let id = plain.intern(gone);
                        plain.end(id, at_ms);
                    }
                }
                let values: Vec<_> = values.iter().copied().take(series(place).len()).collect();
                for (key, value) in series(place).zip(&values) {
                    let id = plain.intern(key);
                    plain.append(id, at_ms, *value);
                }
                let schema = Arc::clone(&schemas[place]);
                let took = Duration::ZERO;
                let readings = Readings { source, schema, values, took, error: None };
                table.take(at, &readings, &mut store);
            }
            prop_assert_eq!(picture(&store, &ids, at_ms), picture(&plain, &ids, at_ms));
        }
    }
}
