//! Makes records from the loop's last status and from an event.

use std::fmt::Write as _;
use std::sync::Arc;

use crate::journal::black_box::{BlackBoxRecord, LastEvent, ShortText, Signal};
use crate::model::{Event, EventKind, Reading, SeriesKey};
use crate::policy::status::{RuleState, Status};

type SignalSource = (Signal, &'static str, &'static [(&'static str, &'static str)]);

const WANTED: [SignalSource; 8] = [
    (Signal::Reserve, "uma_memory_reserve_bytes", &[]),
    (Signal::LowWatermark, "uma_memory_watermark_bytes", &[("watermark", "low")]),
    (Signal::Contiguous, "uma_memory_contiguous_bytes", &[("block", "2MiB")]),
    (Signal::PerCpuLists, "uma_memory_per_cpu_lists_bytes", &[]),
    (Signal::DirectScans, "uma_memory_reclaim_scanned_pages_total", &[("reclaimer", "direct")]),
    (Signal::MajorFaults, "uma_memory_major_page_faults_total", &[]),
    (Signal::SwapOut, "uma_swap_out_pages_total", &[]),
    (Signal::OomKills, "uma_memory_oom_kills_total", &[]),
];

/// The positions of the recorded values in a status.
pub(super) struct StatusReader {
    series: Arc<[SeriesKey]>,
    positions: [Option<usize>; WANTED.len()],
}

impl StatusReader {
    pub(super) fn new() -> Self {
        Self { series: Arc::new([]), positions: [None; WANTED.len()] }
    }

    /// Takes the values of a status.
    pub(super) fn copy(&mut self, status: &Status, to: &mut BlackBoxRecord) {
        if !Arc::ptr_eq(&self.series, &status.series) {
            self.find(&status.series);
        }
        to.loop_age = Some(to.at.uptime.saturating_sub(status.at.uptime));
        for ((signal, ..), position) in WANTED.iter().zip(self.positions) {
            let value = position.and_then(|position| status.values.get(position).copied());
            let value = value.filter(|reading| !reading.is_end());
            to.set(*signal, value.unwrap_or(Reading::Unsupported));
        }
        for rule in status.rules.iter() {
            let count = match rule.state {
                RuleState::Inactive => continue,
                RuleState::Pending => &mut to.rules.pending,
                RuleState::Firing => &mut to.rules.firing,
                RuleState::Unknown => &mut to.rules.unknown,
            };
            *count = count.saturating_add(1);
            if rule.state == RuleState::Firing {
                let blank = if to.firing.is_empty() { "" } else { " " };
                to.firing.push(blank);
                to.firing.push(&rule.rule.alert);
            }
        }
    }

    fn find(&mut self, series: &Arc<[SeriesKey]>) {
        self.series = Arc::clone(series);
        for ((_, name, labels), position) in WANTED.iter().zip(&mut self.positions) {
            *position = series.iter().position(|key| {
                let labels_there = key.labels.iter().map(|(name, value)| (&**name, &**value));
                *key.name == **name && labels_there.eq(labels.iter().copied())
            });
        }
    }
}

/// An event, truncated to fit.
pub(super) fn last_event(event: &Event) -> LastEvent {
    let mut detail = ShortText::default();
    if let EventKind::Kernel(event) = &event.kind {
        // A short text takes what fits, and does not fail.
        let _ = write!(detail, "{event}");
    }
    let kind = ShortText::new(event.kind.kind());
    LastEvent { utc: event.utc, seq: event.seq, kind, detail }
}
