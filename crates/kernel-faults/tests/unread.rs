//! No fault is lost without a word: a line that the assembler reads is noticed in any form.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use kernel_faults::dmesg::{LogText, Message};
use kernel_faults::{EventAssembler, UnreadFaults};

fn messages(log: &[u8]) -> Vec<Message> {
    let mut text = LogText::new();
    let mut messages: Vec<Message> =
        log.split(|byte| *byte == b'\n').filter_map(|line| text.feed(line)).collect();
    messages.extend(text.finish());
    messages
}

/// The kinds of events, and the number of lines that gave none.
fn read(messages: &[Message]) -> (Vec<&'static str>, u64) {
    let (mut assembler, mut unread) = (EventAssembler::new(), UnreadFaults::default());
    let mut events = Vec::new();
    for message in messages {
        assembler.feed(&message.kernel_line(), &mut events);
        unread.take(message.line, &message.kernel_line(), message.whole.as_deref());
    }
    assembler.finish(&mut events);
    let kinds: Vec<&str> = events.iter().map(|event| event.kind.kind()).collect();
    let unread = unread.finish(|kind| kinds.contains(&kind));
    (kinds, unread.map_or(0, |(count, _)| count))
}

/// Every message of the fixtures that gives an event by itself.
fn faults() -> BTreeSet<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/kernel");
    let mut faults = BTreeSet::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "log") {
            continue;
        }
        for message in messages(&fs::read(&path).unwrap()) {
            if read(std::slice::from_ref(&message)).0.is_empty() {
                continue;
            }
            let program = message.identifier.unwrap_or_else(|| "kernel".to_owned());
            faults.insert((program, message.text));
        }
    }
    assert!(faults.len() > 100, "the fixtures are gone: {}", faults.len());
    faults
}

#[test]
fn a_fault_in_an_unreadable_form_is_noticed() {
    for (program, text) in faults() {
        for line in [
            format!("\"2026-11-25T09:00:00Z\",\"h\",\"{program}\",\"{text}\""),
            format!("Nov 25 09:00:00 h app[7]: {program}: it says {text}"),
        ] {
            let (kinds, unread) = read(&messages(line.as_bytes()));
            assert_eq!((&*kinds, unread), (&[][..], 1), "{line}");
        }
    }
}

#[test]
fn a_fault_behind_a_stamp_gives_its_event_or_is_noticed() {
    for (_, text) in faults().into_iter().filter(|(program, _)| program == "kernel") {
        for line in [
            format!("2026-11-25T09:00:00Z {text}"),
            format!("2026-11-25T09:00:00Z\t{text}"),
            format!("[pod/kmsg-abc/kmsg] 2026-11-25T09:00:00Z {text}"),
            format!("Nov 25 09:00:00 {text}"),
            format!("Nov 25 09:00:00 h {text}"),
            format!("2026-11-25T09:00:00Z stdout F {text}"),
            format!("2026-11-25T09:00:00Z {{job=\"kern\"}} {text}"),
        ] {
            let (kinds, unread) = read(&messages(line.as_bytes()));
            assert_eq!(kinds.len() as u64 + unread, 1, "{line}: {kinds:?}");
        }
    }
}

