//! The journal on disk: kernel events, decisions, outcomes, and the position in the kernel log.
//!
//! One thread writes, in SQLite with a write-ahead log. Others wait for it only on request, so that
//! a full, slow, read-only or missing disk stops neither sampling nor exports. All queues for the
//! disk are bounded.
//!
//! To store a new kind of entry: a variant of [`JournalEntry`] and of `entry::JournalRecord`, a
//! table in a new `format_N.sql` (listed in `file::FORMATS`; old files are brought to it at the
//! next start), an arm in `rows::insert`, a name in `retention::TABLES`, and a query in `reader`.

pub mod black_box;
mod entry;
mod file;
mod past;
mod queue;
mod reader;
mod reboots;
mod retention;
mod rows;
mod timeline;
mod writer;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use jiff::Timestamp;

pub use entry::{JournalEntry, Note};
pub use file::FILE_NAME;
pub use past::{PastRestarts, StoredAct};
pub use reader::{
    DecisionQuery, EventQuery, JournalReader, Order, OrderQuery, Page, ReadError, StoredDecision,
    StoredEvent, StoredNote, StoredOrder,
};
pub use reboots::{BootDuration, RebootRow, past_reboots};
pub use retention::Retention;
pub use timeline::{JournalEnd, TimelineItem, TimelineQuery};

use entry::JournalRecord;
use queue::{Queue, WriterQuery};
use writer::Writer;

use crate::model::{
    DecisionId, DecisionRecord, OperatorCommand, Reading, Readings, Schema, SeriesKey, Source,
};

/// Why a request to the journal failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JournalError {
    /// The journal cannot be written now; a retry follows in the background.
    #[error("the journal is down: {0}")]
    Down(Arc<str>),
    /// The journal is up, but a query of it failed.
    #[error("the journal cannot be read: {0}")]
    Unreadable(Arc<str>),
    /// The disk has not responded in time.
    #[error("the journal has not answered within {0:?}")]
    TimedOut(Duration),
    /// The entry can never be stored.
    #[error("the journal refuses the entry: {0}")]
    Refused(Arc<str>),
    /// The journal has ended, or the entry was dropped in favour of newer ones.
    #[error("the journal has dropped the request")]
    Dropped,
}

/// The position to resume reading the kernel log of this boot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResumePoint {
    /// The first record to read.
    pub resume_seq: u64,
    /// Records from there on whose event is stored already and must not be reported again.
    pub known: BTreeSet<u64>,
    /// The last time of each kind of event in this boot.
    pub last_events: BTreeMap<String, Timestamp>,
}

/// The orders in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OperatorMemory {
    /// Silences and approvals in force, in their order. Breaker resets are with the acts, see
    /// [`JournalReader::acts`].
    pub commands: Vec<OperatorCommand>,
    /// The number of the latest silence ever; 0 if there was none.
    pub last_silence: u64,
}

/// The journal, for the daemon. There is at most one in a directory, over all processes.
#[derive(Debug)]
pub struct Journal {
    queue: Arc<Queue>,
    health: Arc<Health>,
    ended: Mutex<Receiver<()>>,
    started: bool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Why it is down before it was opened.
const OPENING: &str = "it is being opened";

/// State of the journal, readable without the writer.
#[derive(Debug)]
struct Health {
    up: AtomicBool,
    size_bytes: AtomicU64,
    write_errors: AtomicU64,
    losses: AtomicU64,
    reason: Mutex<Arc<str>>,
}

impl Journal {
    /// Opens or creates the journal in a directory. Never fails and never waits: a journal that
    /// cannot be opened is down, with the reason in [`Self::readings`], and is retried.
    pub fn open(dir: &Path, retention: Retention) -> Self {
        let queue = Arc::new(Queue::default());
        let health = Arc::new(Health::new(OPENING));
        let writer =
            Writer::new(dir.to_owned(), retention, Arc::clone(&queue), Arc::clone(&health));
        let (tell_end, ended) = sync_channel(1);
        let thread = std::thread::Builder::new().name("journal".to_owned()).spawn(move || {
            writer.run();
            // Fails only if there is no receiver.
            tell_end.try_send(()).unwrap_or_default();
        });
        let thread = match thread {
            Ok(thread) => Some(thread),
            Err(error) => {
                health.set_down(&format!("its thread cannot be started: {error}"));
                None
            }
        };
        let started = thread.is_some();
        Self { queue, health, ended: Mutex::new(ended), started, thread: Mutex::new(thread) }
    }

