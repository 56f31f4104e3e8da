//! Evicting model files from the page cache, with the real kernel and real processes. Without root
//! the tests are skipped with a message.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]
#![expect(unsafe_code, reason = "mapping a file is, since others may cut it short")]

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use umawarden::actions::{Act, Evictor, Executor as _, MemoryExecutor, Mounts};
use umawarden::model::{
    Action, DecisionId, DecisionRecord, EngineTarget, Mode, OutcomeResult, Prefetch, ProcessId,
    Target,
};
use umawarden::sys::page_cache::cachestat;

const MIB: u64 = 1 << 20;
const BEHIND_BYTES: u64 = 64 * MIB;
const READER: &str = "UMAWARDEN_TEST_READER";
const AS_NOBODY: &str = "UMAWARDEN_TEST_EVICTS";

/// Attempts of `until`, 25 ms apart: 10 s.
const PATIENCE: u32 = 400;

fn uptime() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap())
}

fn may_act(folder: &Path) -> bool {
    let file = File::create(folder.join("probe")).unwrap();
    let is_root = rustix::process::geteuid().is_root();
    let result = cachestat(file.as_fd(), 0, 0);
    if !is_root || result.is_err() {
        eprintln!("skipped: needs root and Linux 6.5: {result:?}");
        return false;
    }
    true
}

/// Not a test by itself: other tests run it as a process that maps and reads files on command.
#[test]
fn reader_for_other_tests() {
    if std::env::var_os(READER).is_none() {
        return;
    }
    let (mut mapped, mut opened) = (Vec::new(), None);
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let mib = |word: usize| words[word].parse::<usize>().unwrap() << 20;
        let mut sum = 0_u64;
        match words[0] {
            "map" => {
                let file = File::open(words[1]).unwrap();
                // SAFETY: the tests truncate the file only after its last read.
                let map = unsafe { memmap2::MmapOptions::new().map_copy_read_only(&file) };
                mapped.push(map.unwrap());
            }
            "unmap" => mapped.clear(),
            "touch" => {
                let pages = mapped.last().unwrap()[mib(1)..mib(2)].iter().step_by(4096);
                sum = pages.map(|byte| u64::from(*byte)).sum();
            }
            "lease" => {
                let file = File::open(words[1]).unwrap();
                // SAFETY: an open descriptor, and constants. A broken lease sends SIGIO, which this
                // process ignores.
                let taken = unsafe {
                    libc::signal(libc::SIGIO, libc::SIG_IGN);
                    libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK)
                };
                assert_eq!(taken, 0, "{}", std::io::Error::last_os_error());
                opened = Some(file);
            }
            "open" => opened = Some(File::open(words[1]).unwrap()),
            "read" => {
                let mut into = vec![0; mib(1)];
                opened.as_mut().unwrap().read_exact(&mut into).unwrap();
            }
            other => panic!("{other}"),
        }
        println!("\n@done {sum}");
    }
}

/// A process that maps and reads files on command.
pub(super) struct Reader {
    child: Child,
    orders: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Reader {
    pub(super) fn start() -> Self {
        Self::run(Command::new(std::env::current_exe().unwrap()), &[])
    }

    /// Starts it with a command that runs this program; `marks` are arguments without effect.
    pub(super) fn run(mut command: Command, marks: &[&str]) -> Self {
        command.args(["evict::reader_for_other_tests", "--exact", "--nocapture"]).args(marks);
        let command =
            command.env(READER, "1").current_dir("/").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let orders = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, orders, output }
    }

