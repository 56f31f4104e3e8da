use proptest::prelude::*;

use super::*;

const FULL: ChunkSample = ChunkSample { cached: CHUNK_BYTES, read: CHUNK_BYTES };
const AHEAD: ChunkSample = ChunkSample { cached: CHUNK_BYTES, read: 0 };

fn id(chunk: usize) -> ChunkId {
    ChunkId { file: 0, chunk }
}

fn ledger(chunks: u64, keep_chunks: u64) -> LoadLedger {
    let mut ledger = LoadLedger::new(keep_chunks * CHUNK_BYTES);
    ledger.add_file(chunks * CHUNK_BYTES);
    ledger
}

/// What may go, read longest ago first.
fn due(ledger: &LoadLedger, most: u64) -> Vec<ChunkId> {
    let mut due: Vec<DueChunk> = ledger.due(most).collect();
    due.sort_unstable();
    due.into_iter().map(|due| due.id).collect()
}

#[test]
fn a_sparse_file_of_any_length_takes_bounded_memory() {
    let mut ledger = ledger(2, 0);
    ledger.add_file(u64::MAX);
    ledger.add_file(CHUNK_BYTES);
    let chunks = |ledger: &LoadLedger| [0, 1, 2].map(|file| ledger.chunks_not_out(file).len());
    assert_eq!(chunks(&ledger), [2, MOST_CHUNKS - 2, 0]);
    ledger.resize(1, CHUNK_BYTES);
    ledger.resize(2, CHUNK_BYTES);
    assert_eq!(chunks(&ledger), [2, 1, 1]);
}

#[test]
fn the_last_read_chunks_stay_in_any_order_of_reading() {
    let mut ledger = ledger(8, 2);
    for chunk in [5, 0, 7, 2] {
        assert!(ledger.observe(id(chunk), FULL));
    }
    assert_eq!(due(&ledger, u64::MAX), [id(5), id(0)]);
    ledger.record_eviction(id(5), CHUNK_BYTES, ChunkSample::default());
    assert_eq!(ledger.tally().0, CHUNK_BYTES);
    assert_eq!(due(&ledger, u64::MAX), [id(0)]);
}

#[test]
fn chunks_read_ahead_stay_in_any_amount() {
    let mut ledger = ledger(64, 1);
    (2..64).for_each(|chunk| assert!(!ledger.observe(id(chunk), AHEAD)));
    ledger.observe(id(0), FULL);
    ledger.observe(id(1), ChunkSample { cached: CHUNK_BYTES, read: 4096 });
    assert!(due(&ledger, u64::MAX).is_empty());
    ledger.observe(id(1), FULL);
    assert_eq!(due(&ledger, u64::MAX), [id(0)]);
}

#[test]
fn a_chunk_once_read_no_longer_counts_as_unread() {
    let mut ledger = ledger(4, 0);
    ledger.add_file(CHUNK_BYTES / 2);
    assert_eq!(ledger.unread(), 9 * CHUNK_BYTES / 2);
    ledger.observe(id(3), AHEAD);
    ledger.observe(ChunkId { file: 1, chunk: 0 }, AHEAD);
    assert_eq!(ledger.unread(), 9 * CHUNK_BYTES / 2);
    ledger.observe(id(0), FULL);
    ledger.observe(id(1), ChunkSample { cached: CHUNK_BYTES, read: 4096 });
    assert_eq!(ledger.unread(), 5 * CHUNK_BYTES / 2);
    ledger.record_eviction(id(0), CHUNK_BYTES, ChunkSample::default());
    ledger.observe(id(1), ChunkSample::default());
    assert_eq!(ledger.unread(), 5 * CHUNK_BYTES / 2);
}

#[test]
fn a_chunk_being_read_stays_while_it_grows() {
    let mut ledger = ledger(3, 1);
    let half = ChunkSample { cached: CHUNK_BYTES, read: CHUNK_BYTES / 2 };
    ledger.observe(id(0), half);
    ledger.observe(id(1), half);
    ledger.observe(id(0), FULL);
    ledger.observe(id(1), FULL);
    assert!(due(&ledger, u64::MAX).is_empty());
    ledger.observe(id(2), FULL);
    assert_eq!(due(&ledger, u64::MAX), [id(0), id(1)]);
}

#[test]
fn a_chunk_that_could_not_be_evicted_is_not_retried_at_once() {
    let mut ledger = ledger(4, 1);
    ledger.observe(id(0), FULL);
    ledger.observe(id(1), FULL);
    let half = ChunkSample { cached: CHUNK_BYTES / 2, read: CHUNK_BYTES / 2 };
    ledger.record_eviction(id(0), CHUNK_BYTES, half);
    assert_eq!(ledger.tally().0, CHUNK_BYTES / 2);
    assert!(!ledger.observe(id(0), half));
    assert!(due(&ledger, u64::MAX).is_empty());
    ledger.observe(id(2), FULL);
    assert_eq!(due(&ledger, u64::MAX), [id(0), id(1)]);
}

#[test]
fn a_chunk_read_again_is_counted_once_and_widens_the_distance() {
    let mut ledger = ledger(64, 1);
    for chunk in 0..9 {
        ledger.observe(id(chunk), FULL);
    }
    for due in due(&ledger, u64::MAX) {
        ledger.record_eviction(due, CHUNK_BYTES, ChunkSample::default());
    }
    assert_eq!(ledger.tally(), (8 * CHUNK_BYTES, 0));
    for _ in 0..3 {
        for chunk in 0..3 {
            ledger.observe(id(chunk), FULL);
        }
    }
    assert_eq!(ledger.tally(), (8 * CHUNK_BYTES, 3 * CHUNK_BYTES));
    assert_eq!(ledger.keep(), CHUNK_BYTES, "48 MiB say nothing yet");
    ledger.observe(id(3), FULL);
    assert_eq!(ledger.keep(), 2 * CHUNK_BYTES);
}

