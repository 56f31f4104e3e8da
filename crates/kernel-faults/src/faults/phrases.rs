//! The kernel's own words in lines that gave no event: so that a log in an unknown form is not
//! taken for one without faults.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::nvidia::{self, Nvidia};
use super::oom::{self, OomLine};
use super::{KernelLine, memory, of_one_line, tasks};

/// The size limit of a remembered text, in bytes.
const LONGEST: usize = 300;
/// The most texts that are remembered.
const MOST: usize = 4096;

/// What follows the words of a phrase.
#[derive(Clone, Copy)]
enum Then {
    /// Anything.
    Any,
    /// A number. Rules and commands that mention the words have none.
    Digit,
}

/// Words that stand only in lines about faults, wherever in the line they are.
const PHRASES: [(&str, Then); 26] = [
    ("Out of memory: Killed process ", Then::Digit),
    ("Out of memory: Kill process ", Then::Digit),
    ("out of memory: Killed process ", Then::Digit),
    ("out of memory: Kill process ", Then::Digit),
    (" invoked oom-killer: gfp_mask=0x", Then::Any),
    ("oom-kill:constraint=CONSTRAINT_", Then::Any),
    ("oom_reaper: reaped process ", Then::Digit),
    ("oom_reaper: unable to reap pid:", Then::Digit),
    ("ut of memory and no killable processes", Then::Any),
    (" killed as a result of limit of /", Then::Any),
    ("syncing: System is deadlocked on memory", Then::Any),
    (" panic_on_oom is enabled", Then::Any),
    ("NVRM: Xid (", Then::Any),
    ("Out of memory [NV_ERR_NO_MEMORY]", Then::Any),
    ("uvm encountered global fatal error 0x", Then::Any),
    ("GPU has fallen off the bus", Then::Any),
    ("fallen off the bus and is not responding", Then::Any),
    ("RmInitAdapter failed! (0x", Then::Any),
    ("DMA alloc FAILED: [", Then::Any),
    ("alloc failed, req-size: ", Then::Digit),
    ("page allocation failure: order:", Then::Digit),
    ("vmalloc error: size ", Then::Digit),
    ("BUG: soft lockup - CPU#", Then::Digit),
    (" self-detected stall on CPU", Then::Any),
    ("Memory failure: 0x", Then::Digit),
    ("(tasks / actors) killed due to memory pressure (OOM)", Then::Any),
];

/// Words of such lines with others after them. The driver has more wordings than events.
const PAIRS: [(&str, &str); 2] =
    [("INFO: task ", " blocked for more than "), ("NVRM: ", "ailed to allocate ")];

/// The text from the kernel's own words on.
fn phrase(text: &str) -> Option<&str> {
    let found = |(words, then): &(&str, Then)| {
        let at = text.find(words)?;
        let rest = text.get(at + words.len()..)?;
        let is_it = match then {
            Then::Any => true,
            Then::Digit => rest.starts_with(|first: char| first.is_ascii_digit()),
        };
        is_it.then_some(at)
    };
    let pair = |(words, then): &(&str, &str)| {
        let at = text.find(words)?;
        text.get(at..)?.contains(then).then_some(at)
    };
    let at = PHRASES.iter().filter_map(found).min();
    text.get(at.or_else(|| PAIRS.iter().filter_map(pair).min())?..)
}

/// What the assembler makes of a line of the kernel.
enum Meaning {
    /// It is known, and gives an event or is part of one.
    Known,
    /// It is known, and begins a kill that has not happened yet.
    Begins,
    /// It is not known.
    Unknown,
}

fn meaning(text: &str) -> Meaning {
    match oom::parse(text) {
        Some(OomLine::Invoked { .. } | OomLine::Limit { .. } | OomLine::Summary) => {
            return Meaning::Begins;
        }
        Some(_) => return Meaning::Known,
        None => {}
    }
    let is_known = match nvidia::parse(text) {
        Some(Nvidia::Event(_) | Nvidia::Unfinished(_)) => true,
        Some(Nvidia::Other) => !text.contains("Xid (") && !text.contains("ailed to allocate "),
        None => false,
    };
    let is_known = is_known
        || memory::allocation_failure(text).is_some()
        || text.starts_with("Memory failure: 0x")
        || text.contains(": vmalloc error: size ")
        || tasks::hung(text).is_some()
        || of_one_line(text).is_some();
    if is_known { Meaning::Known } else { Meaning::Unknown }
}

/// Lines with the kernel's own words that gave no event.
#[derive(Debug, Default)]
pub struct UnreadFaults {
    /// Texts that the assembler knows.
    known: BTreeSet<u64>,
    /// The others, with their hashes.
    unread: Vec<(u64, UnreadFault)>,
    begun: Vec<UnreadFault>,
    /// Lines beyond the limit.
    more: u64,
}

/// Such a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadFault {
    /// Its number in the log.
    pub line: u64,
    /// Its program, if the form names one.
    pub program: Option<String>,
    /// The form says that the kernel wrote it.
    pub from_kernel: bool,
    /// It begins a kill whose end is missing.
    pub begins: bool,
    /// From the kernel's words on.
    pub text: String,
}

