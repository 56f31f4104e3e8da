//! `and`, `or` and `unless` between partly unknown vectors.

use std::collections::{HashMap, HashSet};

use super::super::Sample;
use super::super::syntax::{BinaryOp, Matching};
use super::binary::MatchSignature;
use super::partial::{Fate, OpenVector, Vector};
use super::unique;

/// Whether an element finds a partner.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PartnerMatch {
    Surely,
    Perhaps,
    Never,
}

/// The partners that a vector offers.
struct Coverage<'s> {
    matching: &'s Matching,
    sure: HashSet<MatchSignature<'s>>,
    possible: HashSet<MatchSignature<'s>>,
    any: bool,
    exists: Option<bool>,
}

impl<'s> Coverage<'s> {
    fn of(vector: &'s Vector, matching: &'s Matching) -> Self {
        let signature = |sample: &'s Sample| MatchSignature { sample, matching };
        let mut sure: HashSet<_> = vector.known.iter().map(signature).collect();
        let possible = vector.possible();
        for set in vector.open.iter().flat_map(|open| &open.some) {
            let mut members = set.iter().filter_map(|index| possible.get(*index));
            let Some(first) = members.next().map(|first| signature(&first.sample)) else {
                continue;
            };
            if members.all(|other| signature(&other.sample) == first) {
                sure.insert(first);
            }
        }
        Self {
            matching,
            sure,
            possible: possible.iter().map(|possible| signature(&possible.sample)).collect(),
            any: vector.has_any(),
            exists: vector.exists(),
        }
    }

    /// Whether all elements match, with any labels.
    fn is_of_all(&self) -> bool {
        self.matching.on && self.matching.labels.is_empty()
    }

    fn met(&self, sample: &Sample) -> PartnerMatch {
        let signature = MatchSignature { sample, matching: self.matching };
        if self.sure.contains(&signature) || (self.is_of_all() && self.exists == Some(true)) {
            PartnerMatch::Surely
        } else if self.any || self.possible.contains(&signature) {
            PartnerMatch::Perhaps
        } else {
            PartnerMatch::Never
        }
    }

    /// The same of an element whose labels are not known.
    fn met_by_any(&self) -> PartnerMatch {
        match self.exists {
            Some(false) => PartnerMatch::Never,
            Some(true) if self.is_of_all() => PartnerMatch::Surely,
            _ => PartnerMatch::Perhaps,
        }
    }
}

/// A set operator.
pub(super) fn combined(
    op: BinaryOp,
    matching: &Matching,
    left: Vector,
    right: Vector,
) -> Result<Vector, String> {
    match op {
        BinaryOp::And => Ok(sifted(matching, left, &right, [Fate::Stays, Fate::Leaves])),
        BinaryOp::Unless => Ok(sifted(matching, left, &right, [Fate::Leaves, Fate::Stays])),
        _ => either(matching, left, right),
    }
}

/// The rest of one side, by the fates of elements with and without a certain partner.
fn sifted(matching: &Matching, left: Vector, right: &Vector, [surely, never]: [Fate; 2]) -> Vector {
    let coverage = Coverage::of(right, matching);
    let fate = |met| match met {
        PartnerMatch::Surely => surely,
        PartnerMatch::Perhaps => Fate::MayLeave,
        PartnerMatch::Never => never,
    };
    let any = fate(coverage.met_by_any());
    left.sift(|sample, _| fate(coverage.met(sample)), any, right.because())
}

/// Elements of the left side, and those of the right side without a match.
fn either(matching: &Matching, left: Vector, right: Vector) -> Result<Vector, String> {
    let exists = [&left, &right].iter().any(|side| side.exists() == Some(true));
    let coverage = Coverage::of(&left, matching);
    // Each group that certainly exists only on the right side has an element.
    let sure_of_right = Coverage::of(&right, matching).sure;
    let only_right = sure_of_right.iter().map(|signature| signature.sample);
    let only_right: Vec<Sample> = only_right
        .filter(|sample| coverage.met(sample) == PartnerMatch::Perhaps)
        .cloned()
        .collect();
    drop(sure_of_right);
    let fate = |met| match met {
        PartnerMatch::Surely => Fate::Leaves,
        PartnerMatch::Perhaps => Fate::MayLeave,
        PartnerMatch::Never => Fate::Stays,
    };
    let any = fate(coverage.met_by_any());
    let added = right.sift(|sample, _| fate(coverage.met(sample)), any, left.because());
    drop(coverage);
    let of_left = left.possible().len();
    let known = unique(left.known.into_iter().chain(added.known).collect())?;
    let has_any_left = left.open.as_ref().is_some_and(|open| open.any);
    let mut open = joined(left.open.unwrap_or_default(), added.open.unwrap_or_default());
    open.exists = exists;
    if !has_any_left {
        let groups = groups(&open, matching);
        // Where there were too many, the right side's are not among them.
        let is_known = |group: &&Vec<usize>| group.iter().any(|index| *index >= of_left);
        let some = only_right.iter().filter_map(|sample| {
            groups.get(&MatchSignature { sample, matching }).filter(is_known).cloned()
        });
        let some: Vec<Vec<usize>> = some.collect();
        open.some.extend(some);
    }
    Ok(Vector::new(known, open))
}

fn joined(left: OpenVector, right: OpenVector) -> OpenVector {
    let offset = left.possible.len();
    let moved = right.some.into_iter().map(|set| set.iter().map(|index| index + offset).collect());
    OpenVector {
        some: left.some.into_iter().chain(moved).collect(),
        possible: left.possible.into_iter().chain(right.possible).collect(),
        any: left.any || right.any,
        exists: false,
        because: left.because | right.because,
    }
}

/// Indexes of possible elements, by their matching labels.
fn groups<'s>(
    open: &'s OpenVector,
    matching: &'s Matching,
) -> HashMap<MatchSignature<'s>, Vec<usize>> {
    let mut groups: HashMap<MatchSignature<'s>, Vec<usize>> = HashMap::new();
    for (index, possible) in open.possible.iter().enumerate() {
        groups
            .entry(MatchSignature { sample: &possible.sample, matching })
            .or_default()
            .push(index);
    }
    groups
}
