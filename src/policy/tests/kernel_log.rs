use super::*;

const XID: &str = "NVRM: Xid (PCI:000f:01:00): 31, pid=7, name=VLLM::EngineCor, Ch 00000008";
const COUNT: &str = "uma_kernel_events_total{event=\"xid\"}";

const BURST: &str = "
groups:
- name: g
  interval: 100ms
  rules:
  - alert: Xid
    expr: increase(uma_kernel_events_total{event=\"xid\"}[1m]) > 0
";

#[test]
fn a_kernel_record_becomes_an_event_and_is_counted() {
    let mut world = World::new(BURST, Mode::Observe);
    world.tick();
    assert_eq!(world.value(COUNT), Some(0.0));
    world.seen.push(record(1, 0, XID));
    let step = world.tick();
    assert_eq!(step.events.len(), 1);
    assert_eq!(step.events[0].seq, Some(1));
    assert_eq!(world.value(COUNT), Some(1.0));
    assert_eq!(world.value("uma_kernel_log_records_total"), Some(1.0));
    assert_eq!(world.state(0), RuleState::Firing);
}

#[test]
fn what_user_space_wrote_is_counted_as_a_record_and_never_as_an_event() {
    let mut world = World::new(BURST, Mode::Observe);
    world.tick();
    world.seen.push(record(1, 1, XID));
    let step = world.tick();
    assert!(step.events.is_empty());
    assert_eq!(world.value(COUNT), Some(0.0));
    assert_eq!(world.value("uma_kernel_log_records_total"), Some(1.0));
    assert_eq!(world.value("uma_kernel_log_userspace_records_total"), Some(1.0));
    assert_eq!(world.state(0), RuleState::Inactive);
}

#[test]
fn what_the_log_held_at_a_first_start_is_no_burst() {
    let mut world = World::new(BURST, Mode::Observe);
    let backlog: Vec<_> = (1..50).map(|seq| record(seq, 0, XID)).collect();
    let step = world.policy.step(world.at, &backlog);
    assert_eq!(step.events.len(), 49, "events are told all the same");
    world.run(Duration::from_secs(2));
    assert_eq!(world.value(COUNT), Some(49.0));
    assert_eq!(world.state(0), RuleState::Inactive);
}

#[test]
fn what_came_between_two_runs_is_an_increase() {
    let mut world = World::new(BURST, Mode::Observe);
    world.tick();
    world.seen.push(record(5, 0, XID));
    world.run(Duration::from_secs(1));
    assert_eq!(world.state(0), RuleState::Firing);
}

#[test]
fn an_event_that_an_earlier_run_has_counted_is_not_counted_again() {
    let mut world = World::new(BURST, Mode::Observe);
    world.policy.resume_kernel_log([3].into());
    world.tick();
    world.seen.extend([record(3, 0, XID), record(4, 0, XID)]);
    let step = world.tick();
    assert_eq!(step.events.iter().map(|event| event.seq).collect::<Vec<_>>(), [Some(4)]);
    assert_eq!(world.value(COUNT), Some(1.0));
}

#[test]
fn losses_and_malformed_records_are_counted() {
    let mut world = World::new(BURST, Mode::Observe);
    world.tick();
    world.seen.extend([Observation::KernelRecordsLost(17), Observation::KernelRecordMalformed]);
    world.tick();
    assert_eq!(world.value("uma_kernel_log_lost_records_total"), Some(17.0));
    assert_eq!(world.value("uma_kernel_log_malformed_records_total"), Some(1.0));
}

#[test]
fn a_kill_is_told_at_its_last_line_and_an_unfinished_trace_keeps_the_position_back() {
    let mut world = World::new(BURST, Mode::Observe);
    world.tick();
    let invoked = "tail invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0";
    world.seen.push(record(10, 0, invoked));
    assert!(world.tick().events.is_empty());
    assert_eq!(world.policy.kernel_log_pending_since(), Some(10));
    world.seen.push(record(
        11,
        0,
        "Memory cgroup out of memory: Killed process 7204 (tail) total-vm:34480kB, \
         anon-rss:30000kB, file-rss:4kB, shmem-rss:0kB, UID:0 pgtables:96kB oom_score_adj:0",
    ));
    let step = world.tick();
    assert_eq!(step.events.len(), 1, "{:?}", step.events);
    assert_eq!(step.events[0].kind.kind(), "oom_kill");
}
