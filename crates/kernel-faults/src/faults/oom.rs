//! The lines of the OOM killer, each by itself.
//!
//! Formats: `mm/oom_kill.c` and `mm/memcontrol.c` of Linux 3.10 to 6.18. A `comm` may contain
//! anything, so that lines are parsed from their ends, which have only numbers.

use crate::OomConstraint;

use super::text::{fits_comm, number, pid, whole_pid};

/// One line of a trace.
#[derive(Debug, PartialEq)]
pub(super) enum OomLine<'a> {
    /// `comm invoked oom-killer: …`: the trace's first line. `manual`: its order is -1, as that of
    /// sysrq f from Linux 4.3 on.
    Invoked { comm: &'a str, manual: bool },
    /// `sysrq: Manual OOM execution`: a person requested a kill.
    Requested,
    /// `oom-kill:constraint=…`: the victim and the reason; perhaps incomplete.
    Summary,
    /// The kill itself.
    Killed(Killed<'a>),
    /// The kill, cut before its figures.
    KilledUnfinished(Killed<'a>),
    /// Before 5.1: this process, or a child of it, will be killed.
    Intention { pid: u32, comm: &'a str, memcg: bool },
    /// The chosen process ends by itself.
    AlreadyExiting { pid: u32 },
    /// Its memory was reclaimed.
    Reaped { pid: u32, comm: &'a str },
    /// Its memory could not be reclaimed.
    Unreapable { pid: u32, comm: &'a str },
    /// There was no process to kill.
    NoVictim,
    /// The kernel panics.
    Panic,
    /// `memory.oom.group`: all of this cgroup.
    Group { memcg: &'a str },
    /// Before 4.19: the victim's cgroup, and the one whose limit was hit.
    Limit { memcg: &'a str, oom_memcg: &'a str },
    /// One of the two above without its end: the kernel prints them in pieces.
    CgroupUnfinished,
    /// The cgroup whose limit was hit.
    Stats { oom_memcg: &'a str },
}

/// A `Killed process` line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Killed<'a> {
    pub pid: u32,
    pub comm: &'a str,
    /// The line names the limit of a cgroup.
    pub memcg: bool,
    /// The line names the whole machine.
    pub global: bool,
    pub anon_rss_bytes: Option<u64>,
}

/// The line of sysrq f, in the forms of Linux 3.10 to 6.18.
const REQUESTED: [&str; 3] = [
    "sysrq: Manual OOM execution",
    "SysRq : Manual OOM execution",
    "sysrq: SysRq : Manual OOM execution",
];

/// `out_of_memory` and `check_panic_on_oom`.
const PANICS: [&str; 3] = [
    "Kernel panic - not syncing: System is deadlocked on memory",
    "Kernel panic - not syncing: Out of memory: compulsory panic_on_oom is enabled",
    "Kernel panic - not syncing: Out of memory: system-wide panic_on_oom is enabled",
];

pub(super) const GROUP: &str = " are going to be killed due to memory.oom.group set";
pub(super) const LIMIT: &str = " killed as a result of limit of ";

/// Parses a line; `None`: it is none of these.
pub(super) fn parse(text: &str) -> Option<OomLine<'_>> {
    if text.starts_with("oom-kill:constraint=") {
        return Some(OomLine::Summary);
    }
    if REQUESTED.contains(&text.trim_end()) {
        return Some(OomLine::Requested);
    }
    if let Some(rest) = text.strip_prefix("oom_reaper: ") {
        return reaper(rest);
    }
    if let Some(rest) = text.strip_prefix("Tasks in ") {
        let memcg = rest.trim_end().strip_suffix(GROUP);
        let unfinished = rest.starts_with('/').then_some(OomLine::CgroupUnfinished);
        return memcg.map(|memcg| OomLine::Group { memcg }).or(unfinished);
    }
    if let Some(rest) = text.strip_prefix("Task in ") {
        let limit = rest.split_once(LIMIT).map(|(memcg, oom)| (memcg, oom.trim_end()));
        let whole = limit.filter(|(_, oom_memcg)| !oom_memcg.is_empty());
        let unfinished = rest.starts_with('/').then_some(OomLine::CgroupUnfinished);
        return whole.map(|(memcg, oom_memcg)| OomLine::Limit { memcg, oom_memcg }).or(unfinished);
    }
    if let Some(rest) = text.strip_prefix("Memory cgroup stats for ") {
        return Some(OomLine::Stats { oom_memcg: rest.split_once(':')?.0 });
    }
    if PANICS.contains(&text.trim_end()) {
        return Some(OomLine::Panic);
    }
    let panicked = text.strip_prefix("Kernel panic - not syncing: ").unwrap_or(text);
    if panicked.starts_with("Out of memory and no killable processes")
        || panicked.starts_with("Memory cgroup out of memory and no killable processes")
    {
        return Some(OomLine::NoVictim);
    }
    if let Some(line) = victim(text) {
        return Some(line);
    }
    let at = text.find(" invoked oom-killer: gfp_mask=0x")?;
    let comm = text.get(..at)?;
    let manual = text.get(at..)?.contains(", order=-1,");
    fits_comm(comm).then_some(OomLine::Invoked { comm, manual })
}

fn victim(text: &str) -> Option<OomLine<'_>> {
    const GLOBAL: [&str; 2] = ["Out of memory: ", "Out of memory (oom_kill_allocating_task): "];
    let memcg_text = text.strip_prefix("Memory cgroup out of memory: ");
    let global_text = GLOBAL.iter().find_map(|prefix| text.strip_prefix(prefix));
    let (memcg, global) = (memcg_text.is_some(), global_text.is_some());
    let rest = memcg_text.or(global_text).unwrap_or(text);
    if let Some(rest) = rest.strip_prefix("OOM victim ") {
        let (pid, rest) = pid(rest)?;
        rest.trim_end().contains(") is already exiting").then_some(())?;
        return Some(OomLine::AlreadyExiting { pid });
    }
    if let Some(rest) = rest.strip_prefix("Kill process ") {
        let (pid, rest) = pid(rest)?;
        let end = rest.rfind(") score ")?;
        let comm = rest.get(..end)?.strip_prefix(" (")?;
        return Some(OomLine::Intention { pid, comm, memcg });
    }
    killed(rest.strip_prefix("Killed process ")?, memcg, global)
}

/// `4242 (comm) total-vm:1kB, anon-rss:1kB, …`, `4242 (comm), UID 0, total-vm:…`,
/// `4242, UID 0, (comm) total-vm:…`.
fn killed(rest: &str, memcg: bool, global: bool) -> Option<OomLine<'_>> {
    let (pid, rest) = pid(rest)?;
    let rest = match rest.strip_prefix(", UID ") {
        Some(rest) => number(rest)?.1.strip_prefix(",")?,
        None => rest,
    };
    let rest = rest.strip_prefix(" (")?;
    // Tools put words in brackets behind the figures, too.
    let whole = rest.rmatch_indices(')').find_map(|(end, _)| {
        let (comm, figures) = (rest.get(..end)?, rest.get(end + 1..)?);
        let known = figures.is_empty()
            || [" total-vm:", " vsz:", ", UID "].iter().any(|start| figures.starts_with(start));
        (known && fits_comm(comm)).then_some((comm, figures))
    });
    let named = memcg || global;
    let Some((comm, figures)) = whole else {
        // A pager marks a cut line.
        let cut = rest.trim_end_matches(['>', '…']);
        let comm = rest.split_once(") ").map_or(cut, |(comm, _)| comm);
        let line = Killed { pid, comm, memcg, global, anon_rss_bytes: None };
        return named.then_some(OomLine::KilledUnfinished(line));
    };
    if figures.is_empty() && !named {
        return None;
    }
    let line = Killed { pid, comm, memcg, global, anon_rss_bytes: anon_rss(figures) };
    let cut = figures.is_empty() || line.anon_rss_bytes.is_none() || !figures.contains("file-rss:");
    Some(if cut { OomLine::KilledUnfinished(line) } else { OomLine::Killed(line) })
}

fn anon_rss(figures: &str) -> Option<u64> {
    let (kib, rest) = number(figures.split_once("anon-rss:")?.1)?;
    rest.starts_with("kB").then_some(())?;
    kib.checked_mul(1024)
}

fn reaper(rest: &str) -> Option<OomLine<'_>> {
    if let Some(rest) = rest.strip_prefix("reaped process ") {
        let (pid, rest) = pid(rest)?;
        let rest = rest.strip_prefix(" (")?;
        let end = rest.rfind("), now anon-rss:").or_else(|| rest.rfind(')'))?;
        return Some(OomLine::Reaped { pid, comm: rest.get(..end)? });
    }
    let (pid, rest) = pid(rest.strip_prefix("unable to reap pid:")?)?;
    let comm = rest.strip_prefix(" (")?.trim_end().strip_suffix(')')?;
    Some(OomLine::Unreapable { pid, comm })
}

/// The content of an `oom-kill:` line.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Summary {
    pub constraint: Option<OomConstraint>,
    pub oom_memcg: Option<String>,
    pub memcg: Option<String>,
    pub comm: String,
    pub pid: u32,
}

/// Reads the whole line; `None` while its end is missing.
pub(super) fn summary(text: &str) -> Option<Summary> {
    let rest = text.strip_prefix("oom-kill:constraint=")?.trim_end();
    let (rest, uid) = rest.rsplit_once(",uid=")?;
    whole_pid(uid)?;
    let (rest, victim) = rest.rsplit_once(",pid=")?;
    let pid = whole_pid(victim)?;
    // Both the cgroup's path and the name may hold `,task=`; the name is short.
    let at = rest
        .match_indices(",task=")
        .map(|(at, _)| at)
        .find(|at| rest.get(at + 6..).is_some_and(fits_comm))
        .or_else(|| rest.rfind(",task="))?;
    let (head, comm) = (rest.get(..at)?, rest.get(at + 6..)?);
    let Cgroups { constraint, oom_memcg, memcg } = cgroups(head);
    Some(Summary { constraint, oom_memcg, memcg, comm: comm.to_owned(), pid })
}

/// The part of an `oom-kill:` line before the victim.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Cgroups {
    pub constraint: Option<OomConstraint>,
    pub oom_memcg: Option<String>,
    pub memcg: Option<String>,
}

