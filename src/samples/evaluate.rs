//! Evaluates an expression at one instant, or at the steps of a range.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use promql_rules::store::SeriesStore;
use promql_rules::{EvalTime, Evaluated, Expr, Labels, Sample, Value, ValueType};

use super::MAX_POINTS;

/// When an expression is evaluated; in milliseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryTime {
    /// At one instant.
    At(i64),
    /// At each step.
    Range {
        /// The first instant.
        start_ms: i64,
        /// No instant is after it.
        end_ms: i64,
        /// Above 0.
        step_ms: i64,
    },
}

/// The result of a query.
#[derive(Clone, Debug, PartialEq)]
pub enum EvaluationResult {
    /// A number at an instant.
    Scalar(i64, f64),
    /// An instant vector.
    Vector(i64, Vec<Sample>),
    /// Series over a range, or their samples in one, sorted by their labels.
    Matrix(Vec<ResultSeries>),
    /// A string, with the instant of the query.
    Text(i64, Arc<str>),
}

/// A series of a result.
#[derive(Clone, Debug, PartialEq)]
pub struct ResultSeries {
    /// The metric's name, unless an operation has dropped it.
    pub name: Option<Arc<str>>,
    /// The other labels.
    pub labels: Labels,
    /// When and values.
    pub points: Vec<(i64, f64)>,
}

/// Why a query has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryFailure {
    /// A parameter cannot be used.
    #[error("{0}")]
    BadData(String),
    /// The evaluation failed, or passed a bound.
    #[error("{0}")]
    Execution(String),
    /// It took too long.
    #[error("{0}")]
    Timeout(String),
    /// There are no samples yet.
    #[error("{0}")]
    Unavailable(String),
}

impl QueryFailure {
    /// `errorType` of Prometheus' API.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::BadData(_) => "bad_data",
            Self::Execution(_) => "execution",
            Self::Timeout(_) => "timeout",
            Self::Unavailable(_) => "unavailable",
        }
    }
}

impl QueryTime {
    /// The first instant.
    pub fn first_ms(self) -> i64 {
        match self {
            Self::At(at_ms) | Self::Range { start_ms: at_ms, .. } => at_ms,
        }
    }

    /// The last instant.
    pub fn last_ms(self) -> i64 {
        match self {
            Self::At(at_ms) | Self::Range { end_ms: at_ms, .. } => at_ms,
        }
    }
}

/// Evaluates an expression. It ends early once `is_canceled`.
///
/// # Errors
/// An error of the data, a bound on the result, or it was canceled.
pub fn evaluate(
    expr: &Expr,
    store: &SeriesStore,
    when: QueryTime,
    is_canceled: &AtomicBool,
) -> Result<EvaluationResult, QueryFailure> {
    let (start_ms, end_ms, step_ms) = match when {
        QueryTime::At(at_ms) => return at_instant(expr, store, at_ms),
        QueryTime::Range { start_ms, end_ms, step_ms } => (start_ms, end_ms, step_ms.max(1)),
    };
    let mut matrix = Matrix::default();
    let mut at_ms = start_ms;
    while at_ms <= end_ms {
        if is_canceled.load(Ordering::Relaxed) {
            let text = "the query was ended before it was done: choose a shorter range or a \
                        longer step";
            return Err(QueryFailure::Timeout(text.to_owned()));
        }
        matrix.add(at_ms, value_at(expr, store, at_ms)?)?;
        let Some(next_ms) = at_ms.checked_add(step_ms) else { break };
        at_ms = next_ms;
    }
    Ok(EvaluationResult::Matrix(sorted(matrix.series)))
}

fn at_instant(
    expr: &Expr,
    store: &SeriesStore,
    at_ms: i64,
) -> Result<EvaluationResult, QueryFailure> {
    if let Some(text) = expr.string() {
        return Ok(EvaluationResult::Text(at_ms, Arc::clone(text)));
    }
    if expr.value_type() == ValueType::Range {
        return Ok(EvaluationResult::Matrix(samples_at(expr, store, at_ms)?));
    }
    Ok(match value_at(expr, store, at_ms)? {
        Value::Scalar(value) => EvaluationResult::Scalar(at_ms, value),
        Value::Vector(samples) => EvaluationResult::Vector(at_ms, samples),
    })
}

/// The samples in the range of a range selector, each with its own time.
fn samples_at(
    expr: &Expr,
    store: &SeriesStore,
    at_ms: i64,
) -> Result<Vec<ResultSeries>, QueryFailure> {
    let mut series = Vec::new();
    let mut count = 0;
    for (key, window) in expr.samples(store, instant(at_ms)).map_err(QueryFailure::Execution)? {
        let points: Vec<_> = window.points().map(|point| (point.at_ms, point.value)).collect();
        count += points.len();
        if count > MAX_POINTS {
            return Err(QueryFailure::Execution(format!(
                "the result has more than {MAX_POINTS} points: choose a shorter range, or fewer \
                 series"
            )));
        }
        if !points.is_empty() {
            let (name, labels) = (Some(Arc::clone(&key.name)), Arc::clone(&key.labels));
            series.push(ResultSeries { name, labels, points });
        }
    }
    Ok(sorted(series))
}

fn instant(at_ms: i64) -> EvalTime {
    EvalTime { timeline_ms: at_ms, utc_ms: at_ms }
}

fn value_at(expr: &Expr, store: &SeriesStore, at_ms: i64) -> Result<Value, QueryFailure> {
    match expr.evaluate(store, instant(at_ms)).map_err(QueryFailure::Execution)? {
        Evaluated::Known(value) => Ok(value),
        // Only bounds make it unknown: there are no failed readings in the store.
        Evaluated::Unknown(why) => Err(QueryFailure::Execution(why.join("; "))),
    }
}

/// Series of a range so far.
#[derive(Default)]
struct Matrix {
    series: Vec<ResultSeries>,
    positions: HashMap<(Option<Arc<str>>, Labels), usize>,
    points: usize,
}

impl Matrix {
    fn add(&mut self, at_ms: i64, value: Value) -> Result<(), QueryFailure> {
        let samples = match value {
            Value::Vector(samples) => samples,
            Value::Scalar(value) => vec![Sample { name: None, labels: Labels::from([]), value }],
        };
        self.points += samples.len();
        if self.points > MAX_POINTS {
            return Err(QueryFailure::Execution(format!(
                "the result has more than {MAX_POINTS} points: choose a longer step, a shorter \
                 range, or fewer series"
            )));
        }
        for Sample { name, labels, value } in samples {
            let next = self.series.len();
            let known = self.positions.entry((name.clone(), Arc::clone(&labels)));
            let position = *known.or_insert(next);
            if position == next {
                self.series.push(ResultSeries { name, labels, points: Vec::new() });
            }
            if let Some(series) = self.series.get_mut(position) {
                series.points.push((at_ms, value));
            }
        }
        Ok(())
    }
}

fn sorted(mut series: Vec<ResultSeries>) -> Vec<ResultSeries> {
    series.sort_by(|one, other| (&one.name, &one.labels).cmp(&(&other.name, &other.labels)));
    series
}
