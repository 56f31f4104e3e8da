//! What is exported of who took memory, and read by rules.

use promql_rules::store::SeriesStore;

use super::Brake;
use crate::model::{Owner, ProcessMemory, Reading, SeriesKey};
use crate::policy::counters::Counters;

type OwnerMemoryKind = (&'static str, fn(&ProcessMemory) -> u64);

const KINDS: [OwnerMemoryKind; 5] = [
    ("anon", |memory| memory.anon_bytes),
    ("shmem", |memory| memory.shmem_bytes),
    ("hugetlb", |memory| memory.hugetlb_bytes),
    ("pipes", |memory| memory.pipe_bytes),
    ("sockets", |memory| memory.socket_bytes),
];

/// Shows the last account, and what other processes than engines' have.
pub(in crate::policy) fn publish(
    brake: &Brake,
    (counters, store): (&mut Counters, &mut SeriesStore),
) {
    let account = brake.account();
    let mut show = |name: &str, labels: &[(&str, &str)], reading: Reading<f64>| {
        let cell = counters.cell(store, &SeriesKey::new(name, labels));
        counters.set_or_retire(cell, reading);
    };
    for owner in Owner::LABELS {
        let bytes = Reading::Value(account.of_label(owner) as f64);
        show("uma_memory_growth_bytes", &[("owner", owner)], bytes);
    }
    let ages = [("driver", account.driver_figures_age), ("processes", account.scan_age)];
    for (source, age) in ages {
        let age = Reading::from(age.map(|age| age.as_secs_f64()));
        show("uma_memory_growth_evidence_age_seconds", &[("source", source)], age);
    }
    let Some((others, socket_bytes)) = brake.others() else { return };
    for (kind, of) in KINDS {
        let bytes = Reading::Value(of(&others) as f64);
        show("uma_other_processes_memory_bytes", &[("type", kind)], bytes);
    }
    show("uma_memory_socket_bytes", &[], Reading::Value(socket_bytes as f64));
}
