"""What is on each dashboard; what a person asks first comes first."""

from generate import (
    NODE,
    NODES,
    OF_CLUSTERS,
    OF_FLEET,
    annotations,
    bars,
    board,
    counted,
    graph,
    memory_stack,
    number,
    percentiles,
    ranking,
    rows,
    states,
    variable,
    with_panels,
    word,
)

INSTANCE = variable("instance", "node", "label_values(uma_build_info, instance)")
INSTANCES = variable("instance", "nodes", "label_values(uma_build_info, instance)", is_multi=True)

CLUSTERS = variable("cluster", "clusters", "label_values(uma_build_info, cluster)", is_multi=True)
# Recording rules are there where the fleet is viewed.
CLUSTERS_OF_FLEET = variable("cluster", "clusters", "label_values(job:uma_nodes:count, cluster)",
                             is_multi=True)
INSTANCES_OF_CLUSTERS = variable(
    "instance", "nodes", 'label_values(uma_build_info{cluster=~"$cluster"}, instance)', is_multi=True
)


def of_each_node(expr):
    """With the labels that distinguish nodes, and no name: so are the rows of a table joined."""
    return f"max by (cluster, instance) ({expr})"


def node():
    now = [
        memory_stack(NODE),
        number("Available", "What can be had without swapping, as the kernel estimates it. A driver "
               "gets less: see free above the reserve.", "bytes", 'uma_pool_available_bytes{pool="host"}'),
        number("Free above the reserve", "Below 0 the kernel reclaims, and allocations stall.",
               "bytes", 'uma_pool_headroom_bytes{pool="host"}', [(None, "red"), (0, "orange"), (2**30, "green")]),
        number("Free in blocks of 2 MiB", "What a driver can take in large pieces.", "bytes",
               'uma_pool_contiguous_bytes{block="2MiB", pool="host"}'),
        number("No counter names", "What drivers hold: a serving engine's memory on the GPU, or a leak.",
               "bytes", 'uma_pool_unaccounted_bytes{pool="host"}'),
        word("Verdict", "What holds memory that no counter names: umawarden verdict explains it.",
             "uma_memory_verdict == 1", "verdict"),
        word("Mode", "observe reports what would be done, enforce does it.", "uma_mode == 1", "mode"),
    ]
    memory = [
        graph("Free and available", "Free memory against the kernel's watermarks.", "bytes", [
            ("available", 'uma_pool_available_bytes{pool="host"}'),
            ("free", 'uma_pool_free_bytes{pool="host"}'),
            ("watermark {{watermark}}", 'uma_pool_watermark_bytes{pool="host"}'),
        ]),
        graph("Pools", "What an engine can get of each place of memory. On GB10 and Jetson there is "
              "one; a GPU with memory of its own is another.", "bytes", [
                  ("{{pool}}: can be had", "uma_pool_obtainable_bytes"),
                  ("{{pool}}: free", "uma_pool_free_bytes"),
              ]),
        graph("Fragmentation", "Free memory in blocks that large. Far below what is free, large "
              "allocations fail though memory is there.", "bytes", [
                  ("free", 'uma_pool_free_bytes{pool="host"}'),
                  ("in blocks of {{block}}", 'uma_pool_contiguous_bytes{pool="host"}'),
              ]),
        graph("Reclaim", "Pages looked at to be taken back. Direct means that an allocation waited "
              "for it.", "pps", [
                  ("{{reclaimer}}", "rate(uma_memory_reclaim_scanned_pages_total[$__rate_interval])"),
                  ("stalled allocations",
                   "sum by (instance) (rate(uma_memory_allocation_stalls_total[$__rate_interval]))"),
              ]),
        graph("Waiting for memory", "Share of time in which some, or all, tasks waited for memory.",
              "percentunit", [
                  ("{{share}}", 'rate(uma_pressure_stalled_seconds_total{resource="memory"}[$__rate_interval])'),
              ]),
        graph("Read back", "Pages read from disk again, or for the first time, while somebody waits: "
              "bystanders whose cache was thrown out show here.", "pps", [
                  ("major faults", "rate(uma_memory_major_page_faults_total[$__rate_interval])"),
                  ("soon after they were taken ({{kind}})",
                   "rate(uma_memory_refaulted_pages_total[$__rate_interval])"),
              ]),
        graph("Swap", "On unified memory swap hides that memory has run out.", "bytes", [
            ("used", "uma_swap_total_bytes - uma_swap_free_bytes"),
        ]),
    ]
    engines = [
        states("Phases", "The phase of each engine, as far as it is known.", [
            ("{{engine}} {{phase}}", "uma_engine_phase == 1"),
        ]),
        rows("What runs", "Model, pod, container, unit and version, as far as they are known.", [
            ("phase", "max by (engine, phase) (uma_engine_phase == 1) * on (engine) group_left "
             "(kind, model, namespace, pod, container, image, unit, version) uma_engine_info"),
        ], ["Time", "Value"], NODE, "short", 12, 8),
        graph("Memory of engines' processes", "What processes show; what a driver has taken for them "
              "is in no counter.", "bytes", [("{{engine}} {{type}}", "uma_engine_memory_bytes")]),
        graph("Growth", "What each engine has taken within ten seconds: the brake goes by this.",
              "bytes", [("{{engine}}", "uma_engine_growth_bytes")]),
        graph("Loading", "What of its model an engine has read, or mapped.", "bytes", [
            ("{{engine}} read", "uma_engine_load_read_bytes"),
            ("{{engine}} mapped", "uma_engine_mapped_model_bytes"),
        ]),
        graph("Model files evicted", "Bytes that evict_checkpoint evicted behind the reader, and what "
              "of them came back.", "Bps", [
                  ("evicted", "rate(uma_evicted_bytes_total[$__rate_interval])"),
                  ("came back", "rate(uma_evicted_refaulted_bytes_total[$__rate_interval])"),
              ]),
        graph("Memory as the driver lays it to engines", "On unified memory this is the node's own.",
              "bytes", [
                  ("{{engine}}", "uma_gpu_engine_memory_bytes"),
                  ("others", "uma_gpu_other_memory_bytes"),
              ]),
        graph("GPU", "How much of the time it computes.", "percentunit", [
            ("GPU {{gpu}}", "uma_gpu_utilization_ratio"),
        ]),
    ]
    events = [
        bars("Events", "Faults in the kernel log, and what the program found itself.", [
            ("{{event}}", "increase(uma_kernel_events_total[$__rate_interval]) > 0"),
            ("{{event}}", f"{counted('uma_events_total')} > 0"),
        ]),
        bars("Decisions", "To act, or to hold and why.", [
            ("{{rule}}: act", counted('uma_decisions_total{decision="act"}') + " > 0"),
            ("{{rule}}: hold, {{reason}}", counted("uma_holds_total") + " > 0"),
        ]),
        states("Rules", "Rules that are not at rest; unknown means that a source fails.", [
            ("{{rule}} {{state}}", "uma_rule_state == 1"),
        ], width=12, height=8),
        rows("Last events", "When each kind last happened in this boot.", [
            ("when", "(uma_kernel_event_last_timestamp_seconds or uma_event_last_timestamp_seconds)"
             " * 1000 > 0"),
        ], ["Time", "__name__", "job", "instance"], NODE, "dateTimeAsIso", 12, 8),
    ]
    program = [
        graph("Cost", "CPU of this program, as part of one core.", "percentunit", [
            ("CPU", "rate(process_cpu_seconds_total[$__rate_interval])"),
        ], width=6),
        graph("Resident memory", "Of this program.", "bytes", [
            ("resident", "process_resident_memory_bytes"),
        ], width=6),
        graph("Reaction", "How long the loop took to decide, at the 99th percentile.", "s", [
            ("p99", "histogram_quantile(0.99, sum by (le, instance) "
                    "(rate(uma_loop_reaction_seconds_bucket[5m])))"),
            ("between two samples", "uma_sampling_interval_seconds"),
        ], width=6),
        graph("Sources", "1 where a source answered.", "short", [
            ("{{collector}}", "uma_scrape_collector_success"),
        ], width=6),
    ]
    built = board("umawarden-node", "umawarden: node", "One node of unified memory.", [INSTANCE])
    groups = [("Now", now), ("Memory", memory), ("Engines", engines),
              ("What happened", events), ("umawarden itself", program)]
    return with_panels(built, groups), annotations(NODE)


