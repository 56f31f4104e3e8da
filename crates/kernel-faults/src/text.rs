//! Faults in words, for people.

use std::fmt::{self, Display, Formatter};

use crate::{KernelEvent, KillerDaemon, Recovery};

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
                write!(f, "the driver failed to allocate {bytes} bytes of metadata ({function})")
            }
            Self::Xid { xid, pci, pid, process, recovery, .. } => {
                let (pid, process) = (Opt(" pid ", *pid, ""), Opt(" ", process.as_deref(), ""));
                let recovery = recovery.map_or("", recovery_text);
                write!(f, "Xid {xid} on {pci}{pid}{process}{recovery}")
            }
            Self::UvmFatal => f.write_str("UVM needs a reboot to recover"),
            Self::OomKill {
                pid,
                comm,
                memcg,
                oom_memcg,
                trigger_comm,
                anon_rss_bytes,
                driver,
                manual,
                ..
            } => {
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
            Self::OomNoVictim => f.write_str("nothing could be killed"),
            Self::OomReaped { pid, comm } => write!(f, "reaped {pid} ({comm})"),
            Self::OomUnreapable { pid, comm } => write!(f, "could not reap {pid} ({comm})"),
            Self::PageAllocFailure { comm, order } => {
                write!(f, "{comm} got no block of 2^{order} pages")
            }
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
            "oom_kill" => "the kernel killed for memory; the victim may be a bystander",
            "oom_no_victim" => "memory ran out and nothing could be killed",
            "oom_reaped" => "a killed process' memory came back",
            "oom_unreapable" => {
                "a killed process' memory did not come back: check for pinned memory"
            }
            "page_alloc_failure" => "no free block of that size; often fragmentation",
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
