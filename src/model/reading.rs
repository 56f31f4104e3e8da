//! A measured value, or the honest absence of one.

use serde::{Deserialize, Serialize};

/// What asking for a value gave: absence is never written as zero.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Reading<T> {
    /// The source answered.
    Value(T),
    /// This machine, kernel or driver does not have it; asking again will not help.
    Unsupported,
    /// It should be there, but reading it failed this time.
    Failed,
}

impl<T> Reading<T> {
    /// The value, if there is one.
    pub fn value(self) -> Option<T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Unsupported | Self::Failed => None,
        }
    }

    /// The same reading with its value converted.
    pub fn map<U>(self, convert: impl FnOnce(T) -> U) -> Reading<U> {
        match self {
            Self::Value(value) => Reading::Value(convert(value)),
            Self::Unsupported => Reading::Unsupported,
            Self::Failed => Reading::Failed,
        }
    }

    /// Combines two readings; the result is `Failed` if either failed, else `Unsupported` if either
    /// is unsupported.
    pub fn zip<U>(self, other: Reading<U>) -> Reading<(T, U)> {
        match (self, other) {
            (Self::Value(left), Reading::Value(right)) => Reading::Value((left, right)),
            (Self::Failed, _) | (_, Reading::Failed) => Reading::Failed,
            _ => Reading::Unsupported,
        }
    }
}

impl<T> From<Option<T>> for Reading<T> {
    /// `None` means that the source does not offer the value.
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Unsupported, Self::Value)
    }
}
