//! The loop's own metrics.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::evicting::Evicting;
use super::reaction::Reactions;
use super::recorder::RecorderTally;
use super::{kubernetes, otlp};
use crate::access::AccessControl;
use crate::actions::SettingsTally;
use crate::model::{
    Moment, Reading, Readings, SETTING_NAMES, Schema, SeriesKey, Source, UndoResult,
};
use crate::otlp::OtlpTally;
use crate::policy::status::EngineStatus;
use crate::sources::kernel_log::{KernelLogReader, KernelLogSource};

/// The values of [`SettingsTally`], in its order.
fn temporary_settings() -> impl Iterator<Item = SeriesKey> {
    let in_force = SETTING_NAMES
        .map(|setting| SeriesKey::new("uma_temporary_settings", &[("setting", setting)]));
    let undone = UndoResult::NAMES
        .map(|result| SeriesKey::new("uma_temporary_settings_undone_total", &[("result", result)]));
    in_force.into_iter().chain(undone)
}

/// The longest release of a kernel.
const LONGEST_RELEASE: usize = 128;

/// The release of the kernel of this procfs.
fn kernel_info(procfs: &Path) -> SeriesKey {
    let names = rustix::system::uname();
    let text = std::fs::read_to_string(procfs.join("sys/kernel/osrelease"));
    let release = text.ok().map(|text| text.trim().to_owned()).filter(|text| {
        !text.is_empty() && text.len() <= LONGEST_RELEASE && !text.contains(char::is_control)
    });
    let release = release.unwrap_or_else(|| names.release().to_string_lossy().into_owned());
    let labels = [("machine", &*names.machine().to_string_lossy()), ("release", &*release)];
    SeriesKey::new("uma_kernel_info", &labels)
}

/// What is running: labels as Prometheus' own `build_info` has them, with the compiler and platform
/// of Rust (client_golang, collectors/version). Without a branch: one commit makes the same bytes.
fn build_info() -> SeriesKey {
    let labels = [
        ("revision", env!("UMAWARDEN_REVISION")),
        ("rustversion", env!("UMAWARDEN_RUST_VERSION")),
        ("target", env!("UMAWARDEN_TARGET")),
        ("version", env!("CARGO_PKG_VERSION")),
    ];
    SeriesKey::new("uma_build_info", &labels)
}

/// The loop's own series.
#[derive(Debug)]
pub(super) struct OwnReadings {
    /// The constant series, followed by those of current engines.
    schema: Arc<Schema>,
    always: usize,
    kernel_log_schema: Arc<Schema>,
    missed_samples: u64,
    sampling_interval: Duration,
    step_duration: Duration,
    reactions: Reactions,
    reload_succeeded: bool,
    reload_success: Moment,
    settings: Arc<SettingsTally>,
    access: Arc<AccessControl>,
    otlp: Option<Arc<OtlpTally>>,
    kubernetes: Option<Arc<kubernetes::KubernetesTally>>,
}

impl OwnReadings {
    pub(super) fn new(
        started: Moment,
        sampling_interval: Duration,
        settings: Arc<SettingsTally>,
        access: Arc<AccessControl>,
        procfs: &Path,
    ) -> Self {
        let mut series = vec![
            build_info(),
            kernel_info(procfs),
            SeriesKey::new("uma_samples_missed_total", &[]),
            SeriesKey::new("uma_sampling_interval_seconds", &[]),
            SeriesKey::new("uma_rule_evaluation_duration_seconds", &[]),
            SeriesKey::new("uma_config_last_reload_successful", &[]),
            SeriesKey::new("uma_config_last_reload_success_timestamp_seconds", &[]),
            SeriesKey::new("uma_recorder_dropped_steps_total", &[]),
            SeriesKey::new("uma_recorder_written_bytes_total", &[]),
            SeriesKey::new("uma_recorder_write_errors_total", &[]),
            SeriesKey::new("uma_recorder_incidents_total", &[]),
        ];
        series.extend(temporary_settings());
        series.extend(otlp::series());
        series.extend(Reactions::series());
        series.extend(Evicting::series());
        series.extend(AccessControl::series());
        let readers = KernelLogReader::ALL
            .map(|reader| SeriesKey::new("uma_kernel_log_reader", &[("reader", reader.name())]));
        Self {
            always: series.len(),
            schema: Arc::new(Schema { series }),
            kernel_log_schema: Arc::new(Schema { series: readers.to_vec() }),
            missed_samples: 0,
            sampling_interval,
            step_duration: Duration::ZERO,
            reactions: Reactions::default(),
            reload_succeeded: true,
            reload_success: started,
            settings,
            access,
            otlp: None,
            kubernetes: None,
        }
    }

