use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::{KernelEvent, OomConstraint};

/// Events of a log whose lines are a millisecond apart and numbered from 1.
fn events(lines: &[&str]) -> Vec<LoggedEvent> {
    let lines: Vec<(Option<&str>, &str)> = lines.iter().map(|line| (None, *line)).collect();
    events_by(&lines)
}

fn events_by(lines: &[(Option<&str>, &str)]) -> Vec<LoggedEvent> {
    let mut assembler = EventAssembler::new();
    let mut out = Vec::new();
    for (number, (caller, text)) in lines.iter().enumerate() {
        assembler.feed(&line(number as u64 + 1, *caller, text), &mut out);
    }
    assembler.finish(&mut out);
    out
}

fn line<'a>(seq: u64, caller: Option<&'a str>, text: &'a str) -> KernelLine<'a> {
    KernelLine {
        seq: Some(seq),
        uptime: Some(Duration::from_secs(100) + Duration::from_millis(seq)),
        from_kernel: true,
        caller,
        text,
        ..KernelLine::default()
    }
}

fn kills(events: &[LoggedEvent]) -> Vec<(u32, String)> {
    events
        .iter()
        .filter_map(|event| match &event.kind {
            KernelEvent::OomKill { pid, comm, .. } => Some((*pid, comm.clone())),
            _ => None,
        })
        .collect()
}

/// A whole trace as 6.x prints it.
fn trace(trigger: &str, victim: &str, pid: u32) -> Vec<String> {
    vec![
        format!(
            "{trigger} invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0"
        ),
        format!("CPU: 0 UID: 0 PID: {} Comm: {trigger} Not tainted 6.18.44 #1 PREEMPT", pid + 1),
        "Call Trace:".to_owned(),
        " dump_header+0x43/0x1c0".to_owned(),
        " oom_kill_process.cold+0x8/0x8a".to_owned(),
        " nv_alloc_pages+0x1/0x2 [nvidia]".to_owned(),
        "memory: usage 30720kB, limit 30720kB, failcnt 0".to_owned(),
        format!("Memory cgroup stats for /limit{pid}:"),
        format!(
            "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,\
             oom_memcg=/limit{pid},task_memcg=/limit{pid}/sub,task={victim},pid={pid},uid=0"
        ),
        format!(
            "Memory cgroup out of memory: Killed process {pid} ({victim}) total-vm:33308kB, \
             anon-rss:30464kB, file-rss:1468kB, shmem-rss:0kB, UID:0 pgtables:108kB oom_score_adj:0"
        ),
        format!(
            "oom_reaper: reaped process {pid} ({victim}), now anon-rss:0kB, file-rss:0kB, \
             shmem-rss:0kB"
        ),
    ]
}

fn refs(lines: &[String]) -> Vec<&str> {
    lines.iter().map(String::as_str).collect()
}

#[test]
fn a_trace_is_one_kill_with_all_its_details() {
    let lines = trace("python3", "VLLM::EngineCor", 42);
    let events = events(&refs(&lines));
    assert_eq!(events.len(), 2);
    assert_eq!(
        events[0].kind,
        KernelEvent::OomKill {
            pid: 42,
            comm: "VLLM::EngineCor".to_owned(),
            constraint: Some(OomConstraint::Memcg),
            memcg: Some("/limit42/sub".to_owned()),
            oom_memcg: Some("/limit42".to_owned()),
            trigger_comm: Some("python3".to_owned()),
            anon_rss_bytes: Some(30464 * 1024),
            driver: true,
            manual: false,
            container: None,
        }
    );
    assert_eq!(events[0].seq, Some(10));
    assert_eq!(events[1].kind.kind(), "oom_reaped");
}

#[test]
fn a_kill_is_reported_as_soon_as_its_line_arrives() {
    let lines = trace("a", "b", 42);
    let mut assembler = EventAssembler::new();
    let mut out = Vec::new();
    for (number, text) in lines[..10].iter().enumerate() {
        assert!(out.is_empty());
        assembler.feed(&line(number as u64, None, text), &mut out);
    }
    assert_eq!(kills(&out), [(42, "b".to_owned())]);
}

