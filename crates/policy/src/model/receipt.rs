//! What the start of an engine took: the receipt of a load.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::names::named;
use super::time_text::rounded_seconds_text;
use super::wording::bytes_text;
use super::{EngineKind, ProcessId, WhyUnknown};

/// Digits of a fingerprint that are shown.
const SHOWN_DIGITS: usize = 8;

named! {
    /// How the observation of a load ended.
    pub enum LoadEnd {
        /// The engine became ready, and its growth was measured for a minute.
        Ready = "ready",
        /// It became ready; then another engine came or went, or it loaded another model.
        Interrupted = "interrupted",
        /// Its server ended before that.
        Died = "died",
    }
}

/// What an engine was started with. Two starts with equal values have one fingerprint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadConfiguration {
    /// The kind of the engine.
    pub engine_kind: EngineKind,
    /// The image of its container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<Arc<str>>,
    /// The model, as its command line names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Arc<str>>,
    /// Release of the kernel (uname -r).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<Arc<str>>,
    /// Version of the NVIDIA driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<Arc<str>>,
    /// Its arguments, one a line, without secrets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Arc<str>>,
}

impl LoadConfiguration {
    /// The named parts, but for the arguments.
    pub fn parts(&self) -> [(&'static str, Option<&str>); 5] {
        [
            ("kind", Some(self.engine_kind.name())),
            ("image", self.image.as_deref()),
            ("model", self.model.as_deref()),
            ("kernel", self.kernel.as_deref()),
            ("driver", self.driver.as_deref()),
        ]
    }

    /// The hash of the configuration of an engine of that name: 16 hexadecimal digits (FNV-1a of 64
    /// bits). It is the same on all nodes and in all versions.
    pub fn fingerprint(&self, engine: &str) -> Arc<str> {
        let mut hash = Fnv::default();
        hash.add(Some(engine));
        for (_, value) in self.parts() {
            hash.add(value);
        }
        hash.add(self.arguments.as_deref());
        format!("{:016x}", hash.0).into()
    }
}

/// FNV-1a of 64 bits. Nothing depends on its resistance to collisions made on purpose.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    /// Adds a field. Its end is marked, so that no two lists of fields have the same bytes.
    fn add(&mut self, field: Option<&str>) {
        let mark: &[u8] = if field.is_some() { &[0xff] } else { &[0xfe] };
        for byte in field.unwrap_or_default().as_bytes().iter().chain(mark) {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

/// Files of a folder that an engine has read one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ReadOrder {
    /// The folder, as the engine sees it.
    pub folder: Arc<str>,
    /// Names of the files, in that order.
    pub files: Vec<Arc<str>>,
}

impl ReadOrder {
    /// Most files, and bytes of their names, that are kept of one load.
    pub const MOST_FILES: usize = 1_024;
    /// See [`Self::MOST_FILES`].
    pub const MOST_BYTES: usize = 64 << 10;
}

/// How an engine read its model files, as far as that was tracked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadReading {
    /// The order of its files, empty where their names show it; `None` if it showed none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<Vec<ReadOrder>>,
    /// What was read ahead of it.
    pub prefetched_bytes: u64,
    /// What of that it did not use.
    pub unused_bytes: u64,
}

/// The reading of one life of an engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrackedReading {
    /// Name of the engine.
    pub engine: Arc<str>,
    /// Main process of the engine, which identifies its life.
    pub server: ProcessId,
    /// How it read.
    pub reading: LoadReading,
}

