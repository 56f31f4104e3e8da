//! Making room while it is waited: the old model's page cache, then all caches, then compaction.
//! Each only where it is needed and can suffice, and only once nothing moves by itself any more.
//!
//! A step may hang in the kernel, so that each has a thread of its own.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::json;

use crate::actions::MemoryPreparer;
use crate::cli::control::Client;
use crate::model::{EnginePhase, GateAnswer, GateReason, Reading, bytes_text};
use crate::parse::proc::buddyinfo::Contiguous;
use crate::parse::proc::meminfo::{Meminfo, MeminfoField};

/// After so long a step is worth another try: a cache may have filled again.
const AGAIN_AFTER: Duration = Duration::from_secs(30);

/// Less than this in all caches is not worth emptying them for.
const LEAST: u64 = 16 << 20;

/// So much above what is usual may be in a driver's pools, which drop_caches empties.
const IN_POOLS: u64 = 256 << 20;

/// How an entry in the journal begins.
const AUTHOR: &str = "umawarden gate --prepare";

/// What can be done, in the order in which it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Unload,
    Drop { sync: bool },
    Compact,
}

/// What there is to do it with.
#[derive(Clone, Debug)]
pub(crate) struct PrepareSetup {
    /// Where procfs is mounted.
    pub(crate) procfs: PathBuf,
    /// The model files of declared engines.
    pub(crate) model_files: Vec<Arc<str>>,
    /// Whom to ask for engines that have gone, and who keeps the journal.
    pub(crate) daemon: Option<Client>,
}

/// Makes room, step by step.
pub(crate) struct Preparer {
    setup: PrepareSetup,
    tried: BTreeMap<u8, Instant>,
    running: Option<Receiver<Vec<String>>>,
    news: Vec<String>,
}

/// As much of an engine as is asked for.
#[derive(Deserialize)]
struct Engine {
    phase: EnginePhase,
    #[serde(default)]
    model_files: Vec<Arc<str>>,
}

impl Preparer {
    /// Nothing is done yet.
    pub(crate) fn new(setup: PrepareSetup) -> Self {
        Self { setup, tried: BTreeMap::new(), running: None, news: Vec::new() }
    }

    /// Begins what is needed, if anything. `living` are the model files of engines that run.
    /// Returns whether it is worth waiting for.
    pub(crate) fn heed(&mut self, answer: &GateAnswer, living: &[Arc<str>]) -> bool {
        match self.running.as_ref().map(Receiver::try_recv) {
            Some(Err(TryRecvError::Empty)) => return true,
            Some(told) => {
                self.news.extend(told.unwrap_or_default());
                self.running = None;
            }
            None => {}
        }
        let Some(step) = self.wanted(answer) else { return false };
        self.tried.insert(step.place(), Instant::now());
        let files = self.setup.model_files.iter().filter(|file| !living.contains(file));
        let work = Work {
            maker: MemoryPreparer { procfs: self.setup.procfs.clone() },
            setup: self.setup.clone(),
            files: files.cloned().collect(),
            living: living.to_vec(),
            is_enough_at: answer
                .question
                .need_bytes
                .saturating_add(answer.room.reserve.value().unwrap_or(0))
                .saturating_add(answer.room.free_cma.value().unwrap_or(0)),
        };
        let (to, done) = channel();
        let begun = std::thread::Builder::new().name("prepare".to_owned()).spawn(move || {
            // Whoever waited may have gone.
            let _gone = to.send(work.perform(step));
        });
        match begun {
            Ok(_) => self.running = Some(done),
            Err(error) => self.news.push(format!("cannot make room: {error}")),
        }
        self.running.is_some()
    }

    /// What was done since the last time, and what could not be.
    pub(crate) fn news(&mut self) -> Vec<String> {
        std::mem::take(&mut self.news)
    }