def cluster():
    columns = [
        ("available", 'uma_pool_available_bytes{pool="host"}'),
        ("free", 'uma_pool_free_bytes{pool="host"}'),
        ("free in 2 MiB blocks", 'uma_pool_contiguous_bytes{block="2MiB", pool="host"}'),
        ("clean cache", 'uma_pool_page_cache_bytes{pool="host", state="clean"}'),
        ("unaccounted", 'uma_pool_unaccounted_bytes{pool="host"}'),
        ("reserve", 'uma_pool_reserve_bytes{pool="host"}'),
        ("all", 'uma_pool_total_bytes{pool="host"}'),
    ]
    now = [
        rows("Nodes", "The weakest is first; it decides what all of them can take.",
             [(name, of_each_node(expr)) for name, expr in columns], ["Time"], OF_CLUSTERS,
             first="available"),
        number("Nodes that answer", "Nodes whose umawarden Prometheus reaches.", "short",
               "count(uma_build_info)", selector=OF_CLUSTERS),
        number("Available on the weakest", "An engine that spans the nodes gets no more of each.",
               "bytes", 'min(uma_pool_available_bytes{pool="host"})', selector=OF_CLUSTERS),
        number("Weakest to strongest", "Below 0.9 SGLang refuses to start over several nodes.",
               "percentunit",
               'min by (cluster) (uma_pool_available_bytes{pool="host"}) '
               '/ max by (cluster) (uma_pool_available_bytes{pool="host"})',
               [(None, "red"), (0.9, "green")], OF_CLUSTERS),
        number("Different reserves", "Kinds of vm.min_free_kbytes; more than one is an oversight.",
               "short",
               'count by (cluster) (count_values by (cluster) ("bytes", uma_pool_reserve_bytes{pool="host"}))',
               [(None, "green"), (2, "orange")], OF_CLUSTERS),
        number("Alerts of rules", "Rules that fire.", "short",
               'sum(uma_rules{state="firing"})', selector=OF_CLUSTERS),
        number("Nodes in enforce mode", "The others only report what they would do.", "short",
               'sum(uma_mode{mode="enforce"})', selector=OF_CLUSTERS),
    ]
    compared = [
        graph("Available", "What can be had on each node.", "bytes", [
            ("{{instance}}", 'uma_pool_available_bytes{pool="host"}')], OF_CLUSTERS),
        graph("Free above the reserve", "Below 0 the node reclaims.", "bytes", [
            ("{{instance}}", 'uma_pool_headroom_bytes{pool="host"}')], OF_CLUSTERS),
        graph("Free in blocks of 2 MiB", "What a driver can take in large pieces.", "bytes", [
            ("{{instance}}", 'uma_pool_contiguous_bytes{block="2MiB", pool="host"}')], OF_CLUSTERS),
        graph("Page cache", "A download on one node is a difference between ranks.", "bytes", [
            ("{{instance}}", 'sum by (instance) (uma_pool_page_cache_bytes{pool="host"})')], OF_CLUSTERS),
        graph("No counter names", "What drivers hold on each node.", "bytes", [
            ("{{instance}}", 'uma_pool_unaccounted_bytes{pool="host"}')], OF_CLUSTERS),
        graph("Waiting for memory", "Share of time in which all tasks of a node waited.",
              "percentunit", [
                  ("{{instance}}", 'rate(uma_pressure_stalled_seconds_total{resource="memory", '
                                   'share="full"}[$__rate_interval])')], OF_CLUSTERS),
    ]
    compared.append(
        graph("Peers that answer", "1 where a node gets reports of another; rules about the cluster are "
              "unknown while one is silent.", "short", [
                  ("{{instance}} from {{peer}}", "uma_cluster_peer_up")], OF_CLUSTERS))
    compared.append(
        graph("Alerts of others", "Alerts that the nodes got from an Alertmanager and that still fire.", "short",
              [("{{instance}}", "uma_received_alerts")], OF_CLUSTERS))
    engines = [
        states("Phases", "The phase of each engine on each node.", [
            ("{{instance}} {{engine}} {{phase}}", "uma_engine_phase == 1")], OF_CLUSTERS),
        graph("Loading", "What each rank has read of the model: the slow one lets the others time "
              "out.", "bytes", [("{{instance}} {{engine}}", "uma_engine_load_read_bytes")],
              OF_CLUSTERS),
        graph("Growth", "What engines have taken within ten seconds.", "bytes", [
            ("{{instance}} {{engine}}", "uma_engine_growth_bytes")], OF_CLUSTERS),
    ]
    events = [
        bars("Kernel events", "Faults in the kernel logs.", [
            ("{{instance}} {{event}}", "increase(uma_kernel_events_total[$__rate_interval]) > 0")],
             OF_CLUSTERS),
        bars("Actions", "What was done; skipped: only reported, in observe mode.", [
            ("{{instance}} {{action}} {{outcome}}",
             counted("uma_actions_total") + " > 0")], OF_CLUSTERS),
        states("Rules", "Rules that fire.", [
            ("{{instance}} {{rule}}", 'uma_rule_state{state="firing"} == 1')], OF_CLUSTERS),
    ]
    built = board("umawarden-cluster", "umawarden: cluster", "Nodes side by side.",
                  [CLUSTERS, INSTANCES_OF_CLUSTERS])
    groups = [("Now", now), ("Compared", compared), ("Engines", engines), ("What happened", events)]
    return with_panels(built, groups), annotations(OF_CLUSTERS)


