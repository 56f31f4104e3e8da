//! Proves by a few numbers, without vectors, that an expression has no result.
//!
//! Nearly every rule is quiet nearly all the time. A [`Watch`] proves that if possible, and
//! otherwise evaluates the expression.

#[cfg(test)]
mod tests;

use super::eval::{
    Range, apply, compares, evaluate_root, is_open, matching_series, reduced, scalars,
};
use super::functions::Function;
use super::syntax::{Aggregate, AggregateOp, Binary, BinaryOp, Kind, Node, Selector};
use super::{EvalTime, Evaluated, Expr, Value};
use crate::store::{Revisions, SeriesId, SeriesStore};

/// The most elements on a side of `or` for a proof, since both have a bound.
const MOST_ELEMENTS: usize = 5000;

/// Evaluates one expression over one store, again and again.
#[derive(Debug, Default)]
pub struct Watch {
    proof: Option<Proof>,
    /// Whether a reading had failed when `proof` was made.
    has_failed: bool,
    /// The state of the store for which `proof` was made, without missing readings.
    known: Option<(Revisions, bool)>,
}

impl Watch {
    /// The result of [`Expr::evaluate`]. The expression and the store must always be the same.
    pub fn evaluate(
        &mut self,
        expr: &Expr,
        store: &SeriesStore,
        at: EvalTime,
    ) -> Result<Evaluated, String> {
        let now = store.revisions();
        // Which readings failed, and whether any is lacking, depends on their kinds alone.
        let is_same = |known: Revisions| (known.series, known.kinds) == (now.series, now.kinds);
        let holds =
            self.known.is_some_and(|(known, lacks_nothing)| lacks_nothing && is_same(known));
        if holds && self.proof.as_ref().is_some_and(|proof| proof.is_empty(store, at)) {
            let nothing = Ok(Evaluated::Known(Value::Vector(Vec::new())));
            if cfg!(any(test, feature = "check-proofs")) {
                assert_eq!(nothing, expr.evaluate(store, at), "{expr}");
            }
            return nothing;
        }
        let evaluation = evaluate_root(&expr.root, store, at);
        let has_failed = evaluation.as_ref().map_or(true, |evaluation| evaluation.has_failed);
        let is_of_now = self.known.is_some_and(|(known, _)| {
            known.series == now.series
                && (known.kinds == now.kinds || !(has_failed || self.has_failed))
        });
        if !is_of_now {
            self.proof = QuietPart::of(&expr.root, store).map(QuietPart::proof);
            self.has_failed = has_failed;
        }
        self.known = Some((now, evaluation.as_ref().is_ok_and(|evaluation| !evaluation.lacks)));
        evaluation.map(|evaluation| evaluation.evaluated)
    }
}

/// The proof for an expression whose evaluation cannot fail.
#[derive(Debug)]
enum QuietPart {
    Scalar(QuietNumber),
    /// A vector with its numbers.
    Vector(Numbers),
    /// A vector without some elements.
    Filtered(Proof),
}

/// The condition of an empty vector.
#[derive(Debug)]
enum Proof {
    /// There are no numbers.
    Absent(Numbers),
    /// No pair of numbers satisfies the comparison. One side has at most one number.
    Compares { op: BinaryOp, left: Numbers, right: Numbers },
    /// Any of these is empty; the cheapest first.
    All(Vec<Proof>),
    /// All of these are empty.
    Any(Vec<Proof>),
    /// Never, since readings failed; with the most elements.
    Open(usize),
}

/// The values of a vector's elements, which have distinct labels.
#[derive(Debug)]
enum Numbers {
    /// At most this one.
    One(QuietNumber),
    /// Several values.
    Many(ValuesOfSeries),
}

/// A number, or none. Elements without a required match give none.
#[derive(Debug)]
enum QuietNumber {
    Constant(f64),
    Now,
    Single(ValuesOfSeries),
    Negative(Box<Self>),
    Computed { op: BinaryOp, left: Box<Self>, right: Box<Self> },
    Reduced { op: AggregateOp, parameter: f64, of: Box<Numbers> },
}

