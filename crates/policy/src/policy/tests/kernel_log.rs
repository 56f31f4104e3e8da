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
fn xids_and_kills_are_counted_by_class() {
    let lost = "NVRM: Xid (PCI:000f:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen \
                off the bus.";
    let limit = "Memory cgroup out of memory: Killed process 7204 (tail) total-vm:34480kB, \
                 anon-rss:100kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:4kB oom_score_adj:0";
    let machine = "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,\
                   global_oom,task_memcg=/a,task=python3,pid=4242,uid=0";
    let mut world = World::new(BURST, Mode::Observe);
    world.tick();
    let texts = [XID, lost, limit, machine];
    world.seen.extend(texts.iter().zip(1..).map(|(text, seq)| record(seq, 0, text)));
    world.run(Duration::from_secs(5));
    let classes = ["program", "device_lost", "other"];
    let counts = classes
        .map(|class| world.value(&format!("uma_kernel_xids_total{{class=\"{class}\"}}")).unwrap());
    assert_eq!(counts, [1.0, 1.0, 0.0]);
    let bounds = ["cgroup", "machine", "unknown"];
    let counts = bounds.map(|bound| {
        world.value(&format!("uma_kernel_oom_kills_total{{bound=\"{bound}\"}}")).unwrap()
    });
    assert_eq!(counts, [1.0, 1.0, 0.0]);
}

#[test]
fn findings_of_the_black_box_are_events() {
    let mut world = World::new(
        &BURST
            .replace("uma_kernel_events_total", "uma_events_total")
            .replace("xid", "unclean_boot"),
        Mode::Observe,
    );
    world.tick();
    let kind = crate::model::ProgramEvent::UncleanBoot {
        ended_boot_id: "before".to_owned(),
        last_record: None,
        gap_seconds: None,
        memory_free_bytes: None,
        memory_available_bytes: None,
        memory_unaccounted_bytes: None,
        memory_pressure_full: None,
        loop_age_seconds: None,
        last_event: None,
        firing: Vec::new(),
    };
    let event = Event { kind: kind.into(), utc: Some(world.at.utc), seq: None };
    world.seen.push(Observation::Event(event.clone()));
    assert_eq!(world.tick().events, [event]);
    assert_eq!(world.value("uma_events_total{event=\"unclean_boot\"}"), Some(1.0));
    assert_eq!(world.state(0), RuleState::Firing);
}

