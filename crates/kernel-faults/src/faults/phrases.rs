//! The kernel's own words in lines that gave no event: so that a log in an unknown form is not
//! taken for one without faults.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::LazyLock;

use super::nvidia::{self, Nvidia};
use super::oom::{self, OomLine};
use super::{KernelLine, killers, memory, of_one_line, tasks};

/// The size limit of a remembered text, in bytes.
const LONGEST: usize = 300;
/// The most texts that are remembered.
const MOST: usize = 4096;

/// A newline within a message.
const NEWLINE: &str = "\\x0a";

/// What a form may put behind a message.
const QUOTES: [char; 7] = ['"', '\'', '`', '}', ']', ',', ' '];

/// What follows the words of a phrase.
#[derive(Clone, Copy)]
enum Then {
    /// Anything, also nothing.
    Any,
    /// A number. Rules and commands that mention the words have none.
    Digit,
    /// A number after `0x`.
    Hex,
    /// A task, and the begin of the words for a hung one, which is all there is.
    CutTask,
}

impl Then {
    fn follows(self, rest: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Digit => rest.starts_with(|first: char| first.is_ascii_digit()),
            Self::Hex => rest.starts_with(|first: char| first.is_ascii_hexdigit()),
            Self::CutTask => tasks::is_cut(rest.trim_end_matches(QUOTES)),
        }
    }
}

/// Words, what follows them at once, and words somewhere after them.
type Phrase = (&'static str, Then, &'static str);

