//! Evidence of the node about a death: memory, control group, kernel log, killers in user space.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::clock;
use crate::model::{DeathMemory, Event, Moment, Observation, Reading};
use crate::parse::proc::derived::unaccounted;
use crate::parse::proc::meminfo::{Meminfo, MeminfoField as Field};
use crate::parse::process;
use crate::sources::kernel_log::{KernelLogReader, KernelLogSource, ReadClock, ReadEnd};
use crate::supervisors::journal::{JournalReadError, journalctl};
use kernel_faults::dmesg::LogText;
use kernel_faults::{EventAssembler, KernelLine, container_id};

/// The largest kernel ring has fewer records.
const MOST_RECORDS: usize = 1 << 20;
const RECORDS_AT_ONCE: usize = 1024;

/// Timeout and size limit of journald's answer.
const JOURNAL_TAKES: Duration = Duration::from_secs(3);
const MOST_JOURNAL_BYTES: u64 = 4 << 20;

/// Evidence of a kill may be this much older than the kill.
const BEFORE: Duration = Duration::from_secs(5);

/// The PID namespace of the host, on every kernel (PROC_PID_INIT_INO).
const NUMBERS_OF_HOST: &str = "pid:[4026531836]";

pub(super) fn memory(procfs: &Path) -> DeathMemory {
    let text = fs::read(procfs.join("meminfo")).unwrap_or_default();
    let Ok(meminfo) = Meminfo::parse(&text) else { return DeathMemory::default() };
    let get = |field| meminfo.get(field).value();
    let unnamed = unaccounted(&meminfo, Reading::Unsupported).value();
    DeathMemory {
        total_bytes: get(Field::MemTotal),
        free_bytes: get(Field::MemFree),
        available_bytes: get(Field::MemAvailable),
        unaccounted_bytes: unnamed.map(|bytes| u64::try_from(bytes).unwrap_or(0)),
        shmem_bytes: get(Field::Shmem),
        swap_free_bytes: get(Field::SwapFree),
        own_bytes: None,
    }
}

/// The control group of this process and its command.
#[derive(Clone, Debug, Default)]
pub(super) struct OwnGroup {
    pub(super) path: Option<Arc<str>>,
    pub(super) container: Option<Arc<str>>,
    pub(super) unit: Option<Arc<str>>,
    /// Its counter of kills: `memory.events`, or cgroup v1's `memory.oom_control`.
    counter: Option<PathBuf>,
    kills_before: Option<u64>,
}

impl OwnGroup {
    /// Its current state.
    pub(super) fn find(procfs: &Path, sysfs: &Path) -> Self {
        let text = fs::read_to_string(procfs.join("self/cgroup")).unwrap_or_default();
        let Some(path) = process::cgroup(&text) else { return Self::default() };
        let below = path.trim_start_matches('/');
        let files = [
            sysfs.join("fs/cgroup").join(below).join("memory.events"),
            sysfs.join("fs/cgroup/memory").join(below).join("memory.oom_control"),
        ];
        let counter = files.into_iter().find(|file| kills(file).is_some());
        Self {
            container: container_id(path).map(Arc::from),
            unit: process::unit(path).map(Arc::from),
            kills_before: counter.as_deref().and_then(kills),
            counter,
            path: Some(path.into()),
        }
    }

    /// Whether it has no other processes: that of a container or service. The root is a whole
    /// container if it has a cgroup namespace.
    pub(super) fn is_own(&self) -> bool {
        let is_service = self.unit.as_ref().is_some_and(|unit| unit.ends_with(".service"));
        self.container.is_some() || is_service
    }

    /// Processes of it that the kernel has killed for memory since.
    pub(super) fn new_kills(&self) -> Option<u64> {
        let now = self.counter.as_deref().and_then(kills)?;
        Some(now.saturating_sub(self.kills_before?))
    }
}

fn kills(file: &Path) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "))?;
    line.trim().parse().ok()
}

/// Whether pids here are those of the kernel log.
pub(super) fn are_pids_global(procfs: &Path) -> bool {
    let namespace = fs::read_link(procfs.join("self/ns/pid"));
    namespace.is_ok_and(|name| name.as_os_str() == NUMBERS_OF_HOST)
}

/// Evidence of the logs since a time.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    pub(super) events: Vec<Event>,
    pub(super) is_kernel_log_read: bool,
    pub(super) not_known: Vec<String>,
}

/// The kernel log and journald since a time.
pub(super) fn since(kmsg: &Path, since: Moment) -> Evidence {
    let mut evidence = Evidence::default();
    kernel_log(kmsg, since, &mut evidence);
    match userspace_killers(since.utc) {
        Ok(events) => evidence.events.extend(events),
        Err(why) => evidence.not_known.push(why),
    }
    evidence
}

/// Events in the kernel log of this boot. `None` if it cannot be read.
pub(super) fn kernel_events(kmsg: &Path) -> Option<Vec<Event>> {
    let mut evidence = Evidence::default();
    kernel_log(kmsg, Moment { uptime: Duration::ZERO, utc: Timestamp::UNIX_EPOCH }, &mut evidence);
    evidence.is_kernel_log_read.then_some(evidence.events)
}

