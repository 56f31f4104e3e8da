//! Workers of engines that Ray's memory monitor has killed, by the logs of their raylets. Only
//! these logs name the monitor on a node without the server.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::ray::RAYLET;
use crate::clients::owner;
use crate::model::{EngineProcess, EngineSeen, ProcessId, RayKill};
use crate::parse::process::{Stat, own_pid, printable, stat, user_id};
use crate::parse::ray::{is_raylet_log, log_text, memory_kills};
use crate::sources::bounded::{BoundedReads, read_file};
use crate::sources::output_files::{FileId, OutputFiles, Tail};

/// Raylets whose logs are open. A node has one for each cluster that it is part of.
const MAX_RAYLETS: usize = 8;

/// Those of one user. Anybody can start processes that look like a raylet and its engine.
const MAX_RAYLETS_OF_USER: usize = 4;

/// Processes of engines that are tracked.
const MAX_PROCESSES: usize = 4096;

/// Kills that have waited for a place in the queue.
const MAX_UNREPORTED: usize = 32;

/// A raylet logs a kill before it kills. Its log may reach the file later. A guess.
const LOGGED_WITHIN: Duration = Duration::from_secs(5);

/// The files are a few hundred bytes.
const MAX_STATUS_BYTES: u64 = 64 << 10;

/// A process of an engine that a raylet has started.
#[derive(Debug)]
struct Worker {
    raylet: ProcessId,
    server: ProcessId,
    comm: Arc<str>,
    /// Its pid in the PID namespace of its raylet.
    own_pid: u32,
    /// The lengths of its raylet's logs when it was found. Earlier lines may be of a process that
    /// had its pid before. Their times do not help: they lack the time zone.
    logged_before: BTreeMap<FileId, u64>,
    /// The first scan without it, on the uptime clock.
    ended_at: Option<Duration>,
}

/// The log of a raylet.
#[derive(Debug)]
struct Log {
    user: u32,
    files: Arc<OutputFiles>,
}

/// A line of a log, and the workers that it names.
#[derive(Debug)]
struct KillLine {
    /// The file, and its length.
    file: FileId,
    length: u64,
    /// Where the line begins in the file, in bytes.
    at: u64,
    pids: Vec<u32>,
    text: String,
}

impl KillLine {
    /// Whether the line was logged since the files had these lengths. A shorter file was begun
    /// anew.
    fn is_since(&self, lengths: &BTreeMap<FileId, u64>) -> bool {
        let from = lengths.get(&self.file).copied().unwrap_or(0);
        self.at >= from || self.length < from
    }
}

/// The logs of the raylets that have started workers of engines.
#[derive(Debug)]
pub(super) struct Raylets {
    procfs: PathBuf,
    bounded: BoundedReads,
    logs: BTreeMap<ProcessId, Log>,
    /// Processes of engines. `None`: not started by a raylet.
    processes: BTreeMap<ProcessId, Option<Worker>>,
    unreported: Vec<RayKill>,
}

impl Raylets {
    pub(super) fn new(procfs: PathBuf) -> Self {
        let bounded = BoundedReads::new(procfs.clone());
        let (logs, processes) = (BTreeMap::new(), BTreeMap::new());
        Self { procfs, bounded, logs, processes, unreported: Vec::new() }
    }

    /// Opens the logs of the raylets of these engines, and reads those of workers that have ended.
    pub(super) fn update(&mut self, now: Duration, engines: &[EngineSeen]) {
        self.bounded.begin(now);
        let mut seen = BTreeSet::new();
        for engine in engines {
            let is_alive = |process: &&EngineProcess| !matches!(process.state, 'Z' | 'X');
            for process in engine.processes.iter().filter(is_alive) {
                seen.insert(process.id);
                self.track(engine.server, process);
            }
        }
        let procfs = &self.procfs;
        self.processes.retain(|id, worker| {
            if seen.contains(id) {
                return true;
            }
            let Some(worker) = worker else { return false };
            // A process that is of no engine any more lives on.
            if worker.ended_at.is_none() && owner::is_alive(procfs, *id) {
                return false;
            }
            let ended_at = *worker.ended_at.get_or_insert(now);
            now.saturating_sub(ended_at) <= LOGGED_WITHIN
        });
        self.read();
        let processes = &self.processes;
        self.logs.retain(|raylet, _| {
            processes.values().flatten().any(|worker| worker.raylet == *raylet)
        });
    }

