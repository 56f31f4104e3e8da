//! Sums and shares of what engines report in their metrics.

use crate::model::Reading;

/// An exposition's values of those metrics, each with its line.
pub(super) fn samples<'t>(text: &'t str, names: &[&str]) -> impl Iterator<Item = (&'t str, f64)> {
    text.lines().filter_map(|line| {
        let (series, value) = line.trim_end().rsplit_once(' ')?;
        let name = series.split('{').next()?;
        names.contains(&name).then(|| Some((series, value.parse().ok()?)))?
    })
}

/// The sum over all series of these metrics in an exposition.
pub(super) fn sum(text: &str, names: &[&str]) -> Reading<u64> {
    let values = samples(text, names).filter_map(|(_, value)| whole(value));
    values.reduce(u64::saturating_add).into()
}

/// The greatest share, from 0 to 1, over all series of a metric.
pub(super) fn greatest_share(text: &str, name: &str) -> Reading<f64> {
    samples(text, &[name]).filter_map(|(_, value)| share(value)).reduce(f64::max).into()
}

pub(super) fn share(value: f64) -> Option<f64> {
    // A pool may be filled a little beyond its end.
    (0.0..=2.0).contains(&value).then_some(value.min(1.0))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded above")]
fn whole(value: f64) -> Option<u64> {
    (value.is_finite() && (0.0..1e15).contains(&value)).then_some(value as u64)
}
