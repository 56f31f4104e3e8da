//! What processes of Ray show of the engines that they run. From Ray 2.60.

/// Digits of a job's number.
const JOB_DIGITS: usize = 8;

/// The number of no job: a worker has it that Ray has started ahead of any job.
const NO_JOB: &str = "ffffffff";

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

    proptest! {
        #[test]
        fn arbitrary_text_does_not_panic(text in "\\PC{0,80}") {
            let _ = (session(std::slice::from_ref(&text)), worker_job(&text), driver(&text));
            let path = format!("/tmp/{SESSION}/logs/python-core-driver-{text}");
            prop_assert!(driver(&path).is_none_or(|(_, job)| is_job(job)));
        }
    }
}