#[test]
fn a_sequential_reader_does_not_widen_the_distance() {
    let mut ledger = ledger(256, 2);
    for chunk in 0..256 {
        ledger.observe(id(chunk), FULL);
        for due in due(&ledger, u64::MAX) {
            ledger.record_eviction(due, CHUNK_BYTES, ChunkSample::default());
        }
    }
    assert_eq!(ledger.tally(), (254 * CHUNK_BYTES, 0));
    assert_eq!(ledger.keep(), 2 * CHUNK_BYTES);
}

#[test]
fn every_chunk_is_sampled_in_turn() {
    let mut ledger = LoadLedger::new(0);
    for chunks in [3, 0, 5] {
        ledger.add_file(chunks * CHUNK_BYTES);
    }
    let mut seen: Vec<ChunkId> = (0..4).flat_map(|_| ledger.in_turn(2)).collect();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 8);
    assert_eq!(ledger.in_turn(1_000).len(), 8, "none twice");
    assert!(LoadLedger::new(0).in_turn(9).is_empty());
}

#[test]
fn an_unchanged_chunk_is_no_longer_sampled_each_time() {
    let mut ledger = ledger(2, 1);
    ledger.observe(id(0), ChunkSample { cached: CHUNK_BYTES, read: 4096 });
    assert_eq!(ledger.hot(), [id(0)]);
    for _ in 0..HOT_SAMPLES {
        ledger.hot();
    }
    assert!(ledger.hot().is_empty());
}

#[test]
fn the_reader_is_expected_at_the_chunk_after_the_last_read_one() {
    let mut ledger = LoadLedger::new(0);
    ledger.add_file(3 * CHUNK_BYTES + 5_000);
    ledger.observe(id(1), FULL);
    assert_eq!(ledger.hot(), [id(2)]);
    assert_eq!(ledger.frontiers(9), [id(2)]);
    ledger.observe(id(2), FULL);
    assert_eq!(ledger.hot(), [id(3)]);
    ledger.observe(id(3), ChunkSample { cached: 8192, read: 4096 });
    assert_eq!(ledger.hot(), [id(3)], "a part of its last chunk");
    ledger.observe(id(3), ChunkSample { cached: 8192, read: 8192 });
    assert!(ledger.hot().is_empty(), "all of the file has been read");
    assert!(ledger.frontiers(9).is_empty());
    ledger.record_eviction(id(1), CHUNK_BYTES, ChunkSample::default());
    assert_eq!(ledger.chunks_not_out(0), [id(0), id(2), id(3)]);
}

#[test]
fn frontiers_are_sampled_in_turn() {
    let mut ledger = LoadLedger::new(0);
    assert!(ledger.frontiers(3).is_empty());
    (0..5).for_each(|_| ledger.add_file(CHUNK_BYTES));
    let first = |file| ChunkId { file, chunk: 0 };
    assert_eq!(ledger.frontiers(3), [first(0), first(1), first(2)]);
    assert_eq!(ledger.frontiers(3), [first(3), first(4), first(0)]);
    assert_eq!(ledger.frontiers(9).len(), 5, "none twice");
}

proptest! {
    #[test]
    fn the_ledger_stays_consistent_for_any_samples(
        samples in prop::collection::vec(
            (0_usize..3, 0_usize..6, 0..=CHUNK_BYTES, 0..=CHUNK_BYTES, any::<bool>()), 0..200),
        keep in 0..8 * CHUNK_BYTES,
    ) {
        let mut ledger = LoadLedger::new(keep);
        for chunks in [4, 1] {
            ledger.add_file(chunks * CHUNK_BYTES);
        }
        for (file, chunk, cached, read, puts_out) in samples {
            let id = ChunkId { file, chunk };
            ledger.observe(id, ChunkSample { cached, read });
            if puts_out && let Some(due) = due(&ledger, u64::MAX).first() {
                let before = ledger.chunk(*due).unwrap().cached;
                let after = ChunkSample { cached: before.min(cached), read };
                ledger.record_eviction(*due, before, after);
            }
            let (evicted, refaulted) = ledger.tally();
            prop_assert!(refaulted <= evicted);
            prop_assert!(ledger.keep() >= keep);
            let out: u64 = ledger.files.iter().flat_map(|book| &book.chunks).map(|chunk| chunk.out).sum();
            prop_assert_eq!(out, evicted - refaulted);
            for due in due(&ledger, u64::MAX) {
                let chunk = ledger.chunk(due).unwrap();
                prop_assert!(ledger.progress - chunk.read_at >= ledger.keep());
            }
        }
    }
}

#[test]
fn fewer_chunks_stay_when_memory_is_short() {
    let mut ledger = LoadLedger::new(4 * CHUNK_BYTES);
    ledger.add_file(8 * CHUNK_BYTES);
    let whole = ChunkSample { cached: CHUNK_BYTES, read: CHUNK_BYTES };
    for chunk in 0..3 {
        ledger.observe(id(chunk), whole);
    }
    assert!(due(&ledger, u64::MAX).is_empty());
    assert_eq!(due(&ledger, CHUNK_BYTES), [id(0), id(1)]);
    assert_eq!(due(&ledger, 2 * CHUNK_BYTES), [id(0)]);
}
