//! Faults in words, for people.

use std::fmt::{self, Display, Formatter};

use crate::{GpuLossSign, KernelEvent, KillerDaemon, PageRecovery, Recovery};

/// `prefix`, the value and `suffix`; nothing without a value.
struct Opt<'a, T>(&'a str, Option<T>, &'a str);

impl<T: Display> Display for Opt<'_, T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.1 {
            Some(value) => write!(f, "{}{value}{}", self.0, self.2),
            None => Ok(()),
        }
    }
}

/// One line without the kind. It allocates nothing.
impl Display for KernelEvent {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::NvNoMemory { function, gpu, location, .. } => {
                let location = location.as_deref().unwrap_or("an unknown location");
                let gpu = Opt(" on GPU ", *gpu, "");
                write!(f, "the driver failed to allocate{gpu} at {location} ({function})")
            }
            Self::NvAllocFailed { function, bytes } => {
                write!(f, "the driver failed to allocate {bytes} bytes ({function})")
            }
            Self::Xid { xid, pci, pid, process, recovery, .. } => {
                let (pid, process) = (Opt(" pid ", *pid, ""), Opt(" ", process.as_deref(), ""));
                let recovery = recovery.map_or("", recovery_text);
                write!(f, "Xid {xid} on {pci}{pid}{process}{recovery}")
            }
            Self::UvmFatal => f.write_str("UVM needs a reboot to recover"),
            Self::GpuLost { pci, gpu, sign } => {
                let (pci, gpu) = (Opt(" ", pci.as_deref(), ""), Opt(" ", *gpu, ""));
                write!(f, "GPU{gpu}{pci} {}, and no Xid says so", sign.text())
            }
            Self::GpuInitFailed { pci, status } => {
                let pci = pci.as_deref().unwrap_or("a GPU");
                write!(f, "the driver could not initialise {pci} ({status})")
            }
            Self::OomKill { .. } => self.fmt_kill(f),
            Self::OomNoVictim => f.write_str("nothing could be killed"),
            Self::OomPanic => f.write_str("the kernel panicked because memory ran out"),
            Self::OomReaped { pid, comm } => write!(f, "reaped {pid} ({comm})"),
            Self::OomUnreapable { pid, comm } => write!(f, "could not reap {pid} ({comm})"),
            Self::PageAllocFailure { comm, order } => {
                let comm = comm.as_deref().unwrap_or("a process");
                write!(f, "{comm} got no block of 2^{order} pages")
            }
            Self::CmaAllocFailed { region, pages } => {
                let region = Opt(" ", region.as_deref(), "");
                write!(f, "CMA{region} had no block of {pages} pages")
            }
            Self::MemoryFailure { frame, pid, comm, outcome } => {
                let (pid, comm) = (Opt(", SIGBUS to ", *pid, ""), Opt(" (", comm.as_deref(), ")"));
                let outcome = outcome.map_or("", PageRecovery::text);
                write!(f, "page frame {frame} is damaged{outcome}{pid}{comm}")
            }
            Self::SoftLockup { pid, comm, cpu, seconds } => {
                write!(f, "CPU {cpu} has not left the kernel for {seconds} s, in {pid} ({comm})")
            }
            Self::RcuStall { flavour } => write!(f, "a CPU or task holds up {flavour}"),
            Self::HungTask { pid, comm, seconds, owner_pid, owner_comm } => {
                write!(f, "{pid} ({comm}) blocked for more than {seconds} s")?;
                match (owner_pid, owner_comm) {
                    (Some(pid), Some(comm)) => {
                        write!(f, "; lock likely held by {pid} ({comm})")
                    }
                    _ => Ok(()),
                }
            }
            Self::UserspaceKill { by, pid, comm, memcg } => {
                let (pid, comm) = (Opt(" ", *pid, ""), Opt(" (", comm.as_deref(), ")"));
                let memcg = Opt(" ", memcg.as_deref(), "");
                write!(f, "{by} killed{pid}{comm}{memcg}")
            }
        }
    }
}

impl Display for KillerDaemon {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SystemdOomd => "systemd-oomd",
            Self::Earlyoom => "earlyoom",
            Self::Nohang => "nohang",
            Self::Oomd => "oomd",
            Self::Talos => "Talos' OOM controller",
            Self::Ray => "Ray's memory monitor",
        })
    }
}

