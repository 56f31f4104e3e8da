//! Frees memory during the wait: evicts the old model from the page cache, then drops all caches,
//! then compacts. Each step is taken only if it is needed and can suffice, and only while memory is
//! stable.
//!
//! A step may hang in the kernel, and so has a thread of its own.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::json;

use crate::actions::MemoryPreparer;
use crate::cli::control::ControlClient;
use crate::model::{EnginePhase, GateReason, GateResponse, Reading, bytes_text};
use crate::parse::proc::buddyinfo::Contiguous;
use crate::parse::proc::meminfo::{Meminfo, MeminfoField};

/// A step is repeated after this time: a cache may have filled again.
const RETRY_AFTER: Duration = Duration::from_secs(30);

/// The least page cache that is worth dropping.
const LEAST: u64 = 16 << 20;

/// Growth above the baseline that may be in a driver's pools, which drop_caches empties.
const IN_POOLS: u64 = 256 << 20;

/// The author of its entries in the journal.
const AUTHOR: &str = "umawarden gate --prepare";

/// The steps, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PrepareStep {
    Unload,
    Drop { sync: bool },
    Compact,
}

/// What the steps need.
#[derive(Clone, Debug)]
pub(crate) struct PrepareSetup {
    /// Where procfs is mounted.
    pub(crate) procfs: PathBuf,
    /// The model files of declared engines.
    pub(crate) model_files: Vec<Arc<str>>,
    /// The daemon, which knows ended engines and keeps the journal.
    pub(crate) daemon: Option<ControlClient>,
}

/// Frees memory, step by step.
pub(crate) struct Preparer {
    setup: PrepareSetup,
    tried: BTreeMap<u8, Instant>,
    running: Option<Receiver<Vec<String>>>,
    news: Vec<String>,
}

/// The used part of an engine.
#[derive(Deserialize)]
struct EngineSummary {
    phase: EnginePhase,
    #[serde(default)]
    model_files: Vec<Arc<str>>,
}

impl Preparer {
    /// A preparer that has done nothing.
    pub(crate) fn new(setup: PrepareSetup) -> Self {
        Self { setup, tried: BTreeMap::new(), running: None, news: Vec::new() }
    }

    /// Starts the next step, if one is needed. `living` are the model files of running engines.
    /// Returns whether it is worth waiting for.
    pub(crate) fn advance(&mut self, response: &GateResponse, living: &[Arc<str>]) -> bool {
        match self.running.as_ref().map(Receiver::try_recv) {
            Some(Err(TryRecvError::Empty)) => return true,
            Some(news) => {
                self.news.extend(news.unwrap_or_default());
                self.running = None;
            }
            None => {}
        }
        let Some(step) = self.wanted(response) else { return false };
        self.tried.insert(step.index(), Instant::now());
        let files = self.setup.model_files.iter().filter(|file| !living.contains(file));
        let work = StepWork {
            maker: MemoryPreparer { procfs: self.setup.procfs.clone() },
            setup: self.setup.clone(),
            files: files.cloned().collect(),
            living: living.to_vec(),
            is_enough_at: response
                .request
                .need_bytes
                .saturating_add(response.memory.reserve.value().unwrap_or(0))
                .saturating_add(response.memory.free_cma.value().unwrap_or(0)),
        };
        let (to, done) = channel();
        let begun = std::thread::Builder::new().name("prepare".to_owned()).spawn(move || {
            // The receiver may be gone.
            let _ = to.send(work.perform(step));
        });
        match begun {
            Ok(_) => self.running = Some(done),
            Err(error) => self.news.push(format!("cannot free memory: {error}")),
        }
        self.running.is_some()
    }

    /// Steps and errors since the last call.
    pub(crate) fn news(&mut self) -> Vec<String> {
        std::mem::take(&mut self.news)
    }

    fn is_tried(&self, step: PrepareStep) -> bool {
        self.tried.get(&step.index()).is_some_and(|at| at.elapsed() < RETRY_AFTER)
    }

    /// The next step that may help.
    fn wanted(&self, response: &GateResponse) -> Option<PrepareStep> {
        let can_help = |reason: &GateReason| {
            let reason = reason.in_any_pool();
            matches!(reason, GateReason::TooLittle { .. } | GateReason::Fragmented { .. })
        };
        if !response.reasons.iter().all(can_help) {
            return None;
        }
        let memory = &response.memory;
        let of = |reading: Reading<u64>| reading.value().unwrap_or(0);
        let (spare, reachable) = (response.spare_bytes?, response.available_bytes?);
        let missing = response.request.need_bytes.saturating_sub(spare);
        if missing > 0 {
            if !self.is_tried(PrepareStep::Unload) {
                return Some(PrepareStep::Unload);
            }
            let caches = reachable - spare;
            let dirty = of(memory.dirty_cache);
            let above = of(memory.unaccounted).saturating_sub(memory.baseline.bytes);
            let pools = if above >= IN_POOLS { above } else { 0 };
            let step = PrepareStep::Drop { sync: caches.saturating_add(pools) < missing };
            let most = caches.saturating_add(dirty).saturating_add(pools);
            if most >= missing.max(LEAST) && !self.is_tried(step) {
                return Some(step);
            }
        }
        let contiguous = response.request.contiguous_bytes.unwrap_or(0);
        let lacks = of(memory.contiguous_2mib) < contiguous;
        (lacks && !self.is_tried(PrepareStep::Compact)).then_some(PrepareStep::Compact)
    }
}

