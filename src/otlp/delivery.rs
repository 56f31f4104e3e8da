//! Sends one message at a time to the collector, and classifies its responses.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Bytes;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceResponse;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use prost::Message as _;
use tokio::sync::watch;
use tokio::time::sleep;

use super::tally::OtlpTally;
use crate::clients::collector::{Collector, CollectorResponse};
use crate::clients::http::HttpError;
use crate::model::{ExportResult, Moment, Signal};

/// The time for a pending request when the program ends.
pub(super) const FLUSH_TAKES: Duration = Duration::from_millis(700);

/// The pause after the first failure. It doubles.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The longest pause, whatever the collector requests.
const MAX_RETRY_PAUSE: Duration = Duration::from_secs(300);

/// A failing collector is logged again after this time.
const LOG_AGAIN_AFTER: Duration = Duration::from_secs(600);

/// The result of sending a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivered {
    /// The collector accepted it.
    Accepted,
    /// Sending it again is useless. The next message waits for this time.
    Dropped(Duration),
    /// It may be sent again after this time.
    RetryIn(Duration),
}

/// Sends one signal to the collector.
pub(super) struct Delivery {
    pub(super) signal: Signal,
    pub(super) collector: Collector,
    pub(super) timeout: Duration,
    pub(super) tally: Arc<OtlpTally>,
    pub(super) clock: fn() -> Moment,
    pub(super) ending: watch::Receiver<bool>,
    pub(super) log: DeliveryLog,
}

/// Consecutive failures, and when the log last reported one.
#[derive(Debug, Default)]
pub(super) struct DeliveryLog {
    failures: u32,
    last: Option<Duration>,
}

impl Delivery {
    /// Sends a message with this number of spans or points.
    pub(super) async fn deliver(&mut self, message: Bytes, items: u64) -> Delivered {
        let mut ending = self.ending.clone();
        let response = tokio::select! {
            response = self.collector.send(path(self.signal), message, self.timeout) => response,
            () = after_end(&mut ending) => Err(HttpError::TimedOut(FLUSH_TAKES)),
        };
        let (result, rejected, why) = classify(self.signal, response.as_ref());
        self.tally.exported(self.signal, result, (self.clock)().utc_ms());
        let requested = response.ok().and_then(|response| response.retry_after);
        match result {
            ExportResult::Success | ExportResult::Partial => {
                self.tally.dropped(self.signal, rejected.min(items));
                self.works(why.as_deref());
                Delivered::Accepted
            }
            ExportResult::Refused => {
                self.tally.dropped(self.signal, items);
                Delivered::Dropped(self.fails(why.as_deref(), None))
            }
            ExportResult::Busy | ExportResult::Unreachable => {
                Delivered::RetryIn(self.fails(why.as_deref(), requested))
            }
        }
    }

    fn works(&mut self, remark: Option<&str>) {
        let failures = std::mem::take(&mut self.log.failures);
        // A collector may reject a part of each message.
        let is_logged = match remark {
            Some(_) => self.may_log(),
            None => failures > 0 && self.log.last.take().is_some(),
        };
        let (signal, collector) = (self.signal.name(), self.collector.endpoint());
        match remark {
            _ if !is_logged => {}
            Some(remark) => {
                tracing::warn!(signal, collector, remark, "otlp partial success");
            }
            None => {
                tracing::info!(signal, collector, failures, "otlp delivery works again");
            }
        }
    }

    /// Returns the pause until the next attempt.
    fn fails(&mut self, why: Option<&str>, requested: Option<Duration>) -> Duration {
        self.log.failures = self.log.failures.saturating_add(1);
        let pause = pause(self.log.failures, requested);
        if self.may_log() {
            let (signal, collector) = (self.signal.name(), self.collector.endpoint());
            tracing::warn!(
                signal,
                collector,
                failures = self.log.failures,
                why = why.unwrap_or_default(),
                effect = "excess telemetry is dropped and counted (uma_otlp_dropped_total)",
                "otlp delivery failed"
            );
        }
        pause
    }

    fn may_log(&mut self) -> bool {
        let now = (self.clock)().uptime;
        let lately = self.log.last.is_some_and(|last| now.saturating_sub(last) < LOG_AGAIN_AFTER);
        if !lately {
            self.log.last = Some(now);
        }
        !lately
    }
}

/// The path below the endpoint.
fn path(signal: Signal) -> &'static str {
    match signal {
        Signal::Metrics => "/v1/metrics",
        Signal::Traces => "/v1/traces",
    }
}

/// Returns when the program ends.
pub(super) async fn until_end(ending: &mut watch::Receiver<bool>) {
    // A closed channel is the end too.
    let _ = ending.wait_for(|ending| *ending).await;
}

async fn after_end(ending: &mut watch::Receiver<bool>) {
    until_end(ending).await;
    sleep(FLUSH_TAKES).await;
}

