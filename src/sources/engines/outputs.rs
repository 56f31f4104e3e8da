//! The last output of servers that write to files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use crate::clients::owner::is_alive;
use crate::model::{EngineSeen, LastOutput, ProcessId, WorkloadLog};
use crate::parse::ray::{is_core_worker_log, is_worker_output};
use crate::sources::bounded::BoundedReads;
use crate::sources::output_files::{OutputFiles, last_lines};

/// Servers whose files are open: as many as engines are tracked.
const MAX_SERVERS: usize = 32;

/// Output that has waited for a place in the queue.
const MAX_UNREPORTED: usize = 32;

/// The output files of servers.
#[derive(Debug)]
pub(super) struct Outputs {
    procfs: PathBuf,
    bounded: BoundedReads,
    files: BTreeMap<ProcessId, OutputFiles>,
    unreported: Vec<LastOutput>,
}

impl Outputs {
    pub(super) fn new(procfs: PathBuf) -> Self {
        let bounded = BoundedReads::new(procfs.clone());
        Self { procfs, bounded, files: BTreeMap::new(), unreported: Vec::new() }
    }

    /// Opens the files of servers that live, and reads those of servers that have ended.
    pub(super) fn update(&mut self, now: Duration, engines: &[EngineSeen]) {
        self.bounded.begin(now);
        let mut living = BTreeSet::new();
        for engine in engines.iter().filter(|engine| !engine.is_left_behind) {
            let server = engine.processes.iter().find(|process| process.id == engine.server);
            if server.is_some_and(|server| !matches!(server.state, 'Z' | 'X')) {
                living.insert(engine.server);
                self.open(engine.server);
            }
        }
        let is_gone = |id: &ProcessId| !living.contains(id);
        for id in self.files.keys().copied().filter(is_gone).collect::<Vec<_>>() {
            let Some(files) = self.files.remove(&id) else { continue };
            // A process that is no engine any more lives on.
            if !files.is_empty()
                && !is_alive(&self.procfs, id)
                && self.unreported.len() < MAX_UNREPORTED
            {
                let log = self.read(id, files);
                self.unreported.push(LastOutput { server: id, log });
            }
        }
    }

    /// Output that has not been reported yet.
    pub(super) fn unreported(&self) -> &[LastOutput] {
        &self.unreported
    }

    /// Marks all output as reported.
    pub(super) fn mark_reported(&mut self) {
        self.unreported.clear();
    }

    fn open(&mut self, id: ProcessId) {
        if self.files.contains_key(&id) || self.files.len() >= MAX_SERVERS {
            return;
        }
        let folder = self.procfs.join(id.to_string()).join("fd");
        // A rank that Ray has started logs elsewhere, too, and with a limit for its logs it writes
        // its output through a pipe of its own. Ray's own log comes first: it is the longest.
        let open = move || OutputFiles::open_with(&folder, is_core_worker_log, is_worker_output);
        // Where they cannot be opened now, the next scan tries again.
        if let Some(opened) = self.bounded.read(id, open) {
            self.files.insert(id, opened);
        }
    }

