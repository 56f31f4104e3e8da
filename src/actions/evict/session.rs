//! The thread that tracks one load.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use super::limits::EvictionLimits;
use super::load::{EvictRound, LoadState, TrackedLoad};
use super::prefetch::AheadTally;
use super::process::TrackedProcess;
use super::shards::FileSuccession;
use super::{Control, EvictRequest, EvictShared, LEASED, Mounts, NotEvicted, keep, lock};
use crate::actions::drop_caches;
use crate::model::{
    CacheKind, DecisionId, EngineTarget, LoadReading, TrackedReading, bytes_text, duration_text,
};

/// The time between two rounds while the engine reads fast.
const SOONEST: Duration = Duration::from_millis(10);

/// The time between two rounds while it reads slowly, or not at all. A flood of 4 GiB/s that begins
/// right after a round has brought 80 MiB by the next.
const LATEST: Duration = Duration::from_millis(20);

/// The same while it goes on reading and much is free: its speed is known, and each round costs.
const STEADY: Duration = Duration::from_millis(100);

/// After a read has begun, rounds are [`SOONEST`] apart for this time. Its speed is not known yet,
/// and what a flood has brought must be found before the next round.
const BEGINS_FOR: Duration = Duration::from_millis(50);

/// Without progress for this time, the engine no longer reads, or rests: one that reads large
/// pieces shows nothing between two of them.
const RESTS_AFTER: Duration = Duration::from_millis(100);

/// Free memory above the floor that counts as much: four times what is read in [`STEADY`] at
/// 5 GiB/s.
const MUCH_FREE_BYTES: u64 = 2 << 30;

/// About this part of the free memory above the floor is read between two rounds, within bounds:
/// evicting much at once costs less.
const READ_BETWEEN_PART: u64 = 32;
const LEAST_READ_BETWEEN_BYTES: u64 = 48 << 20;
const MOST_READ_BETWEEN_BYTES: u64 = 512 << 20;

/// A tracked load.
struct EvictSession {
    load: TrackedLoad,
    /// The last known state of the engine.
    target: EngineTarget,
    control: Arc<Control>,
    ends_at: Duration,
    /// The start of the last round.
    round_at: Duration,
    /// From there to the next round.
    pace: Duration,
    /// When the engine began to read, unless it rests, and its last progress.
    reads: Option<(Duration, Duration)>,
    /// What of this load is in the shared tally: evicted and refaulted bytes.
    counted: (u64, u64),
    /// What was read ahead for it, of which the shared tally knows.
    counted_ahead: AheadTally,
    /// Bytes that had been read ahead in vain when the engine was last seen to read.
    unused_when_read: u64,
}

/// Tracks a load until it ends, and replies with the effect of the first pass. It ends as well once
/// the evictor is dropped.
pub(super) fn track(
    weak: &Weak<EvictShared>,
    mounts: Mounts,
    request: &EvictRequest,
    control: &Arc<Control>,
    reply: &Sender<Result<String, NotEvicted>>,
) {
    let Some(shared) = weak.upgrade() else { return };
    let begun = EvictSession::begin(&shared, mounts, request, control);
    let (session, answer) = match begun {
        Ok((session, words)) => (session, Ok(words)),
        Err(why) => {
            // It tracks nothing: the next act on this load begins anew.
            let _ = control.stop.set("it could not begin");
            (None, Err(why))
        }
    };
    drop(shared);
    // The act may not have waited.
    let _ = reply.send(answer);
    let Some(mut session) = session else { return };
    loop {
        thread::sleep(session.pace);
        let Some(shared) = weak.upgrade() else { return };
        // A panic is a bug of ours; a note must say that the load is no longer tracked.
        let ended = catch_unwind(AssertUnwindSafe(|| session.round(&shared)))
            .unwrap_or(Some("of a panic, which is a bug"));
        if let Some(why) = ended {
            return session.end(&shared, why);
        }
    }
}

impl EvictSession {
    /// The load after its first pass, and the effect of that. `None` if it has ended by then.
    fn begin(
        shared: &EvictShared,
        mounts: Mounts,
        request: &EvictRequest,
        control: &Arc<Control>,
    ) -> Result<(Option<Self>, String), NotEvicted> {
        let procfs = mounts.procfs.clone();
        let mut load =
            TrackedLoad::begin(mounts, request, control.pulse.clone()).map_err(|error| {
                let why = error.to_string();
                if error.has_no_process() {
                    NotEvicted::Untouched(why)
                } else {
                    NotEvicted::Failed(why)
                }
            })?;
        load.succession = FileSuccession::new(&request.target.read_order);
        // It goes on all the same: what cannot be opened now may be later, and nothing is dropped
        // twice.
        let instead = match control.stop.get() {
            None => without_files(&procfs, &load)?,
            Some(_) => None,
        };
        let ends_at = (shared.uptime)().saturating_add(request.for_at_most);
        let round_at = (shared.uptime)();
        let (pace, reads, counted) = (SOONEST, None, (0, 0));
        let (target, control) = (request.target.clone(), Arc::clone(control));
        let (counted_ahead, unused_when_read) = (AheadTally::default(), 0);
        let mut session = Self {
            load,
            target,
            control,
            ends_at,
            round_at,
            pace,
            reads,
            counted,
            counted_ahead,
            unused_when_read,
        };
        shared.begun.fetch_add(1, Ordering::Release);
        let ended = session.round(shared);
        let words = instead.into_iter().chain([session.effect(request.for_at_most)]);
        let words = words.collect::<Vec<_>>().join("; ");
        match ended {
            Some(why) => {
                session.end(shared, why);
                Ok((None, words))
            }
            None => Ok((Some(session), words)),
        }
    }

