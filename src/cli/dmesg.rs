//! `umawarden dmesg`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::Metadata;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::Context;
use jiff::Timestamp;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::Serialize;

use super::Exit;
use super::log_input::{LogInput, ReadAs, STANDARD_INPUT, not_a_log, open_log, utc_from, written};
use super::progress::{Progress, ProgressReader};
use super::style::{fitted, fitted_lines};
use crate::cli::output::{self, ReaderGone, errln};
use crate::model::{KernelEvent, counted};
use kernel_faults::dmesg::Message;
use kernel_faults::{EventAssembler, LoggedEvent, UnreadFault, UnreadFaults, kmsg};

/// The largest record that `/dev/kmsg` gives.
const RECORD_BYTES: usize = 8 * 1024;
/// Messages of other hosts after which a host's pending events are decided.
const LONGEST_SILENCE: u64 = 40_000;
/// Hosts whose kills are kept apart.
const MOST_HOSTS: usize = 256;
/// Records that are remembered by number, to detect duplicates.
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
    /// Include records of user space, marked as such.
    #[arg(long)]
    pub all: bool,
}

/// Printed after a table.
const TEXT_PROVES_NOTHING: &str = "\
This log is text: local users can forge lines of it, by a newline in a mount option for example.
On the node itself, `umawarden dmesg` as root reads /dev/kmsg, which they cannot forge.";

const AFTER_HELP: &str = "\
Reads what dmesg prints in any of its time formats (-T, -x, -r, -d, -e, --json, …; JSON also as jq \
lays it out), the journal's short formats and JSON, syslog files (RFC 5424 too), raw /dev/kmsg and \
netconsole, talosctl dmesg, busybox, Loki's logcli, JSON of shippers and log services (Vector, \
Filebeat, Fluent Bit, Talos, Graylog, Cloud Logging, Azure, Splunk, …), bare lines, and any of \
these indented, quoted or with a container log's stamps. One prefix before each line is read, if \
the first stamp of the log has it: a host (pdsh, clush, srun -l), a service (Docker Compose), a \
pod (kubectl, stern), a file or line number (grep, cat -n). `origin` is what it names. Only what \
the kernel wrote counts, and the kills that systemd-oomd, earlyoom, nohang, oomd and Talos log \
themselves. The kernel's words right behind a stamp count in a log that names no programs.

A kill is reported once, by the first line that proves it. The kernel writes at most ten OOM \
traces in five seconds, and only `Killed process …` for further kills, so that this line suffices; \
so does an `oom-kill:` line. Facts of missing lines (cgroup, trigger, driver) are null.

With --json: `utc` if the log's times have a zone. Times without a zone (dmesg -T, journalctl, \
syslog) are interpreted in this machine's (TZ), and `utc_from` is \"local_time\". If the year is \
missing too, it is the last one before the file was written (standard input: before now), and \
`utc_from` is \"local_time_without_year\". So read other machines' logs with their zone: \
TZ=America/New_York umawarden dmesg kern.log. `uptime_seconds` is the kernel's clock, if the log \
has it. utc is null if only that is known, for dmesg -e, and for months that are not English.

`provenance` is kmsg for records of /dev/kmsg, which cannot be forged. Otherwise it is text, \
text_with_facility or text_of_records (raw records), by the form of the line: local users can \
cause lines that look like the kernel's, so that it is a hint.

Exit codes, as a linter's: 0 no event in the log, 1 at least one event (recovered ones too; not \
the records of --all), 2 it cannot be read, is not a log, has neither an event nor a stamp, or has \
no event but lines that hold the kernel's words for one. Such lines are named on standard error, \
also beside events. So 1 is a result, not a failure. Under `set -e`:
  umawarden dmesg --json incident.log > events.json || [ $? -eq 1 ]

