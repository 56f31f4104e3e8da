//! What is sent to a collector of telemetry, and how that went.

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Signal {
    /// The metrics of `/metrics`.
    Metrics,
    /// Rounds of remedies.
    Traces,
}

impl Signal {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Metrics, Self::Traces];

    /// The `signal` label, and the name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Metrics => "metrics",
            Self::Traces => "traces",
        }
    }
}

/// How one request went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportResult {
    /// All of it was taken.
    Success,
    /// Some of it was taken.
    Partial,
    /// It was refused: sending it again would change nothing.
    Refused,
    /// It was told to come back later.
    Busy,
    /// There was no answer.
    Unreachable,
}

impl ExportResult {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Success, Self::Partial, Self::Refused, Self::Busy, Self::Unreachable];

    /// The `result` label.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Partial => "partial",
            Self::Refused => "refused",
            Self::Busy => "busy",
            Self::Unreachable => "unreachable",
        }
    }
}
