//! Tasks and CPUs that are stuck (`kernel/hung_task.c`, `kernel/watchdog.c`, `kernel/rcu`).

use crate::KernelEvent;

use super::text::{fits_comm, identifier, number, pid, whole_pid};

/// `INFO: task X:pid blocked for more than N seconds.`
#[derive(Debug, PartialEq)]
pub(super) struct HungTaskLine<'a> {
    pub pid: u32,
    pub comm: &'a str,
    pub seconds: u64,
}

/// Reads the first line of a report.
pub(super) fn hung(text: &str) -> Option<HungTaskLine<'_>> {
    let rest = text.strip_prefix("INFO: task ")?;
    let at = rest
        .rfind(" blocked for more than ")
        .map(|at| (at, 23))
        .or_else(|| rest.rfind(" blocked in I/O wait for more than ").map(|at| (at, 35)));
    let (at, length) = at?;
    let (seconds, end) = number(rest.get(at + length..)?)?;
    matches!(end.trim_end(), " seconds." | " seconds").then_some(())?;
    let (comm, task) = rest.get(..at)?.rsplit_once(':')?;
    fits_comm(comm).then_some(HungTaskLine { pid: whole_pid(task)?, comm, seconds })
}

/// Whether `comm:pid` and the begin of the words for a hung task follow `INFO: task `, and then the
/// text ends.
pub(super) fn is_cut(rest: &str) -> bool {
    const LONGEST: usize = 128;
    const WORDS: [&str; 2] = [" blocked for more than ", " blocked in I/O wait for more than "];
    let cut = |words: &str| {
        let mut tasks = (0..=words.len()).filter_map(|end| rest.strip_suffix(words.get(..end)?));
        tasks.any(|task| {
            task.rsplit_once(':').is_some_and(|(comm, task)| {
                !comm.is_empty() && fits_comm(comm) && whole_pid(task).is_some()
            })
        })
    };
    rest.len() <= LONGEST && WORDS.iter().any(|words| cut(words))
}

/// The owner of the lock, as the kernel reports it.
#[derive(Debug, PartialEq)]
pub(super) enum Lock<'a> {
    /// The likely owner.
    Owner { pid: u32, comm: &'a str },
    /// The owner is unknown to the kernel.
    Unknown,
}

/// Reads the line about the lock, if it is about the given waiter. The known name makes a hostile
/// one harmless.
pub(super) fn lock<'a>(text: &'a str, comm: &str, waiter: u32) -> Option<Lock<'a>> {
    let rest = text.strip_prefix("INFO: task ")?.strip_prefix(comm)?.strip_prefix(':')?;
    let (pid, rest) = pid(rest)?;
    (pid == waiter).then_some(())?;
    let rest = rest.strip_prefix(' ')?;
    let rest =
        rest.strip_prefix("<writer> ").or_else(|| rest.strip_prefix("<reader> ")).unwrap_or(rest);
    let rest = rest.strip_prefix("is ").unwrap_or(rest);
    let rest = rest.strip_prefix("blocked on a")?;
    let rest = rest.strip_prefix('n').unwrap_or(rest).strip_prefix(' ')?;
    let (lock, rest) = rest.split_at_checked(rest.find([' ', ','])?)?;
    matches!(lock, "mutex" | "semaphore" | "rw-semaphore" | "rwsem" | "rt-mutex").then_some(())?;
    let owner = rest
        .strip_prefix(" likely owned by task ")
        .or_else(|| rest.strip_prefix(" likely last held by task "))
        .or_else(|| rest.strip_prefix(", likely owned by task "));
    let Some(owner) = owner else {
        return rest.contains(" not found").then_some(Lock::Unknown);
    };
    let owner = owner.trim_end();
    let owner = owner.strip_suffix('.').unwrap_or(owner);
    let owner = owner
        .strip_suffix(" <writer>")
        .or_else(|| owner.strip_suffix(" <reader>"))
        .unwrap_or(owner);
    let (comm, pid) = owner.rsplit_once(':')?;
    Some(Lock::Owner { pid: whole_pid(pid)?, comm })
}

/// Reads `watchdog: BUG: soft lockup - CPU#2 stuck for 22s! [comm:29632]` (kernel/watchdog.c;
/// older kernels write `NMI watchdog: ` or no prefix).
pub(super) fn soft_lockup(text: &str) -> Option<KernelEvent> {
    let rest = text.strip_prefix("NMI ").unwrap_or(text);
    let rest = rest.strip_prefix("watchdog: ").unwrap_or(rest);
    let (cpu, rest) = pid(rest.strip_prefix("BUG: soft lockup - CPU#")?)?;
    let (seconds, rest) = number(rest.strip_prefix(" stuck for ")?)?;
    let task = rest.strip_prefix("s! [")?.trim_end().strip_suffix(']')?;
    let (comm, task) = task.rsplit_once(':')?;
    fits_comm(comm).then_some(())?;
    Some(KernelEvent::SoftLockup { pid: whole_pid(task)?, comm: comm.to_owned(), cpu, seconds })
}

/// What follows the name of an RCU that stalls.
pub(super) const STALLS: [&str; 4] = [
    " self-detected stall on CPU",
    " detected stalls on CPUs/tasks:",
    " detected expedited stalls on CPUs/tasks:",
    " detected stalls on tasks:",
];

/// Reads `rcu: INFO: rcu_preempt self-detected stall on CPU` and the like (kernel/rcu/tree_stall.h,
/// tree_exp.h and tasks.h; older kernels write no `rcu: `).
pub(super) fn rcu_stall(text: &str) -> Option<KernelEvent> {
    let rest = text.strip_prefix("rcu: ").unwrap_or(text).strip_prefix("INFO: ")?;
    let (flavour, rest) = identifier(rest)?;
    let is_stall = flavour.starts_with("rcu") && STALLS.iter().any(|stall| rest.starts_with(stall));
    is_stall.then(|| KernelEvent::RcuStall { flavour: flavour.to_owned() })
}
