//! Log lines of dying engines. A logged prompt may contain the same text, so a line can name a
//! reason but proves no kill.

use super::ENGINES;
use crate::model::ExitStatus;
use crate::parse::process::{MAX_TEXT, printable};

/// The reason of an engine's end in a line of its log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LastWords {
    /// One of its processes has ended unexpectedly.
    WorkerDied {
        /// The worker's name in the log.
        worker: String,
        /// Its pid in the pid namespace of the engine.
        pid: Option<u32>,
        /// Exit code or signal.
        status: ExitStatus,
    },
    /// An allocation failed.
    OutOfMemory,
    /// It refused to start with as little memory as there was.
    TooLittleMemory,
    /// It refused to start, as another rank has less memory than this one.
    Unbalanced,
    /// Another node, or another rank, was lost.
    PeerLost,
    /// It gave up; another line has the reason.
    Fatal,
}

/// Parts of lines that any engine may log.
const PHRASES: [(&str, LastWords); 6] = [
    ("CUDA out of memory", LastWords::OutOfMemory),
    ("torch.OutOfMemoryError", LastWords::OutOfMemory),
    ("torch.cuda.OutOfMemoryError", LastWords::OutOfMemory),
    ("CUDA_ERROR_OUT_OF_MEMORY", LastWords::OutOfMemory),
    ("Watchdog caught collective operation timeout", LastWords::PeerLost),
    ("Connection closed by peer", LastWords::PeerLost),
];

impl LastWords {
    /// Rank among the reasons in one line; the lowest counts.
    fn rank(&self) -> u8 {
        match self {
            Self::WorkerDied { .. } => 0,
            Self::TooLittleMemory => 1,
            Self::Unbalanced => 2,
            Self::OutOfMemory => 3,
            Self::PeerLost => 4,
            Self::Fatal => 5,
        }
    }
}

/// Reads one line of the log of any engine.
pub fn last_words(line: &str) -> Option<LastWords> {
    let line = cut(line);
    if let Some(died) = ENGINES.iter().find_map(|facts| (facts.worker_died)(line)) {
        return Some(died);
    }
    let phrases = ENGINES.iter().flat_map(|facts| facts.last_words).chain(&PHRASES);
    let found = phrases.filter(|(phrase, _)| line.contains(phrase)).map(|(_, words)| words);
    found.min_by_key(|words| words.rank()).cloned()
}

fn cut(line: &str) -> &str {
    let mut end = line.len().min(MAX_TEXT);
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    line.get(..end).unwrap_or(line)
}

/// Names of workers are short words.
pub(super) fn worker_name(text: &str) -> Option<String> {
    let is_word = !text.is_empty() && text.len() <= 64 && !text.contains(char::is_whitespace);
    is_word.then(|| printable(text.as_bytes()))
}

/// What Python calls an exit code: below 0 it is a signal's.
pub(super) fn python_status(text: &str) -> Option<ExitStatus> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text),
    };
    let end = digits.bytes().take_while(u8::is_ascii_digit).count();
    let number: i32 = digits.get(..end)?.parse().ok()?;
    match sign * number {
        code @ 0..=255 => Some(ExitStatus::Code { code }),
        signal @ -64..0 => Some(ExitStatus::Signal { signal: -signal }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn died(worker: &str, pid: Option<u32>, signal: i32) -> Option<LastWords> {
        let status = ExitStatus::Signal { signal };
        Some(LastWords::WorkerDied { worker: worker.to_owned(), pid, status })
    }

    #[test]
    fn last_words_of_engines_are_recognised() {
        let table = [
            (
                "[2026-11-20 10:00:00] Rank 0 scheduler died during initialization (exit code: \
                 -9). If exit code is -9 (SIGKILL), a common cause is the OS OOM killer.",
                died("scheduler of rank 0", None, 9),
            ),
            (
                "[2026-11-20 10:00:00] Subprocess scheduler_0 (pid=4711) crashed with exit code \
                 -9.",
                died("scheduler_0", Some(4711), 9),
            ),
            (
                "(EngineCore_DP0 pid=12) ERROR 11-20 10:00:00 [multiproc_executor.py:154] Worker \
                 proc VllmWorker-0 died unexpectedly (exit code: -9)",
                died("VllmWorker-0", None, 9),
            ),
            (
                "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
                Some(LastWords::TooLittleMemory),
            ),
            (
                "ValueError: Free memory on device cuda:0 (30.1/121.69 GiB) on startup is less \
                 than desired GPU memory utilization (0.92, 111.95 GiB).",
                Some(LastWords::TooLittleMemory),
            ),
            (
                "ValueError: No available memory for the cache blocks.",
                Some(LastWords::TooLittleMemory),
            ),
            (
                "The memory capacity is unbalanced. Some GPUs may be occupied by other processes. \
                 pre_model_load_memory=33.77, local_gpu_memory=101.33, local_gpu_memory * \
                 0.9=91.20",
                Some(LastWords::Unbalanced),
            ),
            ("torch.OutOfMemoryError: CUDA out of memory.", Some(LastWords::OutOfMemory)),
            (
                "RuntimeError: CUDA driver error: CUDA_ERROR_OUT_OF_MEMORY",
                Some(LastWords::OutOfMemory),
            ),
            (
                "ggml_backend_cuda_buffer: cudaMalloc failed: out of memory",
                Some(LastWords::OutOfMemory),
            ),
            ("Watchdog caught collective operation timeout: WorkNCCL", Some(LastWords::PeerLost)),
            ("EngineCore encountered a fatal error.", Some(LastWords::Fatal)),
            ("RuntimeError: Engine core initialization failed.", Some(LastWords::Fatal)),
            ("KV cache pool is full. Retract requests.", None),
            ("INFO: 127.0.0.1 - \"GET /health HTTP/1.1\" 200 OK", None),
            ("Subprocess scheduler_0 (pid=4711) was started", None),
            ("Subprocess a b (pid=4711) crashed with exit code -9.", None),
            ("Subprocess s (pid=1) crashed with exit code -99999999999.", None),
        ];
        for (line, expected) in table {
            assert_eq!(last_words(line), expected, "{line}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_lines_do_not_panic(line in "\\PC{0,200}", cut in 0_usize..200) {
            let _read = last_words(&line);
            let whole = "Subprocess scheduler_0 (pid=4711) crashed with exit code -9.";
            let part = whole.get(..cut.min(whole.len())).unwrap_or_default();
            let read = last_words(&format!("{line}{part}"));
            prop_assert!(read.is_none() || part.len() > 50 || last_words(&line).is_some());
        }
    }
}
