//! Where the figures of pools come from: present values of series.

use promql_rules::store::SeriesStore;

use crate::model::{HOST_POOL, Reading, SeriesKey};

/// Present values of series, by name and labels.
pub trait SeriesView {
    /// The value of one series; `Unsupported` where there is none.
    fn latest(&self, name: &str, labels: &[(&str, &str)]) -> Reading<f64>;

    /// Calls back with each series of that name and its value.
    fn each(&self, name: &str, call: &mut dyn FnMut(&SeriesKey, Reading<f64>));
}

impl SeriesView for SeriesStore {
    fn latest(&self, name: &str, labels: &[(&str, &str)]) -> Reading<f64> {
        self.latest_of(name, labels)
    }

    fn each(&self, name: &str, call: &mut dyn FnMut(&SeriesKey, Reading<f64>)) {
        for id in self.named(name).0 {
            if let Some(key) = self.key(*id) {
                call(key, Self::latest(self, *id));
            }
        }
    }
}

/// The series of a declared world, which may declare the host's pool instead of `/proc/meminfo`.
pub(in crate::policy) struct DeclaredView<'s>(pub(in crate::policy) &'s SeriesStore);

impl SeriesView for DeclaredView<'_> {
    fn latest(&self, name: &str, labels: &[(&str, &str)]) -> Reading<f64> {
        let reading = self.0.latest_of(name, labels);
        let of_pool = name.strip_prefix("uma_memory_").filter(|_| reading == Reading::Unsupported);
        let Some(name) = of_pool else { return reading };
        let mut labels: Vec<(&str, &str)> = labels.to_vec();
        labels.push(("pool", HOST_POOL));
        labels.sort_unstable();
        self.0.latest_of(&format!("uma_pool_{name}"), &labels)
    }

    fn each(&self, name: &str, call: &mut dyn FnMut(&SeriesKey, Reading<f64>)) {
        self.0.each(name, call);
    }
}
