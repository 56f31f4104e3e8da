//! Prints the result of a query.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::Context;
use jiff::Timestamp;
use serde_json::Value;

use super::{QueryTimes, plot};
use crate::cli::output;
use crate::cli::style::is_utf8;
use crate::model::{measured_bytes_text, printable};

/// Columns where no terminal limits them.
const COLUMNS: usize = 80;

/// The most columns of a plot.
const WIDEST: usize = 200;

/// The most series that are printed for people.
const MOST_SERIES: usize = 100;

/// The most samples of one series that are printed for people; the newest ones.
const MOST_SAMPLES: usize = 100;

/// Units for values that lie close to each other.
const UNITS: [(f64, &str); 2] = [(1_048_576.0, "MiB"), (1024.0, "KiB")];

/// What text is printed on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Canvas {
    pub(super) columns: usize,
    pub(super) is_utf8: bool,
}

impl Canvas {
    /// Standard output.
    pub(super) fn of_output() -> Self {
        let columns = output::width().unwrap_or(COLUMNS).clamp(20, WIDEST);
        Self { columns, is_utf8: is_utf8() }
    }
}

/// A result.
#[derive(Debug)]
pub(super) struct QueryView {
    series: Vec<ShownSeries>,
    is_range: bool,
    /// The result of a query that is a string, as the API has it, and the string.
    string: Option<(Value, String)>,
}

#[derive(Debug)]
struct ShownSeries {
    /// As the API has it.
    json: Value,
    /// As PromQL writes it; empty for a number.
    name: String,
    is_bytes: bool,
    /// Seconds since 1970, and values.
    points: Vec<(f64, f64)>,
}

impl QueryView {
    /// Reads the `data` of a response.
    ///
    /// # Errors
    /// It is no result of a query.
    pub(super) fn of(data: &Value) -> anyhow::Result<Self> {
        let unreadable = || "the response is no result of a query";
        let result = &data["result"];
        let kind = data["resultType"].as_str().with_context(unreadable)?;
        let mut string = None;
        let series = match kind {
            "string" => {
                let text = result.get(1).and_then(Value::as_str).with_context(unreadable)?;
                string = Some((serde_json::json!({ "value": result }), text.to_owned()));
                Vec::new()
            }
            "scalar" => {
                let json = serde_json::json!({ "value": result });
                vec![ShownSeries::of(json).with_context(unreadable)?]
            }
            _ => {
                let all = result.as_array().with_context(unreadable)?.iter();
                all.map(|one| ShownSeries::of(one.clone()).with_context(unreadable))
                    .collect::<Result<_, _>>()?
            }
        };
        Ok(Self { series, is_range: kind == "matrix", string })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.series.is_empty() && self.string.is_none()
    }

    /// One object a series.
    pub(super) fn json_lines(&self) -> impl Iterator<Item = &Value> {
        let string = self.string.iter().map(|(json, _)| json);
        self.series.iter().map(|series| &series.json).chain(string)
    }

    /// The text for people, without the last newline.
    pub(super) fn text(&self, canvas: Canvas, times: QueryTimes) -> String {
        if let Some((_, text)) = &self.string {
            return printable(text).into_owned();
        }
        let shown = self.series.get(..MOST_SERIES).unwrap_or(&self.series);
        let since = times.since.filter(|_| self.is_range);
        let begins = since.and_then(|since| begins_later(shown, since, times.step));
        let mut out = match (shown, begins.or(since)) {
            ([], _) => "nothing: no series has a value that the expression selects".to_owned(),
            ([only], Some(since)) => only.plot(canvas, since, times),
            (many, Some(since)) => lines(many, canvas, since, times),
            (many, None) if self.is_range => {
                many.iter().map(ShownSeries::samples).collect::<Vec<_>>().join("\n")
            }
            (many, None) => table(many),
        };
        if let Some(begins) = begins {
            // Writing to a string does not fail.
            let _ = write!(out, "\nthe values begin at {begins:.0}");
        }
        let left = self.series.len() - shown.len();
        if left > 0 {
            // Writing to a string does not fail.
            let _ = write!(out, "\nand {left} more series (--json has all)");
        }
        out
    }
}

