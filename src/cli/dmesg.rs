//! `umawarden dmesg`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use jiff::Timestamp;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::Exit;
use crate::model::{Event, KernelEvent, Recovery};
use crate::parse::dmesg::{LogText, Message};
use crate::parse::kernel::EventAssembler;

const STANDARD_INPUT: &str = "standard input";
/// Longer lines are cut here while reading.
const LONGEST_LINE: usize = 64 * 1024;
/// The largest record that `/dev/kmsg` gives.
const RECORD_BYTES: usize = 8 * 1024;
/// So many records are remembered by number, to know those that a log holds twice.
const MOST_REMEMBERED: usize = 64 * 1024;

/// Arguments of `umawarden dmesg`.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct DmesgArguments {
    /// The log; `-` is standard input. Without it: standard input if something is piped in, else
    /// this machine's own log, /dev/kmsg.
    pub file: Option<PathBuf>,
    /// One JSON object a line, in the log's order, instead of a table.
    #[arg(long)]
    pub json: bool,
    /// List also the records that user space wrote, marked as such.
    #[arg(long)]
    pub all: bool,
}

const AFTER_HELP: &str = "\
Reads what dmesg prints in any of its time formats (-T, -x, -r, -d, -e, --json, …), the journal's
short formats and JSON, syslog files, raw /dev/kmsg, bare lines, and any of these indented, quoted
or with a container log's stamps. Only what the kernel wrote counts, and the kills that systemd-oomd
and earlyoom log themselves.

Exit codes, as a linter's: 0 the log was read and tells of nothing, 1 it tells of at least one event
(recovered ones too; not the records that --all adds), 2 it cannot be read. So 1 is an answer, not a
failure. Under `set -e`:
  umawarden dmesg --json incident.log > events.json || [ $? -eq 1 ]

Examples:
  umawarden dmesg
  journalctl -k -b -1 | umawarden dmesg -
  umawarden dmesg --json incident.log | jq -r .kind | sort | uniq -c";