#[test]
fn dropping_any_one_line_leaves_exactly_one_kill() {
    let lines = trace("a", "a", 42);
    for dropped in 0..lines.len() {
        let mut rest = refs(&lines);
        rest.remove(dropped);
        let events = events(&rest);
        assert_eq!(kills(&events), [(42, "a".to_owned())], "without {:?}", lines[dropped]);
        let KernelEvent::OomKill { oom_memcg, trigger_comm, constraint, .. } = &events[0].kind
        else {
            panic!("{events:?}");
        };
        assert_eq!(oom_memcg.as_deref(), Some("/limit42"), "without {:?}", lines[dropped]);
        assert_eq!(trigger_comm.as_deref(), Some("a"), "without {:?}", lines[dropped]);
        assert_eq!(*constraint, Some(OomConstraint::Memcg));
    }
}

#[test]
fn doubling_every_line_changes_nothing() {
    let lines = trace("a", "b", 42);
    let once = events(&refs(&lines));
    let twice: Vec<&str> = lines.iter().flat_map(|line| [line.as_str(); 2]).collect();
    let doubled = events(&twice);
    let kinds = |events: &[LoggedEvent]| events.iter().map(|e| e.kind.clone()).collect::<Vec<_>>();
    assert_eq!(kinds(&doubled), kinds(&once));
    let noise = vec!["usb 1-1: new device"; 3_000];
    let again = [refs(&lines), noise, refs(&lines)].concat();
    assert_eq!(kills(&events(&again)), [(42, "b".to_owned())]);
}

#[test]
fn the_summary_may_be_broken_at_any_byte() {
    let lines = trace("a", "b", 42);
    let summary = &lines[8];
    for at in "oom-kill:constraint=".len()..summary.len() - 1 {
        let (head, tail) = summary.split_at(at);
        let mut broken = refs(&lines[..8]);
        broken.extend([head, tail, lines[9].as_str()]);
        let events = events(&broken);
        assert_eq!(kills(&events), [(42, "b".to_owned())], "broken at {head:?}");
        let KernelEvent::OomKill { memcg, .. } = &events[0].kind else { panic!() };
        assert_eq!(memcg.as_deref(), Some("/limit42/sub"), "broken at {head:?}");
    }
}

#[test]
fn a_line_of_the_driver_may_be_broken_at_any_byte() {
    let whole = "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] \
                 (0x00000051) returned from memdescAlloc(a, b ? c : d->e) @ mem_desc.c:1359";
    let expected = events(&[whole]);
    assert_eq!(expected.len(), 1);
    for at in "NVRM: n".len()..whole.len() - 4 {
        let (head, tail) = whole.split_at(at);
        let with_prefix = format!("NVRM: {tail}");
        for tail in [tail, &with_prefix] {
            let broken = events(&[head, tail]);
            assert_eq!(broken, expected, "broken at {head:?}");
        }
    }
    assert_eq!(events(&["NVRM: nvCheckOkFailedNoLog: Check failed: "]), []);
    for whole in [
        "NVRM: Xid (PCI:000f:01:00): 79, GPU has fallen off the bus.",
        "NVRM: Xid (PCI:000f:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (x)",
        "NVRM: _iovaspaceCreate: failed to allocate 0x176028 bytes for IOVA mapping metadata",
        "NVRM: report: uvm encountered global fatal error 0x60, requiring os reboot to recover.",
    ] {
        let kinds = |lines: &[&str]| -> Vec<KernelEvent> {
            events(lines).into_iter().map(|event| event.kind).collect()
        };
        let expected = kinds(&[whole]);
        assert_eq!(expected.len(), 1, "{whole}");
        for at in 1..whole.len() {
            let (head, tail) = whole.split_at(at);
            assert_eq!(kinds(&[head, tail]), expected, "broken at {head:?}");
        }
    }
}

#[test]
fn an_incomplete_trace_is_reported_after_silence_and_not_before() {
    let lines = trace("a", "b", 42);
    let mut assembler = EventAssembler::new();
    let mut out = Vec::new();
    for (number, text) in lines[..9].iter().enumerate() {
        assembler.feed(&line(number as u64 + 1, None, text), &mut out);
    }
    assert_eq!(assembler.pending_since_seq(), Some(1));
    let deadline = assembler.next_deadline().unwrap();
    assembler.tick(deadline - Duration::from_millis(1), &mut out);
    assert!(out.is_empty());
    assembler.tick(deadline, &mut out);
    assert_eq!(kills(&out), [(42, "b".to_owned())]);
    assert_eq!(out[0].seq, Some(9));
    assert_eq!((assembler.pending_since_seq(), assembler.next_deadline()), (None, None));
    // The lost line was only late.
    assembler.feed(&line(1500, None, &lines[9]), &mut out);
    assert_eq!(out.len(), 1);
}

