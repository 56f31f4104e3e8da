//! Who is logged in, asked of logind, or utmp(5) where there is none, while somebody wants to know:
//! a reboot is thought of.
//!
//! A thread asks, from when that is first wanted. The loop only takes what was found, and is told
//! that nobody knows when nothing comes.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread::Builder;
use std::time::Duration;

use crate::model::{LoggedInReadings, Observation, Reading};
use crate::supervisors::logged_in::{LoggedInPlaces, look};

/// Between two looks, while it is wanted.
const EVERY: Duration = Duration::from_secs(10);

/// A look bounds itself far below this.
const LOOK_TAKES: Duration = Duration::from_secs(30);

/// What may wait for the loop; more is dropped, and seen again at the next look.
const NEWS: usize = 4;

/// The loop's end of the thread.
#[derive(Debug)]
pub struct LoggedInWatch {
    places: LoggedInPlaces,
    clock: fn() -> Duration,
    thread: Option<Thread>,
    is_wanted: bool,
    /// When something was last told, or first wanted.
    heard: Duration,
}

#[derive(Debug)]
struct Thread {
    /// Whether it is wanted from now on.
    wants: Sender<bool>,
    news: Receiver<LoggedInReadings>,
}

impl LoggedInWatch {
    /// Nothing is started before it is wanted.
    pub fn new(places: LoggedInPlaces, clock: fn() -> Duration) -> Self {
        Self { places, clock, thread: None, is_wanted: false, heard: Duration::ZERO }
    }

    /// Whether somebody wants to know. The first look comes at once. Never waits.
    pub fn want(&mut self, now: Duration, is_wanted: bool) {
        if is_wanted == self.is_wanted {
            return;
        }
        self.is_wanted = is_wanted;
        self.heard = now;
        if self.thread.is_none() {
            match start(self.places.clone(), self.clock) {
                Ok(thread) => self.thread = Some(thread),
                Err(error) => {
                    tracing::error!("cannot start the thread that looks who is logged in: {error}");
                }
            }
        }
        if let Some(thread) = &self.thread {
            // One that has ended is told by its silence.
            let _ended = thread.wants.send(is_wanted);
        }
    }

    /// What is new. Never waits.
    pub fn take(&mut self, now: Duration, out: &mut Vec<Observation>) {
        let news = self.thread.iter().flat_map(|thread| thread.news.try_iter());
        // Only the last is true.
        if let Some(readings) = news.last() {
            self.heard = now;
            out.push(Observation::LoggedIn(Box::new(readings)));
        }
        let silent = now.saturating_sub(self.heard);
        if self.is_wanted && silent >= EVERY.saturating_add(LOOK_TAKES) {
            self.heard = now;
            let why = format!("looking who is logged in has not ended for {} s", silent.as_secs());
            out.push(Observation::LoggedIn(Box::new(LoggedInReadings {
                at: now,
                users: Reading::Failed,
                error: Some(why.into()),
            })));
        }
    }
}

fn start(places: LoggedInPlaces, clock: fn() -> Duration) -> io::Result<Thread> {
    let (wants, wanted) = channel();
    let (to, news) = sync_channel(NEWS);
    let run = move || look_while(&places, clock, &wanted, &to);
    Builder::new().name("logged-in-watch".to_owned()).spawn(run)?;
    Ok(Thread { wants, news })
}

/// Looks while it is wanted; ends with whoever may want it.
fn look_while(
    places: &LoggedInPlaces,
    clock: fn() -> Duration,
    wanted: &Receiver<bool>,
    to: &SyncSender<LoggedInReadings>,
) {
    let mut is_wanted = false;
    loop {
        let said = match is_wanted {
            true => wanted.recv_timeout(EVERY),
            false => wanted.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match said {
            Ok(wants) => is_wanted = wants,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if is_wanted {
            // What the loop has not taken yet is seen again.
            let _full = to.try_send(look(places, clock()));
        }
    }
}
