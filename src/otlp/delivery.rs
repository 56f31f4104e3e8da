//! One message at a time to the collector, and what its answer means.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Bytes;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceResponse;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use prost::Message as _;
use tokio::sync::watch;
use tokio::time::sleep;

use super::tally::Tally;
use crate::clients::collector::{Answered, Collector, Unanswered};
use crate::model::{ExportResult, Moment, Signal, counted};

/// What is under way when the program ends has so long.
pub(super) const FLUSH_TAKES: Duration = Duration::from_millis(700);

/// After the first failure; it doubles.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// What it does not exceed, whatever the collector asks for.
const AGAIN_AT_MOST: Duration = Duration::from_secs(300);

/// One that stays away is told of again after that.
const TOLD_AGAIN_AFTER: Duration = Duration::from_secs(600);

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivered {
    /// It was taken.
    Taken,
    /// It is of no use to send it again; the next one may wait for that long.
    GivenUp(Duration),
    /// It may be sent again after that time.
    Again(Duration),
}

/// The way to the collector for one kind of messages.
pub(super) struct Delivery {
    pub(super) signal: Signal,
    pub(super) collector: Collector,
    pub(super) timeout: Duration,
    pub(super) tally: Arc<Tally>,
    pub(super) clock: fn() -> Moment,
    pub(super) ending: watch::Receiver<bool>,
    pub(super) standing: Standing,
}

/// Whether it works, as far as the log has told.
#[derive(Debug, Default)]
pub(super) struct Standing {
    failures: u32,
    told: Option<Duration>,
}

impl Delivery {
    /// Sends a message of so many spans or points.
    pub(super) async fn deliver(&mut self, message: Bytes, items: u64) -> Delivered {
        let mut ending = self.ending.clone();
        let answered = tokio::select! {
            answered = self.collector.send(path(self.signal), message, self.timeout) => answered,
            () = after_end(&mut ending) => Err(Unanswered::TimedOut(FLUSH_TAKES)),
        };
        let (result, rejected, why) = judge(self.signal, answered.as_ref());
        self.tally.exported(self.signal, result, (self.clock)().utc_ms());
        let asked = answered.ok().and_then(|answered| answered.retry_after);
        match result {
            ExportResult::Success | ExportResult::Partial => {
                self.tally.dropped(self.signal, rejected.min(items));
                self.works(why.as_deref());
                Delivered::Taken
            }
            ExportResult::Refused => {
                self.tally.dropped(self.signal, items);
                Delivered::GivenUp(self.fails(why.as_deref(), None))
            }
            ExportResult::Busy | ExportResult::Unreachable => {
                Delivered::Again(self.fails(why.as_deref(), asked))
            }
        }
    }

    fn works(&mut self, remark: Option<&str>) {
        let failures = std::mem::take(&mut self.standing.failures);
        // It may say each time that it took not all.
        let is_told = match remark {
            Some(_) => self.is_to_be_told(),
            None => failures > 0 && self.standing.told.take().is_some(),
        };
        let (signal, collector) = (self.signal.name(), self.collector.endpoint());
        match remark {
            _ if !is_told => {}
            Some(remark) => {
                tracing::warn!(signal, collector, "the collector took not all: {remark}");
            }
            None => {
                tracing::info!(signal, collector, failures, "the collector takes telemetry again");
            }
        }
    }

    /// Returns when it is tried again.
    fn fails(&mut self, why: Option<&str>, asked: Option<Duration>) -> Duration {
        self.standing.failures = self.standing.failures.saturating_add(1);
        let pause = pause(self.standing.failures, asked);
        if self.is_to_be_told() {
            let (signal, collector) = (self.signal.name(), self.collector.endpoint());
            let failures = counted(u64::from(self.standing.failures), "time");
            let why = why.unwrap_or_default();
            tracing::warn!(
                signal,
                collector,
                "the collector has not taken telemetry, {failures} in a row: {why}. Nothing else \
                 waits for it; what is too much is dropped and counted (uma_otlp_dropped_total)"
            );
        }
        pause
    }

    fn is_to_be_told(&mut self) -> bool {
        let now = (self.clock)().uptime;
        let lately =
            self.standing.told.is_some_and(|told| now.saturating_sub(told) < TOLD_AGAIN_AFTER);
        if !lately {
            self.standing.told = Some(now);
        }
        !lately
    }
}

/// Where it is taken, below the endpoint.
fn path(signal: Signal) -> &'static str {
    match signal {
        Signal::Metrics => "/v1/metrics",
        Signal::Traces => "/v1/traces",
    }
}

/// Returns when the program ends.
pub(super) async fn until_end(ending: &mut watch::Receiver<bool>) {
    // Nobody is left to say so: it has ended.
    let _gone = ending.wait_for(|ending| *ending).await;
}

async fn after_end(ending: &mut watch::Receiver<bool>) {
    until_end(ending).await;
    sleep(FLUSH_TAKES).await;
}

/// Longer after each failure, at least as long as the collector asks, and not in step with others
/// that failed at the same moment.
fn pause(failures: u32, asked: Option<Duration>) -> Duration {
    let doubled = AGAIN_AFTER.saturating_mul(1 << failures.saturating_sub(1).min(16));
    let pause = spread(doubled.min(AGAIN_AT_MOST));
    pause.max(asked.unwrap_or_default().min(AGAIN_AT_MOST))
}

