//! Failed allocations of pages, and damaged memory (`mm/page_alloc.c`, `mm/vmalloc.c`, `mm/cma.c`,
//! `mm/memory-failure.c`).

use crate::{KernelEvent, LoggedEvent, PageRecovery};

use super::text::{fits_comm, hex, identifier, number, whole_pid};
use super::trace::{Anchor, Position};
use super::{EventAssembler, KernelLine};

/// A line `comm: `, whose rest follows: older kernels print a failed allocation in two records.
#[derive(Debug)]
pub(super) struct Named {
    pub anchor: Anchor,
    pub at: Position,
    caller: Option<String>,
    comm: String,
}

/// A damaged page whose other lines may follow.
#[derive(Debug)]
pub(super) struct DamagedPage {
    pub anchor: Anchor,
    pub at: Position,
    frame: String,
    victim: Option<(u32, String)>,
}

impl DamagedPage {
    pub(super) fn finish(self, outcome: Option<PageRecovery>) -> LoggedEvent {
        let (pid, comm) = self.victim.unzip();
        let frame = self.frame;
        self.anchor.event(KernelEvent::MemoryFailure { frame, pid, comm, outcome })
    }
}

impl EventAssembler {
    /// Takes a failed allocation of pages.
    pub(super) fn feed_allocation(
        &mut self,
        failure: &Failure<'_>,
        line: &KernelLine<'_>,
        out: &mut Vec<LoggedEvent>,
    ) {
        let mut anchor = Anchor::of(line);
        let mut comm = failure.comm.map(str::to_owned);
        if comm.is_none()
            && let Some(named) = self.named.take()
            && named.caller.as_deref() == line.caller
        {
            (anchor, comm) = (named.anchor, Some(named.comm));
        }
        self.expect_other_stack(comm.as_deref(), line);
        out.push(anchor.event(KernelEvent::PageAllocFailure { comm, order: failure.order }));
    }

    /// Notes a line that may be the first half of a failed allocation.
    pub(super) fn note_name(&mut self, line: &KernelLine<'_>) {
        let name = line.text.trim_end().strip_suffix(':');
        self.named = name.filter(|name| !name.is_empty() && fits_comm(name)).map(|name| Named {
            anchor: Anchor::of(line),
            at: self.now,
            caller: line.caller.map(str::to_owned),
            comm: name.to_owned(),
        });
    }

    /// Takes a line about a damaged page.
    pub(super) fn feed_damage(
        &mut self,
        damage: Damage<'_>,
        line: &KernelLine<'_>,
        out: &mut Vec<LoggedEvent>,
    ) {
        let (Damage::Victim { frame, .. } | Damage::Outcome { frame, .. }) = damage;
        let other = self.damaged.take_if(|pending| pending.frame != frame);
        out.extend(other.map(|pending| pending.finish(None)));
        let (anchor, at) = (Anchor::of(line), self.now);
        let new = || DamagedPage { anchor, at, frame: frame.to_owned(), victim: None };
        let mut pending = self.damaged.take().unwrap_or_else(new);
        match damage {
            Damage::Victim { pid, comm, .. } => {
                pending.victim.get_or_insert_with(|| (pid, comm.to_owned()));
                self.damaged = Some(pending);
            }
            Damage::Outcome { outcome, .. } => out.push(pending.finish(Some(outcome))),
        }
    }
}

/// A failed allocation of pages.
#[derive(Debug, PartialEq)]
pub(super) struct Failure<'a> {
    /// `None`: the name may be in the line before.
    pub comm: Option<&'a str>,
    pub order: u32,
}

/// Reads `comm: page allocation failure: order:N, mode:0x…`, its second half alone, or
/// `comm: vmalloc error: size N, failed to allocate pages, mode:0x…`.
pub(super) fn allocation_failure(text: &str) -> Option<Failure<'_>> {
    if let Some(failure) = vmalloc(text) {
        return Some(failure);
    }
    const FAILED: &str = "page allocation failure";
    let (comm, rest) = match text.strip_prefix(FAILED) {
        Some(rest) => (None, rest),
        None => {
            let (comm, rest) = text.split_once(": page allocation failure")?;
            (Some(comm), rest)
        }
    };
    let rest = rest.strip_prefix(": ").or_else(|| rest.strip_prefix(". "))?;
    let (order, rest) = number(rest.strip_prefix("order:")?)?;
    let ended = match rest.strip_prefix(", mode:") {
        Some(mode) => {
            hex(mode).is_some_and(|(_, rest)| rest.is_empty() || rest.starts_with(['(', ',', ' ']))
        }
        None => rest.trim_end().is_empty(),
    };
    let is_comm = |comm: &str| fits_comm(comm) && !is_other_program(comm);
    (ended && comm.is_none_or(is_comm)).then_some(())?;
    Some(Failure { comm, order: u32::try_from(order).ok()? })
}

