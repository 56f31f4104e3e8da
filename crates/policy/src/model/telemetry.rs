//! Exports to a collector of telemetry.

use super::names::named;

named! {
    /// The kind of exported data.
    pub enum Signal {
        /// The metrics of `/metrics`.
        Metrics = "metrics",
        /// Remedies, as spans.
        Traces = "traces",
    }
}

named! {
    /// The result of an export.
    pub enum ExportResult {
        /// All data was accepted.
        Success = "success",
        /// Part of the data was accepted.
        Partial = "partial",
        /// The data was refused permanently.
        Refused = "refused",
        /// The collector requested a later retry.
        Busy = "busy",
        /// There was no response.
        Unreachable = "unreachable",
    }
}
