//! This node's own series among those of other nodes.

use std::collections::BTreeSet;

use promql_rules::store::{SeriesId, SeriesStore};

use super::or_ended;
use crate::model::{ClusterNames, Moment, Reading, Wanted, series_of_node};

/// Which of this node's series are shown, and where.
#[derive(Debug, Default)]
pub(super) struct Mirror {
    /// Number of this node's series that were examined.
    mirrored: usize,
    shown: Vec<(SeriesId, SeriesId)>,
    /// How often one of this node's series had given its place to another then.
    replaced: u64,
}

impl Mirror {
    /// Publishes their present values. Allocates only where there are new ones, or one has given
    /// its place to another.
    pub(super) fn show(
        &mut self,
        at: Moment,
        own: &SeriesStore,
        wanted: &[Wanted],
        names: &ClusterNames,
        cluster: &mut SeriesStore,
    ) {
        let mut before = Vec::new();
        if std::mem::replace(&mut self.replaced, own.replaced()) != own.replaced() {
            (before, self.mirrored) = (std::mem::take(&mut self.shown), 0);
        }
        let keys = own.keys();
        for (place, key) in keys.iter().enumerate().skip(self.mirrored) {
            let Ok(place) = u32::try_from(place) else { break };
            if wanted.iter().any(|wanted| wanted.is(&key.name, &key.labels)) {
                let there = series_of_node(key, &names.cluster, &names.node);
                let id = cluster.intern(&there);
                self.shown.push((SeriesId(place), id));
            }
        }
        self.mirrored = keys.len();
        self.end_others(at, &before, cluster);
        for (here, there) in &self.shown {
            let reading = own.latest_read(*here).unwrap_or(Reading::Failed);
            // What this machine never had is not there; what it had has ended.
            let had = matches!(cluster.latest_read(*there), Some(Reading::Value(_)));
            let shown = if had { or_ended(reading) } else { reading };
            cluster.append(*there, at.timeline_ms(), shown);
        }
    }

    /// What was shown before and is not shown any more has ended.
    fn end_others(&self, at: Moment, before: &[(SeriesId, SeriesId)], cluster: &mut SeriesStore) {
        if before.is_empty() {
            return;
        }
        let shown: BTreeSet<SeriesId> = self.shown.iter().map(|(_, there)| *there).collect();
        for (_, ended) in before.iter().filter(|(_, there)| !shown.contains(there)) {
            cluster.end(*ended, at.timeline_ms());
        }
    }
}
