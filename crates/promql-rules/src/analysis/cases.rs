//! The conditions for a result of an expression, as alternatives of comparisons.

use std::collections::BTreeSet;
use std::rc::Rc;

use super::super::functions::Function;
use super::super::syntax::{Aggregate, AggregateOp, Binary, BinaryOp, Kind, Node, ValueType};
use super::super::{ExprError, KnownSeries};
use super::bounds::{bounds, constant};
use super::key::key;
use super::order::{Atom, Order, ValueRelation};
use super::shape::{Shape, mismatch, shape, surely_match};
use super::term::{Fuel, Leaf, Scope, Term};

/// The most distinguished alternatives.
const MOST_CASES: usize = 24;
/// The most analyzed comparisons in one alternative.
const MOST_ATOMS: usize = 24;
/// The cost limit of the analysis of one expression, in comparisons of terms.
const FUEL: u32 = 100_000;
/// The length limit of an expression in a message.
const LONGEST_TEXT: usize = 120;

/// The facts that hold if the expression yields an element.
#[derive(Clone, Debug)]
pub(super) struct Case {
    /// Comparisons that hold.
    pub(super) atoms: Vec<Atom>,
    /// Vectors that have an element, with its scope.
    pub(super) present: BTreeSet<(Rc<str>, Scope)>,
    /// Whether it is also enough for the expression to yield an element.
    pub(super) complete: bool,
}

impl Case {
    fn always() -> Self {
        Self { atoms: Vec::new(), present: BTreeSet::new(), complete: true }
    }

    fn unknown() -> Self {
        Self { complete: false, ..Self::always() }
    }

    /// The facts if both hold.
    pub(super) fn with(&self, other: &Self) -> Self {
        let mut both = self.clone();
        both.atoms.extend(other.atoms.iter().cloned());
        both.present.extend(other.present.iter().cloned());
        both.complete &= other.complete;
        if both.atoms.len() > MOST_ATOMS {
            both.atoms.truncate(MOST_ATOMS);
            both.complete = false;
        }
        both
    }

    /// Whether its comparisons cannot hold at once.
    pub(super) fn is_contradictory(&self, fuel: &mut Fuel) -> bool {
        contradict(&self.atoms.iter().collect::<Vec<_>>(), fuel)
    }
}

/// Whether comparisons cannot hold at once.
pub(super) fn contradict(atoms: &[&Atom], fuel: &mut Fuel) -> bool {
    Order::of(atoms, std::iter::empty(), fuel).is_contradictory(atoms)
}

/// The result of the analysis of one part of an expression.
pub(super) struct Analysis {
    /// Alternatives; empty: it never has a result.
    pub(super) cases: Vec<Case>,
    /// The value of the result.
    term: Term,
}

/// Analyzes one expression, or several together.
pub(super) struct Analyzer<'k> {
    known: &'k dyn KnownSeries,
    pub(super) fuel: Fuel,
    scopes: u32,
    /// Parts that never have a result.
    pub(super) dead: Vec<ExprError>,
}

impl<'k> Analyzer<'k> {
    /// Scopes begin at `scopes`, so that elements of two expressions differ.
    pub(super) fn new(known: &'k dyn KnownSeries, scopes: u32) -> Self {
        Self { known, fuel: Fuel(FUEL), scopes, dead: Vec::new() }
    }

    pub(super) fn fresh(&mut self) -> Scope {
        self.scopes += 1;
        Some(self.scopes)
    }

    /// Analyzes a node, for the element of a scope.
    pub(super) fn analyze(&mut self, node: &Node, scope: Scope) -> Analysis {
        if let Some(number) = constant(node) {
            return Analysis { cases: vec![Case::always()], term: Term::Number(number) };
        }
        match &node.kind {
            Kind::Parentheses(inner) => self.analyze(inner, scope),
            Kind::Unary { negative, operand } => {
                let Analysis { cases, term } = self.analyze(operand, scope);
                let minus = || Term::combined(BinaryOp::Subtract, Term::Number(0.0), term.clone());
                Analysis { cases, term: if *negative { minus() } else { term } }
            }
            Kind::Binary(binary) => self.binary(node, binary, scope),
            Kind::Aggregate(aggregate) => self.aggregate(node, aggregate, scope),
            Kind::Call { function, arguments, .. } => self.call(node, *function, arguments, scope),
            Kind::Number(_) | Kind::Text(_) | Kind::Selector(_) | Kind::Range { .. } => {
                self.series(node, scope)
            }
        }
    }

