//! The bounded queue between the recording threads and the writer.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::entry::JournalRecord;
use super::{JournalError, OperatorMemory, ResumePoint};

/// The most queued entries.
pub(super) const MOST_ENTRIES: usize = 4_096;
/// The most memory of queued entries, in bytes. The target for the whole daemon is 12 MiB.
pub(super) const MOST_BYTES: usize = 2 << 20;
/// The most entries and bytes of one transaction.
const BATCH_ENTRIES: usize = 512;
const BATCH_BYTES: usize = 512 << 10;
/// Longest delay of a position in the kernel log without events.
const POSITION_WAITS: Duration = Duration::from_secs(1);

/// The receiver of the result of an intent.
pub(super) type Receipt = SyncSender<Result<(), JournalError>>;

#[derive(Debug)]
pub(super) struct QueuedEntry {
    pub(super) record: JournalRecord,
    pub(super) receipt: Option<Receipt>,
    bytes: usize,
}

/// A query that only the writer can perform.
#[derive(Debug)]
pub(super) enum WriterQuery {
    ResumePoint(Arc<str>, SyncSender<Result<Option<ResumePoint>, JournalError>>),
    LastDecision(SyncSender<Result<u64, JournalError>>),
    LastBoot(SyncSender<Result<Option<String>, JournalError>>),
    Operator(i64, SyncSender<Result<OperatorMemory, JournalError>>),
    BootBeginsAfter(Arc<str>, SyncSender<Result<i64, JournalError>>),
}

/// The next work of the writer. All may be empty: then its wait is over.
#[derive(Debug, Default)]
pub(super) struct WriterWork {
    pub(super) batch: Vec<QueuedEntry>,
    pub(super) questions: Vec<WriterQuery>,
    pub(super) closing: bool,
}

/// The queue, see the module.
#[derive(Debug, Default)]
pub(super) struct Queue {
    inside: Mutex<QueueState>,
    wake: Condvar,
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct QueueState {
    waiting: VecDeque<QueuedEntry>,
    /// Bytes of `waiting`.
    bytes: usize,
    /// The number of entries in `waiting` that are more than a position.
    pressing: usize,
    /// The number of entries in `waiting` with a receiver.
    awaited: usize,
    /// Entries and bytes in the current transaction; they count towards the bounds.
    in_hand: (usize, usize),
    questions: Vec<WriterQuery>,
    closing: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        // Nothing under this lock can panic half-way, so what a poisoned lock guards is whole.
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an entry, and drops the oldest beyond the bounds.
    pub(super) fn push(&self, record: JournalRecord, receipt: Option<Receipt>) {
        let mut inside = self.lock();
        if let Some(last) = inside.waiting.back_mut()
            && receipt.is_none()
            && last.record.absorb(&record)
        {
            return;
        }
        let bytes = record.bytes();
        // A writer that waits with a position needs no wakeup for another one.
        let wakes = inside.waiting.is_empty() || !record.is_position_only();
        inside.add(QueuedEntry { record, receipt, bytes }, false);
        self.count_dropped(inside.drop_excess());
        drop(inside);
        if wakes {
            self.wake.notify_one();
        }
    }

    /// Queues a query for the writer.
    pub(super) fn query(&self, question: WriterQuery) {
        self.lock().questions.push(question);
        self.wake.notify_one();
    }

    /// Ends the writer after it has written the queue.
    pub(super) fn close(&self) {
        self.lock().closing = true;
        self.wake.notify_one();
    }

    /// Waits for work, at most `patience`. With `eager` unset (the last attempt failed) only a
    /// waiting receiver or the end shortens the wait.
    pub(super) fn wait(&self, patience: Duration, eager: bool) -> WriterWork {
        let idle =
            |inside: &mut QueueState| !inside.is_awaited() && (!eager || inside.waiting.is_empty());
        let (mut inside, _) = self
            .wake
            .wait_timeout_while(self.lock(), patience, idle)
            .unwrap_or_else(PoisonError::into_inner);
        if eager && !patience.is_zero() && !inside.waiting.is_empty() {
            let only_position =
                |inside: &mut QueueState| !inside.is_awaited() && inside.pressing == 0;
            (inside, _) = self
                .wake
                .wait_timeout_while(inside, POSITION_WAITS, only_position)
                .unwrap_or_else(PoisonError::into_inner);
        }
        inside.take()
    }

    /// Ends the current transaction: returned entries go to the front again.
    pub(super) fn settle(&self, unwritten: Vec<QueuedEntry>) {
        let mut inside = self.lock();
        inside.in_hand = (0, 0);
        for queued in unwritten.into_iter().rev() {
            inside.add(queued, true);
        }
        self.count_dropped(inside.drop_excess());
    }

    /// Counts dropped entries.
    pub(super) fn count_dropped(&self, rows: u64) {
        self.dropped.fetch_add(rows, Ordering::Relaxed);
    }

    /// The number of lost entries.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Whether a large part of the queue is used.
    pub(super) fn is_filling(&self) -> bool {
        let inside = self.lock();
        inside.waiting.len() > MOST_ENTRIES / 4 || inside.bytes > MOST_BYTES / 8
    }

    /// The number of queued entries, with those of the current transaction.
    pub(super) fn len(&self) -> usize {
        let inside = self.lock();
        inside.waiting.len() + inside.in_hand.0
    }
}

impl QueueState {
    fn is_awaited(&self) -> bool {
        self.closing || self.awaited > 0 || !self.questions.is_empty()
    }

    fn add(&mut self, queued: QueuedEntry, in_front: bool) {
        self.bytes += queued.bytes;
        self.pressing += usize::from(!queued.record.is_position_only());
        self.awaited += usize::from(queued.receipt.is_some());
        if in_front {
            self.waiting.push_front(queued);
        } else {
            self.waiting.push_back(queued);
        }
    }

    fn remove_oldest(&mut self) -> Option<QueuedEntry> {
        let queued = self.waiting.pop_front()?;
        self.bytes -= queued.bytes;
        self.pressing -= usize::from(!queued.record.is_position_only());
        self.awaited -= usize::from(queued.receipt.is_some());
        Some(queued)
    }

    /// Drops the oldest entries beyond the bounds, though never the newest. Returns the number of
    /// lost rows.
    fn drop_excess(&mut self) -> u64 {
        let mut lost = 0;
        while self.waiting.len() > 1
            && (self.waiting.len() + self.in_hand.0 > MOST_ENTRIES
                || self.bytes + self.in_hand.1 > MOST_BYTES)
        {
            let Some(oldest) = self.remove_oldest() else { break };
            lost += oldest.record.rows();
        }
        lost
    }

    fn take(&mut self) -> WriterWork {
        let mut batch = Vec::new();
        let mut bytes = 0;
        while batch.len() < BATCH_ENTRIES && bytes < BATCH_BYTES {
            let Some(queued) = self.remove_oldest() else { break };
            bytes += queued.bytes;
            batch.push(queued);
        }
        self.in_hand = (batch.len(), bytes);
        WriterWork { batch, questions: std::mem::take(&mut self.questions), closing: self.closing }
    }
}
