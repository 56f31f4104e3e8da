//! Engines that somebody ends in a shell, where nothing reports who.

use super::*;

const TOTAL: u64 = 128 << 30;

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

/// earlyoom sends SIGTERM below a tenth of memory and of swap, and only its own journal has that.
#[test]
fn a_sigterm_while_memory_and_swap_were_short_is_a_failure() {
    let family = family();
    let table: [(Option<u64>, Option<u64>, bool); 6] = [
        (Some(6 << 30), Some(0), true),
        (Some(6 << 30), None, true),
        (Some(6 << 30), Some(1 << 30), true),
        (Some(6 << 30), Some(15 << 30), false),
        (Some(28 << 30), Some(0), false),
        (None, Some(0), false),
    ];
    for (available_bytes, swap_free_bytes, is_failure) in table {
        let total_bytes = Some(TOTAL);
        let memory =
            DeathMemory { total_bytes, available_bytes, swap_free_bytes, ..DeathMemory::default() };
        let exit = ExitStatus::Signal { signal: 15 };
        let death = Circumstances { exit, memory: Some(memory), ..vllm(&family, &[]) };
        assert_eq!(explain(&death, at(502)).is_failure, is_failure, "{memory:?}");
        let exit = ExitStatus::Signal { signal: 2 };
        assert!(!explain(&Circumstances { exit, ..death }, at(502)).is_failure, "Ctrl-C");
    }
}
