#!/usr/bin/env python3
"""Writes the dashboards beside this file: python3 generate.py [--check]

Each dashboard has three forms: a file to import, whose data source Grafana requests at the import
(__inputs); a file for provisioning, in which a variable selects it; and that one in a ConfigMap.

With --check nothing is written, and what differs from a fresh one is an error. Needs
grafana-foundation-sdk (tests/run has the version), whose types are Grafana's own schema.
"""

import json
import re
import sys
from pathlib import Path

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import (
    dashboard,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common, prometheus as prometheus_model
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    DataTransformerConfig,
    DynamicConfigValue,
    Threshold,
    ThresholdsMode,
    VariableRefresh,
    VariableSort,
)

# The input of the files to import, and the variable of the others: both fill the same place.
SOURCE_NAME = "DS_PROMETHEUS"
SOURCE = DataSourceRef(type_val="prometheus", uid=f"${{{SOURCE_NAME}}}")

NODE = '{instance="$instance"}'
NODES = '{instance=~"$instance"}'
# Nodes that bear no label cluster are of all of them.
OF_CLUSTERS = '{cluster=~"$cluster", instance=~"$instance"}'
# All nodes of the chosen clusters: a list of a thousand nodes is nothing to choose from.
OF_FLEET = '{cluster=~"$cluster"}'

# Where memory is, from the bottom of the stack to its top; together they are all of it, but for what
# the kernel counts twice.
MEMORY = [
    ("drivers and other unaccounted", "uma_memory_unaccounted_bytes", "dark-purple"),
    ("processes", "uma_memory_anonymous_bytes", "blue"),
    ("shared memory", "uma_memory_shmem_bytes", "light-blue"),
    ("huge page pools", "uma_memory_hugetlb_bytes", "dark-blue"),
    ("kernel objects", "sum by (instance) (uma_memory_slab_bytes)", "dark-orange"),
    ("page cache, mapped", 'uma_memory_page_cache_bytes{state="mapped"}', "dark-yellow"),
    ("page cache, dirty", 'uma_memory_page_cache_bytes{state="dirty"}', "orange"),
    ("page cache, clean", 'uma_memory_page_cache_bytes{state="clean"}', "yellow"),
    ("free", "uma_memory_free_bytes", "green"),
]


# Also those of recording rules: instance:uma_memory_available:ratio.
SERIES = re.compile(
    r"\b((?:[a-z]+:)?(?:uma|process)_[a-z0-9_]+(?::[a-z0-9_]+)?)(?:\{([^}]*)\})?"
)


def on(expr, selector):
    """The expression for the chosen nodes alone: every series name gets the selector."""

    def chosen(found):
        labels = [selector.strip("{}"), found[2]]
        return f"{found[1]}{{{', '.join(filter(None, labels))}}}"

    return SERIES.sub(chosen, expr)


def query(reference, expr, legend="", kind="range"):
    target = prometheus.Dataquery().ref_id(reference).expr(expr).datasource(SOURCE)
    if legend:
        target = target.legend_format(legend)
    if kind == "table":
        return target.instant().format(prometheus_model.PromQueryFormat.TABLE)
    return target.instant() if kind == "instant" else target.range()


def fill(panel, title, help_text, queries, selector, kind="range"):
    """Queries are pairs of legend and expression."""
    panel = panel.title(title).description(help_text).datasource(SOURCE)
    for number, (legend, expr) in enumerate(queries):
        panel = panel.with_target(query(chr(ord("A") + number), on(expr, selector), legend, kind))
    return panel


def graph(title, help_text, unit, queries, selector=NODE, width=12, height=8):
    legend = common_builders.VizLegendOptions().show_legend(True)
    legend = legend.placement(common.LegendPlacement.BOTTOM)
    legend = legend.display_mode(common.LegendDisplayMode.LIST)
    tooltip = common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI)
    panel = timeseries.Panel().unit(unit).span(width).height(height).legend(legend)
    panel = panel.tooltip(tooltip).line_width(1).fill_opacity(10).span_nulls(False)
    return fill(panel, title, help_text, queries, selector)


def stacked(panel):
    stacking = common_builders.StackingConfig().mode(common.StackingMode.NORMAL).group("A")
    return panel.stacking(stacking).fill_opacity(70).line_width(0)


def colored(panel, name, color, *more):
    values = [DynamicConfigValue(id_val="color", value={"mode": "fixed", "fixedColor": color})]
    return panel.override_by_name(name, values + list(more))


def bars(title, help_text, queries, selector=NODE, width=12, height=8):
    panel = graph(title, help_text, "short", queries, selector, width, height)
    stacking = common_builders.StackingConfig().mode(common.StackingMode.NORMAL).group("A")
    return panel.draw_style(common.GraphDrawStyle.BARS).stacking(stacking).fill_opacity(80).min(0)


