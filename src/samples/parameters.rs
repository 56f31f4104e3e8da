//! The parameters of queries, read as Prometheus reads them.

use std::time::Duration;

use jiff::Timestamp;
use promql_rules::{Expr, ExprError, Selection, ValueType, parse_query};

use super::{CatalogueListing, EvaluationResult, MAX_STEPS, QueryFailure, QueryResult, QueryTime};
use crate::model::{SeriesKey, duration};

/// The most `match[]` of one request.
const MOST_SELECTIONS: usize = 64;

/// The parameters of a request, in their order.
#[derive(Clone, Debug, Default)]
pub struct Parameters(Vec<(String, String)>);

/// A validated query of samples.
#[derive(Clone, Debug)]
pub struct SampleQuery {
    /// The expression.
    pub expr: Expr,
    /// When it is evaluated.
    pub when: QueryTime,
    /// The most series of the result; 0: all.
    pub limit: usize,
    /// A limit of time, if the client has one.
    pub timeout: Option<Duration>,
    /// Whether series have the labels of this node as a target.
    pub has_target_labels: bool,
}

/// A request of a list.
#[derive(Clone, Debug)]
pub struct ListRequest {
    selections: Vec<Selection>,
    /// Series with a value from then on, in milliseconds since 1970.
    pub from_ms: i64,
    /// And up to then.
    pub to_ms: i64,
    /// The most entries; 0: all.
    pub limit: usize,
    /// Whether series have the labels of this node as a target.
    pub has_target_labels: bool,
}

impl Parameters {
    /// Pairs of name and value.
    pub fn new(pairs: Vec<(String, String)>) -> Self {
        Self(pairs)
    }

    /// The first value of a parameter; `None` also if it is empty.
    pub fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    }

    /// A number of results; 0 without it.
    ///
    /// # Errors
    /// It is no such number.
    pub fn count(&self, name: &str) -> Result<usize, String> {
        let Some(text) = self.get(name) else { return Ok(0) };
        text.parse().map_err(|_| invalid(name, &format!("{text:?} is no number from 0 on")))
    }

    fn time(&self, name: &str) -> Result<Option<i64>, String> {
        self.get(name).map(|text| time_ms(text).map_err(|why| invalid(name, &why))).transpose()
    }

    fn required_time(&self, name: &str) -> Result<i64, String> {
        let missing = || invalid(name, "cannot parse \"\" to a valid timestamp");
        self.time(name)?.ok_or_else(missing)
    }

    fn duration(&self, name: &str) -> Result<Option<i64>, String> {
        self.get(name).map(|text| duration_ms(text).map_err(|why| invalid(name, &why))).transpose()
    }

    /// Series have the labels of a target unless this is `false`.
    fn has_target_labels(&self) -> Result<bool, String> {
        match self.get("target_labels") {
            None | Some("true") => Ok(true),
            Some("false") => Ok(false),
            Some(other) => {
                Err(invalid("target_labels", &format!("{other:?} is neither true nor false")))
            }
        }
    }
}

impl SampleQuery {
    /// A query at one instant, `now_ms` without a parameter `time`.
    ///
    /// # Errors
    /// The parameter, and what is wrong with it.
    pub fn at_instant(parameters: &Parameters, now_ms: i64) -> Result<Self, QueryFailure> {
        let at_ms = parameters.time("time").map_err(QueryFailure::BadData)?.unwrap_or(now_ms);
        Self::new(parameters, QueryTime::At(at_ms)).map_err(QueryFailure::BadData)
    }

    /// A query over a range.
    ///
    /// # Errors
    /// The parameter, and what is wrong with it.
    pub fn over_range(parameters: &Parameters) -> Result<Self, QueryFailure> {
        let when = range(parameters).map_err(QueryFailure::BadData)?;
        Self::new(parameters, when).map_err(QueryFailure::BadData)
    }

    fn new(parameters: &Parameters, when: QueryTime) -> Result<Self, String> {
        let timeout = parameters.duration("timeout")?;
        let timeout = timeout.map(|ms| Duration::from_millis(u64::try_from(ms).unwrap_or(0)));
        let limit = parameters.count("limit")?;
        let has_target_labels = parameters.has_target_labels()?;
        let text = parameters.get("query").unwrap_or_default();
        let expr = parse_query(text).map_err(|error| invalid("query", &placed(text, &error)))?;
        let found = expr.value_type();
        if let (QueryTime::Range { .. }, ValueType::Range | ValueType::Text) = (when, found) {
            let why = format!(
                "invalid expression type \"{}\" for range query, must be Scalar or instant Vector",
                found.documented()
            );
            return Err(invalid("query", &why));
        }
        Ok(Self { expr, when, limit, timeout, has_target_labels })
    }

    /// The result with at most `limit` series.
    pub(super) fn limited(&self, mut result: QueryResult) -> QueryResult {
        let before = result.found.count();
        if self.limit > 0 && before > self.limit {
            result.found.truncate(self.limit);
            result.warnings.push("results truncated due to limit".to_owned());
        }
        result
    }
}