/// Grows with each failure, lasts at least as long as the collector requests, and is random, so
/// that nodes do not retry together.
fn pause(failures: u32, requested: Option<Duration>) -> Duration {
    let doubled = RETRY_AFTER.saturating_mul(1 << failures.saturating_sub(1).min(16));
    let pause = spread(doubled.min(MAX_RETRY_PAUSE));
    pause.max(requested.unwrap_or_default().min(MAX_RETRY_PAUSE))
}

/// A random time between half of it and all of it.
pub(super) fn spread(time: Duration) -> Duration {
    let dice = u32::from(RandomState::new().hash_one(0_u8).to_le_bytes()[0]);
    time / 2 + time / 2 * dice / 255
}

/// The result, the number of rejected items, and a reason for the log.
fn classify(
    signal: Signal,
    response: Result<&CollectorResponse, &HttpError>,
) -> (ExportResult, u64, Option<String>) {
    let response = match response {
        Ok(response) => response,
        Err(error) => return (ExportResult::Unreachable, 0, Some(error.to_string())),
    };
    let (status, text) = (response.answer.status, response.answer.beginning());
    let reason = |hint: &str| Some(format!("the collector responded {status}: {text}{hint}"));
    match status {
        200..=299 if response.is_page => {
            let hint = "; the body is an HTML page: check otlp.endpoint";
            (ExportResult::Refused, 0, reason(hint))
        }
        200..=299 => match rejected(signal, &response.answer.body) {
            Some((0, text)) if text.is_empty() => (ExportResult::Success, 0, None),
            Some((count, text)) => {
                let text: String = text.chars().filter(|c| !c.is_control()).take(160).collect();
                (ExportResult::Partial, count, Some(format!("{count} rejected: {text}")))
            }
            // A status 2xx with another body is a success.
            None => (ExportResult::Success, 0, None),
        },
        429 | 502 | 503 | 504 => (ExportResult::Busy, 0, reason("")),
        300..=399 => {
            let hint = "; redirects are not followed: write the final address as otlp.endpoint";
            (ExportResult::Refused, 0, reason(hint))
        }
        401 | 403 => {
            let hint = "; check the credentials in otlp.headers_file";
            (ExportResult::Refused, 0, reason(hint))
        }
        404 => {
            let hint = match signal {
                Signal::Metrics => "; no metrics are accepted at this path: check otlp.endpoint",
                Signal::Traces => {
                    "; no traces are accepted at this path: check otlp.endpoint, or write \
                     otlp: {signals: [metrics]}"
                }
            };
            (ExportResult::Refused, 0, reason(hint))
        }
        _ => (ExportResult::Refused, 0, reason("")),
    }
}

/// The number of rejected items and the reason. `None` if the body is no OTLP response.
fn rejected(signal: Signal, body: &[u8]) -> Option<(u64, String)> {
    let (count, text) = match signal {
        Signal::Metrics => {
            let partial = ExportMetricsServiceResponse::decode(body).ok()?.partial_success;
            partial.map(|partial| (partial.rejected_data_points, partial.error_message))
        }
        Signal::Traces => {
            let partial = ExportTraceServiceResponse::decode(body).ok()?.partial_success;
            partial.map(|partial| (partial.rejected_spans, partial.error_message))
        }
    }
    .unwrap_or_default();
    Some((u64::try_from(count).unwrap_or(0), text))
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::collector::trace::v1::ExportTracePartialSuccess;

    use super::*;
    use crate::clients::http::HttpResponse;

    fn of(status: u16, body: &[u8]) -> (ExportResult, u64) {
        let (body, is_page) = (body.to_vec(), body.starts_with(b"<"));
        let answer = HttpResponse { status, body, is_cut: false };
        let response = CollectorResponse { answer, is_page, retry_after: None };
        let (result, rejected, _) = classify(Signal::Traces, Ok(&response));
        (result, rejected)
    }

    #[test]
    fn only_transient_errors_are_retried() {
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
        let gone = HttpError::Broken("x".to_owned());
        assert_eq!(classify(Signal::Metrics, Err(&gone)).0, ExportResult::Unreachable);
    }

    #[test]
    fn retry_delays_grow_up_to_a_bound_and_follow_retry_after_within_it() {
        for (failures, most) in [(1, 1), (2, 2), (5, 16), (9, 256), (10, 300), (u32::MAX, 300)] {
            let most = Duration::from_secs(most);
            let pause = pause(failures, None);
            assert!(pause <= most && pause >= most / 2, "{failures}: {pause:?}");
        }
        assert_eq!(pause(1, Some(Duration::from_secs(90))), Duration::from_secs(90));
        assert_eq!(pause(1, Some(Duration::MAX)), MAX_RETRY_PAUSE);
        let seen: std::collections::BTreeSet<_> = (0..64).map(|_| pause(9, None)).collect();
        assert!(seen.len() > 1, "not all at the same moment");
    }
}
