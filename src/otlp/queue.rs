//! Traces that wait to be sent. The oldest are dropped for new ones.

use std::collections::VecDeque;

use opentelemetry::trace::Status;
use opentelemetry_sdk::trace::SpanData;

use crate::traces::Trace;

/// The memory of waiting traces, estimated.
pub(super) const MOST_BYTES: usize = 2 << 20;

/// The size of one request, estimated.
const BATCH_BYTES: usize = 256 << 10;

#[derive(Debug, Default)]
pub(super) struct TraceQueue {
    waiting: VecDeque<(Trace, usize)>,
    bytes: usize,
    spans: usize,
}

impl TraceQueue {
    /// Adds a trace. Returns the number of dropped spans.
    pub(super) fn push(&mut self, trace: Trace) -> usize {
        let bytes = trace.iter().map(weight).sum();
        self.bytes += bytes;
        self.spans += trace.len();
        self.waiting.push_back((trace, bytes));
        let mut dropped = 0;
        while self.bytes > MOST_BYTES {
            dropped += self.take().map_or(0, |trace| trace.len());
        }
        dropped
    }

    /// Takes the oldest traces, as many as fit into one request.
    pub(super) fn batch(&mut self) -> Vec<SpanData> {
        let mut batch = Vec::new();
        let mut bytes = 0;
        while let Some((_, next)) = self.waiting.front() {
            if bytes > 0 && bytes + next > BATCH_BYTES {
                break;
            }
            bytes += next;
            batch.extend(self.take().unwrap_or_default());
        }
        batch
    }

    /// Waiting spans.
    pub(super) fn spans(&self) -> usize {
        self.spans
    }

    fn take(&mut self) -> Option<Trace> {
        let (trace, bytes) = self.waiting.pop_front()?;
        self.bytes -= bytes;
        self.spans -= trace.len();
        Some(trace)
    }
}

/// The memory of a span, estimated.
fn weight(span: &SpanData) -> usize {
    let of_attribute = |pair: &opentelemetry::KeyValue| {
        size_of::<opentelemetry::KeyValue>() + pair.key.as_str().len() + pair.value.as_str().len()
    };
    let attributes: usize = span.attributes.iter().map(of_attribute).sum();
    let description = match &span.status {
        Status::Error { description } => description.len(),
        Status::Unset | Status::Ok => 0,
    };
    size_of::<SpanData>()
        + span.name.len()
        + attributes
        + description
        + 128 * span.links.links.len()
}