/// Words that only lines about faults have, wherever in the line they are. The driver has more
/// wordings than events.
const PHRASES: [Phrase; 87] = [
    ("Out of memory: Killed process ", Then::Digit, ""),
    ("Out of memory: Kill process ", Then::Digit, ""),
    ("out of memory: Killed process ", Then::Digit, ""),
    ("out of memory: Kill process ", Then::Digit, ""),
    ("Out of Memory: Killed process ", Then::Digit, ""),
    ("Out of memory (oom_kill_allocating_task): Kill", Then::Any, " process "),
    ("Tasks in /", Then::Any, oom::GROUP),
    ("lowmemorykiller: Killing '", Then::Any, ""),
    ("Killed process ", Then::Digit, " total-vm:"),
    ("Killed process ", Then::Digit, " vsz:"),
    (" invoked oom-killer: gfp_mask=0x", Then::Any, ""),
    ("oom-kill:constraint=CONSTRAINT_", Then::Any, ""),
    ("oom_reaper: reaped process ", Then::Digit, ""),
    ("oom_reaper: unable to reap pid:", Then::Digit, ""),
    ("ut of memory and no killable processes", Then::Any, ""),
    (" killed as a result of limit of /", Then::Any, ""),
    ("syncing: System is deadlocked on memory", Then::Any, ""),
    (" panic_on_oom is enabled", Then::Any, ""),
    ("NVRM: Xid (", Then::Any, ""),
    ("NVRM Xid (", Then::Any, ""),
    ("Out of memory [NV_ERR_NO_MEMORY]", Then::Any, ""),
    ("NVRM: ", Then::Any, "NV_ERR_NO_MEMORY"),
    ("[NV_ERR_RESET_REQUIRED]", Then::Any, ""),
    ("[NV_ERR_GPU_IS_LOST]", Then::Any, ""),
    ("uvm encountered global fatal error 0x", Then::Any, ""),
    ("GPU has fallen off the bus", Then::Any, ""),
    ("NVRM: GPU at ", Then::Any, " has fallen off the bus"),
    ("fallen off the bus and is not responding", Then::Any, ""),
    ("The GPU likely needs to be reset", Then::Any, ""),
    ("RmInitAdapter failed! (0x", Then::Any, ""),
    ("NVRM: rm_init_adapter(", Then::Digit, ") failed"),
    ("rpcSendMessage failed with status 0x", Then::Any, ""),
    ("NVRM: ", Then::Any, WATCHDOG),
    ("nvidia-uvm: ", Then::Any, nvidia::UVM_FATAL),
    ("nvidia-uvm: ", Then::Any, "ailed to alloc"),
    ("nvidia-modeset: ", Then::Any, "ailed to allocate memory"),
    ("ailed to allocate NVKMS memory", Then::Any, ""),
    ("NVRM: ", Then::Any, "ailed to allocate "),
    ("DMA alloc FAILED: [", Then::Any, ""),
    ("nvgpu: ", Then::Any, "ailed to alloc"),
    ("nvmap", Then::Any, "ailed to alloc"),
    ("nvmap", Then::Any, "alloc failed"),
    ("nvmap", Then::Any, "allocation failed"),
    ("failed to alloc mem of size (", Then::Digit, ")"),
    ("alloc failed, req-size: ", Then::Digit, ""),
    ("page allocation failure: order:", Then::Digit, ""),
    ("page allocation failure. order:", Then::Digit, ""),
    ("page allocation stalls for ", Then::Digit, ""),
    (SLUB, Then::Any, "gfp="),
    ("__vm_enough_memory: pid: ", Then::Digit, " enough memory for the allocation"),
    ("swiotlb buffer is full", Then::Any, ""),
    ("Out of SW-IOMMU space for ", Then::Digit, " bytes"),
    ("vmalloc error: size ", Then::Digit, ""),
    ("vmalloc: allocation failure, allocated ", Then::Digit, " bytes"),
    ("BUG: soft lockup - CPU#", Then::Digit, ""),
    ("detected hard LOCKUP on cpu ", Then::Digit, ""),
    ("detected hard LOCKUP on other CPUs ", Then::Digit, ""),
    ("self-detected hard LOCKUP @ ", Then::Any, ""),
    ("syncing: Hard LOCKUP", Then::Any, ""),
    ("BUG: workqueue lockup - pool ", Then::Any, ""),
    (" kthread starved for ", Then::Digit, " jiffies"),
    ("INFO: task ", Then::Any, " blocked for more than "),
    ("INFO: task ", Then::Any, " blocked in I/O wait for more than "),
    ("INFO: task ", Then::CutTask, ""),
    ("syncing: hung_task: blocked tasks", Then::Any, ""),
    ("syncing: softlockup: hung tasks", Then::Any, ""),
    ("syncing: RCU Stall", Then::Any, ""),
    ("Memory failure: 0x", Then::Hex, ""),
    (UNCORRECTED, Then::Hex, ""),
    // The hardware reports damage that the kernel cannot outlive.
    ("syncing: ", Then::Any, "SError"),
    ("syncing: ", Then::Any, "achine check"),
    ("syncing: Fatal hardware error", Then::Any, ""),
    ("SError Interrupt on CPU", Then::Digit, ", code 0x"),
    ("Machine Check Exception: ", Then::Hex, " Bank "),
    ("EDAC MC", Then::Digit, " UE "),
    ("MCE 0x", Then::Hex, " due to hardware memory corruption"),
    ("MCE 0x", Then::Hex, ": forcibly killing "),
    ("MCE 0x", Then::Hex, " page recovery: "),
    ("Killed /", Then::Any, " due to memory "),
    ("Marked /", Then::Any, " for killing due to "),
    ("sending SIGTERM to process ", Then::Digit, " \""),
    ("sending SIGKILL to process ", Then::Digit, " \""),
    ("earlyoom", Then::Any, "illing process "),
    ("Sending SIG", Then::Any, " to the victim"),
    (" ruleset:[", Then::Any, " killer:k"),
    ("Sending SIGKILL to cgroup {", Then::Any, "\"cgroup\": \"/"),
    ("(tasks / actors) killed due to memory pressure (OOM)", Then::Any, ""),
];

/// Words of lines that mostly accompany an event.
const WATCHDOG: &str = "RC watchdog: GPU is probably locked!";
const SLUB: &str = "SLUB: Unable to allocate memory on ";
const UNCORRECTED: &str = "Uncorrected hardware memory error in user-access at ";

/// All phrases with their numbers, by their first byte.
type Table = Vec<Vec<(usize, Phrase)>>;

static BY_FIRST_BYTE: LazyLock<Table> = LazyLock::new(|| table(all_phrases()));

/// The same in lower case.
static LOWER: LazyLock<Table> = LazyLock::new(|| {
    let lower = |text: &'static str| -> &'static str { text.to_ascii_lowercase().leak() };
    table(all_phrases().map(|(words, then, with)| (lower(words), then, lower(with))))
});