Examples:
  umawarden dmesg                           this machine, now (as root)
  journalctl -k -b -1 | umawarden dmesg -   the boot before this one
  umawarden dmesg --json incident.log | jq -r .kind | sort | uniq -c
  umawarden dmesg --json kern.log | jq -c 'select(.kind == \"oom_kill\") | .comm'
  zcat /var/log/kern.log.2.gz | umawarden dmesg -";

/// Runs the command.
///
/// # Errors
/// The log cannot be opened or read, or the output cannot be written.
pub fn execute(arguments: &DmesgArguments) -> anyhow::Result<Exit> {
    let mut report = EventReport::new(output::stdout(), arguments.json, arguments.all);
    let result = read(arguments.file.as_deref(), &mut report).and_then(|()| report.finish());
    let unread = match result {
        Ok(unread) => unread,
        Err(error) if error.is::<ReaderGone>() => return Ok(Exit::Findings),
        Err(error) => return Err(error),
    };
    if let Some(text) = report.repeated_text() {
        errln!("umawarden: {text}");
    }
    let text = unread.map(|(count, first)| unread_text(arguments.file.as_deref(), count, &first));
    match text.or_else(|| report.doubt()) {
        Some(text) if report.found() => errln!("umawarden: {text}"),
        Some(text) => anyhow::bail!(text),
        None => {}
    }
    Ok(if report.found() { Exit::Findings } else { Exit::Fine })
}

/// The error for lines that hold the kernel's words and gave no event.
fn unread_text(file: Option<&Path>, count: u64, first: &UnreadFault) -> String {
    let file = file.filter(|path| path.as_os_str() != "-");
    let name = file.map_or_else(|| STANDARD_INPUT.to_owned(), |path| path.display().to_string());
    let lines = if count == 1 { "line holds" } else { "lines hold" };
    let why = match first.program.as_deref() {
        _ if first.begins => "the log has not the end of this OOM kill".to_owned(),
        _ if first.from_kernel && first.has_known_words => "its form is not known".to_owned(),
        _ if first.from_kernel => "its wording is not known".to_owned(),
        Some("kernel") => "its program has a pid, or its facility is another's, so that any user \
                           could have written it; if it is klogd's, `kernel: ` without the pid is \
                           read"
            .to_owned(),
        Some(program) => format!("it is of the program `{program}`"),
        None => "its form does not say that the kernel wrote it".to_owned(),
    };
    let (line, text) = (first.line, &first.text);
    format!(
        "{name}: {count} {lines} the kernel's words for a fault and gave no event. The first is \
         line {line}, `{text}`: {why}. Give what `dmesg` or `journalctl -k` prints"
    )
}

fn read<W: Write>(file: Option<&Path>, report: &mut EventReport<W>) -> anyhow::Result<()> {
    match file {
        Some(path) if path.as_os_str() == "-" => read_input(report),
        Some(path) if path == Path::new("/dev/kmsg") => read_kmsg(report),
        Some(path) => {
            let file = open_log(path).map_err(|error| cannot_open(path, error))?;
            let bytes = path.metadata().ok().filter(Metadata::is_file);
            let mut progress = Progress::bytes("dmesg", bytes.map(|metadata| metadata.len()));
            let input = BufReader::new(ProgressReader::new(file, &mut progress));
            read_log(input, &path.display().to_string(), written(path), report)
        }
        None if !is_piped() => read_kmsg(report),
        None => read_input(report),
    }
}

/// Reads standard input.
fn read_input<W: Write>(report: &mut EventReport<W>) -> anyhow::Result<()> {
    let mut progress = Progress::bytes("dmesg", None);
    let input = BufReader::new(ProgressReader::new(io::stdin(), &mut progress));
    read_log(input, STANDARD_INPUT, None, report)
}

fn cannot_open(path: &Path, error: io::Error) -> anyhow::Error {
    let advice = match error.kind() {
        io::ErrorKind::NotFound => {
            ": give the file of a saved kernel log, - for standard input, or nothing for this \
             node's kernel log"
        }
        _ => "",
    };
    anyhow::anyhow!("cannot open {}: {error}{advice}", path.display())
}