/// The values of several series, in their order.
#[derive(Debug)]
struct ValuesOfSeries {
    ids: Vec<SeriesId>,
    value: SeriesValue,
    /// Whether a reading failed.
    is_open: bool,
}

#[derive(Clone, Copy, Debug)]
enum SeriesValue {
    Latest { offset_ms: i64 },
    Over { function: Function, range_ms: i64, offset_ms: i64, parameter: f64 },
}

impl QuietPart {
    /// `None`: evaluation might fail, or a proof would cost more.
    fn of(node: &Node, store: &SeriesStore) -> Option<Self> {
        match &node.kind {
            Kind::Number(number) => Some(Self::Scalar(QuietNumber::Constant(*number))),
            Kind::Selector(selector) => {
                let value = SeriesValue::Latest { offset_ms: selector.offset_ms };
                Some(Self::series(selector, store, value))
            }
            Kind::Parentheses(inner) => Self::of(inner, store),
            Kind::Unary { negative: false, operand } => Self::of(operand, store),
            Kind::Unary { operand, .. } => {
                let negative = |number| QuietNumber::Negative(Box::new(number));
                match Self::of(operand, store)? {
                    Self::Scalar(number) => Some(Self::Scalar(negative(number))),
                    Self::Vector(Numbers::One(number)) => {
                        Some(Self::Vector(Numbers::One(negative(number))))
                    }
                    Self::Vector(Numbers::Many(_)) | Self::Filtered(_) => None,
                }
            }
            Kind::Binary(binary) => Self::of_binary(binary, store),
            Kind::Aggregate(aggregate) => Self::of_aggregate(aggregate, store),
            Kind::Call { function: Function::Time, .. } => Some(Self::Scalar(QuietNumber::Now)),
            Kind::Call { function, arguments, pattern: None } => {
                Self::of_call(*function, arguments, store)
            }
            Kind::Call { .. } | Kind::Text(_) | Kind::Range { .. } => None,
        }
    }

    fn series(selector: &Selector, store: &SeriesStore, value: SeriesValue) -> Self {
        let is_open = is_open(selector, store);
        let many = ValuesOfSeries { ids: matching_series(selector, store), value, is_open };
        Self::Vector(match many.ids.len() {
            0 | 1 => Numbers::One(QuietNumber::Single(many)),
            _ => Numbers::Many(many),
        })
    }

    fn of_call(function: Function, arguments: &[Node], store: &SeriesStore) -> Option<Self> {
        let mut parameter = f64::NAN;
        let mut range = None;
        for argument in arguments {
            match &argument.bare().kind {
                Kind::Range { selector, range_ms } => range = Some((selector, *range_ms)),
                _ => match Self::of(argument, store)? {
                    Self::Scalar(QuietNumber::Constant(number)) => parameter = number,
                    _ => return None,
                },
            }
        }
        let (selector, range_ms) = range.filter(|_| function != Function::AbsentOverTime)?;
        let offset_ms = selector.offset_ms;
        let value = SeriesValue::Over { function, range_ms, offset_ms, parameter };
        let was_cut = matching_series(selector, store).iter().any(|id| store.was_cut(*id));
        (!was_cut).then(|| Self::series(selector, store, value))
    }

    fn of_aggregate(aggregate: &Aggregate, store: &SeriesStore) -> Option<Self> {
        let op = aggregate.op;
        let parameter = match &aggregate.parameter {
            None => f64::NAN,
            Some(node) => match Self::of(node, store)? {
                Self::Scalar(QuietNumber::Constant(number)) => number,
                _ => return None,
            },
        };
        let keeps_elements = matches!(op, AggregateOp::Topk | AggregateOp::Bottomk);
        let is_one = aggregate.grouping.is_empty() && !aggregate.without;
        match Self::of(&aggregate.operand, store)? {
            // Nothing aggregates to nothing.
            Self::Filtered(proof) => Some(Self::Filtered(proof)),
            Self::Vector(numbers)
                if !keeps_elements && (is_one || matches!(numbers, Numbers::One(_))) =>
            {
                let of = Box::new(numbers);
                Some(Self::Vector(Numbers::One(QuietNumber::Reduced { op, parameter, of })))
            }
            _ => None,
        }
    }

