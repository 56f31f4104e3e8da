//! Hung tasks and failed page allocations (`kernel/hung_task.c`, `mm/page_alloc.c`).

use super::text::{fits_comm, hex, number, pid, whole_pid};

/// `INFO: task X:pid blocked for more than N seconds.`
#[derive(Debug, PartialEq)]
pub(super) struct Hung<'a> {
    pub pid: u32,
    pub comm: &'a str,
    pub seconds: u64,
}

/// Reads the first line of a report.
pub(super) fn hung(text: &str) -> Option<Hung<'_>> {
    let rest = text.strip_prefix("INFO: task ")?;
    let at = rest
        .rfind(" blocked for more than ")
        .map(|at| (at, 23))
        .or_else(|| rest.rfind(" blocked in I/O wait for more than ").map(|at| (at, 35)));
    let (at, length) = at?;
    let (seconds, end) = number(rest.get(at + length..)?)?;
    matches!(end.trim_end(), " seconds." | " seconds").then_some(())?;
    let (comm, task) = rest.get(..at)?.rsplit_once(':')?;
    fits_comm(comm).then_some(Hung { pid: whole_pid(task)?, comm, seconds })
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

/// Reads `comm: page allocation failure: order:N, mode:0x…`.
pub(super) fn page_allocation_failure(text: &str) -> Option<(&str, u32)> {
    let (comm, rest) = text.split_once(": page allocation failure")?;
    let rest = rest.strip_prefix(": ").or_else(|| rest.strip_prefix(". "))?;
    let (order, rest) = number(rest.strip_prefix("order:")?)?;
    let ended = match rest.strip_prefix(", mode:") {
        Some(mode) => {
            hex(mode).is_some_and(|(_, rest)| rest.is_empty() || rest.starts_with(['(', ',', ' ']))
        }
        None => rest.trim_end().is_empty(),
    };
    (ended && fits_comm(comm) && !is_other_program(comm))
        .then_some((comm, u32::try_from(order).ok()?))
}

/// `systemd[1]: …`, `usb 1-1: …`: the line quotes a kernel message.
fn is_other_program(comm: &str) -> bool {
    let Some((head, _)) = comm.split_once(": ") else { return false };
    let identifier = head.strip_suffix(']').and_then(|head| head.rsplit_once('['));
    identifier.is_some_and(|(name, id)| !name.is_empty() && whole_pid(id).is_some())
        || head.strip_prefix("usb ").is_some_and(|port| port.contains('-'))
        || matches!(head, "audit" | "systemd" | "EXT4-fs")
}
