//! The lease of a start: requested while it waits, given back if it does not start.

use std::fs::File;
use std::sync::Arc;
use std::thread::Builder;
use std::time::Duration;

use clap::Args;
use rustix::io::{FdFlags, fcntl_setfd};

use super::node::GateNode;
use super::own_unit;
use crate::config::settings::Settings;
use crate::daemon::clock;
use crate::leases::LeaseLedger;
use crate::model::{
    GateRequest, LeaseCall, LeaseEnd, LeaseHolder, LeaseRequest, LeaseState, MemoryPools,
    duration_text, lease_lasts,
};
use crate::parse::process::is_of_users;
use crate::policy::leases::{LeaseBook, LeaseContext};

/// Between two counts of what a start has taken.
const COUNTED_EVERY: Duration = Duration::from_secs(1);

/// Options of the lease that a start takes.
#[derive(Clone, Debug, Args)]
pub(crate) struct LeaseArguments {
    /// Of several starts that wait, the one with the higher priority comes first.
    #[arg(long, value_name = "NUMBER", default_value_t = 0, allow_hyphen_values = true)]
    pub(super) priority: i32,

    /// The longest time that the memory stays reserved for it; it is free earlier when it was
    /// taken, or its process ends.
    #[arg(
        long = "lease",
        value_name = "DURATION",
        default_value = "10m",
        value_parser = lease_lasts
    )]
    pub(super) lasts: Duration,

    /// Reserve nothing.
    #[arg(long, conflicts_with_all = ["priority", "lasts"])]
    no_lease: bool,
}

pub(crate) enum LeaseOwner {
    /// This process stays until the engine ends.
    Own,
    /// This process ends before the engine begins: its parent starts it.
    Parent,
}

/// The requested lease of a start.
pub(crate) struct StartLease {
    ledger: LeaseLedger,
    request: LeaseRequest,
    at_once: u32,
    earlier: EarlierLeases,
    /// The lock of this process, once it has one.
    lock: Option<File>,
}

/// How earlier leases of the same start are known.
#[derive(Debug, Default)]
struct EarlierLeases {
    /// The unit, and the invocation of it, below systemd: each is one start, whose processes come
    /// and go. What an earlier invocation had reserved is over.
    unit: Option<(String, String)>,
    /// The shell of a gate of the same name, if this process takes over what that has reserved.
    shell: Option<LeaseHolder>,
    /// Whether this process takes over what a gate of its unit has reserved.
    is_own: bool,
}

impl EarlierLeases {
    /// Whether that lease is of an earlier invocation of the unit.
    fn is_over(&self, request: &LeaseRequest) -> bool {
        self.unit.as_ref().is_some_and(|(unit, invocation)| {
            let of = request.id.strip_prefix(&**unit).and_then(|rest| rest.strip_prefix(':'));
            of.is_some_and(|of| !of.starts_with(&**invocation))
        })
    }

    /// Whether that lease is a gate's, of this start.
    fn is_gate(&self, request: &LeaseRequest, own: &LeaseRequest) -> bool {
        let of_unit = self.unit.as_ref().filter(|_| self.is_own);
        let is_of_unit = of_unit.is_some_and(|(unit, invocation)| {
            request.id.starts_with(&format!("{unit}:{invocation}"))
        });
        let is_of_shell =
            self.shell.is_some() && request.holder == self.shell && request.who == own.who;
        is_of_unit || is_of_shell
    }

    /// Ends the leases that this start replaces. Returns when the first of them was requested.
    fn end(&self, book: &mut LeaseBook, own: &LeaseRequest) -> Option<i64> {
        let others = book.leases().iter().map(|lease| &lease.request);
        let replaced = others.filter(|other| other.id != own.id);
        let over: Vec<_> = replaced
            .filter_map(|other| match (self.is_over(other), self.is_gate(other, own)) {
                (true, _) => Some((Arc::clone(&other.id), LeaseEnd::ProcessEnded, i64::MAX)),
                (false, true) => {
                    Some((Arc::clone(&other.id), LeaseEnd::Withdrawn, other.requested_ms))
                }
                (false, false) => None,
            })
            .collect();
        for (id, why, _) in &over {
            book.end(id, *why);
        }
        over.iter().map(|(.., requested_ms)| *requested_ms).min()
    }
}

