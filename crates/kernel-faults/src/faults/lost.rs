//! GPUs that are gone, must be reset or cannot be initialised, and the Xids that say the same.

use crate::{KernelEvent, LoggedEvent};

use super::trace::{Anchor, Position};
use super::{EventAssembler, MOST_PENDING};

/// Xids of a device that is gone: its loss is known by them.
const GONE: [u32; 5] = [79, 119, 120, 143, 154];

/// What a line says of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Report {
    /// It is gone.
    Lost,
    /// It is gone, by an Xid.
    Xid,
    /// It cannot be initialised: each try of each program fails.
    Uninitialised,
    /// UVM gave up: it and the resource manager both write that.
    UvmFatal,
}

impl Report {
    /// Whether both may be of one fault.
    fn may_be(self, other: Self) -> bool {
        let is_loss = |report: Self| matches!(report, Self::Lost | Self::Xid);
        self == other || (is_loss(self) && is_loss(other))
    }
}

/// A line that a device is gone, or an Xid that says so.
#[derive(Debug)]
pub(super) struct LostDevice {
    pub anchor: Anchor,
    pub at: Position,
    device: Device,
    report: Report,
    /// The event, until it is known that no Xid says the same.
    pub waiting: Option<KernelEvent>,
}

impl LostDevice {
    /// Its event, once.
    pub(super) fn release(&mut self) -> Option<LoggedEvent> {
        self.waiting.take().map(|event| self.anchor.event(event))
    }
}

/// A device, as far as a line names it.
#[derive(Clone, Debug, Default, PartialEq)]
struct Device {
    pci: Option<String>,
    gpu: Option<u32>,
}

impl Device {
    fn may_be(&self, other: &Self) -> bool {
        match (&self.pci, &other.pci) {
            (Some(own), Some(other)) => slot(own) == slot(other),
            _ => self.gpu.zip(other.gpu).is_none_or(|(own, other)| own == other),
        }
    }
}

/// The address without its function.
fn slot(pci: &str) -> &str {
    pci.split('.').next().unwrap_or(pci)
}

impl EventAssembler {
    /// Takes an event of the driver. The loss of a device is reported once, and not beside an Xid:
    /// the driver writes the Xid first (`osHandleGpuLost`), or right after it (`_kgspLogXid119`).
    pub(super) fn driver_event(
        &mut self,
        anchor: Anchor,
        event: KernelEvent,
        out: &mut Vec<LoggedEvent>,
    ) {
        let (device, report) = match &event {
            KernelEvent::Xid { xid, pci, .. } if GONE.contains(xid) => {
                (Device { pci: Some(pci.clone()), gpu: None }, Report::Xid)
            }
            KernelEvent::GpuLost { pci, gpu, .. } => {
                (Device { pci: pci.clone(), gpu: *gpu }, Report::Lost)
            }
            KernelEvent::GpuInitFailed { pci, .. } => {
                (Device { pci: pci.clone(), gpu: None }, Report::Uninitialised)
            }
            KernelEvent::UvmFatal => (Device::default(), Report::UvmFatal),
            _ => return out.push(anchor.event(event)),
        };
        let mut known = self
            .lost
            .iter_mut()
            .filter(|lost| lost.report.may_be(report) && lost.device.may_be(&device));
        let mut lost =
            LostDevice { anchor, at: self.now, device: device.clone(), report, waiting: None };
        match report {
            Report::Xid => known.for_each(|lost| lost.waiting = None),
            _ if known.next().is_some() => return,
            _ => {}
        }
        match report {
            Report::Lost => lost.waiting = Some(event),
            Report::Xid | Report::Uninitialised | Report::UvmFatal => out.push(anchor.event(event)),
        }
        self.push_lost(lost, out);
    }

