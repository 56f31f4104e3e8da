//! Silences, approvals and denials.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use proptest::prelude::*;

use crate::model::{
    Action, DecisionId, Mode, Moment, OperatorCommand, OperatorOrder, Outcome, OutcomeResult,
    PendingApproval, RuleId, RuleSelector, Target,
};
use crate::policy::act::{Act, Proposal};
use crate::policy::guard::approval::{Approvals, Reply};
use crate::policy::guard::silence::Silences;

fn at(second: i64) -> Moment {
    Moment { uptime: Duration::from_secs(second.cast_unsigned()), utc: utc(second) }
}

fn utc(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

fn rule(alert: &str) -> RuleId {
    RuleId { group: Arc::from("g"), alert: Arc::from(alert) }
}

fn command(order: OperatorOrder) -> OperatorCommand {
    OperatorCommand {
        at: at(0),
        author: "ada".to_owned(),
        comment: String::new(),
        order,
        refused: None,
    }
}

fn silence(id: u64, rules: RuleSelector, until: i64) -> OperatorCommand {
    command(OperatorOrder::Silence { id, rules, until: utc(until) })
}

#[test]
fn a_silence_holds_its_rules_until_it_ends() {
    let mut silences = Silences::default();
    silences.obey(&silence(1, RuleSelector::Alert(Arc::from("Low")), 60), utc(0)).unwrap();
    assert!(silences.silence(&rule("Low"), utc(59)));
    assert!(!silences.silence(&rule("Low"), utc(60)));
    assert!(!silences.silence(&rule("High"), utc(0)));
    silences.obey(&silence(2, RuleSelector::All, 60), utc(0)).unwrap();
    assert!(silences.silence(&rule("High"), utc(0)));
    silences.obey(&command(OperatorOrder::EndSilence { id: 2 }), utc(1)).unwrap();
    assert!(!silences.silence(&rule("High"), utc(1)));
    assert!(silences.silence(&rule("Low"), utc(1)), "the other one goes on");
}

#[test]
fn ended_and_unknown_silences_are_refused_with_a_reason() {
    let mut silences = Silences::default();
    let over = silences.obey(&silence(1, RuleSelector::All, 60), utc(60)).unwrap_err();
    assert!(over.contains("ended"), "{over}");
    let unknown = silences.obey(&command(OperatorOrder::EndSilence { id: 9 }), utc(0));
    assert!(unknown.unwrap_err().contains('9'));
    assert_eq!(silences, Silences::default());
}

const DROP: Action = Action::CompactMemory;

fn proposal<'a>(rule: &'a RuleId, step: usize, action: &'a Action) -> Proposal<'a> {
    Proposal { rule, mode: Mode::Enforce, step, action, target: &Target::Node }
}

fn asked(decision: u64, rule: &RuleId) -> PendingApproval {
    PendingApproval {
        decision: DecisionId(decision),
        rule: rule.clone(),
        mode: Mode::Enforce,
        step: 0,
        action: DROP,
        target: Target::Node,
        since: utc(0),
        goes_ahead: None,
    }
}

fn asking(rule: &RuleId) -> Approvals {
    let mut approvals = Approvals::default();
    approvals.ask(asked(7, rule), Duration::from_secs(600), at(0));
    approvals
}

fn approve(approvals: &mut Approvals, decision: u64, until: i64, now: i64) -> Result<(), String> {
    approvals.answer(DecisionId(decision), (Reply::Approve, "ada"), utc(until), at(now))
}

#[test]
fn an_approval_is_for_one_act_of_that_rule_and_step() {
    let low = rule("Low");
    let mut approvals = asking(&low);
    assert_eq!(approvals.given(&proposal(&low, 0, &DROP), at(1)), None, "no approval was given");
    approve(&mut approvals, 7, 300, 10).unwrap();
    let given = Some(DecisionId(7));
    assert_eq!(approvals.given(&proposal(&low, 0, &DROP), at(11)), given);
    assert_eq!(approvals.given(&proposal(&low, 1, &DROP), at(11)), None, "another step");
    assert_eq!(approvals.given(&proposal(&rule("High"), 0, &DROP), at(11)), None, "another rule");
    let other = Action::Notify { message: String::new() };
    assert_eq!(approvals.given(&proposal(&low, 0, &other), at(11)), None, "another action");
    approvals.use_up(DecisionId(7), Act::pending(DecisionId(8), at(12).uptime));
    assert_eq!(approvals.given(&proposal(&low, 0, &DROP), at(12)), None, "it is used up");
    assert!(approve(&mut approvals, 7, 300, 13).unwrap_err().contains("decision 7"));
}

#[test]
fn an_approval_of_an_undone_act_stays_valid_until_its_own_time() {
    let low = rule("Low");
    let outcome = |act: u64, result: OutcomeResult| Outcome {
        decision: DecisionId(act),
        action: DROP.name().to_owned(),
        result,
        ended: at(12),
        took: Duration::ZERO,
        effect: None,
    };
    let used = || {
        let mut approvals = asking(&low);
        approve(&mut approvals, 7, 300, 10).unwrap();
        approvals.use_up(DecisionId(7), Act::pending(DecisionId(8), at(11).uptime));
        approvals
    };
    let not_done = || OutcomeResult::NotDone("it has changed".to_owned());
    let given = |approvals: &Approvals, now| approvals.given(&proposal(&low, 0, &DROP), at(now));
    let mut approvals = used();
    assert!(!approvals.observe_outcome(&outcome(9, not_done())), "another act");
    assert_eq!(given(&approvals, 12), None);
    assert!(approvals.observe_outcome(&outcome(8, not_done())));
    assert_eq!(given(&approvals, 299), Some(DecisionId(7)));
    assert_eq!(given(&approvals, 300), None);
    assert_eq!(approvals.pending(&low), 0, "no second request");
    for result in [
        OutcomeResult::Done,
        OutcomeResult::Failed("disk".to_owned()),
        OutcomeResult::TimedOut,
        OutcomeResult::Skipped,
    ] {
        let mut approvals = used();
        assert!(!approvals.observe_outcome(&outcome(8, result)));
        assert!(!approvals.observe_outcome(&outcome(8, not_done())), "once");
        assert_eq!(given(&approvals, 12), None);
    }
    // Of one whose outcome never comes nothing is kept.
    let mut approvals = used();
    approvals.expire(at(2_000));
    assert_eq!(approvals, Approvals::default());
}

#[test]
fn an_approval_lapses_by_either_clock() {
    let low = rule("Low");
    let mut approvals = asking(&low);
    approve(&mut approvals, 7, 300, 10).unwrap();
    let given = |now| approvals.given(&proposal(&low, 0, &DROP), now);
    assert!(given(at(299)).is_some());
    assert!(given(at(300)).is_none());
    let set_back = Moment { uptime: Duration::from_secs(300), utc: utc(20) };
    assert!(given(set_back).is_none(), "a clock that was set back lengthens nothing");
}

#[test]
fn a_late_approval_is_refused_with_a_reason() {
    let low = rule("Low");
    let mut approvals = asking(&low);
    assert!(approve(&mut approvals, 7, 900, 600).unwrap_err().contains("lapsed"));
    let mut approvals = asking(&low);
    assert!(approve(&mut approvals, 7, 20, 20).unwrap_err().contains("lapsed"));
    assert!(approvals.given(&proposal(&low, 0, &DROP), at(21)).is_none());
}

#[test]
fn an_approval_is_requested_once_and_again_after_it_lapsed() {
    let low = rule("Low");
    let approvals = asking(&low);
    assert!(!approvals.must_ask(&proposal(&low, 0, &DROP), false, at(599)));
    assert!(approvals.must_ask(&proposal(&low, 0, &DROP), false, at(600)));
    assert!(approvals.must_ask(&proposal(&low, 1, &DROP), false, at(1)));
}

#[test]
fn requests_for_approval_of_changing_actions_are_bounded() {
    let low = rule("Low");
    let mut approvals = Approvals::default();
    let mut questions = 0;
    for number in 0..1000 {
        let action = Action::Notify { message: number.to_string() };
        if approvals.must_ask(&proposal(&low, 0, &action), false, at(1)) {
            questions += 1;
            let asked = PendingApproval { action, ..asked(number, &low) };
            approvals.ask(asked, Duration::from_secs(600), at(1));
        }
    }
    assert_eq!(questions, 16);
}

#[test]
fn requests_from_before_a_clock_change_expire() {
    let low = rule("Low");
    let mut approvals = Approvals::default();
    // Asked an hour from now, as this clock has it by now: in many runs, the same each time.
    for decision in 0..20 {
        let asked = PendingApproval { since: utc(3600), ..asked(decision, &low) };
        approvals.ask(asked, Duration::from_secs(600), at(0));
    }
    assert_eq!(approvals.pending(&low), 1, "the last one is answered");
    let other = Action::Notify { message: String::new() };
    assert!(approvals.must_ask(&proposal(&low, 0, &other), false, at(1)));
    assert!(!approvals.must_ask(&proposal(&low, 0, &DROP), false, at(599)));
    assert!(
        approvals.must_ask(&proposal(&low, 0, &DROP), false, at(600)),
        "ten minutes are enough"
    );
    approve(&mut approvals, 19, 4000, 10).unwrap();
}

const WITHIN: Duration = Duration::from_secs(600);

/// An announcement of the moment 0 that goes ahead after ten minutes.
fn announced(decision: u64, rule: &RuleId) -> Approvals {
    let asked = PendingApproval { goes_ahead: Some(at(600)), ..asked(decision, rule) };
    let mut approvals = Approvals::default();
    approvals.ask(asked, 2 * WITHIN, at(0));
    approvals
}

fn undenied(approvals: &Approvals, rule: &RuleId, now: Moment) -> Option<DecisionId> {
    approvals.undenied(&proposal(rule, 0, &DROP), WITHIN, now)
}

fn deny(approvals: &mut Approvals, decision: u64, until: i64, now: i64) -> Result<(), String> {
    approvals.answer(DecisionId(decision), (Reply::Deny, "ada"), utc(until), at(now))
}

#[test]
fn an_announced_act_goes_ahead_after_its_time_and_for_as_long_again() {
    let low = rule("Low");
    let approvals = announced(7, &low);
    assert_eq!(undenied(&approvals, &low, at(599)), None);
    assert_eq!(undenied(&approvals, &low, at(600)), Some(DecisionId(7)));
    assert_eq!(undenied(&approvals, &low, at(1_199)), Some(DecisionId(7)));
    assert_eq!(undenied(&approvals, &low, at(1_200)), None, "it must be announced anew");
    assert!(approvals.must_ask(&proposal(&low, 0, &DROP), true, at(1_200)));
    assert!(!approvals.must_ask(&proposal(&low, 0, &DROP), true, at(1_199)));
    let proposal = proposal(&low, 0, &DROP);
    assert_eq!(approvals.given(&proposal, at(700)), None, "nobody has approved");
    assert!(approvals.must_ask(&proposal, false, at(1)), "a rule that asks is not answered by it");
    // Rules that were loaded since allow more time, and never less.
    assert_eq!(approvals.undenied(&proposal, 2 * WITHIN, at(1_199)), None);
    assert_eq!(approvals.undenied(&proposal, WITHIN / 2, at(599)), None);
    assert_eq!(approvals.goes_ahead_at(&low), Some(utc(600)));
}

#[test]
fn a_denied_act_is_neither_done_nor_announced_until_the_denial_lapses() {
    let low = rule("Low");
    let mut approvals = announced(7, &low);
    deny(&mut approvals, 7, 5_000, 10).unwrap();
    assert_eq!(undenied(&approvals, &low, at(700)), None);
    assert!(approvals.is_denied(&proposal(&low, 0, &DROP), at(4_999)));
    assert!(!approvals.is_denied(&proposal(&low, 1, &DROP), at(700)), "another step");
    assert!(!approvals.must_ask(&proposal(&low, 0, &DROP), true, at(4_999)));
    assert!(approvals.must_ask(&proposal(&low, 0, &DROP), true, at(5_000)));
    assert_eq!((approvals.pending(&low), approvals.goes_ahead_at(&low)), (0, None));
    assert!(!approvals.withdraw(&low, Mode::Enforce), "an answer stays");
    // The last answer counts.
    approve(&mut approvals, 7, 5_000, 20).unwrap();
    assert!(!approvals.is_denied(&proposal(&low, 0, &DROP), at(30)));
    assert_eq!(approvals.given(&proposal(&low, 0, &DROP), at(30)), Some(DecisionId(7)));
    deny(&mut approvals, 7, 5_000, 40).unwrap();
    assert_eq!(approvals.given(&proposal(&low, 0, &DROP), at(50)), None);
    assert!(deny(&mut approvals, 9, 5_000, 40).unwrap_err().contains("decision 9"));
}

#[test]
fn a_withdrawn_announcement_goes_ahead_no_more() {
    let low = rule("Low");
    let mut approvals = announced(7, &low);
    assert!(!approvals.withdraw(&rule("High"), Mode::Enforce));
    assert!(!approvals.withdraw(&low, Mode::Observe));
    assert!(approvals.withdraw(&low, Mode::Enforce));
    assert_eq!(undenied(&approvals, &low, at(700)), None);
    assert!(approvals.must_ask(&proposal(&low, 0, &DROP), true, at(1)));
    let mut asking = asking(&low);
    assert!(!asking.withdraw(&low, Mode::Enforce), "a question is no announcement");
}

proptest! {
    /// Whatever the wall clock does, people have had their time by the clock that is never set.
    #[test]
    fn no_announced_act_goes_ahead_early(jumps in prop::collection::vec(-2_000_i64..2_000, 0..12),
                                         steps in prop::collection::vec(1_u64..300, 1..12),
                                         denied_at in prop::option::of(0_usize..12)) {
        let low = rule("Low");
        let mut approvals = announced(7, &low);
        let (mut uptime, mut shift, mut is_denied) = (0_u64, 0_i64, false);
        for (number, step) in steps.iter().enumerate() {
            uptime += step;
            shift += jumps.get(number).copied().unwrap_or_default();
            let utc = utc(uptime.cast_signed() + shift);
            let now = Moment { uptime: Duration::from_secs(uptime), utc };
            if denied_at == Some(number) {
                let until = now.utc + Duration::from_secs(9_000);
                is_denied = approvals.answer(DecisionId(7), (Reply::Deny, "ada"), until, now).is_ok() || is_denied;
            }
            if undenied(&approvals, &low, now).is_some() {
                prop_assert!((600..1_200).contains(&uptime) && !is_denied, "{now:?}");
                prop_assert!(now.utc >= self::utc(600), "nor before the time that was announced");
            }
        }
    }
}