/// Only what lacks pages: `vm_struct allocation failed` is address space.
fn vmalloc(text: &str) -> Option<Failure<'_>> {
    let (comm, rest) = text.split_once(": vmalloc error: size ")?;
    let (_, rest) = number(rest)?;
    let (order, rest) = match rest.strip_prefix(", page order ") {
        Some(rest) => number(rest)?,
        None => (0, rest),
    };
    rest.starts_with(", failed to allocate").then_some(())?;
    (fits_comm(comm) && !is_other_program(comm)).then_some(())?;
    Some(Failure { comm: Some(comm), order: u32::try_from(order).ok()? })
}

/// Reads `cma: cma_alloc: linux,cma: alloc failed, req-size: 62864 pages, ret: -12`; older kernels
/// do not name the region.
pub(super) fn cma(text: &str) -> Option<KernelEvent> {
    let (function, rest) = identifier(text.strip_prefix("cma: ")?)?;
    function.contains("cma_alloc").then_some(())?;
    let (region, rest) = rest.strip_prefix(": ")?.split_once("alloc failed, req-size: ")?;
    let region = region.strip_suffix(": ").or(region.is_empty().then_some(""))?;
    let (pages, rest) = number(rest)?;
    rest.starts_with(" pages").then_some(())?;
    let region = (!region.is_empty()).then(|| region.to_owned());
    Some(KernelEvent::CmaAllocFailed { region, pages })
}

/// A line about a damaged page.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Damage<'a> {
    /// A process gets SIGBUS.
    Victim { frame: &'a str, pid: u32, comm: &'a str },
    /// The last line.
    Outcome { frame: &'a str, outcome: PageRecovery },
}

/// Reads `Memory failure: 0x8a0000: Sending SIGBUS to comm:4242 due to hardware memory corruption`
/// (`Killing` in older kernels) and `… recovery action for dirty LRU page: Recovered`.
pub(super) fn damage(text: &str) -> Option<Damage<'_>> {
    let (frame, rest) = text.strip_prefix("Memory failure: ")?.split_once(": ")?;
    hex(frame).filter(|(_, rest)| rest.is_empty())?;
    if let Some(rest) = rest.strip_prefix("recovery action for ") {
        let outcome = match rest.rsplit_once(": ")?.1.trim_end() {
            "Recovered" => PageRecovery::Recovered,
            "Delayed" => PageRecovery::Delayed,
            "Ignored" => PageRecovery::Ignored,
            "Failed" => PageRecovery::Failed,
            _ => return None,
        };
        return Some(Damage::Outcome { frame, outcome });
    }
    let victim =
        rest.strip_prefix("Sending SIGBUS to ").or_else(|| rest.strip_prefix("Killing "))?;
    let victim = victim.trim_end().strip_suffix(" due to hardware memory corruption")?;
    let (comm, task) = victim.rsplit_once(':')?;
    fits_comm(comm).then_some(Damage::Victim { frame, pid: whole_pid(task)?, comm })
}

/// `systemd[1]: …`, `usb 1-1: …`: the line quotes a kernel message.
fn is_other_program(comm: &str) -> bool {
    let Some((head, _)) = comm.split_once(": ") else { return false };
    let identifier = head.strip_suffix(']').and_then(|head| head.rsplit_once('['));
    identifier.is_some_and(|(name, id)| !name.is_empty() && whole_pid(id).is_some())
        || head.strip_prefix("usb ").is_some_and(|port| port.contains('-'))
        || matches!(head, "audit" | "systemd" | "EXT4-fs")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_imitate_other_fields_are_read_from_the_end() {
        let text = "Memory failure: 0x1: Sending SIGBUS to 2: x:7 due:9 due to hardware memory \
                    corruption";
        assert_eq!(damage(text), Some(Damage::Victim { frame: "0x1", pid: 9, comm: "2: x:7 due" }));
        for text in [
            "Memory failure: 0x1: recovery action for x: Unknown",
            "Memory failure: 0x1x: recovery action for x: Ignored",
            "Memory failure: 0x1: already hardware poisoned",
            "x: Memory failure: 0x1: recovery action for x: Ignored",
            "Memory failure: 0x1: Killing a much too long name:9 due to hardware memory corruption",
        ] {
            assert_eq!(damage(text), None, "{text}");
        }
    }

    #[test]
    fn other_messages_about_pages_are_no_failures() {
        for text in [
            "x: vmalloc error: size 4096, vm_struct allocation failed, mode:0xcc0",
            "x: vmalloc error: size 4096, exceeds total pages, mode:0xcc0",
            "systemd[1]: x: vmalloc error: size 4096, failed to allocate pages, mode:0xcc0",
            "page allocation failure: order:x, mode:0x0",
            "a page allocation failure: order:0, mode:0x0",
        ] {
            assert_eq!(allocation_failure(text), None, "{text}");
        }
        for text in [
            "cma: cma_alloc: x alloc failed, req-size: 1 pages, ret: -12",
            "cma: cma_alloc: alloc failed, req-size: x pages, ret: -12",
            "x: cma: cma_alloc: alloc failed, req-size: 1 pages, ret: -12",
        ] {
            assert_eq!(cma(text), None, "{text}");
        }
    }
}