impl UnreadFaults {
    /// Takes a line, and its number.
    pub fn take(&mut self, number: u64, line: &KernelLine<'_>) {
        let Some(words) = phrase(line.text) else { return };
        let words: String = words.chars().take(LONGEST).collect();
        let meaning = if line.from_kernel { meaning(line.text) } else { Meaning::Unknown };
        let hash = hash(&words);
        let fault = UnreadFault {
            line: number,
            program: line.identifier.map(str::to_owned),
            from_kernel: line.from_kernel,
            begins: matches!(meaning, Meaning::Begins),
            text: words.trim().to_owned(),
        };
        match meaning {
            Meaning::Known | Meaning::Begins if self.known.len() < MOST => {
                self.known.insert(hash);
            }
            _ => {}
        }
        match meaning {
            Meaning::Known => {}
            Meaning::Begins if self.begun.len() < MOST => self.begun.push(fault),
            Meaning::Unknown if self.unread.len() < MOST => self.unread.push((hash, fault)),
            Meaning::Begins | Meaning::Unknown => self.more += 1,
        }
    }

    /// The number of lines that gave no event, and the first of them. A line that only repeats
    /// what a line of the kernel says is none. `has_kill`: the log has a kill, or one in vain.
    pub fn finish(self, has_kill: bool) -> Option<(u64, UnreadFault)> {
        let known = self.known;
        let unread = self.unread.into_iter().filter(|(hash, _)| !known.contains(hash));
        let mut unread: Vec<UnreadFault> = unread.map(|(_, fault)| fault).collect();
        if !has_kill {
            unread.extend(self.begun);
        }
        let first = unread.iter().min_by_key(|fault| fault.line)?.clone();
        Some((unread.len() as u64 + self.more, first))
    }
}

fn hash(words: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    let end = words.trim_end_matches(['"', '\'', '`', '}', ']', ',', ' ']);
    end.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KILL: &str = "Out of memory: Killed process 4 (x) total-vm:1kB, anon-rss:2kB, \
                        file-rss:0kB";

    fn line(from_kernel: bool, text: &str) -> KernelLine<'_> {
        KernelLine { from_kernel, text, ..KernelLine::default() }
    }

    fn unread(lines: &[(bool, &str)]) -> Option<(u64, u64)> {
        let mut faults = UnreadFaults::default();
        for (number, (from_kernel, text)) in (1..).zip(lines) {
            faults.take(number, &line(*from_kernel, text));
        }
        faults.finish(false).map(|(count, first)| (count, first.line))
    }

    #[test]
    fn lines_that_the_assembler_knows_are_read() {
        for text in [
            KILL,
            "NVRM: Xid (PCI:000f:01:00): 31, pid=5, name=x",
            "INFO: task x:5 blocked for more than 120 seconds.",
            "page allocation failure: order:4, mode:0x14040c0(GFP_KERNEL)",
            "Memory failure: 0x8a0000: unhandlable page.",
            "NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.",
            "x: vmalloc error: size 4096, vm_struct allocation failed, mode:0xcc0",
            "NVRM: nvAssertOkFailedNoLog: Assertion failed: Out of memory [NV_ERR_NO_MEMORY] \
             (0x00000051) returned from pReuseMappingDb->pMapCb(x) @ mapping_reuse.c:273",
        ] {
            assert_eq!(unread(&[(true, text)]), None, "{text}");
        }
    }

    #[test]
    fn words_elsewhere_in_a_line_or_of_another_program_are_not_read() {
        let quoted = format!("node17 says {KILL}");
        assert_eq!(unread(&[(true, &quoted)]), Some((1, 1)));
        assert_eq!(unread(&[(true, "x"), (false, KILL), (false, KILL)]), Some((2, 2)));
        assert_eq!(unread(&[(true, "NVRM: Xid (what): 31")]), Some((1, 1)));
    }

    #[test]
    fn a_copy_of_what_was_read_is_none() {
        let quoted = format!("log_monitor.go:159] New status generated: {KILL}\"}}");
        assert_eq!(unread(&[(false, &quoted), (true, KILL)]), None);
    }

    #[test]
    fn words_that_only_mention_a_fault_are_none() {
        for text in [
            "COMMAND=/usr/bin/grep 'Out of memory: Killed process' /var/log/kern.log",
            r#"{"pattern": "Killed process \\d+ (.+) total-vm:\\d+kB"}"#,
            "A process of this unit has been killed by the OOM killer.",
        ] {
            assert_eq!(unread(&[(false, text)]), None, "{text}");
        }
    }

    #[test]
    fn a_kill_that_only_begins_is_not_read() {
        let begins = "python3 invoked oom-killer: gfp_mask=0x0(), order=0, oom_score_adj=0";
        assert_eq!(unread(&[(true, begins)]), Some((1, 1)));
        let mut faults = UnreadFaults::default();
        faults.take(1, &line(true, begins));
        assert_eq!(faults.finish(true), None);
    }
}
