//! `umawarden query`.

mod plot;
mod recorded;
mod show;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use jiff::Timestamp;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use self::show::{Canvas, QueryView};
use super::Exit;
use super::control::DaemonArguments;
use crate::cli::output::{errln, outln};
use crate::model::{duration, duration_text, instant};
use crate::samples::{INTERVAL, Parameters, QueryFailure, SampleQuery};

/// Steps of a range without `--step`: as many as a plot has columns.
const STEPS: u32 = 60;

/// Arguments of `umawarden query`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct QueryArguments {
    /// The expression, in PromQL as rules have it.
    #[arg(value_name = "EXPR")]
    expr: String,

    /// Its values from then on: 1h or -1h (before now, or before the recording's end),
    /// 2026-11-21T10:00 (UTC), RFC 3339, 10:00 (the last time it was that, UTC), or seconds since
    /// 1970. Without it, its value at one time.
    #[arg(long, value_name = "TIME", value_parser = past, allow_hyphen_values = true)]
    since: Option<String>,

    /// Its values up to then, or its value at that time [default: now, or the recording's end].
    #[arg(long, value_name = "TIME", value_parser = past, allow_hyphen_values = true)]
    until: Option<String>,

    /// The time between two values [default: a sixtieth of the range, 5s at least]; only with
    /// --since.
    #[arg(long, value_name = "DURATION", value_parser = step, requires = "since")]
    step: Option<Duration>,

    /// Read this recording, without a daemon: an incident file, a segment, a folder of
    /// segments, or the daemon's storage folder.
    #[arg(long, value_name = "PATH")]
    recording: Option<PathBuf>,

    #[command(flatten)]
    daemon: DaemonArguments,
}

const AFTER_HELP: &str = "\
The daemon keeps a sample of every series each 5 s for the last 6 hours; those from before its \
start come from the flight recorder. --recording replays a recording without a daemon, as far back \
as it reaches, with a sample a second (each 5 s if the range is longer than an hour).

Series have the labels that rules see: no instance, no job. A reading that failed, or that this \
machine does not have, is absent. `umawarden rules check --now` says which rules hold.

One value is printed as a table. Values over time are printed as one line a series, the least at \
the bottom of the line and the greatest at its top; one series alone is plotted. Characters are \
plain ASCII where the locale is not UTF-8. A range alone, such as uma_memory_free_bytes[1m], is \
printed as its samples with their times. --json prints a series a line, as Prometheus' API has it.

Exit codes: 0 shown; 1 the expression yields nothing; 2 it cannot be used, or no daemon responds.

Examples:
  umawarden query 'uma_pool_available_bytes'
  umawarden query 'uma_memory_free_bytes' --since 1h
  umawarden query 'rate(uma_memory_major_page_faults_total[1m])' --since 30m
  umawarden query 'uma_engine_memory_bytes' --since 10:00 --until 10:30
  umawarden query uma_memory_free_bytes --since 1d --recording INCIDENT";

/// Checked here, and read later: of a recording, times count back from its end.
fn past(text: &str) -> Result<String, String> {
    instant(text, Timestamp::now()).map(|_| text.to_owned())
}

