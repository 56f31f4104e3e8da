//! Model files on overlayfs, as in the image of a container: their pages are those of the files
//! below.

use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::prefetch::{SHARD, touches};
use super::{damon, enabled};
use crate::evict::{Bench, Reader, cached, until};

/// Set in a process that is in a mount namespace of its own.
const INSIDE: &str = "UMAWARDEN_TEST_OVERLAY";

/// Whether a test runs in a mount namespace of its own; otherwise runs it in one.
fn is_inside(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    if !enabled() {
        return false;
    }
    let can = Command::new("unshare").args(["--mount", "true"]).status();
    if !can.is_ok_and(|status| status.success()) {
        eprintln!("skipped: needs root and unshare --mount");
        return false;
    }
    let mut inside = Command::new("unshare");
    inside.arg("--mount").arg(std::env::current_exe().unwrap());
    let test = format!("real::overlay::{test}");
    inside.args([test.as_str(), "--exact", "--nocapture"]);
    assert!(inside.env(INSIDE, "1").status().unwrap().success());
    false
}

/// An overlayfs over a folder; unmounted when dropped.
struct Overlay {
    folder: PathBuf,
    below: File,
    /// An overlayfs without a layer for changes has two layers at least.
    _empty: tempfile::TempDir,
}

impl Overlay {
    fn over(folder: &Path) -> Option<Self> {
        let below = File::open(folder).unwrap();
        let empty = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let layers = format!("lowerdir={}:{}", folder.display(), empty.path().display());
        let mut mount = Command::new("mount");
        let mounted = mount.args(["-t", "overlay", "overlay", "-o", &layers]).arg(folder).status();
        if !mounted.is_ok_and(|status| status.success()) {
            eprintln!("skipped: needs overlayfs");
            return None;
        }
        Some(Self { folder: folder.to_owned(), below, _empty: empty })
    }

    /// The file below one of the overlayfs.
    fn below(&self, file: &Path) -> PathBuf {
        let folder = format!("/proc/self/fd/{}", self.below.as_raw_fd());
        Path::new(&folder).join(file.file_name().unwrap())
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        // What stays mounted goes with the namespace. The evictor may have files open.
        let _ = Command::new("umount").arg("--lazy").arg(&self.folder).status();
    }
}

#[test]
fn mapped_pages_behind_a_reader_on_overlayfs_are_evicted() {
    if !is_inside("mapped_pages_behind_a_reader_on_overlayfs_are_evicted") {
        return;
    }
    // Pages that DAMON isolates for a moment cannot be evicted then.
    let _damon_paused = damon::pause();
    let Some(mut bench) = Bench::new() else { return };
    let model = bench.file("model.safetensors", 256);
    let Some(overlay) = Overlay::over(bench.folder()) else { return };
    let below = overlay.below(&model);
    let mut engine = Reader::start();
    engine.maps(&model);
    engine.does("touch 0 192");
    let effect = bench.evict(vec![engine.id()]).unwrap();
    assert!(effect.starts_with("128.0 MiB evicted; goes on"), "{effect}");
    assert_eq!((cached(&below, 0, 128), cached(&below, 128, 192)), (0, 64));
    engine.does("touch 192 256");
    until("eviction of newly read pages", || cached(&below, 128, 192) == 0);
    bench.ready();
}

#[test]
fn the_next_shard_on_overlayfs_is_read_ahead_and_used() {
    if !is_inside("the_next_shard_on_overlayfs_is_read_ahead_and_used") {
        return;
    }
    let Some(mut bench) = Bench::new() else { return };
    bench.floor_bytes = 0;
    let shard = |number| format!("model-0000{number}-of-00002.safetensors");
    let [first, second] = [1, 2].map(|number| bench.file(&shard(number), SHARD));
    let Some(overlay) = Overlay::over(bench.folder()) else { return };
    // What is read ahead is a share of what is free.
    fs::write("/proc/sys/vm/drop_caches", "1").unwrap();
    let below = overlay.below(&second);
    let mut engine = Reader::start();
    engine.maps(&first);
    bench.evict(vec![engine.id()]).unwrap();
    touches(&mut engine, 192, 16);
    until("a second shard that was read ahead", || cached(&below, 0, SHARD) == SHARD);
    engine.does("touch 192 256");
    engine.does("unmap");
    engine.maps(&second);
    touches(&mut engine, SHARD, 16);
    let note = bench.ready();
    assert!(note.contains(" MiB read ahead, 0 B of it not used"), "{note}");
}
