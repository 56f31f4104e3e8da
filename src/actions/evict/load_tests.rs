use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::actions::evict::ledger::CHUNK_BYTES;
use crate::actions::evict::uses::STILL_ROUNDS;
use crate::model::{Prefetch, ProcessId, RuleId};
use crate::sys::page_cache::{cachestat, reclaim_by_mapping};

fn this() -> ProcessId {
    let stat = procfs::process::Process::myself().unwrap().stat().unwrap();
    ProcessId { pid: std::process::id(), start_ticks: stat.starttime }
}

pub(in crate::actions::evict) fn request(path: &Path) -> EvictRequest {
    let target = EngineTarget {
        processes: vec![this()],
        model_files: vec![Arc::from(path.display().to_string())],
        ..EngineTarget::default()
    };
    let for_at_most = Duration::from_secs(60);
    let rule = RuleId { group: Arc::from("load"), alert: Arc::from("Test") };
    let (behind_bytes, floor_bytes, prefetch) = (CHUNK_BYTES, 0, Prefetch::Off);
    EvictRequest { target, behind_bytes, floor_bytes, prefetch, for_at_most, rule }
}

pub(in crate::actions::evict) fn mounts() -> Mounts {
    Mounts { procfs: "/proc".into(), sysfs: "/sys".into() }
}

/// A file of so many chunks, on disk and cached.
pub(in crate::actions::evict) fn file(folder: &Path, chunks: u64) -> PathBuf {
    let path = folder.join("model.safetensors");
    let mut file = File::create(&path).unwrap();
    let block = vec![1; 1 << 20];
    (0..(chunks * CHUNK_BYTES) >> 20).for_each(|_| file.write_all(&block).unwrap());
    file.sync_all().unwrap();
    path
}

pub(in crate::actions::evict) fn cached(path: &Path) -> u64 {
    let file = File::open(path).unwrap();
    cachestat(file.as_fd(), 0, 0).unwrap().cached * procfs::page_size()
}

pub(in crate::actions::evict) fn may_see(path: &Path) -> bool {
    let file = File::open(path).unwrap();
    let sees = cachestat(file.as_fd(), 0, 0);
    if let Err(error) = &sees {
        eprintln!("skipped: no cachestat here: {error}");
    }
    sees.is_ok()
}

/// A file of so many chunks, this process as its reader, and the load that follows it. `None` where
/// it cannot be seen what is cached.
fn begun(folder: &Path, chunks: u64) -> Option<(PathBuf, File, TrackedLoad)> {
    let path = file(folder, chunks);
    let reader = File::open(&path).unwrap();
    let load = may_see(&path)
        .then(|| TrackedLoad::begin(mounts(), &request(&path), Pulse::default()).unwrap())?;
    Some((path, reader, load))
}

pub(in crate::actions::evict) fn round(load: &mut TrackedLoad) -> EvictRound {
    load.round(&|| false, &mut |_, _| {})
}

#[test]
fn unmapped_read_pages_are_evicted_even_without_cachestat() {
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let Some((path, mut reader, mut load)) = begun(folder.path(), 4) else { return };
    load.limits.sight = Some("an old kernel".to_owned());
    assert_eq!(cached(&path), 4 * CHUNK_BYTES);
    reader.read_exact(&mut vec![0; 50 << 20]).unwrap();
    for _ in 0..=DROP_BLINDLY_EVERY {
        round(&mut load);
    }
    assert_eq!(cached(&path), 30 << 20, "unread and last read chunks stay");
    // A reader whose position does not move reads at offsets of its own, which are not visible.
    for _ in 0..=u64::from(STILL_ROUNDS) + DROP_BLINDLY_EVERY {
        round(&mut load);
    }
    assert_eq!(cached(&path), 0);
    assert_eq!(load.tally(), (0, 0), "what is not seen is not counted");
}

#[test]
fn a_round_stops_between_two_chunks() {
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let Some((_, mut reader, mut load)) = begun(folder.path(), 6) else { return };
    round(&mut load);
    reader.read_exact(&mut vec![0; 5 << 24]).unwrap();
    let checks = std::cell::Cell::new(0);
    let stops = || checks.replace(checks.get() + 1) >= 2;
    let mut left = Vec::new();
    while load.tally().0 == 0 {
        left.clear();
        load.round(&stops, &mut |_, bytes| left.push(bytes));
    }
    assert_eq!(load.tally().0, 2 * CHUNK_BYTES);
    assert_eq!(
        left,
        [4, 3, 2].map(|chunks| chunks * CHUNK_BYTES),
        "bytes still cached after each step"
    );
    round(&mut load);
    assert_eq!(load.tally().0, 4 * CHUNK_BYTES);
}