def number(title, help_text, unit, expr, steps=(), selector=NODE, width=4):
    """Steps are pairs of a value and the color from there on."""
    panel = stat.Panel().unit(unit).span(width).height(4)
    panel = panel.graph_mode(common.BigValueGraphMode.AREA)
    thresholds = [Threshold(value=value, color=color) for value, color in steps]
    if thresholds:
        builder = dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(thresholds)
        panel = panel.thresholds(builder).color_mode(common.BigValueColorMode.BACKGROUND)
    else:
        panel = panel.color_mode(common.BigValueColorMode.NONE)
    return fill(panel, title, help_text, [("", expr)], selector, "instant")


def word(title, help_text, expr, label, selector=NODE, width=4):
    """Shows the value of a label of the series that is 1."""
    panel = stat.Panel().span(width).height(4).graph_mode(common.BigValueGraphMode.NONE)
    panel = panel.color_mode(common.BigValueColorMode.NONE).text_mode(common.BigValueTextMode.NAME)
    return fill(panel, title, help_text, [("{{" + label + "}}", expr)], selector, "instant")


def states(title, help_text, queries, selector=NODE, width=24, height=6):
    panel = statetimeline.Panel().span(width).height(height)
    panel = panel.show_value(common.VisibilityMode.NEVER)
    return fill(panel, title, help_text, queries, selector)


def rows(title, help_text, columns, hidden, selector, unit="bytes", width=24, height=9, first=None):
    """A table: one column for each query, joined by the labels that they share. A row is whole where
    all queries give the same labels and no name. The least, or what the column `first` says, stands
    first."""
    panel = table.Panel().span(width).height(height).unit(unit)
    if first:
        sorting = common_builders.TableSortByFieldState().display_name(first).desc(False)
        panel = panel.sort_by([sorting])
    panel = fill(panel, title, help_text, columns, selector, "table")
    panel = panel.with_transformation(DataTransformerConfig(id_val="merge", options={}))
    names = {f"Value #{chr(ord('A') + at)}": name for at, (name, _) in enumerate(columns)}
    if len(columns) == 1:
        names = {"Value": columns[0][0]}
    exclude = {name: True for name in hidden}
    options = {"excludeByName": exclude, "renameByName": names, "indexByName": {}}
    return panel.with_transformation(
        DataTransformerConfig(id_val="organize", options=options)
    )


def variable(name, label, text, is_multi=False):
    built = dashboard.QueryVariable(name).label(label).datasource(SOURCE)
    built = built.query({"query": text, "refId": name}).refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
    built = built.sort(VariableSort.ALPHABETICAL_ASC)
    return built.multi(True).include_all(True).all_value(".*") if is_multi else built


def board(uid, title, help_text, variables):
    built = dashboard.Dashboard(title).uid(uid).description(help_text).tags(["umawarden"])
    built = built.time("now-1h", "now").refresh("10s").tooltip(DashboardCursorSync.CROSSHAIR)
    source = dashboard.DatasourceVariable(SOURCE_NAME).label("data source").type("prometheus")
    built = built.with_variable(source)
    links = dashboard.DashboardLink("umawarden").type("dashboards").tags(["umawarden"])
    built = built.link(links.as_dropdown(True).include_vars(True).keep_time(True))
    for each in variables:
        built = built.with_variable(each)
    return built


def annotation(name, color, expr, title, is_time_of_value, tags):
    """A mark on every panel. A value that is a time is in seconds since 1970."""
    return {
        "name": name,
        "datasource": {"type": "prometheus", "uid": SOURCE.uid},
        "enable": True,
        "hide": False,
        "iconColor": color,
        "expr": expr,
        "titleFormat": title,
        "tagKeys": tags,
        # Grafana takes any text for true.
        "useValueForTime": is_time_of_value,
        "target": {"expr": expr, "refId": name, "interval": "", "legendFormat": title},
    }


def counted(series):
    """The increase of a counter whose series appear with their first event: a new one counts whole."""
    interval = "$__rate_interval"
    return f"(({series} unless {series} offset {interval}) or increase({series}[{interval}]))"


def annotations(selector):
    happened = " or ".join(on(f"uma_{kind}_last_timestamp_seconds", selector)
                           for kind in ("kernel_event", "event"))
    acted = on('uma_actions_total{outcome!~"skipped|not_done"}', selector)
    skipped = on('uma_actions_total{outcome="skipped"}', selector)
    return [
        annotation("events", "red", f"({happened}) * 1000 > 0", "{{event}}", True,
                   "event,instance"),
        annotation("actions", "blue", f"{counted(acted)} > 0",
                   "{{action}}: {{outcome}}", False, "action,instance"),
        annotation("would have acted", "light-blue", f"{counted(skipped)} > 0",
                   "would have done: {{action}}", False, "action,instance"),
    ]