    /// One round; returns the reason if it was the last one.
    fn round(&mut self, shared: &EvictShared) -> Option<&'static str> {
        let control = Arc::clone(&self.control);
        control.pulse.beat();
        let stops = || control.stop.get().is_some() || (shared.uptime)() >= self.ends_at;
        if let Some(target) = lock(&self.control.now).take().filter(|now| *now != self.target) {
            self.load.renew(&target);
            self.target = target;
        }
        let mut counted = self.counted;
        let now = (shared.uptime)();
        let since = now.saturating_sub(std::mem::replace(&mut self.round_at, now));
        let EvictRound { read_bytes, is_over } = if stops() {
            EvictRound::default()
        } else {
            self.load.round(&stops, &mut |(evicted, refaulted), evictable| {
                shared.evicted_bytes.fetch_add(evicted - counted.0, Ordering::Relaxed);
                shared.refaulted_bytes.fetch_add(refaulted - counted.1, Ordering::Relaxed);
                control.evicted_bytes.store(evicted, Ordering::Relaxed);
                control.evictable_bytes.store(evictable, Ordering::Relaxed);
                counted = (evicted, refaulted);
            })
        };
        self.counted = counted;
        self.count_ahead(shared);
        if read_bytes > 0 {
            self.unused_when_read = self.counted_ahead.unused_bytes;
        }
        self.reads = reads(self.reads, now, read_bytes);
        let reads_for = self.reads.map(|(begun, _)| now.saturating_sub(begun));
        self.pace = pace(reads_for, since, read_bytes, self.load.spare_bytes());
        if is_over {
            return Some("the engine has ended");
        }
        let is_late = || ((shared.uptime)() >= self.ends_at).then_some("its time is over");
        self.control.stop.get().copied().or_else(is_late)
    }

    fn count_ahead(&mut self, shared: &EvictShared) {
        let now = self.load.prefetcher.tally();
        let before = std::mem::replace(&mut self.counted_ahead, now);
        let (read, unused) =
            (now.read_bytes - before.read_bytes, now.unused_bytes - before.unused_bytes);
        shared.prefetched_bytes.fetch_add(read, Ordering::Relaxed);
        shared.unused_bytes.fetch_add(unused, Ordering::Relaxed);
    }

    fn end(mut self, shared: &EvictShared, why: &'static str) {
        // The first reason is kept.
        let _ = self.control.stop.set(why);
        self.load.end_read_ahead(None);
        self.count_ahead(shared);
        self.report_reading(shared);
        let (evicted, refaulted) = self.load.tally();
        let words = format!(
            "evict_checkpoint of engine {} ended, since {why}: {} evicted, {} of it came back{}{}",
            self.control.target.name,
            bytes_text(evicted),
            bytes_text(refaulted),
            read_ahead(&self.load),
            limits(&self.load),
        );
        keep(&shared.notes, words);
    }

    /// Reports how the engine has read, for the receipt of its load.
    fn report_reading(&mut self, shared: &EvictShared) {
        let Some(server) = self.control.server() else { return };
        let AheadTally { read_bytes, unused_bytes } = self.load.prefetcher.tally();
        // What was ahead of an engine that died says nothing about how it reads.
        let has_died = !self.load.processes.iter().any(TrackedProcess::lives);
        let reading = LoadReading {
            order: self.load.succession.take_order(),
            prefetched_bytes: read_bytes,
            unused_bytes: if has_died { self.unused_when_read } else { unused_bytes },
        };
        let engine = Arc::clone(&self.control.target.name);
        keep(&shared.readings, TrackedReading { engine, server: *server, reading });
    }

    /// The effect so far, and what goes on.
    fn effect(&self, for_at_most: Duration) -> String {
        let (evicted, _) = self.load.tally();
        let state = self.load.state();
        format!(
            "{} evicted; goes on behind the readers for {} at most, keeps the last {}; nothing to \
             undo{}{}{}",
            bytes_text(evicted),
            duration_text(for_at_most),
            bytes_text(state.keeps_bytes),
            unknown(&self.load),
            evictable(state),
            limits(&self.load),
        )
    }
}

