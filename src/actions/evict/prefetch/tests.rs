use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::*;
use crate::actions::evict::Pulse;
use crate::actions::evict::ledger::CHUNK_BYTES;
use crate::actions::evict::load::tests::{cached, file, may_see, mounts, request, round};
use crate::model::ProcessId;
use crate::sys::free_memory::FreeMemory;

/// Opens a file, or reads on in it by 8 MiB, with `direct` past the page cache.
const READER: &str = r#"
while read -r order argument; do
    case $order in
    open) exec 3<"$argument" ;;
    on) dd bs=8M count=1 <&3 >/dev/null 2>&1 ;;
    direct) dd bs=8M count=1 iflag=direct <&3 >/dev/null 2>&1 ;;
    esac
    echo done
done
"#;

/// An engine that reads on command, the load of its two shards, and how much of these is cached.
struct World {
    engine: Child,
    output: BufReader<std::process::ChildStdout>,
    load: TrackedLoad,
    shards: [PathBuf; 2],
    _folder: tempfile::TempDir,
}

impl World {
    /// Shards of six chunks, of which nothing is cached. `None` where that cannot be seen.
    fn new(wanted: Prefetch) -> Option<Self> {
        // /tmp may be a tmpfs.
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let place = folder.path();
        let shards = [1, 2].map(|number| place.join(format!("model-0000{number}-of-00002.gguf")));
        for shard in &shards {
            fs::rename(file(place, 6), shard).unwrap();
            let shard = File::open(shard).unwrap();
            rustix::fs::fadvise(&shard, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        }
        let mut command = Command::new("sh");
        command.args(["-c", READER]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut engine = command.spawn().unwrap();
        let output = BufReader::new(engine.stdout.take().unwrap());
        let pid = engine.id();
        let stat = procfs::process::Process::new(pid.try_into().unwrap()).unwrap().stat().unwrap();
        let mut request = EvictRequest { prefetch: wanted, ..request(&place.join("*.gguf")) };
        request.target.processes = vec![ProcessId { pid, start_ticks: stat.starttime }];
        let mut load = TrackedLoad::begin(mounts(), &request, Pulse::default()).unwrap();
        load.free_memory = || FreeMemory { free_bytes: 16 << 30, total_bytes: 64 << 30 };
        // These tests may run within a limit.
        load.prefetcher = Prefetcher::new(wanted, None);
        let sees = may_see(&shards[0]);
        let world = Self { engine, output, load, shards, _folder: folder };
        sees.then_some(world)
    }

    fn engine(&mut self, order: &str) {
        writeln!(self.engine.stdin.as_mut().unwrap(), "{order}").unwrap();
        self.output.read_line(&mut String::new()).unwrap();
        round(&mut self.load);
    }

    fn opens(&mut self, shard: usize) {
        let path = self.shards[shard].clone();
        self.engine(&format!("open {}", path.display()));
        self.load.discover();
        round(&mut self.load);
    }

    fn reads_on(&mut self, mib: usize) {
        (0..mib / 8).for_each(|_| self.engine("on"));
    }

    /// Waits until both shards were read ahead, as far as the engine has left them.
    fn waits_for_all(&mut self) {
        let done = |world: &Self| world.load.prefetcher.tally().read_bytes >= 7 * CHUNK_BYTES;
        assert!(self.until(done), "{:?}", self.load);
        assert!(self.until(|world| world.load.prefetcher.plan.is_idle()), "{:?}", self.load);
        assert_eq!(self.cached_of(1), 6 * CHUNK_BYTES);
    }

    /// Chunks of a shard that the reader has not begun.
    fn waiting_of(&self, shard: usize) -> usize {
        let reader = self.load.prefetcher.reader.as_ref().unwrap();
        reader.waiting().iter().filter(|id| id.file == shard).count()
    }

    fn cached_of(&self, shard: usize) -> u64 {
        cached(&self.shards[shard])
    }

    /// Rounds until it is so, for ten seconds at most.
    fn until(&mut self, is_so: impl Fn(&Self) -> bool) -> bool {
        (0..1_000).any(|_| {
            round(&mut self.load);
            std::thread::sleep(Duration::from_millis(10));
            is_so(self)
        })
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.engine.kill();
        let _ = self.engine.wait();
    }
}

#[test]
fn the_rest_of_a_file_and_the_next_shard_are_read_ahead_and_used() {
    let Some(mut world) = World::new(Prefetch::On) else { return };
    world.opens(0);
    world.reads_on(40);
    world.waits_for_all();
    let ahead = world.load.prefetcher.tally().read_bytes;
    world.reads_on(56);
    world.opens(1);
    world.reads_on(96);
    let is_used = |world: &World| world.load.prefetcher.plan.chunks().next().is_none();
    assert!(world.until(is_used), "{:?}", world.load);
    world.load.end_read_ahead(None);
    let tally = world.load.prefetcher.tally();
    assert_eq!((tally.read_bytes, tally.unused_bytes), (ahead, 0), "{:?}", world.load);
}

#[test]
fn what_was_read_ahead_for_nothing_leaves_memory_at_the_end() {
    let Some(mut world) = World::new(Prefetch::On) else { return };
    world.opens(0);
    world.reads_on(40);
    world.waits_for_all();
    // As if it read slowly: what it may have read since the last round is little.
    world.load.leap_bytes = 0;
    world.load.end_read_ahead(None);
    assert_eq!(world.cached_of(1), 0);
    let tally = world.load.prefetcher.tally();
    assert!(tally.unused_bytes >= 6 * CHUNK_BYTES && tally.unused_bytes <= tally.read_bytes);
}

#[test]
fn nothing_is_read_ahead_of_an_engine_that_reads_past_the_page_cache_what_is_cached() {
    let Some(mut world) = World::new(Prefetch::On) else { return };
    // As after a download.
    drop(fs::read(&world.shards[0]).unwrap());
    world.opens(0);
    world.engine("direct");
    world.load.discover();
    for _ in 0..10 {
        world.engine("direct");
    }
    world.until(|world| world.load.rounds > 60);
    assert_eq!(world.load.prefetcher.tally(), AheadTally::default(), "{:?}", world.load);
    assert_eq!(world.cached_of(1), 0);
}

#[test]
fn what_was_vain_at_an_earlier_load_ends_it_with_that_reason_unless_it_is_on() {
    let nowhere = Mounts { procfs: "/nowhere".into(), sysfs: "/nowhere".into() };
    let reason = |prefetch, is_vain| {
        let mut request = EvictRequest { prefetch, ..request(Path::new("/m/model.gguf")) };
        request.target.is_prefetch_vain = is_vain;
        Prefetcher::new(prefetch, forbidden(&nowhere, &request)).ended
    };
    assert_eq!(reason(Prefetch::Auto, true).as_deref(), Some(VAIN));
    for (prefetch, is_vain) in
        [(Prefetch::Auto, false), (Prefetch::On, true), (Prefetch::Off, true)]
    {
        assert_eq!(reason(prefetch, is_vain), None, "{prefetch}");
    }
}

/// A world in which chunks of both shards wait to be read.
fn waiting() -> Option<World> {
    let mut world = World::new(Prefetch::On)?;
    world.load.prefetcher.reader = Some(PrefetchReader::stuck());
    world.opens(0);
    world.reads_on(40);
    assert!(world.waiting_of(0) > 0 && world.waiting_of(1) > 0, "{:?}", world.load);
    Some(world)
}

#[test]
fn what_waits_to_be_read_is_taken_back_where_memory_is_short_and_wanted_again_later() {
    let Some(mut world) = waiting() else { return };
    world.load.free_memory = || FreeMemory { free_bytes: 64 << 20, total_bytes: 64 << 30 };
    round(&mut world.load);
    assert_eq!((world.waiting_of(0), world.waiting_of(1)), (0, 0));
    world.load.free_memory = || FreeMemory { free_bytes: 16 << 30, total_bytes: 64 << 30 };
    round(&mut world.load);
    assert!(world.waiting_of(0) > 0 && world.waiting_of(1) == 6, "{:?}", world.load);
}

#[test]
fn what_waits_to_be_read_is_taken_back_where_the_engine_was_faster_or_has_closed_the_file() {
    let Some(mut world) = waiting() else { return };
    world.reads_on(40);
    assert!(world.waiting_of(0) <= 1, "{:?}", world.load);
    world.opens(1);
    assert_eq!(world.waiting_of(0), 0, "{:?}", world.load);
}

/// Seconds of uptime.
static NOW: AtomicU64 = AtomicU64::new(0);

#[test]
fn what_waits_to_be_read_is_taken_back_while_others_use_the_disk() {
    let Some(mut world) = waiting() else { return };
    let sysfs = tempfile::tempdir().unwrap();
    let device = world.load.files.files[0].identity.device;
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let stat = sysfs.path().join(format!("dev/block/{major}:{minor}/stat"));
    fs::create_dir_all(stat.parent().unwrap()).unwrap();
    world.load.mounts.sysfs = sysfs.path().to_owned();
    world.load.files.pulse = Pulse::new(|| Duration::from_secs(NOW.load(Ordering::Relaxed)));
    for (second, sectors, is_busy) in [(1, 0, false), (2, 8 << 20, true), (3, 8 << 20, false)] {
        NOW.store(second, Ordering::Relaxed);
        fs::write(&stat, format!("1 0 {sectors} 1 1 0 0 1 0 1 1")).unwrap();
        round(&mut world.load);
        assert_eq!(world.waiting_of(1) == 0, is_busy, "{second}");
    }
}

#[test]
fn nothing_is_read_ahead_where_it_is_off_or_unproven_or_limited_or_the_cache_cannot_be_seen() {
    let cases = [
        (Prefetch::Off, ""),
        (Prefetch::Auto, ""),
        (Prefetch::On, "blind"),
        (Prefetch::On, "limited"),
    ];
    for (wanted, obstacle) in cases {
        let Some(mut world) = World::new(wanted) else { return };
        match obstacle {
            "blind" => world.load.limits.sight = Some("an old kernel".to_owned()),
            "limited" => world.load.prefetcher = Prefetcher::new(wanted, Some(LIMITED)),
            _ => {}
        }
        world.opens(0);
        world.reads_on(96);
        world.until(|world| world.load.rounds > 60);
        assert_eq!(world.load.prefetcher.tally(), AheadTally::default(), "{wanted}, {obstacle}");
        assert_eq!(world.cached_of(1), 0, "{wanted}, {obstacle}");
        assert_eq!(world.load.prefetcher.ended.is_some(), !obstacle.is_empty());
    }
    assert!(Prefetcher::new(Prefetch::Off, Some(LIMITED)).ended.is_none());
}
