//! The thread that reads ahead: a disk or a file system that hangs holds up nothing else.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use rustix::fs::{Mode, OFlags, sendfile};
use rustix::io::Errno;

use crate::actions::evict::MOST_LOADS;
use crate::actions::evict::ledger::ChunkId;
use crate::sys::io_priority;

/// Between two pieces the thread sees that it shall end.
const PIECE_BYTES: usize = 1 << 20;

/// Threads of this process that read ahead. One whose disk does not answer outlives its load.
static READERS: AtomicUsize = AtomicUsize::new(0);

/// The place of a thread among all that read ahead: as many as there may be loads.
#[derive(Debug)]
struct ReaderSlot(&'static AtomicUsize);

impl ReaderSlot {
    fn take(taken: &'static AtomicUsize) -> io::Result<Self> {
        let slot = Self(taken);
        if taken.fetch_add(1, Ordering::Relaxed) < MOST_LOADS {
            return Ok(slot);
        }
        Err(io::Error::other(format!("{MOST_LOADS} of them have not ended")))
    }
}

impl Drop for ReaderSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A part of a file to be read.
#[derive(Debug)]
pub(super) struct ReadJob {
    pub(super) id: ChunkId,
    pub(super) file: Arc<OwnedFd>,
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// A finished job: the bytes that are in the page cache now.
#[derive(Debug)]
pub(super) struct FinishedJob {
    pub(super) id: ChunkId,
    pub(super) bytes: io::Result<u64>,
}

#[derive(Debug, Default)]
struct ReadQueue {
    jobs: VecDeque<ReadJob>,
    done: Vec<FinishedJob>,
    is_over: bool,
}

#[derive(Debug, Default)]
struct ReaderShared {
    queue: Mutex<ReadQueue>,
    wake: Condvar,
}

impl ReaderShared {
    /// No thread panics while it holds this lock; it is held for a few instructions.
    fn queue(&self) -> MutexGuard<'_, ReadQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads files into the page cache, in order, on a thread of its own. Once it is dropped, the
/// thread ends after the piece that it reads.
#[derive(Debug)]
pub(super) struct PrefetchReader {
    shared: Arc<ReaderShared>,
}

impl PrefetchReader {
    pub(super) fn start() -> io::Result<Self> {
        let slot = ReaderSlot::take(&READERS)?;
        let shared = Arc::<ReaderShared>::default();
        let work = Arc::clone(&shared);
        let null = rustix::fs::open("/dev/null", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        let read_jobs = move || {
            run(&work, &null);
            drop(slot);
        };
        thread::Builder::new().name("prefetch".to_owned()).spawn(read_jobs)?;
        Ok(Self { shared })
    }

    pub(super) fn add(&self, jobs: impl IntoIterator<Item = ReadJob>) {
        self.shared.queue().jobs.extend(jobs);
        self.shared.wake.notify_one();
    }

    /// Takes back the jobs that have not begun and are void; returns their chunks.
    pub(super) fn withdraw(&self, is_void: impl Fn(ChunkId) -> bool) -> Vec<ChunkId> {
        let mut queue = self.shared.queue();
        let jobs = std::mem::take(&mut queue.jobs);
        let (void, waiting) = jobs.into_iter().partition::<VecDeque<_>, _>(|job| is_void(job.id));
        queue.jobs = waiting;
        // To close a file may take time, in which the thread goes on.
        drop(queue);
        void.into_iter().map(|job| job.id).collect()
    }

    /// The jobs that were finished since the last call.
    pub(super) fn take_done(&self) -> Vec<FinishedJob> {
        std::mem::take(&mut self.shared.queue().done)
    }
}

#[cfg(test)]
impl PrefetchReader {
    /// One whose thread never comes to a job.
    pub(super) fn stuck() -> Self {
        Self { shared: Arc::default() }
    }

    /// The chunks of the jobs that have not begun.
    pub(super) fn waiting(&self) -> Vec<ChunkId> {
        self.shared.queue().jobs.iter().map(|job| job.id).collect()
    }
}

impl Drop for PrefetchReader {
    fn drop(&mut self) {
        let mut queue = self.shared.queue();
        queue.is_over = true;
        queue.jobs.clear();
        self.shared.wake.notify_one();
    }
}

/// Reads a job into the page cache; returns the bytes read. It copies nothing: pages of the cache
/// are sent to the null device. Unlike readahead(2), a read lets the kernel choose large folios.
fn read(job: &ReadJob, null: &OwnedFd, is_over: impl Fn() -> bool) -> io::Result<u64> {
    let mut done = 0;
    while done < job.bytes && !is_over() {
        let piece =
            usize::try_from(job.bytes - done).map_or(PIECE_BYTES, |left| left.min(PIECE_BYTES));
        let mut offset = job.offset + done;
        match sendfile(null, &*job.file, Some(&mut offset), piece) {
            // The file is shorter by now.
            Ok(0) => break,
            Ok(bytes) => done += bytes as u64,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(done)
}

fn run(shared: &ReaderShared, null: &OwnedFd) {
    // A disk without priorities serves it all the same.
    let _ = io_priority::lower();
    loop {
        let mut queue = shared.queue();
        let job = loop {
            if queue.is_over {
                return;
            }
            match queue.jobs.pop_front() {
                Some(job) => break job,
                None => queue = shared.wake.wait(queue).unwrap_or_else(PoisonError::into_inner),
            }
        };
        drop(queue);
        let bytes = read(&job, null, || shared.queue().is_over);
        shared.queue().done.push(FinishedJob { id: job.id, bytes });
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write as _;
    use std::os::fd::AsFd as _;
    use std::time::Duration;

    use super::*;
    use crate::sys::page_cache::cachestat;

    const MIB: u64 = 1 << 20;

    fn job(file: &File, offset: u64, bytes: u64) -> ReadJob {
        let file = Arc::new(file.as_fd().try_clone_to_owned().unwrap());
        ReadJob { id: ChunkId { file: 0, chunk: 0 }, file, offset, bytes }
    }

    fn waits_for(reader: &PrefetchReader, jobs: usize) -> Vec<FinishedJob> {
        let mut done = Vec::new();
        for _ in 0..1_000 {
            done.extend(reader.take_done());
            if done.len() >= jobs {
                break;
            }
            thread::sleep(Duration::from_millis(10));
        }
        done
    }

    #[test]
    fn a_part_of_a_file_is_read_into_the_page_cache_and_nothing_else() {
        // /tmp may be a tmpfs.
        let mut file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.write_all(&vec![7; 32 << 20]).unwrap();
        file.sync_all().unwrap();
        let cached = || cachestat(file.as_fd(), 0, 0).map(|pages| pages.cached);
        let Ok(_) = cached() else { return eprintln!("skipped: no cachestat here") };
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        let reader = PrefetchReader::start().unwrap();
        reader.add([
            job(&file, MIB, 2 * MIB),
            job(&file, 31 * MIB, 16 * MIB),
            job(&file, 40 * MIB, 1),
        ]);
        let done = waits_for(&reader, 3);
        let bytes: Vec<u64> = done.iter().map(|done| *done.bytes.as_ref().unwrap()).collect();
        assert_eq!(bytes, [2 * MIB, MIB, 0], "up to the end of the file");
        let cached = cached().unwrap() * procfs::page_size();
        assert!((3 * MIB..24 * MIB).contains(&cached), "{cached}");
    }

    #[test]
    fn threads_that_do_not_end_are_as_many_as_loads_at_most() {
        static TAKEN: AtomicUsize = AtomicUsize::new(0);
        let mut slots: Vec<ReaderSlot> =
            (0..MOST_LOADS).map(|_| ReaderSlot::take(&TAKEN).unwrap()).collect();
        for _ in 0..2 {
            let error = ReaderSlot::take(&TAKEN).unwrap_err();
            assert_eq!(error.to_string(), "16 of them have not ended");
        }
        slots.pop();
        assert!(ReaderSlot::take(&TAKEN).is_ok());
    }

    #[test]
    fn what_cannot_be_read_is_an_error_and_the_thread_goes_on() {
        let folder = File::open("/proc/self").unwrap();
        let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let reader = PrefetchReader::start().unwrap();
        reader.add([job(&folder, 0, MIB), job(&file, 0, MIB)]);
        let done = waits_for(&reader, 2);
        assert!(done[0].bytes.is_err() && done[1].bytes.as_ref().is_ok_and(|bytes| *bytes == 0));
    }
}