    /// The raylets that have started processes of engines, each with the server of one of these.
    pub(super) fn servers(&self) -> BTreeMap<ProcessId, ProcessId> {
        let workers = self.processes.values().flatten();
        workers.map(|worker| (worker.raylet, worker.server)).collect()
    }

    /// Kills that have not been reported yet.
    pub(super) fn unreported(&self) -> &[RayKill] {
        &self.unreported
    }

    /// Marks all kills as reported.
    pub(super) fn mark_reported(&mut self) {
        self.unreported.clear();
    }

    fn track(&mut self, server: ProcessId, process: &EngineProcess) {
        if let Some(known) = self.processes.get_mut(&process.id) {
            if let Some(worker) = known {
                worker.server = server;
            }
            return;
        }
        if self.processes.len() >= MAX_PROCESSES {
            return;
        }
        let mut worker = None;
        if let Some((raylet, status, user)) = self.raylet_of(process) {
            // The next scan tries again.
            let Some(logged_before) = self.log_lengths(raylet, user) else { return };
            let own_pid = own_pid(&status).unwrap_or(process.id.pid);
            let comm = Arc::clone(&process.comm);
            worker = Some(Worker { raylet, server, comm, own_pid, logged_before, ended_at: None });
        }
        self.processes.insert(process.id, worker);
    }

    /// The raylet that has started a process, the status of the process, and the user of both.
    /// Names are of a process's own choosing, so a raylet is of the same user.
    fn raylet_of(&self, process: &EngineProcess) -> Option<(ProcessId, Vec<u8>, u32)> {
        let parent = self.stat(process.parent).filter(|parent| parent.comm == RAYLET)?;
        let raylet = ProcessId { pid: process.parent, start_ticks: parent.start_ticks };
        let status = self.status(process.id.pid)?;
        let user = user_id(&status)?;
        let is_of_user = user_id(&self.status(raylet.pid)?) == Some(user);
        is_of_user.then_some((raylet, status, user))
    }

    /// The lengths of the logs of a raylet, which are opened where there is a place. `None`: they
    /// cannot be read now.
    fn log_lengths(&mut self, raylet: ProcessId, user: u32) -> Option<BTreeMap<FileId, u64>> {
        if self.logs.contains_key(&raylet) {
            self.renew(raylet);
        } else if self.has_place(user) {
            let folder = self.procfs.join(raylet.pid.to_string()).join("fd");
            let open = move || OutputFiles::open_named(&folder, is_raylet_log);
            let files = Arc::new(self.bounded.read(raylet, open)?);
            self.logs.insert(raylet, Log { user, files });
        }
        let Some(log) = self.logs.get(&raylet) else { return Some(BTreeMap::new()) };
        let files = Arc::clone(&log.files);
        self.bounded.read(raylet, move || files.lengths())?.ok()
    }

    fn has_place(&self, user: u32) -> bool {
        let of_user = self.logs.values().filter(|log| log.user == user).count();
        self.logs.len() < MAX_RAYLETS && of_user < MAX_RAYLETS_OF_USER
    }

    fn stat(&self, pid: u32) -> Option<Stat> {
        let path = self.procfs.join(pid.to_string()).join("stat");
        stat(&read_file(&path, MAX_STATUS_BYTES).ok()?)
    }

    fn status(&self, pid: u32) -> Option<Vec<u8>> {
        let path = self.procfs.join(pid.to_string()).join("status");
        read_file(&path, MAX_STATUS_BYTES).ok()
    }

    /// Opens the files in which the logs of that raylet go on.
    fn renew(&mut self, raylet: ProcessId) {
        let Some(log) =
            self.logs.get_mut(&raylet).filter(|_| owner::is_alive(&self.procfs, raylet))
        else {
            return;
        };
        let folder = self.procfs.join(raylet.pid.to_string()).join("fd");
        let files = Arc::clone(&log.files);
        let renewed = self.bounded.read(raylet, move || files.renewed(&folder, is_raylet_log));
        if let Some(renewed) = renewed {
            log.files = Arc::new(renewed);
        }
    }

