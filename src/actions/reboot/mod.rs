//! The steps of a reboot: notifying users, taking the cluster's slot, and the reboot itself.
//!
//! Every step may hang on a machine that needs a reboot. So every way has a thread of its own and a
//! time limit, after which it is reported as hanging. No way follows after another: the policy
//! decides which one, and when.
//!
//! To add a way: a variant of [`RebootWay`], a file here, an arm in [`RebootExecutor::reboot`].

mod command;
#[cfg(feature = "kubernetes")]
mod drain;
#[cfg(not(feature = "kubernetes"))]
#[path = "no_drain.rs"]
mod drain;
mod orderly;
mod sentinel;
mod sysrq;
mod terminals;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread::{Builder, sleep};
use std::time::Duration;

use super::{Act, Executor, Performed};
use crate::clients::fleet_lock::{FleetLock, LockId, SlotResponse};
use crate::model::{
    DecisionRecord, LoggedIn, NodeDrain, OutcomeResult, Reading, RebootAct, RebootLock,
    RebootMeans, RebootOrder, RebootWay, counted,
};
use crate::supervisors::NotEnded;
use crate::supervisors::logged_in::{LoginSources, UTMP, read_users};
use crate::supervisors::logind::Bus;
use drain::Drainer;
#[cfg(feature = "kubernetes")]
use drain::EnginePods;

/// The time limit of a file or a terminal.
const WRITING_TAKES: Duration = Duration::from_secs(5);

/// The result of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Attempt {
    /// The request was accepted, or done; in words.
    Agreed(String),
    /// It was not tried, or was refused: nothing has happened.
    Refused(String),
    /// It has not ended in time, and may still act.
    Hangs(String),
    /// It was tried, and failed.
    Failed(String),
}

/// Requests to servers: one that is refused may have had an effect.
impl From<Result<String, String>> for Attempt {
    fn from(asked: Result<String, String>) -> Self {
        asked.map_or_else(Self::Failed, Self::Agreed)
    }
}

impl From<Attempt> for Performed {
    fn from(attempt: Attempt) -> Self {
        let (result, effect) = match attempt {
            Attempt::Agreed(effect) => (OutcomeResult::Done, Some(effect)),
            Attempt::Refused(why) => (OutcomeResult::NotDone(why), None),
            Attempt::Hangs(what) => (OutcomeResult::TimedOut, Some(what)),
            Attempt::Failed(why) => (OutcomeResult::Failed(why), None),
        };
        Self { result, effect }
    }
}

/// The executor of the reboot's lane.
#[derive(Clone, Debug)]
pub struct RebootExecutor {
    /// Mount point of procfs.
    pub procfs: PathBuf,
    /// The folder of terminals: `/dev`.
    pub devices: PathBuf,
    /// The bus of logind and systemd.
    pub bus: Bus,
    /// The utmp(5) file, for machines without logind.
    pub utmp: PathBuf,
    /// The file of the machine id.
    pub machine_id: PathBuf,
    /// Waits for that time; a test may replace it.
    pub sleep: fn(Duration),
    /// The node in Kubernetes.
    drainer: Drainer,
}

impl Executor for RebootExecutor {
    fn execute(&mut self, act: &Act) -> Performed {
        match act.action.reboot() {
            Some(step) => self.perform(act, step).into(),
            None => Performed::of_another_lane(act),
        }
    }
}

impl RebootExecutor {
    /// An executor for this machine.
    pub fn new(procfs: &Path, bus: Bus) -> Self {
        Self {
            procfs: procfs.to_owned(),
            devices: "/dev".into(),
            bus,
            utmp: UTMP.into(),
            machine_id: "/etc/machine-id".into(),
            sleep,
            drainer: Drainer::default(),
        }
    }

    /// Has the pods of engines evicted before a reboot where that is configured. `uptime`: the
    /// clock by which it waits for that.
    #[cfg(feature = "kubernetes")]
    pub fn evicting(self, engine_pods: EnginePods, uptime: fn() -> Duration) -> Self {
        Self { drainer: Drainer::new(engine_pods, uptime), ..self }
    }

    fn perform(&mut self, decision: &DecisionRecord, act: &RebootAct) -> Attempt {
        match act {
            RebootAct::Schedule(plan) => Attempt::Agreed(self.notify_users(&plan.announcement())),
            RebootAct::WarnUsers { text } => Attempt::Agreed(self.notify_users(text)),
            RebootAct::TakeSlot(lock) => self.take_slot(lock).into(),
            RebootAct::ReleaseSlot(lock) => self.release_slot(lock).into(),
            RebootAct::Perform(order) => self.reboot(decision, order),
            RebootAct::CallOff { way, why, was_handed_over } => {
                self.call_off(way, why, *was_handed_over)
            }
        }
    }

    fn reboot(&self, decision: &DecisionRecord, order: &RebootOrder) -> Attempt {
        if let Err(why) = self.is_that_boot(&order.boot_id) {
            return Attempt::Refused(why);
        }
        match &order.how {
            RebootMeans::Sysrq => sysrq::perform(&self.procfs, self.sleep),
            RebootMeans::Way(RebootWay::Logind) => orderly::perform(&self.bus),
            RebootMeans::Way(RebootWay::Sentinel { file }) => {
                sentinel::create(file, decision, order)
            }
            RebootMeans::Way(RebootWay::Command { line }) => command::run(line, &order.plan.why),
        }
    }

