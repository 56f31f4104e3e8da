//! Functions over an instant vector.

use super::super::Sample;
use super::super::functions::Function;
use super::super::syntax::{Kind, Node, Selector};
use super::over_time::absent_of;
use super::partial::{MissingReadings, PartialNumber, Vector};
use super::{Evaluator, histogram, relabel};

impl Evaluator<'_> {
    pub(super) fn over_instant(
        &mut self,
        function: Function,
        arguments: &[Node],
    ) -> Result<Vector, String> {
        match function {
            Function::Absent => return self.absent(arguments),
            Function::Timestamp => return self.timestamp(arguments),
            Function::HistogramQuantile => {
                let q = self.scalar_argument(arguments, 0)?;
                return quantile(q, self.vector_argument(arguments, 1)?);
            }
            Function::Vector => {
                let number = self.scalar_argument(arguments, 0)?;
                let sample = Sample { name: None, labels: [].into(), value: f64::NAN };
                return Ok(Vector::of_one(sample, number));
            }
            _ => {}
        }
        let vector = self.vector_argument(arguments, 0)?;
        match function {
            Function::Clamp => {
                let least = self.scalar_argument(arguments, 1)?;
                let most = self.scalar_argument(arguments, 2)?;
                clamped(vector, least, most)
            }
            Function::ClampMin => {
                let least = self.scalar_argument(arguments, 1)?;
                clamped(vector, least, Ok(f64::INFINITY))
            }
            Function::ClampMax => {
                let most = self.scalar_argument(arguments, 1)?;
                clamped(vector, Ok(f64::NEG_INFINITY), most)
            }
            Function::Round => {
                let given = arguments.len() > 1;
                let step = if given { self.scalar_argument(arguments, 1)? } else { Ok(1.0) };
                rounded(vector, step)
            }
            Function::Sort => vector.each(|samples| Ok(sorted(samples, false))),
            Function::SortDesc => vector.each(|samples| Ok(sorted(samples, true))),
            Function::LabelJoin => vector.each(|samples| relabel::join(samples, arguments)),
            _ => match plain(function) {
                Some(change) => vector.mapped(change),
                None => Err(format!("{} is not supported", function.signature().name)),
            },
        }
    }

    fn absent(&mut self, arguments: &[Node]) -> Result<Vector, String> {
        let noted = self.missing.len();
        let vector = self.vector_argument(arguments, 0)?;
        self.forgive_unsupported(noted);
        Ok(absent_of(bare_selector(arguments), vector.exists(), vector.because()))
    }

    /// A bare selector gives the samples' own instants, anything else that of the evaluation.
    fn timestamp(&mut self, arguments: &[Node]) -> Result<Vector, String> {
        if let Some(selector) = bare_selector(arguments) {
            return self.select_instants(selector).mapped(|ms| ms / 1000.0);
        }
        let vector = self.vector_argument(arguments, 0)?;
        let now = self.at.utc_ms as f64 / 1000.0;
        vector.mapped(|_| now)
    }
}

fn bare_selector(arguments: &[Node]) -> Option<&Selector> {
    match &arguments.first()?.bare().kind {
        Kind::Selector(selector) => Some(selector),
        _ => None,
    }
}

fn quantile(q: PartialNumber, vector: Vector) -> Result<Vector, String> {
    match (q, vector.open) {
        (Ok(q), None) => histogram::quantile(q, vector.known).map(Vector::whole),
        (Err(_), None) if vector.known.is_empty() => Ok(Vector::default()),
        (q, open) => {
            let of_vector = open.map(|open| open.because).unwrap_or_default();
            Ok(Vector::unknown(q.err().unwrap_or_default() | of_vector))
        }
    }
}

fn rounded(vector: Vector, step: PartialNumber) -> Result<Vector, String> {
    match step {
        Ok(step) => {
            let inverse = 1.0 / step;
            vector.mapped(|value| (value * inverse + 0.5).floor() / inverse)
        }
        Err(because) => Ok(vector.mapped(|value| value)?.valueless(because)),
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
fn clamped(vector: Vector, least: PartialNumber, most: PartialNumber) -> Result<Vector, String> {
    let (least, most) = match (least, most) {
        (Ok(least), Ok(most)) => (least, most),
        (least, most) => {
            let because: MissingReadings = [least, most].into_iter().filter_map(Result::err).sum();
            let valueless = vector.mapped(|value| value)?.valueless(because);
            return Ok(valueless.doubtful(because));
        }
    };
    if most < least {
        return Ok(Vector::default());
    }
    let either_nan = least.is_nan() || most.is_nan();
    vector.mapped(|value| match value {
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
