//! The thread: it joins journal entries to traces, and sends traces and metrics independently.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Bytes;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use opentelemetry_proto::transform::trace::tonic::group_spans_by_resource_and_scope;
use prost::Message as _;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::timeout;

use super::OtlpSetup;
use super::delivery::{Delivered, Delivery, DeliveryLog, FLUSH_TAKES, spread, until_end};
use super::metrics::Exporter;
use super::queue::TraceQueue;
use super::resource::resource;
use super::tally::OtlpTally;
use crate::clients::collector::Collector;
use crate::model::Signal;
use crate::traces::{Trace, TraceInput, Tracer};

/// How often finished traces are collected.
const COLLECT_EVERY: Duration = Duration::from_secs(1);

/// The first metrics are sent within this time after the start.
const FIRST_WITHIN: Duration = Duration::from_secs(2);

/// A message that the collector rejects this often is dropped.
const MOST_ATTEMPTS: u32 = 20;

struct OtlpShared {
    queue: RefCell<TraceQueue>,
    news: Notify,
    /// No trace is added any more.
    is_complete: Cell<bool>,
    tally: Arc<OtlpTally>,
}

impl OtlpShared {
    fn push(&self, traces: Vec<Trace>) {
        if traces.is_empty() {
            return;
        }
        let mut queue = self.queue.borrow_mut();
        let dropped: usize = traces.into_iter().map(|trace| queue.push(trace)).sum();
        self.tally.dropped(Signal::Traces, dropped as u64);
        self.tally.waiting(queue.spans());
        self.news.notify_one();
    }

    /// The next request, and the number of its spans.
    fn next(&self, resource: &ResourceAttributesWithSchema) -> Option<(Bytes, u64)> {
        let spans = self.queue.borrow_mut().batch();
        self.tally.waiting(self.queue.borrow().spans());
        let count = spans.len() as u64;
        let resource_spans = group_spans_by_resource_and_scope(spans, resource);
        let request = ExportTraceServiceRequest { resource_spans };
        (count > 0).then(|| (request.encode_to_vec().into(), count))
    }
}

/// Runs until the program ends.
pub(super) async fn run(
    setup: OtlpSetup,
    inputs: mpsc::Receiver<TraceInput>,
    ending: watch::Receiver<bool>,
    tally: Arc<OtlpTally>,
) {
    let shared = OtlpShared {
        queue: RefCell::default(),
        news: Notify::new(),
        is_complete: Cell::new(false),
        tally: Arc::clone(&tally),
    };
    let delivery = |signal| Delivery {
        signal,
        collector: Collector::new(setup.collector.clone()),
        timeout: setup.timeout,
        tally: Arc::clone(&tally),
        clock: setup.clock,
        ending: ending.clone(),
        log: DeliveryLog::default(),
    };
    let wants = |signal| setup.signals.contains(&signal);
    let metrics = async {
        if wants(Signal::Metrics) {
            send_metrics(&setup, delivery(Signal::Metrics)).await;
        }
    };
    let traces = async {
        if wants(Signal::Traces) {
            send_traces(&setup, &shared, delivery(Signal::Traces)).await;
        }
    };
    tokio::join!(collect(&setup, &shared, inputs, ending.clone()), metrics, traces);
}

/// Whether the program ends within this time.
async fn ends_within(time: Duration, ending: &mut watch::Receiver<bool>) -> bool {
    timeout(time, until_end(ending)).await.is_ok()
}

async fn collect(
    setup: &OtlpSetup,
    shared: &OtlpShared,
    mut inputs: mpsc::Receiver<TraceInput>,
    mut ending: watch::Receiver<bool>,
) {
    let mut tracer = Tracer::new(Arc::clone(&setup.boot_id));
    let mut ticks = tokio::time::interval(COLLECT_EVERY);
    loop {
        tokio::select! {
            input = inputs.recv() => match input {
                Some(input) => tracer.take(input),
                None => break,
            },
            _ = ticks.tick() => shared.push(tracer.ended((setup.clock)())),
            () = until_end(&mut ending) => break,
        }
    }
    // Entries right before the end belong to it.
    while let Ok(input) = inputs.try_recv() {
        tracer.take(input);
    }
    shared.push(tracer.end());
    shared.is_complete.set(true);
    shared.news.notify_one();
}

async fn send_metrics(setup: &OtlpSetup, mut delivery: Delivery) {
    let mut exporter = Exporter::new(resource(&setup.node, &setup.resource));
    let mut ending = delivery.ending.clone();
    let mut pause = spread(setup.interval.min(FIRST_WITHIN));
    loop {
        let ends = ends_within(pause, &mut ending).await;
        let (message, points) = {
            // Dropped before any wait: the loop writes the next snapshot into it.
            let status = setup.status.load_full();
            let (request, points) = exporter.batch(&status);
            (Bytes::from(request.encode_to_vec()), points)
        };
        let delivered = delivery.deliver(message, points).await;
        if ends || *ending.borrow() {
            return;
        }
        pause = match delivered {
            Delivered::Accepted => setup.interval,
            Delivered::Dropped(pause) => setup.interval.max(pause),
            Delivered::RetryIn(pause) => {
                // The next snapshot has the same series.
                delivery.tally.dropped(Signal::Metrics, points);
                setup.interval.max(pause)
            }
        };
    }
}

async fn send_traces(setup: &OtlpSetup, shared: &OtlpShared, mut delivery: Delivery) {
    let resource = resource(&setup.node, &setup.resource);
    while !shared.is_complete.get() {
        shared.news.notified().await;
        while !shared.is_complete.get()
            && let Some((message, spans)) = shared.next(&resource)
        {
            send_one(shared, &mut delivery, message, spans).await;
        }
    }
    let flush = async {
        while let Some((message, spans)) = shared.next(&resource) {
            if delivery.deliver(message, spans).await != Delivered::Accepted {
                break;
            }
        }
    };
    // The end of the program waits no longer than this.
    let _ = timeout(FLUSH_TAKES, flush).await;
}

/// Sends until the message is accepted or given up. At the end of the program it is tried once.
async fn send_one(shared: &OtlpShared, delivery: &mut Delivery, message: Bytes, spans: u64) {
    let mut ending = delivery.ending.clone();
    for _ in 0..MOST_ATTEMPTS {
        let is_last = *ending.borrow();
        match delivery.deliver(message.clone(), spans).await {
            Delivered::Accepted => return,
            Delivered::Dropped(pause) => {
                ends_within(pause, &mut ending).await;
                return;
            }
            Delivered::RetryIn(_) if is_last => break,
            Delivered::RetryIn(pause) => {
                ends_within(pause, &mut ending).await;
            }
        }
    }
    shared.tally.dropped(Signal::Traces, spans);
}
