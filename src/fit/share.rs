//! Shares of memory in whole hundredths, as in the engines' options.

/// The hundredths of a share. A binary fraction would lose or add bytes.
pub(super) fn hundredths(share: f64) -> u64 {
    (share * 100.0).round() as u64
}

pub(super) fn usable_bytes(share: f64, whole: u64) -> u64 {
    let bytes = u128::from(whole) * u128::from(hundredths(share)) / 100;
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// Rounded down to hundredths.
pub(super) fn share_down(part: u64, whole: u64) -> f64 {
    match whole {
        0 => 0.0,
        _ => (u128::from(part.min(whole)) * 100 / u128::from(whole)) as f64 / 100.0,
    }
}

/// Rounded up to hundredths.
pub(super) fn share_up(part: u64, whole: u64) -> f64 {
    match (part, whole) {
        (0, _) => 0.0,
        (_, 0) => f64::INFINITY,
        _ => (u128::from(part) * 100).div_ceil(u128::from(whole)) as f64 / 100.0,
    }
}