#[test]
fn a_reader_that_stopped_reading_has_nothing_left_to_read() {
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let Some((_, mut reader, mut load)) = begun(folder.path(), 4) else { return };
    assert_eq!(load.to_read(), 4 * CHUNK_BYTES);
    while load.to_read() == 4 * CHUNK_BYTES {
        reader.read_exact(&mut [0; 4096]).unwrap();
        round(&mut load);
    }
    assert_eq!(load.to_read(), 3 * CHUNK_BYTES);
    for _ in 0..QUIET_ROUNDS {
        round(&mut load);
    }
    assert_eq!(load.to_read(), 0);
    reader.read_exact(&mut [0; 4096]).unwrap();
    round(&mut load);
    assert_eq!(load.to_read(), 3 * CHUNK_BYTES, "it goes on");
}

/// Bytes of which the kernel keeps marks.
fn marked(path: &Path) -> u64 {
    let file = File::open(path).unwrap();
    cachestat(file.as_fd(), 0, 0).unwrap().evicted * procfs::page_size()
}

/// Has the kernel reclaim all of a file, which leaves its marks. False where it does not do that.
fn reclaim(path: &Path) -> bool {
    let reclaimed = reclaim_by_mapping(&File::open(path).unwrap());
    if let Err(error) = &reclaimed {
        eprintln!("skipped: nothing can be paged out here: {error}");
    }
    reclaimed.is_ok()
}

#[test]
fn shadow_entries_are_removed_only_behind_the_readers_and_never_by_sampling() {
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let path = file(folder.path(), 4);
    if !may_see(&path) || !reclaim(&path) {
        return;
    }
    assert_eq!((cached(&path), marked(&path)), (0, 4 * CHUNK_BYTES));
    let mut reader = File::open(&path).unwrap();
    let mut load = TrackedLoad::begin(mounts(), &request(&path), Pulse::default()).unwrap();
    assert_eq!(marked(&path), 4 * CHUNK_BYTES, "sampling, as in observe mode, changes nothing");
    round(&mut load);
    assert_eq!(marked(&path), 4 * CHUNK_BYTES, "nothing is read yet");
    reader.seek(SeekFrom::Start(2 * CHUNK_BYTES + 4096)).unwrap();
    load.round(&|| true, &mut |_, _| {});
    assert_eq!(marked(&path), 4 * CHUNK_BYTES, "the round stops");
    reader.seek(SeekFrom::Start(2 * CHUNK_BYTES + 8192)).unwrap();
    load.sample_file(0);
    round(&mut load);
    assert_eq!(marked(&path), 2 * CHUNK_BYTES);
}

#[test]
fn only_free_memory_above_the_floor_is_to_spare() {
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let request = request(&file(folder.path(), 1));
    let spare = |request: &EvictRequest| {
        TrackedLoad::begin(mounts(), request, Pulse::default()).unwrap().spare_bytes()
    };
    assert!(spare(&request) > 0);
    assert_eq!(spare(&EvictRequest { floor_bytes: u64::MAX, ..request }), 0);
}

#[test]
fn a_target_without_files_is_tracked_and_one_without_processes_is_not() {
    let begin = |request: &EvictRequest| TrackedLoad::begin(mounts(), request, Pulse::default());
    let nothing = Path::new("/nothing/here/*.safetensors");
    for none_yet in [nothing, Path::new("model.safetensors")] {
        let mut load = begin(&request(none_yet)).unwrap();
        assert!(load.knows_no_file() && load.refused().is_none());
        assert_eq!(round(&mut load), EvictRound::default());
    }
    let empty = EvictRequest { target: EngineTarget::default(), ..request(nothing) };
    assert_eq!(begin(&empty).unwrap_err().to_string(), "the engine has no process that is known");
    let load = begin(&request(Path::new("/dev/null"))).unwrap();
    assert_eq!(load.refused(), Some("null: it is no regular file"));
}