/// Wordings, and their events; those without any are noticed.
const WORDINGS: &[(&str, &str)] = &[
    ("NVRM: _issueRpcAndWait: rpcRecvPoll timedout for fn 76!", "gpu_lost"),
    ("NVRM: GPU1 _issueRpcAndWait: rpcRecvPoll timedout for fn 76!", "gpu_lost"),
    ("NVRM: GPU 0000:0a:00.0: rm_init_adapter failed, device minor number 5", "gpu_init_failed"),
    ("NVRM: rm_init_adapter failed, device minor number 0", "gpu_init_failed"),
    ("Out of memory: Kill process 4142 (python3) score 68 or sacrifice child", ""),
    ("Memory cgroup out of memory: Kill process 4142 (x) score 68 or sacrifice child", ""),
    ("Out of Memory: Killed process 2592 (mysql).", ""),
    ("Out of memory: Killed proc", ""),
    ("Memory cgroup out of memory: Killed process", ""),
    ("NVRM: Xid (PCI:000f", ""),
    ("NVRM: something NV_ERR_NO_MEMORY here", ""),
    ("Tasks in /a/b are going to be killed due to memory.oom.group set", ""),
    ("lowmemorykiller: Killing 'a b' (123) (tgid 123), adj 900,", ""),
    ("NVRM: Xid (PCI:0000:01:00) 31, Ch 00000010, intr 10000000", ""),
    ("NVRM: Xid (PCI:0000:01:00): ", ""),
    ("NVRM: rm_init_adapter(0) failed", ""),
    ("NVRM: rm_init_adapter failed for device bearing minor number 0", "gpu_init_failed"),
    ("NVRM: GPU0 _kgspRpcRecvPoll: GSP RM heartbeat timed out", "gpu_lost"),
    ("NVRM: _kgspRpcRecvPoll: LibOS heartbeat timed out", "gpu_lost"),
    ("NVRM: kflcnWaitForHaltRiscv_GA102: Timeout waiting for RISC-V to halt", "gpu_lost"),
    ("NVRM: krcWatchdog_IMPL: RC watchdog: GPU is probably locked!  Notify Timeout: 7", ""),
    ("nvidia-uvm: Encountered a global fatal error: x", ""),
    ("nvidia-uvm: uvm_mem.c:99 uvm_mem_alloc[pid:7] Failed to allocate x", ""),
    ("nvidia-modeset: ERROR: GPU:0: Failed to allocate memory for the display state", ""),
    ("NVRM: GPU0 GSP RM initialization failed, status Out of memory [NV_ERR_NO_MEMORY]", ""),
    ("NVRM: Out of memory [NV_ERR_NO_MEMORY] (0x51) from _memdescAllocInternal", ""),
    ("SLUB: Unable to allocate memory on node -1, gfp=0x820(GFP_ATOMIC)", ""),
    ("mce: Uncorrected hardware memory error in user-access at 8a398a400", ""),
    ("EDAC MC0: 1 UE multi-bit ECC on unknown memory (node:1 card:4 page:0xb50c68c)", ""),
    ("NVRM: VM: nv_alloc_pages: failed to allocate 4096 pages", "nv_no_memory"),
    ("NVRM: GPU 0000:01:00.0: Failed to allocate memory", ""),
    ("NVRM: _issueRpcAndWait: rpcSendMessage failed with status 0x0000000f for fn 10!", ""),
    (
        "NVRM: nvCheckOkFailedNoLog: Check failed: GPU lost from the bus [NV_ERR_GPU_IS_LOST] \
         (0x0000000F) returned from status @ kernel_channel.c:2827",
        "",
    ),
    (
        "emerge: vmalloc: allocation failure, allocated 8192 of 20480 bytes, \
         mode:0x14000c0(GFP_KERNEL), nodemask=(null)",
        "page_alloc_failure",
    ),
    ("a: page allocation stalls for 10008ms, order:0, mode:0x14201ca(GFP_HIGHUSER)", ""),
    ("MCE 0x8a0000: Killing python3:4242 due to hardware memory corruption", "memory_failure"),
    ("MCE 0x8a0000: dirty LRU page recovery: Recovered", "memory_failure"),
    (
        "Memory failure: 0xa1000: forcibly killing python3:42 because of failure to unmap \
         corrupted page",
        "memory_failure",
    ),
    ("NMI watchdog: Watchdog detected hard LOCKUP on cpu 3", ""),
    ("watchdog: CPU 5 self-detected hard LOCKUP @ _raw_spin_lock+0x1c/0x40", ""),
    ("watchdog: CPU 5 detected hard LOCKUP on other CPUs 3", ""),
    ("Kernel panic - not syncing: Hard LOCKUP", ""),
    ("---[ end Kernel panic - not syncing: System is deadlocked on memory ]---", ""),
    ("BUG: workqueue lockup - pool cpus=3 node=0 flags=0x0 nice=0 stuck for 37s!", ""),
    ("rcu: rcu_preempt kthread starved for 21003 jiffies! g2229 f0x0", ""),
    ("Kernel panic - not syncing: hung_task: blocked tasks", ""),
    (" generic: failed to alloc mem of size (1048576)", "nv_alloc_failed"),
    ("tegra-carveouts vpr: failed to alloc mem of size (1048576)", "nv_alloc_failed"),
    ("nvmap: nvmap_ioctl_create() memory allocation failed", ""),
    ("nvmap_alloc_handle: alloc failed", ""),
    ("[drm:f [nvidia_drm]] *ERROR* Failed to allocate NVKMS memory for GEM object", ""),
    ("__vm_enough_memory: pid: 1, comm: x, bytes: 7 not enough memory for the allocation", ""),
    ("__vm_enough_memory: pid: 1, comm: x, not enough memory for the allocation", ""),
    ("nvme 0000:01:00.0: swiotlb buffer is full (sz: 262144 bytes), total 32768 (slots)", ""),
    ("Kernel panic - not syncing: Asynchronous SError Interrupt", ""),
    ("SError Interrupt on CPU3, code 0x00000000be000411 -- SError", ""),
    ("Kernel panic - not syncing: Fatal machine check", ""),
    ("Kernel panic - not syncing: Fatal hardware error!", ""),
    ("mce: [Hardware Error]: CPU 2: Machine Check Exception: 5 Bank 0: b200000000100402", ""),
    ("Memory failure: 0x8a0000: unhandlable page.", ""),
    ("Memory failure: 0x8a0000: already hardware poisoned", ""),
    ("INFO: task python3:4242", ""),
    ("INFO: task python3:4242 bloc", ""),
    ("INFO: task a:b:4242 blocked in I/O wa", ""),
    ("OUT OF MEMORY: KILLED PROCESS 4142 (PYTHON3) TOTAL-VM:1KB, ANON-RSS:1KB", ""),
    ("nvrm: xid (pci:000f:01:00): 31, pid=4242, name=python3, ch 00000008", ""),
    ("nvgpu: 17000000.gpu  nvgpu_cbc_init_support:91  [ERR]  Failed to allocate comptags", ""),
];

