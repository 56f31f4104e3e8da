//! Logs of Ray's raylets, which have names of tasks and command lines of processes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use umawarden::parse::process::own_pid;
use umawarden::parse::ray::{
    driver, is_core_worker_log, is_raylet_log, is_worker_output, log_text, memory_kills, session,
    worker_job,
};

fuzz_target!(|bytes: &[u8]| {
    let _ = own_pid(bytes);
    let text = String::from_utf8_lossy(bytes).into_owned();
    for line in text.lines() {
        let message = log_text(line);
        assert!(message.len() <= line.len());
        assert!(message.lines().all(|line| memory_kills(line).len() <= 64));
        let kinds = [is_raylet_log(line), is_worker_output(line), is_core_worker_log(line)];
        assert!(kinds.into_iter().filter(|is_it| *is_it).count() <= 1);
        let pids = memory_kills(line);
        assert!(pids.len() <= 64);
        // Each is a number of the line.
        assert!(pids.iter().all(|pid| *pid > 0 && line.contains(&pid.to_string())));
        // One line of the list of processes is not taken for a kill.
        assert!(memory_kills(&format!("1\t0.10\t{line}")).is_empty());
    }
    let _ = (driver(&text), worker_job(&text), session(&[text.clone()]));
});
