//! The only thread that accesses the disk.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use rusqlite::Connection;

use super::entry::JournalRecord;
use super::file::{self, DatabaseFailure, DirectoryLock};
use super::queue::{Queue, QueuedEntry, WriterQuery, WriterWork};
use super::retention::{self, Retention};
use super::{Health, JournalError, OPENING, rows};

/// First and longest pause between attempts while the journal is down.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Time without entries after which old ones are removed.
const QUIET: Duration = Duration::from_secs(60);
/// Entries after which old ones are removed at the latest.
const UPKEEP_ENTRIES: usize = 1_000;

/// The state of the thread.
pub(super) struct Writer {
    dir: PathBuf,
    retention: Retention,
    queue: Arc<Queue>,
    health: Arc<Health>,
    lock: Option<DirectoryLock>,
    connection: Option<Connection>,
    /// The open file.
    identity: Option<(u64, u64)>,
    /// The number of openings of that file then: another file or an older copy has fewer.
    times_opened: Option<i64>,
    /// Earlier entries of this process are not in the file opened next, and the loss is not
    /// recorded there yet.
    is_lost: bool,
    pause: Duration,
    since_upkeep: usize,
    in_upkeep: bool,
    /// Time of the entry written last, in milliseconds since 1970.
    latest_ms: i64,
    /// The same when the last upkeep began: one entry with a wrong time deletes nothing.
    latest_at_upkeep_ms: Option<i64>,
    /// The instant from which this upkeep counts age.
    age_from_ms: Option<i64>,
}

impl Writer {
    pub(super) fn new(
        dir: PathBuf,
        retention: Retention,
        queue: Arc<Queue>,
        health: Arc<Health>,
    ) -> Self {
        Self {
            dir,
            retention,
            queue,
            health,
            lock: None,
            connection: None,
            identity: None,
            times_opened: None,
            is_lost: false,
            pause: FIRST_PAUSE,
            since_upkeep: 0,
            in_upkeep: false,
            latest_ms: 0,
            latest_at_upkeep_ms: None,
            age_from_ms: None,
        }
    }

    /// Writes until the queue is closed.
    pub(super) fn run(mut self) {
        self.open_or_note();
        loop {
            let up = self.health.is_up();
            let WriterWork { batch, questions, closing } = self.queue.wait(self.patience(up), up);
            let quiet = batch.is_empty() && questions.is_empty();
            if !batch.is_empty() {
                self.since_upkeep += batch.len();
                self.check_file();
                let unwritten = self.write(batch);
                self.queue.settle(unwritten);
            } else if self.connection.is_none() {
                self.open_or_note();
            }
            for question in questions {
                self.answer(question);
            }
            if closing && (self.queue.len() == 0 || !self.health.is_up()) {
                break;
            }
            self.upkeep(quiet);
            self.check_file();
        }
        self.end();
    }

    fn patience(&self, up: bool) -> Duration {
        match (up, self.in_upkeep) {
            (true, true) => Duration::ZERO,
            (true, false) => QUIET,
            (false, _) => self.pause,
        }
    }

    /// Writes a batch. Returns the entries that could not be written yet.
    fn write(&mut self, mut batch: Vec<QueuedEntry>) -> Vec<QueuedEntry> {
        let failure = match self.try_write(&batch) {
            Ok(()) => {
                batch.iter_mut().for_each(|queued| self.confirm(queued));
                return Vec::new();
            }
            Err(DatabaseFailure::Refused(_)) if batch.len() > 1 => return self.write_singly(batch),
            Err(DatabaseFailure::Refused(text)) => {
                self.health.count_write_error();
                for queued in &mut batch {
                    tracing::error!(reason = text, "journal entry dropped");
                    self.queue.count_dropped(queued.record.rows());
                    answer_intent(queued, Err(JournalError::Refused(text.as_str().into())));
                }
                return Vec::new();
            }
            Err(failure) => failure,
        };
        self.health.count_write_error();
        self.note_down(failure.text());
        for queued in &mut batch {
            answer_intent(queued, Err(JournalError::Down(self.health.reason())));
        }
        batch.retain(|queued| !queued.record.is_nothing_if_late());
        batch
    }