#[test]
fn every_wording_of_a_fault_gives_its_event_or_is_noticed() {
    for &(text, kind) in WORDINGS {
        let (kinds, unread) = read(&messages(format!("[   12.345678] {text}").as_bytes()));
        let expected: (&[&str], u64) = if kind.is_empty() { (&[], 1) } else { (&[kind], 0) };
        assert_eq!((&*kinds, unread), expected, "{text}");
    }
}

#[test]
fn lines_about_other_things_are_not_noticed() {
    for text in [
        "NVRM: nvAssertOkFailedNoLog: Assertion failed: Out of memory [NV_ERR_NO_MEMORY] \
         (0x00000051) returned from kbusUpdateRmAperture_HAL(pGpu, pKernelBus) @ kern_bus_vbar2.c:912",
        "NVRM: nvAssertFailedNoLog: Assertion failed: status != NV_ERR_NO_MEMORY @ rs.c:3",
        "Out of memory",
        "vmalloc: allocation failure, allocated 8192 of 20480 bytes",
        "emerge: vmalloc: allocation failure: 20480 bytes, mode:0x14000c0(GFP_KERNEL)",
        "app.service: Killing process 1234 (python3) with signal SIGKILL.",
        "a.service: systemd-oomd killed 1 process(es) in this unit.",
        "EDAC MC0: 1 CE single-bit ECC on unknown memory (node:1 card:4 page:0xb50c68c)",
        "NVRM: dmaAllocMapping_GM107: can't alloc VA space for mapping.",
        "supervisord: sending SIGTERM to process 12",
        "INFO: task x:4242 is blocked on a mutex likely owned by task y:4243.",
        "INFO: task force",
        "mce: [Hardware Error]: Machine check events logged",
        "software IO TLB: mapped [mem 0x00000000f7fff000-0x00000000fbfff000] (64MB)",
    ] {
        let (kinds, unread) = read(&messages(format!("[   12.345678] {text}").as_bytes()));
        assert_eq!((&*kinds, unread), (&[][..], 0), "{text}");
    }
}

#[test]
fn a_companion_of_an_event_is_not_noticed() {
    let log = "[  1.000001] NVRM: Xid (PCI:000f:01:00): 79, GPU has fallen off the bus.\n\
               [  1.000002] NVRM: GPU0 _issueRpcAndWait: rpcSendMessage failed with status 0x0000000f\n\
               [  2.000001] rcu: INFO: rcu_preempt self-detected stall on CPU\n\
               [  2.000002] rcu: rcu_preempt kthread starved for 21003 jiffies! g2229 f0x0\n";
    assert_eq!(read(&messages(log.as_bytes())), (vec!["xid", "rcu_stall"], 0));
    let deadlocked = "Kernel panic - not syncing: System is deadlocked on memory";
    let log = format!(
        "[  1.000001] x invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0\n\
         [  1.000002] {deadlocked}\n\
         [  1.000003] ---[ end {deadlocked} ]---\n\
         [  2.000001] EDAC MC0: 1 UE multi-bit ECC on unknown memory (node:1)\n\
         [  2.000002] Memory failure: 0x8a398a: unhandlable page.\n\
         [  2.000002] Memory failure: 0x8a398a: recovery action for huge page: Recovered\n\
         [  3.000001] x: page allocation failure: order:4, mode:0x40dc0(GFP_KERNEL)\n\
         [  3.000002] SLUB: Unable to allocate memory on node -1, gfp=0x820(GFP_ATOMIC)\n"
    );
    let kinds = vec!["oom_panic", "memory_failure", "page_alloc_failure"];
    assert_eq!(read(&messages(log.as_bytes())), (kinds, 0));
}

#[test]
fn many_words_in_a_line_need_bounded_time() {
    for words in ["NVRM: ", "Killed process 1 ", "nvmap", "INFO: task ", "a\\x0aNVRM: "] {
        let line = format!("[   12.345678] {}", words.repeat(60_000 / words.len()));
        assert_eq!(read(&messages(line.as_bytes())), (vec![], 0), "{words}");
    }
}
