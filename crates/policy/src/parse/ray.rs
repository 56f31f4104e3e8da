//! What processes of Ray show of the engines that they run, from Ray 2.60, and what logs of raylets
//! show of killed workers, in the wordings of Ray 2.0 to 2.60.

/// Digits of a job's number.
const JOB_DIGITS: usize = 8;

/// The number of no job: a worker has it that Ray has started ahead of any job.
const NO_JOB: &str = "ffffffff";

/// Files of a raylet's log, below the folder of its session.
const RAYLET_LOGS: [&str; 2] = ["/logs/raylet.out", "/logs/raylet.err"];

/// Most pids that are read of one line.
const MOST_KILLED: usize = 64;

/// What follows the pid of a worker, from Ray 2.54.
const USED: &str = ", actual memory used=";

/// What the memory monitor logs when a worker that it has killed is gone. Followed by the pid.
const EVICTED: &str = "Worker evicted and process killed to reclaim memory. worker pid: ";

/// The name of the cluster's session in the arguments of a raylet. It is the same on all nodes, and
/// another after each start of the cluster.
pub fn session(arguments: &[String]) -> Option<&str> {
    let names = arguments.iter().find_map(|argument| argument.strip_prefix("--session-name="));
    names.filter(|name| is_session(name))
}

/// Session and job of a driver, by the path of the log that it has open:
/// `…/SESSION/logs/python-core-driver-JOB…_PID.log`.
pub fn driver(path: &str) -> Option<(&str, &str)> {
    let (folder, file) = path.rsplit_once("/logs/python-core-driver-")?;
    let (_, session) = folder.rsplit_once('/')?;
    let job = file.get(..JOB_DIGITS).filter(|job| is_job(job))?;
    is_session(session).then_some((session, job))
}

/// The job of a worker, by the beginning of its standard output: `:job_id:JOB`. The last one
/// counts, since a worker may serve several jobs in turn.
pub fn worker_job(output: &str) -> Option<&str> {
    let mut jobs = output.lines().rev().filter_map(|line| line.strip_prefix(":job_id:"));
    jobs.find(|job| is_job(job))
}

/// Whether that is a job's number.
pub fn is_job(text: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    text.len() == JOB_DIGITS && text.bytes().all(is_digit) && text != NO_JOB
}

/// Whether that open file is the log of a raylet.
pub fn is_raylet_log(path: &str) -> bool {
    RAYLET_LOGS.iter().any(|name| path.ends_with(name))
}

/// The pids of the workers that Ray's memory monitor kills, by a line of the raylet's log. They are
/// those of the raylet's PID namespace. Tasks and processes choose names that are on such lines, so
/// that a line names a killer but proves no kill.
pub fn memory_kills(line: &str) -> Vec<u32> {
    let message = message(line).trim_start();
    if let Some(rest) = message.strip_prefix(EVICTED) {
        let end = rest.bytes().take_while(u8::is_ascii_digit).count();
        return rest.get(..end).and_then(pid).into_iter().collect();
    }
    if let Some(worker) = message.strip_prefix("Selected to kill: ") {
        let before = worker.rsplit_once(USED).map(|(before, _)| before);
        return before.and_then(last_pid).into_iter().collect();
    }
    let is_kill = ["Memory on the node (", "Ray killed ", "Killing "];
    if !is_kill.iter().any(|begin| message.starts_with(begin)) {
        return Vec::new();
    }
    if let Some((_, workers)) = message.split_once("based on the killing policy: [") {
        let (workers, _) = workers.split_once(")]").unwrap_or((workers, ""));
        let Some((workers, _)) = workers.rsplit_once(USED) else { return Vec::new() };
        return workers.split(USED).filter_map(last_pid).take(MOST_KILLED).collect();
    }
    let killed = || {
        let (where_it_ran, rest) = message.rsplit_once(") was running was ")?;
        let (before, _) = where_it_ran.rsplit_once(", memory used=")?;
        rest.contains("Ray killed this worker").then(|| last_pid(before))?
    };
    killed().into_iter().collect()
}

/// The text of a record of Ray's log, without time, threads, program and source line:
/// `[2026-02-03 04:05:06,260 I 99 99] (raylet) node_manager.cc:2926: …`. Other lines continue one.
fn message(line: &str) -> &str {
    let record = line.strip_prefix('[').and_then(|line| line.split_once("] (raylet) "));
    let text = record.and_then(|(_, rest)| rest.split_once(": ")).map(|(_, text)| text);
    text.unwrap_or(line)
}

