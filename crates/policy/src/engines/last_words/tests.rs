use proptest::prelude::*;

use super::*;

/// A reason, a tab and a line each.
const LINES: &str = include_str!("../../../../../tests/fixtures/engines/last-words.txt");

fn died(worker: &str, pid: Option<u32>, signal: i32) -> Option<LastWords> {
    let status = ExitStatus::Signal { signal };
    Some(LastWords::WorkerDied { worker: worker.to_owned(), pid, status })
}

#[test]
fn lines_of_public_reports_have_their_reasons() {
    let rows = LINES.lines().filter(|line| !line.starts_with('#'));
    let wrong: Vec<String> = rows
        .filter_map(|row| {
            let (expected, line) = row.split_once('\t').unwrap();
            let found = last_words(line).map(|words| words.reason());
            let found = found.map_or("-".to_owned(), |reason| format!("{reason:?}"));
            (found != expected).then(|| format!("{found} instead of {expected}: {line}"))
        })
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn ends_of_workers_have_name_and_status() {
    let table = [
        (
            "[2026-11-20 10:00:00] Rank 0 scheduler died during initialization (exit code: -9). If \
             exit code is -9 (SIGKILL), a common cause is the OS OOM killer.",
            died("scheduler of rank 0", None, 9),
        ),
        (
            "[2026-11-20 10:00:00] Subprocess scheduler_0 (pid=4711) crashed with exit code -9.",
            died("scheduler_0", Some(4711), 9),
        ),
        (
            "(EngineCore_DP0 pid=12) ERROR 11-20 10:00:00 [multiproc_executor.py:154] Worker proc \
             VllmWorker-0 died unexpectedly (exit code: -9)",
            died("VllmWorker-0", None, 9),
        ),
        (
            "Error: llama runner process has terminated: signal: killed",
            died("llama runner", None, 9),
        ),
        (
            "error=\"llama runner process has terminated: signal: aborted (core dumped)\"",
            died("llama runner", None, 6),
        ),
        ("Killed", died("process", None, 9)),
        ("vllm-1 exited with code 137", died("process", None, 9)),
        ("/run.sh: line 4: 22 Killed            vllm serve /m", died("process", None, 9)),
        ("failed (exitcode: -11) local_rank: 0 (pid: 1234)", died("process", None, 11)),
        ("Subprocess a b (pid=4711) crashed with exit code -9.", died("process", None, 9)),
        ("llama runner terminated: exit status 143", None),
        ("If a worker ends with exit code 137, lower --max-model-len", None),
        ("It may be terminated by SIGKILL", None),
        ("Subprocess scheduler_0 (pid=4711) was started", None),
        ("Subprocess s (pid=1) crashed with exit code -99999999999.", None),
    ];
    for (line, expected) in table {
        assert_eq!(last_words(line), expected, "{line}");
    }
}

/// In TGI's log each word has its own colour.
#[test]
fn colours_before_and_within_a_phrase_do_not_hide_it() {
    for line in [
        "\u{1b}[1;36m(EngineCore pid=1)\u{1b}[0;0m \u{1b}[31mCUDA out of memory\u{1b}[0m. Tried",
        "\u{1b}[31mERROR\u{1b}[0m \u{1b}[2mCUDA\u{1b}[0m out of memory\u{1b}[0m",
        "\u{1b}[31mMemoryError\u{1b}[0m",
    ] {
        assert!(last_words(line).is_some(), "{line:?}");
    }
    assert_eq!(without_colours("a\u{1b}[1;31mb\u{1b}[0mc\u{1b}[2Jd\u{1b}["), "abcJd");
}

#[test]
fn a_phrase_is_whole_and_its_parts_are_in_order() {
    let holds = [
        ("KV cache", "the KV cache"),
        ("a*c", "a b c"),
        ("MemoryError$", "x: MemoryError"),
        ("Cuda failure*out of memory", "Cuda failure 2 'out of memory'"),
        ("^Killed$", "Killed"),
        ("KV cache", "theKV cache, KV cache"),
    ];
    for (phrase, line) in holds {
        assert!(text_before(phrase, line).is_some(), "{phrase}: {line}");
    }
    let fails = [
        ("KV cache", "theKV cache"),
        ("a*c", "c a"),
        ("MemoryError$", "MemoryError: x"),
        ("MemoryError$", "OutOfMemoryError"),
        ("MemoryError$", "_MemoryError"),
        ("^Killed$", "not Killed"),
        ("^Killed$", "Killed by"),
    ];
    for (phrase, line) in fails {
        assert!(text_before(phrase, line).is_none(), "{phrase}: {line}");
    }
}

#[test]
fn causes_and_cures_are_one_sentence_each() {
    let reasons = ENGINES.iter().flat_map(|facts| facts.last_words).chain(PHRASES);
    for reason in reasons.map(|(_, reason)| *reason).chain([Reason::WorkerDied]) {
        for text in [reason.cause(), reason.cure()] {
            assert!(!text.is_empty() && !text.ends_with('.') && !text.contains(". "), "{text}");
        }
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
