//! The supported and unsupported vocabulary of rules, for documents, from the tables of the parser.

use super::functions::{FUNCTIONS, REFUSED, Signature, UNBUILT};
use super::parser::REFUSED_AGGREGATIONS;
use super::syntax::{AggregateOp, BinaryOp, ValueType};

/// What expressions of rules may contain, and what they may not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vocabulary {
    /// Binary operators in groups of equal precedence, the weakest first.
    pub operators: Vec<Vec<&'static str>>,
    /// Aggregations, each with its arguments.
    pub aggregations: Vec<String>,
    /// Functions, each with its arguments.
    pub functions: Vec<String>,
    /// Unsupported parts of PromQL, each with an alternative, if there is one.
    pub refused: Vec<(&'static str, Option<&'static str>)>,
}

/// The complete vocabulary.
pub fn vocabulary() -> Vocabulary {
    let mut operators: Vec<Vec<&'static str>> = Vec::new();
    for strength in 1..=6 {
        let same = BinaryOp::ALL.into_iter().filter(|op| op.precedence() == strength);
        operators.push(same.map(BinaryOp::symbol).collect());
    }
    let aggregation = |op: AggregateOp| match op.takes_parameter() {
        true => format!("{}(number, vector)", op.name()),
        false => format!("{}(vector)", op.name()),
    };
    let instead = |(name, hint): &(&'static str, &'static str)| (*name, Some(*hint));
    let refused = REFUSED_AGGREGATIONS.iter().chain(&REFUSED).map(instead);
    Vocabulary {
        operators,
        aggregations: AggregateOp::ALL.into_iter().map(aggregation).collect(),
        functions: FUNCTIONS.iter().map(usage).collect(),
        refused: refused.chain(UNBUILT.iter().map(|name| (*name, None))).collect(),
    }
}

/// The signature of a function.
pub(super) fn usage(signature: &Signature) -> String {
    let word = |kind: &ValueType| match kind {
        ValueType::Scalar => "number",
        ValueType::Text => "\"text\"",
        ValueType::Vector => "vector",
        ValueType::Range => "metric[5m]",
    };
    let words: Vec<&str> = signature.arguments.iter().map(word).collect();
    format!("{}({})", signature.name, words.join(", "))
}