impl EvaluationResult {
    /// The number of series.
    pub fn count(&self) -> usize {
        match self {
            Self::Scalar(..) | Self::Text(..) => 1,
            Self::Vector(_, samples) => samples.len(),
            Self::Matrix(series) => series.len(),
        }
    }

    fn truncate(&mut self, limit: usize) {
        match self {
            Self::Scalar(..) | Self::Text(..) => {}
            Self::Vector(_, samples) => samples.truncate(limit),
            Self::Matrix(series) => series.truncate(limit),
        }
    }
}

fn range(parameters: &Parameters) -> Result<QueryTime, String> {
    let start_ms = parameters.required_time("start")?;
    let end_ms = parameters.required_time("end")?;
    if end_ms < start_ms {
        return Err(invalid("end", "end timestamp must not be before start time"));
    }
    let missing = || invalid("step", "cannot parse \"\" to a valid duration");
    let step_ms = parameters.duration("step")?.ok_or_else(missing)?;
    if step_ms <= 0 {
        let text = "zero or negative query resolution step widths are not accepted. Try a \
                    positive integer";
        return Err(invalid("step", text));
    }
    if end_ms.saturating_sub(start_ms) / step_ms > MAX_STEPS {
        return Err(
            "exceeded maximum resolution of 11,000 points per timeseries. Try decreasing the \
             query resolution (?step=XX)"
                .to_owned(),
        );
    }
    Ok(QueryTime::Range { start_ms, end_ms, step_ms })
}

impl CatalogueListing {
    /// Reads the parameters of this list.
    ///
    /// # Errors
    /// The parameter, and what is wrong with it.
    pub fn read(&self, parameters: &Parameters) -> Result<ListRequest, QueryFailure> {
        self.listed(parameters).map_err(QueryFailure::BadData)
    }

    fn listed(&self, parameters: &Parameters) -> Result<ListRequest, String> {
        let texts = parameters.0.iter().filter(|(name, _)| name == "match[]");
        let texts: Vec<&str> = texts.map(|(_, text)| text.as_str()).collect();
        if *self == Self::Series && texts.is_empty() {
            return Err("no match[] parameter provided".to_owned());
        }
        if texts.len() > MOST_SELECTIONS {
            return Err(invalid(
                "match[]",
                &format!("it is there more than {MOST_SELECTIONS} times"),
            ));
        }
        let selection = |text: &&str| {
            Selection::parse(text).map_err(|error| invalid("match[]", &placed(text, &error)))
        };
        Ok(ListRequest {
            selections: texts.iter().map(selection).collect::<Result<_, _>>()?,
            from_ms: parameters.time("start")?.unwrap_or(i64::MIN),
            to_ms: parameters.time("end")?.unwrap_or(i64::MAX),
            limit: parameters.count("limit")?,
            has_target_labels: parameters.has_target_labels()?,
        })
    }
}

impl ListRequest {
    /// Whether any selector selects the series; all are selected without selectors.
    pub(super) fn selects(&self, key: &SeriesKey) -> bool {
        let mut selections = self.selections.iter();
        self.selections.is_empty() || selections.any(|selection| selection.selects(key))
    }
}

fn invalid(name: &str, why: &str) -> String {
    format!("invalid parameter \"{name}\": {why}")
}

/// A mistake with its line and column, which count from 1.
fn placed(text: &str, error: &ExprError) -> String {
    let before = text.get(..error.span.start).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.len() - before.rfind('\n').map_or(0, |at| at + 1) + 1;
    format!("{line}:{column}: parse error: {error}")
}

/// Seconds since 1970, or RFC 3339; in milliseconds.
fn time_ms(text: &str) -> Result<i64, String> {
    let wrong = || format!("cannot parse {text:?} to a valid timestamp");
    if let Ok(seconds) = text.parse::<f64>() {
        return whole_ms(seconds).ok_or_else(wrong);
    }
    let time: Timestamp = text.parse().map_err(|_| wrong())?;
    Ok(time.as_millisecond())
}

/// Seconds, or a duration such as `1h30m`; in milliseconds.
fn duration_ms(text: &str) -> Result<i64, String> {
    let wrong = || format!("cannot parse {text:?} to a valid duration");
    if let Ok(seconds) = text.parse::<f64>() {
        return whole_ms(seconds).ok_or_else(wrong);
    }
    let duration = duration(text).map_err(|_| wrong())?;
    i64::try_from(duration.as_millis()).map_err(|_| wrong())
}

/// Times and durations of a thousand years and more are mistakes.
fn whole_ms(seconds: f64) -> Option<i64> {
    const MOST_SECONDS: f64 = 1e12;
    let ms = (seconds * 1000.0).round();
    #[expect(clippy::cast_possible_truncation, reason = "within bounds")]
    let whole = ms as i64;
    (seconds.abs() <= MOST_SECONDS).then_some(whole)
}