    fn shape(&self, node: &Node) -> Option<Shape> {
        shape(node, self.known)
    }

    /// An opaque value.
    fn leaf(&self, node: &Node, scope: Scope) -> Leaf {
        let single = self.shape(node).is_some_and(|shape| shape.single);
        let scope = if single { None } else { scope };
        Leaf { key: key(node).into(), scope, bounds: bounds(node, self.known) }
    }

    /// Series, or a function over their past.
    fn series(&mut self, node: &Node, scope: Scope) -> Analysis {
        let leaf = self.leaf(node, scope);
        let present = BTreeSet::from([(Rc::clone(&leaf.key), leaf.scope)]);
        let mut cases = vec![Case { present, ..Case::always() }];
        let shape = self.shape(node);
        if let Some(label) = shape.as_ref().and_then(Shape::impossible) {
            let message = format!("no series has what is asked of the label {label}");
            self.dead.push(ExprError::new(node.span.clone(), message));
            cases.clear();
        }
        Analysis { cases, term: Term::Leaf(leaf) }
    }

    fn call(
        &mut self,
        node: &Node,
        function: Function,
        arguments: &[Node],
        scope: Scope,
    ) -> Analysis {
        let leaf = Term::Leaf(self.leaf(node, scope));
        let operand = |arguments: &[Node]| {
            let of_type = |wanted: ValueType| {
                arguments.iter().position(|argument| argument.value_type() == wanted)
            };
            (of_type(ValueType::Vector), of_type(ValueType::Range))
        };
        match (function, operand(arguments)) {
            (Function::Absent | Function::AbsentOverTime, _) => {
                Analysis { cases: vec![Case::unknown()], term: leaf }
            }
            (Function::Scalar | Function::Time, _) => {
                Analysis { cases: vec![Case::always()], term: leaf }
            }
            (Function::Vector, _) => {
                match arguments.first().map(|inner| self.analyze(inner, scope)) {
                    Some(Analysis { term, .. }) => Analysis { cases: vec![Case::always()], term },
                    None => Analysis { cases: vec![Case::unknown()], term: leaf },
                }
            }
            (_, (Some(vector), _)) => {
                let relabels = matches!(function, Function::LabelReplace | Function::LabelJoin);
                let below = if relabels { self.fresh() } else { scope };
                let mut cases = self.analyze(&arguments[vector], below).cases;
                if matches!(function, Function::Clamp) || relabels {
                    cases.iter_mut().for_each(|case| case.complete = false);
                }
                // Two elements may have the same labels once names can be changed.
                let term = if relabels { Term::Leaf(self.leaf(node, below)) } else { leaf };
                Analysis { cases, term }
            }
            (_, (None, Some(range))) => {
                let is_dead = self.series(&arguments[range], scope).cases.is_empty();
                let Analysis { mut cases, term } = self.series(node, scope);
                if is_dead {
                    cases.clear();
                }
                Analysis { cases, term }
            }
            _ => Analysis { cases: vec![Case::unknown()], term: leaf },
        }
    }

    fn aggregate(&mut self, node: &Node, aggregate: &Aggregate, scope: Scope) -> Analysis {
        let keeps = matches!(aggregate.op, AggregateOp::Topk | AggregateOp::Bottomk);
        let below = if keeps { scope } else { self.fresh() };
        let mut cases = self.analyze(&aggregate.operand, below).cases;
        if keeps {
            cases.iter_mut().for_each(|case| case.complete = false);
        }
        Analysis { cases, term: Term::Leaf(self.leaf(node, scope)) }
    }

    fn binary(&mut self, node: &Node, binary: &Binary, scope: Scope) -> Analysis {
        match binary.op {
            BinaryOp::Or => {
                let mut cases = self.analyze(&binary.left, scope).cases;
                cases.extend(self.analyze(&binary.right, scope).cases);
                if cases.len() > MOST_CASES {
                    cases = vec![Case::unknown()];
                }
                // Two elements of one label set may come from its two sides.
                let scope = self.fresh();
                Analysis { cases, term: Term::Leaf(self.leaf(node, scope)) }
            }
            BinaryOp::Unless => {
                let mut left = self.analyze(&binary.left, scope);
                let fresh = self.fresh();
                let right = self.analyze(&binary.right, fresh);
                if let Some(why) = self.takes_all(binary, &right) {
                    if !left.cases.is_empty() {
                        let span = binary.right.span.clone();
                        let error = ExprError::new(span, format!("unless leaves nothing: {why}"));
                        self.dead.push(error.with_hint("remove it, or say when it shall count"));
                    }
                    left.cases.clear();
                }
                left.cases.iter_mut().for_each(|case| case.complete = false);
                left
            }
            _ => self.pairs(node, binary, scope),
        }
    }

