//! Sums that lose little to rounding, exactly as Prometheus computes them.

/// A running sum with the Kahan–Neumaier compensation.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sum {
    pub sum: f64,
    pub compensation: f64,
}

impl Sum {
    pub(super) fn add(&mut self, increment: f64) {
        let total = self.sum + increment;
        if total.is_infinite() {
            self.compensation = 0.0;
        } else if self.sum.abs() >= increment.abs() {
            self.compensation += (self.sum - total) + increment;
        } else {
            self.compensation += (increment - total) + self.sum;
        }
        self.sum = total;
    }

    pub(super) fn total(self) -> f64 {
        self.sum + self.compensation
    }
}

pub(super) fn sum(values: impl Iterator<Item = f64>) -> f64 {
    let mut sum = Sum::default();
    values.for_each(|value| sum.add(value));
    if sum.sum.is_infinite() { sum.sum } else { sum.total() }
}

/// The mean: of the sum while that does not overflow, kept up step by step from there on.
pub(super) fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let mut sum = Sum::default();
    let mut count = 0.0;
    let mut is_stepwise = false;
    for value in values {
        count += 1.0;
        if count == 1.0 {
            sum.sum = value;
            continue;
        }
        if !is_stepwise {
            let mut next = sum;
            next.add(value);
            if !next.sum.is_infinite() {
                sum = next;
                continue;
            }
            is_stepwise = true;
            sum.sum /= count - 1.0;
            sum.compensation /= count - 1.0;
        }
        let weight = (count - 1.0) / count;
        sum = Sum { sum: weight * sum.sum, compensation: weight * sum.compensation };
        sum.add(value / count);
    }
    if is_stepwise { sum.total() } else { sum.sum / count + sum.compensation / count }
}

/// The population variance over time, compensated.
pub(super) fn variance_over_time(values: impl Iterator<Item = f64>) -> f64 {
    let mut count = 0.0;
    let mut mean = Sum::default();
    let mut squares = Sum::default();
    for value in values {
        count += 1.0;
        let delta = value - mean.total();
        mean.add(delta / count);
        squares.add(delta * (value - mean.total()));
    }
    squares.total() / count
}

/// The population variance over series, which Prometheus does not compensate.
pub(super) fn variance_over_series(values: impl Iterator<Item = f64>) -> f64 {
    let mut count = 0.0;
    let mut mean = 0.0;
    let mut squares = 0.0;
    for value in values {
        count += 1.0;
        if count == 1.0 {
            mean = value;
            squares = if value.is_finite() { 0.0 } else { f64::NAN };
            continue;
        }
        let delta = value - mean;
        mean += delta / count;
        squares += delta * (value - mean);
    }
    squares / count
}

/// The quantile of values, which are sorted for it; NaN counts as the least.
pub(super) fn quantile(q: f64, mut values: Vec<f64>) -> f64 {
    if values.is_empty() || q.is_nan() {
        return f64::NAN;
    }
    if q < 0.0 {
        return f64::NEG_INFINITY;
    }
    if q > 1.0 {
        return f64::INFINITY;
    }
    values.sort_by(|one, other| match (one.is_nan(), other.is_nan()) {
        (true, true) => std::cmp::Ordering::Equal,
        (true, false) => std::cmp::Ordering::Less,
        (false, true) => std::cmp::Ordering::Greater,
        (false, false) => one.partial_cmp(other).unwrap_or(std::cmp::Ordering::Equal),
    });
    let last = values.len() - 1;
    let rank = q * last as f64;
    let lower = (rank.floor().max(0.0) as usize).min(last);
    let upper = (lower + 1).min(last);
    let weight = rank - rank.floor();
    values[lower] * (1.0 - weight) + values[upper] * weight
}

/// The smallest value; NaN only if there is nothing else.
pub(super) fn least(values: impl Iterator<Item = f64>) -> f64 {
    values
        .fold(f64::NAN, |least, value| if value < least || least.is_nan() { value } else { least })
}

/// The greatest value; NaN only if there is nothing else.
pub(super) fn greatest(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(f64::NAN, |most, value| if value > most || most.is_nan() { value } else { most })
}