    /// A new boot id shows that the boot has ended already.
    fn is_that_boot(&self, boot_id: &str) -> Result<(), String> {
        let file = self.procfs.join("sys/kernel/random/boot_id");
        let unknown = |why: &dyn std::fmt::Display| {
            format!("the boot ID is unknown: {}: {why}", file.display())
        };
        let now = fs::read_to_string(&file).map_err(|error| unknown(&error))?;
        match now.trim() {
            "" => Err(unknown(&"it is empty")),
            now if now == boot_id => Ok(()),
            _ => Err("this is another boot than the one that was to end".to_owned()),
        }
    }

    fn call_off(&self, way: &RebootWay, why: &str, was_handed_over: bool) -> Attempt {
        let mut done = match way {
            RebootWay::Sentinel { file } => match sentinel::remove(file) {
                Ok(done) => done,
                Err(attempt) => return attempt,
            },
            RebootWay::Logind | RebootWay::Command { .. } if was_handed_over => {
                format!("{way} has the reboot request, which cannot be withdrawn from here")
            }
            RebootWay::Logind | RebootWay::Command { .. } => String::new(),
        };
        let notified =
            self.notify_users(&format!("umawarden does not reboot this machine after all: {why}"));
        if !done.is_empty() {
            done.push_str("; ");
        }
        Attempt::Agreed(done + &notified)
    }

    /// Writes a text to the terminals of logged-in users; returns in words how many got it.
    fn notify_users(&self, text: &str) -> String {
        let sources = LoginSources {
            bus: self.bus.clone(),
            utmp: self.utmp.clone(),
            procfs: self.procfs.clone(),
        };
        let found = read_users(&sources, Duration::ZERO);
        let users = match found.users {
            Reading::Value(users) if users.is_empty() => return "no user is logged in".to_owned(),
            Reading::Value(users) => users,
            Reading::Unsupported | Reading::Failed => {
                let why = found.error.as_deref().unwrap_or("no reason is known").to_owned();
                return format!("no user was notified: the logged-in users are unknown: {why}");
            }
        };
        let (named, terminals) = (users.len(), terminals_of(&users));
        if terminals.is_empty() {
            return format!("{} logged in, without a terminal to write to", are(named));
        }
        let (devices, text, written) = (self.devices.clone(), text.to_owned(), terminals.len());
        let work = move || terminals::write_all(&devices, &terminals, &text);
        match apart("reboot-notify", WRITING_TAKES, work) {
            Ok(reached) => {
                format!("{reached} of {} notified", counted(written as u64, "terminal"))
            }
            Err(NotEnded::TimedOut) => "a terminal hangs: not all were notified".to_owned(),
            Err(NotEnded::Broken(why)) => format!("no user was notified: {why}"),
        }
    }

    /// Cordons the node, takes the lock server's slot, and evicts pods: what of it is configured.
    fn take_slot(&mut self, lock: &RebootLock) -> Result<String, String> {
        let cordoned = self.on_node(lock, Drainer::cordon)?;
        let slot = self.slot(lock, FleetLock::take)?;
        let evicted = self.on_node(lock, Drainer::evict)?;
        Ok(joined([slot, cordoned, evicted]))
    }

    /// Gives both back, even if one of them fails.
    fn release_slot(&mut self, lock: &RebootLock) -> Result<String, String> {
        let slot = self.slot(lock, FleetLock::release);
        let uncordoned = self.on_node(lock, Drainer::uncordon);
        Ok(joined([slot?, uncordoned?, String::new()]))
    }

    fn on_node(
        &mut self,
        lock: &RebootLock,
        work: fn(&mut Drainer, &NodeDrain) -> Result<String, String>,
    ) -> Result<String, String> {
        lock.drain.as_ref().map_or(Ok(String::new()), |drain| work(&mut self.drainer, drain))
    }

    fn slot(
        &self,
        lock: &RebootLock,
        request: fn(&FleetLock) -> SlotResponse,
    ) -> Result<String, String> {
        if lock.url.is_empty() && lock.drain.is_some() {
            return Ok(String::new());
        }
        let id = match &lock.id {
            Some(id) => LockId::given(id),
            None => LockId::of_machine(&self.machine_id).map_err(|error| error.to_string())?,
        };
        let known_as = id.to_string();
        let server = FleetLock::new(&lock.url, &lock.group, id);
        match request(&server.with_ca_file(lock.ca_file.as_deref())) {
            answer @ SlotResponse::Granted => Ok(format!("{answer} (as {known_as})")),
            answer => Err(answer.to_string()),
        }
    }
}

/// The texts that are there, in one.
fn joined(texts: [String; 3]) -> String {
    let texts: Vec<String> = texts.into_iter().filter(|text| !text.is_empty()).collect();
    texts.join("; ")
}

fn are(number: usize) -> String {
    match number {
        1 => "1 user is".to_owned(),
        number => format!("{number} users are"),
    }
}

fn terminals_of(users: &[LoggedIn]) -> BTreeSet<Arc<str>> {
    users.iter().filter_map(|user| user.terminal.clone()).collect()
}

/// Runs work that may hang in the kernel on a thread of its own, with a time limit.
fn apart<T: Send + 'static>(
    name: &str,
    patience: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, NotEnded> {
    let (result, done) = sync_channel(1);
    let begun = Builder::new().name(name.to_owned()).spawn(move || {
        // The receiver may have given up.
        let _ = result.send(work());
    });
    begun.map_err(|error| NotEnded::Broken(format!("starting a thread failed: {error}")))?;
    done.recv_timeout(patience).map_err(|error| match error {
        RecvTimeoutError::Timeout => NotEnded::TimedOut,
        RecvTimeoutError::Disconnected => NotEnded::Broken("its thread has ended".to_owned()),
    })
}