#[test]
fn a_trace_slowed_by_a_console_is_complete() {
    let lines = trace("a", "b", 42);
    let mut assembler = EventAssembler::new();
    let mut out = Vec::new();
    let mut feed = |ms: u64, text: &str| {
        let uptime = Some(Duration::from_millis(ms));
        assembler.feed(&KernelLine { uptime, ..line(ms, None, text) }, &mut out);
    };
    for (number, text) in lines[..7].iter().enumerate() {
        feed(number as u64, text);
    }
    for row in 0..400 {
        feed(
            100 + 100 * row,
            "[   4242]     0  4242     8620      256    53248        0    0 tail",
        );
    }
    for (number, text) in lines[7..].iter().enumerate() {
        feed(40_200 + number as u64, text);
    }
    let KernelEvent::OomKill { trigger_comm, driver, .. } = &out[0].kind else {
        panic!("no kill: {out:?}");
    };
    assert_eq!((trigger_comm.as_deref(), *driver), (Some("a"), true));
}

#[test]
fn a_busy_log_does_not_put_off_a_kill_whose_line_was_lost() {
    let lines = trace("a", "b", 42);
    let mut assembler = EventAssembler::new();
    let mut out = Vec::new();
    for (number, text) in lines[..9].iter().enumerate() {
        assembler.feed(&line(number as u64, None, text), &mut out);
    }
    for number in 9..1_200 {
        assembler.feed(&line(number, None, "usb 1-1: new device"), &mut out);
    }
    assert_eq!(kills(&out), [(42, "b".to_owned())]);
    assert_eq!(assembler.pending_since_seq(), None);
}

#[test]
fn an_already_exiting_task_is_no_kill() {
    let lines = trace("a", "b", 42);
    let mut read = refs(&lines[..9]);
    read.push(
        "Memory cgroup out of memory: OOM victim 42 (b) is already exiting. Skip killing the task",
    );
    assert!(events(&read).is_empty());
}

#[test]
fn the_oom_reaper_confirms_an_announced_kill() {
    let lines = [
        "java invoked oom-killer: gfp_mask=0x14000c0(GFP_KERNEL), order=0, oom_score_adj=0",
        "Out of memory: Kill process 500 (java) score 1900 or sacrifice child",
        "oom_reaper: reaped process 500 (java), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB",
    ];
    assert_eq!(kills(&events(&lines)), [(500, "java".to_owned())]);
    assert!(events(&lines[..2]).is_empty());
    assert_eq!(kills(&events(&lines[2..])), []);
}

#[test]
fn lines_of_user_space_are_no_faults() {
    let lines = trace("a", "b", 42);
    let mut assembler = EventAssembler::new();
    let mut out = Vec::new();
    for text in &lines {
        let line = KernelLine { from_kernel: false, ..line(1, None, text) };
        assembler.feed(&line, &mut out);
    }
    assembler.finish(&mut out);
    assert!(out.is_empty());
}

#[test]
fn a_flood_of_beginnings_is_held_in_bounded_memory() {
    let mut assembler = EventAssembler::new();
    let mut out = Vec::new();
    for pid in 0..2_000u32 {
        for text in &trace("a", &format!("v{pid}"), pid)[..9] {
            assembler.feed(&KernelLine { uptime: None, ..line(1, None, text) }, &mut out);
        }
        let hung = format!("INFO: task t:{pid} blocked for more than 120 seconds.");
        assembler.feed(&KernelLine { uptime: None, ..line(1, None, &hung) }, &mut out);
        assert!(assembler.traces.len() <= MOST_PENDING && assembler.hung.len() <= MOST_PENDING);
        assert!(assembler.killed.len() <= MOST_REMEMBERED);
    }
    assembler.finish(&mut out);
    assert_eq!(kills(&out).len(), 2_000);
}