fn kernel_log(kmsg: &Path, since: Moment, evidence: &mut Evidence) {
    // Without the syslog(2) ring, which may be forged.
    let mut source = KernelLogSource::open(kmsg, None);
    let mut seen = Vec::new();
    let at = clock();
    let read = ReadClock { at, monotonic: crate::daemon::clock::monotonic() };
    while seen.len() < MOST_RECORDS
        && source.read(read, &mut seen, RECORDS_AT_ONCE) == ReadEnd::More
    {}
    evidence.is_kernel_log_read = source.reader() != KernelLogReader::None;
    let (mut assembler, mut events) = (EventAssembler::new(), Vec::new());
    for observation in &seen {
        match observation {
            Observation::KernelRecord(record) if record.utc >= earlier(since.utc) => {
                let line = KernelLine {
                    seq: Some(record.seq),
                    utc: Some(record.utc),
                    uptime: Some(Duration::from_micros(record.usec)),
                    from_kernel: record.facility == 0,
                    identifier: None,
                    caller: record.caller.as_deref(),
                    text: &record.text,
                };
                assembler.feed(&line, &mut events);
            }
            Observation::KernelRecordsLost(lost) => evidence.not_known.push(format!(
                "{lost} records of the kernel log were overwritten before they were read"
            )),
            _ => {}
        }
    }
    assembler.finish(&mut events);
    evidence.events.extend(events.into_iter().map(Event::from));
}

fn earlier(utc: Timestamp) -> Timestamp {
    utc.checked_sub(BEFORE).unwrap_or(utc)
}

/// Units of daemons that kill for memory.
const KILLERS: [&str; 5] = ["earlyoom", "systemd-oomd", "nohang", "nohang-desktop", "oomd"];

/// They log to journald alone.
fn userspace_killers(since: Timestamp) -> Result<Vec<Event>, String> {
    let since = format!("--since=@{}", earlier(since).as_second());
    // By unit, which others cannot forge. By name anybody could.
    let units = KILLERS.map(|unit| format!("--unit={unit}.service"));
    let arguments: Vec<String> = ["--boot".to_owned(), since].into_iter().chain(units).collect();
    match journalctl(&arguments, MOST_JOURNAL_BYTES, JOURNAL_TAKES) {
        Ok(bytes) => Ok(events_in(&bytes)),
        // Without journald there is nothing to read.
        Err(JournalReadError::NoJournalctl) => Ok(Vec::new()),
        Err(JournalReadError::TimedOut(takes)) => Err(format!(
            "journald has not answered within {} s: kills by {} are not seen",
            takes.as_secs(),
            KILLERS.join(", ")
        )),
        Err(JournalReadError::Failed(why)) => Err(why),
    }
}

fn events_in(journal: &[u8]) -> Vec<Event> {
    let (mut text, mut assembler, mut events) = (LogText::new(), EventAssembler::new(), Vec::new());
    let lines = journal.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let mut messages: Vec<_> = lines.filter_map(|line| text.feed(line)).collect();
    messages.extend(text.finish());
    // A unit's entry without a program is not the kernel's.
    for message in messages.iter().filter(|message| !message.from_kernel) {
        assembler.feed(&message.kernel_line(), &mut events);
    }
    assembler.finish(&mut events);
    events.into_iter().map(Event::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{EventKind, KernelEvent, KillerDaemon};

    #[test]
    fn a_journald_line_of_earlyoom_is_a_kill() {
        let line = |second: u32, message: &str| {
            let journalled = serde_json::json!({
                "__REALTIME_TIMESTAMP": format!("{}000000", 1_790_000_000 + second),
                "SYSLOG_IDENTIFIER": "earlyoom",
                "MESSAGE": message,
                "PRIORITY": "4",
                "_BOOT_ID": "0",
            });
            format!("{journalled}\n")
        };
        let kill =
            "sending SIGTERM to process 4711 uid 0 \"VLLM::EngineCor\": badness 900, VmRSS 1";
        let journal = [line(0, kill), line(1, "mem avail: 10 of 100")].concat();
        let events = events_in(journal.as_bytes());
        let [
            Event {
                kind: EventKind::Kernel(KernelEvent::UserspaceKill { by, pid, .. }), utc, ..
            },
        ] = &*events
        else {
            panic!("{events:?}")
        };
        assert_eq!((*by, *pid), (KillerDaemon::Earlyoom, Some(4711)));
        assert_eq!(utc.unwrap().as_second(), 1_790_000_000);
    }

    #[test]
    fn the_counters_of_both_hierarchies_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let at = |text: &str| {
            let file = folder.path().join("counter");
            fs::write(&file, text).unwrap();
            kills(&file)
        };
        assert_eq!(at("low 0\nhigh 0\nmax 5\noom 2\noom_kill 1\noom_group_kill 0\n"), Some(1));
        assert_eq!(at("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"), Some(3));
        assert_eq!(at("oom_kill_disable 0\nunder_oom 0\n"), None, "before 4.13");
        assert_eq!(at("oom_kill x\n"), None);
    }
}