/// Runs the command.
///
/// # Errors
/// If the log cannot be opened or read, or the answer cannot be written.
pub fn execute(arguments: &DmesgArguments) -> anyhow::Result<Exit> {
    let stdout = io::stdout().lock();
    let mut report = Report::new(io::BufWriter::new(stdout), arguments.json, arguments.all);
    let result = read(arguments.file.as_deref(), &mut report).and_then(|()| report.finish());
    match result {
        Ok(()) => Ok(if report.found() { Exit::Findings } else { Exit::Fine }),
        Err(error) if is_broken_pipe(&error) => {
            Ok(if report.found() { Exit::Findings } else { Exit::Fine })
        }
        Err(error) => Err(error),
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn read<W: Write>(file: Option<&Path>, report: &mut Report<W>) -> anyhow::Result<()> {
    match file {
        Some(path) if path.as_os_str() == "-" => {
            read_lines(BufReader::new(io::stdin()), STANDARD_INPUT, report)
        }
        Some(path) if path == Path::new("/dev/kmsg") => read_kmsg(report),
        Some(path) => {
            let file =
                File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
            read_lines(BufReader::new(file), &path.display().to_string(), report)
        }
        None if !is_piped() => read_kmsg(report),
        None => read_lines(BufReader::new(io::stdin()), STANDARD_INPUT, report),
    }
}

/// Whether standard input is a pipe or a file, rather than a terminal, /dev/null, or the socket
/// that sshd gives to `ssh node umawarden dmesg`, which would wait for the user's keyboard.
fn is_piped() -> bool {
    rustix::fs::fstat(io::stdin()).is_ok_and(|stat| {
        let kind = rustix::fs::FileType::from_raw_mode(stat.st_mode);
        kind.is_fifo() || kind.is_file()
    })
}

/// Reads lines of any length in bounded memory.
fn read_lines<W: Write>(
    mut input: impl BufRead,
    name: &str,
    report: &mut Report<W>,
) -> anyhow::Result<()> {
    let cannot_read = || format!("cannot read {name}");
    if let Some((what, reader)) = no_text(input.fill_buf().with_context(cannot_read)?) {
        if name == STANDARD_INPUT {
            anyhow::bail!("{name} is {what}: pipe it through `{reader}` first");
        }
        anyhow::bail!("{name} is {what}: give it as `{reader} {name} | umawarden dmesg -`");
    }
    if let Some(form) = journal_fields(input.fill_buf().with_context(cannot_read)?) {
        anyhow::bail!("{name} is in the journal's {form} form: write it with `-o json` instead");
    }
    let mut log = LogText::new();
    each_line(input, name, |line| match log.feed(line) {
        Some(message) => report.message(&message),
        None => Ok(()),
    })?;
    if let Some(message) = log.finish() {
        report.message(&message)?;
    }
    Ok(())
}

/// Gives each line without its end; long ones are cut.
pub(super) fn each_line(
    mut input: impl BufRead,
    name: &str,
    mut take: impl FnMut(&[u8]) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let cannot_read = || format!("cannot read {name}");
    let mut line = Vec::new();
    loop {
        line.clear();
        let room = u64::try_from(LONGEST_LINE).unwrap_or(u64::MAX);
        let read = input.by_ref().take(room).read_until(b'\n', &mut line);
        if read.with_context(cannot_read)? == 0 {
            return Ok(());
        }
        if line.last() == Some(&b'\n') {
            line.pop();
        } else if line.len() >= LONGEST_LINE {
            skip_line(&mut input).with_context(cannot_read)?;
        }
        take(&line)?;
    }
}

/// What a file that begins like this is instead of a log's text, and what makes text of it. Read as
/// text it would tell nothing, which would look like a log without findings.
fn no_text(head: &[u8]) -> Option<(&'static str, &'static str)> {
    const FORMS: [(&[u8], &str, &str); 6] = [
        (b"\x1f\x8b", "compressed by gzip", "zcat"),
        (b"\xfd7zXZ\0", "compressed by xz", "xzcat"),
        (b"\x28\xb5\x2f\xfd", "compressed by zstd", "zstdcat"),
        (b"\x04\x22\x4d\x18", "compressed by lz4", "lz4cat"),
        (b"LPKSHHRH", "a binary journal", "journalctl --file"),
        (b"BZh", "compressed by bzip2", "bzcat"),
    ];
    // PowerShell writes this when it redirects; mere bytes that are no UTF-8 are a damaged log.
    if matches!(head, [0xff, 0xfe, _, 0, ..] | [0xfe, 0xff, 0, _, ..]) {
        return Some(("UTF-16", "iconv -f UTF-16 -t UTF-8"));
    }
    let (magic, what, reader) = FORMS.iter().find(|(magic, _, _)| head.starts_with(magic))?;
    let chance = magic == b"BZh" && head.get(4..10) != Some(b"1AY&SY");
    (!chance).then_some((what, reader))
}

/// A form of the journal with a field a line. A message may hold what looks like further fields, so
/// it cannot be read line by line.
fn journal_fields(head: &[u8]) -> Option<&'static str> {
    if head.starts_with(b"__CURSOR=") || head.starts_with(b"__REALTIME_TIMESTAMP=") {
        return Some("export");
    }
    let mut lines = head.split(|byte| *byte == b'\n').filter(|line| !line.starts_with(b"-- "));
    let first = lines.next()?;
    first.windows(4).any(|four| four == b" [s=").then_some("verbose")
}

fn skip_line(input: &mut impl BufRead) -> io::Result<()> {
    loop {
        let buffer = input.fill_buf()?;
        if buffer.is_empty() {
            return Ok(());
        }
        let end = buffer.iter().position(|byte| *byte == b'\n');
        let used = end.map_or(buffer.len(), |end| end + 1);
        input.consume(used);
        if end.is_some() {
            return Ok(());
        }
    }
}

/// Reads what `/dev/kmsg` holds now.
fn read_kmsg<W: Write>(report: &mut Report<W>) -> anyhow::Result<()> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let kmsg: OwnedFd = rustix::fs::open("/dev/kmsg", flags, Mode::empty())
        .context("cannot open /dev/kmsg (root or CAP_SYSLOG is needed; or pipe dmesg in)")?;
    let zero = boot_zero();
    let mut buffer = vec![0; RECORD_BYTES];
    loop {
        let read = match rustix::io::read(kmsg.as_fd(), &mut buffer) {
            Ok(0) | Err(Errno::AGAIN) => break,
            Ok(read) => read,
            // The ring went round, or the record is larger than any that the kernel documents.
            Err(Errno::PIPE | Errno::INVAL | Errno::INTR) => continue,
            Err(error) => return Err(error).context("cannot read /dev/kmsg"),
        };
        let mut log = LogText::new();
        let record = buffer.get(..read).unwrap_or_default();
        let first = record.split(|byte| *byte == b'\n').next().unwrap_or_default();
        log.feed(first);
        if let Some(mut message) = log.finish() {
            let since = message.position.and_then(|at| jiff::SignedDuration::try_from(at).ok());
            message.utc = since.and_then(|since| zero.checked_add(since).ok());
            report.message(&message)?;
        }
    }
    Ok(())
}

