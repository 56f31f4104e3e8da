//! Proofs about expressions without any values: that an expression never has a result, that one
//! follows from another, that two exclude each other.
//!
//! Everything here is one-sided: a result holds for every value that this build can export; without
//! a proof there is no result. The order of values is tracked through sums,
//! differences, products and quotients as floating-point numbers round them.

mod bounds;
mod cases;
mod key;
mod order;
mod shape;
mod term;
#[cfg(test)]
mod tests;
mod threshold;

use std::collections::BTreeSet;
use std::sync::Arc;

use super::check::values_hint;
use super::matcher::{MatchOp, Matcher};
use super::syntax::{Kind, Node, Selector, ValueType};
use super::{ExprError, KnownSeries};
use cases::{Analyzer, Case};
use order::{Atom, Order};
pub(super) use shape::shape;
use term::{Fuel, Scope, Term};
pub use threshold::Threshold;
pub(super) use threshold::threshold;

/// The first scope of a second expression.
const OTHER_SCOPES: u32 = 1 << 16;
/// The most assignments of elements of one expression to those of another that are tried.
const MOST_WAYS: usize = 64;
/// The cost limit of the comparison of two expressions, in comparisons of terms.
const FUEL: u32 = 20_000;
/// The least cost of the comparison of two expressions.
const LEAST: u32 = 20;

/// A part of an expression that never has a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Never {
    /// The span, the reason, and the remedy.
    pub why: ExprError,
    /// Whether the whole expression never has a result.
    pub whole: bool,
}

/// Parts that never have a result, in the order of evaluation.
pub(super) fn never(root: &Node, known: &dyn KnownSeries) -> Vec<Never> {
    let mut analyzer = Analyzer::new(known, 0);
    let scope = analyzer.fresh();
    let whole = analyzer.analyze(root, scope).cases.is_empty();
    analyzer.dead.into_iter().map(|why| Never { why, whole }).collect()
}

/// The remaining cost limit of comparisons of many expressions.
#[derive(Debug)]
pub struct Effort {
    left: u32,
}

impl Default for Effort {
    fn default() -> Self {
        Self { left: 3_000_000 }
    }
}

impl Effort {
    /// Whether it is used up: then no proof succeeds.
    pub fn is_spent(&self) -> bool {
        self.left == 0
    }

    /// Runs one comparison, and subtracts its cost.
    fn spend<T>(&mut self, compare: impl FnOnce(&mut Fuel) -> T) -> T {
        let given = FUEL.min(self.left);
        let mut fuel = Fuel(given);
        let found = compare(&mut fuel);
        self.left -= (given - fuel.0).max(LEAST).min(self.left);
        found
    }
}

/// The possible labels of the result of an expression.
pub(super) fn labels(root: &Node, known: &dyn KnownSeries) -> Option<Vec<Arc<str>>> {
    shape(root, known).map(|shape| shape.names())
}

/// Facts about an expression, for proofs with others.
#[derive(Clone, Debug)]
pub struct Facts {
    cases: Vec<Case>,
}

impl Facts {
    pub(super) fn of(root: &Node, known: &dyn KnownSeries) -> Self {
        let mut analyzer = Analyzer::new(known, 0);
        let scope = analyzer.fresh();
        let mut cases = analyzer.analyze(root, scope).cases;
        if root.value_type() == ValueType::Scalar {
            // A scalar always has a result: its truth is its value.
            cases.iter_mut().for_each(|case| case.complete = false);
        }
        Self { cases }
    }

    /// Whether it may have a result.
    pub fn is_possible(&self) -> bool {
        !self.cases.is_empty()
    }

    /// Whether the other expression has a result whenever this one has.
    pub fn implies(&self, other: &Self, effort: &mut Effort) -> bool {
        effort.spend(|fuel| {
            self.cases.iter().all(|given| {
                let wanted = other.cases.iter().filter(|wanted| wanted.complete);
                wanted.into_iter().any(|wanted| follows(given, wanted, fuel))
            })
        })
    }