def fleet():
    """On recording rules alone: the cost does not grow with what each node exports."""
    hidden = ["Time", "__name__", "job"]
    available = "instance:uma_memory_available:ratio"
    firing = "instance:uma_rules_firing:sum"
    now = [
        number("Nodes", "Nodes whose umawarden Prometheus reaches.", "short",
               "sum(job:uma_nodes:count)", selector=OF_FLEET),
        number("Nodes in enforce mode", "The others only report what they would do.", "short",
               "sum(job:uma_nodes_enforcing:sum)", selector=OF_FLEET),
        number("Available on the weakest", "Of its memory.", "percentunit",
               "min(job:uma_memory_available:min_ratio)",
               [(None, "red"), (0.05, "orange"), (0.1, "green")], OF_FLEET),
        number("Nodes below 10 % available", "Nodes on which little can be had.", "short",
               f"sum({available} < bool 0.1)", [(None, "green"), (1, "orange")], OF_FLEET),
        number("Rules that fire", "On all nodes together.", "short", "sum(job:uma_rules_firing:sum)",
               [(None, "green"), (1, "orange")], OF_FLEET),
        number("Nodes with a firing rule", "Each is in the list below, up to ten.", "short",
               f"sum({firing} > bool 0)", [(None, "green"), (1, "orange")], OF_FLEET),
    ]
    nodes = [
        ranking("Least available", "The ten nodes with the least of their memory available.",
                f"bottomk(10, {available})", "available", "percentunit", hidden),
        ranking("Most rules that fire", "The ten nodes with the most.",
                f"topk(10, {firing} > 0)", "firing rules", "short", hidden),
        ranking("Most that no counter names", "Serving engines, or a leak: umawarden verdict on the "
                "node explains it.", "topk(10, instance:uma_memory_unaccounted:ratio)",
                "of all memory", "percentunit", hidden),
        ranking("Most fragmented", "The least of free memory in blocks of 2 MiB.",
                "bottomk(10, instance:uma_memory_contiguous:ratio)", "of free memory",
                "percentunit", hidden),
    ]
    spread = [
        percentiles("Available", "Shares of the nodes' memory: 5 % of the nodes are below the line "
                    "of 5 %.", available),
        percentiles("Page cache", "A download on many nodes lifts the middle, one on a node the top "
                    "alone.", "instance:uma_memory_page_cache:ratio"),
        percentiles("No counter names", "What drivers hold.", "instance:uma_memory_unaccounted:ratio"),
        percentiles("Free memory in blocks of 2 MiB", "Low where large allocations fail though memory "
                    "is free.", "instance:uma_memory_contiguous:ratio"),
    ]
    clusters = [
        graph("Weakest to strongest node", "The ten clusters that differ most. Below 0.9 SGLang refuses "
              "to start over their nodes.", "percentunit", [
                  ("{{cluster}}", "bottomk(10, job:uma_memory_available:balance_ratio)")],
              OF_FLEET).min(0).max(1),
        graph("Rules that fire", "The ten clusters with the most.", "short", [
            ("{{cluster}}", "topk(10, job:uma_rules_firing:sum > 0)")], OF_FLEET),
    ]
    events = [
        bars("Kernel events", "Within five minutes, on all nodes together.", [
            ("{{event}}", "sum by (event) (instance:uma_kernel_events:rate5m) * 300")], OF_FLEET),
        bars("Actions", "Within five minutes; skipped: only reported, in observe mode.", [
            ("{{action}} {{outcome}}", "sum by (action, outcome) (job:uma_actions:rate5m) * 300")],
             OF_FLEET),
        ranking("Most kernel events", "The ten nodes with the most within five minutes.",
                "topk(10, sum by (cluster, instance) (instance:uma_kernel_events:rate5m) * 300)",
                "events", "short", hidden),
    ]
    built = board("umawarden-fleet", "umawarden: fleet", "Many nodes, by the recording rules of "
                  "alerts/recording.yaml.", [CLUSTERS_OF_FLEET])
    groups = [("Now", now), ("Nodes that need attention", nodes), ("Spread over the nodes", spread),
              ("Clusters", clusters), ("What happened", events)]
    return with_panels(built, groups), []


