//! `histogram_quantile` over classic histograms: series that count up to the bound in `le`.

use std::collections::HashMap;
use std::sync::Arc;

use super::super::{Labels, Sample};
use super::{label, relabel, unique};

/// The label with a bucket's upper bound.
const BOUND_LABEL: &str = "le";

/// Counts that differ by less than this share count as equal: sums of rates are not exact.
const SMALL_DIFFERENCE: f64 = 1e-12;

/// How many observations are at most that large.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    bound: f64,
    count: f64,
}

/// One histogram among the elements: its name and labels but for the bound.
type HistogramKey = (Option<Arc<str>>, Labels);

/// The quantile of each histogram among the elements; those without a bound are left out.
pub(super) fn quantile(q: f64, samples: Vec<Sample>) -> Result<Vec<Sample>, String> {
    let mut indexes: HashMap<HistogramKey, usize> = HashMap::new();
    let mut histograms: Vec<(Labels, Vec<Bucket>)> = Vec::new();
    for mut sample in samples {
        let Some(bound) = bound(label(&sample, BOUND_LABEL)) else { continue };
        let bucket = Bucket { bound, count: sample.value };
        relabel::set(&mut sample, BOUND_LABEL, "");
        let key = (sample.name, sample.labels);
        match indexes.get(&key).and_then(|index| histograms.get_mut(*index)) {
            Some((_, buckets)) => buckets.push(bucket),
            None => {
                let labels = key.1.clone();
                indexes.insert(key, histograms.len());
                histograms.push((labels, vec![bucket]));
            }
        }
    }
    let quantiles = histograms.into_iter().map(|(labels, buckets)| Sample {
        name: None,
        labels,
        value: of_buckets(q, buckets),
    });
    unique(quantiles.collect())
}

/// A bound as Go parses it: an overflow is an error.
fn bound(text: &str) -> Option<f64> {
    let bound: f64 = text.parse().ok()?;
    let digits = text.trim_start_matches(['+', '-']);
    let is_infinite = !digits.starts_with(|first: char| first.is_ascii_digit() || first == '.');
    (!bound.is_nan() && bound.is_infinite() == is_infinite).then_some(bound)
}

fn of_buckets(q: f64, mut buckets: Vec<Bucket>) -> f64 {
    if q.is_nan() {
        return f64::NAN;
    }
    if q < 0.0 {
        return f64::NEG_INFINITY;
    }
    if q > 1.0 {
        return f64::INFINITY;
    }
    buckets.sort_by(|one, other| one.bound.total_cmp(&other.bound));
    let buckets = monotonic(coalesced(&buckets));
    let [.., before_last, last] = buckets.as_slice() else { return f64::NAN };
    if last.bound != f64::INFINITY || last.count == 0.0 {
        return f64::NAN;
    }
    let mut rank = q * last.count;
    // Searched as in Go, where it matters: counts that are NaN are in no order.
    let (mut index, mut end) = (0, buckets.len() - 1);
    while index < end {
        let middle = usize::midpoint(index, end);
        if buckets[middle].count >= rank {
            end = middle;
        } else {
            index = middle + 1;
        }
    }
    if index == buckets.len() - 1 {
        return before_last.bound;
    }
    let Bucket { bound: end, mut count } = buckets[index];
    if index == 0 && end <= 0.0 {
        return end;
    }
    let mut start = 0.0;
    if let Some(below) = index.checked_sub(1).map(|below| buckets[below]) {
        start = below.bound;
        count -= below.count;
        rank -= below.count;
    }
    start + (end - start) * (rank / count)
}

/// One bucket for each bound, of which `1` and `1.0` are one.
fn coalesced(sorted: &[Bucket]) -> Vec<Bucket> {
    let mut buckets: Vec<Bucket> = Vec::with_capacity(sorted.len());
    for bucket in sorted {
        match buckets.last_mut() {
            Some(last) if last.bound == bucket.bound => last.count += bucket.count,
            _ => buckets.push(*bucket),
        }
    }
    buckets
}

/// No bucket has less than the one below it: buckets may be scraped while they are counted up.
fn monotonic(mut buckets: Vec<Bucket>) -> Vec<Bucket> {
    let Some(mut before) = buckets.first().map(|bucket| bucket.count) else { return buckets };
    for bucket in buckets.iter_mut().skip(1) {
        if bucket.count < before || almost_equal(bucket.count, before) {
            bucket.count = before;
        } else {
            before = bucket.count;
        }
    }
    buckets
}

#[expect(clippy::float_cmp, reason = "equal infinities are equal")]
fn almost_equal(one: f64, other: f64) -> bool {
    if one == other || one.is_nan() && other.is_nan() {
        return true;
    }
    let (sum, difference) = (one.abs() + other.abs(), (one - other).abs());
    if one == 0.0 || other == 0.0 || sum < f64::MIN_POSITIVE {
        return difference < SMALL_DIFFERENCE * f64::MIN_POSITIVE;
    }
    difference / sum.min(f64::MAX) < SMALL_DIFFERENCE
}
