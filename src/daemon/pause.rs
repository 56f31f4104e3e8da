//! Watches the panic switch on a thread of its own: its disk may hang.

use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use anyhow::Context;

use super::wake::Wake;
use crate::model::Pause;
use crate::pause::{FileStamp, PauseFile};

/// How often it is checked. Actions check it themselves too.
const INTERVAL: Duration = Duration::from_millis(250);

/// How long the start, and an order, wait for a check.
const CHECK_TAKES: Duration = Duration::from_secs(2);

/// The switch: the file, and a pause that was ordered and is not in the file.
#[derive(Debug)]
pub(super) struct PauseSwitch {
    file: PauseFile,
    ordered: Mutex<Option<Pause>>,
}

impl PauseSwitch {
    fn ordered(&self) -> MutexGuard<'_, Option<Pause>> {
        self.ordered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether actions are paused now. Reads the disk.
    pub(super) fn read(&self) -> Option<Pause> {
        let ordered = self.ordered().clone();
        ordered.or_else(|| self.file.read())
    }

    /// Writes an ordered pause to the file.
    pub(super) fn write(&self, pause: &Pause) -> Result<(), String> {
        self.file.write(pause).map_err(|error| {
            format!("{} cannot be written: {error}", self.file.path().display())
        })?;
        *self.ordered() = None;
        Ok(())
    }

    /// Ends the pause. Returns whether there was one.
    pub(super) fn resume(&self) -> Result<bool, String> {
        let removed = self.file.remove().map_err(|error| {
            format!("the pause stays: {} cannot be removed: {error}", self.file.path().display())
        })?;
        let ordered = self.ordered().take();
        Ok(removed || ordered.is_some())
    }
}

/// The state that the thread has found.
#[derive(Debug, Default)]
struct PauseState {
    pause: Option<Pause>,
    /// Not taken by the loop yet.
    is_news: bool,
    /// Who ordered the end of the pause.
    resumed_by: Option<String>,
}

