//! How much memory must be free while a load goes on, and how many mapped pages must go for it.
//!
//! Evicting a page that a process maps costs the kernel several times what it costs once the
//! process has unmapped it: 0.1 to 0.5 seconds of a processor for each GiB. So mapped pages stay
//! while at any moment as much memory is free as the sum of these pages, of what the engine may
//! allocate at once, and of the floor. Its allocations then find free pages, and leave the floor;
//! meanwhile the mapped pages go. After the last read the engine may allocate its KV cache, so more
//! must be free then than while there is much to read.

use std::fs;
use std::path::Path;

use super::Mounts;
use super::ledger::CHUNK_BYTES;
use crate::model::{EngineTarget, Target};
use crate::parse::process;
use crate::sys::free_memory::FreeMemory;

/// The engine may allocate this part of all memory at once after the last read: its KV cache. An
/// eighth was too little. Of four loads of 23.5 GiB by the safetensors library on as much memory,
/// whose pages of 4 KiB go slowly, two met direct reclaim. More rounds do not help: there, 4.6 GiB
/// of KV cache were allocated between two rounds 20 ms apart.
const KV_CACHE_PART: u64 = 2;

/// The same while the engine has much to read: it allocates weights as it reads them, and maybe
/// those of a smaller model at once.
const READING_PART: u64 = 4;

/// This part of all memory is much to read. At 5 GiB/s it takes 1.5 s on 121 GiB, in which all
/// mapped pages can go.
const MUCH_TO_READ_PART: u64 = 16;

/// Of what was read last, at most this part of the free memory stays: less than 64 MiB once less
/// than a gibibyte is free.
const STAYS_PART: u64 = 16;

/// Bytes of what was read last that may stay: on a starved machine the kernel would reclaim them,
/// and with them what others need.
pub(super) fn may_stay(memory: FreeMemory) -> u64 {
    (memory.free_bytes / STAYS_PART).max(CHUNK_BYTES)
}

/// Bytes that the engine may allocate at once while `to_read` bytes are still to be read.
pub(super) fn allocatable(memory: FreeMemory, to_read: u64) -> u64 {
    match to_read >= memory.total_bytes / MUCH_TO_READ_PART {
        true => memory.total_bytes / READING_PART,
        false => memory.total_bytes / KV_CACHE_PART,
    }
}

/// How many of `evictable` mapped bytes must go, so that `required` and the rest of them are free.
/// Each byte that goes counts twice: it is no longer mapped, and it is free.
pub(super) fn must_go(memory: FreeMemory, evictable: u64, required: u64) -> u64 {
    let missing = required.saturating_add(evictable).saturating_sub(memory.free_bytes);
    missing.div_ceil(2).min(evictable)
}

/// Free memory to keep, in bytes. Where a control group bounds the engine, the node's free memory
/// does not help it.
pub(super) fn floor(sysfs: &Path, wanted: u64, target: &EngineTarget) -> u64 {
    let is_bounded = target.cgroup.as_deref().is_some_and(|group| is_bounded(sysfs, group));
    if is_bounded { u64::MAX } else { wanted }
}

/// Whether a control group limits what the engine reads from disks. What is read ahead of it would
/// not count there.
pub(super) fn limits_reads(sysfs: &Path, target: &EngineTarget) -> bool {
    target.cgroup.as_deref().is_some_and(|group| are_reads_limited(sysfs, group))
}

/// Whether a control group bounds the memory of this process. The page cache that it reads counts
/// there (cgroup-v2.rst, "Memory Ownership").
pub(super) fn is_own_memory_bounded(mounts: &Mounts) -> bool {
    let text = fs::read_to_string(mounts.procfs.join("self/cgroup")).unwrap_or_default();
    process::cgroup(&text).is_some_and(|group| is_bounded(&mounts.sysfs, group))
}

/// Whether a control group, or one above it, bounds memory: the kernel reclaims within the group as
/// soon as that is full.
fn is_bounded(sysfs: &Path, cgroup: &str) -> bool {
    let root = sysfs.join("fs/cgroup");
    let memory = root.join("memory");
    let (root, limits) = if memory.is_dir() {
        (memory, &["memory.limit_in_bytes"][..])
    } else {
        (root, &["memory.max", "memory.high"][..])
    };
    any_has(&root, cgroup, limits, is_limit)
}

fn are_reads_limited(sysfs: &Path, cgroup: &str) -> bool {
    let root = sysfs.join("fs/cgroup");
    let v1 = root.join("blkio");
    if v1.is_dir() {
        let limits = ["blkio.throttle.read_bps_device", "blkio.throttle.read_iops_device"];
        // A device without a limit has no line.
        any_has(&v1, cgroup, &limits, |text| !text.trim().is_empty())
    } else {
        any_has(&root, cgroup, &["io.max"], limits_reads_of_a_device)
    }
}

/// Whether a file of a control group, or of one above it, is so.
fn any_has(root: &Path, cgroup: &str, files: &[&str], is_so: impl Fn(String) -> bool) -> bool {
    if !Target::is_cgroup_path(cgroup) {
        return false;
    }
    let mut group = Some(Path::new(cgroup.trim_start_matches('/')));
    while let Some(path) = group {
        let has = |name| fs::read_to_string(root.join(path).join(name)).is_ok_and(&is_so);
        if files.iter().any(has) {
            return true;
        }
        group = path.parent();
    }
    false
}

