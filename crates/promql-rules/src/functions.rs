//! The supported functions, and their arguments.

use super::syntax::ValueType::{self, Range, Scalar, Text, Vector};

/// A function of PromQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Function {
    Abs,
    Absent,
    AbsentOverTime,
    AvgOverTime,
    Ceil,
    Changes,
    Clamp,
    ClampMax,
    ClampMin,
    CountOverTime,
    Delta,
    Deriv,
    Exp,
    Floor,
    HistogramQuantile,
    Idelta,
    Increase,
    Irate,
    LabelJoin,
    LabelReplace,
    LastOverTime,
    Ln,
    /// `log10`
    Log10,
    /// `log2`
    Log2,
    MaxOverTime,
    MinOverTime,
    PredictLinear,
    PresentOverTime,
    QuantileOverTime,
    Rate,
    Resets,
    Round,
    Scalar,
    Sgn,
    Sort,
    SortDesc,
    Sqrt,
    StddevOverTime,
    StdvarOverTime,
    SumOverTime,
    Time,
    Timestamp,
    Vector,
}

/// The signature of a function.
#[derive(Debug)]
pub(super) struct Signature {
    /// The function that the evaluator calls.
    pub function: Function,
    /// Its name; case matters.
    pub name: &'static str,
    /// The types of its arguments.
    pub arguments: &'static [ValueType],
    /// The least number of arguments.
    pub at_least: usize,
    /// Whether the last argument may be repeated.
    pub repeats_last: bool,
    /// The type of its value.
    pub returns: ValueType,
}

const fn signature(
    function: Function,
    name: &'static str,
    arguments: &'static [ValueType],
    returns: ValueType,
) -> Signature {
    Signature { function, name, arguments, at_least: arguments.len(), repeats_last: false, returns }
}

/// Every function, in the order of [`Function`].
pub(super) static FUNCTIONS: [Signature; 43] = [
    signature(Function::Abs, "abs", &[Vector], Vector),
    signature(Function::Absent, "absent", &[Vector], Vector),
    signature(Function::AbsentOverTime, "absent_over_time", &[Range], Vector),
    signature(Function::AvgOverTime, "avg_over_time", &[Range], Vector),
    signature(Function::Ceil, "ceil", &[Vector], Vector),
    signature(Function::Changes, "changes", &[Range], Vector),
    signature(Function::Clamp, "clamp", &[Vector, Scalar, Scalar], Vector),
    signature(Function::ClampMax, "clamp_max", &[Vector, Scalar], Vector),
    signature(Function::ClampMin, "clamp_min", &[Vector, Scalar], Vector),
    signature(Function::CountOverTime, "count_over_time", &[Range], Vector),
    signature(Function::Delta, "delta", &[Range], Vector),
    signature(Function::Deriv, "deriv", &[Range], Vector),
    signature(Function::Exp, "exp", &[Vector], Vector),
    signature(Function::Floor, "floor", &[Vector], Vector),
    signature(Function::HistogramQuantile, "histogram_quantile", &[Scalar, Vector], Vector),
    signature(Function::Idelta, "idelta", &[Range], Vector),
    signature(Function::Increase, "increase", &[Range], Vector),
    signature(Function::Irate, "irate", &[Range], Vector),
    Signature {
        at_least: 3,
        repeats_last: true,
        ..signature(Function::LabelJoin, "label_join", &[Vector, Text, Text, Text], Vector)
    },
    signature(Function::LabelReplace, "label_replace", &[Vector, Text, Text, Text, Text], Vector),
    signature(Function::LastOverTime, "last_over_time", &[Range], Vector),
    signature(Function::Ln, "ln", &[Vector], Vector),
    signature(Function::Log10, "log10", &[Vector], Vector),
    signature(Function::Log2, "log2", &[Vector], Vector),
    signature(Function::MaxOverTime, "max_over_time", &[Range], Vector),
    signature(Function::MinOverTime, "min_over_time", &[Range], Vector),
    signature(Function::PredictLinear, "predict_linear", &[Range, Scalar], Vector),
    signature(Function::PresentOverTime, "present_over_time", &[Range], Vector),
    signature(Function::QuantileOverTime, "quantile_over_time", &[Scalar, Range], Vector),
    signature(Function::Rate, "rate", &[Range], Vector),
    signature(Function::Resets, "resets", &[Range], Vector),
    Signature { at_least: 1, ..signature(Function::Round, "round", &[Vector, Scalar], Vector) },
    signature(Function::Scalar, "scalar", &[Vector], Scalar),
    signature(Function::Sgn, "sgn", &[Vector], Vector),
    signature(Function::Sort, "sort", &[Vector], Vector),
    signature(Function::SortDesc, "sort_desc", &[Vector], Vector),
    signature(Function::Sqrt, "sqrt", &[Vector], Vector),
    signature(Function::StddevOverTime, "stddev_over_time", &[Range], Vector),
    signature(Function::StdvarOverTime, "stdvar_over_time", &[Range], Vector),
    signature(Function::SumOverTime, "sum_over_time", &[Range], Vector),
    signature(Function::Time, "time", &[], Scalar),
    signature(Function::Timestamp, "timestamp", &[Vector], Vector),
    signature(Function::Vector, "vector", &[Scalar], Vector),
];

/// Unsupported functions of Prometheus, each with an alternative.
pub(super) static REFUSED: [(&str, &str); 10] = [
    ("histogram_avg", NATIVE),
    ("histogram_count", NATIVE),
    ("histogram_sum", NATIVE),
    ("histogram_fraction", NATIVE),
    ("histogram_stddev", NATIVE),
    ("histogram_stdvar", NATIVE),
    ("double_exponential_smoothing", "use avg_over_time or deriv"),
    ("holt_winters", "use avg_over_time or deriv"),
    ("sort_by_label", UNORDERED),
    ("sort_by_label_desc", UNORDERED),
];

const UNORDERED: &str = "it is experimental in Prometheus: leave it out";

const NATIVE: &str = "there are no native histograms here: use the _sum and _count series";

/// Further unsupported functions of Prometheus.
pub(super) static UNBUILT: [&str; 34] = [
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "cos",
    "cosh",
    "day_of_month",
    "day_of_week",
    "day_of_year",
    "days_in_month",
    "deg",
    "hour",
    "info",
    "mad_over_time",
    "minute",
    "month",
    "pi",
    "rad",
    "sin",
    "sinh",
    "tan",
    "tanh",
    "year",
    "ts_of_first_over_time",
    "ts_of_last_over_time",
    "ts_of_max_over_time",
    "ts_of_min_over_time",
    "first_over_time",
    "step",
    "range",
    "start",
    "end",
];

impl Function {
    /// The function with a name.
    pub(super) fn named(name: &str) -> Option<&'static Signature> {
        FUNCTIONS.iter().find(|signature| signature.name == name)
    }

    /// The row of the function in the table.
    pub(super) fn signature(self) -> &'static Signature {
        &FUNCTIONS[self as usize]
    }

    pub(super) fn returns(self) -> ValueType {
        self.signature().returns
    }
}