    fn confirm(&mut self, queued: &mut QueuedEntry) {
        let is_received = answer_intent(queued, Ok(()));
        let (JournalRecord::Operator(row), Some(connection)) = (&queued.record, &self.connection)
        else {
            return;
        };
        if is_received || !queued.record.is_nothing_if_late() {
            return;
        }
        match rows::take_back(connection, row) {
            Ok(()) => tracing::warn!("late approval taken back"),
            Err(failure) => {
                let reason = failure.text();
                tracing::error!(reason, "late approval not taken back");
            }
        }
    }

    fn write_singly(&mut self, batch: Vec<QueuedEntry>) -> Vec<QueuedEntry> {
        let mut unwritten = Vec::new();
        for queued in batch {
            if unwritten.is_empty() {
                unwritten.extend(self.write(vec![queued]));
            } else {
                unwritten.push(queued);
            }
        }
        unwritten
    }

    /// One attempt, or two if the first one finds the file damaged.
    fn try_write(&mut self, batch: &[QueuedEntry]) -> Result<(), DatabaseFailure> {
        let mut result = self.write_once(batch);
        if let Err(DatabaseFailure::Damaged(text)) = &result {
            self.replace_damaged(text)?;
            result = self.write_once(batch);
        }
        match result {
            Ok(()) | Err(DatabaseFailure::Refused(_)) => self.note_up(),
            // A connection that has seen a disk failure may have a wrong view of the file.
            Err(DatabaseFailure::Later(_) | DatabaseFailure::Damaged(_)) => self.connection = None,
            // Closing would remove the log from readers, which could not create a new one now.
            Err(DatabaseFailure::Full(_)) => {}
        }
        result
    }

    fn write_once(&mut self, batch: &[QueuedEntry]) -> Result<(), DatabaseFailure> {
        if self.connection.is_none() {
            self.open()?;
        }
        let Some(connection) = &mut self.connection else { return Ok(()) };
        let records = batch.iter().map(|queued| &queued.record);
        rows::write(connection, records, &mut self.latest_ms)
    }

    fn open_or_note(&mut self) {
        match self.open() {
            Ok(()) => self.note_up(),
            Err(failure) => self.note_down(failure.text()),
        }
        self.health.set_size(file::size_bytes(&self.dir).unwrap_or(0));
    }

    fn open(&mut self) -> Result<(), DatabaseFailure> {
        if self.lock.is_none() {
            self.lock = Some(DirectoryLock::take(&self.dir)?);
        }
        match file::open(&self.dir) {
            Err(DatabaseFailure::Damaged(text)) => self.replace_damaged(&text),
            opened => self.take_up(opened?),
        }
    }

    /// Continues with a file, and records in it the loss of entries that are in another one.
    fn take_up(&mut self, mut connection: Connection) -> Result<(), DatabaseFailure> {
        let times_opened = file::times_opened(&connection)?;
        let identity = file::identity(&self.dir).ok().flatten();
        let is_older = self.times_opened.is_some_and(|before| times_opened <= before);
        // A remounted file system may have another device number; its files keep their inodes.
        let is_other = self.identity.zip(identity).is_some_and(|(before, now)| before.1 != now.1);
        self.is_lost |= is_older || is_other;
        if self.is_lost {
            rows::note_loss(&mut connection)?;
            self.is_lost = false;
            if self.times_opened.is_some() {
                self.health.count_loss();
                tracing::error!(
                    dir = %self.dir.display(),
                    effect = "no reboot while the loss could matter",
                    remedy = "umawarden reboot --clear",
                    "content of the journal lost"
                );
            }
        }
        self.times_opened = Some(times_opened);
        self.identity = identity;
        self.connection = Some(connection);
        Ok(())
    }

    /// Measures the file. If it was deleted or replaced, the writer opens the path again.
    fn check_file(&mut self) {
        self.health.set_size(file::size_bytes(&self.dir).unwrap_or(0));
        // An error shows when the file is written.
        let Ok(found) = file::identity(&self.dir) else { return };
        if self.connection.is_none() || found == self.identity {
            return;
        }
        let what = if found.is_some() { "replaced" } else { "deleted" };
        tracing::warn!(dir = %self.dir.display(), what, "journal file no longer there");
        self.connection = None;
        self.lock = None;
        self.open_or_note();
    }

    /// Sets the damaged file aside and begins a new one.
    fn replace_damaged(&mut self, text: &str) -> Result<(), DatabaseFailure> {
        self.connection = None;
        let kept = file::set_aside(&self.dir)?;
        tracing::error!(
            reason = text, kept_as = %kept.display(),
            "damaged journal set aside, new one begun"
        );
        self.is_lost = true;
        let connection = file::open(&self.dir)?;
        self.take_up(connection)
    }

