//! What processes of Ray show of the engines that they run, from Ray 2.60, and what logs of raylets
//! show of killed workers, in the wordings of Ray 2.0 to 2.60.

use std::borrow::Cow;

/// Digits of a job's number.
const JOB_DIGITS: usize = 8;

/// The number of no job: a worker has it that Ray has started ahead of any job.
const NO_JOB: &str = "ffffffff";

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
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    text.len() == JOB_DIGITS && text.bytes().all(is_digit) && text != NO_JOB
}

/// Whether that open file is the log of a raylet.
pub fn is_raylet_log(path: &str) -> bool {
    log_file(path).is_some_and(|(name, kind)| name == "raylet" && matches!(kind, "out" | "err"))
}

/// Whether that open file has the output of a worker: `…/logs/worker-ID-JOB-PID.err` or `.out`.
pub fn is_worker_output(path: &str) -> bool {
    let is_its = |name: &str| match name.split('-').collect::<Vec<&str>>()[..] {
        ["worker", id, job, pid] => is_hex(id) && is_hex(job) && is_digits(pid),
        _ => false,
    };
    log_file(path).is_some_and(|(name, kind)| matches!(kind, "out" | "err") && is_its(name))
}

/// Whether that open file is the log of Ray's own code in a worker:
/// `…/logs/python-core-worker-ID_PID.log`.
pub fn is_core_worker_log(path: &str) -> bool {
    let is_its = |name: &str| {
        let ids = name.strip_prefix("python-core-worker-").and_then(|ids| ids.rsplit_once('_'));
        ids.is_some_and(|(id, pid)| is_hex(id) && is_digits(pid))
    };
    log_file(path).is_some_and(|(name, kind)| kind == "log" && is_its(name))
}

/// The name and the kind of a log of a session, without the number of a rotated one (Ray's
/// `RAY_ROTATION_MAX_BYTES`, or logrotate): `raylet.out.1`, or `raylet.1.out` in earlier versions.
fn log_file(path: &str) -> Option<(&str, &str)> {
    let (_, file) = path.rsplit_once("/logs/")?;
    let (name, kind) = without_number(file).rsplit_once('.')?;
    (!file.contains('/')).then_some((without_number(name), kind))
}

fn without_number(name: &str) -> &str {
    match name.rsplit_once('.') {
        Some((rest, number)) if is_digits(number) => rest,
        _ => name,
    }
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_hex(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The text of a line of Ray's log: of a record in JSON (`RAY_BACKEND_LOG_JSON=1`) its message,
/// which may have several lines, and otherwise the line itself.
pub fn log_text(line: &str) -> Cow<'_, str> {
    json_message(line).map_or(Cow::Borrowed(line), Cow::Owned)
}

/// The message of a record in JSON. Time and level, which Ray writes first, contain no text of
/// others. It escapes less than JSON requires, so that records may be no valid JSON.
fn json_message(line: &str) -> Option<String> {
    let (_, rest) = line.strip_prefix("{\"asctime\":\"")?.split_once("\",\"levelname\":\"")?;
    let (_, rest) = rest.split_once("\",\"message\":\"")?;
    let mut text = String::new();
    let mut characters = rest.chars();
    loop {
        let character = match characters.next()? {
            '"' => return Some(text),
            '\\' => match characters.next()? {
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                'b' => '\u{8}',
                'f' => '\u{c}',
                escaped => escaped,
            },
            other => other,
        };
        text.push(character);
    }
}

/// The pids of the workers that Ray's memory monitor kills, by a line of the raylet's log
/// ([`log_text`]). They are those of the raylet's PID namespace. Tasks and processes choose names
/// that are on such lines, so that a line names a killer but proves no kill.
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
    text.parse::<u32>().ok().filter(|pid| is_digits(text) && *pid > 0)
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
            let text = log_text(line);
            let found: Vec<u32> = text.lines().flat_map(memory_kills).collect();
            assert_eq!(found, pids, "{line}");
        }
    }

    #[test]
    fn records_in_json_have_their_message_and_other_lines_themselves() {
        let head = r#"{"asctime":"2026-02-03 04:05:06,260","levelname":"I","message":""#;
        let tail = r#"","component":"raylet","filename":"node_manager.cc","lineno":2982}"#;
        for (escaped, text) in [
            ("", ""),
            (r#"a \"b\" \\ \n\tc"#, "a \"b\" \\ \n\tc"),
            ("\u{1b}[31m", "\u{1b}[31m"),
            (r#"\",\"message\":\"x"#, "\",\"message\":\"x"),
        ] {
            assert_eq!(log_text(&format!("{head}{escaped}{tail}")), text);
        }
        for other in
            [head, "{}", r#"{"message":"x"}"#, r#"x{"asctime":"","levelname":"","message":""}"#]
        {
            assert_eq!(log_text(other), other);
        }
    }

    #[test]
    fn logs_of_raylets_and_workers_are_known_by_their_names_also_once_rotated() {
        let id = "0123456789abcdef".repeat(3);
        let is = |name: &str| {
            let path = format!("/tmp/ray/{SESSION}/logs/{name}");
            (is_raylet_log(&path), is_worker_output(&path), is_core_worker_log(&path))
        };
        for name in ["raylet.out", "raylet.err", "raylet.out.1", "raylet.12.out"] {
            assert_eq!(is(name), (true, false, false), "{name}");
        }
        for end in [".out", ".err", ".err.5", ".1.err"] {
            let name = format!("worker-{id}-01000000-4711{end}");
            assert_eq!(is(&name), (false, true, false), "{name}");
            let name = format!("worker-{id}-ffffffff-4711{end}");
            assert_eq!(is(&name), (false, true, false), "{name}");
        }
        for end in [".log", ".log.1", ".1.log"] {
            let name = format!("python-core-worker-{id}_4711{end}");
            assert_eq!(is(&name), (false, false, true), "{name}");
        }
        for name in [
            "raylet.out.x",
            "raylet.log",
            "gcs_server.out",
            "old/raylet.out",
            "raylet",
            "worker-x-01000000-4711.err",
            "worker-01-01000000.err",
            "python-core-driver-01_4711.log",
            "python-core-worker-01.log",
        ] {
            assert_eq!(is(name), (false, false, false), "{name}");
        }
        assert!(!is_raylet_log("/tmp/raylet.out"));
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
        fn the_message_of_a_record_survives_its_escapes(text in "[ -~\n\t]{0,80}") {
            let escaped = text.replace('\\', r"\\").replace('"', r#"\""#);
            let escaped = escaped.replace('\n', r"\n").replace('\t', r"\t");
            let head = r#"{"asctime":"t","levelname":"I","message":""#;
            let record = format!("{head}{escaped}\",\"lineno\":1}}");
            prop_assert_eq!(log_text(&record).into_owned(), text);
        }

        #[test]
        fn arbitrary_text_does_not_panic(text in "\\PC{0,80}") {
            let path = format!("/logs/{text}");
            let _ = (is_raylet_log(&path), is_worker_output(&path), is_core_worker_log(&path));
            let _ = log_text(&text);
            let _ = (session(std::slice::from_ref(&text)), worker_job(&text), driver(&text));
            let path = format!("/tmp/{SESSION}/logs/python-core-driver-{text}");
            prop_assert!(driver(&path).is_none_or(|(_, job)| is_job(job)));
        }
    }
}