    /// Reads the logs of workers that have ended and are not explained.
    fn read(&mut self) {
        let all = self.processes.values().flatten();
        let ended = all.filter(|worker| worker.ended_at.is_some());
        let raylets: BTreeSet<ProcessId> = ended.map(|worker| worker.raylet).collect();
        for raylet in raylets {
            self.renew(raylet);
            let log = self.logs.get(&raylet);
            let Some(files) = log.map(|log| Arc::clone(&log.files)) else { continue };
            // The file system of the log may hang.
            let Some(Ok(tails)) = self.bounded.read(raylet, move || files.tails()) else {
                continue;
            };
            let lines: Vec<KillLine> = tails.iter().flat_map(kill_lines).collect();
            self.explain(raylet, &lines);
        }
    }

    /// Reports those workers of that raylet that its log names.
    fn explain(&mut self, raylet: ProcessId, lines: &[KillLine]) {
        for (id, process) in &mut self.processes {
            let Some(worker) = process.as_ref().filter(|worker| worker.raylet == raylet) else {
                continue;
            };
            let Some(ended_at) = worker.ended_at else { continue };
            let names_it = |line: &&KillLine| {
                line.pids.contains(&worker.own_pid) && line.is_since(&worker.logged_before)
            };
            let Some(line) = lines.iter().find(names_it) else { continue };
            if self.unreported.len() < MAX_UNREPORTED {
                self.unreported.push(RayKill {
                    id: *id,
                    server: worker.server,
                    comm: Arc::clone(&worker.comm),
                    ended_at,
                    line: printable(line.text.as_bytes()),
                });
            }
            // It is reported once, and not seen again.
            *process = None;
        }
    }
}

