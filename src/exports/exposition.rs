//! The metrics as text.
//!
//! prometheus-client writes OpenMetrics. For text 0.0.4 the collector gives other names (with their
//! suffix, `info` as a gauge), and [`Exposition`] corrects the rest.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, Write as _};
use std::sync::{Arc, LazyLock};

use flate2::Compression;
use flate2::write::GzEncoder;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::encoding::{
    CounterValueEncoder, DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeLabel,
    EncodeLabelSet, GaugeValueEncoder, LabelEncoder, LabelSetEncoder, MetricEncoder,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::Registry;

use super::negotiation::Format;
use super::selection::NameSelection;
use crate::model::{METRICS, Metric, MetricKind, SeriesKey};
use crate::policy::status::Status;

/// The exposition of the selected series of a snapshot.
///
/// # Errors
/// None is known: writing to memory does not fail.
pub(super) fn text(
    status: Arc<Status>,
    format: Format,
    selection: NameSelection,
) -> io::Result<String> {
    text_by(&CATALOGUE, status, format, selection)
}

/// The same with another catalogue.
pub(super) fn text_by(
    catalogue: &'static Catalogue,
    status: Arc<Status>,
    format: Format,
    selection: NameSelection,
) -> io::Result<String> {
    let selection = catalogue.whole(selection);
    let written = status.series.iter().filter(|key| selection.takes(&key.name)).count();
    let mut out =
        Exposition { text: String::with_capacity(120 * written + 4096), line_start: 0, format };
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Snapshot { catalogue, status, format, selection }));
    encode_registry(&mut out, &registry).map_err(io::Error::other)?;
    if format == Format::OpenMetrics {
        encode_eof(&mut out).map_err(io::Error::other)?;
    }
    Ok(out.text)
}

/// Compresses for the network, with the fastest level.
///
/// # Errors
/// None is known: writing to memory does not fail.
pub(super) fn gzip(text: &str) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(text.len() / 4), Compression::fast());
    encoder.write_all(text.as_bytes())?;
    encoder.finish()
}

/// The text so far, corrected line by line.
struct Exposition {
    text: String,
    line_start: usize,
    format: Format,
}

impl Exposition {
    /// The encoder writes infinities as `inf` and negative whole counters as `-1.0`, and lacks
    /// `untyped`. The value ends its line, since there are no timestamps and exemplars.
    fn end_line(&mut self) {
        let line = &self.text[self.line_start..];
        if line.starts_with("# TYPE ") {
            if self.format == Format::Text && line.ends_with(" unknown") {
                self.replace_end("unknown", "untyped");
            }
        } else if !line.starts_with('#') {
            if line.ends_with(" inf") {
                self.replace_end("inf", "+Inf");
            } else if line.ends_with(" -inf") {
                self.replace_end("-inf", "-Inf");
            } else if line.ends_with(".0") {
                self.replace_end(".0", "");
            }
        }
        self.text.push('\n');
        self.line_start = self.text.len();
    }

    fn replace_end(&mut self, old: &str, new: &str) {
        self.text.truncate(self.text.len() - old.len());
        self.text.push_str(new);
    }
}

impl fmt::Write for Exposition {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while let Some((line, after)) = rest.split_once('\n') {
            self.text.push_str(line);
            self.end_line();
            rest = after;
        }
        self.text.push_str(rest);
        Ok(())
    }
}

/// The table of all metrics, searchable by name.
pub(super) struct Catalogue {
    metrics: &'static [Metric],
    /// Names and positions, by name.
    positions: Vec<(&'static str, usize)>,
}

static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(|| Catalogue::new(METRICS));

impl Catalogue {
    pub(super) fn new(metrics: &'static [Metric]) -> Self {
        let mut positions: Vec<_> = metrics.iter().enumerate().map(|(i, m)| (m.name, i)).collect();
        positions.sort_unstable();
        Self { metrics, positions }
    }

    /// The position of a metric in the exposition. Unknown metrics come last.
    fn position(&self, name: &str) -> usize {
        let found = self.positions.binary_search_by(|(candidate, _)| (*candidate).cmp(name)).ok();
        found
            .and_then(|found| self.positions.get(found))
            .map_or(usize::MAX, |(_, position)| *position)
    }

