//! Engines that somebody ends in a shell, where nothing reports who.

use super::*;

fn ends_of_a_hand() -> impl Iterator<Item = ExitStatus> {
    [1, 2, 15]
        .into_iter()
        .flat_map(|signal| [ExitStatus::Signal { signal }, ExitStatus::Code { code: 128 + signal }])
}

#[test]
fn an_engine_in_a_shell_that_is_asked_to_end_is_no_failure() {
    let family = family();
    for exit in ends_of_a_hand() {
        let death = Circumstances { exit, ..vllm(&family, &[]) };
        let report = explain(&death, at(502));
        assert!(matches!(report.killer, Killer::Signal { sender: None, .. }), "{report:?}");
        assert!(!report.is_failure && report.advice.is_empty(), "{report:?}");
        // A supervisor reports who stops it, and nobody did.
        let report = explain(&Circumstances { is_supervised: true, ..death }, at(502));
        assert!(report.is_failure && report.advice[0].contains("find the sender"), "{report:?}");
    }
    for signal in [3, 9, 10] {
        let exit = ExitStatus::Signal { signal };
        let report = explain(&Circumstances { exit, ..vllm(&family, &[]) }, at(502));
        assert!(report.is_failure, "{report:?}");
    }
}

#[test]
fn such_a_signal_is_a_failure_where_something_else_failed() {
    let (alone, events) = (family(), oom_of_worker(101, 500));
    let log =
        ["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.".to_owned()];
    let killed = [relative(SERVER, "vllm"), ended(WORKER, "VLLM::EngineCor", 500, 9)];
    let faulted = [relative(SERVER, "vllm"), ended(WORKER, "VLLM::EngineCor", 500, 11)];
    for exit in ends_of_a_hand() {
        for death in [
            Circumstances { log: &log, ..vllm(&alone, &[]) },
            vllm(&alone, &events),
            vllm(&killed, &[]),
            vllm(&faulted, &[]),
        ] {
            let report = explain(&Circumstances { exit, ..death }, at(502));
            assert!(report.is_failure, "{report:?}");
        }
    }
}

/// Only its own journal shows that earlyoom has sent a signal. It does so when memory runs short,
/// and not while memory is short for days.
#[test]
fn a_signal_while_memory_ran_short_is_laid_to_nobody() {
    let family = family();
    let memory = Some(DeathMemory {
        total_bytes: Some(128 << 30),
        available_bytes: Some(6 << 30),
        swap_free_bytes: Some(0),
        ..DeathMemory::default()
    });
    for (signal, has_run_short, killer, is_failure) in [
        (15, true, "unknown", true),
        (15, false, "signal", false),
        (9, true, "unknown", true),
        (9, false, "signal", true),
        (2, true, "signal", false),
    ] {
        let exit = ExitStatus::Signal { signal };
        let death = Circumstances { exit, memory, has_run_short, ..vllm(&family, &[]) };
        let report = explain(&death, at(502));
        assert_eq!((report.killer.name(), report.is_failure), (killer, is_failure), "{report:?}");
        assert_eq!(report.sentence().contains("after memory ran short"), killer == "unknown");
        assert!(report.advice.iter().all(|line| !line.contains("its own log")), "{report:?}");
        let events = oom_of_worker(101, 500);
        let report = explain(&Circumstances { events: &events, ..death }, at(502));
        assert_eq!(report.killer.name(), "kernel_oom", "the kernel's own log decides");
    }
}
