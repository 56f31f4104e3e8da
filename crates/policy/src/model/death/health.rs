//! The last health check before a death.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::model::{HealthResponse, rounded_seconds_text};

/// A health check of a server that has ended since.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LastHealth {
    /// The URL that was queried.
    pub url: Arc<str>,
    /// The result.
    #[serde(flatten)]
    pub answer: HealthResponse,
    /// Seconds from the request to the end.
    pub seconds_before: f64,
}

impl fmt::Display for LastHealth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} before: ", self.url, rounded_seconds_text(self.seconds_before))?;
        match &self.answer {
            HealthResponse::Ready => f.write_str("ready"),
            HealthResponse::NotReady { status } => write!(f, "not ready ({status})"),
            HealthResponse::Refused => f.write_str("nothing listened there"),
            HealthResponse::TimedOut => f.write_str("no response in time"),
            HealthResponse::Failed { error } => f.write_str(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_the_time_and_the_answer_are_one_line() {
        let of = |answer| {
            let url = "http://127.0.0.1:8000/health".into();
            LastHealth { url, answer, seconds_before: 2.4 }.to_string()
        };
        let not_ready = of(HealthResponse::NotReady { status: 503 });
        assert_eq!(not_ready, "http://127.0.0.1:8000/health 2s before: not ready (503)");
        let refused = of(HealthResponse::Refused);
        assert!(refused.ends_with("nothing listened there"), "{refused}");
    }
}