impl PrepareStep {
    fn index(self) -> u8 {
        match self {
            Self::Unload => 0,
            Self::Drop { .. } => 1,
            Self::Compact => 2,
        }
    }
}

/// One step, on its thread.
struct StepWork {
    maker: MemoryPreparer,
    setup: PrepareSetup,
    files: Vec<Arc<str>>,
    living: Vec<Arc<str>>,
    /// `MemFree` that suffices.
    is_enough_at: u64,
}

impl StepWork {
    fn perform(&self, step: PrepareStep) -> Vec<String> {
        let result = match step {
            PrepareStep::Unload => self.unload(),
            PrepareStep::Drop { sync } => {
                self.measured("dropped caches", Self::free, || self.maker.drop_caches(sync))
            }
            PrepareStep::Compact => {
                self.measured("compacted memory", Self::contiguous, || self.maker.compact())
            }
        };
        let Some(text) = result else { return Vec::new() };
        let mut news = vec![text.clone()];
        news.extend(self.journal(&text));
        news
    }

    fn unload(&self) -> Option<String> {
        let mut files = self.files.clone();
        files.extend(self.gone());
        files.sort();
        files.dedup();
        if files.is_empty() {
            return None;
        }
        let is_enough = || self.free().is_some_and(|free| free >= self.is_enough_at);
        match self.maker.unload(&files, &is_enough) {
            Ok(done) => done,
            Err(error) => Some(format!("cannot evict model files: {error}")),
        }
    }

    /// Model files of engines that the daemon saw end, and that no running engine has.
    fn gone(&self) -> Vec<Arc<str>> {
        let daemon = self.setup.daemon.as_ref();
        let reply = daemon.and_then(|daemon| daemon.request("GET", "/api/v1/engines", None).ok());
        let engines = reply.and_then(|mut reply| {
            serde_json::from_value::<Vec<EngineSummary>>(reply.data["engines"].take()).ok()
        });
        let (gone, there): (Vec<EngineSummary>, Vec<EngineSummary>) = engines
            .unwrap_or_default()
            .into_iter()
            .partition(|engine| engine.phase == EnginePhase::Gone);
        let is_in_use = |file: &Arc<str>| {
            self.living.contains(file)
                || there.iter().any(|engine| engine.model_files.contains(file))
        };
        let files = gone.into_iter().flat_map(|engine| engine.model_files);
        files.filter(|file| !is_in_use(file)).collect()
    }

    /// Performs a step, and measures how much it freed.
    fn measured(
        &self,
        what: &str,
        of: fn(&Self) -> Option<u64>,
        perform: impl FnOnce() -> Result<(), String>,
    ) -> Option<String> {
        let before = of(self);
        Some(match (perform(), before, of(self)) {
            (Err(error), ..) => format!("not {what}: {error}"),
            (Ok(()), Some(before), Some(after)) => {
                let freed = after.saturating_sub(before);
                format!("{what}: {} freed", bytes_text(freed))
            }
            (Ok(()), ..) => format!("{what}; the effect cannot be measured"),
        })
    }

    fn free(&self) -> Option<u64> {
        let text = fs::read(self.setup.procfs.join("meminfo")).ok()?;
        Meminfo::parse(&text).ok()?.get(MeminfoField::MemFree).value()
    }

    fn contiguous(&self) -> Option<u64> {
        let text = fs::read(self.setup.procfs.join("buddyinfo")).ok()?;
        Contiguous::parse(&text, procfs::page_size()).ok()?.two_mib.value()
    }

    /// Records a step in the daemon's journal. Returns an error if there is a daemon and it fails.
    fn journal(&self, text: &str) -> Option<String> {
        let body = json!({ "author": AUTHOR, "comment": text });
        let reply = self.setup.daemon.as_ref()?.request("POST", "/api/v1/notes", Some(&body));
        match reply {
            Ok(reply) if reply.status == 200 => None,
            Ok(reply) => Some(format!("not recorded in the journal: {}", reply.problem)),
            Err(crate::cli::control::ClientError::Absent(_)) => None,
            Err(error) => Some(format!("not recorded in the journal: {error}")),
        }
    }
}
