//! Partly unknown vectors.
//!
//! A failed reading may have had any value, or none. The `known` part of a vector holds for all of
//! them; all other possible elements are `open`. Values that would make the evaluation an error are
//! not considered.

use std::iter::Sum;
use std::ops::BitOr;

use super::super::Sample;
use super::{MAX_ELEMENTS, mapped};

/// The failed readings that a result depends on: a bit for each missing reading by index, the last
/// bit for all further ones.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MissingReadings(u64);

impl MissingReadings {
    pub(super) const ALL: Self = Self(u64::MAX);

    pub(super) fn of(index: usize) -> Self {
        Self(1 << index.min(63))
    }

    pub(super) fn contains(self, index: usize) -> bool {
        self.0 & Self::of(index).0 != 0
    }
}

impl BitOr for MissingReadings {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl Sum for MissingReadings {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), BitOr::bitor)
    }
}

/// A number, or the missing readings that it depends on.
pub(super) type PartialNumber = Result<f64, MissingReadings>;

/// The value of a part of an expression.
pub(super) enum PartialValue {
    Number(PartialNumber),
    Vector(Vector),
}

/// An instant vector.
#[derive(Default)]
pub(super) struct Vector {
    /// Certain elements, with labels and value.
    pub known: Vec<Sample>,
    /// Other possible elements; `None` where there are none.
    pub open: Option<OpenVector>,
}

/// The unknown part of a vector.
#[derive(Default)]
pub(super) struct OpenVector {
    /// Elements that may be there.
    pub possible: Vec<PossibleElement>,
    /// Whether there may be others with any labels.
    pub any: bool,
    /// Sets of indexes in `possible`, of each of which at least one element exists.
    pub some: Vec<Vec<usize>>,
    /// Whether the vector certainly has an element.
    pub exists: bool,
    /// The readings that it depends on.
    pub because: MissingReadings,
}

/// An element that may be there.
pub(super) struct PossibleElement {
    pub sample: Sample,
    /// Whether it has the sample's value if it is there.
    pub is_valued: bool,
}

/// The fate of an element, if it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Stays,
    MayLeave,
    Leaves,
}

impl PossibleElement {
    pub(super) fn value(&self) -> Option<f64> {
        self.is_valued.then_some(self.sample.value)
    }
}

impl Vector {
    /// A fully known vector.
    pub(super) fn whole(known: Vec<Sample>) -> Self {
        Self { known, open: None }
    }

    pub(super) fn new(known: Vec<Sample>, mut open: OpenVector) -> Self {
        if open.possible.len() > MAX_ELEMENTS {
            open = OpenVector { possible: Vec::new(), any: true, some: Vec::new(), ..open };
        }
        let is_open = open.any || !open.possible.is_empty();
        Self { known, open: is_open.then_some(open) }
    }

    /// A fully unknown vector.
    pub(super) fn unknown(because: MissingReadings) -> Self {
        Self::new(Vec::new(), OpenVector { any: true, because, ..OpenVector::default() })
    }

    /// One element that is there for certain, and its value if that is known.
    pub(super) fn of_one(sample: Sample, number: PartialNumber) -> Self {
        match number {
            Ok(value) => Self::whole(vec![Sample { value, ..sample }]),
            Err(because) => Self::whole(vec![sample]).valueless(because),
        }
    }

    /// Whether it is empty for certain.
    pub(super) fn is_nothing(&self) -> bool {
        self.known.is_empty() && self.open.is_none()
    }

    /// Whether it has any element; `None` where that is unknown.
    pub(super) fn exists(&self) -> Option<bool> {
        match &self.open {
            None => Some(!self.known.is_empty()),
            Some(open) => {
                let is_sure = !self.known.is_empty() || !open.some.is_empty() || open.exists;
                is_sure.then_some(true)
            }
        }
    }

