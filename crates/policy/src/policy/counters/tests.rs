use std::time::Duration;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Copy, Debug)]
enum Does {
    Adds(usize),
    Sets(usize, i32),
    Retires(usize),
    Shows,
    Publishes(u64),
    PublishesChanged,
    LosesTheLog,
    ReadsTheLog,
    Notes,
    /// Somebody else writes one of its series.
    IsWritten(usize),
    Retains,
}

fn does() -> impl Strategy<Value = Does> {
    prop_oneof![
        (0..8_usize).prop_map(Does::Adds),
        (0..8_usize, 0..3_i32).prop_map(|(cell, value)| Does::Sets(cell, value)),
        (0..8_usize).prop_map(Does::Retires),
        Just(Does::Shows),
        (1..400_u64).prop_map(Does::Publishes),
        (1..400_u64).prop_map(Does::Publishes),
        Just(Does::PublishesChanged),
        Just(Does::LosesTheLog),
        Just(Does::ReadsTheLog),
        Just(Does::Notes),
        (0..8_usize).prop_map(Does::IsWritten),
        Just(Does::Retains),
    ]
}

/// Every cell's series, as it is and as it was.
fn picture(counters: &Counters, store: &SeriesStore, now_ms: i64) -> String {
    let of = |(id, _): &(SeriesId, Reading<f64>)| {
        let points: Vec<_> = store.window(*id, now_ms - 900, now_ms).points().collect();
        (store.latest(*id), store.at(*id, now_ms), store.at(*id, now_ms - 100), points)
    };
    format!("{:?}", counters.cells.iter().map(of).collect::<Vec<_>>())
}

/// Writes or shows every cell.
fn write_all(counters: &Counters, store: &mut SeriesStore, at_ms: Option<i64>) {
    for (id, reading) in (0..counters.cells.len()).filter_map(|place| counters.reading(place)) {
        match at_ms {
            Some(at_ms) => store.append(id, at_ms, reading),
            None => store.show(id, reading),
        }
    }
}

proptest! {
    #[test]
    fn unchanged_counters_read_as_if_written_again(
        all in prop::collection::vec(does(), 1..60),
    ) {
        let (mut store, mut plain) = (SeriesStore::default(), SeriesStore::default());
        let mut counters = Counters::new(&mut store);
        let _same_series = Counters::new(&mut plain);
        // Four that the kernel log feeds, and four that it does not.
        let others = counters.of_kernel_log..counters.of_kernel_log + 4;
        let cells: Vec<Cell> = (0..4).chain(others).map(Cell).collect();
        let mut at = Moment { uptime: Duration::from_secs(9), utc: Timestamp::UNIX_EPOCH };
        for does in all {
            let at_ms = at.timeline_ms();
            match does {
                Does::Adds(cell) => counters.add(cells[cell], 1.0),
                Does::Sets(cell, value) => counters.set(cells[cell], f64::from(value)),
                Does::Retires(cell) => counters.retire(cells[cell]),
                Does::Shows => {
                    counters.show(&mut store);
                    write_all(&counters, &mut plain, None);
                }
                Does::Publishes(pause_ms) => {
                    at.uptime += Duration::from_millis(pause_ms);
                    counters.publish(at, &mut store);
                    write_all(&counters, &mut plain, Some(at.timeline_ms()));
                }
                // Within a step this follows the other.
                Does::PublishesChanged => {
                    counters.publish(at, &mut store);
                    counters.add(cells[1], 1.0);
                    counters.publish_changed(at, &mut store);
                    write_all(&counters, &mut plain, Some(at_ms));
                }
                Does::LosesTheLog => {
                    counters.set_kernel_log(LogView::Unread, at, &mut store);
                }
                Does::ReadsTheLog => {
                    if !counters.kernel_log_is_believed() {
                        for (id, reading) in &counters.cells[..counters.of_kernel_log] {
                            plain.append(*id, at_ms - 1, *reading);
                        }
                    }
                    counters.set_kernel_log(LogView::Believed, at, &mut store);
                }
                Does::Notes => {
                    let seconds = i64::try_from(at.uptime.as_secs()).unwrap();
                    counters.note_event("oom_kill", Timestamp::from_second(seconds).unwrap());
                }
                Does::IsWritten(cell) => {
                    let id = counters.cells[cells[cell].0].0;
                    store.append(id, at_ms, Reading::Value(7.0));
                    plain.append(id, at_ms, Reading::Value(7.0));
                }
                Does::Retains => {
                    for store in [&mut store, &mut plain] {
                        store.retain("uma_kernel_log_records_total", 500);
                    }
                }
            }
            let now_ms = at.timeline_ms();
            prop_assert_eq!(
                picture(&counters, &store, now_ms),
                picture(&counters, &plain, now_ms),
            );
        }
    }
}