    /// Whether this and the other expression never have results at the same time.
    pub fn excludes(&self, other: &Self, effort: &mut Effort) -> bool {
        let apart = |case: &Case| moved(case, &|scope| scope.map(|scope| scope + OTHER_SCOPES));
        let others: Vec<Case> = other.cases.iter().map(apart).collect();
        effort.spend(|fuel| {
            self.cases
                .iter()
                .all(|one| others.iter().all(|other| one.with(other).is_contradictory(fuel)))
        })
    }
}

/// The case with other scopes.
fn moved(case: &Case, to: &dyn Fn(Scope) -> Scope) -> Case {
    let atoms = case.atoms.iter().map(|atom| Atom {
        left: atom.left.moved(to),
        right: atom.right.moved(to),
        ..atom.clone()
    });
    Case {
        atoms: atoms.collect(),
        present: case.present.iter().map(|(key, scope)| (key.clone(), to(*scope))).collect(),
        complete: case.complete,
    }
}

fn scopes(case: &Case) -> Vec<u32> {
    let mut leaves = Vec::new();
    for atom in &case.atoms {
        atom.left.leaves(&mut leaves);
        atom.right.leaves(&mut leaves);
    }
    let compared = leaves.iter().filter_map(|leaf| leaf.scope);
    let present = case.present.iter().filter_map(|(_, scope)| *scope);
    compared.chain(present).collect::<BTreeSet<u32>>().into_iter().collect()
}

/// Whether `wanted` follows from `given`, for some assignment of elements.
fn follows(given: &Case, wanted: &Case, fuel: &mut Fuel) -> bool {
    let (there, needed) = (scopes(given), scopes(wanted));
    let ways = u32::try_from(needed.len()).ok().and_then(|count| there.len().checked_pow(count));
    let Some(ways) = ways.filter(|ways| *ways <= MOST_WAYS) else { return false };
    (0..ways).any(|way| {
        let chosen = |scope: Scope| {
            let index = needed.iter().position(|needed| Some(*needed) == scope)?;
            let mut rest = way;
            (0..index).for_each(|_| rest /= there.len());
            there.get(rest % there.len().max(1)).copied()
        };
        let wanted = moved(wanted, &chosen);
        wanted.present.is_subset(&given.present) && all_follow(given, &wanted.atoms, fuel)
    })
}

fn all_follow(given: &Case, wanted: &[Atom], fuel: &mut Fuel) -> bool {
    let facts: Vec<&Atom> = given.atoms.iter().collect();
    let sides = |atom: &'_ Atom| -> [Term; 2] { [atom.left.clone(), atom.right.clone()] };
    let terms: Vec<Term> = wanted.iter().flat_map(sides).collect();
    let order = Order::of(&facts, terms.iter(), fuel);
    wanted.iter().all(|atom| order.proves(atom))
}

/// Label values of no series, in selectors that match others.
pub(super) fn idle_values(root: &Node, known: &dyn KnownSeries) -> Vec<ExprError> {
    let mut found = Vec::new();
    let mut nodes = vec![root];
    while let Some(node) = nodes.pop() {
        match &node.kind {
            Kind::Selector(selector) | Kind::Range { selector, .. } => {
                let matchers = selector.matchers.iter();
                found.extend(matchers.filter_map(|matcher| idle_value(selector, matcher, known)));
            }
            _ => nodes.extend(node.children()),
        }
    }
    found.sort_by_key(|error| error.span.start);
    found
}

fn idle_value(
    selector: &Selector,
    matcher: &Matcher,
    known: &dyn KnownSeries,
) -> Option<ExprError> {
    let (name, label) = (&*selector.name, &*matcher.label);
    let values = known.values(name, label)?;
    let alternatives: Vec<&str> = match matcher.op {
        MatchOp::Equal => return None,
        MatchOp::NotEqual => vec![&matcher.value],
        MatchOp::Matches | MatchOp::NotMatches => {
            let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '|');
            matcher.value.chars().all(is_plain).then(|| matcher.value.split('|').collect())?
        }
    };
    let idle =
        alternatives.into_iter().find(|value| !value.is_empty() && !values.contains(value))?;
    let message = format!("no series \"{name}\" has {label}=\"{idle}\": it makes no difference");
    let error = ExprError::new(matcher.value_span.clone(), message);
    Some(error.with_hint(values_hint(label, idle, values)))
}
