//! Logged-in users, from logind or, without it, utmp(5). They are read only while a reboot is
//! considered.
//!
//! A thread reads them, from the first request on. The loop only takes the results, and reports a
//! failure if none arrives.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread::Builder;
use std::time::Duration;

use crate::model::{LoggedInReadings, Observation, Reading};
use crate::supervisors::logged_in::{LoginSources, read_users};

/// Interval between two reads, while wanted.
const INTERVAL: Duration = Duration::from_secs(10);

/// A read limits itself far below this time.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Capacity of the queue to the loop. A result that does not fit is dropped; the next read repeats
/// it.
const QUEUE: usize = 4;

/// The loop's handle of the thread.
#[derive(Debug)]
pub struct LoggedInWatch {
    sources: LoginSources,
    clock: fn() -> Duration,
    thread: Option<Thread>,
    is_wanted: bool,
    /// The last result, or the begin of the interest in one.
    last_report: Duration,
}

#[derive(Debug)]
struct Thread {
    /// Whether results are wanted from now on.
    wants: Sender<bool>,
    news: Receiver<LoggedInReadings>,
}

impl LoggedInWatch {
    /// Starts no thread before results are wanted.
    pub fn new(sources: LoginSources, clock: fn() -> Duration) -> Self {
        Self { sources, clock, thread: None, is_wanted: false, last_report: Duration::ZERO }
    }

    /// Sets whether results are wanted. The first read starts at once. Never waits.
    pub fn want(&mut self, now: Duration, is_wanted: bool) {
        if is_wanted == self.is_wanted {
            return;
        }
        self.is_wanted = is_wanted;
        self.last_report = now;
        if self.thread.is_none() {
            match start(self.sources.clone(), self.clock) {
                Ok(thread) => self.thread = Some(thread),
                Err(error) => {
                    tracing::error!(%error, "cannot start the thread logged-in-watch");
                }
            }
        }
        if let Some(thread) = &self.thread {
            // A thread that has ended is noticed by its silence.
            let _ = thread.wants.send(is_wanted);
        }
    }

    /// Takes the new result without waiting.
    pub fn take(&mut self, now: Duration, out: &mut Vec<Observation>) {
        let news = self.thread.iter().flat_map(|thread| thread.news.try_iter());
        // Only the newest result is current.
        if let Some(readings) = news.last() {
            self.last_report = now;
            out.push(Observation::LoggedIn(Box::new(readings)));
        }
        let silent = now.saturating_sub(self.last_report);
        if self.is_wanted && silent >= INTERVAL.saturating_add(READ_TIMEOUT) {
            self.last_report = now;
            let why =
                format!("reading the logged-in users has not ended for {} s", silent.as_secs());
            out.push(Observation::LoggedIn(Box::new(LoggedInReadings {
                at: now,
                users: Reading::Failed,
                error: Some(why.into()),
            })));
        }
    }
}

fn start(sources: LoginSources, clock: fn() -> Duration) -> io::Result<Thread> {
    let (wants, wanted) = channel();
    let (to, news) = sync_channel(QUEUE);
    let run = move || read_while_wanted(&sources, clock, &wanted, &to);
    Builder::new().name("logged-in-watch".to_owned()).spawn(run)?;
    Ok(Thread { wants, news })
}

/// Reads while results are wanted; ends with the watch.
fn read_while_wanted(
    sources: &LoginSources,
    clock: fn() -> Duration,
    wanted: &Receiver<bool>,
    to: &SyncSender<LoggedInReadings>,
) {
    let mut is_wanted = false;
    loop {
        let message = match is_wanted {
            true => wanted.recv_timeout(INTERVAL),
            false => wanted.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match message {
            Ok(wants) => is_wanted = wants,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if is_wanted {
            // The queue is full. The next read repeats the result.
            let _ = to.try_send(read_users(sources, clock()));
        }
    }
}