#[test]
fn user_space_records_are_counted_and_never_events() {
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
fn meaningless_lines_are_counted_with_the_next_step_or_a_due_rule() {
    let chatter = |seq| record(seq, 0, "usb 1-1: new device number 7");
    let mut world = World::new(BURST, Mode::Observe);
    assert!(!world.policy.step(world.at, &[chatter(1)]).is_only_counted, "memory is not known yet");
    world.tick();
    let soon = |world: &World| {
        let pause = Duration::from_millis(10);
        Moment { uptime: world.at.uptime + pause, utc: world.at.utc + pause }
    };
    let step = world.policy.step(soon(&world), &[chatter(2), chatter(3)]);
    assert!(step.is_only_counted);
    assert_eq!(world.value("uma_kernel_log_records_total"), Some(1.0));
    assert!(!world.policy.step(soon(&world), &[]).is_only_counted);
    assert_eq!(world.value("uma_kernel_log_records_total"), Some(3.0));
    let step = world.policy.step(soon(&world), &[chatter(4), record(5, 0, XID)]);
    assert!(!step.is_only_counted);
    assert_eq!((step.events.len(), world.value(COUNT)), (1, Some(1.0)));
    // With a rule that is due, lines are a step as any other.
    world.at.uptime += INTERVAL;
    world.at.utc += INTERVAL;
    assert!(!world.policy.step(world.at, &[chatter(6)]).is_only_counted);
    assert_eq!(world.state(0), RuleState::Firing);
}

#[test]
fn the_backlog_of_a_first_start_is_no_increase() {
    let mut world = World::new(BURST, Mode::Observe);
    let backlog: Vec<_> = (1..50).map(|seq| record(seq, 0, XID)).collect();
    let step = world.policy.step(world.at, &backlog);
    assert_eq!(step.events.len(), 49, "events are reported all the same");
    world.run(Duration::from_secs(2));
    assert_eq!(world.value(COUNT), Some(49.0));
    assert_eq!(world.state(0), RuleState::Inactive);
}

#[test]
fn events_between_two_runs_are_an_increase() {
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
fn a_kill_is_reported_at_its_last_line_and_an_open_trace_holds_the_position() {
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

const INVOKED: &str =
    "tail invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0";
const KILLED: &str = "Memory cgroup out of memory: Killed process 7204 (tail) total-vm:34480kB, \
                      anon-rss:30000kB, file-rss:4kB, shmem-rss:0kB, UID:0 pgtables:96kB \
                      oom_score_adj:0";

#[test]
fn a_trace_of_the_backlog_that_is_read_in_two_parts_stays_one() {
    let mut world = World::new(BURST, Mode::Observe);
    world.tick();
    world.at.utc += Duration::from_secs(600);
    // Both were written ten minutes ago; the second one waits behind a full batch.
    let first = world.policy.step(world.at, &[record(10, 0, INVOKED)]);
    assert!(first.events.is_empty(), "{:?}", first.events);
    assert_eq!(world.policy.kernel_log_pending_since(), Some(10));
    let second = world.policy.step(world.at, &[record(11, 0, KILLED)]);
    let [event] = second.events.as_slice() else { panic!("{:?}", second.events) };
    let json = serde_json::to_value(&event.kind).unwrap();
    assert_eq!((&json["kind"], &json["trigger_comm"]), (&"oom_kill".into(), &"tail".into()));
}

#[test]
fn an_old_trace_without_an_end_is_given_up_once_the_log_is_read() {
    let mut world = World::new(BURST, Mode::Observe);
    world.tick();
    world.at.utc += Duration::from_secs(600);
    world.policy.step(world.at, &[record(10, 0, INVOKED)]);
    assert_eq!(world.policy.next_step_in(world.at.uptime), Duration::ZERO);
    world.policy.step(world.at, &[]);
    assert_eq!(world.policy.kernel_log_pending_since(), None);
    assert!(world.policy.next_step_in(world.at.uptime) > Duration::ZERO);
}

#[test]
fn a_storm_in_the_kernel_log_does_not_make_its_rules_unknown() {
    let mut world = World::new(&BURST.replace("[1m]", "[5m]"), Mode::Observe);
    world.tick();
    let mut seq = 0;
    // Every record is a step of its own, as where the loop is woken for each.
    for _ in 0..600 {
        for _ in 0..120 {
            seq += 1;
            world.at.uptime += Duration::from_micros(100);
            world.at.utc += Duration::from_micros(100);
            let mut record = record(seq, 0, XID);
            if let Observation::KernelRecord(record) = &mut record {
                record.utc = world.at.utc;
            }
            world.policy.step(world.at, &[record]);
        }
        assert_eq!(world.value(COUNT), Some(seq as f64), "seen at once by exports");
        world.tick();
    }
    assert_eq!(world.state(0), RuleState::Firing);
}

/// What the kernel log's reader says of itself.
fn reader(error: Option<&str>) -> Observation {
    let key = SeriesKey::new("uma_kernel_log_reader", &[("reader", "none")]);
    Observation::Readings(Readings {
        source: Source::KernelLog,
        schema: Arc::new(Schema { series: vec![key] }),
        values: vec![Reading::Value(f64::from(error.is_some()))],
        took: Duration::ZERO,
        error: error.map(Arc::from),
    })
}

/// A record that was written so long before now.
fn aged(world: &World, seq: u64, age: Duration) -> Observation {
    let mut record = record(seq, 0, XID);
    if let Observation::KernelRecord(record) = &mut record {
        record.utc = world.at.utc + INTERVAL - age;
    }
    record
}

const FED: [&str; 6] = [
    COUNT,
    "uma_kernel_event_last_timestamp_seconds{event=\"xid\"}",
    "uma_kernel_log_records_total",
    "uma_kernel_log_lost_records_total",
    "uma_kernel_log_malformed_records_total",
    "uma_kernel_log_userspace_records_total",
];

#[test]
fn without_a_log_reader_its_series_are_absent_and_its_rules_unknown() {
    let mut world = World::new(BURST, Mode::Observe);
    world.seen.push(reader(Some("cannot open /dev/kmsg: Permission denied")));
    let step = world.tick();
    assert_eq!(FED.map(|series| world.value(series)), [None; 6]);
    assert_eq!(world.value("uma_kernel_log_reader{reader=\"none\"}"), Some(1.0));
    assert_eq!(world.state(0), RuleState::Unknown);
    let reason = step.doubts[0].reasons.join("; ");
    assert!(reason.contains("xid") && reason.contains("cannot open /dev/kmsg"), "{reason}");
}

#[test]
fn a_reader_that_comes_back_goes_on_counting_where_the_last_one_ended() {
    let mut world = World::new(BURST, Mode::Observe);
    world.seen.extend([reader(None), record(1, 0, XID)]);
    world.tick();
    let before = FED.map(|series| world.value(series));
    assert_eq!(before[0], Some(1.0));
    world.seen.push(reader(Some("reading failed")));
    let steps = world.run(Duration::from_secs(600));
    assert_eq!(FED.map(|series| world.value(series)), [None; 6]);
    assert_eq!(world.state(0), RuleState::Unknown);
    assert!(steps.iter().all(|step| step.alerts.is_empty()), "nothing resolves until then");

    world.seen.push(reader(None));
    let step = world.tick();
    assert_eq!(FED.map(|series| world.value(series)), before);
    assert_eq!(world.state(0), RuleState::Inactive);
    assert!(step.doubts[0].reasons.is_empty());
}

#[test]
fn only_the_last_minute_without_a_reader_counts_as_news() {
    for (age, state) in [(10, RuleState::Firing), (120, RuleState::Inactive)] {
        let mut world = World::new(BURST, Mode::Observe);
        world.tick();
        world.seen.push(reader(Some("reading failed")));
        world.run(Duration::from_secs(600));
        // The record is there before its reader reports.
        let old = aged(&world, 9, Duration::from_secs(age));
        world.seen.extend([old, reader(None)]);
        let step = world.tick();
        assert_eq!(step.events.len(), 1);
        assert_eq!(world.value(COUNT), Some(1.0));
        assert_eq!(world.state(0), state, "{age} s ago");
    }
}

#[test]
fn old_events_before_a_restart_are_counted_without_an_increase() {
    for (age, state) in [(59, RuleState::Firing), (61, RuleState::Inactive)] {
        let mut world = World::new(BURST, Mode::Observe);
        world.tick();
        let backlog: Vec<_> =
            (1..=50).map(|seq| aged(&world, seq, Duration::from_secs(age))).collect();
        world.seen.extend(backlog);
        let step = world.tick();
        assert_eq!(step.events.len(), 50, "all of them are reported");
        world.run(Duration::from_secs(1));
        assert_eq!(world.value(COUNT), Some(50.0));
        assert_eq!(world.value("uma_kernel_log_records_total"), Some(50.0));
        assert_eq!(world.state(0), state, "{age} s ago");
        world.seen.push(aged(&world, 51, Duration::ZERO));
        world.tick();
        assert_eq!(world.state(0), RuleState::Firing, "what comes then is news");
    }
}

const FATAL: &str =
    "NVRM: uvm encountered global fatal error 0x60, requiring os reboot to recover.";
const UNTIL_REBOOT: &str = "
groups:
- name: g
  interval: 100ms
  rules:
  - alert: Fatal
    expr: uma_kernel_event_last_timestamp_seconds{event=\"uvm_fatal\"} > 0
";

#[test]
fn lasting_conditions_use_the_time_of_their_last_event() {
    let mut world = World::new(UNTIL_REBOOT, Mode::Observe);
    world.tick();
    assert_eq!(world.state(0), RuleState::Inactive);
    let series = "uma_kernel_event_last_timestamp_seconds{event=\"uvm_fatal\"}";
    assert_eq!(world.value(series), Some(0.0));
    world.at.utc += Duration::from_secs(1000);
    for (seq, seconds) in [(1, 500), (2, 400)] {
        let mut fatal = record(seq, 0, FATAL);
        if let Observation::KernelRecord(record) = &mut fatal {
            record.utc = Timestamp::from_second(seconds).unwrap();
        }
        world.seen.push(fatal);
    }
    world.tick();
    assert_eq!(world.value(series), Some(500.0), "the last one, in any order");
    assert_eq!(world.state(0), RuleState::Firing);

    let mut restarted = World::new(UNTIL_REBOOT, Mode::Observe);
    let last = ("uvm_fatal".to_owned(), Timestamp::from_second(500).unwrap());
    let unknown = ("of_a_newer_program".to_owned(), Timestamp::MAX);
    restarted.policy.resume_events(&[last, unknown].into());
    restarted.tick();
    assert_eq!(restarted.value(series), Some(500.0));
    assert_eq!(restarted.value("uma_kernel_events_total{event=\"uvm_fatal\"}"), Some(0.0));
    assert_eq!(restarted.state(0), RuleState::Firing);
}
