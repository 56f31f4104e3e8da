//! A journal that was lost.

use super::*;

const WEEK: Duration = Duration::from_secs(7 * 86_400);

impl Node {
    /// The journal tells that it was lost so often while this process ran.
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
fn after_a_loss_none_is_scheduled_before_the_longest_budget_has_passed() {
    let mut node = Node::new();
    node.wait(5);
    assert_eq!(node.loses(0.0), 0);
    assert_eq!((node.loses(1.0), node.loses(1.0)), (1, 0), "told once");
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
fn a_wall_clock_that_jumps_says_nothing_of_it() {
    let mut node = Node::new();
    node.wait(5);
    node.loses(1.0);
    node.at.utc += WEEK * 10;
    node.wedge();
    node.wait(600);
    assert!(node.acts().is_empty());
}

#[test]
fn what_is_scheduled_waits_and_a_person_can_clear_it() {
    let mut node = Node::new();
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
fn a_loss_that_an_earlier_run_has_noted_holds_on_and_one_that_it_has_not_begins_now() {
    let week_ms = i64::try_from(WEEK.as_millis()).unwrap();
    let of = |lost_ms, is_newly_lost| {
        let past = PastReboots { lost_ms, is_newly_lost, ..of_this_boot(Vec::new()) };
        let mut node = Node::with(RebootSettings::default(), Mode::Enforce, past);
        node.wedge();
        (node.acts().len(), node.losses)
    };
    assert_eq!(of(None, false), (1, 0));
    assert_eq!(of(Some(3_600_000 - week_ms - 1), false), (1, 0), "that was a week ago");
    assert_eq!(of(Some(3_800_000 - week_ms), false), (0, 0));
    assert_eq!(of(Some(3_600_000 - week_ms - 1), true), (0, 1), "and again");
}
