//! The lease of a start: asked for while it waits, given back if it does not come.

use std::sync::Arc;
use std::thread::Builder;
use std::time::Duration;

use clap::Args;

use super::node::GateNode;
use crate::config::measure::duration_within;
use crate::config::settings::Settings;
use crate::daemon::clock;
use crate::leases::Ledger;
use crate::model::{
    GateRequest, LeaseEnd, LeaseHolder, LeaseRequest, LeaseState, MemoryPools, duration_text,
};
use crate::policy::leases::LeaseContext;

/// Limits of --lease.
const LASTS: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(24 * 60 * 60);

/// Between two counts of what a start has taken.
const FOLLOW_EVERY: Duration = Duration::from_secs(1);

/// Options of the lease that a start takes.
#[derive(Clone, Debug, Args)]
pub(crate) struct LeaseArguments {
    /// Of several starts that wait, the one with the higher priority comes first.
    #[arg(long, value_name = "NUMBER", default_value_t = 0, allow_hyphen_values = true)]
    priority: i32,

    /// The longest time that the memory stays reserved for it; it is free earlier when it was
    /// taken, or its process ends.
    #[arg(long = "lease", value_name = "DURATION", default_value = "10m", value_parser = lasts)]
    lasts: Duration,

    /// Reserve nothing: only look.
    #[arg(long, conflicts_with_all = ["priority", "lasts"])]
    no_lease: bool,
}

fn lasts(text: &str) -> Result<Duration, String> {
    duration_within(text, *LASTS.start(), *LASTS.end())
}

/// Whose lease it is.
pub(crate) enum Holder {
    /// This process stays until the engine ends.
    Own,
    /// This process ends before the engine begins: its parent starts it.
    Parent,
}

/// A lease that is being asked for.
pub(crate) struct StartLease {
    ledger: Ledger,
    request: LeaseRequest,
    at_once: u32,
}

/// The state of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LeaseAnswer {
    /// Its memory is reserved.
    Granted,
    /// Others come first, or there is too little.
    Waits(Vec<Arc<str>>),
    /// Nothing can be reserved here, for this reason.
    Unavailable(String),
}

impl LeaseArguments {
    /// The lease for this start; `None` if none is to be taken. On the files of another machine
    /// (--path.procfs) nothing is reserved unless the configuration says where.
    pub(crate) fn lease(
        &self,
        settings: &Settings,
        who: &str,
        (need, holder): (&GateRequest, Holder),
    ) -> Option<StartLease> {
        let procfs = &settings.path.procfs;
        let folder = settings.starts.ledger_folder(procfs).filter(|_| !self.no_lease)?;
        let ledger = Ledger::new(&folder, procfs);
        let own = ledger.own_process();
        // Below systemd each invocation of a unit is one start, whose processes come and go.
        let invocation = std::env::var("INVOCATION_ID").ok().filter(|id| is_id(id));
        let (id, holder) = match (&holder, invocation) {
            (Holder::Parent, Some(invocation)) => (invocation, None),
            (Holder::Parent, None) => (id_of(own), ledger.parent_process()),
            (Holder::Own, _) => (id_of(own), own),
        };
        Some(StartLease {
            ledger,
            request: LeaseRequest {
                id: id.into(),
                who: who.into(),
                priority: self.priority,
                holder,
                need: need.clone(),
                lasts: self.lasts,
            },
            at_once: settings.starts.at_once,
        })
    }
}

/// Whether systemd may have chosen it: 32 hexadecimal digits.
fn is_id(id: &str) -> bool {
    id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn id_of(own: Option<LeaseHolder>) -> String {
    let (namespace, start, pid) = match own {
        Some(own) => (own.pid_namespace, own.process.start_ticks, own.process.pid),
        None => (0, u64::from(clock::uptime().subsec_nanos()), std::process::id()),
    };
    format!("{namespace:x}-{start:x}-{pid:x}")
}

impl StartLease {
    /// Asks again, with this memory.
    pub(crate) fn advance(&mut self, memory: &MemoryPools) -> LeaseAnswer {
        let (ledger, request) = (&self.ledger, &self.request);
        let now = clock::uptime();
        let asked = ledger.update(|book| {
            book.request(now, request.clone())?;
            book.advance(&LeaseContext {
                now,
                memory,
                at_once: self.at_once,
                has_ended: &|holder| ledger.has_ended(holder),
                id: Some(&request.id),
            });
            Ok(book.get(&request.id).map(|lease| lease.state.clone()))
        });
        match asked {
            Ok(Ok(Some(LeaseState::Granted { .. }))) => LeaseAnswer::Granted,
            Ok(Ok(Some(LeaseState::Waiting { reasons, .. }))) => LeaseAnswer::Waits(reasons),
            // What was granted may be over at once: its memory was taken before.
            Ok(Ok(None)) => LeaseAnswer::Granted,
            Ok(Err(why)) | Err(why) => LeaseAnswer::Unavailable(why),
        }
    }

    /// How long the memory stays reserved, for people; `None` where nothing is.
    pub(crate) fn note(&self) -> Option<String> {
        let book = self.ledger.read().ok()?;
        book.get(&self.request.id).filter(|lease| lease.is_granted())?;
        let lasts = duration_text(self.request.lasts);
        let holder = match self.request.holder {
            Some(holder) => format!(", or until process {} ends", holder.process),
            None => String::new(),
        };
        Some(format!(
            "reserved for at most {lasts}{holder}, or until it was taken (umawarden leases; \
             --no-lease only looks)"
        ))
    }

    /// Goes on counting what is taken, on a thread of its own, until the lease is over.
    pub(crate) fn follow_with(self, mut node: GateNode) {
        let follow = move || {
            while self.follow(&node.sample()) {
                std::thread::sleep(FOLLOW_EVERY);
            }
        };
        // Without the thread the lease ends with its process, or with its time.
        let _ = Builder::new().name("lease".to_owned()).spawn(follow);
    }

    /// Returns whether the lease is still there.
    fn follow(&self, memory: &MemoryPools) -> bool {
        let (ledger, request) = (&self.ledger, &self.request);
        let now = clock::uptime();
        let followed = ledger.update(|book| {
            book.advance(&LeaseContext {
                now,
                memory,
                at_once: self.at_once,
                has_ended: &|holder| ledger.has_ended(holder),
                id: None,
            });
            book.get(&request.id).is_some()
        });
        followed.unwrap_or(true)
    }

    /// Gives it back.
    pub(crate) fn give_back(&self) {
        // Without the ledger it ends with its process, or with its time.
        let _ = self.ledger.update(|book| book.end(&self.request.id, LeaseEnd::Withdrawn));
    }
}
