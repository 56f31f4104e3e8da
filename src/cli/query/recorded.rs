//! Evaluates a query from a recording, which is replayed.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::Context;
use jiff::{SignedDuration, Timestamp};
use promql_rules::store::LOOKBACK_MS;

use super::{QueryArguments, QueryResponse, QueryTimes, unusable};
use crate::cli::progress::Progress;
use crate::cli::storage::forbidden;
use crate::files::refuse_irregular;
use crate::recording::segment_files;
use crate::replayer::{Excerpt, replay};
use crate::samples::{
    History, INTERVAL, MAX_SAMPLES, QueryResult, SampleQuery, StoreFiller, TargetLabels, evaluate,
};

/// Beyond this range samples are as far apart as the daemon's.
const FINE: SignedDuration = SignedDuration::from_hours(1);

/// Memory of the replayed samples.
const MOST_BYTES: usize = 256 << 20;

/// Replays what the query needs.
///
/// # Errors
/// There is no recording there, the query cannot be used, or it passes a bound.
pub(super) fn replayed(path: &Path, arguments: &QueryArguments) -> anyhow::Result<QueryResponse> {
    let files = files(path)?;
    let times = QueryTimes::of(arguments, end_of(&files).unwrap_or_else(Timestamp::now))?;
    let query = times.query(&arguments.expr).map_err(|failure| unusable(&failure))?;
    let (history, mut warnings) = history(&files, &query, times)?;
    if let Some(oldest_ms) = history.oldest_ms()
        && oldest_ms > query.when.first_ms()
        && let Ok(oldest) = Timestamp::from_millisecond(oldest_ms)
        && times.since.is_some()
    {
        warnings.push(format!("the recording has samples from {oldest:.0} on"));
    }
    let start_ms = query.when.first_ms();
    let wanted: Vec<(Arc<str>, i64)> = query
        .expr
        .reads()
        .into_iter()
        .map(|(name, reach_ms)| (name, start_ms.saturating_sub(reach_ms.max(LOOKBACK_MS))))
        .collect();
    let no_labels = TargetLabels::default();
    let mut filler = StoreFiller::new(&wanted, query.when.last_ms(), &no_labels);
    history.fill(&mut filler).map_err(|_| {
        anyhow::anyhow!(
            "the query reads more than {MAX_SAMPLES} samples: shorten the range, or read fewer \
             metrics"
        )
    })?;
    let store = filler.into_store();
    let found = evaluate(&query.expr, &store, query.when, &AtomicBool::new(false))?;
    let data = QueryResult { found, warnings: Vec::new() }.data();
    Ok(QueryResponse { data: serde_json::from_str(&data.0)?, warnings, times })
}

/// The samples within reach of the query, and remarks.
fn history(
    files: &[PathBuf],
    query: &SampleQuery,
    times: QueryTimes,
) -> anyhow::Result<(History, Vec<String>)> {
    let reach_ms = query.expr.reads().iter().map(|(_, reach_ms)| *reach_ms).max().unwrap_or(0);
    let from_ms = query.when.first_ms().saturating_sub(reach_ms.max(LOOKBACK_MS));
    let from = Timestamp::from_millisecond(from_ms).context("the range begins too early")?;
    let is_fine = times.until.duration_since(from) <= FINE;
    let interval = if is_fine { Duration::from_secs(1) } else { INTERVAL };
    let mut history = History::new(interval, Duration::MAX, MOST_BYTES);
    let excerpt = Excerpt { from: Some(from), until: Some(times.until), interval };
    let seconds =
        |until: Timestamp| u64::try_from(until.duration_since(from).as_secs()).unwrap_or_default();
    let mut progress = Progress::things("query", "seconds", seconds(times.until));
    let mut replayed = 0;
    let remarks = replay(files, &excerpt, &mut |status| {
        let reached = seconds(status.at.utc).max(replayed);
        progress.advance(reached - replayed);
        replayed = reached;
        history.push(status.at.utc.as_millisecond(), &status.series, &status.values);
        true
    });
    drop(progress);
    anyhow::ensure!(
        history.newest_ms().is_some(),
        "the recording has nothing between {from:.0} and {:.0}{}",
        times.until,
        remarks.first().map(|remark| format!(": {remark}")).unwrap_or_default()
    );
    Ok((history, remarks))
}

/// The segments at a path, the oldest first.
fn files(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let name = path.display().to_string();
    let meta = fs::metadata(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::PermissionDenied => forbidden(path, &error),
        _ => anyhow::Error::new(error).context(format!("cannot read {name}")),
    })?;
    if !meta.is_dir() {
        refuse_irregular(path).with_context(|| format!("cannot read {name}"))?;
        return Ok(vec![path.to_owned()]);
    }
    if let Err(error) = fs::read_dir(path)
        && error.kind() == std::io::ErrorKind::PermissionDenied
    {
        return Err(forbidden(path, &error));
    }
    let mut files = segment_files(path);
    if files.is_empty() {
        files = segment_files(&path.join("recording"));
    }
    anyhow::ensure!(!files.is_empty(), "{name} has no recording (*.umarec)");
    Ok(files)
}

/// The time of the last step.
fn end_of(files: &[PathBuf]) -> Option<Timestamp> {
    files.iter().rev().find_map(|path| crate::replayer::last_step(path))
}
