//! The one table of all series: what is exported, documented, and known to rules.

mod alertmanager;
mod assessment;
mod black_box;
mod cluster;
mod engine;
mod gpu;
mod kernel;
mod kubernetes;
mod memory;
mod otlp;
mod own;
mod pool;
mod reboot;
mod restarts;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use super::{SeriesKey, Source};

/// How a series behaves over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Goes up and down.
    Gauge,
    /// Only grows, from 0 at start; the name ends in `_total`.
    Counter,
    /// Always 1; its labels hold the information.
    Info,
    /// One of the series of a histogram, all of which only grow: `…_bucket`, how many were no more
    /// than `le`, which is its only label; `…_sum` and `…_count`, which have none.
    Histogram,
}

/// An exbibyte, or the seconds of 30 billion years.
const MOST: f64 = (1_u64 << 60) as f64;

/// A label and all values that it may have.
pub type ClosedLabel = (&'static str, &'static [&'static str]);

/// One metric: its name, meaning and labels.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// The full sample name, `_total` included.
    pub name: &'static str,
    /// Gauge, counter, info or part of a histogram.
    pub kind: MetricKind,
    /// The source of its values.
    pub source: Source,
    /// Label names, sorted; every series has all of them, but for those whose closed values have
    /// "", and the optional ones.
    pub labels: &'static [&'static str],
    /// Open labels that a series lacks where nothing is known.
    pub optional: &'static [&'static str],
    /// Labels that only ever have these values; those of the others are open.
    pub closed: &'static [ClosedLabel],
    /// Lowest value.
    pub least: f64,
    /// Highest value.
    pub most: f64,
    /// Whether a scrape of everything leaves out the series that are 0, since nothing asks for it.
    pub hides_zero: bool,
    /// Whether the series are received: they may have other labels, and only rules read them.
    pub is_of_others: bool,
    /// One or more sentences of help, with the source of the values.
    pub help: &'static str,
}

impl Metric {
    /// Never below 0, unless [`Metric::signed`].
    const fn gauge(
        source: Source,
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Self {
        Self::new(MetricKind::Gauge, source, name, labels, help)
    }

    const fn counter(
        source: Source,
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Self {
        Self::new(MetricKind::Counter, source, name, labels, help)
    }

    /// With open labels and no value below 0.
    pub const fn new(
        kind: MetricKind,
        source: Source,
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Self {
        let (least, most) = (0.0, f64::INFINITY);
        let (closed, optional): (&[ClosedLabel], &[&str]) = (&[], &[]);
        let (hides_zero, is_of_others) = (false, false);
        Self {
            name,
            kind,
            source,
            labels,
            optional,
            closed,
            least,
            most,
            hides_zero,
            is_of_others,
            help,
        }
    }

    /// With all the values that some labels may have.
    const fn closed(self, closed: &'static [ClosedLabel]) -> Self {
        Self { closed, ..self }
    }

    /// With open labels that may be missing.
    const fn optional(self, optional: &'static [&'static str]) -> Self {
        Self { optional, ..self }
    }

    /// May be below 0.
    const fn signed(self) -> Self {
        Self { least: f64::NEG_INFINITY, ..self }
    }

    /// A share of a whole, from 0 to 1.
    const fn share(self) -> Self {
        Self { most: 1.0, ..self }
    }

    /// Either 0 or 1.
    const fn flag(self) -> Self {
        Self { most: 1.0, ..self }
    }

    /// Left out of a scrape of everything while it is 0.
    const fn hides_zero(self) -> Self {
        Self { hides_zero: true, ..self }
    }

    /// Received, with labels of the sender.
    const fn of_others(self) -> Self {
        Self { is_of_others: true, ..self }
    }

    /// The first clause of the help. Each scrape has it, and the reference of the metrics the rest.
    pub fn summary(&self) -> &'static str {
        let ends = [". ", "; ", ": ", " ("].into_iter().filter_map(|end| self.help.find(end));
        ends.min().map_or(self.help, |end| &self.help[..end]).trim_end_matches('.')
    }

    /// Whether the value is possible: no value of a machine exceeds 2^60.
    pub fn allows(&self, value: f64) -> bool {
        value >= self.least && value <= self.most && value.abs() <= MOST
    }

    /// All values of a label; `None` where they are open.
    pub fn values(&self, label: &str) -> Option<&'static [&'static str]> {
        self.closed.iter().find(|(name, _)| *name == label).map(|(_, values)| *values)
    }
}

/// The metric of that name, if this build exports it.
pub fn metric(name: &str) -> Option<&'static Metric> {
    METRICS.iter().find(|metric| metric.name == name)
}

/// The series that one source fills, in the order of its values.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schema {
    /// One key for each value of a [`super::Readings`].
    pub series: Vec<SeriesKey>,
}

/// Every metric that this build exports: a table for each area, joined.
pub static METRICS: &[Metric] = &join::<
    {
        memory::METRICS.len()
            + kernel::METRICS.len()
            + pool::METRICS.len()
            + own::METRICS.len()
            + kubernetes::METRICS.len()
            + otlp::METRICS.len()
            + cluster::METRICS.len()
            + black_box::METRICS.len()
            + engine::METRICS.len()
            + reboot::METRICS.len()
            + restarts::METRICS.len()
            + assessment::METRICS.len()
            + gpu::METRICS.len()
            + alertmanager::METRICS.len()
    },
>(&[
    memory::METRICS,
    kernel::METRICS,
    pool::METRICS,
    own::METRICS,
    kubernetes::METRICS,
    otlp::METRICS,
    cluster::METRICS,
    black_box::METRICS,
    engine::METRICS,
    reboot::METRICS,
    restarts::METRICS,
    assessment::METRICS,
    gpu::METRICS,
    alertmanager::METRICS,
]);

const fn join<const COUNT: usize>(areas: &[&[Metric]]) -> [Metric; COUNT] {
    let mut joined = [areas[0][0]; COUNT];
    let (mut area, mut next) = (0, 0);
    while area < areas.len() {
        let mut position = 0;
        while position < areas[area].len() {
            joined[next] = areas[area][position];
            position += 1;
            next += 1;
        }
        area += 1;
    }
    joined
}
