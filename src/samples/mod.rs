//! Queries in PromQL over the samples of this node, in the forms of Prometheus' HTTP API.
//!
//! [`LiveSamples`] has a frame of all series every few seconds, packed in bounded memory. A thread
//! of its own fills it from the published status, so that no query concerns the loop. A query
//! copies the series that it reads into a store of promql-rules, and evaluates it there.

mod catalogue;
mod evaluate;
mod history;
mod live;
mod parameters;
mod result;
#[cfg(test)]
mod tests;

pub use catalogue::{CatalogueListing, Listings, metadata};
pub use evaluate::{EvaluationResult, QueryFailure, QueryTime, ResultSeries, evaluate};
pub use history::{History, StoreFiller, TargetLabels, TooManySamples};
pub use live::{LiveSamples, PastState};
pub use parameters::{ListRequest, Parameters, SampleQuery};
pub use result::{Data, QueryResult};

use std::time::Duration;

/// The time between two frames of [`LiveSamples`].
pub const INTERVAL: Duration = Duration::from_secs(5);

/// How far back [`LiveSamples`] reaches.
pub const KEPT: Duration = Duration::from_secs(6 * 3600);

/// The most memory that the frames of [`LiveSamples`] take, in bytes.
pub const KEPT_BYTES: usize = 4 << 20;

/// The most steps of one query over a range, as in Prometheus.
pub const MAX_STEPS: i64 = 11_000;

/// The most samples that one query reads; 16 bytes each.
pub const MAX_SAMPLES: usize = 1 << 20;

/// The most points in one result; about 28 bytes each.
pub const MAX_POINTS: usize = 1 << 17;
