//! The lease of a start: requested while it waits, given back if it does not start.

use std::fs::File;
use std::sync::Arc;
use std::thread::Builder;
use std::time::Duration;

use clap::Args;
use rustix::io::{FdFlags, fcntl_setfd};

use super::node::GateNode;
use crate::config::settings::Settings;
use crate::daemon::clock;
use crate::leases::Ledger;
use crate::model::{
    GateRequest, Lease, LeaseCall, LeaseEnd, LeaseHolder, LeaseRequest, LeaseState, MemoryPools,
    duration_text, lease_lasts,
};
use crate::policy::leases::{LeaseBook, LeaseContext};

/// Between two counts of what a start has taken.
const COUNTED_EVERY: Duration = Duration::from_secs(1);

/// Options of the lease that a start takes.
#[derive(Clone, Debug, Args)]
pub(crate) struct LeaseArguments {
    /// Of several starts that wait, the one with the higher priority comes first.
    #[arg(long, value_name = "NUMBER", default_value_t = 0, allow_hyphen_values = true)]
    priority: i32,

    /// The longest time that the memory stays reserved for it; it is free earlier when it was
    /// taken, or its process ends.
    #[arg(
        long = "lease",
        value_name = "DURATION",
        default_value = "10m",
        value_parser = lease_lasts
    )]
    lasts: Duration,

    /// Reserve nothing.
    #[arg(long, conflicts_with_all = ["priority", "lasts"])]
    no_lease: bool,
}

/// Whose lease it is.
pub(crate) enum Holder {
    /// This process stays until the engine ends.
    Own,
    /// This process ends before the engine begins: its parent starts it.
    Parent,
}

/// The requested lease of a start.
pub(crate) struct StartLease {
    ledger: Ledger,
    request: LeaseRequest,
    at_once: u32,
    /// The gate before it, whose memory it takes over, if this process holds the lease.
    before: Option<Before>,
    /// The lock of this process, once it has one.
    lock: Option<File>,
}

/// How a gate is known that was passed for the same start.
struct Before {
    /// It was of the same invocation of a unit.
    invocation: Option<String>,
    /// Or of the same shell, and has the same name.
    parent: Option<LeaseHolder>,
}

impl Before {
    /// Its leases.
    fn leases(&self, book: &LeaseBook, own: &LeaseRequest) -> Vec<Arc<str>> {
        let is_its = |lease: &&Lease| {
            let request = &lease.request;
            let is_of_unit = self.invocation.as_deref() == Some(&*request.id);
            let is_of_shell =
                self.parent.is_some() && request.holder == self.parent && request.who == own.who;
            is_of_unit || is_of_shell
        };
        let its = book.leases().iter().filter(is_its);
        its.map(|lease| Arc::clone(&lease.request.id)).collect()
    }
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
        let is_own = matches!(holder, Holder::Own);
        let before = is_own
            .then(|| Before { invocation: invocation.clone(), parent: ledger.parent_process() });
        let (id, holder) = match (&holder, invocation) {
            (Holder::Parent, Some(invocation)) => (invocation, None),
            (Holder::Parent, None) => (id_of(own), ledger.parent_process()),
            (Holder::Own, _) => (id_of(own), own),
        };
        let request = LeaseRequest {
            priority: self.priority,
            holder,
            lasts: self.lasts,
            requested_ms: clock::now().utc_ms(),
            ..LeaseRequest::new(id.into(), who.into(), need.clone())
        };
        Some(StartLease { ledger, request, at_once: settings.starts.at_once, before, lock: None })
    }
}

/// Whether systemd may have chosen it: 32 hexadecimal digits.
fn is_id(id: &str) -> bool {
    id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn id_of(own: Option<LeaseHolder>) -> String {
    let (procfs, start, pid) = match own {
        Some(own) => (own.procfs, own.process.start_ticks, own.process.pid),
        None => (0, u64::from(clock::uptime().subsec_nanos()), std::process::id()),
    };
    format!("{procfs:x}-{start:x}-{pid:x}")
}

impl StartLease {
    /// What peers are to reserve, too. From now on this node grants memory only with them.
    pub(super) fn span(&mut self) -> Arc<LeaseRequest> {
        if !self.request.spans_nodes {
            self.request.spans_nodes = true;
            self.request.id = format!("{}@{}", self.request.id, self.ledger.name()).into();
        }
        Arc::new(LeaseRequest { holder: None, ..self.request.clone() })
    }

    /// This node, by its name in the order of nodes.
    pub(super) fn node(&self) -> Arc<str> {
        self.ledger.name()
    }

    /// Repeats the request, with this memory, which was sampled then. Returns its state; `None`
    /// once it has ended.
    ///
    /// # Errors
    /// Nothing can be reserved here, for this reason.
    pub(super) fn call(
        &mut self,
        (memory, sampled): (&MemoryPools, Duration),
        (call, turn): (LeaseCall, u64),
    ) -> Result<Option<LeaseState>, String> {
        self.request.turn = turn;
        let called = self.update((memory, sampled), |book, context| {
            let gates = self.before.iter().flat_map(|before| before.leases(book, &self.request));
            for id in gates.collect::<Vec<_>>() {
                book.end(&id, LeaseEnd::Withdrawn);
            }
            book.call(&self.request, call, context)
        });
        if self.lock.is_none() && self.before.is_some() {
            // Without the lock, who cannot see this process waits for the time of its lease.
            self.lock = self.request.holder.and_then(|holder| self.ledger.hold(holder).ok());
        }
        called?
    }

    /// Lets the command that this process becomes keep the lock.
    pub(crate) fn keep_at_exec(&self) {
        if let Some(lock) = &self.lock {
            // Without it the lease ends with its time.
            let _ = fcntl_setfd(lock, FdFlags::empty());
        }
    }

    fn update<T>(
        &self,
        (memory, sampled): (&MemoryPools, Duration),
        change: impl FnOnce(&mut LeaseBook, &LeaseContext<'_>) -> T,
    ) -> Result<T, String> {
        self.ledger.update(|book| {
            let context = LeaseContext {
                now: clock::uptime(),
                memory,
                sampled,
                at_once: self.at_once,
                has_ended: &|holder| self.ledger.has_ended(holder),
            };
            change(book, &context)
        })
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
             --no-lease reserves nothing)"
        ))
    }

    /// Goes on counting what is taken, on a thread of its own, until the lease is over.
    pub(crate) fn count_with(self, mut node: GateNode) {
        let count = move || {
            loop {
                let sampled = clock::uptime();
                let memory = node.sample();
                let is_over = self.update((&memory, sampled), |book, context| {
                    book.advance(context);
                    book.get(&self.request.id).is_none()
                });
                if is_over.unwrap_or(false) {
                    return;
                }
                std::thread::sleep(COUNTED_EVERY);
            }
        };
        // Without the thread the lease ends with its process, or with its time.
        let _ = Builder::new().name("lease".to_owned()).spawn(count);
    }

    /// Gives it back.
    pub(crate) fn give_back(&self) {
        // Without the ledger it ends with its process, or with its time.
        let _ = self.ledger.update(|book| book.end(&self.request.id, LeaseEnd::Withdrawn));
    }
}
