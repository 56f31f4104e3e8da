//! Watches the panic switch, away from the loop: its disk may hang.

use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use anyhow::Context;

use super::wake::Wake;
use crate::actions::{Executor, Live};
use crate::model::{Decision, Mode, OutcomeResult, Pause, Verdict};
use crate::pause::{PauseFile, Stamp};

/// How often it is looked at.
const INTERVAL: Duration = Duration::from_millis(100);

/// How long the start, and an order, wait for a look at it.
const LOOK_TAKES: Duration = Duration::from_secs(2);

/// The switch: the file, and what was ordered while the file could not be written.
#[derive(Debug)]
pub(super) struct PauseSwitch {
    file: PauseFile,
    ordered: Mutex<Option<Pause>>,
}

impl PauseSwitch {
    fn ordered(&self) -> MutexGuard<'_, Option<Pause>> {
        self.ordered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nothing may be done, at this very moment. Asks the disk.
    pub(super) fn read(&self) -> Option<Pause> {
        self.file.read().or_else(|| self.ordered().clone())
    }

    /// Pauses. Where the file cannot be written, the pause holds for as long as this process runs,
    /// and the error says why.
    pub(super) fn pause(&self, pause: Pause) -> Result<(), String> {
        self.file.write(&pause).map_err(|error| {
            *self.ordered() = Some(pause);
            format!("{} cannot be written: {error}", self.file.path().display())
        })
    }

    /// Ends the pause; whether there was one.
    pub(super) fn resume(&self) -> Result<bool, String> {
        let removed = self.file.remove().map_err(|error| {
            format!("the pause stays: {} cannot be removed: {error}", self.file.path().display())
        })?;
        let ordered = self.ordered().take();
        Ok(removed || ordered.is_some())
    }
}

/// What the watching thread has found.
#[derive(Debug, Default)]
struct Found {
    pause: Option<Pause>,
    /// The loop has not taken it yet.
    is_news: bool,
}

/// Follows the switch.
#[derive(Clone, Debug)]
pub(super) struct PauseWatch {
    switch: Arc<PauseSwitch>,
    found: Arc<Mutex<Found>>,
    pokes: Sender<Sender<()>>,
}

impl PauseWatch {
    /// Starts the thread, and waits for its first look. Where that does not come in time, nothing is
    /// done until it does.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn start(file: &Path, wake: Wake) -> anyhow::Result<Self> {
        let (file, ordered) = (PauseFile::new(file), Mutex::new(None));
        let switch = Arc::new(PauseSwitch { file, ordered });
        let doubt = Pause {
            author: "doubt".to_owned(),
            comment: format!("looking for {} takes too long", switch.file.path().display()),
            since: None,
        };
        let found = Arc::new(Mutex::new(Found { pause: Some(doubt), is_news: true }));
        let (pokes, poked) = channel();
        let watch = Self { switch: Arc::clone(&switch), found: Arc::clone(&found), pokes };
        let watcher = Watcher { switch, found, wake, stamp: None };
        Builder::new()
            .name("pause".to_owned())
            .spawn(move || watcher.run(&poked))
            .context("cannot start the thread that watches for a pause")?;
        watch.look();
        // That nothing holds it is no news at a start.
        let mut found = watch.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.is_news = found.pause.is_some();
        drop(found);
        Ok(watch)
    }

    /// The switch itself.
    pub(super) fn switch(&self) -> Arc<PauseSwitch> {
        Arc::clone(&self.switch)
    }

    /// Has the thread look now, and waits for it, a while.
    pub(super) fn look(&self) {
        let (to, looked) = channel();
        if self.pokes.send(to).is_ok() && looked.recv_timeout(LOOK_TAKES).is_err() {
            tracing::warn!("looking whether umawarden is paused takes long: its disk is slow");
        }
    }

    /// What has changed since the last call.
    pub(super) fn news(&self) -> Option<Option<Pause>> {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut found.is_news).then(|| found.pause.clone())
    }
}

struct Watcher {
    switch: Arc<PauseSwitch>,
    found: Arc<Mutex<Found>>,
    wake: Wake,
    stamp: Option<Stamp>,
}

impl Watcher {
    fn run(mut self, poked: &Receiver<Sender<()>>) {
        loop {
            match poked.recv_timeout(INTERVAL) {
                Ok(reply) => {
                    self.look();
                    // Whoever asked may have stopped waiting.
                    let _gone = reply.send(());
                }
                Err(RecvTimeoutError::Timeout) => self.look(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn look(&mut self) {
        let look = self.switch.file.look();
        let stamp = look.stamp();
        if stamp.is_some() && stamp == self.stamp {
            return;
        }
        self.stamp = stamp;
        let pause = self.switch.file.tell(&look).or_else(|| self.switch.ordered().clone());
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if found.pause != pause {
            *found = Found { pause, is_news: true };
            drop(found);
            self.wake.notify();
        }
    }
}

/// Acts, unless it is paused by the time that it comes to it.
#[derive(Debug)]
pub(super) struct Heeding {
    pub(super) live: Live,
    pub(super) switch: Arc<PauseSwitch>,
}

impl Executor for Heeding {
    fn execute(&mut self, decision: &Decision) -> OutcomeResult {
        if decision.mode == Mode::Enforce
            && decision.verdict == Verdict::Act
            && let Some(pause) = self.switch.read()
        {
            return OutcomeResult::Failed(format!("not done: paused by {}", pause.author));
        }
        self.live.execute(decision)
    }
}
