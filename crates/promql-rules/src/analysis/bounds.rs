//! Bounds of a value.

use super::super::KnownSeries;
use super::super::eval::{arithmetic, compares};
use super::super::functions::Function;
use super::super::syntax::{Aggregate, AggregateOp, Binary, BinaryOp, Kind, Node, Selector};

/// Every reading fits into 64 bits.
const READING: f64 = 1e20;
/// The most samples that a sum can have.
const SAMPLES: f64 = 1e12;

/// The range of a value; NaN is not covered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bounds {
    /// The least value.
    pub(super) least: f64,
    /// The greatest value.
    pub(super) most: f64,
    /// The greatest distance from 0; infinite if the value may be infinite or NaN.
    pub(super) reach: f64,
}

impl Bounds {
    /// Unknown bounds.
    pub(super) const ANY: Self =
        Self { least: f64::NEG_INFINITY, most: f64::INFINITY, reach: f64::INFINITY };

    /// At least 0, and maybe NaN.
    const POSITIVE: Self = Self { least: 0.0, ..Self::ANY };

    pub(super) fn exactly(number: f64) -> Self {
        match number.is_nan() {
            true => Self::ANY,
            false => Self { least: number, most: number, reach: number.abs() },
        }
    }

    fn number(least: f64, most: f64) -> Self {
        Self { least, most, reach: READING }
    }

    /// Whether it is neither NaN nor infinite for sure.
    pub(super) fn is_finite(self) -> bool {
        self.reach.is_finite()
    }

    fn joined(self, other: Self) -> Self {
        Self {
            least: self.least.min(other.least),
            most: self.most.max(other.most),
            reach: self.reach.max(other.reach),
        }
    }

    fn sign_only(self) -> Self {
        let all = if self.least >= 0.0 { Self::POSITIVE } else { Self::ANY };
        Self { reach: self.reach * SAMPLES, ..all }
    }

    /// Of a sum, a difference, a product or a quotient of values within two bounds. Rounding keeps
    /// order, so that bounds hold to the last digit.
    pub(super) fn combined(op: BinaryOp, left: Self, right: Self) -> Self {
        let (least, most, reach) = match op {
            BinaryOp::Add => {
                (left.least + right.least, left.most + right.most, left.reach + right.reach)
            }
            BinaryOp::Subtract => {
                (left.least - right.most, left.most - right.least, left.reach + right.reach)
            }
            BinaryOp::Multiply if left.least >= 0.0 && right.least >= 0.0 => {
                (left.least * right.least, left.most * right.most, left.reach * right.reach)
            }
            BinaryOp::Divide if left.least >= 0.0 && right.least > 0.0 => {
                (left.least / right.most, left.most / right.least, left.reach / right.least)
            }
            BinaryOp::Multiply => return Self { reach: left.reach * right.reach, ..Self::ANY },
            _ => return Self::ANY,
        };
        Self {
            least: if least.is_nan() { f64::NEG_INFINITY } else { least },
            most: if most.is_nan() { f64::INFINITY } else { most },
            reach: if reach.is_nan() { f64::INFINITY } else { reach },
        }
    }
}

/// The number that an expression of numbers alone yields.
pub(super) fn constant(node: &Node) -> Option<f64> {
    match &node.kind {
        Kind::Number(number) => Some(*number),
        Kind::Parentheses(inner) => constant(inner),
        Kind::Unary { negative, operand } => {
            constant(operand).map(|number| if *negative { -number } else { number })
        }
        Kind::Binary(binary) => {
            let (left, right) = (constant(&binary.left)?, constant(&binary.right)?);
            Some(match binary.op.is_comparison() {
                true => f64::from(u8::from(compares(binary.op, left, right))),
                false => arithmetic(binary.op, left, right),
            })
        }
        _ => None,
    }
}

/// The bounds of every value that an expression yields.
pub(super) fn bounds(node: &Node, known: &dyn KnownSeries) -> Bounds {
    if let Some(number) = constant(node) {
        return Bounds::exactly(number);
    }
    match &node.kind {
        Kind::Number(_) | Kind::Text(_) => Bounds::ANY,
        Kind::Selector(inner) | Kind::Range { selector: inner, .. } => selector(inner, known),
        Kind::Parentheses(inner) => bounds(inner, known),
        Kind::Unary { negative, operand } => match (negative, bounds(operand, known)) {
            (true, Bounds { least, most, reach }) => Bounds { least: -most, most: -least, reach },
            (false, same) => same,
        },
        Kind::Aggregate(inner) => aggregate(inner, known),
        Kind::Binary(inner) => binary(inner, known),
        Kind::Call { function, arguments, .. } => call(*function, arguments, known),
    }
}

fn selector(selector: &Selector, known: &dyn KnownSeries) -> Bounds {
    match known.bounds(&selector.name) {
        Some((least, most)) => Bounds::number(least, most),
        None => Bounds::ANY,
    }
}

fn aggregate(aggregate: &Aggregate, known: &dyn KnownSeries) -> Bounds {
    let operand = bounds(&aggregate.operand, known);
    match aggregate.op {
        AggregateOp::Min | AggregateOp::Max | AggregateOp::Topk | AggregateOp::Bottomk => operand,
        AggregateOp::Sum | AggregateOp::Avg => operand.sign_only(),
        AggregateOp::Count => Bounds::number(1.0, f64::INFINITY),
        AggregateOp::Group => Bounds::number(1.0, 1.0),
        AggregateOp::Stddev | AggregateOp::Stdvar => Bounds::POSITIVE,
        AggregateOp::Quantile => Bounds::ANY,
    }
}

fn binary(binary: &Binary, known: &dyn KnownSeries) -> Bounds {
    if binary.returns_bool {
        return Bounds::number(0.0, 1.0);
    }
    let (left, right) = (bounds(&binary.left, known), bounds(&binary.right, known));
    match binary.op {
        BinaryOp::Or => left.joined(right),
        BinaryOp::And | BinaryOp::Unless => left,
        op if op.is_comparison() => match constant(&binary.left) {
            // The result has the value of the vector.
            Some(_) => right,
            None => left,
        },
        op => Bounds::combined(op, left, right),
    }
}

fn call(function: Function, arguments: &[Node], known: &dyn KnownSeries) -> Bounds {
    let argument = || arguments.first().map_or(Bounds::ANY, |node| bounds(node, known));
    match function {
        Function::Absent | Function::AbsentOverTime | Function::PresentOverTime => {
            Bounds::number(1.0, 1.0)
        }
        Function::CountOverTime => Bounds::number(1.0, f64::INFINITY),
        Function::Changes | Function::Resets => Bounds::number(0.0, f64::INFINITY),
        Function::MinOverTime | Function::MaxOverTime | Function::LastOverTime => argument(),
        Function::Sort | Function::SortDesc | Function::LabelReplace | Function::LabelJoin => {
            argument()
        }
        Function::SumOverTime | Function::AvgOverTime => argument().sign_only(),
        Function::Rate | Function::Increase | Function::Irate => {
            Bounds { reach: f64::INFINITY, ..argument().sign_only() }
        }
        Function::Abs
        | Function::Sqrt
        | Function::Exp
        | Function::StddevOverTime
        | Function::StdvarOverTime
        | Function::Time => Bounds::POSITIVE,
        Function::Vector => argument(),
        _ => Bounds::ANY,
    }
}