/// Whether standard input is a pipe or file, and not a terminal, /dev/null, or the socket that sshd
/// gives to `ssh node umawarden dmesg`.
fn is_piped() -> bool {
    rustix::fs::fstat(io::stdin()).is_ok_and(|stat| {
        let kind = rustix::fs::FileType::from_raw_mode(stat.st_mode);
        kind.is_fifo() || kind.is_file()
    })
}

fn read_log<W: Write>(
    input: impl BufRead,
    name: &str,
    newest: Option<SystemTime>,
    report: &mut EventReport<W>,
) -> anyhow::Result<()> {
    let log = LogInput::new(input, name, newest);
    let read_as = log.read("umawarden dmesg", &mut |message| report.message(&message))?;
    report.end()?;
    anyhow::ensure!(read_as != ReadAs::Bytes || report.found(), not_a_log(name));
    report.unstamped = (read_as == ReadAs::Text).then(|| name.to_owned());
    Ok(())
}

/// Reads the current content of `/dev/kmsg`.
fn read_kmsg<W: Write>(report: &mut EventReport<W>) -> anyhow::Result<()> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let kmsg: OwnedFd = rustix::fs::open("/dev/kmsg", flags, Mode::empty())
        .context("cannot open /dev/kmsg (root or CAP_SYSLOG is needed; or pipe dmesg in)")?;
    report.is_device = true;
    let zero = boot_zero();
    let mut buffer = vec![0; RECORD_BYTES];
    loop {
        let read = match rustix::io::read(kmsg.as_fd(), &mut buffer) {
            Ok(0) | Err(Errno::AGAIN) => break,
            Ok(read) => read,
            // The ring was overwritten, or the record exceeds the documented size.
            Err(Errno::PIPE | Errno::INVAL | Errno::INTR) => continue,
            Err(error) => return Err(error).context("cannot read /dev/kmsg"),
        };
        if let Ok(record) = kmsg::parse_record(buffer.get(..read).unwrap_or_default()) {
            let mut message = Message::of_record(&record);
            let since = message.position.and_then(|at| jiff::SignedDuration::try_from(at).ok());
            message.utc = since.and_then(|since| zero.checked_add(since).ok());
            report.message(&message)?;
        }
    }
    Ok(())
}

