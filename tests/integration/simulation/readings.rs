//! Files of a simulated machine, when they can be read.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use umawarden::model::{Observation, Reading, Readings, Schema, SeriesKey, Source};

use super::chance::Chance;
use super::machine::Machine;

/// How a source fails.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// It is unreadable.
    All,
    /// One value is missing.
    One,
    /// It is absent.
    Gone,
    /// Its values are nonsense: no number, infinite, negative, huge.
    Nonsense,
}

pub const FAULTS: [Fault; 4] = [Fault::All, Fault::One, Fault::Gone, Fault::Nonsense];

/// The sources that can fail.
pub const SOURCES: [Source; 7] = [
    Source::Meminfo,
    Source::Vmstat,
    Source::Zoneinfo,
    Source::Buddyinfo,
    Source::Pressure,
    Source::Sysctl,
    Source::KernelLog,
];

pub struct Files {
    schemas: BTreeMap<Source, Arc<Schema>>,
    faults: BTreeMap<Source, (Fault, Duration)>,
    /// Until when false values were reported.
    false_until: Duration,
    chance: Chance,
}

impl Files {
    pub fn new(machine: &Machine, chance: Chance) -> Self {
        let schema = |source: &Source| {
            let series = values(machine, *source).into_iter().map(|(key, _)| key).collect();
            (*source, Arc::new(Schema { series }))
        };
        let all = SOURCES.iter().chain(&[Source::Journal]);
        Self {
            schemas: all.map(schema).collect(),
            faults: BTreeMap::new(),
            false_until: Duration::ZERO,
            chance,
        }
    }

    /// Lets a source fail until then.
    pub fn fail(&mut self, source: Source, fault: Fault, until: Duration) {
        if fault == Fault::Nonsense {
            self.false_until = self.false_until.max(until);
        }
        self.faults.insert(source, (fault, until));
    }

    /// Time of the last false value.
    pub fn false_until(&self) -> Duration {
        self.false_until
    }

    /// Whether the kernel log can be read.
    pub fn has_kernel_log(&self) -> bool {
        !self.faults.contains_key(&Source::KernelLog)
    }

    pub fn read(
        &mut self,
        machine: &Machine,
        journal_is_up: bool,
        now: Duration,
        out: &mut Vec<Observation>,
    ) {
        self.faults.retain(|_, (_, until)| *until > now);
        for source in SOURCES {
            let values = values(machine, source).into_iter();
            let mut values: Vec<_> = values.map(|(_, value)| Reading::Value(value)).collect();
            let fault = self.faults.get(&source).map(|(fault, _)| *fault);
            if let Some(fault) = fault {
                self.spoil(fault, &mut values);
            }
            let is_down = matches!(fault, Some(Fault::All | Fault::One | Fault::Gone));
            let error = is_down.then(|| Arc::from("simulated"));
            out.push(self.readings(source, values, error));
        }
        let values = vec![Reading::Value(f64::from(journal_is_up))];
        out.push(self.readings(Source::Journal, values, None));
    }

    fn readings(
        &self,
        source: Source,
        values: Vec<Reading<f64>>,
        error: Option<Arc<str>>,
    ) -> Observation {
        let schema = Arc::clone(&self.schemas[&source]);
        let took = Duration::from_micros(50);
        Observation::Readings(Readings { source, schema, values, took, error })
    }

    fn spoil(&mut self, fault: Fault, values: &mut [Reading<f64>]) {
        match fault {
            Fault::All => values.fill(Reading::Failed),
            Fault::Gone => values.fill(Reading::Unsupported),
            Fault::One => {
                let at = self.chance.whole(0..=values.len() as u64 - 1) as usize;
                values[at] = Reading::Failed;
            }
            Fault::Nonsense => {
                for value in values {
                    let nonsense =
                        [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 0.0, 1e300, f64::MAX];
                    *value = Reading::Value(*self.chance.one_of(&nonsense));
                }
            }
        }
    }
}

fn values(machine: &Machine, source: Source) -> Vec<(SeriesKey, f64)> {
    let named = |name: &str, labels: &[(&str, &str)], value: f64| {
        let value = if name.ends_with("_ratio") { value } else { value.floor() };
        (SeriesKey::new(name, labels), value)
    };
    let Machine { build, counters, .. } = machine;
    let free = machine.free();
    match source {
        Source::Meminfo => vec![
            named("uma_memory_total_bytes", &[], build.total),
            named("uma_memory_free_bytes", &[], free),
            named("uma_memory_available_bytes", &[], machine.available()),
            named("uma_memory_page_cache_bytes", &[("state", "clean")], machine.clean),
            named("uma_memory_page_cache_bytes", &[("state", "dirty")], machine.dirty),
            named("uma_memory_page_cache_bytes", &[("state", "mapped")], 0.0),
            named("uma_memory_shmem_bytes", &[], 0.0),
            named("uma_memory_anonymous_bytes", &[], machine.anonymous()),
            named("uma_memory_unaccounted_bytes", &[], machine.unaccounted()),
            named("uma_memory_hugetlb_bytes", &[], machine.huge_pages()),
            named("uma_memory_headroom_bytes", &[], free - machine.reserve() * 1.25),
            named("uma_swap_total_bytes", &[], build.swap),
            named("uma_swap_free_bytes", &[], build.swap - machine.swapped),
        ],
        Source::Vmstat => vec![
            named("uma_memory_allocation_stalls_total", &[("zone", "normal")], counters.stalls),
            named(
                "uma_memory_reclaim_scanned_pages_total",
                &[("reclaimer", "direct")],
                counters.scanned,
            ),
            named("uma_memory_oom_kills_total", &[], counters.oom_kills),
            named("uma_swap_out_pages_total", &[], counters.swapped_out),
        ],
        Source::Zoneinfo => vec![
            named("uma_memory_watermark_bytes", &[("watermark", "low")], machine.reserve() * 1.25),
            named("uma_zone_free_bytes", &[("node", "0"), ("zone", "Normal")], free),
        ],
        Source::Buddyinfo => vec![named(
            "uma_memory_contiguous_bytes",
            &[("block", "2MiB")],
            free * (1.0 - machine.pieces),
        )],
        Source::Pressure => vec![named(
            "uma_pressure_ratio",
            &[("resource", "memory"), ("share", "full"), ("window", "10s")],
            machine.pressure,
        )],
        Source::Sysctl => vec![named("uma_memory_reserve_bytes", &[], machine.reserve())],
        Source::KernelLog => vec![named("uma_kernel_log_reader", &[("reader", "kmsg")], 1.0)],
        _ => vec![named("uma_journal_up", &[], 1.0)],
    }
}