fn step(text: &str) -> Result<Duration, String> {
    let step = duration(text)?;
    if step.is_zero() { Err("a step is longer than 0".to_owned()) } else { Ok(step) }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct QueryTimes {
    /// `None`: one instant alone.
    since: Option<Timestamp>,
    until: Timestamp,
    /// Whether `until` is not given: the daemon knows better when its last sample was.
    is_now: bool,
    step: Duration,
}

impl QueryTimes {
    /// Relative times count back from `end`.
    ///
    /// # Errors
    /// The range is empty.
    fn of(arguments: &QueryArguments, end: Timestamp) -> anyhow::Result<Self> {
        let read = |text: &Option<String>| {
            let read = text.as_ref().map(|text| instant(text, end));
            read.transpose().map_err(anyhow::Error::msg)
        };
        let since = read(&arguments.since)?;
        let given = read(&arguments.until)?;
        let (is_now, until) = (given.is_none(), given.unwrap_or(end));
        let range = since.map(|since| until.duration_since(since));
        if let (Some(range), Some(since)) = (range, since) {
            anyhow::ensure!(
                range.is_positive(),
                "--since {since:.0} is not before {until:.0}, where the values end"
            );
        }
        let range = range.and_then(|range| Duration::try_from(range).ok()).unwrap_or_default();
        let usual = Duration::from_secs((range / STEPS).as_secs()).max(INTERVAL);
        Ok(Self { since, until, is_now, step: arguments.step.unwrap_or(usual) })
    }

    /// The parameters of the query, as the API has them.
    fn parameters(self, expr: &str) -> Vec<(String, String)> {
        let pair = |name: &str, text: String| (name.to_owned(), text);
        let mut pairs =
            vec![pair("query", expr.to_owned()), pair("target_labels", "false".to_owned())];
        match self.since {
            None if self.is_now => {}
            None => pairs.push(pair("time", self.until.to_string())),
            Some(since) => pairs.extend([
                pair("start", since.to_string()),
                pair("end", self.until.to_string()),
                pair("step", duration_text(self.step)),
            ]),
        }
        pairs
    }

    fn query(self, expr: &str) -> Result<SampleQuery, QueryFailure> {
        let parameters = Parameters::new(self.parameters(expr));
        match self.since {
            None => SampleQuery::at_instant(&parameters, self.until.as_millisecond()),
            Some(_) => SampleQuery::over_range(&parameters),
        }
    }
}

/// The result, as the API has it.
struct QueryResponse {
    data: Value,
    warnings: Vec<String>,
    times: QueryTimes,
}

/// Runs the command.
///
/// # Errors
/// The expression, the recording or the daemon's response cannot be used.
pub fn execute(arguments: &QueryArguments) -> anyhow::Result<Exit> {
    let reply = match &arguments.recording {
        Some(path) => recorded::replayed(path, arguments)?,
        None => from_daemon(arguments)?,
    };
    for warning in &reply.warnings {
        errln!("umawarden: {warning}");
    }
    let shown = QueryView::of(&reply.data)?;
    if arguments.daemon.json {
        shown.json_lines().for_each(|line| outln!("{line}"));
    } else {
        outln!("{}", shown.text(Canvas::of_output(), reply.times));
    }
    Ok(if shown.is_empty() { Exit::Findings } else { Exit::Fine })
}

fn from_daemon(arguments: &QueryArguments) -> anyhow::Result<QueryResponse> {
    let times = QueryTimes::of(arguments, Timestamp::now())?;
    // A mistake is reported without a daemon, too.
    times.query(&arguments.expr).map_err(|failure| unusable(&failure))?;
    let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let pairs = times.parameters(&arguments.expr).into_iter();
    let pairs: Vec<String> =
        pairs.map(|(name, text)| format!("{name}={}", encoded(&text))).collect();
    let path = if times.since.is_some() { "query_range" } else { "query" };
    let form = pairs.join("&");
    let reply = arguments.daemon.client()?.post_form(&format!("/api/v1/{path}"), &form);
    let reply = reply.map_err(|error| {
        let hint = "--recording FOLDER reads its flight recorder without it";
        anyhow::Error::new(error).context(format!("no daemon responds ({hint})"))
    })?;
    anyhow::ensure!(reply.status == 200, "{}", reply.problem);
    Ok(QueryResponse { data: reply.data, warnings: reply.warnings, times })
}

fn unusable(failure: &QueryFailure) -> anyhow::Error {
    let text = failure.to_string();
    let text = text.strip_prefix("invalid parameter \"query\": ").unwrap_or(&text);
    anyhow::anyhow!("the query cannot be used: {text}")
}
