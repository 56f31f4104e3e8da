//! The log lines of an engine while its caches are emptied, if its log is a file.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::thread::Builder;
use std::time::Duration;

use crate::engines::facts;
use crate::files::{is_log_of, open_regular};
use crate::model::EngineTarget;
use crate::sources::output_files::open_output;

/// The size limit of the read part, in bytes.
const MOST_BYTES: u64 = 256 << 10;

/// The time limit of a read: a local file takes milliseconds.
const ANSWERS_WITHIN: Duration = Duration::from_millis(500);

/// The log of an engine, from its end at the begin of the act. It is opened then: neither a rename
/// nor another file of its name changes what is read.
#[derive(Debug)]
pub(super) struct EngineLog {
    file: File,
    ended_at: u64,
    freed_in_log: fn(&str) -> Vec<f64>,
}

impl EngineLog {
    pub(super) fn open(procfs: &Path, engine: &EngineTarget) -> Option<Self> {
        let folder = procfs.join(engine.processes.first()?.pid.to_string()).join("fd");
        let freed_in_log = facts(engine.kind).freed_in_log;
        let runtime = engine.runtime.as_ref();
        let of_container = runtime
            .and_then(|runtime| Some((PathBuf::from(&**runtime.log.as_ref()?), runtime.user)));
        within_limit(move || {
            let of_process = ["2", "1"].iter().find_map(|number| open_output(&folder.join(number)));
            let of_container = || {
                let (path, user) = of_container?;
                let file = open_regular(&path).ok()?;
                is_log_of(&file.metadata().ok()?, user).then_some(file)
            };
            let file = of_process.or_else(of_container)?;
            let ended_at = file.metadata().ok()?.len();
            Some(Self { file, ended_at, freed_in_log })
        })
    }

    /// The freed memory that the log reports, in words.
    pub(super) fn freed(self) -> Option<String> {
        within_limit(move || {
            let Self { mut file, ended_at, freed_in_log } = self;
            file.seek(SeekFrom::Start(ended_at)).ok()?;
            let mut text = Vec::new();
            file.take(MOST_BYTES).read_to_end(&mut text).ok()?;
            sum_text(&freed_in_log(&String::from_utf8_lossy(&text)))
        })
    }
}

/// The log may be on any file system: one that hangs blocks a thread, not the act.
fn within_limit<T: Send + 'static>(read: impl FnOnce() -> Option<T> + Send + 'static) -> Option<T> {
    let (sender, results) = channel();
    let read = move || drop(sender.send(read()));
    Builder::new().name("engine-log".to_owned()).spawn(read).ok()?;
    results.recv_timeout(ANSWERS_WITHIN).ok().flatten()
}

/// The sum over all ranks.
fn sum_text(amounts: &[f64]) -> Option<String> {
    let sum: f64 = amounts.iter().sum();
    match amounts.len() {
        0 => None,
        1 => Some(format!("freed {sum:.1} MB")),
        ranks => Some(format!("freed {sum:.1} MB on {ranks} ranks")),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write as _;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::model::{EngineKind, ProcessId};

    const FREED_LINE: &str = "[continue_generation] torch.cuda.empty_cache() called: reserved \
                              8.0 MB -> 4.0 MB (freed 4.0 MB)\n";

    #[test]
    fn a_log_is_read_from_its_end_and_not_where_the_engine_only_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let below = |name: &str| folder.path().join(name);
        for name in ["7/fd", "7/fdinfo"] {
            fs::create_dir_all(below(name)).unwrap();
        }
        let server = ProcessId { pid: 7, start_ticks: 1 };
        let kind = EngineKind::Sglang;
        let engine = EngineTarget { processes: vec![server], kind, ..EngineTarget::default() };
        symlink(below("log"), below("7/fd/2")).unwrap();
        // With O_APPEND and O_WRONLY; with O_PATH.
        for (flags, is_read) in [("0102001", true), ("010000000", false)] {
            fs::write(below("log"), FREED_LINE).unwrap();
            fs::write(below("7/fdinfo/2"), format!("pos:\t0\nflags:\t{flags}\n")).unwrap();
            let log = EngineLog::open(folder.path(), &engine);
            assert_eq!(log.is_some(), is_read, "{flags}");
            let mut file = fs::OpenOptions::new().append(true).open(below("log")).unwrap();
            file.write_all(FREED_LINE.as_bytes()).unwrap();
            let freed = log.and_then(EngineLog::freed);
            assert_eq!(freed.as_deref(), is_read.then_some("freed 4.0 MB"), "once");
        }
    }

    #[test]
    fn a_hanging_file_is_abandoned() {
        let (sender, waits) = channel::<()>();
        assert_eq!(within_limit(move || waits.recv().ok()), None);
        drop(sender);
        assert_eq!(within_limit(|| Some(1)), Some(1));
    }

    #[test]
    fn log_lines_of_all_ranks_are_added_up_and_malformed_ones_ignored() {
        let freed = |text: &str| sum_text(&(facts(EngineKind::Sglang).freed_in_log)(text));
        let line = |freed: &str| {
            format!(
                "[2026-11-22 10:13:40] [continue_generation] torch.cuda.empty_cache() called: \
                 reserved 8.0 MB -> 4.0 MB (freed {freed} MB)\n"
            )
        };
        assert_eq!(freed(&line("4.0")).as_deref(), Some("freed 4.0 MB"));
        let two = format!("{}other\n{}", line("4.0"), line("2.5"));
        assert_eq!(freed(&two).as_deref(), Some("freed 6.5 MB on 2 ranks"));
        let cut = "torch.cuda.empty_cache() called: reserved ";
        for text in ["", "other", "freed 9 MB", &line("NaN"), &line("-1"), &line("x"), cut] {
            assert_eq!(freed(text), None, "{text}");
        }
        let other = (facts(EngineKind::Vllm).freed_in_log)(&line("4.0"));
        assert!(other.is_empty(), "another engine logs no such line");
    }
}