fn all_phrases() -> impl Iterator<Item = Phrase> {
    let signs = nvidia::RESETS.into_iter().chain(nvidia::TIMEOUTS).chain([nvidia::BANNER]);
    let signs = signs.chain(nvidia::INIT_FAILED);
    let of_driver = signs.map(|sign| ("NVRM", Then::Any, sign));
    let of_rcu = tasks::STALLS.into_iter().map(|stall| (stall, Then::Any, ""));
    PHRASES.into_iter().chain(of_driver).chain(of_rcu)
}

fn table(phrases: impl Iterator<Item = Phrase>) -> Table {
    let mut table = vec![Vec::new(); 256];
    for (number, phrase) in phrases.enumerate() {
        let first = phrase.0.as_bytes().first().copied().unwrap_or_default();
        table[usize::from(first)].push((number, phrase));
    }
    table
}

/// The text from the kernel's own words on. A text all in capitals, or without any, may have been
/// changed by a tool.
fn phrase(text: &str) -> Option<&str> {
    let has = |case: fn(&u8) -> bool| text.bytes().any(|byte| case(&byte));
    let is_changed = || !has(u8::is_ascii_lowercase) || !has(u8::is_ascii_uppercase);
    let at = place(&BY_FIRST_BYTE, text)
        .or_else(|| is_changed().then(|| place(&LOWER, &text.to_ascii_lowercase()))?)?;
    text.get(at..)
}

/// Where the words of a phrase begin.
fn place(table: &Table, text: &str) -> Option<usize> {
    // Phrases whose other words have no place later in the text, so that time is linear.
    let mut over = 0_u128;
    text.char_indices().map(|(at, _)| at).find(|at| {
        let Some(from) = text.get(*at..) else { return false };
        let first = from.as_bytes().first().copied().unwrap_or_default();
        let candidates = table.get(usize::from(first)).map_or(&[][..], Vec::as_slice);
        candidates.iter().any(|(number, (words, then, with))| {
            let Some(rest) = from.strip_prefix(words) else { return false };
            if over >> number & 1 == 1 || !then.follows(rest) {
                return false;
            }
            let is_whole = rest.contains(with);
            over |= u128::from(!is_whole) << number;
            is_whole
        })
    })
}

/// Words of phrases for a kill have this.
const OF_KILL: &str = ": Kill";

/// The fewest and the most bytes of the begin of such words.
const LEAST_OF_KILL: usize = "Out of memory: K".len();
const MOST_OF_KILL: usize = 64;

/// The text from the kernel's words for a kill on, where it ends within them: the log is cut. The
/// kernel writes a kill in one piece, and messages of the driver in several.
fn cut(text: &str) -> Option<&str> {
    let last = text.len().checked_sub(LEAST_OF_KILL)?;
    (text.len().saturating_sub(MOST_OF_KILL)..=last).find_map(|at| {
        let end = text.get(at..)?;
        let begins = |words: &str| words.contains(OF_KILL) && words.starts_with(end);
        PHRASES.iter().any(|(words, ..)| begins(words)).then_some(end)
    })
}

/// Kinds of events.
type Kinds = &'static [&'static str];

const KILLS: Kinds = &["oom_kill", "oom_no_victim", "oom_panic"];
const PANICS: Kinds = &["oom_no_victim", "oom_panic", "hung_task", "soft_lockup", "rcu_stall"];
const LOSSES: Kinds = &["gpu_lost", "gpu_init_failed", "xid"];

/// Words of lines that only accompany events of these kinds.
const COMPANIONS: [(&str, Kinds); 13] = [
    ("---[ end Kernel panic", PANICS),
    ("[NV_ERR_GPU_IS_LOST]", LOSSES),
    ("rpcSendMessage failed with status 0x", LOSSES),
    ("NVRM: rm_init_adapter(", LOSSES),
    (WATCHDOG, LOSSES),
    (SLUB, &["page_alloc_failure", "oom_kill"]),
    (UNCORRECTED, &["memory_failure"]),
    ("EDAC MC", &["memory_failure"]),
    ("nvgpu: ", &["nv_alloc_failed", "cma_alloc_failed", "page_alloc_failure"]),
    (" kthread starved for ", &["rcu_stall"]),
    ("syncing: RCU Stall", &["rcu_stall"]),
    ("syncing: softlockup: hung tasks", &["soft_lockup"]),
    ("syncing: hung_task: blocked tasks", &["hung_task"]),
];

