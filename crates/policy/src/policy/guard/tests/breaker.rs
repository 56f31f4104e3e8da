use std::sync::Arc;
use std::time::Duration;

use crate::model::{DecisionId, Mode, RuleId};
use crate::policy::guard::breaker::{BreakerLimit, MissedAims};
use crate::policy::guard::ledger::{Ledger, RemedyAccount};

const LIMIT: BreakerLimit =
    BreakerLimit { misses: 3, reset_after: Some(Duration::from_secs(3_600)) };

#[test]
fn the_breaker_opens_at_the_last_miss_and_admits_one_round_after_its_time() {
    let mut misses = MissedAims::default();
    misses.miss(1_000, None);
    misses.miss(2_000, None);
    assert!(!misses.is_open(LIMIT, 2_000));
    misses.miss(3_000, None);
    assert!(misses.is_open(LIMIT, 3_000));
    assert!(misses.is_open(LIMIT, 3_602_999));
    assert!(!misses.is_open(LIMIT, 3_603_000), "half open");
    misses.miss(3_700_000, None);
    assert!(misses.is_open(LIMIT, 3_700_001), "one more miss closes it again");
    misses.clear();
    assert!(!misses.is_open(LIMIT, 3_700_002));
}

#[test]
fn a_breaker_without_a_time_stays_open_and_one_without_a_count_never_opens() {
    let mut misses = MissedAims::default();
    (0..5).for_each(|at| misses.miss(at, None));
    assert!(misses.is_open(BreakerLimit { reset_after: None, ..LIMIT }, i64::MAX));
    assert!(!misses.is_open(BreakerLimit { misses: 0, reset_after: None }, 5));
}

fn rule() -> RuleId {
    RuleId { group: Arc::from("g"), alert: Arc::from("Low") }
}

fn in_a_row(ledger: &Ledger, mode: Mode) -> u32 {
    ledger.account(&rule(), mode).map_or(0, |account| account.all.misses.in_a_row())
}

#[test]
fn a_round_misses_if_its_last_real_action_misses() {
    let mut ledger = Ledger::default();
    let mut round = |is_notice: bool, aims: &[Option<bool>], is_cut_off: bool| {
        let account = ledger.account_mut(&rule(), Mode::Enforce);
        for aim_met in aims {
            account.act(DecisionId(1), 0, is_notice, None);
            account.check_aim(*aim_met);
        }
        if is_cut_off {
            account.cut_off();
        }
        account.end_round(1);
        in_a_row(&ledger, Mode::Enforce)
    };
    assert_eq!(round(false, &[Some(false), Some(false)], false), 1, "one round is one miss");
    assert_eq!(round(true, &[Some(false)], false), 1, "a notice cannot meet an aim");
    assert_eq!(round(false, &[None], false), 1, "what is unknown is neither");
    assert_eq!(round(false, &[None], true), 2, "an act that never ended has not helped");
    assert_eq!(round(false, &[Some(false), Some(true)], false), 0);
}

#[test]
fn each_mode_counts_its_own() {
    let mut ledger = Ledger::default();
    let account = ledger.account_mut(&rule(), Mode::Observe);
    account.act(DecisionId(1), 0, false, None);
    account.check_aim(Some(false));
    account.end_round(0);
    assert_eq!((in_a_row(&ledger, Mode::Observe), in_a_row(&ledger, Mode::Enforce)), (1, 0));
}

#[test]
fn misses_count_by_engine_within_a_bound() {
    let mut ledger = Ledger::default();
    let account = ledger.account_mut(&rule(), Mode::Enforce);
    let mut round = |engine: &str, at_ms: i64, aim_met: bool| {
        account.act(DecisionId(1), at_ms, false, Some(engine));
        account.check_aim(Some(aim_met));
        account.end_round(at_ms);
    };
    for at_ms in 1..=3 {
        round("false", at_ms, false);
    }
    round("true", 4, true);
    let of =
        |account: &RemedyAccount, engine: &str| account.engine(engine).map(|t| t.misses.in_a_row());
    let account = ledger.account_mut(&rule(), Mode::Enforce);
    assert_eq!((of(account, "false"), of(account, "true")), (Some(3), Some(0)));
    for number in 0..200 {
        account.act(DecisionId(1), 10 + number, false, Some(&format!("vllm-{number}")));
    }
    assert_eq!(account.engines().count(), 64);
    let both = (of(account, "false"), of(account, "vllm-199"));
    assert_eq!(both, (Some(3), Some(0)), "a miss is forgotten last");
}
