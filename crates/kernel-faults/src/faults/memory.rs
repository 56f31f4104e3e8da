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
        failure: &AllocationFailure<'_>,
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
pub(super) struct AllocationFailure<'a> {
    /// `None`: the name may be in the line before.
    pub comm: Option<&'a str>,
    pub order: u32,
}

/// Reads `comm: page allocation failure: order:N, mode:0x…`, its second half alone, or
/// `comm: vmalloc error: size N, failed to allocate pages, mode:0x…`.
pub(super) fn allocation_failure(text: &str) -> Option<AllocationFailure<'_>> {
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
    Some(AllocationFailure { comm, order: u32::try_from(order).ok()? })
}

/// Only what lacks pages: `vm_struct allocation failed` is address space. Linux 4.10 to 5.12 write
/// `comm: vmalloc: allocation failure, allocated 8192 of 20480 bytes`; older ones write it without
/// the name, before the failure of a page.
fn vmalloc(text: &str) -> Option<AllocationFailure<'_>> {
    let (comm, rest) = of_vmalloc(text)?;
    if let Some(rest) = rest.strip_prefix(": allocation failure, allocated ") {
        let (_, rest) = number(rest)?;
        let (_, rest) = number(rest.strip_prefix(" of ")?)?;
        rest.starts_with(" bytes").then_some(())?;
        return Some(AllocationFailure { comm: Some(comm), order: 0 });
    }
    let (_, rest) = number(rest.strip_prefix(" error: size ")?)?;
    let (order, rest) = match rest.strip_prefix(", page order ") {
        Some(rest) => number(rest)?,
        None => (0, rest),
    };
    rest.starts_with(", failed to allocate").then_some(())?;
    Some(AllocationFailure { comm: Some(comm), order: u32::try_from(order).ok()? })
}

/// The process in a line about vmalloc, and the text after that word.
fn of_vmalloc(text: &str) -> Option<(&str, &str)> {
    let (comm, rest) = text.split_once(": vmalloc")?;
    (fits_comm(comm) && !is_other_program(comm)).then_some((comm, rest))
}

/// Whether a line is about a failed vmalloc, perhaps for want of address space.
pub(super) fn is_of_vmalloc(text: &str) -> bool {
    text.starts_with("vmalloc: allocation failure") || of_vmalloc(text).is_some()
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

/// Reads ` generic: failed to alloc mem of size (1048576)`: `do_heap_alloc` of L4T's nvmap, with
/// the names of driver and carveout (drivers/video/tegra/nvmap/nvmap_heap.c).
pub(super) fn nvmap(text: &str) -> Option<KernelEvent> {
    let (device, rest) = text.trim_start().split_once(": failed to alloc mem of size (")?;
    let (bytes, rest) = number(rest)?;
    let is_name = |word: &str| {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        !word.is_empty() && word.bytes().all(fits)
    };
    let is_device = device.splitn(3, ' ').all(is_name) && device.split(' ').count() <= 2;
    let function = "do_heap_alloc".to_owned();
    (is_device && rest.trim_end() == ")").then_some(KernelEvent::NvAllocFailed { function, bytes })
}

/// A line about a damaged page.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Damage<'a> {
    /// A process gets SIGBUS.
    Victim { frame: &'a str, pid: u32, comm: &'a str },
    /// The last line.
    Outcome { frame: &'a str, outcome: PageRecovery },
}

/// The number of the frame in a line about a damaged page, and the text after it. Kernels before
/// 4.1 begin it with `MCE `.
fn about_damage(text: &str) -> Option<(&str, &str)> {
    let rest = text.strip_prefix("Memory failure: ").or_else(|| text.strip_prefix("MCE "))?;
    let (frame, rest) = rest.split_once(": ")?;
    hex(frame).filter(|(_, rest)| rest.is_empty())?;
    Some((frame, rest))
}

/// Whether a line is about a damaged page, perhaps without an event.
pub(super) fn is_about_damage(text: &str) -> bool {
    about_damage(text).is_some()
}

/// Reads `Memory failure: 0x8a0000: Sending SIGBUS to comm:4242 due to hardware memory corruption`
/// (`Killing` in older kernels), `forcibly killing comm:4242 because of failure to unmap corrupted
/// page`, and `recovery action for dirty LRU page: Recovered` (`dirty LRU page recovery: Recovered`
/// in older kernels).
pub(super) fn damage(text: &str) -> Option<Damage<'_>> {
    let (frame, rest) = about_damage(text)?;
    let rest = rest.trim_end();
    let signalled = || {
        let rest =
            rest.strip_prefix("Sending SIGBUS to ").or_else(|| rest.strip_prefix("Killing "))?;
        rest.strip_suffix(" due to hardware memory corruption")
    };
    let killed = || {
        let rest = rest.strip_prefix("forcibly killing ")?;
        rest.strip_suffix(" because of failure to unmap corrupted page")
    };
    if let Some(victim) = signalled().or_else(killed) {
        let (comm, task) = victim.rsplit_once(':')?;
        return fits_comm(comm).then_some(Damage::Victim { frame, pid: whole_pid(task)?, comm });
    }
    let new = rest.strip_prefix("recovery action for ").and_then(|rest| rest.rsplit_once(": "));
    let (_, outcome) = new.or_else(|| rest.rsplit_once(" page recovery: "))?;
    let outcome = match outcome {
        "Recovered" => PageRecovery::Recovered,
        "Delayed" => PageRecovery::Delayed,
        "Ignored" => PageRecovery::Ignored,
        "Failed" => PageRecovery::Failed,
        _ => return None,
    };
    Some(Damage::Outcome { frame, outcome })
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
