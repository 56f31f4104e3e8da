//! The log lines of an engine while its caches are emptied, if its log is a file.

use std::fs;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::thread::Builder;
use std::time::Duration;

use crate::engines::sglang::FREED;
use crate::files::{is_log_of, open_regular};
use crate::model::EngineTarget;

/// The size limit of the read part, in bytes.
const MOST_BYTES: u64 = 256 << 10;

/// The time limit of a read: a local file takes milliseconds.
const ANSWERS_WITHIN: Duration = Duration::from_millis(500);

/// The log of an engine, from its end at the begin of the act.
#[derive(Debug)]
pub(super) struct EngineLog {
    path: PathBuf,
    /// The user whose file it must be.
    user: Option<u32>,
    ended_at: u64,
}

impl EngineLog {
    pub(super) fn open(procfs: &Path, engine: &EngineTarget) -> Option<Self> {
        let folder = procfs.join(engine.processes.first()?.pid.to_string()).join("fd");
        let runtime = engine.runtime.as_ref();
        let of_container = runtime
            .and_then(|runtime| Some((PathBuf::from(&**runtime.log.as_ref()?), runtime.user)));
        let files = [(folder.join("2"), None), (folder.join("1"), None)];
        let files = files.into_iter().chain(of_container);
        within_limit(move || {
            let mut files = files.filter_map(|(path, user)| {
                let found = fs::metadata(&path).ok().filter(|found| is_log_of(found, user))?;
                Some(Self { path, user, ended_at: found.len() })
            });
            files.next()
        })
    }

    /// The freed memory that the log reports, in words.
    pub(super) fn freed(self) -> Option<String> {
        within_limit(move || {
            let mut file = open_regular(&self.path).ok()?;
            file.metadata().ok().filter(|found| is_log_of(found, self.user))?;
            file.seek(SeekFrom::Start(self.ended_at)).ok()?;
            let mut text = Vec::new();
            file.take(MOST_BYTES).read_to_end(&mut text).ok()?;
            freed(&String::from_utf8_lossy(&text))
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
fn freed(text: &str) -> Option<String> {
    let amounts = text.split(FREED).skip(1).filter_map(|rest| {
        let line = rest.split(['\n', '\r']).next()?;
        let amount = line.split_once("(freed ")?.1.split_once(" MB)")?.0;
        let amount: f64 = amount.parse().ok()?;
        (0.0..1e9).contains(&amount).then_some(amount)
    });
    let amounts: Vec<f64> = amounts.collect();
    let sum: f64 = amounts.iter().sum();
    match amounts.len() {
        0 => None,
        1 => Some(format!("freed {sum:.1} MB")),
        ranks => Some(format!("freed {sum:.1} MB on {ranks} ranks")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hanging_file_is_abandoned() {
        let (sender, waits) = channel::<()>();
        assert_eq!(within_limit(move || waits.recv().ok()), None);
        drop(sender);
        assert_eq!(within_limit(|| Some(1)), Some(1));
    }

    #[test]
    fn log_lines_of_all_ranks_are_added_up_and_malformed_ones_ignored() {
        let line = |freed: &str| {
            format!(
                "[2026-11-22 10:13:40] [continue_generation] torch.cuda.empty_cache() called: \
                 reserved 8.0 MB -> 4.0 MB (freed {freed} MB)\n"
            )
        };
        assert_eq!(freed(&line("4.0")).as_deref(), Some("freed 4.0 MB"));
        let two = format!("{}other\n{}", line("4.0"), line("2.5"));
        assert_eq!(freed(&two).as_deref(), Some("freed 6.5 MB on 2 ranks"));
        for text in ["", "other", "freed 9 MB", &line("NaN"), &line("-1"), &line("x"), FREED] {
            assert_eq!(freed(text), None, "{text}");
        }
    }
}
