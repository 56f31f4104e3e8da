//! A journal that was lost.

use super::*;

const WEEK: Duration = Duration::from_secs(7 * 86_400);

impl RebootWorld {
    /// The journal reports so many losses during this process.
    fn loses(&mut self, times: f64) -> usize {
        self.seen.push(Observation::Readings(Readings {
            source: Source::Journal,
            schema: Arc::new(Schema {
                series: vec![SeriesKey::new("uma_journal_lost_total", &[])],
            }),
            values: vec![Reading::Value(times)],
            took: Duration::ZERO,
            error: None,
        }));
        let before = self.losses;
        self.step();
        self.losses - before
    }

    fn passes(&mut self, time: Duration) {
        self.at.uptime += time;
        self.at.utc += time;
    }
}

#[test]
fn a_lost_journal_blocks_reboots_for_the_longest_budget() {
    let mut node = RebootWorld::new();
    node.wait(5);
    assert_eq!(node.loses(0.0), 0);
    assert_eq!((node.loses(1.0), node.loses(1.0)), (1, 0), "reported once");
    assert!(node.status().is_journal_lost);
    node.wedge();
    assert_eq!((node.acts(), &*node.holds), (Vec::new(), &[HoldReason::JournalUnreadable][..]));
    let refused = node.reboot(&[]).unwrap_err();
    assert!(refused.contains("6d23h") && refused.contains("--clear"), "{refused}");
    let forced = node.reboot(&[RebootForce::Budget]).unwrap_err();
    assert!(forced.contains("the journal was lost"), "no --force goes past it: {forced}");
    node.passes(WEEK - Duration::from_secs(600));
    node.wait(500);
    assert!(node.acts().is_empty());
    node.wait(60);
    assert_eq!(node.acts(), ["reboot"]);
    assert!(!node.status().is_journal_lost);
}

#[test]
fn a_wall_clock_jump_is_no_lost_journal() {
    let mut node = RebootWorld::new();
    node.wait(5);
    node.loses(1.0);
    node.at.utc += WEEK * 10;
    node.wedge();
    node.wait(600);
    assert!(node.acts().is_empty());
}

#[test]
fn a_scheduled_reboot_waits_after_a_loss_until_a_person_clears() {
    let mut node = RebootWorld::new();
    node.wedge();
    assert_eq!(node.acts(), ["reboot"]);
    node.loses(1.0);
    node.wait(200);
    assert!(node.acts().is_empty() && node.stage() == RebootStage::Waiting);
    node.order(OperatorOrder::ClearReboots).unwrap();
    node.wait(5);
    assert_eq!(node.acts(), ["perform_reboot"]);
    assert!(!node.status().is_journal_lost);
}

#[test]
fn a_recorded_loss_keeps_its_time_and_a_new_one_starts_now() {
    let week_ms = i64::try_from(WEEK.as_millis()).unwrap();
    let of = |lost_ms, is_newly_lost| {
        let past = PastReboots { lost_ms, is_newly_lost, ..of_this_boot(Vec::new()) };
        let mut node = RebootWorld::with(RebootSettings::default(), Mode::Enforce, past);
        node.wedge();
        (node.acts().len(), node.losses)
    };
    assert_eq!(of(None, false), (1, 0));
    assert_eq!(of(Some(3_600_000 - week_ms - 1), false), (1, 0), "that was a week ago");
    assert_eq!(of(Some(3_800_000 - week_ms), false), (0, 0));
    assert_eq!(of(Some(3_600_000 - week_ms - 1), true), (0, 1), "and again");
}