    pub(super) fn does(&mut self, order: &str) {
        writeln!(self.orders, "{order}").unwrap();
        let mut line = String::new();
        while !line.starts_with("@done") {
            line.clear();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "the reader ended at {order}");
        }
    }

    pub(super) fn maps(&mut self, file: &Path) {
        self.does(&format!("map {}", file.display()));
    }

    pub(super) fn id(&self) -> ProcessId {
        let pid = i32::try_from(self.child.id()).unwrap();
        let stat = procfs::process::Process::new(pid).unwrap().stat().unwrap();
        ProcessId { pid: self.child.id(), start_ticks: stat.starttime }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(super) struct Bench {
    folder: tempfile::TempDir,
    pub(super) evictor: Evictor,
    executor: MemoryExecutor,
    next: u64,
    /// Above all memory, so that mapped pages are evicted at once.
    pub(super) floor_bytes: u64,
}

impl Bench {
    pub(super) fn new() -> Option<Self> {
        // Not below /tmp, which may be a tmpfs, whose pages are never evicted.
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        may_act(folder.path()).then(|| Self::with(folder))
    }

    fn with(folder: tempfile::TempDir) -> Self {
        let evictor = Evictor::new(uptime);
        let executor = crate::actions::memory_executor("/proc", evictor.clone());
        Self { folder, evictor, executor, next: 1, floor_bytes: u64::MAX }
    }

    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn execute(&mut self, decision: &DecisionRecord) -> OutcomeResult {
        self.executor.execute(&crate::actions::act(decision.clone())).result
    }

    /// A file on disk, with no page cached.
    pub(super) fn file(&self, name: &str, mib: u64) -> PathBuf {
        let path = self.folder.path().join(name);
        let mut file = File::create(&path).unwrap();
        let block = vec![0xa5; 1 << 20];
        (0..mib).for_each(|_| file.write_all(&block).unwrap());
        file.sync_all().unwrap();
        forget(&path);
        path
    }

    fn target(&self, processes: Vec<ProcessId>) -> EngineTarget {
        let pattern = format!("{}/model*.safetensors", self.folder.path().display());
        EngineTarget {
            name: Arc::from("deepseek"),
            processes,
            model_files: vec![Arc::from(pattern)],
            ..EngineTarget::default()
        }
    }

    fn decision(&mut self, target: EngineTarget) -> DecisionRecord {
        self.next += 1;
        let action = Action::EvictCheckpoint {
            engine: "deepseek".to_owned(),
            behind_bytes: BEHIND_BYTES,
            floor_bytes: self.floor_bytes,
            prefetch: Prefetch::Auto,
            for_at_most: Duration::from_secs(600),
        };
        let (id, target) = (DecisionId(self.next), Target::Engine(Box::new(target)));
        DecisionRecord { id, target, ..crate::actions::decision(action) }
    }

    /// Executes an eviction; returns its effect.
    pub(super) fn evict(&mut self, processes: Vec<ProcessId>) -> Result<String, String> {
        let target = self.target(processes);
        let decision = self.decision(target);
        match self.execute(&decision) {
            OutcomeResult::Done => Ok(self.evictor.effect(decision.id).unwrap()),
            OutcomeResult::Failed(why) => Err(why),
            OutcomeResult::NotDone(why) => Err(format!("not done: {why}")),
            other => panic!("{other:?}"),
        }
    }

    /// What observe mode says of an eviction.
    fn rehearse(&mut self, processes: Vec<ProcessId>) -> String {
        let target = self.target(processes);
        let decision = DecisionRecord { mode: Mode::Observe, ..self.decision(target) };
        assert!(Act::of(decision.clone()).is_err());
        let mounts = Mounts { procfs: "/proc".into(), sysfs: "/sys".into() };
        self.evictor.rehearse(mounts, &decision);
        self.final_note()
    }

    /// Ends the eviction as if the engine were ready; returns its last note.
    pub(super) fn ready(&self) -> String {
        self.evictor.update(|_| None);
        self.final_note()
    }

    pub(super) fn final_note(&self) -> String {
        let mut note = None;
        until("the end of the load", || {
            note = self.evictor.take_notes().pop();
            note.is_some()
        });
        note.unwrap()
    }
}

fn forget(path: &Path) {
    let file = File::open(path).unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
}

/// Cached MiB of the file from MiB `from` to MiB `to`.
pub(super) fn cached(path: &Path, from: u64, to: u64) -> u64 {
    let file = File::open(path).unwrap();
    let pages = cachestat(file.as_fd(), from * MIB, (to - from) * MIB).unwrap();
    pages.cached * procfs::page_size() / MIB
}

pub(super) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..PATIENCE {
        if is_so() {
            return;
        }
        thread::sleep(Duration::from_millis(25));
    }
    panic!("no {what} in 10 s");
}