    /// Queues an entry, which is stored within about 10 ms on a healthy disk. Never waits. While
    /// the disk cannot be written, up to 4,096 entries or 2 MiB wait; the oldest beyond that are
    /// dropped and counted.
    pub fn record(&self, entry: &JournalEntry) {
        match JournalRecord::new(entry) {
            Ok(record) => self.queue.push(record, None),
            Err(error) => {
                tracing::error!(reason = %error, "journal entry dropped");
                self.queue.count_dropped(1);
            }
        }
    }

    /// Stores a decision, and returns when it will survive a power cut. Call it right before
    /// acting. After an error the decision may still be stored later.
    pub fn intent(
        &self,
        decision: &DecisionRecord,
        deadline: Duration,
    ) -> Result<(), JournalError> {
        let record = JournalRecord::decision(decision)
            .map_err(|error| JournalError::Refused(error.to_string().into()))?;
        self.await_answer(deadline, |to| self.queue.push(record, Some(to)))
    }

    /// Stores an order, and returns when it will survive a power cut. After an error an approval is
    /// not stored later; other orders may be. One that was refused replaces what was stored of it.
    pub fn keep_order(
        &self,
        command: &OperatorCommand,
        deadline: Duration,
    ) -> Result<(), JournalError> {
        let record = JournalRecord::operator(command)
            .map_err(|error| JournalError::Refused(error.to_string().into()))?;
        self.await_answer(deadline, |to| self.queue.push(record, Some(to)))
    }

    /// The orders in force at a time.
    pub fn operator_memory(
        &self,
        now: Timestamp,
        deadline: Duration,
    ) -> Result<OperatorMemory, JournalError> {
        let now_ms = now.as_millisecond();
        self.await_answer(deadline, |to| self.queue.query(WriterQuery::Operator(now_ms, to)))
    }

    /// The position to resume reading the kernel log of a boot; `None` if nothing of it was read
    /// before.
    pub fn resume_point(
        &self,
        boot_id: &str,
        deadline: Duration,
    ) -> Result<Option<ResumePoint>, JournalError> {
        let question = |to| self.queue.query(WriterQuery::ResumePoint(Arc::from(boot_id), to));
        self.await_answer(deadline, question)
    }

    /// The boot whose kernel log was read last, if any. Another one than the present means a
    /// reboot.
    pub fn last_boot_id(&self, deadline: Duration) -> Result<Option<String>, JournalError> {
        self.await_answer(deadline, |to| self.queue.query(WriterQuery::LastBoot(to)))
    }

    /// The first number for new decisions: one above the last one stored. While the journal
    /// is down, it is the time, far above any counted number, so that numbers stay unique.
    pub fn next_decision_id(&self, now: Timestamp, deadline: Duration) -> DecisionId {
        match self.await_answer(deadline, |to| self.queue.query(WriterQuery::LastDecision(to))) {
            Ok(last) => DecisionId(last.saturating_add(1)),
            Err(error) => {
                let number = u64::try_from(now.as_millisecond()).unwrap_or(0).max(1);
                tracing::warn!(%error, number, "decisions are numbered from the time");
                DecisionId(number)
            }
        }
    }

    /// The position after which the acts of a boot are stored, see [`StoredAct::position`]. From
    /// there on the uptime clock is this boot's. Call it before the first act of every process.
    pub fn boot_begins_after(
        &self,
        boot_id: &str,
        deadline: Duration,
    ) -> Result<i64, JournalError> {
        let question = |to| self.queue.query(WriterQuery::BootBeginsAfter(Arc::from(boot_id), to));
        self.await_answer(deadline, question)
    }