/// Of `io.max`: `259:0 rbps=104857600 wbps=max riops=max wiops=max`.
fn limits_reads_of_a_device(text: String) -> bool {
    let mut limits = text.split_ascii_whitespace().filter_map(|word| word.split_once('='));
    limits.any(|(name, limit)| matches!(name, "rbps" | "riops") && limit != "max")
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
    fn mapped_pages_stay_while_free_memory_covers_the_next_allocation() {
        let goes = |free_gib: u64, evictable, floor: u64| {
            let memory = memory(free_gib * GIB, 24 * GIB);
            must_go(memory, evictable, floor.saturating_add(allocatable(memory, 0)))
        };
        let stays = |free_gib: u64| may_stay(memory(free_gib * GIB, 24 * GIB));
        assert_eq!(goes(20, 4 * GIB, 0), 0);
        assert_eq!(goes(16, 4 * GIB, 0), 0, "12 GiB may still be taken");
        assert_eq!(goes(14, 4 * GIB, 0), GIB, "then 15 are free, and 3 stay");
        assert_eq!(goes(0, 2 * GIB, 0), 2 * GIB, "all that there is");
        assert_eq!(goes(20, 4 * GIB, 4 * GIB), 0);
        assert_eq!(goes(20, 4 * GIB, 6 * GIB), GIB);
        assert_eq!(goes(20, 4 * GIB, u64::MAX), 4 * GIB);
        assert_eq!(goes(0, 0, u64::MAX), 0);
        assert_eq!((stays(1), stays(0)), (64 << 20, CHUNK_BYTES));
    }

    #[test]
    fn an_engine_with_much_to_read_allocates_less_at_once() {
        let memory = memory(9 * GIB, 24 * GIB);
        assert_eq!(allocatable(memory, 2 * GIB), 6 * GIB);
        assert_eq!(allocatable(memory, GIB), 12 * GIB);
        assert_eq!(must_go(memory, 2 * GIB, allocatable(memory, 2 * GIB)), 0);
        assert_eq!(must_go(memory, 2 * GIB, allocatable(memory, GIB)), 2 * GIB);
    }

    proptest! {
        #[test]
        fn eviction_is_just_enough_or_everything_evictable(
            free in 0..64 * GIB,
            more in 0..64 * GIB,
            evictable in 0..64 * GIB,
            required in 0..64 * GIB,
        ) {
            let goes = must_go(memory(free, free + more), evictable, required);
            prop_assert!(goes <= evictable);
            prop_assert!(goes == evictable || free + goes >= required + (evictable - goes));
            prop_assert!(goes == 0 || free + goes < required + evictable - goes + 2, "no more");
        }
    }

    #[test]
    fn limits_of_parent_groups_apply_and_max_is_no_limit() {
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

    #[test]
    fn the_limit_of_this_program_is_found_with_and_without_a_namespace_of_control_groups() {
        let folder = tempfile::tempdir().unwrap();
        let mounts =
            Mounts { procfs: folder.path().join("proc"), sysfs: folder.path().join("sys") };
        let cgroups = mounts.sysfs.join("fs/cgroup");
        fs::create_dir_all(mounts.procfs.join("self")).unwrap();
        fs::create_dir_all(cgroups.join("pods/own")).unwrap();
        assert!(!is_own_memory_bounded(&mounts), "unknown");
        for (own, group) in [("0::/pods/own\n", "pods/own"), ("0::/\n", "")] {
            fs::write(mounts.procfs.join("self/cgroup"), own).unwrap();
            let file = cgroups.join(group).join("memory.max");
            for (limit, is_bounded) in [("268435456\n", true), ("max\n", false)] {
                fs::write(&file, limit).unwrap();
                assert_eq!(is_own_memory_bounded(&mounts), is_bounded, "{own}{limit}");
            }
        }
    }

    #[test]
    fn limits_of_reads_are_found_and_those_of_writes_are_not() {
        for (controller, file, none, limited) in [
            ("blkio/", "blkio.throttle.read_bps_device", "", "254:0 104857600\n"),
            ("blkio/", "blkio.throttle.read_iops_device", "", "254:0 100\n"),
            (
                "",
                "io.max",
                "259:0 rbps=max wbps=1048576 riops=max wiops=max\n",
                "8:0 rbps=max wbps=9 riops=max wiops=9\n259:0 rbps=1 wbps=max riops=max\n",
            ),
        ] {
            let sysfs = tempfile::tempdir().unwrap();
            let group = sysfs.path().join(format!("fs/cgroup/{controller}pods/one"));
            fs::create_dir_all(&group).unwrap();
            fs::write(group.join(file), none).unwrap();
            let one = EngineTarget { cgroup: Some("/pods/one".into()), ..EngineTarget::default() };
            assert!(!limits_reads(sysfs.path(), &one), "{file}");
            fs::write(group.parent().unwrap().join(file), limited).unwrap();
            assert!(limits_reads(sysfs.path(), &one), "{file}");
            assert!(!limits_reads(sysfs.path(), &EngineTarget::default()), "{file}");
        }
    }
}