/// What the start of an engine took. Amounts are in bytes; unknown ones are `None`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadReceipt {
    /// How its observation ended.
    pub end: LoadEnd,
    /// When its server began.
    pub started: Timestamp,
    /// The fingerprint of its configuration.
    pub fingerprint: Arc<str>,
    /// What it was started with.
    pub configuration: LoadConfiguration,
    /// Time from the begin of its server until it was ready.
    pub ready_after_seconds: Option<f64>,
    /// Memory that it had when it was ready: the growth of memory that no counter names (over all
    /// pools) and of shared memory since before it, and its processes' anonymous memory and huge
    /// pages.
    pub ready_bytes: Option<u64>,
    /// The most that it had until then, or until its death.
    pub peak_bytes: Option<u64>,
    /// The most by which it grew beyond `ready_bytes` in the minute after it was ready.
    pub growth_bytes: Option<u64>,
    /// The lowest `MemFree` of the node from its begin to the end of the observation.
    pub lowest_free_bytes: Option<u64>,
    /// The lowest `MemAvailable` in that time. Unlike free memory it does not depend on how full
    /// the page cache is.
    #[serde(default)]
    pub lowest_available_bytes: Option<u64>,
    /// Allocations of the node in that time that had to reclaim memory themselves.
    pub stalls: Option<u64>,
    /// What it read from storage until it was ready.
    pub read_bytes: Option<u64>,
    /// What was evicted behind its readers in that time.
    pub evicted_bytes: Option<u64>,
    /// What the node read ahead of engines in that time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefetched_bytes: Option<u64>,
    /// What of that no engine used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefetch_unused_bytes: Option<u64>,
    /// How this engine read, if that was tracked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reading: Option<LoadReading>,
    /// Why its memory is unknown, where it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why_unknown: Option<WhyUnknown>,
}

impl LoadReceipt {
    /// What the node must have for a start like this one: the most that it had while it loaded, or
    /// with its growth after it was ready. `None` where either is unknown.
    pub fn need_bytes(&self) -> Option<u64> {
        let grown = self.ready_bytes?.saturating_add(self.growth_bytes?);
        Some(grown.max(self.peak_bytes.unwrap_or(0)))
    }

    fn ready_after_ms(&self) -> Option<u64> {
        let after = Duration::try_from_secs_f64(self.ready_after_seconds?).ok()?;
        u64::try_from(after.as_millis()).ok()
    }

    /// The beginning of the fingerprint, as it is shown.
    pub fn short_fingerprint(&self) -> &str {
        self.fingerprint.get(..SHOWN_DIGITS).unwrap_or(&self.fingerprint)
    }

    /// What is known for later loads: of one that was not complete, how the engine read.
    pub fn known(&self, engine: &str) -> Option<PastLoad> {
        let past = self.past(engine);
        match self.end {
            LoadEnd::Ready => Some(past),
            LoadEnd::Interrupted | LoadEnd::Died => {
                self.reading.as_ref().map(|_| past.only_reading())
            }
        }
    }

    /// What of the bytes that were read ahead of it was not used; `None` if none were.
    fn unused_bytes(&self) -> Option<u64> {
        let (prefetched, unused) = match &self.reading {
            Some(reading) => (Some(reading.prefetched_bytes), Some(reading.unused_bytes)),
            None => (self.prefetched_bytes, self.prefetch_unused_bytes),
        };
        unused.filter(|_| prefetched.is_some_and(|bytes| bytes > 0))
    }

    /// What later loads are compared with.
    pub fn past(&self, engine: &str) -> PastLoad {
        PastLoad {
            engine: engine.into(),
            fingerprint: Arc::clone(&self.fingerprint),
            growth_bytes: self.growth_bytes,
            prefetch_unused_bytes: self.unused_bytes(),
            read_order: self.reading.as_ref().and_then(|reading| reading.order.clone()),
            is_only_reading: false,
            lowest_available_bytes: self.lowest_available_bytes,
            kernel: self.configuration.kernel.clone(),
            driver: self.configuration.driver.clone(),
            image: self.configuration.image.clone(),
            model: self.configuration.model.clone(),
            ready_after_ms: self.ready_after_ms(),
        }
    }
}