def with_panels(built, groups):
    for title, panels in groups:
        built = built.with_row(dashboard.Row(title))
        for panel in panels:
            built = built.with_panel(panel)
    return built


def memory_stack(selector):
    queries = [(name, expr) for name, expr, _ in MEMORY]
    queries.append(("reserve", 'uma_memory_watermark_bytes{watermark="low"}'))
    help_text = (
        "All memory of the node, CPU's and GPU's: they share one pool. The red line is the kernel's "
        "low watermark: when what is free falls below it, allocations begin to stall. Cache that is "
        "clean goes when memory is wanted; mapped and dirty cache does not at once."
    )
    panel = stacked(graph("Where is my memory", help_text, "bytes", queries, selector, 24, 11)).min(0)
    for name, _, color in MEMORY:
        panel = colored(panel, name, color)
    return colored(
        panel, "reserve", "red",
        DynamicConfigValue(id_val="custom.stacking", value={"mode": "none", "group": "B"}),
        DynamicConfigValue(id_val="custom.fillOpacity", value=0),
        DynamicConfigValue(id_val="custom.lineWidth", value=2),
    )


def percentiles(title, help_text, series, selector=OF_FLEET):
    """How a share is distributed over the nodes; never a line for each node."""
    queries = [("least", f"min({series})")]
    queries += [(f"{percent} %", f"quantile({percent / 100}, {series})") for percent in (5, 50, 95)]
    queries.append(("greatest", f"max({series})"))
    return graph(title, help_text, "percentunit", queries, selector).min(0).max(1)


def ranking(title, help_text, expr, column, unit, hidden, selector=OF_FLEET):
    """The first nodes only; each leads to its own dashboard."""
    panel = rows(title, help_text, [(column, expr)], hidden, selector, unit, 12, 9)
    link = {"title": "this node", "url": "/d/umawarden-node?var-instance=${__value.text}&${__url_time_range}"}
    return panel.override_by_name("instance", [DynamicConfigValue(id_val="links", value=[link])])


def to_import(board):
    """The form of Grafana's "export for sharing externally"."""
    variables = board["templating"]["list"]
    own = [variable for variable in variables if variable["name"] != SOURCE_NAME]
    panels = {panel["type"] for panel in board["panels"]} - {"row"}
    requires = [{"type": "grafana", "id": "grafana", "name": "Grafana", "version": "10.1.0"},
                {"type": "datasource", "id": "prometheus", "name": "Prometheus", "version": "1.0.0"}]
    requires += [{"type": "panel", "id": kind, "name": kind, "version": ""} for kind in sorted(panels)]
    source = {"name": SOURCE_NAME, "label": "Prometheus", "description": "A Prometheus that scrapes "
              "umawarden, or one umawarden itself.", "type": "datasource", "pluginId": "prometheus",
              "pluginName": "Prometheus"}
    return {**board, "templating": {"list": own}, "__inputs": [source], "__elements": {},
            "__requires": requires}


def config_map(name, board):
    """For the sidecar of Grafana's Helm chart, which loads what has this label."""
    text = json.dumps(board, separators=(",", ":"), sort_keys=True)
    return (
        "---\napiVersion: v1\nkind: ConfigMap\nmetadata:\n"
        f"  name: umawarden-{name}\n  labels: {{grafana_dashboard: \"1\"}}\n"
        f"data:\n  umawarden-{name}.json: |-\n    {text}\n"
    )


MAPS_HEAD = """\
# The dashboards for the sidecar of Grafana's Helm chart (sidecar.dashboards.enabled), written by
# generate.py: kubectl apply --namespace NAMESPACE -f kubernetes.yaml
"""


def files():
    """All files with their texts, by their paths below this folder."""
    from boards import BOARDS

    found, maps = {}, MAPS_HEAD
    for name, (built, marks) in BOARDS.items():
        board = json.loads(json.dumps(built.build(), cls=JSONEncoder, sort_keys=True))
        board["annotations"] = {"list": marks}
        board["schemaVersion"] = board.get("schemaVersion") or 36
        for path, form in [(f"{name}.json", to_import(board)), (f"provisioning/{name}.json", board)]:
            found[path] = json.dumps(form, indent=1, sort_keys=True) + "\n"
        maps += config_map(name, board)
    found["kubernetes.yaml"] = maps
    return found


def main():
    here, stale = Path(__file__).parent, []
    for name, text in files().items():
        path = here / name
        if "--check" not in sys.argv:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            stale.append(name)
    if stale:
        sys.exit(f"out of date: {', '.join(stale)}; write them anew: python3 dashboards/generate.py")


if __name__ == "__main__":
    main()
