//! Conclusions from comparisons that hold at once.

use super::term::{Fuel, Leaf, Term};

/// The relation of two values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueRelation {
    /// `<`
    Less,
    /// `<=`
    AtMost,
    /// `==`
    Equal,
    /// `!=`, which holds for NaN too.
    NotEqual,
}

/// A comparison that holds.
#[derive(Clone, Debug)]
pub(super) struct Atom {
    /// The left value.
    pub(super) left: Term,
    /// The comparison of the left value with the right one.
    pub(super) relation: ValueRelation,
    /// The right value.
    pub(super) right: Term,
    /// The comparison as written.
    pub(super) text: std::rc::Rc<str>,
}

/// The known order of two values, weakest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum KnownOrder {
    #[default]
    Nothing,
    AtMost,
    Less,
}

/// The order of values that follows from some comparisons.
pub(super) struct Order<'t> {
    terms: Vec<&'t Term>,
    known: Vec<Vec<KnownOrder>>,
}

impl<'t> Order<'t> {
    /// The order by some comparisons, also of further terms. Terms that may be NaN are left out:
    /// nothing follows for them.
    pub(super) fn of(
        atoms: &[&'t Atom],
        further: impl Iterator<Item = &'t Term>,
        fuel: &mut Fuel,
    ) -> Self {
        let ordered = |atom: &&&'t Atom| atom.relation != ValueRelation::NotEqual;
        let mut terms: Vec<&Term> = Vec::new();
        for atom in atoms.iter().filter(ordered) {
            for term in [&atom.left, &atom.right] {
                if !terms.contains(&term) {
                    terms.push(term);
                }
            }
        }
        let numbers = leaves_of(&terms);
        let unordered = atoms.iter().filter(|atom| !ordered(atom));
        for term in unordered.flat_map(|atom| [&atom.left, &atom.right]).chain(further) {
            if !terms.contains(&term) && is_a_number(term, &numbers) {
                terms.push(term);
            }
        }
        let mut order =
            Self { known: vec![vec![KnownOrder::Nothing; terms.len()]; terms.len()], terms };
        order.compare_all(fuel);
        for atom in atoms {
            order.take(atom);
        }
        order.close(fuel);
        order
    }

    fn compare_all(&mut self, fuel: &mut Fuel) {
        for (row, left) in self.terms.iter().enumerate() {
            for (column, right) in self.terms.iter().enumerate() {
                self.known[row][column] = match left.stays_below(right) {
                    true => KnownOrder::Less,
                    false if left.never_exceeds(right, fuel) => KnownOrder::AtMost,
                    false => KnownOrder::Nothing,
                };
            }
        }
    }

    fn take(&mut self, atom: &Atom) {
        let (Some(left), Some(right)) = (self.index_of(&atom.left), self.index_of(&atom.right))
        else {
            return;
        };
        let mut know = |row: usize, column: usize, known: KnownOrder| {
            let cell = &mut self.known[row][column];
            *cell = known.max(*cell);
        };
        match atom.relation {
            ValueRelation::Less => know(left, right, KnownOrder::Less),
            ValueRelation::AtMost => know(left, right, KnownOrder::AtMost),
            ValueRelation::Equal => {
                know(left, right, KnownOrder::AtMost);
                know(right, left, KnownOrder::AtMost);
            }
            ValueRelation::NotEqual => {}
        }
    }

    fn close(&mut self, fuel: &mut Fuel) {
        let count = self.terms.len();
        if !fuel.burn(count.pow(3) / 8) {
            return;
        }
        for between in 0..count {
            for row in 0..count {
                for column in 0..count {
                    let (first, second) = (self.known[row][between], self.known[between][column]);
                    if first != KnownOrder::Nothing && second != KnownOrder::Nothing {
                        let cell = &mut self.known[row][column];
                        *cell = first.max(second).max(*cell);
                    }
                }
            }
        }
    }

    fn index_of(&self, term: &Term) -> Option<usize> {
        self.terms.iter().position(|known| *known == term)
    }

    fn between(&self, left: &Term, right: &Term) -> KnownOrder {
        match (self.index_of(left), self.index_of(right)) {
            (Some(left), Some(right)) => self.known[left][right],
            _ => KnownOrder::Nothing,
        }
    }

    /// Whether the comparisons cannot hold at once.
    pub(super) fn is_contradictory(&self, atoms: &[&Atom]) -> bool {
        let less_than_itself =
            (0..self.terms.len()).any(|at| self.known[at][at] == KnownOrder::Less);
        let unequal = atoms.iter().filter(|atom| atom.relation == ValueRelation::NotEqual);
        less_than_itself
            || unequal.into_iter().any(|atom| {
                self.between(&atom.left, &atom.right) == KnownOrder::AtMost
                    && self.between(&atom.right, &atom.left) == KnownOrder::AtMost
            })
    }

    /// Whether a comparison holds as well.
    pub(super) fn proves(&self, atom: &Atom) -> bool {
        let there = self.between(&atom.left, &atom.right);
        let back = self.between(&atom.right, &atom.left);
        match atom.relation {
            ValueRelation::Less => there == KnownOrder::Less,
            ValueRelation::AtMost => there != KnownOrder::Nothing,
            ValueRelation::Equal => there != KnownOrder::Nothing && back != KnownOrder::Nothing,
            ValueRelation::NotEqual => there == KnownOrder::Less || back == KnownOrder::Less,
        }
    }
}

/// Leaves of ordered values, which are not NaN: neither are the terms of their sums and multiples.
fn leaves_of<'t>(terms: &[&'t Term]) -> Vec<&'t Leaf> {
    let mut leaves = Vec::new();
    terms.iter().for_each(|term| term.leaves(&mut leaves));
    leaves
}

fn is_a_number(term: &Term, numbers: &[&Leaf]) -> bool {
    match term {
        Term::Number(number) => !number.is_nan(),
        Term::Leaf(leaf) => leaf.bounds.is_finite() || numbers.contains(&leaf),
        Term::Combined(..) => term.bounds().is_finite(),
    }
}