#[test]
fn mapped_pages_behind_the_reader_are_evicted_and_no_others() {
    let Some(mut bench) = Bench::new() else { return };
    let model = bench.file("model-1.safetensors", 256);
    let other = bench.file("other.bin", 64);
    let (mut engine, mut bystander) = (Reader::start(), Reader::start());
    bystander.maps(&other);
    bystander.does("touch 0 64");
    engine.maps(&other);
    engine.does("touch 0 64");
    engine.maps(&model);
    engine.does("touch 0 192");
    let effect = bench.evict(vec![engine.id()]).unwrap();
    assert!(
        effect.starts_with("128.0 MiB evicted; goes on behind the readers for 10m"),
        "{effect}"
    );
    assert!(effect.contains("keeps the last 64.0 MiB; nothing to undo"), "{effect}");
    assert_eq!((cached(&model, 0, 128), cached(&model, 128, 192)), (0, 64));
    engine.does("touch 192 256");
    until("eviction of newly read pages", || cached(&model, 128, 192) == 0);
    assert_eq!(cached(&model, 192, 256), 64);
    assert_eq!(cached(&other, 0, 64), 64, "it is no model file");
    assert_eq!(bench.evictor.tally().evicted_bytes, 192 * MIB);
    engine.does("touch 0 32");
    until("count of refaulted bytes", || bench.evictor.tally().refaulted_bytes >= 32 * MIB);
    let effect = bench.ready();
    assert!(effect.contains("since the engine no longer loads: "), "{effect}");
    let left = bench.evictor.tally();
    engine.does("touch 0 256");
    assert_eq!(cached(&model, 0, 256), 256, "nothing is evicted after ready");
    assert_eq!(bench.evictor.tally(), left);
}

#[test]
fn pages_ahead_of_a_reader_stay_cached() {
    let Some(mut bench) = Bench::new() else { return };
    let model = bench.file("model.safetensors", 256);
    fs::read(&model).unwrap();
    let mut engine = Reader::start();
    engine.maps(&model);
    engine.does("touch 0 128");
    bench.evict(vec![engine.id()]).unwrap();
    // The kernel's own reclaim may have taken a little of it.
    let (behind, ahead) = (cached(&model, 0, 64), cached(&model, 64, 256));
    assert!(behind == 0 && ahead > 128, "{behind} and {ahead}");
    bench.ready();
}

#[test]
fn pages_behind_a_read_and_of_closed_files_are_evicted() {
    let Some(mut bench) = Bench::new() else { return };
    let (first, second) =
        (bench.file("model-1-of-2.safetensors", 64), bench.file("model-2-of-2.safetensors", 256));
    let another = bench.file("model-1.safetensors", 64);
    for file in [&first, &second, &another] {
        fs::read(file).unwrap();
    }
    let mut engine = Reader::start();
    engine.does(&format!("open {}", second.display()));
    engine.does("read 32");
    bench.evict(vec![engine.id()]).unwrap();
    engine.does("read 96");
    until("the position's move", || cached(&second, 0, 64) == 0);
    // Most of it: some machines reclaim idle pages themselves (DAMON).
    let ahead = cached(&second, 128, 256);
    assert!(ahead >= 96, "{ahead} of 128 MiB ahead of the reader");
    until("the earlier shard", || cached(&first, 0, 64) == 0);
    // Its name sorts before the open file, but it is no shard of that model.
    let others = cached(&another, 0, 64);
    assert!(others >= 48, "{others} of 64 MiB of another model");
    bench.ready();
}

#[test]
fn dirty_pages_stay_cached_and_are_not_written_back() {
    let Some(mut bench) = Bench::new() else { return };
    let model = bench.file("model.safetensors", 160);
    let mut engine = Reader::start();
    engine.maps(&model);
    engine.does("touch 0 160");
    let file = File::options().write(true).open(&model).unwrap();
    file.write_all_at(&[1; 4096], 40 * MIB).unwrap();
    bench.evict(vec![engine.id()]).unwrap();
    let state = cachestat(file.as_fd(), 32 * MIB, 16 * MIB).unwrap();
    assert!(state.dirty > 0 && state.writeback == 0, "{state:?}");
    assert_eq!(cached(&model, 32, 48), 16);
    assert_eq!((cached(&model, 0, 32), cached(&model, 48, 96)), (0, 0));
    bench.ready();
}

#[test]
fn pages_mapped_by_another_process_stay_cached() {
    let Some(mut bench) = Bench::new() else { return };
    let model = bench.file("model.safetensors", 160);
    let (mut engine, mut other) = (Reader::start(), Reader::start());
    engine.maps(&model);
    engine.does("touch 0 160");
    other.maps(&model);
    other.does("touch 0 48");
    bench.evict(vec![engine.id()]).unwrap();
    assert_eq!((cached(&model, 0, 48), cached(&model, 48, 96)), (48, 0));
    bench.ready();
}

