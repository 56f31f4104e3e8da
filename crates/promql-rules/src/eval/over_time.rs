//! Functions over a range: one value from each series' window.

use super::super::functions::Function;
use super::super::syntax::{Kind, Node, Selector};
use super::super::{Sample, matcher::MatchOp};
use super::partial::{MissingReadings, OpenVector, PossibleElement, Vector};
use super::select::Windows;
use super::sums::{self, Sum};
use super::{Evaluator, unique};
use crate::store::{Point, Window};

/// Further arguments of a function over a window.
pub(crate) struct Range {
    /// The range begins after this instant.
    pub(crate) start_ms: i64,
    /// The range ends with this instant.
    pub(crate) end_ms: i64,
    /// The instant of the evaluation, which differs from the end by the offset.
    now_ms: i64,
    /// The number argument, such as `predict_linear`'s seconds.
    parameter: f64,
}

impl Range {
    /// The range of that length that ends so long before the evaluation.
    pub(crate) fn new(now_ms: i64, offset_ms: i64, range_ms: i64, parameter: f64) -> Self {
        let end_ms = now_ms.saturating_sub(offset_ms);
        Self { start_ms: end_ms.saturating_sub(range_ms), end_ms, now_ms, parameter }
    }
}

impl Evaluator<'_> {
    /// The value of a function over a range, or `None` if it takes none.
    pub(super) fn over_range(
        &mut self,
        function: Function,
        arguments: &[Node],
    ) -> Result<Option<Vector>, String> {
        let range = arguments.iter().find_map(|argument| match &argument.bare().kind {
            Kind::Range { selector, range_ms } => Some((selector, *range_ms)),
            _ => None,
        });
        let Some((selector, range_ms)) = range else { return Ok(None) };
        let parameter = match function {
            Function::PredictLinear => self.scalar_argument(arguments, 1)?,
            Function::QuantileOverTime => self.scalar_argument(arguments, 0)?,
            _ => Ok(f64::NAN),
        };
        let noted = self.missing.len();
        let Windows { series, any, because } = self.windows(selector, range_ms);
        let mut open = OpenVector { any, because, ..OpenVector::default() };
        let now_ms = self.at.timeline_ms;
        let number = *parameter.as_ref().unwrap_or(&f64::NAN);
        let range = Range::new(now_ms, selector.offset_ms, range_ms, number);
        if function == Function::AbsentOverTime {
            self.forgive_unsupported(noted);
            let mut windows = series.iter().map(|series| series.window);
            let exists = match windows.any(|window| window.points().next().is_some()) {
                true => Some(true),
                false if any || series.iter().any(|series| series.is_open) => None,
                false => Some(false),
            };
            return Ok(Some(absent_of(Some(selector), exists, open.because)));
        }
        let keeps_name = function == Function::LastOverTime;
        let mut samples = Vec::with_capacity(series.len());
        for series in series {
            let value = apply(function, series.window, &range);
            let key = series.key;
            let name = keeps_name.then(|| key.name.clone());
            let sample = |value| Sample { name: name.clone(), labels: key.labels.clone(), value };
            match value {
                // With more samples there is a value all the same.
                _ if series.is_open => {
                    if value.is_some() {
                        open.some.push(vec![open.possible.len()]);
                    }
                    let sample = sample(f64::NAN);
                    open.possible.push(PossibleElement { sample, is_valued: false });
                }
                Some(value) => samples.push(sample(value)),
                None => {}
            }
        }
        let vector = Vector::new(unique(samples)?, open);
        Ok(Some(match parameter {
            Ok(_) => vector,
            Err(because) => vector.valueless(because),
        }))
    }

    /// Forgives unsupported readings that were recorded since `noted`.
    pub(super) fn forgive_unsupported(&mut self, noted: usize) {
        self.missing[noted..].iter_mut().for_each(|missing| missing.is_forgiven = true);
    }
}

/// The result of `absent` for a vector that exists, does not, or may exist.
pub(super) fn absent_of(
    selector: Option<&Selector>,
    exists: Option<bool>,
    because: MissingReadings,
) -> Vector {
    let absent = absent(selector);
    match exists {
        Some(true) => Vector::default(),
        Some(false) => Vector::whole(vec![absent]),
        None => Vector::whole(vec![absent]).doubtful(because),
    }
}

/// The element that `absent` gives: with the labels that the selector matches exactly, once each.
fn absent(selector: Option<&Selector>) -> Sample {
    let mut labels: Vec<(std::sync::Arc<str>, std::sync::Arc<str>)> = Vec::new();
    let mut seen: Vec<&str> = Vec::new();
    for matcher in selector.map_or(&[][..], |selector| &selector.matchers) {
        let again = seen.contains(&&*matcher.label);
        if matcher.op == MatchOp::Equal && !again {
            seen.push(&matcher.label);
            if !matcher.value.is_empty() {
                labels.push((matcher.label.clone(), matcher.value.clone()));
            }
        } else {
            labels.retain(|(label, _)| *label != matcher.label);
        }
    }
    labels.sort();
    Sample { name: None, labels: labels.into(), value: 1.0 }
}