/// The lines of a log that name killed workers.
fn kill_lines(tail: &Tail) -> Vec<KillLine> {
    let mut at = tail.at;
    let mut kills = Vec::new();
    for bytes in tail.text.split_inclusive(|byte| *byte == b'\n') {
        let line = String::from_utf8_lossy(bytes);
        for line in log_text(line.trim_end_matches(['\r', '\n'])).lines() {
            let pids = memory_kills(line);
            if !pids.is_empty() {
                let (file, length, text) = (tail.id, tail.length, line.to_owned());
                kills.push(KillLine { file, length, at, pids, text });
            }
        }
        at += bytes.len() as u64;
    }
    kills
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write as _;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use super::*;
    use crate::model::EngineKind;

    const RAYLET_PID: u32 = 10;
    const SERVER: ProcessId = ProcessId { pid: 30, start_ticks: 300 };
    const WORKER: ProcessId = ProcessId { pid: 31, start_ticks: 310 };

    /// A node with a raylet in a container, whose workers have other pids there.
    struct World {
        folder: tempfile::TempDir,
        raylets: Raylets,
        now: u64,
    }

    impl World {
        fn new(comm: &str, user: u32) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path();
            write(path, RAYLET_PID, comm, 1000, "10 1");
            for id in [SERVER, WORKER] {
                write(
                    path,
                    id.pid,
                    "ray::RayWorkerP",
                    user,
                    &format!("{} {}", id.pid, id.pid + 500),
                );
            }
            fs::create_dir_all(path.join("logs")).unwrap();
            fs::write(path.join("logs/raylet.out"), killed(531, "an earlier run")).unwrap();
            for name in ["10/fd", "10/fdinfo"] {
                fs::create_dir(path.join(name)).unwrap();
            }
            fs::write(path.join("other"), "").unwrap();
            for (number, name) in [("1", "logs/raylet.out"), ("2", "other")] {
                symlink(path.join(name), path.join("10/fd").join(number)).unwrap();
                let fdinfo = path.join("10/fdinfo").join(number);
                fs::write(fdinfo, "pos:\t0\nflags:\t0102001\n").unwrap();
            }
            let raylets = Raylets::new(path.to_owned());
            Self { folder, raylets, now: 0 }
        }

        fn log(&self, name: &str, text: &str) {
            let path = self.folder.path().join(name);
            let file = fs::OpenOptions::new().append(true).open(path);
            file.unwrap().write_all(text.as_bytes()).unwrap();
        }

        fn end(&self, id: ProcessId) {
            fs::remove_dir_all(self.folder.path().join(id.pid.to_string())).unwrap();
        }

        fn scan(&mut self, living: &[ProcessId]) -> Vec<RayKill> {
            self.now += 1;
            let process = |id: &ProcessId| EngineProcess {
                parent: RAYLET_PID,
                ..EngineProcess::holding(*id, "ray::RayWorkerP", 1)
            };
            let processes: Vec<EngineProcess> = living.iter().map(process).collect();
            let engine =
                EngineSeen::new("vllm".into(), EngineKind::Vllm, SERVER, processes, "its".into());
            let engines = if living.is_empty() { Vec::new() } else { vec![engine] };
            self.raylets.update(Duration::from_secs(self.now), &engines);
            let found = self.raylets.unreported().to_vec();
            self.raylets.mark_reported();
            found
        }
    }

    fn write(procfs: &Path, pid: u32, comm: &str, user: u32, pids: &str) {
        let folder = procfs.join(pid.to_string());
        fs::create_dir_all(&folder).unwrap();
        let stat = format!("{pid} ({comm}) S {}{} 0\n", "0 ".repeat(18), pid * 10);
        fs::write(folder.join("stat"), stat).unwrap();
        let status = format!("Uid:\t{user}\t{user}\t{user}\t{user}\nNSpid:\t{pids}\n");
        fs::write(folder.join("status"), status).unwrap();
    }

    fn killed(pid: u32, name: &str) -> String {
        format!(
            "[2026-02-03 04:05:06,260 I 9 9] (raylet) node_manager.cc:2982: Killing worker with \
             task x\n\nMemory on the node (IP: 10.0.0.2, ID: 00) where the task (actor ID: 01, \
             name={name}, pid={pid}, memory used=2.07GB) was running was 115.68GB / 121.63GB \
             (0.951074), which exceeds the memory usage threshold of 0.95. Ray killed this worker \
             (ID: 02) because it was the most recently scheduled task\n"
        )
    }

    #[test]
    fn a_worker_that_the_log_of_its_raylet_names_was_killed_by_ray() {
        let mut world = World::new("raylet", 1000);
        assert_eq!(world.scan(&[SERVER, WORKER]), []);
        world.log("logs/raylet.out", &killed(531, "RayWorkerWrapper.__init__"));
        assert_eq!(world.scan(&[SERVER, WORKER]), [], "it lives");
        world.end(WORKER);
        let kills = world.scan(&[SERVER]);
        let [kill] = &kills[..] else { panic!("{kills:?}") };
        assert_eq!((kill.id, kill.server, kill.ended_at.as_secs()), (WORKER, SERVER, 3));
        assert!(kill.line.contains("name=RayWorkerWrapper.__init__, pid=531"), "{}", kill.line);
        assert_eq!(world.scan(&[SERVER]), [], "once");
        // The log is written a little later than the process ends, and its file has been renamed.
        let logs = world.folder.path().join("logs");
        fs::rename(logs.join("raylet.out"), logs.join("raylet.out.1")).unwrap();
        fs::write(logs.join("raylet.out"), "").unwrap();
        world.end(SERVER);
        assert_eq!(world.scan(&[]), []);
        world.log("logs/raylet.out.1", &killed(530, "x"));
        let kills: Vec<_> = world.scan(&[]).iter().map(|kill| (kill.id, kill.ended_at)).collect();
        assert_eq!(kills, [(SERVER, Duration::from_secs(5))]);
        world.scan(&[]);
        assert!(world.raylets.logs.is_empty() && world.raylets.processes.is_empty());
    }

    #[test]
    fn other_logs_earlier_lines_and_late_ones_explain_nothing() {
        let mut world = World::new("raylet", 1000);
        world.scan(&[SERVER, WORKER]);
        // Of another process of the container, and in a file that is no log of a raylet.
        world.log("logs/raylet.out", &killed(31, "x"));
        world.log("other", &killed(531, "x"));
        world.end(WORKER);
        for _ in 0..=LOGGED_WITHIN.as_secs() {
            assert_eq!(world.scan(&[SERVER]), []);
        }
        world.log("logs/raylet.out", &killed(531, "x"));
        assert_eq!(world.scan(&[SERVER]), []);
    }

    #[test]
    fn a_line_about_an_earlier_process_with_the_pid_of_a_worker_does_not_explain_its_end() {
        let mut world = World::new("raylet", 1000);
        world.scan(&[SERVER, WORKER]);
        world.log("logs/raylet.out", &killed(531, "x"));
        world.end(WORKER);
        assert_eq!(world.scan(&[SERVER]).len(), 1);
        let next = ProcessId { start_ticks: WORKER.start_ticks + 100, ..WORKER };
        write(world.folder.path(), next.pid, "ray::RayWorkerP", 1000, "31 531");
        world.scan(&[SERVER, next]);
        world.end(next);
        assert_eq!(world.scan(&[SERVER]), []);
        // Bytes that are no text do not shift the places of lines.
        let path = world.folder.path().join("logs/raylet.out");
        let mut file = fs::OpenOptions::new().append(true).open(path).unwrap();
        file.write_all(b"\xff\xfe\r\n").unwrap();
        world.log("logs/raylet.out", &killed(531, "x"));
        let kills: Vec<_> = world.scan(&[SERVER]).iter().map(|kill| kill.id).collect();
        assert_eq!(kills, [next]);
    }

    #[test]
    fn a_log_that_was_begun_anew_counts_from_its_beginning() {
        let mut world = World::new("raylet", 1000);
        world.scan(&[SERVER, WORKER]);
        fs::write(world.folder.path().join("logs/raylet.out"), "").unwrap();
        world.end(WORKER);
        world.log("logs/raylet.out", &killed(531, ""));
        assert_eq!(world.scan(&[SERVER]).len(), 1);
    }

    #[test]
    fn the_log_of_a_raylet_is_read_on_in_the_file_after_its_rotation() {
        let mut world = World::new("raylet", 1000);
        world.scan(&[SERVER, WORKER]);
        let logs = world.folder.path().join("logs");
        fs::rename(logs.join("raylet.out"), logs.join("raylet.out.1")).unwrap();
        let escaped = killed(531, "x").replace('\n', r"\n");
        let record = format!(
            "{{\"asctime\":\"t\",\"levelname\":\"I\",\"message\":\"{escaped}\",\"lineno\":1}}\n"
        );
        fs::write(logs.join("raylet.out"), record).unwrap();
        world.end(WORKER);
        let kills = world.scan(&[SERVER]);
        let [kill] = &kills[..] else { panic!("{kills:?}") };
        assert!(kill.id == WORKER && kill.line.starts_with("Memory on the node"), "{}", kill.line);
        // A worker that was found later had no part in it.
        let next = ProcessId { pid: 32, start_ticks: 320 };
        write(world.folder.path(), next.pid, "ray::RayWorkerP", 1000, "32 531");
        world.scan(&[SERVER, next]);
        world.end(next);
        assert_eq!(world.scan(&[SERVER]), []);
    }

    #[test]
    fn one_user_cannot_keep_out_the_raylets_of_others() {
        let mut world = World::new("raylet", 1000);
        let raylet = |pid| ProcessId { pid, start_ticks: 1 };
        for pid in 100..110 {
            world.raylets.log_lengths(raylet(pid), 1001);
        }
        assert_eq!(world.raylets.logs.len(), MAX_RAYLETS_OF_USER);
        world.raylets.log_lengths(raylet(RAYLET_PID), 1000);
        assert!(world.raylets.logs.contains_key(&raylet(RAYLET_PID)));
        for pid in 110..120 {
            world.raylets.log_lengths(raylet(pid), pid);
        }
        assert_eq!(world.raylets.logs.len(), MAX_RAYLETS);
        world.scan(&[]);
        assert!(world.raylets.logs.is_empty());
    }

    #[test]
    fn a_log_that_cannot_be_read_at_first_is_read_later() {
        let mut world = World::new("raylet", 1000);
        let raylet = ProcessId { pid: RAYLET_PID, start_ticks: u64::from(RAYLET_PID) * 10 };
        let (release, hangs) = std::sync::mpsc::channel::<()>();
        assert_eq!(world.raylets.bounded.read(raylet, move || hangs.recv().is_ok()), None);
        world.scan(&[SERVER, WORKER]);
        drop(release);
        // Its thread may not have returned yet.
        for _ in 0..1_000 {
            world.now += 60;
            world.scan(&[SERVER, WORKER]);
            if !world.raylets.processes.is_empty() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        world.log("logs/raylet.out", &killed(531, "x"));
        world.end(WORKER);
        assert_eq!(world.scan(&[SERVER]).len(), 1);
    }

    #[test]
    fn a_process_of_another_user_or_another_name_is_no_raylet_of_it() {
        for (comm, user) in [("raylet", 1001), ("bash", 1000)] {
            let mut world = World::new(comm, user);
            world.scan(&[SERVER, WORKER]);
            world.log("logs/raylet.out", &killed(531, "x"));
            world.end(WORKER);
            assert_eq!(world.scan(&[SERVER]), [], "{comm}");
        }
    }
}
