mod exposition;
mod listen;
mod negotiation;
mod openmetrics;
mod order;
mod page_request;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::model::{MemoryAssessment, Mode, Moment, Reading, SeriesKey};
use crate::policy::status::Status;

/// A snapshot with these series.
fn status(series: Vec<(SeriesKey, Reading<f64>)>) -> Arc<Status> {
    let moment = Moment { uptime: Duration::from_secs(100), utc: Timestamp::UNIX_EPOCH };
    let (series, values): (Vec<_>, Vec<_>) = series.into_iter().unzip();
    Arc::new(Status {
        at: moment,
        shipped_off: Arc::new([]),
        enforced: Arc::default(),
        started: moment,
        mode: Mode::Observe,
        series: series.into(),
        values,
        sources: Arc::new([]),
        rules: Arc::new([]),
        guard: Arc::default(),
        engines: Arc::new([]),
        gate_memory: None,
        leases: Arc::new([]),
        reserved: Arc::new([]),
        restarts: Arc::new([]),
        account: Arc::default(),
        assessment: Arc::new(MemoryAssessment::unknown(Timestamp::UNIX_EPOCH)),
        reboot: Arc::default(),
        received: Arc::new([]),
        cluster: None,
        happened: Arc::new([]),
    })
}
