#![doc = include_str!("../README.md")]

mod alert;
mod analysis;
mod check;
mod display;
mod eval;
mod expr;
mod functions;
mod lexer;
mod literal;
mod matcher;
mod parser;
mod quiet;
mod reading;
mod rewrite;
mod selection;
mod series;
pub mod store;
mod suggest;
mod syntax;
pub mod template;
#[cfg(test)]
mod tests;
mod trace;
mod typing;
mod vocabulary;

pub use alert::{Alert, AlertRule, AlertState, Alerts};
pub use analysis::{Effort, Facts, Never, Threshold};
pub use expr::{
    EvalTime, Evaluated, Expr, ExprError, KnownSeries, Labels, Sample, Value, number, parse,
    parse_query, unquote,
};
pub use parser::is_label_name;
pub use quiet::Watch;
pub use reading::{Reading, as_number};
pub use selection::Selection;
pub use series::{CLUSTER_LABEL, EXPORTED_NODE_LABEL, NODE_LABEL, SeriesKey, Wanted};
pub use suggest::did_you_mean;
pub use syntax::ValueType;
pub use trace::{Relation, Traced, TracedRange, TracedValue};
pub use vocabulary::{Vocabulary, vocabulary};