    /// Whether it may have elements with any labels.
    pub(super) fn has_any(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.any)
    }

    pub(super) fn possible(&self) -> &[PossibleElement] {
        self.open.as_ref().map_or(&[], |open| &open.possible)
    }

    pub(super) fn because(&self) -> MissingReadings {
        self.open.as_ref().map(|open| open.because).unwrap_or_default()
    }

    /// All elements that there may be, with their values where these are known, and whether they
    /// are there for certain.
    pub(super) fn all(&self) -> impl Iterator<Item = (&Sample, Option<f64>, bool)> {
        let known = self.known.iter().map(|sample| (sample, Some(sample.value), true));
        let possible = self.possible().iter();
        known.chain(possible.map(|possible| (&possible.sample, possible.value(), false)))
    }

    /// Changes every element; `change` gives as many samples as it is given, or an error.
    pub(super) fn each(
        mut self,
        change: impl Fn(Vec<Sample>) -> Result<Vec<Sample>, String>,
    ) -> Result<Self, String> {
        self.known = change(self.known)?;
        if let Some(open) = &mut self.open {
            for possible in &mut open.possible {
                match change(vec![possible.sample.clone()]).map(|mut changed| changed.pop()) {
                    Ok(Some(changed)) => possible.sample = changed,
                    Ok(None) | Err(_) => open.any = true,
                }
            }
        }
        Ok(self)
    }

    /// The same elements without names, each with a value that depends on missing readings.
    pub(super) fn valueless(self, because: MissingReadings) -> Self {
        let mut open = self.open.unwrap_or_default();
        open.possible.iter_mut().for_each(|possible| possible.is_valued = false);
        for sample in self.known {
            open.some.push(vec![open.possible.len()]);
            open.possible.push(PossibleElement { sample, is_valued: false });
        }
        open.possible.iter_mut().for_each(|possible| possible.sample.name = None);
        open.because = open.because | because;
        Self::new(Vec::new(), open)
    }

    /// The same, if the existence of the elements also depends on missing readings.
    pub(super) fn doubtful(self, because: MissingReadings) -> Self {
        self.sift(|_, _| Fate::MayLeave, Fate::MayLeave, because)
    }

    /// Removes elements by their fate; `any` is the fate of elements with unknown labels. `because`
    /// applies to those that may be removed.
    pub(super) fn sift(
        mut self,
        fate: impl Fn(&Sample, Option<f64>) -> Fate,
        any: Fate,
        because: MissingReadings,
    ) -> Self {
        let mut loosened = Vec::new();
        let mut all_stay = !self.has_any();
        self.known.retain(|sample| {
            let fate = fate(sample, Some(sample.value));
            all_stay &= fate == Fate::Stays;
            if fate == Fate::MayLeave {
                loosened.push(PossibleElement { sample: sample.clone(), is_valued: true });
            }
            fate == Fate::Stays
        });
        if self.open.is_none() && loosened.is_empty() {
            return self;
        }
        let mut open = self.open.unwrap_or_default();
        let mut is_doubtful = !loosened.is_empty() || (open.any && any == Fate::MayLeave);
        let mut indexes = Vec::new();
        let has_sets = !open.some.is_empty();
        let mut kept = 0;
        open.possible.retain(|element| {
            let fate = fate(&element.sample, element.value());
            if has_sets {
                indexes.push((fate == Fate::Stays).then_some(kept));
            }
            is_doubtful |= fate == Fate::MayLeave;
            all_stay &= fate == Fate::Stays;
            kept += usize::from(fate != Fate::Leaves);
            fate != Fate::Leaves
        });
        let moved = |set: &Vec<usize>| set.iter().map(|index| *indexes.get(*index)?).collect();
        open.some = open.some.iter().filter_map(moved).collect();
        open.possible.append(&mut loosened);
        open.any &= any != Fate::Leaves;
        open.exists &= all_stay;
        if is_doubtful {
            open.because = open.because | because;
        }
        Self::new(self.known, open)
    }

    /// Each value changed and each name dropped.
    pub(super) fn mapped(self, change: impl Fn(f64) -> f64) -> Result<Self, String> {
        self.each(|samples| mapped(samples, &change))
    }
}
