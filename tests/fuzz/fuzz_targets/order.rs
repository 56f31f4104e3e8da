//! The body of an order: the first byte selects its kind.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::time::Duration;

use umawarden::exports::{LONGEST, OrderKind, OrderPeriod, read_order};
use umawarden::model::RebootForce;

const MOST_DELAY: Duration = Duration::from_secs(86_400);

fuzz_target!(|bytes: &[u8]| {
    let Some((first, body)) = bytes.split_first() else { return };
    let Some((kind, name, comment)) = read_order(*first, body) else { return };
    if let OrderKind::Reboot { delay, force } = &kind {
        assert!(delay.is_none_or(|delay| delay <= MOST_DELAY), "{delay:?}");
        assert!(!comment.trim().is_empty(), "a reboot without a reason");
        assert!(force.len() <= RebootForce::ALL.len());
    }
    let words = [name.unwrap_or_default(), comment];
    assert!(!words.iter().any(|text| text.contains(char::is_control)), "{words:?}");
    let lasts = match kind {
        OrderKind::Silence { lasts, .. } => Some(lasts),
        OrderKind::Approve { lasts, .. } => lasts,
        OrderKind::Reboot { .. } => None,
        other => panic!("{other:?}"),
    };
    if let Some(OrderPeriod::For(duration)) = lasts {
        assert!(!duration.is_zero() && duration <= LONGEST, "{duration:?}");
    }
});
