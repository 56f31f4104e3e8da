//! Hands the snapshot and the journal entries to the OTLP exporter.

use std::sync::Arc;

use anyhow::Context;
use arc_swap::ArcSwap;

use super::clock;
use crate::clients::collector::CollectorEndpoint;
use crate::config::otlp::OtlpSettings;
use crate::config::settings::Settings;
use crate::model::{
    Event, EventKind, ExportResult, Outcome, ProgramEvent, Reading, SeriesKey, Signal,
};
use crate::otlp::{Otlp, OtlpSetup, OtlpTally};
use crate::policy::Step;
use crate::policy::status::Status;
use crate::traces::TraceInput;

/// Events of one step that are handed over.
const MOST_EVENTS: usize = 64;

/// Starts the exporter if there is a collector.
pub(super) fn start(
    settings: &Settings,
    boot_id: &Arc<str>,
    status: &Arc<ArcSwap<Status>>,
) -> anyhow::Result<Otlp> {
    let Some(otlp) = &settings.otlp else { return Ok(Otlp::off()) };
    let setup = setup(otlp, Arc::clone(boot_id), Arc::clone(status));
    Otlp::start(setup).context("cannot start the thread that sends telemetry (otlp)")
}

/// The configured collector.
pub fn collector(otlp: &OtlpSettings) -> CollectorEndpoint {
    CollectorEndpoint {
        endpoint: otlp.endpoint.clone(),
        headers_file: otlp.headers_file.clone(),
        ca_file: otlp.ca_file.clone(),
    }
}

fn setup(otlp: &OtlpSettings, boot_id: Arc<str>, status: Arc<ArcSwap<Status>>) -> OtlpSetup {
    OtlpSetup {
        collector: collector(otlp),
        signals: otlp.signals.clone(),
        interval: otlp.interval,
        timeout: otlp.timeout,
        resource: otlp.resource.clone(),
        node: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        boot_id,
        status,
        clock: clock::now,
    }
}

/// Records the result of a step.
pub(super) fn record_step(otlp: &Otlp, step: &Step) {
    // Of a flood only the last events count: a round names the last of each kind.
    let of_rounds = |event: &&Event| {
        !matches!(event.kind, EventKind::Program(ProgramEvent::ReceivedAlert { .. }))
    };
    let beyond = step.events.iter().filter(of_rounds).count().saturating_sub(MOST_EVENTS);
    for event in step.events.iter().filter(of_rounds).skip(beyond) {
        otlp.record(|| TraceInput::Event(event.clone()));
    }
    for change in &step.alerts {
        otlp.record(|| TraceInput::Alert(change.clone()));
    }
    for aim_check in &step.aim_checks {
        otlp.record(|| TraceInput::AimCheck(aim_check.clone()));
    }
    for decision in &step.decisions {
        otlp.record(|| TraceInput::Decision(decision.clone()));
    }
}

pub(super) fn record_outcome(otlp: &Otlp, outcome: &Outcome) {
    otlp.record(|| TraceInput::Outcome(outcome.clone()));
}

/// The series of [`values`], in the same order.
pub(super) fn series() -> Vec<SeriesKey> {
    let of_signal = |signal: Signal| {
        let signal = signal.name();
        let exports = ExportResult::ALL.map(|result| {
            let labels = [("result", result.name()), ("signal", signal)];
            SeriesKey::new("uma_otlp_exports_total", &labels)
        });
        let others = ["uma_otlp_dropped_total", "uma_otlp_last_success_timestamp_seconds"];
        let others = others.map(|name| SeriesKey::new(name, &[("signal", signal)]));
        exports.into_iter().chain(others)
    };
    let waiting = SeriesKey::new("uma_otlp_waiting_spans", &[]);
    Signal::ALL.into_iter().flat_map(of_signal).chain([waiting]).collect()
}

/// Counters of the exporter, `Unsupported` without a collector.
#[expect(clippy::cast_precision_loss, reason = "exact up to 2^53")]
pub(super) fn values(tally: Option<&OtlpTally>) -> impl Iterator<Item = Reading<f64>> + '_ {
    let count =
        |count: Option<u64>| count.map_or(Reading::Unsupported, |it| Reading::Value(it as f64));
    let of_signal = move |signal: Signal| {
        let exports =
            ExportResult::ALL.map(|result| count(tally.map(|tally| tally.exports(signal, result))));
        let dropped = count(tally.map(|tally| tally.all_dropped(signal)));
        let last = tally.and_then(|tally| tally.last_success_ms(signal));
        let last = last.map_or(Reading::Unsupported, |ms| Reading::Value(ms as f64 / 1000.0));
        exports.into_iter().chain([dropped, last])
    };
    let waiting = count(tally.map(OtlpTally::waiting_spans));
    Signal::ALL.into_iter().flat_map(of_signal).chain([waiting])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{KernelEvent, Pool, ReceivedAlert, ReceivedStatus, ReceivedTurn};

    fn event(seq: usize, kind: impl Into<EventKind>) -> Event {
        Event { kind: kind.into(), utc: None, seq: Some(seq as u64) }
    }

    fn alert() -> ReceivedAlert {
        ReceivedAlert {
            fingerprint: "0".into(),
            status: ReceivedStatus::Firing,
            starts_at: jiff::Timestamp::UNIX_EPOCH,
            ends_at: None,
            labels: std::collections::BTreeMap::new(),
            by: None,
        }
    }

    fn fault() -> KernelEvent {
        let (function, location) = ("f".to_owned(), None);
        KernelEvent::NvNoMemory { function, gpu: None, pool: Pool::Any, location }
    }

    #[test]
    fn the_last_events_of_a_flood_are_recorded_and_received_alerts_are_not() {
        let alert = ProgramEvent::ReceivedAlert { to: ReceivedTurn::Firing, alert: alert().into() };
        let mut events: Vec<Event> = (0..3 * MOST_EVENTS).map(|at| event(at, fault())).collect();
        events.extend((0..2 * MOST_EVENTS).map(|at| event(at, alert.clone())));
        let (to, mut inputs) = tokio::sync::mpsc::channel(8 * MOST_EVENTS);
        let otlp = Otlp::to_channel(to);
        record_step(&otlp, &Step { events, ..Step::default() });
        drop(otlp);
        let mut seen = Vec::new();
        while let Some(TraceInput::Event(event)) = inputs.blocking_recv() {
            assert_eq!(event.kind, fault().into());
            seen.push(event.seq.unwrap());
        }
        let last = 2 * MOST_EVENTS as u64..3 * MOST_EVENTS as u64;
        assert_eq!(seen, last.collect::<Vec<_>>());
    }
}