    /// From now on with the counters of requests to a collector and to Kubernetes.
    pub(super) fn set_servers(
        &mut self,
        otlp: Option<&Arc<OtlpTally>>,
        kubernetes: Option<&Arc<kubernetes::KubernetesTally>>,
    ) {
        (self.otlp, self.kubernetes) = (otlp.cloned(), kubernetes.cloned());
        if self.kubernetes.is_some() {
            // Without a cluster they would be unknown to rules, and not just missing.
            let series = self.schema.series.iter().cloned().chain(kubernetes::series());
            self.schema = Arc::new(Schema { series: series.collect() });
            self.always = self.schema.series.len();
        }
    }

    pub(super) fn count_missed_samples(&mut self, missed: u64) {
        self.missed_samples = self.missed_samples.saturating_add(missed);
    }

    /// Returns whether it has changed.
    pub(super) fn set_sampling_interval(&mut self, interval: Duration) -> bool {
        std::mem::replace(&mut self.sampling_interval, interval) != interval
    }

    pub(super) fn set_step_duration(&mut self, took: Duration) {
        self.step_duration = took;
    }

    /// Records the time from the cause of an act to the act.
    pub(super) fn count_reaction(&mut self, took: Duration) {
        self.reactions.count(took);
    }

    pub(super) fn set_reload(&mut self, succeeded: bool, at: Moment) {
        self.reload_succeeded = succeeded;
        if succeeded {
            self.reload_success = at;
        }
    }

    /// The reader of the kernel log, and whether it is trusted.
    pub(super) fn kernel_log(&self, source: &KernelLogSource) -> Readings {
        let current = source.reader();
        let values =
            KernelLogReader::ALL.map(|reader| Reading::Value(f64::from(reader == current)));
        // The ring of syslog(2) may be forged, and feeds no metric of the log.
        let down = matches!(current, KernelLogReader::None | KernelLogReader::Syslog);
        Readings {
            source: Source::KernelLog,
            schema: Arc::clone(&self.kernel_log_schema),
            values: values.to_vec(),
            took: Duration::ZERO,
            error: source.reason().filter(|_| down).map(Arc::clone),
        }
    }

    fn track_engines(&mut self, engines: &[EngineStatus]) {
        let (always, of_engines) = self.schema.series.split_at(self.always);
        if Evicting::is_series_of(of_engines, engines) {
            return;
        }
        let series = always.iter().cloned().chain(Evicting::series_of(engines)).collect();
        self.schema = Arc::new(Schema { series });
    }

    #[expect(clippy::cast_precision_loss, reason = "exact up to 2^53")]
    pub(super) fn readings(
        &mut self,
        recorder: Option<&RecorderTally>,
        evicting: &Evicting,
        engines: &[EngineStatus],
    ) -> Readings {
        self.track_engines(engines);
        let own = [
            1.0,
            1.0,
            self.missed_samples as f64,
            self.sampling_interval.as_secs_f64(),
            self.step_duration.as_secs_f64(),
            f64::from(self.reload_succeeded),
            self.reload_success.utc_ms() as f64 / 1000.0,
        ];
        let recorded = match recorder.map(RecorderTally::values) {
            Some(values) => values.map(|value| Reading::Value(value as f64)),
            None => [Reading::Unsupported; 4],
        };
        let in_force = self.settings.in_force().map(f64::from);
        let undone = self.settings.undone().map(|count| count as f64);
        let mut values = Vec::with_capacity(self.schema.series.len());
        values.extend(own.map(Reading::Value));
        values.extend(recorded);
        values.extend(in_force.into_iter().chain(undone).map(Reading::Value));
        values.extend(otlp::values(self.otlp.as_deref()));
        values.extend(self.reactions.values());
        values.extend(evicting.values());
        values.extend(self.access.values());
        values.extend(self.kubernetes.iter().flat_map(|tally| kubernetes::values(tally)));
        values.extend(evicting.values_of(engines));
        Readings {
            source: Source::Daemon,
            schema: Arc::clone(&self.schema),
            values,
            took: Duration::ZERO,
            error: None,
        }
    }
}