fn cgroups(head: &str) -> Cgroups {
    // The name of a cpuset precedes them and cannot contain a slash.
    let (head, memcg) = match head.split_once(",task_memcg=/") {
        Some((head, memcg)) => (head, Some(format!("/{memcg}"))),
        None => (head, None),
    };
    let oom_memcg = head.split_once(",oom_memcg=/").map(|(_, path)| format!("/{path}"));
    Cgroups { constraint: constraint(head), oom_memcg, memcg }
}

/// The complete fields of a line without its end: the kernel cuts it at 1 KiB, and it holds two
/// paths.
pub(super) fn cut_summary(text: &str) -> Cgroups {
    let head = text.strip_prefix("oom-kill:constraint=").unwrap_or_default();
    if let Some(end) = head.rfind(",task=") {
        return cgroups(head.get(..end).unwrap_or_default());
    }
    if let Some(end) = head.rfind(",task_memcg=/") {
        return cgroups(head.get(..end).unwrap_or_default());
    }
    Cgroups { constraint: constraint(head), ..Cgroups::default() }
}

fn constraint(text: &str) -> Option<OomConstraint> {
    match text.split(',').next()? {
        "CONSTRAINT_NONE" => Some(OomConstraint::None),
        "CONSTRAINT_MEMCG" => Some(OomConstraint::Memcg),
        "CONSTRAINT_CPUSET" => Some(OomConstraint::Cpuset),
        "CONSTRAINT_MEMORY_POLICY" => Some(OomConstraint::MemoryPolicy),
        _ => None,
    }
}

