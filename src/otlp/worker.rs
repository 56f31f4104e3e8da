//! What the thread does: it joins what it is told to traces, and sends those and the metrics, each
//! without waiting for the other.

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
use super::delivery::{Delivered, Delivery, FLUSH_TAKES, Standing, spread, until_end};
use super::metrics::Exporter;
use super::queue::Queue;
use super::resource::resource;
use super::tally::Tally;
use crate::clients::collector::Collector;
use crate::model::Signal;
use crate::traces::{Told, Trace, Tracer};

/// How often it is looked for traces that have ended.
const LOOKS_EVERY: Duration = Duration::from_secs(1);

/// The first metrics follow the start that soon.
const FIRST_WITHIN: Duration = Duration::from_secs(2);

/// A message that the collector does not take as often as that keeps others waiting no longer.
const MOST_TRIES: u32 = 20;

/// What the tasks of the thread share.
struct Shared {
    queue: RefCell<Queue>,
    news: Notify,
    /// Nothing is added to the queue any more.
    is_complete: Cell<bool>,
    tally: Arc<Tally>,
}

impl Shared {
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

    /// The next request, and how many spans it has.
    fn next(&self, resource: &ResourceAttributesWithSchema) -> Option<(Bytes, u64)> {
        let spans = self.queue.borrow_mut().batch();
        self.tally.waiting(self.queue.borrow().spans());
        let count = spans.len() as u64;
        let resource_spans = group_spans_by_resource_and_scope(spans, resource);
        let request = ExportTraceServiceRequest { resource_spans };
        (count > 0).then(|| (request.encode_to_vec().into(), count))
    }
}

/// Runs until it is told that the program ends.
pub(super) async fn run(
    setup: OtlpSetup,
    told: mpsc::Receiver<Told>,
    ending: watch::Receiver<bool>,
    tally: Arc<Tally>,
) {
    let shared = Shared {
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
        standing: Standing::default(),
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
    tokio::join!(follow(&setup, &shared, told, ending.clone()), metrics, traces);
}

/// Whether the program ends before that time is over.
async fn ends_within(time: Duration, ending: &mut watch::Receiver<bool>) -> bool {
    timeout(time, until_end(ending)).await.is_ok()
}

async fn follow(
    setup: &OtlpSetup,
    shared: &Shared,
    mut told: mpsc::Receiver<Told>,
    mut ending: watch::Receiver<bool>,
) {
    let mut tracer = Tracer::new(Arc::clone(&setup.boot_id));
    let mut looks = tokio::time::interval(LOOKS_EVERY);
    loop {
        tokio::select! {
            told = told.recv() => match told {
                Some(told) => tracer.take(told),
                None => break,
            },
            _ = looks.tick() => shared.push(tracer.ended((setup.clock)())),
            () = until_end(&mut ending) => break,
        }
    }
    // What was told right before the end is part of it.
    while let Ok(told) = told.try_recv() {
        tracer.take(told);
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
            // Let go of before anything is waited for: the loop draws the next picture in it.
            let status = setup.status.load_full();
            let (request, points) = exporter.batch(&status);
            (Bytes::from(request.encode_to_vec()), points)
        };
        let delivered = delivery.deliver(message, points).await;
        if ends || *ending.borrow() {
            return;
        }
        pause = match delivered {
            Delivered::Taken => setup.interval,
            Delivered::GivenUp(pause) => setup.interval.max(pause),
            Delivered::Again(pause) => {
                // The next picture says it all again.
                delivery.tally.dropped(Signal::Metrics, points);
                setup.interval.max(pause)
            }
        };
    }
}

async fn send_traces(setup: &OtlpSetup, shared: &Shared, mut delivery: Delivery) {
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
            if delivery.deliver(message, spans).await != Delivered::Taken {
                break;
            }
        }
    };
    // Whoever waits for this waits no longer.
    let _too_slow = timeout(FLUSH_TAKES, flush).await;
}

/// Until it is taken, or of no use any more. When the program ends it is tried once more.
async fn send_one(shared: &Shared, delivery: &mut Delivery, message: Bytes, spans: u64) {
    let mut ending = delivery.ending.clone();
    for _ in 0..MOST_TRIES {
        let is_last = *ending.borrow();
        match delivery.deliver(message.clone(), spans).await {
            Delivered::Taken => return,
            Delivered::GivenUp(pause) => {
                ends_within(pause, &mut ending).await;
                return;
            }
            Delivered::Again(_) if is_last => break,
            Delivered::Again(pause) => {
                ends_within(pause, &mut ending).await;
            }
        }
    }
    shared.tally.dropped(Signal::Traces, spans);
}
