//! The labels of `uma_engine_info`.
//!
//! Owners of processes and containers choose most of these texts. So each is bounded, and so is the
//! number of series: a place is used again after its engine.

use std::sync::Arc;

use promql_rules::store::SeriesStore;

use super::Engines;
use crate::engines::{served_model, version_of_image};
use crate::model::{EngineKind, EngineSeen, Pod, SeriesKey, without_unprintable};
use crate::policy::counters::{Cell, Counters};

/// Bytes of a label, before the mark of a cut. Other nodes take at most 256.
const LONGEST: usize = 200;

/// What the labels come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EngineInfoLabels {
    engine: Arc<str>,
    kind: EngineKind,
    model: Option<Arc<str>>,
    arguments: Option<Arc<str>>,
    container: Option<Arc<str>>,
    pod: Option<Arc<Pod>>,
    image: Option<Arc<str>>,
    unit: Option<Arc<str>>,
}

impl EngineInfoLabels {
    pub(super) fn of(seen: &EngineSeen) -> Self {
        // A container that only the process itself claims is none.
        let container = seen.container_name.as_ref().or(seen.container.as_ref());
        let of_user = seen.user_unit.as_ref().map(|unit| &unit.name);
        Self {
            engine: Arc::clone(&seen.name),
            kind: seen.kind,
            model: seen.model.clone(),
            arguments: seen.arguments.clone(),
            container: container.filter(|_| seen.container.is_some()).cloned(),
            pod: seen.pod.clone(),
            image: seen.image.clone(),
            unit: seen.unit.as_ref().or(of_user).cloned(),
        }
    }

    /// The series. A label without a value is left out, which is an empty one to Prometheus.
    fn key(&self) -> SeriesKey {
        let model = served_model(self.kind, self.arguments.as_deref(), self.model.as_deref());
        let image = self.image.as_deref().unwrap_or_default();
        let pod = self.pod.as_deref();
        let labels = [
            ("container", self.container.as_deref().unwrap_or_default()),
            ("engine", &*self.engine),
            ("image", image),
            ("kind", self.kind.name()),
            ("model", model.as_deref().unwrap_or_default()),
            ("namespace", pod.map(|pod| &*pod.namespace).unwrap_or_default()),
            ("pod", pod.map(|pod| &*pod.name).unwrap_or_default()),
            ("unit", self.unit.as_deref().unwrap_or_default()),
            ("version", version_of_image(self.kind, image).unwrap_or_default()),
        ];
        let bounded = labels.map(|(name, value)| (name, bounded(value)));
        let labels = bounded.each_ref().map(|(name, value)| (*name, &**value));
        SeriesKey::new("uma_engine_info", &labels)
    }
}

impl Engines {
    /// Whether the engine of that name is in a pod, by its container's runtime.
    pub(in crate::policy) fn is_in_pod(&self, name: &str) -> bool {
        self.lives.get(name).is_some_and(|(life, _)| life.seen().pod.is_some())
    }
}

/// Without what hides or reorders text, and not too long.
fn bounded(value: &str) -> String {
    let beginning: String = value.chars().take(LONGEST + 1).collect();
    let mut bounded = without_unprintable(&beginning, char::REPLACEMENT_CHARACTER);
    if bounded.len() > LONGEST {
        while bounded.len() > LONGEST {
            bounded.pop();
        }
        bounded.push('…');
    }
    bounded
}

/// The places of the series.
#[derive(Debug, Default)]
pub(super) struct InfoCells {
    /// Of engines that are no longer known.
    spare: Vec<Cell>,
}

impl InfoCells {
    /// The place of an engine's series.
    pub(super) fn take(
        &mut self,
        about: &EngineInfoLabels,
        counters: &mut Counters,
        store: &mut SeriesStore,
    ) -> Cell {
        let key = about.key();
        if let Some(known) = counters.known(&key) {
            self.spare.retain(|spare| *spare != known);
            return counters.cell(store, &key);
        }
        match self.spare.pop() {
            Some(spare) => {
                counters.reuse(spare, store, &key);
                spare
            }
            None => counters.cell(store, &key),
        }
    }

    /// The engine is no longer known, or is described by another series.
    pub(super) fn leave(&mut self, cell: Cell, counters: &mut Counters) {
        counters.retire(cell);
        self.spare.push(cell);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::is_unprintable;

    proptest! {
        #[test]
        fn a_label_is_short_and_plain(value in ".{0,400}") {
            let label = bounded(&value);
            prop_assert!(label.len() <= LONGEST + '…'.len_utf8());
            prop_assert!(!label.contains(is_unprintable));
            let is_whole = label.chars().count() == value.chars().count();
            prop_assert!(is_whole || value.len() * 3 > LONGEST);
        }
    }
}