/// The wall time at which the kernel's clock was zero, by the current clocks.
fn boot_zero() -> Timestamp {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let since = jiff::SignedDuration::new(now.tv_sec, 0);
    Timestamp::now().checked_sub(since).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// A row that waits until no earlier one can come.
struct WaitingRow {
    /// The event's kind; `None` for a record of user space.
    kind: Option<&'static str>,
    json: String,
    time: String,
    what: String,
}

/// Writes events in the log's order, whatever the order of detection.
struct EventReport<W: Write> {
    out: W,
    json: bool,
    all: bool,
    /// By host. The first host is the empty text, as is none.
    assemblers: BTreeMap<String, EventAssembler>,
    /// The first message of what each of them has pending.
    pending: BTreeMap<String, u64>,
    first_host: Option<String>,
    unread: UnreadFaults,
    events: Vec<LoggedEvent>,
    messages: u64,
    /// Time and identity of the records that were read.
    seen: BTreeSet<(Option<Duration>, u64)>,
    /// Second and hash of the messages that nothing else identifies.
    seconds: BTreeSet<(String, u64)>,
    /// Numbers of messages that repeat one of those.
    copies: BTreeSet<u64>,
    /// Their events.
    repeated: u64,
    /// By number of the message that has the event's time.
    waiting: BTreeMap<u64, WaitingRow>,
    /// Stamps of messages that may still date events.
    stamps: BTreeMap<u64, Message>,
    counts: BTreeMap<&'static str, u64>,
    /// All messages are records of `/dev/kmsg`.
    is_device: bool,
    /// The name of a text in which no line has a stamp.
    unstamped: Option<String>,
    header_written: bool,
}

impl<W: Write> EventReport<W> {
    fn new(out: W, json: bool, all: bool) -> Self {
        Self {
            out,
            json,
            all,
            assemblers: BTreeMap::new(),
            pending: BTreeMap::new(),
            first_host: None,
            unread: UnreadFaults::default(),
            events: Vec::new(),
            messages: 0,
            seen: BTreeSet::new(),
            seconds: BTreeSet::new(),
            copies: BTreeSet::new(),
            repeated: 0,
            waiting: BTreeMap::new(),
            stamps: BTreeMap::new(),
            counts: BTreeMap::new(),
            is_device: false,
            unstamped: None,
            header_written: false,
        }
    }

    fn found(&self) -> bool {
        !self.counts.is_empty()
    }

    /// Why the log does not count as free of faults: it may be another text.
    fn doubt(&self) -> Option<String> {
        let name = self.unstamped.as_ref().filter(|_| !self.found() && self.messages > 0)?;
        Some(format!(
            "{name}: nothing was found, and no line has a stamp, so that it may be no kernel log. \
             Give what `dmesg` or `journalctl -k` prints, with the times"
        ))
    }

    fn has(&self, kind: &str) -> bool {
        self.counts.contains_key(kind)
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
        if let Some(second) = second(message) {
            if !self.seconds.insert(second) {
                self.copies.insert(self.messages);
            }
            if self.seconds.len() > MOST_REMEMBERED {
                self.seconds.pop_first();
            }
        }
        let mut line = message.kernel_line();
        line.seq = Some(self.messages);
        let stamp = Message { text: String::new(), whole: None, ..message.clone() };
        self.stamps.insert(self.messages, stamp);
        let host = self.host(message);
        let assembler = self.assemblers.entry(host.clone()).or_default();
        assembler.feed(&line, &mut self.events);
        match assembler.pending_since_seq() {
            Some(first) => self.pending.insert(host, first),
            None => self.pending.remove(&host),
        };
        self.give_up_silent_host();
        if !self.is_device {
            self.unread.take(message.line, &line, message.whole.as_deref());
        }
        if !message.from_kernel && self.all {
            self.waiting.insert(self.messages, user_record(message));
        }
        self.collect()?;
        self.release()?;
        Ok(())
    }

    /// The name under which the events of a message's host are assembled: two hosts may kill
    /// processes of the same pid.
    fn host(&mut self, message: &Message) -> String {
        let Some(host) = message.origin.as_ref().or(message.host.as_ref()) else {
            return String::new();
        };
        let is_first = self.first_host.get_or_insert_with(|| host.clone()) == host;
        let is_known = self.assemblers.contains_key(host);
        let is_kept = is_known || self.assemblers.len() < MOST_HOSTS;
        if is_first || !is_kept { String::new() } else { host.clone() }
    }

    /// Ends what a host without further lines has pending, so that memory stays bounded.
    fn give_up_silent_host(&mut self) {
        let oldest = self.pending.iter().min_by_key(|(_, first)| **first);
        let silent = oldest.filter(|(_, first)| **first + LONGEST_SILENCE < self.messages);
        let Some(host) = silent.map(|(host, _)| host.clone()) else { return };
        if let Some(assembler) = self.assemblers.get_mut(&host) {
            assembler.finish(&mut self.events);
        }
        self.pending.remove(&host);
    }

    /// Takes events from the assembler.
    fn collect(&mut self) -> anyhow::Result<()> {
        for mut event in self.events.drain(..) {
            let number = event.seq.unwrap_or(self.messages);
            let message = self.stamps.get(&number);
            let what = match message.and_then(|message| message.origin.as_deref()) {
                Some(origin) => format!("{origin}: {}", event.kind),
                None => event.kind.to_string(),
            };
            event.seq = message.and_then(|message| message.seq);
            let provenance = match self.is_device {
                true => "kmsg",
                false => message.map_or(TEXT, provenance_in_text),
            };
            self.repeated += u64::from(self.copies.remove(&number) && is_rare(&event.kind));
            let stamp = message.map(|message| message.stamp.clone()).unwrap_or_default();
            let row = WaitingRow {
                kind: Some(event.kind.kind()),
                json: serde_json::to_string(&EventObject::of(&event, message, provenance))?,
                time: event.utc.map_or(stamp, |utc| format!("{utc:.3}")),
                what,
            };
            self.waiting.insert(number, row);
        }
        Ok(())
    }

    /// Writes events before which none can come.
    fn release(&mut self) -> anyhow::Result<()> {
        let pending = self.pending.values().copied().min().unwrap_or(u64::MAX);
        while let Some(first) = self.waiting.first_entry() {
            if *first.key() >= pending {
                break;
            }
            let waiting = first.remove();
            self.write(&waiting)?;
            self.check_reader()?;
        }
        let oldest = pending.min(self.messages + 1);
        self.stamps = self.stamps.split_off(&oldest);
        self.copies = self.copies.split_off(&oldest);
        Ok(())
    }

    fn write(&mut self, row: &WaitingRow) -> anyhow::Result<()> {
        if let Some(kind) = row.kind {
            *self.counts.entry(kind).or_default() += 1;
        }
        if self.json {
            writeln!(self.out, "{}", row.json)?;
            return Ok(());
        }
        self.row(&row.time, row.kind.unwrap_or("(user record)"), &row.what)
    }

    /// Whether further results are of use.
    fn check_reader(&self) -> Result<(), ReaderGone> {
        if self.found() && output::is_reader_gone() { Err(ReaderGone) } else { Ok(()) }
    }

    fn row(&mut self, time: &str, kind: &str, what: &str) -> anyhow::Result<()> {
        if !std::mem::replace(&mut self.header_written, true) {
            writeln!(self.out, "{:<24}  {:<18}  WHAT", "TIME", "EVENT")?;
        }
        let head = format!("{time:<24}  {kind:<18}  ");
        writeln!(self.out, "{}", fitted(&(head + what)))?;
        Ok(())
    }

    /// The end of the log.
    fn end(&mut self) -> anyhow::Result<()> {
        for assembler in self.assemblers.values_mut() {
            assembler.finish(&mut self.events);
        }
        self.pending.clear();
        self.collect()?;
        self.release()
    }

    /// Returns the number of lines that hold the kernel's words and gave no event, and the first.
    fn finish(&mut self) -> anyhow::Result<Option<(u64, UnreadFault)>> {
        self.end()?;
        let unread = std::mem::take(&mut self.unread).finish(|kind| self.has(kind));
        if !self.json && (self.found() || unread.is_none() && self.doubt().is_none()) {
            self.summary()?;
        }
        self.out.flush()?;
        Ok(unread)
    }

    /// A warning of events that may be copies of others. The driver may write an Xid twice in a
    /// second, so that the log cannot show it.
    fn repeated_text(&self) -> Option<String> {
        (self.repeated > 0).then(|| {
            format!(
                "{} may be counted twice: the same text of the same host and second was in the log \
                 before, which has neither the kernel's stamps nor record numbers. If two \
                 collectors wrote it, give the log of one",
                counted(self.repeated, "event")
            )
        })
    }

    fn summary(&mut self) -> anyhow::Result<()> {
        if self.counts.is_empty() {
            writeln!(self.out, "Nothing found in {}.", counted(self.messages, "message"))?;
            return Ok(());
        }
        writeln!(self.out, "\nIn {}:", counted(self.messages, "message"))?;
        for (kind, count) in &self.counts {
            let meaning = KernelEvent::meaning(kind);
            writeln!(self.out, "{}", fitted(&format!("{count:>8}  {kind:<18}  {meaning}")))?;
        }
        if !self.is_device {
            writeln!(self.out, "\n{}", fitted_lines(TEXT_PROVES_NOTHING))?;
        }
        Ok(())
    }
}

/// The identity of a record, to detect duplicates: its text with its number, or with its stamp.
fn identity(message: &Message) -> Option<u64> {
    (message.exact || message.seq.is_some()).then(|| {
        let mut hasher = DefaultHasher::new();
        (&message.origin, &message.host, message.seq).hash(&mut hasher);
        (&message.stamp, &message.identifier, &message.caller, &message.text).hash(&mut hasher);
        hasher.finish()
    })
}

/// The second, and the hash of host and text, of a message that a collector wrote without anything
/// that identifies it.
fn second(message: &Message) -> Option<(String, u64)> {
    let is_collected = message.host.is_some() || message.identifier.is_some();
    let is_undated = !message.exact && message.seq.is_none() && !message.stamp.is_empty();
    (message.from_kernel && is_collected && is_undated).then_some(())?;
    let when = message.utc.map_or_else(|| message.stamp.clone(), |utc| utc.as_second().to_string());
    let mut hasher = DefaultHasher::new();
    (&message.origin, &message.host, &message.text).hash(&mut hasher);
    Some((when, hasher.finish()))
}

/// Whether the kernel seldom writes two of an event in one second. Of failed allocations it does.
fn is_rare(event: &KernelEvent) -> bool {
    use KernelEvent::{CmaAllocFailed, NvAllocFailed, NvNoMemory, PageAllocFailure};
    !matches!(
        event,
        NvNoMemory { .. } | NvAllocFailed { .. } | PageAllocFailure { .. } | CmaAllocFailed { .. }
    )
}

/// One line of `--json`: the event, and fields of its message that the event does not have.
#[derive(Serialize)]
struct EventObject<'a> {
    #[serde(flatten)]
    event: &'a LoggedEvent,
    /// The host, pod or file that the log names.
    #[serde(skip_serializing_if = "Option::is_none")]
    origin: Option<&'a str>,
    /// The source of a wall time without a zone.
    #[serde(skip_serializing_if = "Option::is_none")]
    utc_from: Option<&'static str>,
    /// The kernel's clock, if the log has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    uptime_seconds: Option<f64>,
    provenance: &'static str,
}