    /// The reason why `unless` leaves no element of the left side.
    fn takes_all(&self, binary: &Binary, right: &Analysis) -> Option<&'static str> {
        // For any matching labels, an element matches itself.
        if key(&binary.left) == key(&binary.right) {
            return Some("both sides are the same");
        }
        let always =
            |case: &Case| case.complete && case.atoms.is_empty() && case.present.is_empty();
        let is_there = right.cases.iter().any(always);
        let any_will_do = binary.matching.on && binary.matching.labels.is_empty();
        (is_there && any_will_do).then_some("the right side is always there")
    }

    /// `and`, comparisons and arithmetic: an element of each side is needed.
    fn pairs(&mut self, node: &Node, binary: &Binary, scope: Scope) -> Analysis {
        let is_vector = |node: &Node| node.value_type() == ValueType::Vector;
        let both_vectors = is_vector(&binary.left) && is_vector(&binary.right);
        let [left_scope, right_scope] = match both_vectors {
            true => self.scopes(binary, scope),
            false => [scope; 2],
        };
        let left = self.analyze(&binary.left, left_scope);
        let right = self.analyze(&binary.right, right_scope);
        let dead = left.cases.is_empty() || right.cases.is_empty();
        let meet = !both_vectors || self.meet(binary, dead);
        let complete = !both_vectors || self.surely_meet(binary);
        let term = self.pair_term(node, binary, &left.term, &right.term, scope);
        if dead || !meet {
            return Analysis { cases: Vec::new(), term };
        }
        let mut cases = product(&left.cases, &right.cases);
        cases.iter_mut().for_each(|case| case.complete &= complete);
        if let Some(atom) = comparison(node, binary, &left.term, &right.term) {
            for case in &mut cases {
                let holds = Case { atoms: vec![atom.clone()], ..Case::always() };
                *case = case.with(&holds);
            }
        }
        self.drop_contradictions(node, binary, &mut cases);
        Analysis { cases, term }
    }

    /// The elements of the two sides of the element of a scope.
    fn scopes(&mut self, binary: &Binary, scope: Scope) -> [Scope; 2] {
        let matching = &binary.matching;
        if !matching.written {
            return [scope; 2];
        }
        match &matching.group {
            Some(group) if group.include.is_empty() && group.left => [scope, self.fresh()],
            Some(group) if group.include.is_empty() => [self.fresh(), scope],
            None if binary.op == BinaryOp::And => [scope, self.fresh()],
            _ => [self.fresh(), self.fresh()],
        }
    }

    /// Whether elements of the two sides can match.
    fn meet(&mut self, binary: &Binary, dead: bool) -> bool {
        let (Some(left), Some(right)) = (self.shape(&binary.left), self.shape(&binary.right))
        else {
            return true;
        };
        let Some(why) = mismatch(&left, &right, &binary.matching) else { return true };
        if !dead {
            let message = format!("no element of the left side has a partner here: {why}");
            let error = ExprError::new(binary.right.span.clone(), message);
            self.dead.push(error.with_hint(partner_hint(binary, &left, &right)));
        }
        false
    }

    fn surely_meet(&self, binary: &Binary) -> bool {
        let (Some(left), Some(right)) = (self.shape(&binary.left), self.shape(&binary.right))
        else {
            return false;
        };
        if surely_match(&left, &right, &binary.matching) {
            return true;
        }
        let matching = &binary.matching;
        // Elements of one scope have the same labels.
        let same_labels = !matching.written && !left.single && !right.single;
        let any_will_do = matching.on && matching.labels.is_empty() && binary.op.is_set();
        same_labels || any_will_do
    }

    fn pair_term(
        &mut self,
        node: &Node,
        binary: &Binary,
        left: &Term,
        right: &Term,
        scope: Scope,
    ) -> Term {
        let is_vector = |node: &Node| node.value_type() == ValueType::Vector;
        match binary.op {
            BinaryOp::And => left.clone(),
            op if op.is_comparison() && !binary.returns_bool => match is_vector(&binary.left) {
                true => left.clone(),
                false => right.clone(),
            },
            op @ (BinaryOp::Add | BinaryOp::Subtract | BinaryOp::Multiply | BinaryOp::Divide) => {
                Term::combined(op, left.clone(), right.clone())
            }
            _ => Term::Leaf(self.leaf(node, scope)),
        }
    }

    /// Drops impossible cases; where none is left, records why.
    fn drop_contradictions(&mut self, node: &Node, binary: &Binary, cases: &mut Vec<Case>) {
        let fuel = &mut self.fuel;
        let possible: Vec<Case> =
            cases.iter().filter(|case| !case.is_contradictory(fuel)).cloned().collect();
        if let (true, Some(case)) = (possible.is_empty(), cases.first()) {
            let span = if binary.op.is_set() { &binary.right.span } else { &node.span };
            self.dead.push(why(case, span.clone(), fuel));
        }
        *cases = possible;
    }
}