#[test]
fn stacks_of_other_tasks_between_its_lines_are_not_the_traces() {
    let lines = trace("a", "b", 42);
    let noise = [
        "INFO: task z:9 blocked for more than 120 seconds.",
        "task:z state:D stack:0 pid:9",
        "Call Trace:",
        " os_acquire_rwlock_read+0x1/0x2 [nvidia]",
        "z: page allocation failure: order:4, mode:0xcc0(GFP_KERNEL)",
        "CPU: 3 PID: 9 Comm: z Not tainted",
        " nv_alloc_pages+0x1/0x2 [nvidia]",
        "WARNING: CPU: 2 PID: 8 at mm/x.c:1 x+0x1/0x2",
    ];
    let driver = |events: &[LoggedEvent]| {
        events.iter().find_map(|event| match event.kind {
            KernelEvent::OomKill { driver, .. } => Some(driver),
            _ => None,
        })
    };
    let mut with = refs(&lines);
    with.splice(1..1, noise);
    assert_eq!(driver(&events(&with)), Some(true));
    with.retain(|line| *line != lines[5]);
    assert_eq!(driver(&events(&with)), Some(false));
}

#[test]
fn container_ids_are_read_from_every_runtimes_paths() {
    let id = "4f1c0ddc6a0b1c2d3e4f5061728394a5b6c7d8e9fa0b1c2d3e4f506172839401";
    for path in [
        format!("/docker/{id}"),
        format!("/system.slice/docker-{id}.scope"),
        format!("/kubepods.slice/kubepods-pod1.slice/cri-containerd-{id}.scope"),
        format!("/kubepods.slice/kubepods-pod1.slice/crio-{id}.scope/sub"),
        format!("/machine.slice/libpod-{id}.scope/container"),
        format!("/kubepods/besteffort/pod1/{id}"),
        format!("/system.slice/containerd.service/kubepods-pod1.slice:cri-containerd:{id}"),
    ] {
        assert_eq!(oom::container(&path).as_deref(), Some(id), "{path}");
    }
    for path in ["/", "/docker", "/docker/abc", "/user.slice/docker-xyz.scope"] {
        assert_eq!(oom::container(path), None, "{path}");
    }
}

