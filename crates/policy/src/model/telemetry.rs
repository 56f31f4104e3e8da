//! What is sent to a collector of telemetry, and how that went.

use super::names::named;

named! {
    /// What is sent.
    pub enum Signal {
        /// The metrics of `/metrics`.
        Metrics = "metrics",
        /// Rounds of remedies.
        Traces = "traces",
    }
}

named! {
    /// How one request went.
    pub enum ExportResult {
        /// All of it was taken.
        Success = "success",
        /// Some of it was taken.
        Partial = "partial",
        /// It was refused: sending it again would change nothing.
        Refused = "refused",
        /// It was told to come back later.
        Busy = "busy",
        /// There was no answer.
        Unreachable = "unreachable",
    }
}