    fn of_binary(binary: &Binary, store: &SeriesStore) -> Option<Self> {
        let op = binary.op;
        let left = Self::of(&binary.left, store)?;
        let right = Self::of(&binary.right, store)?;
        match op {
            BinaryOp::And => return Some(Self::Filtered(Proof::all(left.proof(), right.proof()))),
            BinaryOp::Unless => return Some(Self::Filtered(left.proof())),
            BinaryOp::Or => {
                let (left, right) = (left.proof(), right.proof());
                let is_small = left.most() + right.most() <= MOST_ELEMENTS;
                return is_small.then(|| Self::Filtered(Proof::Any(vec![left, right])));
            }
            _ => {}
        }
        let (left, right) = match (left, right) {
            // Nothing and a number make nothing.
            (Self::Filtered(proof), Self::Scalar(_)) | (Self::Scalar(_), Self::Filtered(proof)) => {
                return Some(Self::Filtered(proof));
            }
            both => both,
        };
        let scalars = [left.is_scalar(), right.is_scalar()];
        match (left.numbers()?, right.numbers()?) {
            (left, right) if op.is_comparison() && !binary.returns_bool => {
                let are_single = matches!((&left, &right), (Numbers::One(_), Numbers::One(_)));
                let is_sure = are_single || scalars.contains(&true);
                let most = left.most().max(right.most());
                is_sure.then(|| match left.is_open() || right.is_open() {
                    true => Self::Filtered(Proof::Open(most)),
                    false => Self::Filtered(Proof::Compares { op, left, right }),
                })
            }
            (Numbers::One(left), Numbers::One(right)) => {
                let computed = QuietNumber::Computed { op, left: left.into(), right: right.into() };
                let is_scalar = scalars == [true; 2];
                let vector = |number| Self::Vector(Numbers::One(number));
                Some(if is_scalar { Self::Scalar(computed) } else { vector(computed) })
            }
            _ => None,
        }
    }

    fn is_scalar(&self) -> bool {
        matches!(self, Self::Scalar(_))
    }

    fn numbers(self) -> Option<Numbers> {
        match self {
            Self::Scalar(number) => Some(Numbers::One(number)),
            Self::Vector(numbers) => Some(numbers),
            Self::Filtered(_) => None,
        }
    }

    fn proof(self) -> Proof {
        match self {
            Self::Scalar(number) => Proof::Absent(Numbers::One(number)),
            Self::Vector(numbers) if numbers.is_open() => Proof::Open(numbers.most()),
            Self::Vector(numbers) => Proof::Absent(numbers),
            Self::Filtered(proof) => proof,
        }
    }
}

impl Proof {
    fn all(left: Self, right: Self) -> Self {
        let mut all = Vec::new();
        for side in [left, right] {
            match side {
                Self::All(proofs) => all.extend(proofs),
                proof => all.push(proof),
            }
        }
        all.sort_by_key(Self::cost);
        Self::All(all)
    }

    /// Whether the vector is certainly empty.
    fn is_empty(&self, store: &SeriesStore, at: EvalTime) -> bool {
        match self {
            Self::Absent(Numbers::One(number)) => number.value(store, at).is_none(),
            Self::Absent(Numbers::Many(many)) => many.values(store, at).next().is_none(),
            Self::Compares { op, left, right } => {
                let holds = |left, right| compares(*op, left, right);
                !match (left, right) {
                    (Numbers::One(left), Numbers::One(right)) => left
                        .value(store, at)
                        .zip(right.value(store, at))
                        .is_some_and(|(left, right)| holds(left, right)),
                    (Numbers::Many(many), Numbers::One(one)) => {
                        let one = one.value(store, at);
                        one.is_some_and(|one| many.values(store, at).any(|of| holds(of, one)))
                    }
                    (Numbers::One(one), Numbers::Many(many)) => {
                        let one = one.value(store, at);
                        one.is_some_and(|one| many.values(store, at).any(|of| holds(one, of)))
                    }
                    (Numbers::Many(_), Numbers::Many(_)) => true,
                }
            }
            Self::All(proofs) => proofs.iter().any(|proof| proof.is_empty(store, at)),
            Self::Any(proofs) => proofs.iter().all(|proof| proof.is_empty(store, at)),
            Self::Open(_) => false,
        }
    }