impl LeaseArguments {
    /// The lease for this start; `None` if none is to be taken. On the files of another machine
    /// (--path.procfs) nothing is reserved unless the configuration says where.
    pub(crate) fn lease(
        &self,
        settings: &Settings,
        who: &str,
        (need, holder): (&GateRequest, LeaseOwner),
    ) -> Option<StartLease> {
        let procfs = &settings.path.procfs;
        let folder = settings.starts.ledger_folder(procfs).filter(|_| !self.no_lease)?;
        let ledger = LeaseLedger::new(&folder, procfs);
        let own = ledger.own_process();
        let invocation = std::env::var("INVOCATION_ID").ok().filter(|id| is_id(id));
        let unit = own_unit(settings).filter(|unit| is_service(unit)).zip(invocation);
        let is_own = matches!(holder, LeaseOwner::Own);
        let shell = ledger.parent_process().filter(|_| is_own);
        let (id, holder) = match (&holder, &unit) {
            (LeaseOwner::Parent, Some((unit, invocation))) => {
                (format!("{unit}:{invocation}"), None)
            }
            (LeaseOwner::Parent, None) => (id_of(own), ledger.parent_process()),
            (LeaseOwner::Own, _) => (id_of(own), own),
        };
        let earlier = EarlierLeases { unit, shell, is_own };
        let request = LeaseRequest {
            priority: self.priority,
            holder,
            lasts: self.lasts,
            requested_ms: clock::now().utc_ms(),
            ..LeaseRequest::new(id.into(), who.into(), need.clone())
        };
        Some(StartLease { ledger, request, at_once: settings.starts.at_once, earlier, lock: None })
    }
}

/// Whether systemd may have chosen it: 32 hexadecimal digits.
fn is_id(id: &str) -> bool {
    id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Whether each invocation of a unit is one start, and not what users run in it.
fn is_service(unit: &str) -> bool {
    unit.ends_with(".service") && !is_of_users(unit)
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
            // That of a gate goes on: all its nodes know it.
            let book = self.ledger.read().unwrap_or_default();
            let gate = book
                .leases()
                .iter()
                .map(|lease| &lease.request)
                .find(|other| other.spans_nodes && self.earlier.is_gate(other, &self.request));
            self.request.id = match gate {
                Some(gate) => Arc::clone(&gate.id),
                None => format!("{}@{}", self.request.id, self.ledger.name()).into(),
            };
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
        let mut request = LeaseRequest { turn, ..self.request.clone() };
        let called = self.update((memory, sampled), |book, context| {
            if let Some(requested_ms) = self.earlier.end(book, &request) {
                // Its place in the order goes over to this one.
                request.requested_ms = request.requested_ms.min(requested_ms);
            }
            book.call(&request, call, context)
        });
        if self.lock.is_none() && self.earlier.is_own {
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
            let now = clock::now();
            let context = LeaseContext {
                now: now.uptime,
                utc_ms: now.utc_ms(),
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

    pub(crate) fn give_back(&self) {
        // Without the ledger it ends with its process, or with its time.
        let _ = self.ledger.update(|book| book.end(&self.request.id, LeaseEnd::Withdrawn));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ProcessId;

    #[test]
    fn a_start_replaces_its_gate_and_earlier_invocations_of_its_unit() {
        let unit = Some(("chat.service".to_owned(), "b".repeat(32)));
        let process = ProcessId { pid: 7, start_ticks: 1 };
        let shell = Some(LeaseHolder { process, procfs: 1 });
        let request = |id: &str, who: &str, holder| LeaseRequest {
            holder,
            requested_ms: 5,
            ..LeaseRequest::new(id.into(), who.into(), GateRequest::of(1 << 30))
        };
        let (same, other) = ("b".repeat(32), "a".repeat(32));
        for (id, who, holder, by_gate, by_launch) in [
            (format!("chat.service:{other}"), "chat.service", None, true, true),
            (format!("chat.service:{other}@x"), "chat.service", None, true, true),
            (format!("chat.service:{same}"), "chat.service", None, false, true),
            (format!("code.service:{other}"), "code.service", None, false, false),
            ("1-2-3".to_owned(), "chat", shell, false, true),
            ("1-2-3".to_owned(), "code", shell, false, false),
            ("1-2-3".to_owned(), "chat", None, false, false),
        ] {
            let of_gate = EarlierLeases { unit: unit.clone(), shell: None, is_own: false };
            let of_launch = EarlierLeases { unit: unit.clone(), shell, is_own: true };
            for (earlier, expected) in [(of_gate, by_gate), (of_launch, by_launch)] {
                let mut book = LeaseBook::default();
                book.request(Duration::ZERO, &request(&id, who, holder)).unwrap();
                let own = request("own", "chat", None);
                assert_eq!(earlier.end(&mut book, &own).is_some(), expected, "{id} {earlier:?}");
                assert_eq!(book.leases().is_empty(), expected);
            }
        }
        assert!(is_service("chat.service") && !is_service("cron.service"));
        assert!(!is_service("session-3.scope"));
    }
}