/// The wall time at which the kernel's own clock stood at zero, as far as the two agree now.
fn boot_zero() -> Timestamp {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let since = jiff::SignedDuration::new(now.tv_sec, 0);
    Timestamp::now().checked_sub(since).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// A row that waits until nothing earlier can come any more.
struct Waiting {
    /// The event's kind; `None` for a record of user space.
    kind: Option<&'static str>,
    json: String,
    time: String,
    what: String,
}

/// Writes events in the log's order, whatever the order in which they are decided.
struct Report<W: Write> {
    out: W,
    json: bool,
    all: bool,
    assembler: EventAssembler,
    events: Vec<Event>,
    messages: u64,
    /// Time and identity of the records that were read.
    seen: BTreeSet<(Option<Duration>, u64)>,
    /// By number of the message that dates the event.
    waiting: BTreeMap<u64, Waiting>,
    /// Stamps of the messages that events may still be dated by.
    stamps: BTreeMap<u64, Message>,
    counts: BTreeMap<&'static str, u64>,
    header_written: bool,
}

impl<W: Write> Report<W> {
    fn new(out: W, json: bool, all: bool) -> Self {
        Self {
            out,
            json,
            all,
            assembler: EventAssembler::new(),
            events: Vec::new(),
            messages: 0,
            seen: BTreeSet::new(),
            waiting: BTreeMap::new(),
            stamps: BTreeMap::new(),
            counts: BTreeMap::new(),
            header_written: false,
        }
    }

    fn found(&self) -> bool {
        !self.counts.is_empty()
    }

    fn message(&mut self, message: &Message) -> anyhow::Result<()> {
        self.messages += 1;
        if let Some(identity) = identity(message) {
            if !self.seen.insert((message.position, identity)) {
                return Ok(());
            }
            if self.seen.len() > MOST_REMEMBERED {
                self.seen.pop_first();
            }
        }
        let mut line = message.kernel_line();
        line.seq = Some(self.messages);
        let stamp = Message {
            line: message.line,
            seq: message.seq,
            stamp: message.stamp.clone(),
            ..Message::default()
        };
        self.stamps.insert(self.messages, stamp);
        self.assembler.feed(&line, &mut self.events);
        if !message.from_kernel && self.all {
            self.waiting.insert(self.messages, user_record(message));
        }
        self.collect()?;
        self.release()?;
        Ok(())
    }

    /// Takes over what the assembler has decided.
    fn collect(&mut self) -> anyhow::Result<()> {
        for mut event in self.events.drain(..) {
            let number = event.seq.unwrap_or(self.messages);
            let message = self.stamps.get(&number);
            event.seq = message.and_then(|message| message.seq);
            let stamp = message.map(|message| message.stamp.clone()).unwrap_or_default();
            let row = Waiting {
                kind: Some(event.kind.kind()),
                json: serde_json::to_string(&event)?,
                time: event.utc.map_or(stamp, |utc| format!("{utc:.3}")),
                what: describe(&event.kind),
            };
            self.waiting.insert(number, row);
        }
        Ok(())
    }

    /// Writes the events before which nothing can come any more.
    fn release(&mut self) -> anyhow::Result<()> {
        let pending = self.assembler.pending_since_seq().unwrap_or(u64::MAX);
        while let Some(first) = self.waiting.first_entry() {
            if *first.key() >= pending {
                break;
            }
            let waiting = first.remove();
            self.write(&waiting)?;
        }
        let oldest = pending.min(self.messages + 1);
        self.stamps = self.stamps.split_off(&oldest);
        Ok(())
    }

    fn write(&mut self, row: &Waiting) -> anyhow::Result<()> {
        if let Some(kind) = row.kind {
            *self.counts.entry(kind).or_default() += 1;
        }
        if self.json {
            writeln!(self.out, "{}", row.json)?;
            return Ok(());
        }
        self.row(&row.time, row.kind.unwrap_or("(user record)"), &row.what)
    }

    fn row(&mut self, time: &str, kind: &str, what: &str) -> anyhow::Result<()> {
        if !std::mem::replace(&mut self.header_written, true) {
            writeln!(self.out, "{:<24}  {:<18}  WHAT", "TIME", "EVENT")?;
        }
        writeln!(self.out, "{time:<24}  {kind:<18}  {what}")?;
        Ok(())
    }

    fn finish(&mut self) -> anyhow::Result<()> {
        self.assembler.finish(&mut self.events);
        self.collect()?;
        self.release()?;
        if !self.json {
            self.summary()?;
        }
        self.out.flush()?;
        Ok(())
    }

    fn summary(&mut self) -> anyhow::Result<()> {
        if self.counts.is_empty() {
            writeln!(self.out, "Nothing found in {}.", messages(self.messages))?;
            return Ok(());
        }
        writeln!(self.out, "\nIn {}:", messages(self.messages))?;
        for (kind, count) in &self.counts {
            writeln!(self.out, "{count:>8}  {kind:<18}  {}", meaning(kind))?;
        }
        Ok(())
    }
}

/// What two copies of one record have in common, in a log that holds parts of itself twice: the
/// number, or the text under a stamp to the microsecond.
fn identity(message: &Message) -> Option<u64> {
    if message.seq.is_some() {
        return message.seq;
    }
    message.exact.then(|| {
        let mut hasher = DefaultHasher::new();
        (&message.stamp, &message.identifier, &message.caller, &message.text).hash(&mut hasher);
        hasher.finish()
    })
}

fn messages(count: u64) -> String {
    if count == 1 { "1 message".to_owned() } else { format!("{count} messages") }
}

/// A record that user space wrote, marked as such.
fn user_record(message: &Message) -> Waiting {
    let record = serde_json::json!({
        "kind": "user_record",
        "facility": message.facility,
        "identifier": message.identifier,
        "text": message.text,
        "utc": message.utc,
        "seq": message.seq,
    });
    let who = message.identifier.as_deref().unwrap_or("user space");
    Waiting {
        kind: None,
        json: record.to_string(),
        time: message.utc.map_or_else(|| message.stamp.clone(), |utc| format!("{utc:.3}")),
        what: format!("{who}: {}", message.text),
    }
}

/// What a kind of event means for the person who reads it.
fn meaning(kind: &str) -> &'static str {
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
        "oom_unreapable" => "a killed process' memory did not come back: look for pinned memory",
        "page_alloc_failure" => "no free block of that size; often fragmentation",
        "hung_task" => "a task waits in state D; the owner of its lock is whom to look at",
        "userspace_kill" => "a daemon in user space killed for memory",
        "unclean_boot" => "the boot before did not end in order",
        _ => "",
    }
}

