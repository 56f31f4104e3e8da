//! Values as terms, which can be compared without numbers.

use std::rc::Rc;

use super::super::syntax::BinaryOp;
use super::bounds::Bounds;

/// The element of a vector; `None`: the only possible one.
pub(super) type Scope = Option<u32>;

/// One value at one instant. Equal terms have the same value to the last bit.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Term {
    /// A known number.
    Number(f64),
    /// The value of an opaque expression.
    Leaf(Leaf),
    /// A sum, a difference, a product or a quotient.
    Combined(BinaryOp, Rc<(Term, Term)>),
}

/// The value of one element.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Leaf {
    /// The expression, in canonical form.
    pub(super) key: Rc<str>,
    /// The element.
    pub(super) scope: Scope,
    /// The bounds of the value.
    pub(super) bounds: Bounds,
}

/// The cost limit of the analysis of one expression.
#[derive(Debug)]
pub(super) struct Fuel(pub(super) u32);

impl Fuel {
    /// Subtracts a cost. Returns whether enough was left.
    pub(super) fn burn(&mut self, amount: usize) -> bool {
        self.0 = self.0.saturating_sub(u32::try_from(amount).unwrap_or(u32::MAX));
        self.0 > 0
    }
}

impl Term {
    /// The value of an operator.
    pub(super) fn combined(op: BinaryOp, left: Self, right: Self) -> Self {
        Self::Combined(op, Rc::new((left, right)))
    }

    /// The bounds of the value.
    pub(super) fn bounds(&self) -> Bounds {
        match self {
            Self::Number(number) => Bounds::exactly(*number),
            Self::Leaf(leaf) => leaf.bounds,
            Self::Combined(op, sides) => Bounds::combined(*op, sides.0.bounds(), sides.1.bounds()),
        }
    }

    /// The leaves below.
    pub(super) fn leaves<'t>(&'t self, out: &mut Vec<&'t Leaf>) {
        match self {
            Self::Number(_) => {}
            Self::Leaf(leaf) => out.push(leaf),
            Self::Combined(_, sides) => {
                sides.0.leaves(out);
                sides.1.leaves(out);
            }
        }
    }

    /// The term with other scopes.
    pub(super) fn moved(&self, to: &dyn Fn(Scope) -> Scope) -> Self {
        match self {
            Self::Number(number) => Self::Number(*number),
            Self::Leaf(leaf) => Self::Leaf(Leaf { scope: to(leaf.scope), ..leaf.clone() }),
            Self::Combined(op, sides) => Self::combined(*op, sides.0.moved(to), sides.1.moved(to)),
        }
    }

    /// Whether it is never greater than another, neither being NaN. Adding, scaling and rounding
    /// keep the order of their operands, so that proofs hold for floating-point values too.
    pub(super) fn never_exceeds(&self, other: &Self, fuel: &mut Fuel) -> bool {
        if !fuel.burn(1) {
            return false;
        }
        if self == other || self.bounds().most <= other.bounds().least {
            return true;
        }
        grows(self, other, fuel) || shrinks(self, other, fuel) || pairwise(self, other, fuel)
    }

    /// Whether it is always less than another, neither being NaN.
    pub(super) fn stays_below(&self, other: &Self) -> bool {
        self.bounds().most < other.bounds().least
    }

    fn is_positive(&self) -> bool {
        self.bounds().least >= 0.0
    }
}

/// `a ≤ c + d` if `a ≤ c` and `d` is not negative.
fn grows(term: &Term, other: &Term, fuel: &mut Fuel) -> bool {
    let Term::Combined(op, sides) = other else { return false };
    match op {
        BinaryOp::Add => {
            sides.1.is_positive() && term.never_exceeds(&sides.0, fuel)
                || sides.0.is_positive() && term.never_exceeds(&sides.1, fuel)
        }
        BinaryOp::Subtract => sides.1.bounds().most <= 0.0 && term.never_exceeds(&sides.0, fuel),
        _ => false,
    }
}

/// `a - b ≤ c` if `a ≤ c` and `b` is not negative.
fn shrinks(term: &Term, other: &Term, fuel: &mut Fuel) -> bool {
    let Term::Combined(op, sides) = term else { return false };
    let one = Term::Number(1.0);
    match op {
        BinaryOp::Subtract => sides.1.is_positive() && sides.0.never_exceeds(other, fuel),
        BinaryOp::Divide => {
            sides.0.is_positive()
                && one.never_exceeds(&sides.1, fuel)
                && sides.0.never_exceeds(other, fuel)
        }
        BinaryOp::Multiply => {
            let (left, right) = (&sides.0, &sides.1);
            left.is_positive()
                && right.is_positive()
                && (right.never_exceeds(&one, fuel) && left.never_exceeds(other, fuel)
                    || left.never_exceeds(&one, fuel) && right.never_exceeds(other, fuel))
        }
        _ => false,
    }
}

/// The same operator on operands in order.
fn pairwise(term: &Term, other: &Term, fuel: &mut Fuel) -> bool {
    let (Term::Combined(op, left), Term::Combined(same, right)) = (term, other) else {
        return false;
    };
    if op != same {
        return false;
    }
    let (a, b, c, d) = (&left.0, &left.1, &right.0, &right.1);
    let mut ordered = |low: &Term, high: &Term| low.never_exceeds(high, fuel);
    match op {
        BinaryOp::Add => ordered(a, c) && ordered(b, d) || ordered(a, d) && ordered(b, c),
        BinaryOp::Subtract => ordered(a, c) && ordered(d, b),
        BinaryOp::Multiply if [a, b, c, d].iter().all(|term| term.is_positive()) => {
            ordered(a, c) && ordered(b, d) || ordered(a, d) && ordered(b, c)
        }
        BinaryOp::Divide if a.is_positive() && d.bounds().least > 0.0 => {
            ordered(a, c) && ordered(d, b)
        }
        _ => false,
    }
}