/// What the assembler makes of a line of the kernel.
#[derive(Clone, Copy)]
enum Meaning {
    /// It is known, and gives an event or is part of one.
    Known,
    /// It is known, and says nothing new beside an event of these kinds.
    PartOf(Kinds),
    /// It is not known.
    Unknown,
}

fn meaning(text: &str) -> Meaning {
    match oom::parse(text) {
        Some(
            OomLine::Invoked { .. }
            | OomLine::Limit { .. }
            | OomLine::Group { .. }
            | OomLine::Intention { .. }
            | OomLine::Summary,
        ) => return Meaning::PartOf(KILLS),
        Some(_) => return Meaning::Known,
        None => {}
    }
    // It may be about the page of another line: `unhandlable page`, `already hardware poisoned`.
    if memory::is_about_damage(text) && memory::damage(text).is_none() {
        return Meaning::PartOf(&["memory_failure"]);
    }
    let companion = COMPANIONS.iter().find(|(words, _)| text.contains(words));
    let driver = nvidia::parse(text);
    // Its end may follow, or its form is not known.
    if driver == Some(Nvidia::Unfinished(None)) && text.contains("Xid (") {
        return Meaning::PartOf(LOSSES);
    }
    // A condition in the driver's source code, as the log has it, names the code of an error.
    let is_condition = ["Assertion failed: ", "Check failed: "].iter().any(|it| text.contains(it))
        && text.contains("NV_ERR_NO_MEMORY")
        && !text.contains("[NV_ERR_");
    let is_known = driver.is_some_and(|message| message != Nvidia::Other || is_condition)
        || memory::allocation_failure(text).is_some()
        || memory::is_of_vmalloc(text)
        || memory::damage(text).is_some()
        || tasks::hung(text).is_some()
        || of_one_line(text).is_some();
    match companion {
        _ if is_known => Meaning::Known,
        Some((_, kinds)) => Meaning::PartOf(kinds),
        None => Meaning::Unknown,
    }
}

/// Whether a text by itself is a line of the kernel about a fault.
pub(crate) fn is_fault(text: &str) -> bool {
    phrase(text).is_some() && !matches!(meaning(text), Meaning::Unknown)
}

/// Lines with the kernel's own words that gave no event.
#[derive(Debug, Default)]
pub struct UnreadFaults {
    /// Texts that the assembler knows.
    known: BTreeSet<u64>,
    /// The others, with their hashes.
    unread: Vec<(u64, UnreadFault)>,
    /// Lines that say nothing new beside an event of these kinds.
    parts: Vec<(Kinds, UnreadFault)>,
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
    /// A grammar reads its words, so that only the form of the line is unknown.
    pub has_known_words: bool,
    /// From the kernel's words on.
    pub text: String,
}

impl UnreadFaults {
    /// Takes a line, and its number. `whole`: the line as the log has it, if its form took words of
    /// it for a host or a program.
    pub fn take(&mut self, number: u64, line: &KernelLine<'_>, whole: Option<&str>) {
        if !line.from_kernel {
            let killer = line.identifier.and_then(|name| killers::parse(name, line.text));
            let meaning = if killer.is_some() { Meaning::Known } else { Meaning::Unknown };
            let mut lines = line.text.split(NEWLINE);
            let first = lines.next().and_then(phrase);
            let of_whole = whole.and_then(|whole| phrase(whole.split(NEWLINE).next()?));
            self.note(number, line, of_whole.or(first), meaning);
            for rest in lines {
                self.note(number, line, phrase(rest), Meaning::Unknown);
            }
            return;
        }
        let Some(words) = phrase(line.text) else {
            return self.note(number, line, cut(line.text), Meaning::Unknown);
        };
        let meaning = meaning(line.text);
        let mut lines = line.text.split(NEWLINE);
        let first = lines.next().and_then(phrase);
        // A message of the kernel has one line, but for names of processes and one of the driver.
        // Others were indented.
        let is_one = first.is_none() && !matches!(meaning, Meaning::Unknown);
        if is_one || line.text.starts_with("NVRM: The NVIDIA GPU ") {
            self.note(number, line, Some(words), meaning);
            return;
        }
        self.note(number, line, first, meaning);
        for rest in lines {
            self.note(number, line, phrase(rest), Meaning::Unknown);
        }
    }

