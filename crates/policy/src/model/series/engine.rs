//! Inference engines and where in their lives they are.

use super::super::{EngineKind, EnginePhase, Killer, ReleaseEnd, Source};
use super::{Metric, MetricKind};

const LEFT: &[&str] = &["unaccounted", "shmem", "page_cache", "orphans"];

/// This area's metrics.
pub(super) const METRICS: &[Metric] = &[
    Metric::gauge(
        Source::Engines,
        "uma_engines",
        &[],
        "Inference engines that have processes: declared ones, and those recognised by name.",
    ),
    Metric::new(
        MetricKind::Info,
        Source::Engines,
        "uma_engine_info",
        &["container", "engine", "image", "kind", "model", "namespace", "pod", "unit", "version"],
        "What each engine is: its kind, the model as clients name it, its container with the \
         image, its pod with the namespace, its systemd unit, and the version that the tag of an \
         official image names. What is unknown has no label, and a pod only where the container \
         runtime confirms it. An engine is present, or was within the last ten minutes. Owners of \
         processes and containers choose these texts; each is cut to 200 bytes.",
    )
    .closed(&[("kind", &EngineKind::NAMES)])
    .optional(&["container", "image", "model", "namespace", "pod", "unit", "version"])
    .flag(),
    Metric::gauge(
        Source::Engines,
        "uma_engine_rank_start_seconds",
        &["engine", "gang", "phase", "rank", "uid"],
        "Start of the engine's server, in seconds after the node's boot, where the engine spans \
         nodes: what its ranks have in common (gang, uid), the number of this rank, from 0 or \
         unknown, and its phase.",
    )
    .closed(&[("phase", &EnginePhase::NAMES)]),
    Metric::gauge(
        Source::Engines,
        "uma_engine_rank_ended_seconds",
        &["engine", "gang", "killer", "rank", "uid"],
        "Time since the end of a rank of an engine that spans nodes, and the cause of its death, \
         for ten minutes. The other nodes find out by it which rank ended first.",
    )
    .closed(&[("killer", &Killer::NAMES)]),
    Metric::gauge(
        Source::Engines,
        "uma_engine_ranks",
        &["engine"],
        "Living ranks of an engine that spans nodes, on this and the other nodes of the cluster.",
    ),
    Metric::gauge(
        Source::Engines,
        "uma_engine_rank_lost",
        &["engine"],
        "1 once a rank of an engine that spans nodes has ended, on another node or the server on \
         this one: what is left holds memory and cannot serve.",
    )
    .flag(),
    Metric::counter(
        Source::Engines,
        "uma_engine_starts_total",
        &["engine"],
        "Starts of the engine that were observed; a restart counts as a new start.",
    ),
    Metric::gauge(
        Source::Engines,
        "uma_engine_phase",
        &["engine", "phase"],
        "1 for the phase of the engine: starting, loading, ready, serving, stopping or gone. The \
         series of a gone engine end after ten minutes.",
    )
    .closed(&[("phase", &EnginePhase::NAMES)])
    .flag(),
    Metric::gauge(
        Source::Engines,
        "uma_engine_phase_seconds",
        &["engine"],
        "Time since the engine entered its phase.",
    ),
    Metric::gauge(
        Source::Engines,
        "uma_engine_stuck",
        &["engine"],
        "1 while an engine has made no progress for its stuck_after. Progress of a starting or \
         loading engine is data read, memory taken or released, a process begun or ended, or more \
         than a few lines in its log; of the requests of vLLM or llama-server, a token or a change \
         of the KV cache in use; of SGLang, an answer of its scheduler.",
    )
    .flag(),
    Metric::gauge(
        Source::Engines,
        "uma_engine_without_progress_seconds",
        &["engine"],
        "Time for which a starting or loading engine has made no progress; absent in other phases.",
    ),
    Metric::gauge(
        Source::Engines,
        "uma_engine_load_read_bytes",
        &["engine"],
        "Bytes that the engine read from storage after it was found and until it was ready \
         (read_bytes of /proc/PID/io). Pages that were cached already are not included.",
    ),
    Metric::gauge(
        Source::Engines,
        "uma_engine_memory_bytes",
        &["engine", "type"],
        "Memory of the engine's processes (RssAnon, RssFile, RssShmem and HugetlbPages of \
         /proc/PID/status). A page that several of them share counts for each. Memory that the \
         driver has allocated for the engine is not included.",
    )
    .closed(&[("type", &["anon", "file", "shmem", "hugetlb"])]),
    Metric::gauge(
        Source::Engines,
        "uma_engine_growth_bytes",
        &["engine"],
        "Memory that the engine has taken within the last 10 s, as stop_engine counts it. It is \
         memory of its processes (anonymous, shared, huge pages, pipes, sockets), and unaccounted \
         memory that is attributed to the engine.",
    ),
    Metric::gauge(
        Source::Engines,
        "uma_engine_expected_growth_bytes",
        &["engine"],
        "Growth that is still to come within the minute after the engine became ready. It is the \
         largest growth after ready of its last loads with the same configuration (else with any), \
         minus its growth so far. Missing at other times, and where no load is known.",
    ),
    Metric::gauge(
        Source::Engines,
        "uma_engine_load_floor_change_bytes",
        &["engine", "what"],
        "Change of the lowest available memory of a load by another kernel, driver or image. It is \
         the lowest MemAvailable during the last load of the engine and the minute after it, minus \
         the median of its earlier loads with another one. Missing where there is no such load.",
    )
    .closed(&[("what", &["kernel", "driver", "image"])])
    .signed(),
    Metric::gauge(
        Source::Engines,
        "uma_engine_mapped_model_bytes",
        &["engine"],
        "Bytes of its model files that the engine has mapped, resident or not.",
    ),
    Metric::gauge(Source::Engines, "uma_engine_processes", &["engine"], "Processes of the engine."),
    Metric::gauge(
        Source::Engines,
        "uma_engine_requests",
        &["engine"],
        "Requests that the engine processes or queues; missing where the engine does not report \
         them.",
    ),
    Metric::gauge(
        Source::Engines,
        "uma_engine_orphans",
        &["engine"],
        "Processes that outlive the engine's server, and have 64 MiB or more of memory or the GPU \
         open.",
    ),
    Metric::gauge(
        Source::Engines,
        "uma_engine_owned_bytes",
        &["engine", "type"],
        "Memory that a dead engine owned when it was last observed alive, above what was in use \
         before it. It is unaccounted memory, shared memory, page cache, and memory of processes \
         that outlive its server. Absent while the engine lives, and where the amount is unknown.",
    )
    .closed(&[("type", LEFT)]),
    Metric::gauge(
        Source::Engines,
        "uma_engine_outstanding_bytes",
        &["engine", "type"],
        "Part of uma_engine_owned_bytes that has not returned yet. It is tracked for ten minutes, \
         or until another engine starts.",
    )
    .closed(&[("type", LEFT)]),
    Metric::counter(
        Source::Engines,
        "uma_engine_releases_total",
        &["end"],
        "Releases of memory by dead engines that owned 256 MiB or more. Ends: returned (all of \
         it), stayed (no decrease for 10 s), overtaken (by the start of another engine), unknown \
         (how much was owned). Memory that returns after stayed is counted as well.",
    )
    .closed(&[("end", &ReleaseEnd::NAMES)])
    .hides_zero(),
    Metric::new(
        MetricKind::Histogram,
        Source::Engines,
        "uma_engine_release_seconds_bucket",
        &["le"],
        "Releases that took no longer than le seconds. A release lasts from when the engine was \
         last observed alive until all its memory has returned, page cache excepted.",
    )
    .hides_zero(),
    Metric::new(
        MetricKind::Histogram,
        Source::Engines,
        "uma_engine_release_seconds_sum",
        &[],
        "Sum of the durations of these releases.",
    )
    .hides_zero(),
    Metric::new(
        MetricKind::Histogram,
        Source::Engines,
        "uma_engine_release_seconds_count",
        &[],
        "Releases in which all memory of an engine returned.",
    )
    .hides_zero(),
    Metric::gauge(
        Source::Engines,
        "uma_engine_requests_running",
        &["engine"],
        "Requests that the engine processes (SGLang num_running_reqs, vLLM num_requests_running, \
         llama-server requests_processing, ComfyUI queue_running, LMDeploy num_requests_running, \
         text-generation-inference tgi_batch_current_size, mistral.rs sequences_running).",
    ),
    Metric::gauge(
        Source::Engines,
        "uma_engine_requests_waiting",
        &["engine"],
        "Requests that the engine queues (SGLang num_waiting_reqs, vLLM num_requests_waiting, \
         llama-server requests_deferred, ComfyUI queue_pending, LMDeploy num_requests_waiting, \
         text-generation-inference tgi_queue_size, mistral.rs sequences_waiting).",
    ),
    Metric::gauge(
        Source::Engines,
        "uma_engine_kv_cache_usage_ratio",
        &["engine"],
        "Used share of the engine's KV cache, of the fullest rank (SGLang token_usage, vLLM \
         kv_cache_usage_perc, llama-server kv_cache_usage_ratio, LMDeploy gpu_cache_usage_perc). \
         The cache keeps its memory from start to end.",
    )
    .share(),
    Metric::gauge(
        Source::Engines,
        "uma_engine_kv_cache_available_tokens",
        &["engine"],
        "Free tokens in SGLang's KV cache, on all ranks: unused, or used by prefixes that SGLang \
         would evict.",
    ),
    Metric::gauge(
        Source::Engines,
        "uma_engine_sleeping",
        &["engine"],
        "1 while vLLM sleeps (engine_sleep_state is not awake): it responds, but serves nothing.",
    )
    .flag(),
    Metric::gauge(
        Source::Engines,
        "uma_engine_scan_processes",
        &[],
        "Processes that the last scan for engines has found, without kernel threads.",
    ),
    Metric::gauge(
        Source::Engines,
        "uma_engine_scan_silent_processes",
        &[],
        "Processes that block any reader of their command line, environment or mappings (as with a \
         page of a hanging FUSE file system). Each is left out, and the log names it.",
    ),
    Metric::gauge(
        Source::Docker,
        "uma_containers",
        &[],
        "Running containers, as Docker reports them. Missing, as is \
         uma_scrape_collector_success of docker, where there is no Docker and no engine is \
         declared by a container's name or label.",
    ),
];