/// The advice for matching elements of the two sides.
fn partner_hint(binary: &Binary, left: &Shape, right: &Shape) -> String {
    let operator = binary.op.symbol();
    let on = match (left.single, right.single) {
        _ if binary.matching.written => {
            return "match by labels that both sides have with equal values".to_owned();
        }
        (false, true) if !binary.op.is_set() => "on() group_left",
        (true, false) if !binary.op.is_set() => "on() group_right",
        _ => "on()",
    };
    format!("{operator} {on} matches whatever the labels are")
}

fn product(left: &[Case], right: &[Case]) -> Vec<Case> {
    if left.len() * right.len() > MOST_CASES {
        return vec![Case::unknown()];
    }
    left.iter().flat_map(|one| right.iter().map(|other| one.with(other))).collect()
}

fn comparison(node: &Node, binary: &Binary, left: &Term, right: &Term) -> Option<Atom> {
    let (left, right) = (left.clone(), right.clone());
    let (left, relation, right) = match binary.op {
        _ if binary.returns_bool => return None,
        BinaryOp::Less => (left, ValueRelation::Less, right),
        BinaryOp::LessOrEqual => (left, ValueRelation::AtMost, right),
        BinaryOp::Greater => (right, ValueRelation::Less, left),
        BinaryOp::GreaterOrEqual => (right, ValueRelation::AtMost, left),
        BinaryOp::Equal => (left, ValueRelation::Equal, right),
        BinaryOp::NotEqual => (left, ValueRelation::NotEqual, right),
        _ => return None,
    };
    Some(Atom { left, relation, right, text: found(node).into() })
}

/// An expression for messages.
fn found(node: &Node) -> String {
    let text = node.to_string();
    match text.char_indices().nth(LONGEST_TEXT) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// Which comparisons cannot hold: one alone, two together, or all of them.
fn why(case: &Case, span: std::ops::Range<usize>, fuel: &mut Fuel) -> ExprError {
    for atom in &case.atoms {
        if contradict(&[atom], fuel) {
            let error = ExprError::new(span, format!("`{}` can never hold", atom.text));
            return match limits(atom) {
                Some(hint) => error.with_hint(hint),
                None => error,
            };
        }
    }
    for (position, one) in case.atoms.iter().enumerate() {
        for other in &case.atoms[position + 1..] {
            if contradict(&[one, other], fuel) {
                let message = format!("`{}` and `{}` can never both hold", one.text, other.text);
                return ExprError::new(span, message).with_hint("write or, or other bounds");
            }
        }
    }
    ExprError::new(span, "these comparisons can never hold together")
}

/// The possible values, if a comparison requires others.
fn limits(atom: &Atom) -> Option<String> {
    let mut leaves = Vec::new();
    atom.left.leaves(&mut leaves);
    atom.right.leaves(&mut leaves);
    let [leaf] = leaves.as_slice() else { return None };
    let numbers = [&atom.left, &atom.right].map(|side| match side {
        Term::Number(number) => *number,
        _ => 0.0,
    });
    if let Some(number) = numbers.into_iter().find(|number| number.is_infinite()) {
        return Some(format!("the number there is {number}, and no value is beyond it"));
    }
    let name = &leaf.key;
    let (least, most) = (leaf.bounds.least, leaf.bounds.most);
    Some(match (least.is_finite(), most.is_finite()) {
        (true, true) if least == most => format!("{name} is always {least}"),
        (true, true) => format!("{name} is from {least} to {most}"),
        (true, false) => format!("{name} is never below {least}"),
        (false, true) => format!("{name} is never above {most}"),
        (false, false) => return None,
    })
}
