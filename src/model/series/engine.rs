//! Inference engines and where in their lives they are.

use super::super::{EngineKind, EnginePhase, ReleaseEnd, Source};
use super::{Metric, MetricKind};

const PHASES: [&str; EnginePhase::ALL.len()] = names!(EnginePhase);

const KINDS: [&str; EngineKind::ALL.len()] = names!(EngineKind);

const ENDS: [&str; ReleaseEnd::ALL.len()] = names!(ReleaseEnd);

const LEFT: &[&str] = &["unaccounted", "shmem", "page_cache", "orphans"];

/// This area's metrics.
pub(super) const METRICS: &[Metric] = &[
    Metric::gauge(
        Source::Engines,
        "uma_engines",
        &[],
        "Inference engines of which processes are there, declared ones and those known by name.",
    ),
    Metric::new(
        MetricKind::Info,
        Source::Engines,
        "uma_engine_info",
        &["engine", "kind"],
        "Which engines are there, or were in the last ten minutes, and what they are.",
    )
    .closed(&[("kind", &KINDS)])
    .flag(),
    Metric::counter(
        Source::Engines,
        "uma_engine_starts_total",
        &["engine"],
        "Lives of the engine that were seen to begin: a restart is a new one.",
    ),
    Metric::gauge(
        Source::Engines,
        "uma_engine_phase",
        &["engine", "phase"],
        "1 for the phase that the engine is in: starting, loading, ready, serving, stopping, or \
         gone (for ten minutes, then its series end).",
    )
    .closed(&[("phase", &PHASES)])
    .flag(),
    Metric::gauge(
        Source::Engines,
        "uma_engine_phase_seconds",
        &["engine"],
        "How long the engine has been in its phase.",
    ),
    Metric::gauge(
        Source::Engines,
        "uma_engine_stuck",
        &["engine"],
        "1 while a starting or loading engine has made no progress for its stuck_after: nothing \
         read, no memory taken or given back, no process begun, hardly a line in its log.",
    )
    .flag(),
    Metric::gauge(
        Source::Engines,
        "uma_engine_without_progress_seconds",
        &["engine"],
        "How long a starting or loading engine has made no progress; absent in other phases.",
    ),
    Metric::gauge(
        Source::Engines,
        "uma_engine_load_read_bytes",
        &["engine"],
        "What the engine read from storage until it was ready (read_bytes of /proc/PID/io), since \
         it was found; pages that were in the cache are not in it.",
    ),
    Metric::gauge(
        Source::Engines,
        "uma_engine_memory_bytes",
        &["engine", "type"],
        "Memory of the engine's processes (RssAnon, RssFile, RssShmem and HugetlbPages of \
         /proc/PID/status): pages that several of them share count for each. What the driver has \
         taken for the engine is not in it.",
    )
    .closed(&[("type", &["anon", "file", "shmem", "hugetlb"])]),
    Metric::gauge(
        Source::Engines,
        "uma_engine_growth_bytes",
        &["engine"],
        "What the engine has taken within the last 10 s, as stop_engine counts it: its processes' \
         anonymous, shared and huge pages, and what no process shows where that is laid to it.",
    ),
    Metric::gauge(
        Source::Engines,
        "uma_engine_mapped_model_bytes",
        &["engine"],
        "How much of its model files the engine has mapped, resident or not.",
    ),
    Metric::gauge(Source::Engines, "uma_engine_processes", &["engine"], "Processes of the engine."),
    Metric::gauge(
        Source::Engines,
        "uma_engine_requests",
        &["engine"],
        "Requests that the engine works on or keeps waiting, where it tells without a key.",
    ),
    Metric::gauge(
        Source::Engines,
        "uma_engine_orphans",
        &["engine"],
        "Processes that outlive the engine's server and hold memory (64 MiB or more) or the GPU.",
    ),
    Metric::gauge(
        Source::Engines,
        "uma_engine_held_bytes",
        &["engine", "type"],
        "What an engine that has died held when it was last seen alive, above what the node had \
         before it: memory that no counter names, shared memory, page cache, and what processes \
         hold that outlive its server; absent while it lives, and where it cannot be told.",
    )
    .closed(&[("type", LEFT)]),
    Metric::gauge(
        Source::Engines,
        "uma_engine_outstanding_bytes",
        &["engine", "type"],
        "What of uma_engine_held_bytes the node has not got back yet; followed for ten minutes, or \
         until another engine begins.",
    )
    .closed(&[("type", LEFT)]),
    Metric::counter(
        Source::Engines,
        "uma_engine_releases_total",
        &["end"],
        "Engines that held 256 MiB or more and died, by what came of it: all returned, some stayed \
         (it has not fallen for 10 s; if it returns later, that is counted, too), overtaken by the \
         next engine, or unknown what they held.",
    )
    .closed(&[("end", &ENDS)]),
    Metric::new(
        MetricKind::Histogram,
        Source::Engines,
        "uma_engine_release_seconds_bucket",
        &["le"],
        "How long it took from when an engine was last seen alive until all that it held was back, \
         its page cache left out; how often it took no longer than le seconds.",
    ),
    Metric::new(
        MetricKind::Histogram,
        Source::Engines,
        "uma_engine_release_seconds_sum",
        &[],
        "All these times together.",
    ),
    Metric::new(
        MetricKind::Histogram,
        Source::Engines,
        "uma_engine_release_seconds_count",
        &[],
        "How often all that an engine held came back.",
    ),
    Metric::gauge(
        Source::Engines,
        "uma_engine_requests_running",
        &["engine"],
        "Requests that the engine works on (SGLang num_running_reqs, vLLM num_requests_running, \
         llama-server requests_processing, ComfyUI queue_running, LMDeploy \
         num_requests_running, text-generation-inference tgi_batch_current_size).",
    ),
    Metric::gauge(
        Source::Engines,
        "uma_engine_requests_waiting",
        &["engine"],
        "Requests that the engine keeps waiting (SGLang num_waiting_reqs, vLLM \
         num_requests_waiting, llama-server requests_deferred, ComfyUI queue_pending, LMDeploy \
         num_requests_waiting, text-generation-inference tgi_queue_size).",
    ),
    Metric::gauge(
        Source::Engines,
        "uma_engine_kv_cache_usage_ratio",
        &["engine"],
        "Share of the engine's KV cache that is in use (SGLang token_usage, vLLM \
         kv_cache_usage_perc); of several ranks the fullest. The cache itself keeps its memory \
         from start to end.",
    )
    .share(),
    Metric::gauge(
        Source::Engines,
        "uma_engine_kv_cache_available_tokens",
        &["engine"],
        "Tokens for which SGLang's KV cache has room, on all ranks: free, or held by prefixes that \
         it would give up.",
    ),
    Metric::gauge(
        Source::Engines,
        "uma_engine_sleeping",
        &["engine"],
        "1 while vLLM sleeps (engine_sleep_state is not awake): it answers, and serves nothing.",
    )
    .flag(),
    Metric::gauge(
        Source::Engines,
        "uma_engine_scan_processes",
        &[],
        "Processes that the last look for engines has found, kernel threads left out.",
    ),
    Metric::gauge(
        Source::Engines,
        "uma_engine_scan_silent_processes",
        &[],
        "Processes that keep whoever reads their command line, environment or mappings waiting, as \
         with a page of a FUSE file system that hangs; each is left out, and the log names it.",
    ),
    Metric::gauge(
        Source::Docker,
        "uma_containers",
        &[],
        "Containers that run, as Docker tells; missing, as is uma_source_up of docker, where there \
         is no Docker and no engine is declared by a container's name or label.",
    ),
];
