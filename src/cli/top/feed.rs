//! Queries the nodes, each on a thread of its own, since it may hang.

use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::{Builder, sleep};
use std::time::{Duration, Instant};

use crate::cli::pictures::NodeSource;
use crate::model::{MemoryHistory, Picture};

/// Between two pictures.
const EVERY: Duration = Duration::from_secs(1);

/// Between two queries of the past hour, whose points are seconds apart.
const MEMORY_EVERY: Duration = Duration::from_secs(10);

/// What a node has answered.
pub(super) enum FeedUpdate {
    Picture(Result<Box<Picture>, String>),
    Memory(Option<MemoryHistory>),
}

/// One node, with its latest picture.
pub(super) struct WatchedNode {
    pub(super) name: String,
    pub(super) picture: Option<Box<Picture>>,
    pub(super) memory: Option<MemoryHistory>,
    /// Since when it does not answer, and why.
    pub(super) away: Option<(Instant, String)>,
    news: Receiver<FeedUpdate>,
}

impl WatchedNode {
    /// Starts to query a node.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn start(source: NodeSource) -> std::io::Result<Self> {
        let name = source.name.clone();
        let (to, news) = sync_channel(4);
        Builder::new().name("picture".to_owned()).spawn(move || query(source, &to))?;
        Ok(Self { name, picture: None, memory: None, away: None, news })
    }

    /// Takes what it has answered. Returns whether there was anything.
    pub(super) fn take(&mut self) -> bool {
        let mut has_news = false;
        loop {
            match self.news.try_recv() {
                Ok(news) => self.read(news),
                Err(TryRecvError::Empty) => return has_news,
                Err(TryRecvError::Disconnected) => {
                    let why = "the thread that queries it has failed".to_owned();
                    self.away.get_or_insert_with(|| (Instant::now(), why));
                    return has_news;
                }
            }
            has_news = true;
        }
    }

    fn read(&mut self, news: FeedUpdate) {
        match news {
            FeedUpdate::Picture(Ok(picture)) => {
                self.picture = Some(picture);
                self.away = None;
            }
            FeedUpdate::Picture(Err(why)) => {
                let since = self.away.take().map_or_else(Instant::now, |(since, _)| since);
                self.away = Some((since, why));
            }
            FeedUpdate::Memory(memory) => self.memory = memory,
        }
    }
}

/// Until nobody wants the answers.
fn query(mut source: NodeSource, to: &SyncSender<FeedUpdate>) {
    let mut memory_due = Instant::now();
    loop {
        let began = Instant::now();
        let picture = source.picture();
        let is_there = picture.is_ok();
        if to.send(FeedUpdate::Picture(picture.map(Box::new))).is_err() {
            return;
        }
        if is_there && began >= memory_due {
            memory_due = began + MEMORY_EVERY;
            if to.send(FeedUpdate::Memory(source.memory())).is_err() {
                return;
            }
        }
        sleep(EVERY.saturating_sub(began.elapsed()));
    }
}