    fn read(&mut self, id: ProcessId, files: OutputFiles) -> WorkloadLog {
        match self.bounded.read(id, move || files.ends()) {
            Some(read) => last_lines(read),
            None => WorkloadLog::Unknown("its log was not read in time".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::model::{EngineKind, EngineProcess};

    const ID: ProcessId = ProcessId { pid: 7, start_ticks: 700 };

    struct World {
        folder: tempfile::TempDir,
        outputs: Outputs,
        now: u64,
    }

    impl World {
        /// A server whose standard output and error are these.
        fn new(output: &str, error: &str) -> Self {
            let folder = tempfile::tempdir().unwrap();
            for name in ["7/fd", "7/fdinfo"] {
                fs::create_dir_all(folder.path().join(name)).unwrap();
            }
            for (number, name) in [("1", output), ("2", error)] {
                symlink(folder.path().join(name), folder.path().join("7/fd").join(number)).unwrap();
                let fdinfo = folder.path().join("7/fdinfo").join(number);
                fs::write(fdinfo, "pos:\t0\nflags:\t0102001\n").unwrap();
            }
            let outputs = Outputs::new(folder.path().to_owned());
            Self { folder, outputs, now: 0 }
        }

        fn write(&self, name: &str, text: &str) {
            use std::io::Write as _;
            let path = self.folder.path().join(name);
            let file = fs::OpenOptions::new().append(true).create(true).open(path);
            file.unwrap().write_all(text.as_bytes()).unwrap();
        }

        fn scan(&mut self, is_there: bool) -> Vec<LastOutput> {
            self.now += 1;
            let process = EngineProcess::holding(ID, "vllm", 1);
            let engine =
                EngineSeen::new("vllm".into(), EngineKind::Vllm, ID, vec![process], "its".into());
            let engines = if is_there { vec![engine] } else { Vec::new() };
            self.outputs.update(Duration::from_secs(self.now), &engines);
            let found = self.outputs.unreported().to_vec();
            self.outputs.mark_reported();
            found
        }
    }

    fn lines(found: &[LastOutput]) -> &[String] {
        let [LastOutput { server: ID, log: WorkloadLog::Lines(lines) }] = found else {
            panic!("{found:?}")
        };
        lines
    }

    #[test]
    fn the_end_of_a_log_file_is_read_when_its_server_has_ended() {
        let mut world = World::new("log", "log");
        world.write("log", "torch.OutOfMemoryError: CUDA out of memory. (an earlier run)\n");
        assert_eq!(world.scan(true), []);
        world.write("log", "loads\n\u{1b}[31mit ends\u{1b}[0m: api_key=abc\n");
        assert_eq!(world.scan(true), []);
        // What it has open is read, whatever has that name now.
        fs::rename(world.folder.path().join("log"), world.folder.path().join("log.1")).unwrap();
        world.write("log", "of another\n");
        let found = world.scan(false);
        assert_eq!(lines(&found), ["loads", "it ends: api_key [the rest may hold a secret]"]);
        assert_eq!(world.scan(false), [], "once");
    }

    #[test]
    fn both_outputs_are_read_and_a_long_or_shortened_file_from_its_end() {
        let mut world = World::new("out", "err");
        world.write("out", "an earlier run, which was longer\n");
        world.scan(true);
        fs::write(world.folder.path().join("out"), "anew\n").unwrap();
        world.write("err", "Traceback\n");
        // The second file was missing when it was opened.
        assert_eq!(lines(&world.scan(false)), ["anew"]);
        let mut world = World::new("out", "err");
        world.write("out", "");
        world.write("err", "");
        world.scan(true);
        world.write("out", &"some line\n".repeat(20_000));
        world.write("err", "Traceback");
        let found = world.scan(false);
        assert_eq!(lines(&found).last().unwrap(), "Traceback");
        assert!(lines(&found)[..19].iter().all(|line| line == "some line"), "{found:?}");
    }

    #[test]
    fn logs_that_ray_keeps_of_a_rank_are_read_with_its_output() {
        let mut world = World::new("pipe", "pipe");
        fs::create_dir(world.folder.path().join("logs")).unwrap();
        let id = "0123456789abcdef".repeat(3);
        let names = [
            (format!("logs/worker-{id}-01000000-7.err"), "Traceback"),
            (format!("logs/python-core-worker-{id}_7.log"), "*** SIGBUS received at time=1 ***"),
            ("logs/other.log".to_owned(), "other"),
        ];
        for (number, (name, _)) in names.iter().enumerate() {
            world.write(name, "of an earlier run\n");
            let number = (number + 7).to_string();
            let folder = world.folder.path();
            symlink(folder.join(name), folder.join("7/fd").join(&number)).unwrap();
            let fdinfo = folder.join("7/fdinfo").join(number);
            fs::write(fdinfo, "pos:\t0\nflags:\t0102001\n").unwrap();
        }
        world.scan(true);
        for (name, text) in &names {
            world.write(name, &format!("{text}\n"));
        }
        let found = world.scan(false);
        assert_eq!(lines(&found), ["*** SIGBUS received at time=1 ***", "Traceback"]);
    }

    #[test]
    fn files_that_cannot_be_opened_at_first_are_opened_later() {
        let mut world = World::new("log", "log");
        world.write("log", "of an earlier run\n");
        let (release, hangs) = std::sync::mpsc::channel::<()>();
        assert_eq!(world.outputs.bounded.read(ID, move || hangs.recv().is_ok()), None);
        world.scan(true);
        drop(release);
        // Its thread may not have returned yet.
        for _ in 0..1_000 {
            world.now += 60;
            world.scan(true);
            if !world.outputs.files.is_empty() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        world.write("log", "Traceback\n");
        assert_eq!(lines(&world.scan(false)), ["Traceback"]);
    }

    #[test]
    fn only_files_are_read_and_only_after_the_end() {
        let mut world = World::new("fifo", "missing");
        rustix::fs::mkfifoat(
            rustix::fs::CWD,
            world.folder.path().join("fifo"),
            rustix::fs::Mode::from_raw_mode(0o600),
        )
        .unwrap();
        world.scan(true);
        assert_eq!(world.scan(false), []);
        let mut world = World::new("log", "log");
        world.write("log", "");
        world.scan(true);
        world.write("log", "still here\n");
        let stat = format!("7 (vllm) S {}700 0\n", "0 ".repeat(18));
        fs::write(world.folder.path().join("7/stat"), stat).unwrap();
        assert_eq!(world.scan(false), [], "it is no engine any more, and lives");
    }
}