#[test]
fn new_processes_and_files_of_an_engine_are_tracked() {
    let Some(mut bench) = Bench::new() else { return };
    let first = bench.file("model-1.safetensors", 32);
    let later = bench.file("later.safetensors", 160);
    let (mut engine, mut worker) = (Reader::start(), Reader::start());
    engine.maps(&first);
    engine.does("touch 0 32");
    bench.evict(vec![engine.id()]).unwrap();
    worker.maps(&later);
    worker.does("touch 0 160");
    let mut now = bench.target(vec![engine.id(), worker.id()]);
    now.model_files.push(Arc::from(later.display().to_string()));
    until("eviction of the worker's pages", || {
        bench.evictor.update(|_| Some(now.clone()));
        cached(&later, 0, 96) == 0
    });
    assert_eq!(cached(&later, 96, 160), 64);
    bench.ready();
}

#[test]
fn a_reused_pid_of_an_engine_is_refused() {
    let Some(mut bench) = Bench::new() else { return };
    let model = bench.file("model.safetensors", 160);
    let mut engine = Reader::start();
    engine.maps(&model);
    engine.does("touch 0 160");
    let id = engine.id();
    let later = ProcessId { start_ticks: id.start_ticks + 1, ..id };
    let error = bench.evict(vec![later]).unwrap_err();
    assert_eq!(error, format!("not done: process {} has ended", id.pid));
    assert_eq!(cached(&model, 0, 160), 160);
    bench.evict(vec![later, id]).unwrap();
    drop(engine);
    let note = bench.final_note();
    assert!(note.contains("since the engine has ended"), "{note}");
}

#[test]
fn an_engine_without_a_mapped_model_file_is_tracked_without_failure() {
    let Some(mut bench) = Bench::new() else { return };
    let mut engine = Reader::start();
    let id = engine.id();
    // Its files are unknown while it downloads them.
    let target = EngineTarget { model_files: Vec::new(), ..bench.target(vec![id]) };
    let decision = bench.decision(target);
    assert_eq!(bench.execute(&decision), OutcomeResult::Done);
    let effect = bench.evictor.effect(decision.id).unwrap();
    assert!(effect.contains("; no model file of it is known yet"), "{effect}");
    assert!(bench.evictor.tracks("deepseek", id));
    // Once it maps them, it is tracked.
    let now = bench.target(vec![id]);
    let model = bench.file("model.safetensors", 160);
    engine.maps(&model);
    engine.does("touch 0 160");
    until("eviction of the engine's pages", || {
        bench.evictor.update(|_| Some(now.clone()));
        cached(&model, 0, 96) == 0
    });
    bench.ready();
}

#[test]
fn the_mapped_file_is_evicted_after_a_replacement_or_truncation() {
    let Some(mut bench) = Bench::new() else { return };
    let model = bench.file("model.safetensors", 160);
    let old = File::open(&model).unwrap();
    let mut engine = Reader::start();
    engine.maps(&model);
    engine.does("touch 0 160");
    fs::remove_file(&model).unwrap();
    bench.file("model.safetensors", 32);
    fs::read(&model).unwrap();
    bench.evict(vec![engine.id()]).unwrap();
    // The kernel's own reclaim may have taken a page of it.
    assert!(cached(&model, 0, 32) > 16, "the tracked engine has not read the new file");
    let left = cachestat(old.as_fd(), 0, 0).unwrap().cached * procfs::page_size() / MIB;
    assert!((33..=64).contains(&left), "{left}");
    // The rest is evicted without an error for the truncated part.
    let grows = bench.file("model-2.safetensors", 160);
    engine.maps(&grows);
    engine.does("touch 0 96");
    File::options().write(true).open(&grows).unwrap().set_len(64 * MIB).unwrap();
    engine.does("touch 0 64");
    until("the old one's rest", || cachestat(old.as_fd(), 0, 0).unwrap().cached == 0);
    bench.ready();
}