    fn is_tried(&self, step: Step) -> bool {
        self.tried.get(&step.place()).is_some_and(|at| at.elapsed() < AGAIN_AFTER)
    }

    /// The next step that may help.
    fn wanted(&self, answer: &GateAnswer) -> Option<Step> {
        let can_help = |reason: &GateReason| {
            matches!(reason, GateReason::TooLittle { .. } | GateReason::Fragmented { .. })
        };
        if !answer.reasons.iter().all(can_help) {
            return None;
        }
        let room = &answer.room;
        let of = |reading: Reading<u64>| reading.value().unwrap_or(0);
        let (spare, reachable) = (answer.spare_bytes?, answer.room_bytes?);
        let missing = answer.question.need_bytes.saturating_sub(spare);
        if missing > 0 {
            if !self.is_tried(Step::Unload) {
                return Some(Step::Unload);
            }
            let caches = reachable - spare;
            let dirty = of(room.dirty_cache);
            let above = of(room.unaccounted).saturating_sub(room.baseline.bytes);
            let pools = if above >= IN_POOLS { above } else { 0 };
            let step = Step::Drop { sync: caches.saturating_add(pools) < missing };
            let most = caches.saturating_add(dirty).saturating_add(pools);
            if most >= missing.max(LEAST) && !self.is_tried(step) {
                return Some(step);
            }
        }
        let contiguous = answer.question.contiguous_bytes.unwrap_or(0);
        let lacks = of(room.contiguous_2mib) < contiguous;
        (lacks && !self.is_tried(Step::Compact)).then_some(Step::Compact)
    }
}

impl Step {
    fn place(self) -> u8 {
        match self {
            Self::Unload => 0,
            Self::Drop { .. } => 1,
            Self::Compact => 2,
        }
    }
}

/// One step, on its thread.
struct Work {
    maker: MemoryPreparer,
    setup: PrepareSetup,
    files: Vec<Arc<str>>,
    living: Vec<Arc<str>>,
    /// `MemFree` at which there is enough.
    is_enough_at: u64,
}

impl Work {
    fn perform(&self, step: Step) -> Vec<String> {
        let told = match step {
            Step::Unload => self.unload(),
            Step::Drop { sync } => {
                self.measured("dropped caches", Self::free, || self.maker.drop_caches(sync))
            }
            Step::Compact => {
                self.measured("compacted memory", Self::contiguous, || self.maker.compact())
            }
        };
        let Some(text) = told else { return Vec::new() };
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
            Err(error) => Some(format!("model files stay in the page cache: {error}")),
        }
    }

    /// The model files of engines that the daemon saw go, and that no other has.
    fn gone(&self) -> Vec<Arc<str>> {
        let daemon = self.setup.daemon.as_ref();
        let reply = daemon.and_then(|daemon| daemon.ask("GET", "/api/v1/engines", None).ok());
        let engines = reply.and_then(|mut reply| {
            serde_json::from_value::<Vec<Engine>>(reply.data["engines"].take()).ok()
        });
        let (gone, there): (Vec<Engine>, Vec<Engine>) = engines
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

    /// Does it, and tells by how much more there is afterwards.
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
                let won = after.saturating_sub(before);
                format!("{what}: {} won", bytes_text(won))
            }
            (Ok(()), ..) => format!("{what}; what that has won cannot be read"),
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

    /// Has the daemon keep what was done; says so where it does not, and there is one.
    fn journal(&self, text: &str) -> Option<String> {
        let body = json!({ "author": AUTHOR, "comment": text });
        let reply = self.setup.daemon.as_ref()?.ask("POST", "/api/v1/notes", Some(&body));
        match reply {
            Ok(reply) if reply.status == 200 => None,
            Ok(reply) => Some(format!("this is not in the journal: {}", reply.problem)),
            Err(crate::cli::control::ClientError::Absent(_)) => None,
            Err(error) => Some(format!("this is not in the journal: {error}")),
        }
    }
}