/// When the engine began to read, and its last progress, after a round that found `read_bytes`
/// more.
fn reads(
    before: Option<(Duration, Duration)>,
    now: Duration,
    read_bytes: u64,
) -> Option<(Duration, Duration)> {
    let rests = |(_, last): &(Duration, Duration)| now.saturating_sub(*last) >= RESTS_AFTER;
    match before {
        Some((begun, _)) if read_bytes > 0 => Some((begun, now)),
        None if read_bytes > 0 => Some((now, now)),
        before => before.filter(|before| !rests(before)),
    }
}

/// The time until the next round. `reads_for`: how long the engine has read (`None`: it rests);
/// `read_bytes`: what it read in the time `since` the last round; `spare_bytes`: free memory above
/// the floor.
fn pace(
    reads_for: Option<Duration>,
    since: Duration,
    read_bytes: u64,
    spare_bytes: u64,
) -> Duration {
    let latest = match reads_for {
        Some(reads_for) if reads_for < BEGINS_FOR => return SOONEST,
        Some(_) if spare_bytes >= MUCH_FREE_BYTES => STEADY,
        _ => LATEST,
    };
    let between =
        (spare_bytes / READ_BETWEEN_PART).clamp(LEAST_READ_BETWEEN_BYTES, MOST_READ_BETWEEN_BYTES);
    let wanted = since.as_secs_f64() * between as f64 / read_bytes.max(1) as f64;
    Duration::from_secs_f64(wanted.clamp(SOONEST.as_secs_f64(), latest.as_secs_f64()))
}

/// What limits the eviction, for texts.
fn limits(load: &TrackedLoad) -> String {
    let EvictionLimits { sight, page_out } = load.limits();
    let leased = load.leased().map(|name| format!("{name}: {LEASED}"));
    let all = [sight, page_out, &leased].into_iter().flatten();
    all.map(|limit| format!("; {limit}")).collect()
}

/// What was read ahead, for texts.
fn read_ahead(load: &TrackedLoad) -> String {
    let AheadTally { read_bytes, unused_bytes } = load.prefetcher.tally();
    let why = load.prefetcher.ended.as_ref();
    if read_bytes == 0 {
        return why.map(|why| format!("; nothing was read ahead, since {why}")).unwrap_or_default();
    }
    let ended = why.map(|why| format!(", and it was ended, since {why}")).unwrap_or_default();
    format!(
        "; {} read ahead, {} of it not used{ended}",
        bytes_text(read_bytes),
        bytes_text(unused_bytes)
    )
}

/// Says that no model file is known yet.
fn unknown(load: &TrackedLoad) -> &'static str {
    if load.knows_no_file() { "; no model file of it is known yet" } else { "" }
}

/// Pages that do not have to go yet.
fn evictable(state: LoadState) -> String {
    match state.evictable_bytes {
        0 => String::new(),
        evictable => format!(
            "; {} that is mapped or may not have been read stays until memory is short",
            bytes_text(evictable)
        ),
    }
}

/// Examines what a decision would evict, and notes it.
pub(super) fn rehearse(
    weak: &Weak<EvictShared>,
    mounts: Mounts,
    request: &EvictRequest,
    control: &Control,
    decision: DecisionId,
) {
    let words = rehearsal(mounts, request, control);
    if let Some(shared) = weak.upgrade() {
        keep(&shared.notes, rehearsed(decision, words));
    }
}

fn rehearsal(mounts: Mounts, request: &EvictRequest, control: &Control) -> Result<String, String> {
    let load = TrackedLoad::begin(mounts, request, control.pulse.clone());
    let load = load.map_err(|error| error.to_string())?;
    let state = load.state();
    Ok(format!(
        "would evict {} of {} cached, and go on behind the readers for {} at most{}{}{}{}",
        bytes_text(state.due_bytes),
        bytes_text(state.cached_bytes),
        duration_text(request.for_at_most),
        would_read_ahead(&load),
        unknown(&load),
        evictable(state),
        limits(&load),
    ))
}

/// What would be read ahead, once the engine was seen to read forward.
fn would_read_ahead(load: &TrackedLoad) -> String {
    match load.to_come_bytes() {
        0 => String::new(),
        _ if load.prefetcher.is_off() || load.limits().sight.is_some() => String::new(),
        _ if load.prefetcher.ended.is_some() => String::new(),
        bytes => format!("; would read ahead up to {}, once it reads forward", bytes_text(bytes)),
    }
}

