//! How much memory is free, and how much of what lies behind the readers must go for it.
//!
//! To take a page out of a process costs the kernel several times what it costs once the process
//! has let go of it: 0.1 to 0.5 seconds of a processor for each GiB. So mapped pages lie as long as
//! they do not matter: while at any moment as much is free as lies there, as what the engine may
//! still take at once, and a floor besides. What it takes then finds free pages, and leaves the
//! floor; while it takes them the others go. Once all has been read the KV cache may come, so that
//! more must be free then than while there is much to read.

use std::fs;
use std::path::Path;

use super::ledger::CHUNK_BYTES;
use crate::model::Target;
use crate::sys::free_memory::FreeMemory;

/// One part in this many of all memory may be taken at once where all has been read: the KV cache
/// is still to come. An eighth was too little: of four loads of 23.5 GiB by the safetensors library
/// on as much memory, whose pages of 4 KiB go slowly, two met direct reclaim. Nobody can look often
/// enough instead: 4.6 GiB of KV cache were taken there between two looks 20 ms apart.
const TO_COME_PART: u64 = 2;

/// The same while the engine reads on, and has much to read yet: it takes weights at the pace of
/// its reading, and maybe those of a smaller model at once.
const TO_COME_READING_PART: u64 = 4;

/// Much to read is one part in this many of all memory: at 5 GiB/s it lasts 1.5 s on 121 GiB, in
/// which all that lies can go.
const MUCH_TO_READ_PART: u64 = 16;

/// Of what is free, one part in this many at most is what was read last and stays: with 64 MiB,
/// that is less once less than a gibibyte is free.
const STAYS_PART: u64 = 16;

/// How much of what was read last may stay: on a starved machine the kernel would take it
/// otherwise, and what others need with it.
pub(super) fn may_stay(memory: FreeMemory) -> u64 {
    (memory.free_bytes / STAYS_PART).max(CHUNK_BYTES)
}

/// How much the engine may take at once, where so much is still to be read (0: nobody knows of
/// any more).
pub(super) fn to_come(memory: FreeMemory, to_read: u64) -> u64 {
    match to_read >= memory.total_bytes / MUCH_TO_READ_PART {
        true => memory.total_bytes / TO_COME_READING_PART,
        false => memory.total_bytes / TO_COME_PART,
    }
}

/// How much of `lying` mapped bytes must go, so that `room` and as much as then still lies there
/// are free. Each byte that goes counts twice: it no longer lies there, and is free.
pub(super) fn must_go(memory: FreeMemory, lying: u64, room: u64) -> u64 {
    let missing = room.saturating_add(lying).saturating_sub(memory.free_bytes);
    missing.div_ceil(2).min(lying)
}

/// Whether a control group, or one above it, bounds memory. What is free on the node says nothing
/// then: the kernel reclaims within the group as soon as that is full.
pub(super) fn is_bounded(sysfs: &Path, cgroup: &str) -> bool {
    if !Target::is_cgroup_path(cgroup) {
        return false;
    }
    let root = sysfs.join("fs/cgroup");
    let memory = root.join("memory");
    let (root, limits) = if memory.is_dir() {
        (memory, &["memory.limit_in_bytes"][..])
    } else {
        (root, &["memory.max", "memory.high"][..])
    };
    let mut group = Some(Path::new(cgroup.trim_start_matches('/')));
    while let Some(path) = group {
        let bounds = |name| fs::read_to_string(root.join(path).join(name)).is_ok_and(is_limit);
        if limits.iter().any(bounds) {
            return true;
        }
        group = path.parent();
    }
    false
}

/// `max`, and on cgroup v1 the most whole pages that a signed word holds, are no limit.
fn is_limit(text: String) -> bool {
    text.trim().parse::<u64>().is_ok_and(|bytes| bytes < 1 << 60)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GIB: u64 = 1 << 30;

    fn memory(free_bytes: u64, total_bytes: u64) -> FreeMemory {
        FreeMemory { free_bytes, total_bytes }
    }

    #[test]
    fn mapped_pages_lie_while_there_is_room_for_what_is_taken_at_once() {
        let goes = |free_gib: u64, lying, floor: u64| {
            let memory = memory(free_gib * GIB, 24 * GIB);
            must_go(memory, lying, floor.saturating_add(to_come(memory, 0)))
        };
        let stays = |free_gib: u64| may_stay(memory(free_gib * GIB, 24 * GIB));
        assert_eq!(goes(20, 4 * GIB, 0), 0);
        assert_eq!(goes(16, 4 * GIB, 0), 0, "12 GiB may still be taken");
        assert_eq!(goes(14, 4 * GIB, 0), GIB, "then 15 are free, and 3 lie there");
        assert_eq!(goes(0, 2 * GIB, 0), 2 * GIB, "all that there is");
        assert_eq!(goes(20, 4 * GIB, 4 * GIB), 0);
        assert_eq!(goes(20, 4 * GIB, 6 * GIB), GIB);
        assert_eq!(goes(20, 4 * GIB, u64::MAX), 4 * GIB);
        assert_eq!(goes(0, 0, u64::MAX), 0);
        assert_eq!((stays(1), stays(0)), (64 << 20, CHUNK_BYTES));
    }

    #[test]
    fn who_has_much_to_read_takes_less_at_once_than_who_has_read_all() {
        let memory = memory(9 * GIB, 24 * GIB);
        assert_eq!(to_come(memory, 2 * GIB), 6 * GIB);
        assert_eq!(to_come(memory, GIB), 12 * GIB);
        assert_eq!(must_go(memory, 2 * GIB, to_come(memory, 2 * GIB)), 0);
        assert_eq!(must_go(memory, 2 * GIB, to_come(memory, GIB)), 2 * GIB);
    }

    proptest! {
        #[test]
        fn what_goes_makes_room_enough_or_is_all(
            free in 0..64 * GIB, more in 0..64 * GIB, lying in 0..64 * GIB, room in 0..64 * GIB,
        ) {
            let goes = must_go(memory(free, free + more), lying, room);
            prop_assert!(goes <= lying);
            prop_assert!(goes == lying || free + goes >= room + (lying - goes));
            prop_assert!(goes == 0 || free + goes < room + lying - goes + 2, "no more");
        }
    }

    #[test]
    fn a_limit_of_a_group_above_counts_and_none_is_none() {
        for (memory, file, none) in [
            ("memory/", "memory.limit_in_bytes", "9223372036854771712\n"),
            ("", "memory.max", "max\n"),
            ("", "memory.high", "max\n"),
        ] {
            let sysfs = tempfile::tempdir().unwrap();
            let group = sysfs.path().join(format!("fs/cgroup/{memory}pods/one"));
            fs::create_dir_all(&group).unwrap();
            fs::write(group.join(file), none).unwrap();
            assert!(!is_bounded(sysfs.path(), "/pods/one"), "{file}");
            fs::write(group.parent().unwrap().join(file), "8589934592\n").unwrap();
            assert!(is_bounded(sysfs.path(), "/pods/one"), "{file}");
            assert!(!is_bounded(sysfs.path(), "/pod"), "{file}");
            assert!(!is_bounded(sysfs.path(), "/../pods"), "{file}");
        }
    }
}
