//! Functions over an instant vector.

use super::super::Sample;
use super::super::functions::Function;
use super::super::syntax::{Kind, Node};
use super::over_time::absent;
use super::{Evaluator, histogram, mapped};

impl Evaluator<'_> {
    pub(super) fn over_instant(
        &mut self,
        function: Function,
        arguments: &[Node],
    ) -> Result<Vec<Sample>, String> {
        match function {
            Function::Absent => return self.absent(arguments),
            Function::Timestamp => return self.timestamp(arguments),
            Function::HistogramQuantile => {
                let q = self.scalar_argument(arguments, 0)?;
                return histogram::quantile(q, self.vector_argument(arguments, 1)?);
            }
            Function::Vector => {
                let value = self.scalar_argument(arguments, 0)?;
                return Ok(vec![Sample { name: None, labels: [].into(), value }]);
            }
            _ => {}
        }
        let samples = self.vector_argument(arguments, 0)?;
        match function {
            Function::Clamp => {
                let least = self.scalar_argument(arguments, 1)?;
                let most = self.scalar_argument(arguments, 2)?;
                clamped(samples, least, most)
            }
            Function::ClampMin => {
                let least = self.scalar_argument(arguments, 1)?;
                clamped(samples, least, f64::INFINITY)
            }
            Function::ClampMax => {
                let most = self.scalar_argument(arguments, 1)?;
                clamped(samples, f64::NEG_INFINITY, most)
            }
            Function::Round => {
                let given = arguments.len() > 1;
                let step = if given { self.scalar_argument(arguments, 1)? } else { 1.0 };
                let inverse = 1.0 / step;
                mapped(samples, |value| (value * inverse + 0.5).floor() / inverse)
            }
            Function::Sort => Ok(sorted(samples, false)),
            Function::SortDesc => Ok(sorted(samples, true)),
            Function::LabelJoin => super::relabel::join(samples, arguments),
            _ => match plain(function) {
                Some(change) => mapped(samples, change),
                None => Err(format!("{} is not supported", function.signature().name)),
            },
        }
    }

    fn absent(&mut self, arguments: &[Node]) -> Result<Vec<Sample>, String> {
        let noted = self.missing.len();
        let samples = self.vector_argument(arguments, 0)?;
        self.forgive_unsupported(noted);
        let selector = arguments.first().and_then(|argument| match &argument.bare().kind {
            Kind::Selector(selector) => Some(selector),
            _ => None,
        });
        Ok(absent(selector).into_iter().filter(|_| samples.is_empty()).collect())
    }

    /// A bare selector gives the samples' own instants, anything else that of the evaluation.
    fn timestamp(&mut self, arguments: &[Node]) -> Result<Vec<Sample>, String> {
        let selector = arguments.first().and_then(|argument| match &argument.bare().kind {
            Kind::Selector(selector) => Some(selector),
            _ => None,
        });
        if let Some(selector) = selector {
            return mapped(self.select_instants(selector), |ms| ms / 1000.0);
        }
        let samples = self.vector_argument(arguments, 0)?;
        let now = self.at.utc_ms as f64 / 1000.0;
        mapped(samples, |_| now)
    }
}

fn plain(function: Function) -> Option<fn(f64) -> f64> {
    Some(match function {
        Function::Abs => f64::abs,
        Function::Ceil => f64::ceil,
        Function::Floor => f64::floor,
        Function::Exp => f64::exp,
        Function::Ln => f64::ln,
        Function::Log2 => f64::log2,
        Function::Log10 => f64::log10,
        Function::Sqrt => f64::sqrt,
        Function::Sgn => |value| match value {
            _ if value < 0.0 => -1.0,
            _ if value > 0.0 => 1.0,
            _ => value,
        },
        _ => return None,
    })
}

/// Like Go's `math.Max` and `math.Min`, it passes NaN through.
fn clamped(samples: Vec<Sample>, least: f64, most: f64) -> Result<Vec<Sample>, String> {
    if most < least {
        return Ok(Vec::new());
    }
    let either_nan = least.is_nan() || most.is_nan();
    mapped(samples, |value| match value {
        _ if either_nan || value.is_nan() => go_clamp(value, least, most),
        _ => value.min(most).max(least),
    })
}

/// An infinity beats NaN in Go: `Min(-Inf, NaN)` is -Inf and `Max(+Inf, NaN)` is +Inf.
fn go_clamp(value: f64, least: f64, most: f64) -> f64 {
    let lower = match (value, most) {
        _ if value == f64::NEG_INFINITY || most == f64::NEG_INFINITY => f64::NEG_INFINITY,
        _ if value.is_nan() || most.is_nan() => f64::NAN,
        _ => value.min(most),
    };
    match (lower, least) {
        _ if lower == f64::INFINITY || least == f64::INFINITY => f64::INFINITY,
        _ if lower.is_nan() || least.is_nan() => f64::NAN,
        _ => lower.max(least),
    }
}

/// NaN comes last both ways.
fn sorted(mut samples: Vec<Sample>, descending: bool) -> Vec<Sample> {
    samples.sort_by(|one, other| {
        let order = one.value.is_nan().cmp(&other.value.is_nan());
        let by_value = one.value.partial_cmp(&other.value).unwrap_or(std::cmp::Ordering::Equal);
        order.then(if descending { by_value.reverse() } else { by_value })
    });
    samples
}