/// The note about a decision in observe mode.
pub(super) fn rehearsed(decision: DecisionId, words: Result<String, String>) -> String {
    match words {
        Ok(words) => format!("decision #{decision} (observe mode): evict_checkpoint {words}"),
        Err(why) => {
            format!("decision #{decision} (observe mode): evict_checkpoint would fail: {why}")
        }
    }
}

/// What is done where no model file can be opened, for the effect. What is no file, as a folder of
/// that name, is none for the engine either, and costs other programs nothing.
fn without_files(procfs: &Path, load: &TrackedLoad) -> Result<Option<String>, String> {
    let Some(refused) = load.refused() else { return Ok(None) };
    let why = format!("its model files cannot be opened: {refused}");
    if load.files.lacks_right { drop_all(procfs, &why).map(Some) } else { Ok(Some(why)) }
}

/// The fallback where a right to open the model files is missing: drops all clean page cache, once.
fn drop_all(procfs: &Path, why: &str) -> Result<String, String> {
    match drop_caches::perform(&mut drop_caches::file(procfs), CacheKind::PageCache, false) {
        Ok(()) => Ok(format!("{why}; dropped all clean page cache once instead (drop_caches 1)")),
        Err(error) => Err(format!("{why}; and instead {error}")),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::actions::evict::Pulse;
    use crate::actions::evict::load::tests::{mounts, request};

    #[test]
    fn a_fast_reader_gets_frequent_rounds() {
        let millis = Duration::from_millis;
        let (long, mib) = (Some(millis(500)), |mib: u64| mib << 20);
        let little = |since, read_mib| pace(long, since, mib(read_mib), 0);
        assert_eq!(pace(None, millis(20), 0, 0), LATEST);
        assert_eq!(pace(None, millis(20), 0, 64 << 30), LATEST, "a flood may begin at any time");
        assert_eq!(little(millis(20), 1), LATEST);
        assert_eq!(little(millis(20), 60), millis(16));
        assert_eq!(little(Duration::ZERO, 1), SOONEST);
        let steady =
            |read_mib, free_gib: u64| pace(long, millis(50), mib(read_mib), free_gib << 30);
        assert_eq!(steady(40, 2), millis(80), "a 32nd of what is free");
        assert_eq!(steady(320, 64), millis(80), "512 MiB at most");
        assert_eq!(steady(20, 2), STEADY);
        assert_eq!(steady(1024, 2), SOONEST);
    }

    #[test]
    fn reads_in_leaps_are_one_read() {
        let millis = Duration::from_millis;
        let begun = reads(None, millis(10), 1);
        assert_eq!(begun, Some((millis(10), millis(10))));
        assert_eq!(reads(begun, millis(109), 0), begun);
        let goes_on = reads(begun, millis(150), 1);
        assert_eq!(goes_on, Some((millis(10), millis(150))));
        assert_eq!(reads(goes_on, millis(250), 0), None, "it rests");
        assert_eq!(reads(None, millis(300), 0), None);
    }

    #[test]
    fn a_new_reader_gets_rounds_at_the_shortest_interval() {
        let millis = Duration::from_millis;
        for (read_for, wanted) in [(0, SOONEST), (49, SOONEST), (50, STEADY)] {
            assert_eq!(pace(Some(millis(read_for)), millis(10), 1 << 20, 64 << 30), wanted);
        }
    }

    #[test]
    fn nothing_else_is_dropped_for_a_model_file_that_is_none_or_a_link_to_itself() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let drop_caches = folder.path().join("sys/vm/drop_caches");
        fs::create_dir_all(drop_caches.parent().unwrap()).unwrap();
        fs::write(&drop_caches, "").unwrap();
        let [dir, link] = ["a.gguf", "b.gguf"].map(|name| folder.path().join(name));
        fs::create_dir(&dir).unwrap();
        std::os::unix::fs::symlink("b.gguf", &link).unwrap();
        for path in [dir, link] {
            let load = TrackedLoad::begin(mounts(), &request(&path), Pulse::default()).unwrap();
            let why = without_files(folder.path(), &load).unwrap().unwrap();
            assert!(why.starts_with("its model files cannot be opened: "), "{why}");
            assert_eq!(fs::read_to_string(&drop_caches).unwrap(), "", "{why}");
        }
    }

    #[test]
    fn all_clean_cache_is_dropped_once_and_reported_if_no_file_can_be_opened() {
        let procfs = tempfile::tempdir().unwrap();
        let why = "its model files cannot be opened: model.safetensors: Permission denied";
        let error = drop_all(procfs.path(), why).unwrap_err();
        assert!(error.contains("Permission denied; and instead writing 1 to"), "{error}");
        let file = procfs.path().join("sys/vm/drop_caches");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, "").unwrap();
        let said = drop_all(procfs.path(), why).unwrap();
        assert!(said.ends_with("dropped all clean page cache once instead (drop_caches 1)"));
        assert_eq!(fs::read_to_string(file).unwrap(), "1");
    }
}
