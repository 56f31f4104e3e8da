//! A measured value, or the honest absence of one.

use serde::{Deserialize, Serialize};

use crate::store::is_stale;

/// The result of reading a value: absence is never written as zero.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Reading<T> {
    /// The source has the value.
    Value(T),
    /// This machine, kernel or driver does not have it; a retry will not help.
    Unsupported,
    /// It should exist, but reading it failed this time.
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

impl Reading<f64> {
    /// The value, unless it is the one that ends a series.
    pub fn sample(self) -> Option<f64> {
        self.value().filter(|value| !is_stale(*value))
    }

    /// Whether it ends its series: what the series describes is gone, or has not begun.
    pub fn is_end(self) -> bool {
        self.value().is_some_and(is_stale)
    }

    /// Whether both are the same to the last bit, so that one NaN may be the same as another, and
    /// -0 is not 0.
    pub fn is_same(self, other: Self) -> bool {
        match (self, other) {
            (Self::Value(left), Self::Value(right)) => left.to_bits() == right.to_bits(),
            (Self::Unsupported, Self::Unsupported) | (Self::Failed, Self::Failed) => true,
            _ => false,
        }
    }
}

impl<T> From<Option<T>> for Reading<T> {
    /// `None` means that the source does not offer the value.
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Unsupported, Self::Value)
    }
}

/// JSON has no NaN and no infinity, and people should not have to unwrap a value: a reading as a
/// number where it is one, else as `"NaN"`, `"+Inf"`, `"-Inf"`, `"unsupported"` or `"failed"`.
/// For `#[serde(with = "…")]`.
pub mod as_number {
    use serde::de::{Error, Unexpected, Visitor};
    use serde::{Deserializer, Serializer};

    use super::Reading;

    /// Serializes a reading.
    pub fn serialize<S: Serializer>(reading: &Reading<f64>, to: S) -> Result<S::Ok, S::Error> {
        match reading {
            Reading::Value(value) if value.is_finite() => to.serialize_f64(*value),
            Reading::Value(value) if value.is_nan() => to.serialize_str("NaN"),
            Reading::Value(value) if *value > 0.0 => to.serialize_str("+Inf"),
            Reading::Value(_) => to.serialize_str("-Inf"),
            Reading::Unsupported => to.serialize_str("unsupported"),
            Reading::Failed => to.serialize_str("failed"),
        }
    }

    /// Deserializes a reading.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Reading<f64>, D::Error> {
        from.deserialize_any(NumberOrWord)
    }

    struct NumberOrWord;

    #[expect(clippy::cast_precision_loss, reason = "a series' value is an f64 everywhere")]
    impl Visitor<'_> for NumberOrWord {
        type Value = Reading<f64>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a number, \"NaN\", \"+Inf\", \"-Inf\", \"unsupported\" or \"failed\"")
        }

        fn visit_f64<E: Error>(self, value: f64) -> Result<Self::Value, E> {
            Ok(Reading::Value(value))
        }

        fn visit_u64<E: Error>(self, value: u64) -> Result<Self::Value, E> {
            Ok(Reading::Value(value as f64))
        }

        fn visit_i64<E: Error>(self, value: i64) -> Result<Self::Value, E> {
            Ok(Reading::Value(value as f64))
        }

        fn visit_str<E: Error>(self, word: &str) -> Result<Self::Value, E> {
            match word {
                "NaN" => Ok(Reading::Value(f64::NAN)),
                "+Inf" => Ok(Reading::Value(f64::INFINITY)),
                "-Inf" => Ok(Reading::Value(f64::NEG_INFINITY)),
                "unsupported" => Ok(Reading::Unsupported),
                "failed" => Ok(Reading::Failed),
                _ => Err(E::invalid_value(Unexpected::Str(word), &self)),
            }
        }
    }
}