    fn note(&mut self, number: u64, line: &KernelLine<'_>, words: Option<&str>, meaning: Meaning) {
        let Some(words) = words else { return };
        let has_known_words =
            matches!(meaning, Meaning::Unknown) && has_known_words(line.text, words);
        let words: String = words.chars().take(LONGEST).collect();
        let hash = hash(&words);
        let fault = UnreadFault {
            line: number,
            program: line.identifier.map(str::to_owned),
            from_kernel: line.from_kernel,
            begins: matches!(meaning, Meaning::PartOf(kinds) if kinds == KILLS),
            has_known_words,
            text: words.trim().to_owned(),
        };
        if !matches!(meaning, Meaning::Unknown) && self.known.len() < MOST {
            self.known.insert(hash);
        }
        match meaning {
            Meaning::PartOf(kinds) if self.parts.len() < MOST => self.parts.push((kinds, fault)),
            Meaning::Known | Meaning::PartOf(_) => {}
            Meaning::Unknown if self.unread.len() < MOST => self.unread.push((hash, fault)),
            Meaning::Unknown => self.more += 1,
        }
    }

    /// The number of lines that gave no event, and the first of them. A line that only repeats
    /// what a line of the kernel says is none. `has`: whether the log has events of a kind.
    pub fn finish(self, has: impl Fn(&str) -> bool) -> Option<(u64, UnreadFault)> {
        let known = self.known;
        let unread = self.unread.into_iter().filter(|(hash, _)| !known.contains(hash));
        let parts = self.parts.into_iter().filter(|(kinds, _)| !kinds.iter().any(|kind| has(kind)));
        let parts = parts.map(|(_, fault)| fault);
        let unread: Vec<UnreadFault> = unread.map(|(_, fault)| fault).chain(parts).collect();
        let first = unread.iter().min_by_key(|fault| fault.line)?.clone();
        Some((unread.len() as u64 + self.more, first))
    }
}

/// Whether a grammar reads words within a line.
fn has_known_words(line: &str, words: &str) -> bool {
    // A message of the driver has its name before the words of a phrase.
    let first = line.split(NEWLINE).next().unwrap_or(line);
    let of_driver = first.find("NVRM").and_then(|at| first.get(at..));
    let texts = [Some(words), of_driver].into_iter().flatten();
    let mut texts = texts.flat_map(|text| [text, text.trim_end_matches(QUOTES)]);
    texts.any(|text| !matches!(meaning(text), Meaning::Unknown))
}

fn hash(words: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    let end = words.trim_end_matches(QUOTES);
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
            faults.take(number, &line(*from_kernel, text), None);
        }
        faults.finish(|_| false).map(|(count, first)| (count, first.line))
    }

    #[test]
    fn lines_that_the_assembler_knows_are_read() {
        for text in [
            KILL,
            "NVRM: Xid (PCI:000f:01:00): 31, pid=5, name=x",
            "INFO: task x:5 blocked for more than 120 seconds.",
            "page allocation failure: order:4, mode:0x14040c0(GFP_KERNEL)",
            "Memory failure: 0x8a0000: recovery action for dirty LRU page: Ignored",
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
    fn known_words_in_an_unknown_form_are_distinguished_from_unknown_words() {
        let xid = "NVRM: Xid (PCI:000f:01:00): 31, pid=5, name=x";
        let check = "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] \
                     (0x00000051) returned from f(x) @ mem_desc.c:1359";
        for (text, has_known_words) in [
            (format!("\"2026-11-25T09:00:00Z\",\"h\",\"kernel\",\"{KILL}\""), true),
            (format!("log_monitor.go:159] New status generated: {xid}"), true),
            (format!("E1125 09:00:00.123456 1 watcher.go:1] {check}"), true),
            ("NVRM: Xid (what): 31".to_owned(), false),
            ("NVRM: GPU 0000:01:00.0: Failed to allocate memory".to_owned(), false),
        ] {
            let mut faults = UnreadFaults::default();
            faults.take(1, &line(true, &text), None);
            let (_, first) = faults.finish(|_| false).unwrap();
            assert_eq!(first.has_known_words, has_known_words, "{text}");
        }
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
        faults.take(1, &line(true, begins), None);
        assert_eq!(faults.finish(|kind| kind == "oom_kill"), None);
    }
}
