//! Reading ahead of an engine that maps its shards.

use std::fs;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;

use super::enabled;
use crate::evict::{Bench, Reader, cached, until};

/// The size of a shard in MiB: 16 pieces, of which nine show how the engine reads.
pub(super) const SHARD: u64 = 256;

/// Two shards that nothing has cached, and a machine with free memory.
fn prepared() -> Option<(Bench, [PathBuf; 2])> {
    if !enabled() {
        return None;
    }
    let mut bench = Bench::new()?;
    bench.floor_bytes = 0;
    let shard = |number| format!("model-0000{number}-of-00002.safetensors");
    let shards = [1, 2].map(|number| bench.file(&shard(number), SHARD));
    // What is read ahead is a share of what is free.
    fs::write("/proc/sys/vm/drop_caches", "1").unwrap();
    Some((bench, shards))
}

/// Uses the first `used` of every 16 MiB up to an end, as slowly as rounds can follow.
pub(super) fn touches(engine: &mut Reader, to: u64, used: u64) {
    for begin in (0..to).step_by(16) {
        engine.does(&format!("touch {begin} {}", begin + used));
        sleep(Duration::from_millis(40));
    }
}

#[test]
fn the_next_shard_is_read_ahead_and_used() {
    let Some((mut bench, [first, second])) = prepared() else { return };
    let mut engine = Reader::start();
    engine.maps(&first);
    bench.evict(vec![engine.id()]).unwrap();
    touches(&mut engine, 192, 16);
    until("a second shard that was read ahead", || cached(&second, 0, SHARD) == SHARD);
    engine.does("touch 192 256");
    engine.does("unmap");
    engine.maps(&second);
    touches(&mut engine, SHARD, 16);
    let note = bench.ready();
    assert!(note.contains(" MiB read ahead, 0 B of it not used"), "{note}");
}

#[test]
fn nothing_is_read_ahead_of_an_engine_that_reads_half_of_everything() {
    let Some((mut bench, [first, second])) = prepared() else { return };
    let mut engine = Reader::start();
    engine.maps(&first);
    bench.evict(vec![engine.id()]).unwrap();
    touches(&mut engine, SHARD, 8);
    let note = bench.ready();
    assert!(!note.contains("read ahead"), "{note}");
    assert_eq!(cached(&second, 0, SHARD), 0);
}

#[test]
fn nothing_is_read_ahead_of_an_engine_that_reads_backward_faster_than_rounds_follow() {
    let Some((mut bench, [first, second])) = prepared() else { return };
    let mut engine = Reader::start();
    engine.maps(&first);
    bench.evict(vec![engine.id()]).unwrap();
    for end in (1..=SHARD / 8).rev() {
        engine.does(&format!("touch {} {}", 8 * (end - 1), 8 * end));
    }
    // What was read is found in ascending order.
    sleep(Duration::from_millis(500));
    let note = bench.ready();
    assert!(!note.contains("read ahead"), "{note}");
    assert_eq!(cached(&second, 0, SHARD), 0);
}

/// Two ranks use their halves of tensors of 32 MiB, the second one a little later.
fn share(ranks: &mut [Reader; 2], to: u64) {
    for begin in (0..to).step_by(32) {
        for (rank, half) in ranks.iter_mut().zip([begin, begin + 16]) {
            rank.does(&format!("touch {half} {}", half + 16));
            sleep(Duration::from_millis(25));
        }
    }
}

#[test]
fn the_next_shard_of_ranks_that_each_read_half_of_each_tensor_is_read_ahead_and_used() {
    if !enabled() {
        return;
    }
    const OF_RANKS: u64 = 896;
    let Some(mut bench) = Bench::new() else { return };
    bench.floor_bytes = 0;
    let shard = |number| format!("model-0000{number}-of-00002.safetensors");
    let [first, second] = [1, 2].map(|number| bench.file(&shard(number), OF_RANKS));
    fs::write("/proc/sys/vm/drop_caches", "1").unwrap();
    let mut ranks = [Reader::start(), Reader::start()];
    ranks.iter_mut().for_each(|rank| rank.maps(&first));
    bench.evict(ranks.iter().map(Reader::id).collect()).unwrap();
    share(&mut ranks, OF_RANKS);
    until("a second shard that is read ahead", || cached(&second, 0, OF_RANKS) >= 256);
    ranks.iter_mut().for_each(|rank| rank.does("unmap"));
    ranks.iter_mut().for_each(|rank| rank.maps(&second));
    share(&mut ranks, OF_RANKS);
    let note = bench.ready();
    assert!(note.contains(" read ahead, 0 B of it not used"), "{note}");
}

#[test]
fn what_was_read_ahead_of_a_killed_engine_leaves_memory() {
    let Some((mut bench, [first, second])) = prepared() else { return };
    let mut engine = Reader::start();
    engine.maps(&first);
    bench.evict(vec![engine.id()]).unwrap();
    touches(&mut engine, 160, 16);
    until("a second shard that was read ahead", || cached(&second, 0, SHARD) == SHARD);
    drop(engine);
    let note = bench.final_note();
    assert!(note.contains("since the engine has ended") && note.contains("read ahead"), "{note}");
    // Not what the kernel or the last job has read.
    let tally = bench.evictor.tally();
    assert!(2 * tally.unused_bytes >= tally.prefetched_bytes, "{note}");
    // The next load is read ahead of again: the engine has passed nothing over.
    let readings = bench.evictor.take_readings();
    assert_eq!(readings[0].reading.unused_bytes, 0, "{note}");
    // The kernel may be reading on when it is evicted.
    assert!(cached(&second, 0, SHARD) <= 16, "{}", cached(&second, 0, SHARD));
}

#[test]
fn a_shard_before_the_first_that_is_open_stays_until_the_engine_goes_by_numbers() {
    if !enabled() {
        return;
    }
    let Some(mut bench) = Bench::new() else { return };
    bench.floor_bytes = 0;
    let shards =
        [1, 2, 3, 4].map(|number| bench.file(&format!("model-{number}-of-4.safetensors"), 128));
    shards.iter().for_each(|shard| drop(fs::read(shard).unwrap()));
    let mut engine = Reader::start();
    let mut reads = |bench: &mut Bench, shard: usize| {
        engine.does(&format!("open {}", shards[shard].display()));
        if shard == 1 {
            bench.evict(vec![engine.id()]).unwrap();
        }
        engine.does("read 128");
        // Two shards that begin in one round show no order.
        until("eviction behind the reader", || cached(&shards[shard], 0, 64) == 0);
    };
    reads(&mut bench, 1);
    reads(&mut bench, 2);
    until("the closed shard", || cached(&shards[1], 0, 128) == 0);
    let kept = cached(&shards[0], 0, 128);
    assert!(kept >= 96, "{kept} of 128 MiB that may not have been read");
    reads(&mut bench, 3);
    until("the first shard", || cached(&shards[0], 0, 128) == 0);
    bench.ready();
}
