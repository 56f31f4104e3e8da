//! Who holds memory that is none of a living engine's: looked for on a thread of its own, since a
//! look at a process may hang in the kernel as long as the driver does.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use serde::Deserialize;

use super::node::GateSetup;
use crate::cli::control::Client;
use crate::model::{Baseline, Orphan, Reading};
use crate::policy::gate::orphans;
use crate::sources::engines::Scanner;

/// Between two looks at all processes.
const EVERY: Duration = Duration::from_secs(1);

/// For a first look.
const FIRST_TAKES: Duration = Duration::from_secs(2);

/// What was seen longer ago than this is not known any more.
const KNOWN_FOR: Duration = Duration::from_secs(10);

/// For the daemon's answer; it is asked again where it does not answer, but not at once.
const DAEMON_TAKES: Duration = Duration::from_millis(500);
const DAEMON_EVERY: Duration = Duration::from_secs(5);

/// More than this nobody reads to its end.
const MOST_ORPHANS: usize = 64;

/// What one look has found.
struct Seen {
    at: Instant,
    orphans: Option<Arc<[Orphan]>>,
    /// The model files of engines that run.
    living: Vec<Arc<str>>,
    baseline: Option<Baseline>,
}

/// As much of the daemon's answer as is asked for.
#[derive(Deserialize)]
struct Told {
    #[serde(rename = "unaccounted_baseline")]
    baseline: Option<Baseline>,
    orphans: Option<Vec<Orphan>>,
}

/// The loop's end of the thread.
pub(super) struct Holders {
    from: Receiver<Seen>,
    latest: Option<Seen>,
}

impl Holders {
    pub(super) fn start(setup: GateSetup) -> io::Result<Self> {
        let (to, from) = sync_channel(4);
        let GateSetup { procfs, declared, daemon, .. } = setup;
        let looker = Looker {
            scanner: Scanner::new(procfs, declared),
            began: Instant::now(),
            daemon,
            ask_next: Duration::ZERO,
            told: None,
        };
        Builder::new().name("holders".to_owned()).spawn(move || looker.run(&to))?;
        let latest = from.recv_timeout(FIRST_TAKES).ok();
        Ok(Self { from, latest })
    }

    /// Takes what is new. Never waits.
    pub(super) fn take(&mut self) {
        if let Some(newest) = self.from.try_iter().last() {
            self.latest = Some(newest);
        }
    }

    pub(super) fn orphans(&self) -> Reading<Arc<[Orphan]>> {
        let known = self.latest.as_ref().filter(|seen| seen.at.elapsed() <= KNOWN_FOR);
        known.and_then(|seen| seen.orphans.clone()).map_or(Reading::Failed, Reading::Value)
    }

    pub(super) fn living(&self) -> &[Arc<str>] {
        self.latest.as_ref().map_or(&[], |seen| &seen.living)
    }

    pub(super) fn baseline(&self) -> Option<Baseline> {
        self.latest.as_ref()?.baseline.filter(|baseline| baseline.is_learned)
    }
}

struct Looker {
    scanner: Scanner,
    began: Instant,
    daemon: Option<Client>,
    /// When the daemon is asked next, since the begin.
    ask_next: Duration,
    told: Option<Told>,
}

impl Looker {
    fn run(mut self, to: &SyncSender<Seen>) {
        loop {
            let seen = self.look();
            // What nobody has taken in four seconds nobody waits for.
            if let Err(TrySendError::Disconnected(_)) = to.try_send(seen) {
                return;
            }
            std::thread::sleep(EVERY);
        }
    }

    fn look(&mut self) -> Seen {
        self.ask();
        let now = self.began.elapsed();
        let found = self.scanner.look(now, true);
        let engines = found.as_ref().map_or(&[][..], |readings| &readings.engines);
        let living = engines.iter().filter(|seen| orphans(seen).next().is_none());
        let living = living.flat_map(|seen| seen.model_files.clone()).collect();
        let orphans = found.ok().map(|readings| {
            let mut all: Vec<Orphan> = readings.engines.iter().flat_map(orphans).collect();
            let told = self.told.iter().flat_map(|told| told.orphans.iter().flatten());
            for orphan in told {
                if all.iter().all(|known| known.id != orphan.id) {
                    all.push(orphan.clone());
                }
            }
            all.truncate(MOST_ORPHANS);
            all.into()
        });
        let baseline = self.told.as_ref().and_then(|told| told.baseline);
        Seen { at: Instant::now(), orphans, living, baseline }
    }

    /// Asks the daemon, which knows more: what was usual in this boot, and whose a process was that
    /// no longer says so.
    fn ask(&mut self) {
        let now = self.began.elapsed();
        let Some(daemon) = self.daemon.as_ref().filter(|_| now >= self.ask_next) else { return };
        let reply = daemon.ask("GET", "/api/v1/gate?need=0", None).ok();
        // Open or not, the room is told.
        let told =
            reply.and_then(|mut reply| serde_json::from_value(reply.data["room"].take()).ok());
        self.ask_next = now + if told.is_some() { EVERY } else { DAEMON_EVERY };
        self.told = told;
    }
}

/// The daemon as it is asked here: whoever waits for memory does not wait for it.
pub(super) fn patient(client: Client) -> Client {
    client.with_patience(DAEMON_TAKES)
}