    fn note_up(&mut self) {
        self.pause = FIRST_PAUSE;
        if !self.health.is_up() {
            let dir = self.dir.display();
            match &*self.health.reason() {
                OPENING => tracing::debug!(%dir, "the journal is up"),
                _ => tracing::info!(%dir, "the journal is up"),
            }
            self.health.set_up();
        }
    }

    fn note_down(&mut self, reason: &str) {
        if self.health.is_up() || *self.health.reason() != *reason {
            let dir = std::path::absolute(&self.dir);
            let dir = dir.as_ref().unwrap_or(&self.dir).display();
            tracing::error!(
                reason, %dir,
                effect = "nothing will be acted on until it is up: an act is journalled first",
                remedy = "check its space and permissions, or name another with --storage.path",
                "the journal is down"
            );
        }
        self.pause =
            if self.health.is_up() { FIRST_PAUSE } else { (self.pause * 2).min(LONGEST_PAUSE) };
        self.health.set_down(reason);
    }

    fn answer(&self, question: WriterQuery) {
        match question {
            WriterQuery::ResumePoint(boot_id, to) => {
                self.answer_from(&to, |open| rows::resume_point(open, &boot_id));
            }
            WriterQuery::LastDecision(to) => self.answer_from(&to, rows::last_decision),
            WriterQuery::LastBoot(to) => self.answer_from(&to, rows::last_boot),
            WriterQuery::Operator(now_ms, to) => {
                self.answer_from(&to, |open| rows::operator_memory(open, now_ms));
            }
            WriterQuery::BootBeginsAfter(boot_id, to) => {
                self.answer_from(&to, |open| rows::boot_begins_after(open, &boot_id));
            }
        }
    }

    fn answer_from<T>(
        &self,
        to: &SyncSender<Result<T, JournalError>>,
        read: impl FnOnce(&Connection) -> Result<T, DatabaseFailure>,
    ) {
        let answer = match &self.connection {
            Some(open) => {
                read(open).map_err(|failure| JournalError::Unreadable(failure.text().into()))
            }
            None => Err(JournalError::Down(self.health.reason())),
        };
        reply(to, answer);
    }

    /// One step of retention, if it is due.
    fn upkeep(&mut self, quiet: bool) {
        if !self.in_upkeep {
            if self.since_upkeep < if quiet { 1 } else { UPKEEP_ENTRIES } {
                return;
            }
            self.since_upkeep = 0;
            self.in_upkeep = true;
            self.age_from_ms = self.latest_at_upkeep_ms.map(|then| then.min(self.latest_ms));
            self.latest_at_upkeep_ms = Some(self.latest_ms);
        }
        let Some(connection) = &mut self.connection else {
            self.in_upkeep = false;
            return;
        };
        match retention::step(connection, self.retention, self.age_from_ms) {
            Ok(more) => self.in_upkeep = more,
            Err(failure) => {
                self.in_upkeep = false;
                self.health.count_write_error();
                tracing::warn!(reason = failure.text(), "cannot delete old entries now");
                if let DatabaseFailure::Damaged(text) = &failure
                    && let Err(failure) = self.replace_damaged(text)
                {
                    self.note_down(failure.text());
                }
            }
        }
    }

    fn end(&mut self) {
        let unwritten = self.queue.len();
        if unwritten > 0 {
            tracing::error!(unwritten, "journal closed with unwritten entries");
        }
        if let Some(connection) = self.connection.take() {
            let checkpoint = "PRAGMA wal_checkpoint(TRUNCATE)";
            let ended = connection
                .query_row(checkpoint, [], |_| Ok(()))
                .and_then(|()| connection.close().map_err(|(_, error)| error));
            if let Err(error) = ended {
                tracing::warn!(%error, "journal whole, but not closed tidily");
            }
        }
        self.lock = None;
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.health.set_down("the journal is closed");
    }
}

/// Returns whether the receiver took the result.
fn answer_intent(queued: &mut QueuedEntry, answer: Result<(), JournalError>) -> bool {
    queued.receipt.take().is_some_and(|receipt| reply(&receipt, answer))
}

/// The caller may have stopped waiting.
fn reply<T>(to: &SyncSender<T>, answer: T) -> bool {
    let is_received = to.try_send(answer).is_ok();
    if !is_received {
        tracing::debug!("the caller no longer waits for the journal");
    }
    is_received
}