impl GpuLossSign {
    fn text(self) -> &'static str {
        match self {
            Self::OffBus => "has fallen off the bus",
            Self::ResetRequired => "must be reset",
            Self::GspTimeout => "does not respond (GSP timeout)",
        }
    }
}

impl PageRecovery {
    fn text(self) -> &'static str {
        match self {
            Self::Recovered => " and no longer used",
            Self::Delayed => " and freed later",
            Self::Ignored | Self::Failed => " and still in use",
        }
    }
}

fn recovery_text(recovery: Recovery) -> &'static str {
    match recovery {
        Recovery::None => ": no recovery needed",
        Recovery::GpuReset => ": GPU reset required",
        Recovery::NodeReboot => ": node reboot required",
        Recovery::DrainP2p => ": drain peer-to-peer traffic",
        Recovery::DrainAndReset => ": drain, then reset",
    }
}

impl KernelEvent {
    fn fmt_kill(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self::OomKill {
            pid,
            comm,
            memcg,
            oom_memcg,
            trigger_comm,
            anon_rss_bytes,
            driver,
            manual,
            ..
        } = self
        else {
            return Ok(());
        };
        let rss = Opt(", ", anon_rss_bytes.map(|bytes| bytes >> 20), " MiB anonymous");
        let limit = match oom_memcg {
            Some(limit) => Opt(", limit of ", Some(limit), ""),
            None => Opt(", in ", memcg.as_ref(), ""),
        };
        let trigger = Opt(", requested by ", trigger_comm.as_deref(), "");
        let driver = if *driver { ", through the NVIDIA driver" } else { "" };
        let manual = if *manual { ", as a person requested by sysrq f" } else { "" };
        write!(f, "killed {pid} ({comm}){rss}{limit}{trigger}{driver}{manual}")
    }

    /// The meaning of a kind of event, one of [`Self::KINDS`], for the reader; empty for others.
    pub fn meaning(kind: &str) -> &'static str {
        match kind {
            "nv_no_memory" => {
                "the driver logs every failed try, also those it recovers from: no incident by \
                 themselves"
            }
            "nv_alloc_failed" => "the driver could not get memory to map memory",
            "xid" => "the GPU reported an error; see NVIDIA's Xid catalogue",
            "uvm_fatal" => "the UVM driver is dead until the next boot",
            "gpu_lost" => "the GPU is gone or must be reset, as with Xid 79; mostly a reboot",
            "gpu_init_failed" => {
                "no engine can start on it; with status 0x51 for want of memory, else as gpu_lost"
            }
            "oom_kill" => "the kernel killed for memory; the victim may be a bystander",
            "oom_no_victim" => "memory ran out and nothing could be killed",
            "oom_panic" => "the kernel stopped: this was the end of the boot",
            "oom_reaped" => "a killed process' memory came back",
            "oom_unreapable" => {
                "a killed process' memory did not come back: check for pinned memory"
            }
            "page_alloc_failure" => "no free block of that size; often fragmentation",
            "cma_alloc_failed" => "no contiguous block in CMA, which Jetson's drivers need",
            "memory_failure" => "the hardware reported an uncorrectable memory error",
            "soft_lockup" => "a CPU is stuck in the kernel, often in a driver",
            "rcu_stall" => "a CPU is stuck or starved, often by a driver or a virtual machine",
            "hung_task" => "a task waits in state D; check the owner of its lock",
            "userspace_kill" => "a daemon in user space killed for memory",
            _ => "",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_meaning() {
        for kind in KernelEvent::KINDS {
            assert_ne!(KernelEvent::meaning(kind), "", "{kind}");
        }
        assert_eq!(KernelEvent::meaning("other"), "");
    }

    #[test]
    fn unknown_facts_leave_no_trace_in_the_text() {
        let event = KernelEvent::UserspaceKill {
            by: KillerDaemon::Earlyoom,
            pid: Some(7),
            comm: None,
            memcg: None,
        };
        assert_eq!(event.to_string(), "earlyoom killed 7");
        let event = KernelEvent::HungTask {
            pid: 7,
            comm: "vllm".to_owned(),
            seconds: 120,
            owner_pid: None,
            owner_comm: None,
        };
        assert_eq!(event.to_string(), "7 (vllm) blocked for more than 120 s");
    }
}