    /// Completes partly selected histograms: omitted parts would count as 0.
    fn whole(&self, mut selection: NameSelection) -> NameSelection {
        let parts = self.metrics.iter().filter(|metric| metric.kind == MetricKind::Histogram);
        let families: BTreeSet<&str> = parts
            .clone()
            .filter(|part| selection.names(part.name) || selection.names(histogram(part.name)))
            .map(|part| histogram(part.name))
            .collect();
        let selected = parts.filter(|part| families.contains(histogram(part.name)));
        selected.for_each(|part| selection.add(part.name));
        selection
    }
}

struct Snapshot {
    catalogue: &'static Catalogue,
    status: Arc<Status>,
    format: Format,
    selection: NameSelection,
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot").field("format", &self.format).finish_non_exhaustive()
    }
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let mut samples: Vec<Sample<'_>> = self
            .status
            .series
            .iter()
            .zip(&self.status.values)
            .filter(|(key, _)| self.selection.takes(&key.name))
            .filter_map(|(key, reading)| {
                let value = reading.sample()?;
                let position = self.catalogue.position(&key.name);
                let sample = Sample { position, key, value };
                // One invalid name would invalidate the whole scrape.
                (!self.leaves_out(&sample) && is_writable(key)).then_some(sample)
            })
            .collect();
        samples.sort_by(|a, b| (a.position, &*a.key.name).cmp(&(b.position, &*b.key.name)));
        for family in samples.chunk_by(|a, b| self.family(a) == self.family(b)) {
            if let Some(first) = family.first().filter(|_| !self.is_empty_histogram(family)) {
                self.encode_family(
                    &mut encoder,
                    self.catalogue.metrics.get(first.position),
                    family,
                )?;
            }
        }
        Ok(())
    }
}

/// The name of the histogram of a part.
fn histogram(part: &str) -> &str {
    part.rsplit_once('_').map_or(part, |(name, _)| name)
}

/// One line.
struct Sample<'a> {
    position: usize,
    key: &'a SeriesKey,
    value: f64,
}

/// How the lines of a family are written.
#[derive(Clone, Copy)]
enum Shape {
    /// The name as it is.
    Plain,
    /// OpenMetrics: the encoder adds `_total`.
    Counter,
    /// OpenMetrics: the encoder adds `_info`, and 1.
    Info,
    /// The encoder writes all lines, with `_sum`, `_count` and `_bucket`.
    Histogram,
}

impl Snapshot {
    /// Whether the sample is for rules alone, or a 0 that nobody has selected.
    fn leaves_out(&self, sample: &Sample<'_>) -> bool {
        let Some(metric) = self.catalogue.metrics.get(sample.position) else { return false };
        metric.is_of_others || metric.kind != MetricKind::Histogram && self.hides(metric, sample)
    }

    /// Whether nothing was counted yet in a histogram that is left out until then.
    fn is_empty_histogram(&self, family: &[Sample<'_>]) -> bool {
        family.iter().all(|sample| {
            let metric = self.catalogue.metrics.get(sample.position);
            metric.is_some_and(|metric| self.hides(metric, sample))
        })
    }

    fn hides(&self, metric: &Metric, sample: &Sample<'_>) -> bool {
        metric.hides_zero && sample.value == 0.0 && self.selection.is_everything()
    }

    /// The family of a sample, which has one TYPE line.
    fn family<'s>(&self, sample: &Sample<'s>) -> &'s str {
        match self.catalogue.metrics.get(sample.position).map(|metric| metric.kind) {
            Some(MetricKind::Histogram) => histogram(&sample.key.name),
            _ => &sample.key.name,
        }
    }

    fn encode_family(
        &self,
        encoder: &mut DescriptorEncoder,
        metric: Option<&Metric>,
        family: &[Sample<'_>],
    ) -> fmt::Result {
        let Some(Sample { key, .. }) = family.first() else { return Ok(()) };
        let full: &str = &key.name;
        let (name, kind, shape) = match (metric.map(|m| m.kind), self.format) {
            (None, _) => (full, MetricType::Unknown, Shape::Plain),
            (Some(MetricKind::Histogram), _) => {
                (histogram(full), MetricType::Histogram, Shape::Histogram)
            }
            (Some(MetricKind::Gauge), _) => (full, MetricType::Gauge, Shape::Plain),
            (Some(MetricKind::Counter), Format::Text) => (full, MetricType::Counter, Shape::Plain),
            (Some(MetricKind::Info), Format::Text) => (full, MetricType::Gauge, Shape::Plain),
            (Some(MetricKind::Counter), Format::OpenMetrics) => match full.strip_suffix("_total") {
                Some(base) => (base, MetricType::Counter, Shape::Counter),
                None => (full, MetricType::Unknown, Shape::Plain),
            },
            (Some(MetricKind::Info), Format::OpenMetrics) => match full.strip_suffix("_info") {
                Some(base) => (base, MetricType::Info, Shape::Info),
                None => (full, MetricType::Gauge, Shape::Plain),
            },
        };
        let help =
            self.escape_help(metric.map_or("Not in this build's catalogue", Metric::summary));
        let mut lines = encoder.encode_descriptor(name, &help, None, kind)?;
        if let Shape::Histogram = shape {
            return encode_histogram(&mut lines, family);
        }
        family.iter().try_for_each(|sample| encode_sample(&mut lines, shape, sample))
    }

    /// The encoder writes help texts unescaped. Only OpenMetrics escapes quotes in them.
    fn escape_help(&self, help: &str) -> String {
        let help = help.replace('\\', r"\\").replace('\n', r"\n");
        match self.format {
            Format::Text => help,
            Format::OpenMetrics => help.replace('"', "\\\""),
        }
    }
}