/// The value of a function over one series' window.
pub(crate) fn apply(function: Function, window: Window<'_>, range: &Range) -> Option<f64> {
    let points = || window.points();
    let values = || points().map(|point| point.value);
    let last = points().next_back()?;
    match function {
        Function::Rate => extrapolated(window, range, true, true),
        Function::Increase => extrapolated(window, range, true, false),
        Function::Delta => extrapolated(window, range, false, false),
        Function::Irate => instantaneous(window, true),
        Function::Idelta => instantaneous(window, false),
        Function::Deriv => {
            let first = points().next()?;
            regression(window, first.at_ms).map(|(slope, _)| slope)
        }
        Function::PredictLinear => regression(window, range.now_ms)
            .map(|(slope, intercept)| slope * range.parameter + intercept),
        Function::AvgOverTime => Some(sums::mean(values())),
        Function::SumOverTime => Some(sums::sum(values())),
        Function::MinOverTime => Some(sums::least(values())),
        Function::MaxOverTime => Some(sums::greatest(values())),
        Function::CountOverTime => Some(points().count() as f64),
        Function::LastOverTime => Some(last.value),
        Function::PresentOverTime => Some(1.0),
        Function::StddevOverTime => Some(sums::variance_over_time(values()).sqrt()),
        Function::StdvarOverTime => Some(sums::variance_over_time(values())),
        Function::QuantileOverTime => Some(sums::quantile(range.parameter, values().collect())),
        Function::Changes => Some(pairs(window, |before, after| {
            after != before && !(after.is_nan() && before.is_nan())
        })),
        Function::Resets => Some(pairs(window, |before, after| after < before)),
        _ => None,
    }
}

/// How many neighbours satisfy a condition.
fn pairs(window: Window<'_>, condition: impl Fn(f64, f64) -> bool) -> f64 {
    let neighbours = window.points().zip(window.points().skip(1));
    neighbours.filter(|(before, after)| condition(before.value, after.value)).count() as f64
}

/// `rate`, `increase` and `delta`: the difference, extrapolated to the ends of the range.
fn extrapolated(window: Window<'_>, range: &Range, is_counter: bool, is_rate: bool) -> Option<f64> {
    let first = window.points().next()?;
    let last = window.points().next_back()?;
    let mut difference = last.value - first.value;
    let mut spaces = 0.0;
    match window.count_if_never_falling() {
        Some(count) => spaces = (count - 1) as f64,
        None => {
            let mut before = first.value;
            for point in window.points().skip(1) {
                if is_counter && point.value < before {
                    difference += before;
                }
                before = point.value;
                spaces += 1.0;
            }
        }
    }
    if spaces == 0.0 {
        return None;
    }
    let mut to_start = (first.at_ms - range.start_ms) as f64 / 1000.0;
    let mut to_end = (range.end_ms - last.at_ms) as f64 / 1000.0;
    let sampled = (last.at_ms - first.at_ms) as f64 / 1000.0;
    let spacing = sampled / spaces;
    let threshold = spacing * 1.1;
    if to_start >= threshold {
        to_start = spacing / 2.0;
    }
    // A counter was not below zero.
    if is_counter && difference > 0.0 && first.value >= 0.0 {
        let to_zero = sampled * (first.value / difference);
        if to_zero < to_start {
            to_start = to_zero;
        }
    }
    if to_end >= threshold {
        to_end = spacing / 2.0;
    }
    let mut factor = (sampled + to_start + to_end) / sampled;
    if is_rate {
        factor /= (range.end_ms - range.start_ms) as f64 / 1000.0;
    }
    Some(difference * factor)
}

/// `irate` and `idelta`: from the last two samples.
fn instantaneous(window: Window<'_>, is_rate: bool) -> Option<f64> {
    let mut newest = window.points().rev();
    let after = newest.next()?;
    let before = newest.next()?;
    let is_reset = is_rate && after.value < before.value;
    let difference = if is_reset { after.value } else { after.value - before.value };
    let elapsed_ms = (after.at_ms - before.at_ms) as f64;
    Some(if is_rate { difference / (elapsed_ms / 1000.0) } else { difference })
}

/// Least squares: the slope per second, and the value at an instant.
fn regression(window: Window<'_>, at_ms: i64) -> Option<(f64, f64)> {
    let mut points = window.points();
    let first: Point = points.next()?;
    points.next()?;
    let [mut x_sum, mut y_sum, mut xy_sum, mut x2_sum] = [Sum::default(); 4];
    let mut count = 0.0;
    let mut is_constant = true;
    for point in window.points() {
        if count > 0.0 && point.value != first.value {
            is_constant = false;
        }
        count += 1.0;
        let x = (point.at_ms - at_ms) as f64 / 1e3;
        x_sum.add(x);
        y_sum.add(point.value);
        xy_sum.add(x * point.value);
        x2_sum.add(x * x);
    }
    if is_constant {
        let known = !first.value.is_infinite();
        return Some(if known { (0.0, first.value) } else { (f64::NAN, f64::NAN) });
    }
    let [x, y, xy, x2] = [x_sum.total(), y_sum.total(), xy_sum.total(), x2_sum.total()];
    let covariance = xy - x * y / count;
    let variance = x2 - x * x / count;
    let slope = covariance / variance;
    Some((slope, y / count - slope * x / count))
}