impl fmt::Display for LoadReceipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let amount = |bytes: Option<u64>| bytes.map_or_else(|| "unknown".to_owned(), bytes_text);
        match (self.end, self.ready_after_seconds) {
            (LoadEnd::Died, None) => {
                f.write_str("died before it was ready")?;
                if let Some(peak) = self.peak_bytes {
                    write!(f, ", with at most {}", bytes_text(peak))?;
                }
            }
            (_, seconds) => {
                let after = rounded_seconds_text(seconds.unwrap_or(0.0));
                let (took, grew) = (amount(self.ready_bytes), amount(self.growth_bytes));
                write!(f, "ready after {after} with {took}, growth after that {grew}")?;
                if self.end == LoadEnd::Died {
                    f.write_str(", then it died")?;
                }
            }
        }
        if let Some(free) = self.lowest_free_bytes {
            write!(f, "; lowest free {}", bytes_text(free))?;
        }
        if let Some(stalls) = self.stalls {
            write!(f, "; {stalls} stalls")?;
        }
        if let Some(read) = self.read_bytes {
            write!(f, "; {} read", bytes_text(read))?;
        }
        if let Some(why) = self.why_unknown {
            write!(f, "; memory is unknown, since {}", why.meaning())?;
        }
        write!(f, "; fingerprint {}", self.short_fingerprint())
    }
}

/// An earlier load, as later ones of the same engine are compared with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastLoad {
    /// Name of the engine.
    pub engine: Arc<str>,
    /// The fingerprint of its configuration.
    pub fingerprint: Arc<str>,
    /// Its growth after it was ready.
    pub growth_bytes: Option<u64>,
    /// What was read ahead of it for nothing; `None` if nothing was read ahead.
    #[serde(default)]
    pub prefetch_unused_bytes: Option<u64>,
    /// The order of its files, empty where their names show it; `None` if it showed none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_order: Option<Vec<ReadOrder>>,
    /// Only how it read is known: it was not complete.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub is_only_reading: bool,
    /// The lowest `MemAvailable` of the node meanwhile.
    pub lowest_available_bytes: Option<u64>,
    /// Release of the kernel.
    pub kernel: Option<Arc<str>>,
    /// Version of the NVIDIA driver.
    pub driver: Option<Arc<str>>,
    /// The image of its container.
    pub image: Option<Arc<str>>,
    /// The model, as its command line names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Arc<str>>,
    /// Time from the begin of its server until it was ready, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_after_ms: Option<u64>,
}

impl PastLoad {
    /// Without what the load took: it was not complete.
    fn only_reading(self) -> Self {
        Self {
            growth_bytes: None,
            lowest_available_bytes: None,
            ready_after_ms: None,
            is_only_reading: true,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn configuration() -> LoadConfiguration {
        LoadConfiguration {
            engine_kind: EngineKind::Vllm,
            image: Some("vllm/vllm-openai:v0.32".into()),
            model: Some("m".into()),
            kernel: Some("6.17.0-1008-nvidia".into()),
            driver: Some("580.142".into()),
            arguments: Some("vllm\nserve\nm".into()),
        }
    }

    #[test]
    fn a_fingerprint_stays_the_same_in_all_versions() {
        assert_eq!(&*configuration().fingerprint("qwen"), "5d24db8abc621a17");
    }

    #[test]
    fn each_part_changes_the_fingerprint() {
        type Change = fn(&mut LoadConfiguration);
        let changes: [Change; 6] = [
            |one| one.engine_kind = EngineKind::Sglang,
            |one| one.image = None,
            |one| one.model = Some("mm".into()),
            |one| one.kernel = Some("6.18".into()),
            |one| one.driver = Some(String::new().into()),
            |one| one.arguments = Some("vllm\nserve m".into()),
        ];
        let before = configuration().fingerprint("qwen");
        for (place, change) in changes.iter().enumerate() {
            let mut other = configuration();
            change(&mut other);
            assert_ne!(other.fingerprint("qwen"), before, "{place}");
        }
        assert_ne!(configuration().fingerprint("other"), before);
    }

    proptest! {
        #[test]
        fn a_field_never_runs_into_the_next(one in ".{0,8}", other in ".{0,8}") {
            let of = |image: &str, model: &str| {
                let image = Some(image.into());
                LoadConfiguration { image, model: Some(model.into()), ..configuration() }
            };
            let moved = of(&format!("{one}{other}"), "").fingerprint("e");
            let apart = of(&one, &other).fingerprint("e");
            prop_assert_eq!(moved == apart, other.is_empty());
        }
    }
}