/// Between half and all of that.
pub(super) fn spread(time: Duration) -> Duration {
    let dice = u32::from(RandomState::new().hash_one(0_u8).to_le_bytes()[0]);
    time / 2 + time / 2 * dice / 255
}

/// What an answer means, how many items were not taken, and what people are told.
fn judge(
    signal: Signal,
    answered: Result<&Answered, &Unanswered>,
) -> (ExportResult, u64, Option<String>) {
    let answered = match answered {
        Ok(answered) => answered,
        Err(error) => return (ExportResult::Unreachable, 0, Some(error.to_string())),
    };
    let (status, text) = (answered.status, answered.beginning());
    let told = |hint: &str| Some(format!("it answers {status}: {text}{hint}"));
    match status {
        200..=299 if answered.is_page => {
            let hint = "; that is a page for people: something else is at otlp.endpoint";
            (ExportResult::Refused, 0, told(hint))
        }
        200..=299 => match rejected(signal, &answered.body) {
            Some((0, text)) if text.is_empty() => (ExportResult::Success, 0, None),
            Some((count, text)) => {
                let text: String = text.chars().filter(|c| !c.is_control()).take(160).collect();
                (ExportResult::Partial, count, Some(format!("{count} rejected: {text}")))
            }
            // Whatever it says, it says that it has taken it.
            None => (ExportResult::Success, 0, None),
        },
        429 | 502 | 503 | 504 => (ExportResult::Busy, 0, told("")),
        300..=399 => {
            let hint = "; nobody is led elsewhere: write the right address as otlp.endpoint";
            (ExportResult::Refused, 0, told(hint))
        }
        401 | 403 => {
            let hint = "; it wants credentials, or others: see otlp.headers_file";
            (ExportResult::Refused, 0, told(hint))
        }
        404 => {
            let hint = match signal {
                Signal::Metrics => "; it takes no metrics at this endpoint: see otlp.endpoint",
                Signal::Traces => {
                    "; it takes no traces at this endpoint: see otlp.endpoint, or write \
                     otlp: {signals: [metrics]}"
                }
            };
            (ExportResult::Refused, 0, told(hint))
        }
        _ => (ExportResult::Refused, 0, told("")),
    }
}

/// How many items it says that it did not take, and why; `None` where that is not what it says.
fn rejected(signal: Signal, body: &[u8]) -> Option<(u64, String)> {
    let (count, text) = match signal {
        Signal::Metrics => {
            let partial = ExportMetricsServiceResponse::decode(body).ok()?.partial_success;
            partial.map(|told| (told.rejected_data_points, told.error_message))
        }
        Signal::Traces => {
            let partial = ExportTraceServiceResponse::decode(body).ok()?.partial_success;
            partial.map(|told| (told.rejected_spans, told.error_message))
        }
    }
    .unwrap_or_default();
    Some((u64::try_from(count).unwrap_or(0), text))
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::collector::trace::v1::ExportTracePartialSuccess;

    use super::*;

    fn of(status: u16, body: &[u8]) -> (ExportResult, u64) {
        let (body, is_page) = (body.to_vec(), body.starts_with(b"<"));
        let answered = Answered { status, body, is_page, retry_after: None };
        let (result, rejected, _) = judge(Signal::Traces, Ok(&answered));
        (result, rejected)
    }

    #[test]
    fn only_what_may_pass_is_tried_again() {
        assert_eq!(of(200, b""), (ExportResult::Success, 0));
        assert_eq!(of(200, b"ok"), (ExportResult::Success, 0), "it has taken it");
        assert_eq!(of(200, b"<html>"), (ExportResult::Refused, 0), "a portal has not");
        let partial = ExportTracePartialSuccess { rejected_spans: 3, ..Default::default() };
        let partial = ExportTraceServiceResponse { partial_success: Some(partial) };
        assert_eq!(of(200, &partial.encode_to_vec()), (ExportResult::Partial, 3));
        for busy in [429, 502, 503, 504] {
            assert_eq!(of(busy, b"").0, ExportResult::Busy);
        }
        for refused in [301, 400, 401, 403, 404, 413, 500, 999] {
            assert_eq!(of(refused, b"x").0, ExportResult::Refused);
        }
        let gone = Unanswered::Failed("x".to_owned());
        assert_eq!(judge(Signal::Metrics, Err(&gone)).0, ExportResult::Unreachable);
    }

    #[test]
    fn pauses_grow_up_to_a_bound_and_heed_the_collector_within_it() {
        for (failures, most) in [(1, 1), (2, 2), (5, 16), (9, 256), (10, 300), (u32::MAX, 300)] {
            let most = Duration::from_secs(most);
            let pause = pause(failures, None);
            assert!(pause <= most && pause >= most / 2, "{failures}: {pause:?}");
        }
        assert_eq!(pause(1, Some(Duration::from_secs(90))), Duration::from_secs(90));
        assert_eq!(pause(1, Some(Duration::MAX)), AGAIN_AT_MOST);
        let seen: std::collections::BTreeSet<_> = (0..64).map(|_| pause(9, None)).collect();
        assert!(seen.len() > 1, "not all at the same moment");
    }
}
