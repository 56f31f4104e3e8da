//! Series about this program.

use super::super::{
    Action, DeathTime, HoldReason, KernelEvent, Killer, Mode, NodeHealthLevel, OomBound,
    OutcomeResult, ProgramEvent, RefusalReason, SETTING_NAMES, Source, UndoResult, XidClass,
};
use super::{Metric, MetricKind};

const REASONS: [&str; HoldReason::ALL.len()] = {
    let mut names = [""; HoldReason::ALL.len()];
    let mut next = 0;
    while next < HoldReason::ALL.len() {
        names[next] = HoldReason::ALL[next].name();
        next += 1;
    }
    names
};

/// This area's metrics.
pub(super) const METRICS: &[Metric] = &[
    Metric::new(
        MetricKind::Info,
        Source::Daemon,
        "uma_build_info",
        &["revision", "rustversion", "target", "version"],
        "Version of the running umawarden (version), and what it is built from: the commit \
         (revision; unknown in a build without git), the compiler (rustversion) and the platform \
         (target).",
    )
    .flag(),
    Metric::gauge(
        Source::Daemon,
        "uma_mode",
        &["mode"],
        "1 for the mode in force: observe only reports, enforce acts.",
    )
    .closed(&[("mode", &[Mode::Observe.name(), Mode::Enforce.name()])])
    .flag(),
    Metric::gauge(
        Source::Daemon,
        "uma_scrape_collector_success",
        &["collector"],
        "1 if the last read by the collector succeeded.",
    )
    .closed(&[("collector", &Source::NAMES)])
    .flag(),
    Metric::gauge(
        Source::Daemon,
        "uma_scrape_collector_duration_seconds",
        &["collector"],
        "Duration of the last read by the collector.",
    )
    .closed(&[("collector", &Source::NAMES)]),
    Metric::counter(
        Source::Daemon,
        "uma_samples_missed_total",
        &[],
        "Sampling times that passed before the sample could be taken.",
    ),
    Metric::gauge(
        Source::Daemon,
        "uma_sampling_interval_seconds",
        &[],
        "Time from the last sample of memory to the next one. It adapts to the state of memory \
         unless sampling_interval is fixed.",
    ),
    Metric::new(
        MetricKind::Histogram,
        Source::Daemon,
        "uma_loop_reaction_seconds_bucket",
        &["le"],
        "Reactions of the loop that took no longer than le seconds. A reaction lasts from when a \
         sample is due, or the loop is woken, until the decisions are handed over.",
    ),
    Metric::new(
        MetricKind::Histogram,
        Source::Daemon,
        "uma_loop_reaction_seconds_sum",
        &[],
        "Sum of the durations of these reactions.",
    ),
    Metric::new(
        MetricKind::Histogram,
        Source::Daemon,
        "uma_loop_reaction_seconds_count",
        &[],
        "Reactions of the loop: times that it had work to do.",
    ),
    Metric::counter(
        Source::KernelLog,
        "uma_kernel_log_records_total",
        &[],
        "Kernel-log records read, those of user space included.",
    ),
    Metric::counter(
        Source::KernelLog,
        "uma_kernel_log_lost_records_total",
        &[],
        "Missing sequence numbers between kernel-log records: the kernel's ring overwrote the \
         records before they were read. The syslog ring does not report this. In a file or FIFO: \
         the records are absent or damaged.",
    ),
    Metric::counter(
        Source::KernelLog,
        "uma_kernel_log_malformed_records_total",
        &[],
        "Kernel-log lines that were skipped because they are not records \
         (`prio,seq,usec,flags;text`).",
    ),
    Metric::counter(
        Source::KernelLog,
        "uma_kernel_log_userspace_records_total",
        &[],
        "Kernel-log records that user space wrote; they never feed a rule.",
    ),
    Metric::gauge(
        Source::KernelLog,
        "uma_kernel_log_reader",
        &["reader"],
        "1 for the reader of the kernel log: kmsg, syslog (the ring of syslog(2)), file (a file or \
         FIFO), or none. With none, all series that the log feeds are missing.",
    )
    .closed(&[("reader", &["kmsg", "syslog", "file", "none"])])
    .flag()
    .hides_zero(),
    Metric::counter(
        Source::KernelLog,
        "uma_kernel_events_total",
        &["event"],
        "Faults recognised in the kernel log.",
    )
    .closed(&[("event", &KernelEvent::KINDS)]),
    Metric::counter(
        Source::KernelLog,
        "uma_kernel_claimed_events_total",
        &["event"],
        "Events in the kernel log as syslog(2) shows it, where /dev/kmsg cannot be read. Local \
         users can forge these lines. A rule that reads this series may only notify.",
    )
    .closed(&[("event", &KernelEvent::KINDS)])
    .hides_zero(),
    Metric::counter(
        Source::KernelLog,
        "uma_kernel_xids_total",
        &["class"],
        "Xids in the kernel log. Classes: program (a program's fault, the GPU is well: 11, 13, 25, \
         31, 32, 37, 43, 45, 69, 80), device_lost (79, 119, 120, 143, and 154 with a reset or a \
         reboot), other.",
    )
    .closed(&[("class", &XidClass::NAMES)]),
    Metric::counter(
        Source::KernelLog,
        "uma_kernel_oom_kills_total",
        &["bound"],
        "Kills by the kernel's OOM killer in the kernel log, by the bound that was reached \
         (constraint of the oom-kill line). unknown: that line is missing.",
    )
    .closed(&[("bound", &OomBound::NAMES)]),
    Metric::gauge(
        Source::KernelLog,
        "uma_kernel_event_last_timestamp_seconds",
        &["event"],
        "Time of the last such fault of this boot, in seconds since 1970; 0 if none is known. \
         Restarts of this program do not reset it, a reboot does.",
    )
    .closed(&[("event", &KernelEvent::KINDS)])
    .hides_zero(),
    Metric::counter(
        Source::Daemon,
        "uma_events_total",
        &["event"],
        "Events that umawarden itself detects. They are phases and deaths of engines, memory \
         assessments, reboots and received alerts, and do not depend on the kernel log.",
    )
    .closed(&[("event", &ProgramEvent::KINDS)])
    .hides_zero(),
    Metric::counter(
        Source::Daemon,
        "uma_engine_failures_total",
        &["killer", "when"],
        "Deaths of engines that were failures (umawarden history), by what ended them, and \
         whether they had been ready. An engine that was asked to end is not counted.",
    )
    .closed(&[("killer", &Killer::NAMES), ("when", &DeathTime::NAMES)]),
    Metric::gauge(
        Source::Daemon,
        "uma_event_last_timestamp_seconds",
        &["event"],
        "Time of the last such event of this boot, in seconds since 1970; 0 if none is known. \
         Restarts of this program do not reset it, a reboot does.",
    )
    .closed(&[("event", &ProgramEvent::KINDS)])
    .hides_zero(),
    Metric::gauge(
        Source::Daemon,
        "uma_rules",
        &["state"],
        "Rules in each state: inactive, pending, firing, or unknown because a source fails.",
    )
    .closed(&[("state", &["inactive", "pending", "firing", "unknown"])]),
    Metric::gauge(
        Source::Daemon,
        "uma_rule_state",
        &["group", "rule", "state"],
        "1 for the state the rule is in, unless it is inactive: pending, firing or unknown.",
    )
    .closed(&[("state", &["pending", "firing", "unknown"])])
    .flag()
    .hides_zero(),
    Metric::gauge(
        Source::Daemon,
        "uma_node_health",
        &["level"],
        "1 for the level that the page shows of this node: critical or warning (alerts that fire \
         and what else needs a person), unknown (rules or sources that fail), else well. Other \
         nodes of the cluster show it.",
    )
    .closed(&[("level", &NodeHealthLevel::NAMES)])
    .flag()
    .hides_zero(),
    Metric::gauge(
        Source::Daemon,
        "uma_rule_evaluation_duration_seconds",
        &[],
        "Duration of the last evaluation step: new samples are taken in, and all due rules are \
         evaluated.",
    ),
    Metric::counter(
        Source::Daemon,
        "uma_rule_evaluation_failures_total",
        &[],
        "Evaluations of rules that ended in an error, such as a many-to-many match. The rule is \
         then unknown, and the log has the error.",
    ),
    Metric::counter(
        Source::Daemon,
        "uma_decisions_total",
        &["decision", "rule"],
        "Decisions of each rule, to act or to hold. Rules whose remedy does more than notify are \
         counted from the start, others from their first decision on.",
    )
    .closed(&[("decision", &["act", "hold"])]),
    Metric::counter(
        Source::Daemon,
        "uma_holds_total",
        &["reason", "rule"],
        "Decisions to hold, by reason. A series appears with its first hold; \
         uma_decisions_total counts all from the start.",
    )
    .closed(&[("reason", &REASONS)]),
    Metric::counter(
        Source::Daemon,
        "uma_actions_total",
        &["action", "outcome"],
        "Actions by outcome; skipped: observe mode only reported it; not_done: nothing was begun. \
         What the remedies of loaded rules do is counted from the start for done, failed and \
         skipped, notify excepted. Other series appear with their first outcome.",
    )
    .closed(&[("action", &Action::NAMES), ("outcome", &OutcomeResult::NAMES)]),
    Metric::counter(
        Source::Daemon,
        "uma_evicted_bytes_total",
        &["action"],
        "Bytes of model files that evict_checkpoint has evicted from the page cache. They are \
         behind the reader of a loading engine, and are measured with cachestat(2), on overlayfs \
         with mincore(2), before and after.",
    )
    .closed(&[("action", &["evict_checkpoint"])]),
    Metric::counter(
        Source::Daemon,
        "uma_evicted_refaulted_bytes_total",
        &["action"],
        "Part of uma_evicted_bytes_total that was read into memory again while the load was still \
         tracked.",
    )
    .closed(&[("action", &["evict_checkpoint"])]),
    Metric::counter(
        Source::Daemon,
        "uma_prefetched_bytes_total",
        &[],
        "Bytes of model files that evict_checkpoint has read ahead of a loading engine.",
    ),
    Metric::counter(
        Source::Daemon,
        "uma_prefetch_unused_bytes_total",
        &[],
        "Part of uma_prefetched_bytes_total that no engine used: it was passed over, reclaimed \
         before, or evicted since memory was short.",
    ),
    Metric::counter(
        Source::Daemon,
        "uma_engine_cache_emptied_bytes_total",
        &[],
        "Memory that returned while empty_cache ran. It is measured by MemFree, unaccounted memory \
         and the engine's own memory; whichever shows most counts.",
    ),
    Metric::gauge(
        Source::Daemon,
        "uma_engine_evicting",
        &["engine"],
        "1 while evict_checkpoint tracks the load of the engine.",
    )
    .flag(),
    Metric::gauge(
        Source::Daemon,
        "uma_temporary_settings",
        &["setting"],
        "1 while a remedy has changed the setting temporarily. read_ahead_kb covers all disks, \
         engine_pause all engines that are paused briefly to empty their caches.",
    )
    .closed(&[("setting", &SETTING_NAMES)])
    .flag()
    .hides_zero(),
    Metric::counter(
        Source::Daemon,
        "uma_temporary_settings_undone_total",
        &["result"],
        "Ended temporary settings by result: restored, already_back (it had its former value \
         already), left_alone (changed by others since, or gone), failed (tried again).",
    )
    .closed(&[("result", &UndoResult::NAMES)]),
    Metric::gauge(
        Source::Daemon,
        "uma_paused",
        &[],
        "1 while a pause suppresses all remedies: a person has paused umawarden, or the pause \
         state is unknown.",
    )
    .flag(),
    Metric::gauge(
        Source::Daemon,
        "uma_guard_rails_restored",
        &[],
        "1 once the actions of earlier runs are known from the journal; until then no remedy acts.",
    )
    .flag(),
    Metric::gauge(
        Source::Daemon,
        "uma_silences",
        &[],
        "Silences in force; each suppresses the remedies of some rules.",
    ),
    Metric::gauge(
        Source::Daemon,
        "uma_action_budget_left",
        &[],
        "Actions that guard_rails.budget still allows now, of all remedies, in the mode in force.",
    ),
    Metric::gauge(
        Source::Daemon,
        "uma_remedy_breaker_open",
        &["group", "rule"],
        "1 while the breaker blocks the remedy, because the remedy has missed its aim too often in \
         a row. If the breaker counts by engine: 1 while it is open for any engine.",
    )
    .flag()
    .hides_zero(),
    Metric::gauge(
        Source::Daemon,
        "uma_remedy_approval_pending",
        &["group", "rule"],
        "1 while the remedy waits for a person to approve an action, or to deny one.",
    )
    .flag()
    .hides_zero(),
    Metric::gauge(
        Source::Daemon,
        "uma_remedy_goes_ahead_timestamp_seconds",
        &["group", "rule"],
        "Time at which the remedy does what it has announced unless a person denies it \
         (unless_denied_within), in seconds since 1970; 0 if nothing is announced.",
    )
    .hides_zero(),
    Metric::gauge(
        Source::Daemon,
        "uma_config_last_reload_successful",
        &[],
        "1 if the last reload of configuration and rules succeeded.",
    )
    .flag(),
    Metric::gauge(
        Source::Daemon,
        "uma_config_last_reload_success_timestamp_seconds",
        &[],
        "Time when configuration and rules were last applied, in seconds since 1970.",
    ),
    Metric::counter(
        Source::Daemon,
        "uma_web_refused_requests_total",
        &["reason"],
        "Requests refused by access control: no_credential, wrong_credential, expired, role (too \
         low), local_only (this node only), cross_site (from a page of another site), rate_limit. \
         Also busy (too many passwords to verify at once), connections (too many of one address), \
         unread (responses that the address does not read).",
    )
    .closed(&[("reason", &RefusalReason::NAMES)])
    .hides_zero(),
    Metric::counter(
        Source::Daemon,
        "uma_web_failed_handshakes_total",
        &[],
        "Failed TLS handshakes: no TLS, a missing or invalid certificate, too slow.",
    )
    .hides_zero(),
    Metric::gauge(
        Source::Daemon,
        "uma_web_certificate_expiry_timestamp_seconds",
        &[],
        "Expiry time of this server's certificate, in seconds since 1970; missing without TLS.",
    ),
    Metric::gauge(
        Source::Daemon,
        "uma_web_config_last_reload_successful",
        &[],
        "1 if the present content of --web.config.file and --web.tokens.file is in force (and of \
         the files that they name); missing without any.",
    )
    .flag(),
    Metric::gauge(
        Source::Daemon,
        "uma_web_config_last_reload_success_timestamp_seconds",
        &[],
        "Time when --web.config.file and --web.tokens.file were last applied, in seconds since \
         1970; missing without any.",
    ),
    Metric::gauge(Source::Journal, "uma_journal_up", &[], "1 if the journal can be written.")
        .flag(),
    Metric::gauge(Source::Journal, "uma_journal_size_bytes", &[], "Size of the journal on disk."),
    Metric::counter(
        Source::Journal,
        "uma_journal_dropped_entries_total",
        &[],
        "Entries that did not reach the journal.",
    ),
    Metric::counter(
        Source::Journal,
        "uma_journal_write_errors_total",
        &[],
        "Failed writes to the journal.",
    ),
    Metric::counter(
        Source::Journal,
        "uma_journal_lost_total",
        &[],
        "Times that the journal was deleted, replaced or damaged while umawarden ran, and was \
         begun anew. No machine is rebooted while lost entries about reboots could matter.",
    ),
    Metric::counter(
        Source::Daemon,
        "uma_recorder_dropped_steps_total",
        &[],
        "Steps missing in the recording: its thread was behind, or its disk failed.",
    ),
    Metric::counter(
        Source::Daemon,
        "uma_recorder_written_bytes_total",
        &[],
        "Bytes that the flight recorder wrote, those of incident files included.",
    ),
    Metric::counter(
        Source::Daemon,
        "uma_recorder_write_errors_total",
        &[],
        "Failed writes to the recording and to incident files.",
    ),
    Metric::counter(
        Source::Daemon,
        "uma_recorder_incidents_total",
        &[],
        "Incident files that were begun.",
    ),
    Metric::counter(
        Source::Process,
        "process_cpu_seconds_total",
        &[],
        "User and system CPU time of this process.",
    ),
    Metric::gauge(
        Source::Process,
        "process_resident_memory_bytes",
        &[],
        "Resident memory of this process.",
    ),
    Metric::gauge(
        Source::Process,
        "process_virtual_memory_bytes",
        &[],
        "Virtual memory of this process.",
    ),
    Metric::gauge(
        Source::Process,
        "process_open_fds",
        &[],
        "Open file descriptors of this process.",
    ),
    Metric::gauge(
        Source::Process,
        "process_max_fds",
        &[],
        "Most file descriptors that this process may open.",
    ),
    Metric::gauge(
        Source::Process,
        "process_start_time_seconds",
        &[],
        "When this process started, in seconds since 1970.",
    ),
    Metric::gauge(Source::Process, "process_threads", &[], "Threads of this process."),
];