    /// The most elements that the vector can have.
    fn most(&self) -> usize {
        match self {
            Self::Absent(numbers) => numbers.most(),
            Self::Compares { left, right, .. } => left.most().max(right.most()),
            Self::All(proofs) | Self::Any(proofs) => proofs.iter().map(Self::most).sum(),
            Self::Open(most) => *most,
        }
    }

    /// The approximate cost, in lookups of a value.
    fn cost(&self) -> usize {
        match self {
            Self::Absent(numbers) => numbers.cost(),
            Self::Compares { left, right, .. } => left.cost() + right.cost(),
            Self::All(proofs) | Self::Any(proofs) => proofs.iter().map(Self::cost).sum(),
            Self::Open(_) => 0,
        }
    }
}

impl Numbers {
    fn is_open(&self) -> bool {
        match self {
            Self::One(number) => number.is_open(),
            Self::Many(many) => many.is_open,
        }
    }

    fn most(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Many(many) => many.ids.len(),
        }
    }

    fn cost(&self) -> usize {
        match self {
            Self::One(number) => number.cost(),
            Self::Many(many) => many.cost(),
        }
    }
}

impl QuietNumber {
    fn value(&self, store: &SeriesStore, at: EvalTime) -> Option<f64> {
        match self {
            Self::Constant(number) => Some(*number),
            Self::Now => Some(at.utc_ms as f64 / 1000.0),
            Self::Single(many) => many.values(store, at).next(),
            Self::Negative(number) => number.value(store, at).map(|number| -number),
            Self::Computed { op, left, right } => {
                Some(scalars(*op, left.value(store, at)?, right.value(store, at)?))
            }
            Self::Reduced { op, parameter, of } => match &**of {
                Numbers::One(number) => {
                    let value = number.value(store, at)?;
                    Some(reduced(*op, *parameter, std::iter::once(value)))
                }
                Numbers::Many(many) => {
                    let mut values = many.values(store, at).peekable();
                    values.peek()?;
                    Some(reduced(*op, *parameter, values))
                }
            },
        }
    }

    fn is_open(&self) -> bool {
        match self {
            Self::Constant(_) | Self::Now => false,
            Self::Single(many) => many.is_open,
            Self::Negative(number) => number.is_open(),
            Self::Computed { left, right, .. } => left.is_open() || right.is_open(),
            Self::Reduced { of, .. } => of.is_open(),
        }
    }

    fn cost(&self) -> usize {
        match self {
            Self::Constant(_) | Self::Now => 0,
            Self::Single(many) => many.cost(),
            Self::Negative(number) => number.cost(),
            Self::Computed { left, right, .. } => left.cost() + right.cost(),
            Self::Reduced { of, .. } => of.cost(),
        }
    }
}

impl ValuesOfSeries {
    fn values(&self, store: &SeriesStore, at: EvalTime) -> impl Iterator<Item = f64> {
        self.ids.iter().filter_map(move |id| self.value.of(*id, store, at))
    }

    fn cost(&self) -> usize {
        let each = match self.value {
            SeriesValue::Latest { .. } => 1,
            SeriesValue::Over { function, .. } if is_difference(function) => 4,
            SeriesValue::Over { .. } => 40,
        };
        each * self.ids.len()
    }
}

impl SeriesValue {
    fn of(self, id: SeriesId, store: &SeriesStore, at: EvalTime) -> Option<f64> {
        match self {
            Self::Latest { offset_ms } => {
                let at_ms = at.timeline_ms.saturating_sub(offset_ms);
                store.at(id, at_ms).map(|point| point.value)
            }
            Self::Over { function, range_ms, offset_ms, parameter } => {
                let range = Range::new(at.timeline_ms, offset_ms, range_ms, parameter);
                if is_difference(function) && store.is_flat(id, range.start_ms, range.end_ms) {
                    return Some(0.0);
                }
                apply(function, store.window(id, range.start_ms, range.end_ms), &range)
            }
        }
    }
}

/// Whether a function is 0 for a constant series.
fn is_difference(function: Function) -> bool {
    matches!(function, Function::Rate | Function::Increase | Function::Delta)
}