impl<'a> EventObject<'a> {
    fn of(event: &'a LoggedEvent, message: Option<&'a Message>, provenance: &'static str) -> Self {
        Self {
            event,
            origin: message
                .and_then(|message| message.origin.as_deref().or(message.host.as_deref())),
            utc_from: message.and_then(utc_from),
            uptime_seconds: message.and_then(uptime_seconds),
            provenance,
        }
    }
}

/// Text does not prove who wrote a line.
const TEXT: &str = "text";

/// The provenance of a line of text. Neither its facility nor its form proves that it is not part
/// of another record.
fn provenance_in_text(message: &Message) -> &'static str {
    match (message.seq, message.facility) {
        (Some(_), _) => "text_of_records",
        (None, Some(_)) => "text_with_facility",
        (None, None) => TEXT,
    }
}

fn uptime_seconds(message: &Message) -> Option<f64> {
    message.boot_clock.map(|since| since.as_secs_f64())
}

/// A record of user space, marked as such.
fn user_record(message: &Message) -> WaitingRow {
    let mut record = serde_json::json!({
        "kind": "user_record",
        "facility": message.facility,
        "identifier": message.identifier,
        "text": message.text,
        "utc": message.utc,
        "seq": message.seq,
    });
    if let Some(from) = utc_from(message) {
        record["utc_from"] = from.into();
    }
    if let Some(seconds) = uptime_seconds(message) {
        record["uptime_seconds"] = seconds.into();
    }
    let who = message.identifier.as_deref().unwrap_or("user space");
    WaitingRow {
        kind: None,
        json: record.to_string(),
        time: message.utc.map_or_else(|| message.stamp.clone(), |utc| format!("{utc:.3}")),
        what: format!("{who}: {}", message.text),
    }
}