/// The time of the first value, if it is more than a step after the requested one: most of a plot
/// would be empty.
fn begins_later(series: &[ShownSeries], since: Timestamp, step: Duration) -> Option<Timestamp> {
    let first =
        series.iter().filter_map(|one| Some(one.points.first()?.0)).min_by(f64::total_cmp)?;
    let is_later = first - seconds(since) > step.as_secs_f64();
    is_later.then(|| time(first)).flatten()
}

/// A line for each series, and its bounds. The same column is the same time in all of them.
fn lines(series: &[ShownSeries], canvas: Canvas, since: Timestamp, times: QueryTimes) -> String {
    let texts: Vec<String> = series.iter().map(ShownSeries::bounds_text).collect();
    let widest = texts.iter().map(|text| text.chars().count()).max().unwrap_or(0);
    let range = seconds(times.until) - seconds(since);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a number of steps, which saturates"
    )]
    let steps = (range / times.step.as_secs_f64()) as usize + 1;
    let columns = steps.min(canvas.columns.saturating_sub(widest + 4).max(10));
    let lines = series.iter().zip(texts).map(|(series, text)| {
        let values = series.columns(since, times, columns);
        let line = plot::line(&values, series.bounds(), canvas.is_utf8);
        format!("{}\n  {line}  {text}", printable(&series.name))
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn table(series: &[ShownSeries]) -> String {
    let values: Vec<String> = series.iter().map(|one| one.value_text(one.last())).collect();
    let width = values.iter().map(|text| text.chars().count()).max().unwrap_or(0);
    let lines = values.iter().zip(series).map(|(value, series)| {
        let line = format!("{value:>width$}  {}", printable(&series.name));
        line.trim_end().to_owned()
    });
    lines.collect::<Vec<_>>().join("\n")
}

impl ShownSeries {
    fn of(json: Value) -> Option<Self> {
        let metric = json["metric"].as_object();
        let label = |name: &str| metric.and_then(|metric| metric.get(name)?.as_str());
        let mut name = label("__name__").unwrap_or_default().to_owned();
        let is_bytes = name.ends_with("_bytes");
        let labels = metric.into_iter().flatten().filter(|(label, _)| *label != "__name__");
        let labels: Vec<String> = labels.map(|(name, value)| format!("{name}={value}")).collect();
        if !labels.is_empty() || metric.is_some() && name.is_empty() {
            let _ = write!(name, "{{{}}}", labels.join(","));
        }
        let points = match (json.get("value"), json.get("values")) {
            (Some(one), None) => vec![point(one)?],
            (None, Some(many)) => many.as_array()?.iter().map(point).collect::<Option<_>>()?,
            _ => return None,
        };
        Some(Self { json, name, is_bytes, points })
    }

    fn last(&self) -> f64 {
        self.points.last().map_or(f64::NAN, |(_, value)| *value)
    }

    fn value_text(&self, value: f64) -> String {
        match self.is_bytes && value.is_finite() {
            true => measured_bytes_text(value),
            false if value == f64::INFINITY => "+Inf".to_owned(),
            false if value == f64::NEG_INFINITY => "-Inf".to_owned(),
            false => value.to_string(),
        }
    }

    /// For a plot: without digits that nobody can see.
    fn short_text(&self, value: f64) -> String {
        match value.abs() {
            _ if self.is_bytes || !value.is_finite() => self.value_text(value),
            0.001..1e9 => {
                let digits = if value.abs() >= 1000.0 { 0 } else { 3 };
                let text = format!("{value:.digits$}");
                match text.contains('.') {
                    true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
                    false => text,
                }
            }
            0.0 => "0".to_owned(),
            _ => format!("{value:.3e}"),
        }
    }

    /// For the axis of a plot: in a unit in which the least and the greatest value differ.
    fn axis_texts(&self, values: [f64; 3]) -> [String; 3] {
        let (least, greatest) = self.bounds();
        let is_apart = self.short_text(least) != self.short_text(greatest);
        let unit = UNITS.iter().find(|(bytes, _)| (greatest - least) * 10.0 >= *bytes);
        values.map(|value| match unit.filter(|_| self.is_bytes && !is_apart) {
            Some((bytes, name)) if value.is_finite() => format!("{:.1} {name}", value / bytes),
            _ => self.short_text(value),
        })
    }

    /// Its name, and a line for each sample with its time.
    fn samples(&self) -> String {
        let earlier = self.points.len().saturating_sub(MOST_SAMPLES);
        let points = self.points.get(earlier..).unwrap_or(&self.points);
        let values: Vec<String> = points.iter().map(|(_, value)| self.value_text(*value)).collect();
        let width = values.iter().map(|text| text.chars().count()).max().unwrap_or(0);
        let mut out = printable(&self.name).into_owned();
        if earlier > 0 {
            // Writing to a string does not fail.
            let _ = write!(out, "\n  {earlier} earlier samples (--json has all)");
        }
        for ((at, _), value) in points.iter().zip(values) {
            let _ = write!(out, "\n  {value:>width$}  {}", time_text(*at));
        }
        out
    }

    fn bounds(&self) -> (f64, f64) {
        plot::bounds(self.points.iter().map(|(_, value)| *value)).unwrap_or((0.0, 0.0))
    }

    fn columns(&self, since: Timestamp, times: QueryTimes, count: usize) -> Vec<Option<f64>> {
        let (start, end) = (seconds(since), seconds(times.until));
        plot::columns(&self.points, (start, end), times.step.as_secs_f64(), count)
    }

    fn bounds_text(&self) -> String {
        let (least, greatest) = self.bounds();
        let [low, high, last] = self.axis_texts([least, greatest, self.last()]);
        format!("{low} to {high}, last {last}")
    }

    /// Its name, a plot with values at the left, and times below.
    fn plot(&self, canvas: Canvas, since: Timestamp, times: QueryTimes) -> String {
        let (least, greatest) = self.bounds();
        let middle = least / 2.0 + greatest / 2.0;
        let labels = self.axis_texts([greatest, middle, least]);
        let margin = labels.iter().map(|text| text.chars().count()).max().unwrap_or(0);
        let width = canvas.columns.saturating_sub(margin + 4).max(10);
        let dots = if canvas.is_utf8 { 2 } else { 1 };
        let values = self.columns(since, times, width * dots);
        let lines = plot::lines(&values, (least, greatest), canvas.is_utf8);
        let [top, center, bottom] = labels;
        let last = self.value_text(self.last());
        let mut out = format!("{}, last {last}", printable(&self.name));
        let edge = if canvas.is_utf8 { '│' } else { '|' };
        for (row, line) in lines.iter().enumerate() {
            let label = match row {
                0 => &top,
                row if row + 1 == lines.len() => &bottom,
                row if row == lines.len() / 2 && least < greatest => &center,
                _ => "",
            };
            let _ = write!(out, "\n{label:>margin$} {edge}{}", line.trim_end());
        }
        let [from, to] = [since, times.until].map(|at| format!("{at:.0}"));
        let gap = width.saturating_sub(from.len() + to.len());
        let _ = write!(out, "\n{:>margin$}  {from}{:>gap$}{to}", "", "");
        out
    }
}

/// With milliseconds. A time that no clock shows is printed as seconds.
fn time_text(seconds: f64) -> String {
    time(seconds).map_or_else(|| seconds.to_string(), |at| format!("{at:.3}"))
}

/// `None`: no clock shows it.
fn time(seconds: f64) -> Option<Timestamp> {
    #[expect(clippy::cast_possible_truncation, reason = "it saturates, which is no time")]
    let at = Timestamp::from_millisecond((seconds * 1000.0).round() as i64);
    at.ok()
}

fn seconds(at: Timestamp) -> f64 {
    at.as_millisecond() as f64 / 1000.0
}

/// `[1435781430.781,"1"]`.
fn point(json: &Value) -> Option<(f64, f64)> {
    let text = json.get(1)?.as_str()?;
    let value = match text {
        "+Inf" => f64::INFINITY,
        "-Inf" => f64::NEG_INFINITY,
        text => text.parse().ok()?,
    };
    Some((json.get(0)?.as_f64()?, value))
}