    fn push_lost(&mut self, lost: LostDevice, out: &mut Vec<LoggedEvent>) {
        if self.lost.len() >= MOST_PENDING {
            out.extend(self.lost.pop_front().and_then(|mut oldest| oldest.release()));
        }
        self.lost.push_back(lost);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::KernelLine;

    /// The kinds of the events of lines with their times in seconds.
    fn kinds(lines: &[(u64, &str)]) -> Vec<(&'static str, Option<u64>)> {
        let (mut assembler, mut out) = (EventAssembler::new(), Vec::new());
        for (seq, (second, text)) in (0..).zip(lines) {
            let line = KernelLine {
                seq: Some(seq),
                uptime: Some(Duration::from_secs(*second)),
                from_kernel: true,
                text,
                ..KernelLine::default()
            };
            assembler.feed(&line, &mut out);
        }
        assembler.finish(&mut out);
        assert_eq!((assembler.pending_since_seq(), assembler.next_deadline()), (None, None));
        out.iter().map(|event| (event.kind.kind(), event.seq)).collect()
    }

    const LOST: &str = "NVRM: GPU 0000:a1:00.0: GPU has fallen off the bus.";
    const XID: &str = "NVRM: Xid (PCI:0000:a1:00): 79, GPU has fallen off the bus.";
    const BANNER: &str = "NVRM: GPU3 _kgspLogXid119: **** GSP Timeout ****";

    #[test]
    fn a_device_is_lost_once_whatever_says_so() {
        assert_eq!(kinds(&[(1, LOST)]), [("gpu_lost", Some(0))]);
        assert_eq!(kinds(&[(1, LOST), (2, LOST), (9, BANNER)]), [("gpu_lost", Some(0))]);
        assert_eq!(kinds(&[(1, XID), (1, LOST)]), [("xid", Some(0))]);
        assert_eq!(kinds(&[(1, LOST), (1, XID)]), [("xid", Some(1))]);
        assert_eq!(kinds(&[(1, BANNER), (1, &XID.replace("79", "119"))]), [("xid", Some(1))]);
    }

    #[test]
    fn an_initialisation_that_fails_again_at_once_is_the_same() {
        let failed = "NVRM: GPU 0000:a1:00.0: RmInitAdapter failed! (0x22:0x56:894)";
        let lines = [(1, failed), (1, failed), (2, LOST), (30, failed)];
        let expected =
            [("gpu_init_failed", Some(0)), ("gpu_lost", Some(2)), ("gpu_init_failed", Some(3))];
        assert_eq!(kinds(&lines), expected);
        let old = "NVRM: RmInitAdapter failed! (0x30:0xffffffff:858)";
        assert_eq!(kinds(&[(1, old), (2, old)]), [("gpu_init_failed", Some(0))]);
    }

    #[test]
    fn uvm_gives_up_once_whoever_writes_it() {
        let own = "nvidia-uvm: uvm_global.c:435 uvm_global_set_fatal_error_impl[pid:7] \
                   Encountered a global fatal error: RC error [NV_ERR_RC_ERROR]";
        let driver = "NVRM: nvGpuOpsReportFatalError: uvm encountered global fatal error 0x60, \
                      requiring os reboot to recover.";
        assert_eq!(kinds(&[(1, own), (1, driver)]), [("uvm_fatal", Some(0))]);
        assert_eq!(kinds(&[(1, driver), (1, LOST)]).len(), 2);
        let later = own.replace("] E", "] ERROR: E");
        assert_eq!(kinds(&[(1, own), (60, &later)]).len(), 2);
        let of_another = own.replace("nvidia-uvm: ", "");
        let without_place = "nvidia-uvm: x Encountered a global fatal error: x";
        assert_eq!(kinds(&[(1, &of_another), (1, without_place)]), []);
    }

    #[test]
    fn another_device_another_time_or_another_xid_is_another_loss() {
        let other = LOST.replace("a1", "b1");
        assert_eq!(kinds(&[(1, XID), (1, &other)]), [("xid", Some(0)), ("gpu_lost", Some(1))]);
        assert_eq!(kinds(&[(1, LOST), (60, LOST)]).len(), 2);
        assert_eq!(kinds(&[(1, LOST), (30, XID)]), [("gpu_lost", Some(0)), ("xid", Some(1))]);
        let fault = XID.replace("79", "31");
        assert_eq!(kinds(&[(1, &fault), (1, LOST)]), [("xid", Some(0)), ("gpu_lost", Some(1))]);
    }

    #[test]
    fn a_loss_waits_a_second_for_its_xid_and_memory_is_bounded() {
        let (mut assembler, mut out) = (EventAssembler::new(), Vec::new());
        let mut line = KernelLine { from_kernel: true, text: LOST, ..KernelLine::default() };
        (line.seq, line.uptime) = (Some(7), Some(Duration::from_secs(100)));
        assembler.feed(&line, &mut out);
        assert!(out.is_empty());
        assert_eq!(assembler.next_deadline(), Some(Duration::from_secs(101)));
        assembler.tick(Duration::from_secs(101), &mut out);
        assert_eq!(out.len(), 1);
        // A repetition within ten seconds must be known after a restart too.
        assert_eq!(assembler.pending_since_seq(), Some(7));
        assert_eq!(assembler.next_deadline(), Some(Duration::from_secs(110)));
        assembler.tick(Duration::from_secs(110), &mut out);
        assert_eq!((assembler.pending_since_seq(), out.len()), (None, 1));
        for bus in 0..=255 {
            let text = format!("NVRM: GPU 0000:{bus:02x}:00.0: GPU has fallen off the bus.");
            assembler.feed(&KernelLine { text: &text, ..line }, &mut out);
        }
        assert!(assembler.lost.len() <= MOST_PENDING);
        assembler.finish(&mut out);
        assert_eq!(out.len(), 257);
    }
}