/// Whether a record continues a broken `oom-kill:` line: the kernel prints that line in pieces, and
/// another CPU's message may fall between them.
pub(super) fn continues_summary(partial: &str, text: &str) -> bool {
    const KEYS: [&str; 9] = [
        ",cpuset=",
        ",mems_allowed=",
        ",oom_memcg=",
        ",global_oom",
        ",task_memcg=",
        ",task=",
        ",pid=",
        ",uid=",
        ",nodemask=",
    ];
    KEYS.iter().any(|key| text.starts_with(key))
        || (partial.ends_with('=') && text.starts_with('/'))
        || summary(&format!("{partial}{text}")).is_some()
}

/// The container id in the path of a cgroup, if any: Docker, containerd, CRI-O and Podman, under
/// systemd or plain cgroups.
pub(super) fn container(memcg: &str) -> Option<String> {
    let segments: Vec<&str> = memcg.split('/').collect();
    segments.iter().enumerate().rev().find_map(|(position, segment)| {
        let name = segment.strip_suffix(".scope").unwrap_or(segment);
        let scoped = ["docker-", "cri-containerd-", "crio-", "libpod-", "containerd-"]
            .iter()
            .find_map(|prefix| name.strip_prefix(prefix));
        let id = match scoped {
            Some(id) => id,
            None if position > 0 => name.rsplit_once(':').map_or(name, |(_, id)| id),
            None => return None,
        };
        let hexes = id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        (id.len() == 64 && hexes).then(|| id.to_owned())
    })
}