/// The encoder adds up buckets, and so gets the difference of each to the one below.
fn encode_histogram(lines: &mut MetricEncoder, family: &[Sample<'_>]) -> fmt::Result {
    let part = |suffix: &str| {
        let part = family.iter().find(|sample| sample.key.name.ends_with(suffix));
        part.map_or(0.0, |sample| sample.value)
    };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a count; any other value saturates"
    )]
    let whole = |value: f64| value as u64;
    let mut below = 0;
    let mut buckets = Vec::with_capacity(family.len());
    for sample in family.iter().filter(|sample| sample.key.name.ends_with("_bucket")) {
        let bound = sample.key.labels.first().and_then(|(_, bound)| bound.parse::<f64>().ok());
        let within = whole(sample.value).max(below);
        buckets.push((bound.unwrap_or(f64::INFINITY), within - below));
        below = within;
    }
    let (sum, count) = (part("_sum"), whole(part("_count")));
    lines.encode_histogram::<ExpositionLabels<'_>>(sum, count, &buckets, None)
}

fn encode_sample(lines: &mut MetricEncoder, shape: Shape, sample: &Sample<'_>) -> fmt::Result {
    let labels = ExpositionLabels(sample.key);
    if let Shape::Info = shape {
        return lines.encode_info(&labels);
    }
    if sample.key.labels.is_empty() {
        return encode_value(lines, shape, sample.value);
    }
    encode_value(&mut lines.encode_family(&labels)?, shape, sample.value)
}

fn encode_value(line: &mut MetricEncoder, shape: Shape, value: f64) -> fmt::Result {
    match shape {
        Shape::Counter => line.encode_counter(&ExpositionValue(value), None::<&NoExemplar<'_>>),
        Shape::Plain | Shape::Info | Shape::Histogram => line.encode_gauge(&ExpositionValue(value)),
    }
}

type NoExemplar<'a> = Exemplar<ExpositionLabels<'a>, f64>;

#[derive(Debug)]
struct ExpositionLabels<'a>(&'a SeriesKey);

impl EncodeLabelSet for ExpositionLabels<'_> {
    fn encode(&self, encoder: &mut LabelSetEncoder) -> fmt::Result {
        for (name, value) in self.0.labels.iter() {
            let label: LabelEncoder = encoder.encode_label();
            (&**name, &**value).encode(label)?;
        }
        Ok(())
    }
}

/// A value: whole numbers in full, others in the shortest form that reads back the same.
struct ExpositionValue(f64);

impl ExpositionValue {
    /// Whole numbers up to 10^18 are written in full, others with an exponent.
    fn whole(&self) -> Option<i64> {
        let whole = self.0.trunc() == self.0 && self.0.abs() <= 1e18;
        let negative_zero = self.0 == 0.0 && self.0.is_sign_negative();
        #[expect(clippy::cast_possible_truncation, reason = "within the range of i64, and whole")]
        (whole && !negative_zero).then_some(self.0 as i64)
    }
}

impl EncodeGaugeValue for ExpositionValue {
    fn encode(&self, encoder: &mut GaugeValueEncoder) -> fmt::Result {
        match self.whole() {
            Some(whole) => EncodeGaugeValue::encode(&whole, encoder),
            None => EncodeGaugeValue::encode(&self.0, encoder),
        }
    }
}

impl EncodeCounterValue for ExpositionValue {
    fn encode(&self, encoder: &mut CounterValueEncoder) -> fmt::Result {
        match self.whole().and_then(|whole| u64::try_from(whole).ok()) {
            Some(whole) => EncodeCounterValue::encode(&whole, encoder),
            None => EncodeCounterValue::encode(&self.0, encoder),
        }
    }
}

fn is_writable(key: &SeriesKey) -> bool {
    let mut previous = "";
    let in_order = key.labels.iter().all(|(name, _)| {
        let later = previous < &**name;
        previous = name;
        later && is_name(name, false)
    });
    in_order && is_name(&key.name, true)
}

/// Whether both formats accept the name of a metric or label.
fn is_name(name: &str, colons: bool) -> bool {
    !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || (colons && c == ':'))
}