/// One line for people.
fn describe(event: &KernelEvent) -> String {
    match event {
        KernelEvent::NvNoMemory { function, gpu, location, .. } => {
            let gpu = gpu.map(|gpu| format!(" on GPU {gpu}")).unwrap_or_default();
            let place = location.as_deref().unwrap_or("an unnamed place");
            format!("the driver failed to allocate{gpu} at {place} ({function})")
        }
        KernelEvent::NvAllocFailed { function, bytes } => {
            format!("the driver failed to allocate {bytes} bytes of metadata ({function})")
        }
        KernelEvent::Xid { xid, pci, pid, process, recovery, .. } => {
            let pid = pid.map(|pid| format!(" pid {pid}")).unwrap_or_default();
            let process = process.as_deref().map(|name| format!(" {name}")).unwrap_or_default();
            let recovery = recovery.map_or("", recovery_words);
            format!("Xid {xid} on {pci}{pid}{process}{recovery}")
        }
        KernelEvent::UvmFatal => "UVM needs a reboot to recover".to_owned(),
        KernelEvent::OomKill {
            pid, comm, oom_memcg, trigger_comm, anon_rss_bytes, driver, ..
        } => {
            let rss = anon_rss_bytes
                .map(|bytes| format!(", {} MiB anonymous", bytes >> 20))
                .unwrap_or_default();
            let limit =
                oom_memcg.as_deref().map(|path| format!(", limit of {path}")).unwrap_or_default();
            let trigger = trigger_comm
                .as_deref()
                .map(|comm| format!(", asked for by {comm}"))
                .unwrap_or_default();
            let driver = if *driver { ", through the NVIDIA driver" } else { "" };
            format!("killed {pid} ({comm}){rss}{limit}{trigger}{driver}")
        }
        KernelEvent::OomNoVictim => "nothing could be killed".to_owned(),
        KernelEvent::OomReaped { pid, comm } => format!("reaped {pid} ({comm})"),
        KernelEvent::OomUnreapable { pid, comm } => format!("could not reap {pid} ({comm})"),
        KernelEvent::PageAllocFailure { comm, order } => {
            format!("{comm} got no block of 2^{order} pages")
        }
        KernelEvent::HungTask { pid, comm, seconds, owner_pid, owner_comm } => {
            let owner = match (owner_pid, owner_comm) {
                (Some(pid), Some(comm)) => format!("; lock likely held by {pid} ({comm})"),
                _ => String::new(),
            };
            format!("{pid} ({comm}) blocked for more than {seconds} s{owner}")
        }
        KernelEvent::UserspaceKill { pid, comm, memcg, .. } => {
            let pid = pid.map(|pid| format!(" {pid}")).unwrap_or_default();
            let comm = comm.as_deref().map(|comm| format!(" ({comm})")).unwrap_or_default();
            let memcg = memcg.as_deref().map(|path| format!(" {path}")).unwrap_or_default();
            format!("killed{pid}{comm}{memcg}")
        }
        KernelEvent::UncleanBoot { ended_boot_id, .. } => {
            format!("boot {ended_boot_id} did not end in order")
        }
    }
}

fn recovery_words(recovery: Recovery) -> &'static str {
    match recovery {
        Recovery::None => ": no recovery needed",
        Recovery::GpuReset => ": GPU reset required",
        Recovery::NodeReboot => ": node reboot required",
        Recovery::DrainP2p => ": drain peer-to-peer traffic",
        Recovery::DrainAndReset => ": drain, then reset",
    }
}