/// A line of a call trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame<'a> {
    pub symbol: &'a str,
    pub module: Option<&'a str>,
}

/// Reads ` ? symbol+0x12/0x34 [module]`, with or without an address before it.
pub(super) fn frame(text: &str) -> Option<Frame<'_>> {
    let mut text = text.trim();
    if let Some((address, rest)) = text.strip_prefix("[<").and_then(|rest| rest.split_once(">]")) {
        address.bytes().all(|byte| byte.is_ascii_hexdigit()).then_some(())?;
        text = rest.trim_start();
    }
    text = text.strip_prefix("? ").unwrap_or(text);
    let (symbol, rest) = text.split_once("+0x")?;
    let symbol_like = |byte: u8| byte.is_ascii_alphanumeric() || b"_.$".contains(&byte);
    (!symbol.is_empty() && symbol.bytes().all(symbol_like)).then_some(())?;
    let (offsets, module) = match rest.split_once(" [") {
        Some((offsets, module)) => {
            let module = module.split_once(']')?.0;
            (offsets, module.split(' ').next())
        }
        None => (rest.split(' ').next()?, None),
    };
    let (offset, size) = offsets.split_once("/0x")?;
    let hexes = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_hexdigit());
    (hexes(offset) && hexes(size)).then_some(Frame { symbol, module })
}

impl Frame<'_> {
    /// Whether the frame is of the NVIDIA driver.
    pub(super) fn is_driver(&self) -> bool {
        const SYMBOLS: [&str; 8] = [
            "sysmemAllocResources",
            "uvm_va_",
            "uvm_mem_",
            "uvm_ioctl",
            "uvm_api_",
            "nv_alloc_",
            "nvidia_",
            "_memdescAlloc",
        ];
        self.module.is_some_and(|module| {
            module == "nvgpu" || module == "nvmap" || module.starts_with("nvidia")
        }) || (self.module.is_none()
            && SYMBOLS.iter().any(|symbol| self.symbol.starts_with(symbol)))
    }

    /// Whether only an OOM trace has this frame.
    pub(super) fn is_oom(&self) -> bool {
        let symbol = self.symbol.split('.').next().unwrap_or(self.symbol);
        matches!(symbol, "oom_kill_process" | "out_of_memory" | "mem_cgroup_out_of_memory")
    }

    /// Whether a cgroup's limit was hit.
    pub(super) fn is_memcg_oom(&self) -> bool {
        self.symbol.starts_with("mem_cgroup_out_of_memory")
    }
}

/// `CPU: 3 UID: 0 PID: 77 Comm: name Not tainted 6.18.0 #1`: whose stack follows.
pub(super) fn stack_header(text: &str) -> Option<(u32, &str)> {
    let rest = text.strip_prefix("CPU: ")?;
    let (_, rest) = number(rest)?;
    let rest = match rest.strip_prefix(" UID: ") {
        Some(rest) => number(rest)?.1,
        None => rest,
    };
    let (pid, rest) = pid(rest.strip_prefix(" PID: ")?)?;
    let rest = rest.strip_prefix(" Comm: ")?;
    let end = rest.rfind(" Not tainted").or_else(|| rest.rfind(" Tainted: "));
    Some((pid, end.and_then(|end| rest.get(..end)).unwrap_or(rest)))
}