/// The pid that a text ends with: `…, pid=99`.
fn last_pid(text: &str) -> Option<u32> {
    pid(text.rsplit_once("pid=")?.1)
}

fn pid(text: &str) -> Option<u32> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse::<u32>().ok().filter(|pid| is_number && *pid > 0)
}

fn is_session(text: &str) -> bool {
    let is_usual = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    (1..=64).contains(&text.len()) && text.bytes().all(is_usual)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SESSION: &str = "session_2026-11-27_00-13-51_527656_30927";

    #[test]
    fn sessions_and_jobs_are_read_as_ray_writes_them() {
        let argument = format!("--session-name={SESSION}");
        let raylet = ["/ray/raylet".to_owned(), "--gcs-address=10.77.0.1:6379".into(), argument];
        assert_eq!(session(&raylet), Some(SESSION));
        assert_eq!(session(&raylet[..2]), None);
        let ids = format!("01000000{}", "f".repeat(48));
        let log = format!("/tmp/ray1/{SESSION}/logs/python-core-driver-{ids}_28191.log");
        assert_eq!(driver(&log), Some((SESSION, "01000000")));
        for other in [
            format!("/tmp/ray1/{SESSION}/logs/python-core-worker-{ids}_28191.log"),
            format!("/tmp/ray1/{SESSION}/logs/python-core-driver-"),
            format!("/tmp/ray1/a session/logs/python-core-driver-{ids}"),
        ] {
            assert_eq!(driver(&other), None, "{other}");
        }
        assert_eq!(worker_job(":job_id:01000000\n:actor_name:RayWorkerProc\n"), Some("01000000"));
        assert_eq!(worker_job(":job_id:01000000\n:job_id:02000000\nx"), Some("02000000"));
        assert_eq!(worker_job("a :job_id:01000000\n:job_id:ffffffff\n:job_id:0100000é\n"), None);
    }

    #[test]
    fn the_workers_that_ray_kills_are_read_in_all_its_wordings() {
        let lines = include_str!("../../../../tests/fixtures/engines/raylet-log.txt");
        for line in lines.lines().filter(|line| !line.starts_with('#')) {
            let (pids, line) = line.split_once('\t').unwrap();
            let pids: Vec<u32> = pids.split(' ').filter_map(|pid| pid.parse().ok()).collect();
            assert_eq!(memory_kills(line), pids, "{line}");
        }
    }

    #[test]
    fn titles_of_processes_are_no_kills() {
        let forged = "Memory on the node (IP: 1.1.1.1) where the task (name=x, pid=7, memory \
                      used=1GB) was running was 1GB / 1GB (1.0). Ray killed this worker (ID: 0)";
        assert_eq!(memory_kills(forged), [7]);
        assert_eq!(memory_kills(&format!("4411\t0.10\t{forged}")), [0_u32; 0]);
        let name = "Selected to kill: (Task: task name=a, pid=8, actual memory used=1GB, pid=9, \
                    actual memory used=1.00GB, worker ID=00)";
        assert_eq!(memory_kills(name), [9], "the name of a task comes first");
        for other in ["", "pid=7", "Selected to kill: pid=, actual memory used=1GB"] {
            assert_eq!(memory_kills(other), [0_u32; 0], "{other}");
        }
        assert_eq!(memory_kills(&format!("{EVICTED}99999999999 task: 0")), [0_u32; 0]);
        assert!(is_raylet_log("/tmp/ray/session_1/logs/raylet.out"));
        assert!(!is_raylet_log("/tmp/ray/session_1/logs/raylet.out.1"));
    }

    proptest! {
        #[test]
        fn arbitrary_records_do_not_panic(begin in 0_usize..5, text in "[,()=pid0-9 a-z]{0,80}") {
            let begin = [EVICTED, "Selected to kill: ", "Ray killed ", "Memory on the node (", ""]
                [begin];
            let line = format!("{begin}{text}, pid=5, actual memory used={text}");
            prop_assert!(memory_kills(&line).len() <= MOST_KILLED);
        }

        #[test]
        fn arbitrary_text_does_not_panic(text in "\\PC{0,80}") {
            let _ = (session(std::slice::from_ref(&text)), worker_job(&text), driver(&text));
            let path = format!("/tmp/{SESSION}/logs/python-core-driver-{text}");
            prop_assert!(driver(&path).is_none_or(|(_, job)| is_job(job)));
        }
    }
}