/// A name as a process may choose it and `/dev/kmsg` shows it.
fn comm() -> impl Strategy<Value = String> {
    prop_oneof![
        "[ -~]{1,15}".prop_filter("the kernel escapes it", |name| !name.contains('\\')),
        Just("a), UID:0".to_owned()),
        Just("x,pid=1,uid=0".to_owned()),
        Just("foo) total-vm:1".to_owned()),
        Just(",task=a,pid=1".to_owned()),
        Just("ta\\x0ail".to_owned()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn hostile_process_names_are_read_back(trigger in comm(), victim in comm(), pid in 2u32..4_000_000) {
        let lines = trace(&trigger, &victim, pid);
        let whole = events(&refs(&lines));
        prop_assert_eq!(kills(&whole), [(pid, victim.clone())]);
        let KernelEvent::OomKill { trigger_comm, memcg, .. } = &whole[0].kind else { panic!() };
        prop_assert_eq!(trigger_comm.as_deref(), Some(&*trigger));
        let sub = format!("/limit{}/sub", pid);
        prop_assert_eq!(memcg.as_deref(), Some(&*sub));
        let without_kill = [&refs(&lines)[..9], &refs(&lines)[10..]].concat();
        prop_assert_eq!(kills(&events(&without_kill)), [(pid, victim)]);
    }

    #[test]
    fn interleaved_traces_with_callers_give_both(
        order in proptest::collection::vec(any::<bool>(), 40),
    ) {
        let (first, second) = (trace("a", "b", 42), trace("c", "d", 77));
        let (mut left, mut right) = (first.iter(), second.iter());
        let mut mixed = Vec::new();
        for choice in order.iter().copied().chain([true; 11]).chain([false; 11]) {
            let next = if choice { left.next() } else { right.next() };
            let caller = if choice { "T42" } else { "T77" };
            mixed.extend(next.map(|text| (Some(caller), text.as_str())));
        }
        let events = events_by(&mixed);
        let mut found = kills(&events);
        found.sort();
        prop_assert_eq!(found, [(42, "b".to_owned()), (77, "d".to_owned())]);
        for event in &events {
            if let KernelEvent::OomKill { pid, trigger_comm, .. } = &event.kind {
                let trigger = if *pid == 42 { "a" } else { "c" };
                prop_assert_eq!(trigger_comm.as_deref(), Some(trigger));
            }
        }
    }

    #[test]
    fn reading_again_from_the_pending_position_gives_the_same_events(stop in 1usize..22) {
        let lines: Vec<String> = [trace("a", "b", 42), trace("c", "d", 77)].concat();
        let whole = events(&refs(&lines));
        let mut before = EventAssembler::new();
        let mut out = Vec::new();
        for (number, text) in lines[..stop].iter().enumerate() {
            before.feed(&line(number as u64 + 1, None, text), &mut out);
        }
        let from = before.pending_since_seq().unwrap_or(stop as u64 + 1) as usize - 1;
        let mut after = EventAssembler::new();
        for (number, text) in lines.iter().enumerate().skip(from) {
            after.feed(&line(number as u64 + 1, None, text), &mut out);
        }
        after.finish(&mut out);
        out.sort_by_key(|event| event.seq);
        out.dedup();
        prop_assert_eq!(out, whole);
    }

    #[test]
    fn no_text_panics_and_no_record_gives_two_events(
        texts in proptest::collection::vec(
            prop_oneof![
                "\\PC{0,60}",
                "(NVRM: |INFO: task |oom-kill:constraint=|Out of memory: Killed process 1 \\(|CPU: )\
                 [ -~]{0,60}",
                "[ -~]{0,8} invoked oom-killer: gfp_mask=0x[ -~]{0,20}",
                proptest::sample::select(trace("a", "b", 9)),
            ],
            0..30,
        ),
    ) {
        let events = events(&refs(&texts));
        let mut seqs: Vec<_> = events.iter().map(|event| event.seq).collect();
        seqs.sort();
        seqs.dedup();
        prop_assert_eq!(seqs.len(), events.len());
    }

    #[test]
    fn damaged_logs_give_at_most_one_event_a_record_and_leave_nothing_pending(
        damage in proptest::collection::vec((any::<prop::sample::Index>(), 0u8..5, 0usize..200), 0..25),
        callers: bool,
    ) {
        let mut lines: Vec<String> = [
            include_str!("../../../../tests/fixtures/kernel/oom-global-driver.log"),
            include_str!("../../../../tests/fixtures/kernel/oom-interleaved-lost-split.log"),
            include_str!("../../../../tests/fixtures/kernel/oom-group.log"),
            include_str!("../../../../tests/fixtures/kernel/oom-4.x.log"),
            include_str!("../../../../tests/fixtures/kernel/nvrm.log"),
            include_str!("../../../../tests/fixtures/kernel/xid.log"),
            include_str!("../../../../tests/fixtures/kernel/hung-tasks.log"),
        ]
        .iter()
        .flat_map(|log| log.lines())
        .filter_map(|line| Some(line.split_once("] ")?.1.to_owned()))
        .collect();
        for (index, kind, extent) in damage {
            let at = index.index(lines.len());
            let other = (at + extent) % lines.len();
            let line = lines[at].clone();
            let cut = line.floor_boundary(extent);
            match kind {
                0 => drop(lines.remove(at)),
                1 => lines.insert(at, line),
                2 => lines.swap(at, other),
                3 => lines[at].truncate(cut),
                _ => {
                    lines[at].truncate(cut);
                    lines.insert(at + 1, line[cut..].to_owned());
                }
            }
        }
        let mut assembler = EventAssembler::new();
        let mut out = Vec::new();
        for (number, text) in lines.iter().enumerate() {
            let caller = callers.then_some(if number % 3 == 0 { "T1" } else { "T2" });
            assembler.feed(&line(number as u64, caller, text), &mut out);
        }
        assembler.finish(&mut out);
        prop_assert_eq!((assembler.pending_since_seq(), assembler.next_deadline()), (None, None));
        let mut seqs: Vec<_> = out.iter().map(|event| event.seq).collect();
        seqs.sort();
        seqs.dedup();
        prop_assert_eq!(seqs.len(), out.len());
    }
}

/// `str::floor_char_boundary`, which is newer than the oldest compiler that this crate supports.
trait FloorBoundary {
    fn floor_boundary(&self, at: usize) -> usize;
}

impl FloorBoundary for String {
    fn floor_boundary(&self, at: usize) -> usize {
        (0..=at.min(self.len())).rev().find(|at| self.is_char_boundary(*at)).unwrap_or(0)
    }
}

fn kills_of(identifier: Option<&str>, lines: &[&str]) -> Vec<LoggedEvent> {
    let mut assembler = EventAssembler::new();
    let mut out = Vec::new();
    for (seq, text) in (0..).zip(lines) {
        let line = KernelLine { seq: Some(seq), identifier, text, ..KernelLine::default() };
        assembler.feed(&line, &mut out);
    }
    assembler.finish(&mut out);
    out
}

#[test]
fn a_victim_that_was_named_before_its_kill_is_its_victim() {
    let of = |lines: &[&str]| kills_of(Some("nohang"), lines);
    let named = "  PID: 7, Name: a b, badness: 572";
    let kill = "  Sending SIGKILL to the victim";
    assert_eq!(
        of(&[named, kill]).iter().map(|event| event.kind.to_string()).collect::<Vec<_>>(),
        ["nohang killed 7 (a b)"]
    );
    assert_eq!(of(&[kill]), [], "its victim is unknown");
    assert_eq!(of(&[named, kill, "Cannot send a signal: PermissionError"]), []);
    let many = vec!["x"; 3000];
    assert_eq!(of(&[&[named], &*many, &[kill]].concat()), [], "long before");
}

/// Any container with root can write such a record into the kernel's ring.
#[test]
fn a_line_of_talos_counts_in_texts_only() {
    let text = "[talos] Sending SIGKILL to cgroup {\"component\": \"controller-runtime\", \
                \"cgroup\": \"/sys/fs/cgroup/kubepods/burstable/pod1\"}";
    assert_eq!(kills_of(None, &[text]), []);
    let mut log = crate::dmesg::LogText::new();
    let mut out = Vec::new();
    let mut assembler = EventAssembler::new();
    let first = log.feed(format!("<12>[   12.345678] {text}").as_bytes());
    for message in first.into_iter().chain(log.finish()) {
        assembler.feed(&message.kernel_line(), &mut out);
    }
    let [event] = &*out else { panic!("{out:?}") };
    assert_eq!(event.kind.to_string(), "Talos' OOM controller killed /kubepods/burstable/pod1");
}

#[test]
fn words_in_brackets_behind_the_figures_are_no_name() {
    let killed = "Out of memory: Killed process 7 (a b) total-vm:1kB, anon-rss:2kB, file-rss:0kB, \
                  shmem-rss:0kB, UID:0 pgtables:1kB oom_score_adj:0:  1 Time(s)";
    assert_eq!(kills(&events(&[killed])), [(7, "a b".to_owned())]);
}

#[test]
fn a_message_of_the_driver_may_be_wrapped_into_many_lines() {
    let text = "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] \
                (0x00000051) returned from _memdescAllocInternal(pMemDesc) @ mem_desc.c:1359";
    for width in 42..text.len() {
        let lines = text.as_bytes().chunks(width).map(|line| str::from_utf8(line).unwrap());
        let kinds: Vec<_> =
            events(&lines.collect::<Vec<_>>()).iter().map(|event| event.kind.kind()).collect();
        assert_eq!(kinds, ["nv_no_memory"], "{width}");
    }
}

#[test]
fn the_mark_of_a_pager_is_no_part_of_a_name() {
    for mark in [">", "…", ""] {
        let killed = format!("Out of memory: Killed process 7 (pyth{mark}");
        assert_eq!(kills(&events(&[&killed])), [(7, "pyth".to_owned())]);
    }
}

#[test]
fn a_kill_that_a_person_requested_is_distinguished() {
    let request = "sysrq: Manual OOM execution";
    let killed = "Out of memory: Killed process 7 (a) total-vm:1kB, anon-rss:1kB, file-rss:0kB, \
                  shmem-rss:0kB, UID:0 pgtables:1kB oom_score_adj:0";
    let invoked = |comm: &str, order: i32| {
        let flags = "gfp_mask=0xcc0(GFP_KERNEL)";
        format!("{comm} invoked oom-killer: {flags}, order={order}, oom_score_adj=0")
    };
    let (new, old) = (invoked("kworker/0:2", -1), invoked("kworker/0:2", 0));
    let other = invoked("python3", 0);
    for (lines, expected) in [
        (vec![request, &new, killed], true),
        (vec![&new, killed], true),
        (vec!["SysRq : Manual OOM execution", &old, killed], true),
        (vec![&old, killed], false),
        (vec![request, &other, killed], false),
    ] {
        let events = events(&lines);
        let [LoggedEvent { kind: KernelEvent::OomKill { manual, .. }, .. }] = &*events else {
            panic!("{events:?}")
        };
        assert_eq!(*manual, expected, "{lines:?}");
    }
}