impl PauseState {
    fn new(pause: Option<Pause>) -> Self {
        Self { pause, is_news: true, resumed_by: None }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct PauseChange {
    pub(super) pause: Option<Pause>,
    /// Who ended it, if it was ordered.
    pub(super) resumed_by: Option<String>,
}

/// Watches the switch.
#[derive(Clone, Debug)]
pub(super) struct PauseWatch {
    switch: Arc<PauseSwitch>,
    found: Arc<Mutex<PauseState>>,
    pokes: Sender<Sender<()>>,
}

impl PauseWatch {
    /// Starts the thread, and waits for its first check. If that is late, everything holds until it
    /// is done.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn start(file: &Path, wake: Wake) -> anyhow::Result<Self> {
        let (file, ordered) = (PauseFile::new(file), Mutex::new(None));
        let switch = Arc::new(PauseSwitch { file, ordered });
        let doubt = Pause {
            author: "doubt".to_owned(),
            comment: format!("the check of {} takes too long", switch.file.path().display()),
            since: None,
        };
        let found = Arc::new(Mutex::new(PauseState::new(Some(doubt))));
        let (pokes, poked) = channel();
        let watch = Self { switch: Arc::clone(&switch), found: Arc::clone(&found), pokes };
        let watcher = PauseWatcher { switch, found, wake, stamp: None };
        Builder::new()
            .name("pause".to_owned())
            .spawn(move || watcher.run(&poked))
            .context("cannot start the thread that watches for a pause")?;
        watch.check();
        // No pause at the start is no change.
        let mut found = watch.found();
        found.is_news = found.pause.is_some();
        drop(found);
        Ok(watch)
    }

    pub(super) fn switch(&self) -> Arc<PauseSwitch> {
        Arc::clone(&self.switch)
    }

    /// Pauses at once, without waiting for the disk, until [`PauseSwitch::write`] has written the
    /// file.
    pub(super) fn order(&self, pause: Pause) {
        *self.switch.ordered() = Some(pause.clone());
        *self.found() = PauseState::new(Some(pause));
    }

    /// Stores who ordered the end of the pause.
    pub(super) fn set_resumed_by(&self, author: &str) {
        self.found().resumed_by = Some(author.to_owned());
    }

    /// The last known pause, without reading the disk.
    pub(super) fn known(&self) -> Option<Pause> {
        self.found().pause.clone()
    }

    fn found(&self) -> MutexGuard<'_, PauseState> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the thread check now, and waits for it a moment.
    pub(super) fn check(&self) {
        let (to, checked) = channel();
        if self.pokes.send(to).is_ok() && checked.recv_timeout(CHECK_TAKES).is_err() {
            tracing::warn!("pause check slow: its disk is slow");
        }
    }

    /// The change since the last call.
    pub(super) fn news(&self) -> Option<PauseChange> {
        let mut found = self.found();
        if !std::mem::take(&mut found.is_news) {
            return None;
        }
        let pause = found.pause.clone();
        let resumed_by = found.resumed_by.take().filter(|_| pause.is_none());
        Some(PauseChange { pause, resumed_by })
    }
}

struct PauseWatcher {
    switch: Arc<PauseSwitch>,
    found: Arc<Mutex<PauseState>>,
    wake: Wake,
    stamp: Option<FileStamp>,
}

impl PauseWatcher {
    fn run(mut self, poked: &Receiver<Sender<()>>) {
        loop {
            match poked.recv_timeout(INTERVAL) {
                Ok(reply) => {
                    self.check();
                    // The receiver may have timed out.
                    let _ = reply.send(());
                }
                Err(RecvTimeoutError::Timeout) => self.check(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn check(&mut self) {
        let state = self.switch.file.check();
        let stamp = state.stamp();
        let ordered = self.switch.ordered().clone();
        if ordered.is_none() && stamp.is_some() && stamp == self.stamp {
            return;
        }
        self.stamp = stamp.filter(|_| ordered.is_none());
        let pause = ordered.or_else(|| self.switch.file.describe(&state));
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if found.pause != pause {
            *found = PauseState { resumed_by: found.resumed_by.take(), ..PauseState::new(pause) };
            drop(found);
            self.wake.notify();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn switch(folder: &Path) -> Arc<PauseSwitch> {
        let file = PauseFile::new(&folder.join("paused"));
        Arc::new(PauseSwitch { file, ordered: Mutex::new(None) })
    }

    fn news(watch: &PauseWatch) -> Option<Option<Pause>> {
        watch.news().map(|news| news.pause)
    }

    fn pause() -> Pause {
        Pause { author: "alice".to_owned(), comment: String::new(), since: None }
    }

    #[test]
    fn the_pause_switch_reads_the_disk_and_the_watch_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let switch = switch(folder.path());
        switch.write(&pause()).unwrap();
        assert_eq!(switch.read().map(|pause| pause.author).as_deref(), Some("alice"));
        let found = Arc::new(Mutex::new(PauseState::new(None)));
        let watch = PauseWatch { switch: Arc::clone(&switch), found, pokes: channel().0 };
        assert_eq!(watch.known(), None);
        watch.order(pause());
        assert_eq!(watch.known(), Some(pause()));
        assert_eq!(switch.resume(), Ok(true));
        assert_eq!(switch.read(), None);
    }

    #[test]
    fn an_order_pauses_even_if_the_file_cannot_be_written() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("missing/paused");
        let watch = PauseWatch::start(&file, Wake::new().unwrap()).unwrap();
        watch.order(pause());
        assert_eq!(news(&watch), Some(Some(pause())));
        let switch = watch.switch();
        assert!(switch.write(&pause()).unwrap_err().contains("cannot be written"));
        watch.check();
        assert_eq!((switch.read(), news(&watch)), (Some(pause()), None));
        assert_eq!(switch.resume(), Ok(true));
        watch.check();
        assert_eq!((switch.read(), news(&watch)), (None, Some(None)));
        assert_eq!(switch.resume(), Ok(false));
    }

    #[test]
    fn a_pause_that_becomes_a_file_is_the_same_pause() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("paused");
        let watch = PauseWatch::start(&file, Wake::new().unwrap()).unwrap();
        let since = Some(jiff::Timestamp::from_second(1_795_219_200).unwrap());
        let pause = Pause { since, ..pause() };
        watch.order(pause.clone());
        watch.check();
        assert_eq!(news(&watch), Some(Some(pause.clone())));
        watch.switch().write(&pause).unwrap();
        watch.check();
        assert_eq!((news(&watch), watch.switch().read()), (None, Some(pause)));
        fs::remove_file(&file).unwrap();
        watch.check();
        assert_eq!(news(&watch), Some(None));
    }

    #[test]
    fn the_author_of_a_resume_is_reported_once() {
        let folder = tempfile::tempdir().unwrap();
        let watch = PauseWatch::start(&folder.path().join("paused"), Wake::new().unwrap()).unwrap();
        let end = |author: Option<&str>| {
            watch.switch().write(&pause()).unwrap();
            watch.check();
            assert!(watch.news().unwrap().pause.is_some());
            if let Some(author) = author {
                watch.set_resumed_by(author);
            }
            assert_eq!(watch.switch().resume(), Ok(true));
            watch.check();
            watch.news().unwrap().resumed_by
        };
        assert_eq!(end(Some("bob")).as_deref(), Some("bob"));
        assert_eq!(end(None), None);
    }

    #[test]
    fn the_watch_reports_each_change_once_and_not_an_initially_missing_pause() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("paused");
        let watch = PauseWatch::start(&file, Wake::new().unwrap()).unwrap();
        assert_eq!(news(&watch), None);
        watch.switch().write(&pause()).unwrap();
        watch.check();
        let pause = news(&watch).unwrap().unwrap();
        assert_eq!(pause.author, "alice");
        watch.check();
        assert_eq!(news(&watch), None);
        let again = PauseWatch::start(&file, Wake::new().unwrap()).unwrap();
        assert_eq!(news(&again), Some(Some(pause)), "it is paused from the start");
        fs::remove_file(&file).unwrap();
        watch.check();
        assert_eq!(news(&watch), Some(None));
    }
}