    /// Whether the queue is long enough that callers should delay more entries. False while the
    /// disk cannot be written, since waiting would not help.
    pub fn is_behind(&self) -> bool {
        self.health.is_up() && self.queue.is_filling()
    }

    /// The series of the journal. Does not access the disk.
    pub fn readings(&self) -> Readings {
        static SCHEMA: LazyLock<Arc<Schema>> = LazyLock::new(|| {
            let names = [
                "uma_journal_up",
                "uma_journal_size_bytes",
                "uma_journal_dropped_entries_total",
                "uma_journal_write_errors_total",
                "uma_journal_lost_total",
            ];
            let series = names.iter().map(|name| SeriesKey::new(name, &[])).collect();
            Arc::new(Schema { series })
        });
        let up = self.health.is_up();
        Readings {
            source: Source::Journal,
            schema: Arc::clone(&SCHEMA),
            values: vec![
                Reading::Value(f64::from(u8::from(up))),
                number(self.health.size_bytes.load(Ordering::Relaxed)),
                number(self.queue.dropped()),
                number(self.health.write_errors.load(Ordering::Relaxed)),
                number(self.health.losses.load(Ordering::Relaxed)),
            ],
            took: Duration::ZERO,
            error: (!up).then(|| self.health.reason()),
        }
    }

    /// Writes queued entries, closes the file, and unlocks the directory. An error: the disk did
    /// not respond in time, or entries could not be written.
    pub fn close(&self, deadline: Duration) -> Result<(), JournalError> {
        self.queue.close();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(thread) = thread else {
            return Err(JournalError::Down(self.health.reason()));
        };
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        match ended.recv_timeout(deadline) {
            Err(RecvTimeoutError::Timeout) => return Err(JournalError::TimedOut(deadline)),
            Ok(()) | Err(RecvTimeoutError::Disconnected) => {}
        }
        if thread.join().is_err() || self.queue.len() > 0 {
            return Err(JournalError::Dropped);
        }
        Ok(())
    }

    fn await_answer<T>(
        &self,
        deadline: Duration,
        ask: impl FnOnce(std::sync::mpsc::SyncSender<Result<T, JournalError>>),
    ) -> Result<T, JournalError> {
        if !self.started {
            return Err(JournalError::Down(self.health.reason()));
        }
        let (to, answer) = sync_channel(1);
        ask(to);
        match answer.recv_timeout(deadline) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => Err(JournalError::TimedOut(deadline)),
            Err(RecvTimeoutError::Disconnected) => Err(JournalError::Dropped),
        }
    }
}

impl Drop for Journal {
    /// Lets the writer finish by itself; [`Journal::close`] waits for it.
    fn drop(&mut self) {
        self.queue.close();
    }
}

#[expect(clippy::cast_precision_loss, reason = "a series' value is an f64 everywhere")]
fn number(value: u64) -> Reading<f64> {
    Reading::Value(value as f64)
}

impl Health {
    fn new(reason: &str) -> Self {
        Self {
            up: AtomicBool::new(false),
            size_bytes: AtomicU64::new(0),
            write_errors: AtomicU64::new(0),
            losses: AtomicU64::new(0),
            reason: Mutex::new(Arc::from(reason)),
        }
    }

    fn is_up(&self) -> bool {
        self.up.load(Ordering::Acquire)
    }

    fn set_up(&self) {
        self.up.store(true, Ordering::Release);
    }

    fn set_down(&self, reason: &str) {
        *self.reason.lock().unwrap_or_else(PoisonError::into_inner) = Arc::from(reason);
        self.up.store(false, Ordering::Release);
    }

    /// Why it is down; meaningless while it is up.
    fn reason(&self) -> Arc<str> {
        Arc::clone(&self.reason.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn count_write_error(&self) {
        self.write_errors.fetch_add(1, Ordering::Relaxed);
    }

    fn count_loss(&self) {
        self.losses.fetch_add(1, Ordering::Relaxed);
    }

    fn set_size(&self, bytes: u64) {
        self.size_bytes.store(bytes, Ordering::Relaxed);
    }
}
