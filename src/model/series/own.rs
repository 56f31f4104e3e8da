//! What this program tells about itself.

use super::super::{
    Action, HoldReason, KernelEvent, Mode, OutcomeResult, ProgramEvent, RefusalReason,
    SETTING_NAMES, Source, UndoResult,
};
use super::{Metric, MetricKind};

const REFUSALS: [&str; RefusalReason::ALL.len()] = names!(RefusalReason);
const SOURCES: [&str; Source::ALL.len()] = names!(Source);

/// Whoever acts has no reason to hold.
const REASONS: [&str; HoldReason::ALL.len() + 1] = {
    let mut names = [""; HoldReason::ALL.len() + 1];
    let mut next = 0;
    while next < HoldReason::ALL.len() {
        names[next + 1] = HoldReason::ALL[next].name();
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
        &["version"],
        "Which build this is.",
    )
    .flag(),
    Metric::gauge(
        Source::Daemon,
        "uma_mode",
        &["mode"],
        "1 for the mode in force: observe tells, enforce acts.",
    )
    .closed(&[("mode", &[Mode::Observe.name(), Mode::Enforce.name()])])
    .flag(),
    Metric::gauge(
        Source::Daemon,
        "uma_source_up",
        &["source"],
        "1 if the source answered when it was last read.",
    )
    .closed(&[("source", &SOURCES)])
    .flag(),
    Metric::gauge(
        Source::Daemon,
        "uma_source_duration_seconds",
        &["source"],
        "How long the last read of the source took.",
    )
    .closed(&[("source", &SOURCES)]),
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
        "How long after the last reading of memory the next one is due; it follows what memory \
         does unless sampling_interval is fixed.",
    ),
    Metric::new(
        MetricKind::Histogram,
        Source::Daemon,
        "uma_loop_reaction_seconds_bucket",
        &["le"],
        "How long the loop took from when a sample was due, or it was woken, until what it decided \
         was handed over; how often it took no longer than le seconds.",
    ),
    Metric::new(
        MetricKind::Histogram,
        Source::Daemon,
        "uma_loop_reaction_seconds_sum",
        &[],
        "All these times together.",
    ),
    Metric::new(
        MetricKind::Histogram,
        Source::Daemon,
        "uma_loop_reaction_seconds_count",
        &[],
        "How often the loop had something to do.",
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
        "Numbers missing between kernel-log records: overwritten in the kernel's ring before they \
         could be read, which the syslog ring does not tell. In a file or FIFO: not in it, or \
         damaged there.",
    ),
    Metric::counter(
        Source::KernelLog,
        "uma_kernel_log_malformed_records_total",
        &[],
        "Kernel-log lines skipped since they are no record (`prio,seq,usec,flags;text`).",
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
        "1 for the way in which the kernel log is read: kmsg, syslog (the ring of syslog(2)), file \
         (a file or FIFO), or none: nothing reads it, and what it feeds is missing.",
    )
    .closed(&[("reader", &["kmsg", "syslog", "file", "none"])])
    .flag(),
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
        "Events in what syslog(2) shows of the kernel log, where /dev/kmsg cannot be read: local \
         users can forge its lines. A rule that reads this may notify, and nothing more.",
    )
    .closed(&[("event", &KernelEvent::KINDS)]),
    Metric::gauge(
        Source::KernelLog,
        "uma_kernel_event_last_timestamp_seconds",
        &["event"],
        "Time of the last such fault of this boot, in seconds since 1970; 0 if none is known. \
         Restarts of this program do not reset it, a reboot does.",
    )
    .closed(&[("event", &KernelEvent::KINDS)]),
    Metric::counter(
        Source::Daemon,
        "uma_events_total",
        &["event"],
        "Events that this program found itself: lives and deaths of engines, memory verdicts, \
         reboots, received alerts. They do not depend on the kernel log.",
    )
    .closed(&[("event", &ProgramEvent::KINDS)]),
    Metric::gauge(
        Source::Daemon,
        "uma_event_last_timestamp_seconds",
        &["event"],
        "Time of the last such event of this boot, in seconds since 1970; 0 if none is known. \
         Restarts of this program do not reset it, a reboot does.",
    )
    .closed(&[("event", &ProgramEvent::KINDS)]),
    Metric::gauge(
        Source::Daemon,
        "uma_rule_state",
        &["group", "rule", "state"],
        "1 for the state the rule is in: inactive, pending, firing or unknown.",
    )
    .closed(&[("state", &["inactive", "pending", "firing", "unknown"])])
    .flag(),
    Metric::gauge(
        Source::Daemon,
        "uma_rule_evaluation_duration_seconds",
        &[],
        "How long the last evaluation of all due rules took.",
    ),
    Metric::counter(
        Source::Daemon,
        "uma_rule_evaluation_failures_total",
        &["group", "rule"],
        "Evaluations that ended in an error, such as a many-to-many match.",
    ),
    Metric::counter(
        Source::Daemon,
        "uma_decisions_total",
        &["reason", "rule", "verdict"],
        "Decisions to act or to hold, and why held.",
    )
    .closed(&[("reason", &REASONS), ("verdict", &["act", "hold"])]),
    Metric::counter(
        Source::Daemon,
        "uma_actions_total",
        &["action", "outcome"],
        "Actions by how they ended; skipped: observe mode only told; not_done: nothing was begun.",
    )
    .closed(&[("action", &Action::NAMES), ("outcome", &OutcomeResult::NAMES)]),
    Metric::counter(
        Source::Daemon,
        "uma_evicted_bytes_total",
        &["action"],
        "Bytes of model files that evict_checkpoint has put out of memory behind an engine that \
         loads, by cachestat(2) before and after.",
    )
    .closed(&[("action", &["evict_checkpoint"])]),
    Metric::counter(
        Source::Daemon,
        "uma_evicted_refaulted_bytes_total",
        &["action"],
        "Of uma_evicted_bytes_total, the bytes that were read into memory again while the load was \
         still followed.",
    )
    .closed(&[("action", &["evict_checkpoint"])]),
    Metric::counter(
        Source::Daemon,
        "uma_engine_cache_emptied_bytes_total",
        &[],
        "Memory that came back while empty_cache was at work, by MemFree, unaccounted memory or \
         the engine's own, whichever shows most.",
    ),
    Metric::gauge(
        Source::Daemon,
        "uma_engine_evicting",
        &["engine"],
        "1 while evict_checkpoint follows the engine's load.",
    )
    .flag(),
    Metric::gauge(
        Source::Daemon,
        "uma_temporary_settings",
        &["setting"],
        "1 while a remedy has changed the setting for a while; read_ahead_kb stands for all disks, \
         engine_pause for all engines that are paused for a moment to be emptied.",
    )
    .closed(&[("setting", &SETTING_NAMES)])
    .flag(),
    Metric::counter(
        Source::Daemon,
        "uma_temporary_settings_undone_total",
        &["result", "setting"],
        "Temporary settings by how their end went: restored, already_back (it had its value again \
         before), left_alone (somebody else has changed it since, or it has gone), failed (tried \
         again).",
    )
    .closed(&[("result", &UndoResult::NAMES), ("setting", &SETTING_NAMES)]),
    Metric::gauge(
        Source::Daemon,
        "uma_paused",
        &[],
        "1 while nothing is done, since a person has paused the program or that cannot be told.",
    )
    .flag(),
    Metric::gauge(
        Source::Daemon,
        "uma_guard_rails_restored",
        &[],
        "1 once it is known from the journal what earlier runs did; until then nothing is done.",
    )
    .flag(),
    Metric::gauge(
        Source::Daemon,
        "uma_silences",
        &[],
        "Silences in force; each holds back the remedies of some rules.",
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
        "1 while the remedy is stopped, since it has missed its aim too often in a row; where its \
         breaker counts by engine, for any engine.",
    )
    .flag(),
    Metric::gauge(
        Source::Daemon,
        "uma_remedy_approval_pending",
        &["group", "rule"],
        "1 while the remedy waits for a person to approve of an act.",
    )
    .flag(),
    Metric::gauge(
        Source::Daemon,
        "uma_config_last_reload_successful",
        &[],
        "1 if the last reload of configuration and rules was taken over.",
    )
    .flag(),
    Metric::gauge(
        Source::Daemon,
        "uma_config_last_reload_success_timestamp_seconds",
        &[],
        "When configuration and rules were last taken over, in seconds since 1970.",
    ),
    Metric::counter(
        Source::Daemon,
        "uma_web_refused_requests_total",
        &["reason"],
        "Requests that were refused at the door: without a credential that is needed, with a wrong \
         or expired one, with one of too small a role, what is answered on this node alone, what a \
         page of another site has sent, beyond rate_limit, with too many passwords at once; and \
         connections beyond those of one address, and answers that its address does not read.",
    )
    .closed(&[("reason", &REFUSALS)]),
    Metric::counter(
        Source::Daemon,
        "uma_web_failed_handshakes_total",
        &[],
        "TLS handshakes that came to nothing: no TLS, a certificate that is missing or not good, \
         too slow.",
    ),
    Metric::gauge(
        Source::Daemon,
        "uma_web_certificate_expiry_timestamp_seconds",
        &[],
        "Until when the certificate of this server is good, in seconds since 1970; missing without \
         TLS.",
    ),
    Metric::gauge(
        Source::Daemon,
        "uma_web_config_last_reload_successful",
        &[],
        "1 if the files of --web.config.file and --web.tokens.file, and those they name, are in \
         force as they stand; missing without any.",
    )
    .flag(),
    Metric::gauge(
        Source::Daemon,
        "uma_web_config_last_reload_success_timestamp_seconds",
        &[],
        "When those files were last taken over, in seconds since 1970.",
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
        "How often the journal was deleted, replaced or damaged while umawarden ran, and was begun \
         anew; no machine is rebooted while what is lost of reboots could matter.",
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
