//! Comparisons of an expression with a number.

use std::ops::Range;

use super::super::syntax::{BinaryOp, Kind, Node, ValueType};
use super::bounds::constant;
use super::key::key;

/// A vector that is compared with a number: it has a result where its value is on one side.
#[derive(Clone, Debug, PartialEq)]
pub struct Threshold {
    /// The compared expression, in canonical form.
    key: String,
    /// Whether values below the number pass, and not those above.
    passes_below: bool,
    /// Whether the number itself passes.
    is_inclusive: bool,
    number: f64,
    /// The number's place in the text.
    pub span: Range<usize>,
}

impl Threshold {
    /// The operator, with the number on the right.
    pub fn symbol(&self) -> &'static str {
        match (self.passes_below, self.is_inclusive) {
            (true, false) => "<",
            (true, true) => "<=",
            (false, false) => ">",
            (false, true) => ">=",
        }
    }

    /// The operator that passes exactly the other values.
    pub fn opposite(&self) -> &'static str {
        let other = Self {
            passes_below: !self.passes_below,
            is_inclusive: !self.is_inclusive,
            ..self.clone()
        };
        other.symbol()
    }

    /// Whether one value of the same expression passes both.
    pub fn overlaps(&self, other: &Self) -> bool {
        if self.key != other.key || self.number.is_nan() || other.number.is_nan() {
            return false;
        }
        let (below, above) = match (self.passes_below, other.passes_below) {
            (true, false) => (self, other),
            (false, true) => (other, self),
            _ => return true,
        };
        let meet = below.number == above.number;
        above.number < below.number || meet && above.is_inclusive && below.is_inclusive
    }
}

/// The comparison that an expression is, if it is one of a vector with a number.
pub(crate) fn threshold(root: &Node) -> Option<Threshold> {
    let Kind::Binary(binary) = &root.bare().kind else { return None };
    if binary.returns_bool {
        return None;
    }
    let (passes_below, is_inclusive) = match binary.op {
        BinaryOp::Less => (true, false),
        BinaryOp::LessOrEqual => (true, true),
        BinaryOp::Greater => (false, false),
        BinaryOp::GreaterOrEqual => (false, true),
        _ => return None,
    };
    let (vector, written, number, passes_below) =
        match (constant(&binary.left), constant(&binary.right)) {
            (None, Some(number)) => (&binary.left, &binary.right, number, passes_below),
            (Some(number), None) => (&binary.right, &binary.left, number, !passes_below),
            _ => return None,
        };
    (vector.value_type() == ValueType::Vector).then(|| Threshold {
        key: key(vector),
        passes_below,
        is_inclusive,
        number,
        span: written.span.clone(),
    })
}