def remedies():
    hidden = ["Time", "__name__", "job"]
    now = [
        word("Mode", "observe reports what would be done, enforce does it.", "uma_mode == 1", "mode",
             NODES),
        number("Paused", "1 while a person has paused everything.", "short", "max(uma_paused)",
               [(None, "green"), (1, "orange")], NODES),
        number("Silences", "Each holds back the remedies of some rules.", "short",
               "sum(uma_silences)", selector=NODES),
        number("Budget left", "Acts that guard_rails.budget still allows, on the node with the least.",
               "short", "min(uma_action_budget_left)", selector=NODES),
        number("Breakers open", "Remedies that are stopped since they missed their aim too often.",
               "short", "sum(uma_remedy_breaker_open) or vector(0)",
               [(None, "green"), (1, "red")], NODES),
        number("Wait for approval", "Acts that wait for a person's approval.", "short",
               "sum(uma_remedy_approval_pending) or vector(0)",
               [(None, "green"), (1, "orange")], NODES),
    ]
    done = [
        bars("What was done", "Acts by how they ended.", [
            ("{{action}}: {{outcome}}",
             "sum by (action, outcome) "
             + counted('uma_actions_total{outcome!~"skipped|not_done"}') + " > 0")], NODES),
        bars("What would have been done", "Acts that observe mode only reported.", [
            ("{{action}}",
             "sum by (action) " + counted('uma_actions_total{outcome="skipped"}') + " > 0"),
        ], NODES),
        bars("What was suppressed, and why", "A decision not to act is a decision.", [
            ("{{reason}}", "sum by (reason) " + counted("uma_holds_total") + " > 0")], NODES),
        states("Rules", "Rules that are not at rest.", [
            ("{{instance}} {{rule}} {{state}}", "uma_rule_state == 1")], NODES,
               12, 8),
        rows("Decisions in all", "Since each umawarden was started; to act where no reason is named.", [
            ("decisions", "sum by (instance, rule, reason) (uma_holds_total) or "
             'sum by (instance, rule) (uma_decisions_total{decision="act"}) > 0')],
             hidden, NODES, "short"),
    ]
    brought = [
        graph("Model files evicted", "By evict_checkpoint; what came back was evicted in vain.",
              "bytes", [("evicted", "sum by (instance) (uma_evicted_bytes_total)"),
                        ("came back", "sum by (instance) (uma_evicted_refaulted_bytes_total)")],
              NODES),
        graph("Memory that engines gave back", "While empty_cache was at work.", "bytes", [
            ("{{instance}}", "uma_engine_cache_emptied_bytes_total")], NODES),
        graph("Temporary settings in force", "Undone when the engine is ready, at their end, and at "
              "the next start.", "short", [
                  ("{{instance}}", "sum by (instance) (uma_temporary_settings or 0 * uma_paused)")], NODES),
        graph("Available", "Did it help?", "bytes", [
            ("{{instance}}", 'uma_pool_available_bytes{pool="host"}')], NODES),
    ]
    reboots = [
        word("Reboot", "How far a reboot has come.", "uma_reboot_stage == 1", "stage", NODES, 6),
        number("Reboots left", "That reboot.at_most still allows, on the node with the least.",
               "short", "min(uma_reboot_budget_left)", selector=NODES, width=6),
        number("Reboots that did not help", "In a row; after two no rule reboots any more.", "short",
               "max(uma_reboots_not_helped_in_a_row)",
               [(None, "green"), (1, "orange"), (2, "red")], NODES, 6),
        number("Reboots", "Judged so far.", "short", "sum(uma_reboots_total)", selector=NODES,
               width=6),
    ]
    built = board("umawarden-remedies", "umawarden: remedies",
                  "What was decided, done, and suppressed.", [INSTANCES])
    groups = [("Now", now), ("Decided", done), ("What it brought", brought), ("Reboots", reboots)]
    return with_panels(built, groups), annotations(NODES)


BOARDS = {"node": node(), "cluster": cluster(), "fleet": fleet(), "remedies": remedies()}