#[test]
fn observe_mode_reports_what_it_would_evict_and_evicts_nothing() {
    let Some(mut bench) = Bench::new() else { return };
    let model = bench.file("model.safetensors", 160);
    let mut engine = Reader::start();
    engine.maps(&model);
    engine.does("touch 0 160");
    let effect = bench.rehearse(vec![engine.id()]);
    let expected = "decision #2 (observe mode): evict_checkpoint would evict 96.0 MiB of 160.0 \
                    MiB cached";
    assert!(effect.starts_with(expected) && !effect.contains("read ahead"), "{effect}");
    assert_eq!(cached(&model, 0, 160), 160);
}

#[test]
fn observe_mode_reports_what_it_would_read_ahead_and_reads_nothing() {
    let Some(mut bench) = Bench::new() else { return };
    let model = bench.file("model.safetensors", 64);
    let mut engine = Reader::start();
    engine.maps(&model);
    let effect = bench.rehearse(vec![engine.id()]);
    assert!(
        effect.contains("; would read ahead up to 64.0 MiB, once it reads forward"),
        "{effect}"
    );
    assert_eq!(cached(&model, 0, 64), 0);
}

#[test]
fn a_lease_on_a_model_file_blocks_nothing() {
    let Some(mut bench) = Bench::new() else { return };
    let leased = bench.file("model-leased.safetensors", 1);
    chown(&leased, Some(65534), Some(65534)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let test = folder.path().join("test");
    fs::copy(std::env::current_exe().unwrap(), &test).unwrap();
    let mut command = Command::new(&test);
    command.uid(65534).gid(65534);
    let mut hostile = Reader::run(command, &[]);
    hostile.does(&format!("lease {}", leased.display()));
    let began = uptime();
    let effect = bench.evict(vec![hostile.id()]).unwrap();
    assert!(uptime() - began < Duration::from_secs(1), "{effect}");
    let why = "model-leased.safetensors: another process holds a lease on it";
    assert!(effect.contains(why) && !effect.contains("drop_caches"), "{effect}");
    let model = bench.file("model-1.safetensors", 160);
    let mut engine = Reader::start();
    engine.maps(&model);
    engine.does("touch 0 160");
    let effect = bench.evict(vec![engine.id()]).unwrap();
    assert!(effect.starts_with("96.0 MiB evicted"), "{effect}");
    bench.ready();
}

/// Not a test by itself: the test below runs it as another user.
#[test]
fn eviction_run_by_another_test() {
    let Ok(folder) = std::env::var(AS_NOBODY) else { return };
    let mut bench = Bench::with(tempfile::tempdir().unwrap());
    let mut own = Reader::start();
    let model = Path::new(&folder).join("model.safetensors");
    own.maps(&model);
    own.does("touch 0 160");
    let evict = |bench: &mut Bench, id: ProcessId| {
        let pattern = Arc::from(model.display().to_string());
        let target = EngineTarget { model_files: vec![pattern], ..bench.target(vec![id]) };
        let decision = bench.decision(target);
        let result = bench.execute(&decision);
        println!("@{result:?} {:?}", bench.evictor.effect(decision.id));
    };
    let parent = i32::try_from(std::os::unix::process::parent_id()).unwrap();
    let stat = procfs::process::Process::new(parent).unwrap().stat().unwrap();
    let of_root = ProcessId { pid: parent.unsigned_abs(), start_ticks: stat.starttime };
    evict(&mut bench, own.id());
    evict(&mut bench, of_root);
}

#[test]
fn missing_rights_to_evict_are_reported() {
    let Some(bench) = Bench::new() else { return };
    let model = bench.file("model.safetensors", 160);
    // The build folder may be out of that user's reach.
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(bench.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    chown(&model, Some(65534), Some(65534)).unwrap();
    let test = folder.path().join("test");
    fs::copy(std::env::current_exe().unwrap(), &test).unwrap();
    let output = Command::new(&test)
        .args(["evict::eviction_run_by_another_test", "--exact", "--nocapture"])
        .env(AS_NOBODY, bench.folder.path())
        .uid(65534)
        .gid(65534)
        .output()
        .unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let mut results = printed.lines().filter_map(|line| line.strip_prefix('@'));
    let own = results.next().unwrap();
    assert!(
        own.starts_with("Done") && own.contains("mapped pages stay (process_madvise: "),
        "{own}"
    );
    assert!(own.contains("CAP_SYS_NICE"), "{own}");
    assert!(cached(&model, 0, 160) >= 159, "{own}");
    let of_root = results.next().unwrap();
    assert!(of_root.starts_with("Failed") && of_root.contains("drop_caches failed"), "{of_root}");
}
