//! `dashboards/`, as far as they can be checked without a Prometheus;
//! `real/servers/dashboards.rs` runs each query.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use jiff::Timestamp;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use umawarden::model::METRICS;

use crate::daemon::{Daemon, http_client};
use crate::run::Node;

/// `$__rate_interval` of a minute as Grafana's backend writes it, which is Go's text.
const RATE_INTERVAL: &str = "1m0s";

/// The dashboards by name, each with the label that selects its nodes.
const BOARDS: [(&str, &str); 4] = [
    ("node", "$instance"),
    ("cluster", "$instance"),
    ("fleet", "$cluster"),
    ("remedies", "$instance"),
];

/// Below the folder of this repository.
fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

fn json(path: &str) -> Value {
    serde_json::from_str(&read(path)).unwrap()
}

/// All dashboards, by the name of their file.
pub fn dashboards() -> Vec<(String, Value)> {
    let board =
        |(name, _): (&str, &str)| (name.to_owned(), json(&format!("dashboards/{name}.json")));
    BOARDS.into_iter().map(board).collect()
}

fn list<'v>(value: &'v Value, key: &str) -> &'v [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

/// Every query of the panels, annotations and variables of a dashboard, with its location.
pub fn queries(dashboard: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut found = Vec::new();
    for panel in list(dashboard, "panels") {
        for target in list(panel, "targets") {
            let location = format!("panel {} {}", panel["title"], target["refId"]);
            found.push((location, text(&target["expr"])));
        }
    }
    for annotation in list(&dashboard["annotations"], "list") {
        assert_eq!(annotation["expr"], annotation["target"]["expr"]);
        found.push((format!("annotation {}", annotation["name"]), text(&annotation["expr"])));
    }
    for variable in list(&dashboard["templating"], "list") {
        let query = text(&variable["query"]["query"]);
        let inner = query.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')'));
        if let Some((series, _)) = inner.and_then(|inner| inner.rsplit_once(',')) {
            found.push((format!("variable {}", variable["name"]), series.to_owned()));
        }
    }
    found
}

/// The names of our series in an expression, and those of recording rules.
fn names(expr: &str) -> BTreeSet<&str> {
    let words = expr.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'));
    let is_own = |word: &&str| {
        word.starts_with("uma_") || word.starts_with("process_") || word.contains(":uma_")
    };
    words.filter(is_own).collect()
}

/// The series of `alerts/recording.yaml`.
fn recorded(rules: &str) -> BTreeSet<&str> {
    rules.lines().filter_map(|line| line.trim().strip_prefix("- record: ")).collect()
}

#[test]
fn every_series_of_a_dashboard_is_exported() {
    let rules = read("alerts/recording.yaml");
    let recorded = recorded(&rules);
    assert!(recorded.len() > 10, "{recorded:?}");
    let mut known: BTreeSet<&str> = METRICS.iter().map(|metric| metric.name).collect();
    known.extend(&recorded);
    for (name, dashboard) in dashboards() {
        let queries = queries(&dashboard);
        assert!(queries.len() > 20, "{name}: {}", queries.len());
        for (location, expr) in queries {
            let named = names(&expr);
            assert!(!named.is_empty(), "{name}, {location}: {expr}");
            let unknown: Vec<_> = named.difference(&known).collect();
            assert!(unknown.is_empty(), "{name}, {location}: {unknown:?}");
        }
    }
}

#[test]
fn every_panel_queries_the_chosen_source_and_nodes_and_has_a_description() {
    for (name, dashboard) in dashboards() {
        assert_eq!(dashboard["uid"], format!("umawarden-{name}"));
        for panel in list(&dashboard, "panels").iter().filter(|panel| panel["type"] != "row") {
            let location = format!("{name}: {}", panel["title"]);
            assert_eq!(panel["datasource"]["uid"], "${DS_PROMETHEUS}", "{location}");
            assert!(!list(panel, "targets").is_empty(), "{location}");
            assert!(
                panel["description"].as_str().is_some_and(|text| !text.is_empty()),
                "{location}"
            );
        }
        let (_, chosen) = BOARDS.iter().find(|(known, _)| *known == name).unwrap();
        for (location, expr) in queries(&dashboard) {
            let is_variable = location.starts_with("variable");
            assert!(is_variable || expr.contains(chosen), "{name}, {location}: {expr}");
        }
    }
}

/// With a thousand nodes a line for each is no picture, and a query of raw series is slow.
#[test]
fn the_fleet_is_shown_by_recording_rules_without_a_line_for_each_node() {
    let fleet = json("dashboards/fleet.json");
    let rules = read("alerts/recording.yaml");
    let recorded = recorded(&rules);
    let mut ranked = 0;
    for (location, expr) in queries(&fleet) {
        let named = names(&expr);
        assert!(named.iter().all(|name| recorded.contains(name)), "{location}: {expr}");
        let is_ranked = expr.starts_with("topk(10, ") || expr.starts_with("bottomk(10, ");
        ranked += usize::from(is_ranked);
        let is_one = ["sum(", "min(", "max(", "count(", "quantile("];
        let is_by_kind = ["sum by (event) (", "sum by (action, outcome) ("];
        let is_bounded = is_one.iter().chain(&is_by_kind).any(|begin| expr.starts_with(begin));
        let is_variable = location.starts_with("variable");
        assert!(is_ranked || is_bounded || is_variable, "{location}: {expr}");
    }
    assert!(ranked >= 5, "{ranked}");
}

/// What umawarden's own PromQL lacks would be an error in a panel.
#[test]
fn a_node_can_be_the_source_of_its_own_dashboards() {
    for (name, dashboard) in dashboards().into_iter().filter(|(name, _)| name != "fleet") {
        let mut refused = Vec::new();
        for (location, expr) in queries(&dashboard) {
            let expr = expr.replace("$__rate_interval", RATE_INTERVAL);
            if let Err(error) = promql_rules::parse(&expr) {
                refused.push(format!("{location}: {error}"));
            }
        }
        match name.as_str() {
            // It compares nodes, which one node cannot.
            "cluster" => assert!(refused.iter().all(|one| one.contains("count_values"))),
            _ => assert_eq!(refused, Vec::<String>::new(), "{name}"),
        }
    }
}

/// The response to a form, as Grafana's data source sends queries (pkg/promlib/client/client.go).
fn post(daemon: &Daemon, path: &str, fields: &[(&str, &str)]) -> Value {
    let field = |(name, value): &(&str, &str)| {
        format!("{name}={}", utf8_percent_encode(value, NON_ALPHANUMERIC))
    };
    let form = fields.iter().map(field).collect::<Vec<_>>().join("&");
    let client = http_client().build().unwrap();
    let request = client.post(format!("http://{}{path}", daemon.address())).body(form);
    let request = request.header("content-type", "application/x-www-form-urlencoded");
    let response = request.send().unwrap();
    let (status, body) = (response.status().as_u16(), response.json::<Value>().unwrap());
    assert_eq!((status, &body["status"]), (200, &"success".into()), "{fields:?}: {body}");
    body["data"].clone()
}

/// The values of a variable, as Grafana requests them (LabelsApiClient of
/// packages/grafana-prometheus/src/resource_clients.ts).
fn values(daemon: &Daemon, variable: &Value, (start, end): (&str, &str)) -> Vec<String> {
    let query = variable["query"]["query"].as_str().unwrap();
    let inner = query.strip_prefix("label_values(").unwrap().strip_suffix(')').unwrap();
    let (series, label) = inner.rsplit_once(',').unwrap();
    let path = format!("/api/v1/label/{}/values", label.trim());
    let range = format!("limit=40000&start={start}&end={end}");
    let (status, body) = daemon.get(&format!("{path}?match[]={series}&{range}"));
    assert_eq!(status, 200, "{body}");
    let body: Value = serde_json::from_str(&body).unwrap();
    serde_json::from_value(body["data"].clone()).unwrap()
}

/// Panels without data are those of what did not happen here.
#[test]
fn a_node_answers_each_query_of_its_own_dashboards_as_grafana_sends_it() {
    let node = Node::new("gb10-4k");
    let own = node.arguments();
    let own: Vec<&str> = own.iter().map(String::as_str).collect();
    let daemon = Daemon::start(&node.storage(), &own);
    let end = Timestamp::now().as_second() + 1;
    let (start, end) = (format!("{}.123", end - 3600), format!("{end}.123"));
    let (start, end) = (start.as_str(), end.as_str());
    for (name, dashboard) in dashboards() {
        if !["node", "remedies"].contains(&name.as_str()) {
            continue;
        }
        let variables = list(&dashboard["templating"], "list");
        let [instance] = variables else { panic!("{name}: {variables:?}") };
        let nodes = values(&daemon, instance, (start, end));
        let [chosen] = &nodes[..] else { panic!("{name}: {nodes:?}") };
        let mut with_data = 0;
        for (location, expr) in queries(&dashboard) {
            let expr = expr.replace("$__rate_interval", RATE_INTERVAL);
            let expr = expr.replace("$instance", chosen);
            let now = post(&daemon, "/api/v1/query", &[("query", &*expr), ("time", end)]);
            assert_eq!(now["resultType"], "vector", "{name}, {location}: {expr}");
            let range = [("query", &*expr), ("start", start), ("end", end), ("step", "15")];
            let range = post(&daemon, "/api/v1/query_range", &range);
            assert_eq!(range["resultType"], "matrix", "{name}, {location}: {expr}");
            let has_data = !range["result"].as_array().unwrap().is_empty();
            let is_always = expr.starts_with("uma_memory_anonymous_bytes{");
            assert!(has_data || !is_always, "{name}, {location}: {expr}");
            with_data += usize::from(has_data);
        }
        assert!(with_data > 5, "{name}: {with_data}");
    }
}

/// The place of the data source is filled by an input at the import, or by a variable.
#[test]
fn a_dashboard_can_be_imported_provisioned_and_put_into_a_config_map() {
    let maps = read("dashboards/kubernetes.yaml");
    for (name, imported) in dashboards() {
        let inputs = list(&imported, "__inputs");
        assert_eq!(inputs.len(), 1, "{name}");
        assert_eq!(
            (&inputs[0]["name"], &inputs[0]["type"]),
            (&"DS_PROMETHEUS".into(), &"datasource".into())
        );
        assert_eq!(inputs[0]["pluginId"], "prometheus");
        let provisioned = json(&format!("dashboards/provisioning/{name}.json"));
        let is_source = |variable: &&Value| variable["type"] == "datasource";
        let sources = |board: &Value| {
            let variables = list(&board["templating"], "list").iter();
            variables.filter(is_source).map(|one| one["name"].clone()).collect::<Vec<_>>()
        };
        assert_eq!(sources(&imported), Vec::<Value>::new(), "{name}");
        assert_eq!(sources(&provisioned), ["DS_PROMETHEUS"], "{name}");
        let kinds: BTreeSet<&str> =
            list(&imported, "panels").iter().filter_map(|panel| panel["type"].as_str()).collect();
        let required = list(&imported, "__requires").iter().filter(|one| one["type"] == "panel");
        let required: BTreeSet<&str> = required.filter_map(|one| one["id"].as_str()).collect();
        assert_eq!(kinds.difference(&required).collect::<Vec<_>>(), [&"row"], "{name}");
        let mut same = imported.clone();
        for own in ["__inputs", "__elements", "__requires"] {
            assert!(same.as_object_mut().unwrap().remove(own).is_some());
            assert!(provisioned.get(own).is_none(), "{name}: {own}");
        }
        same["templating"] = provisioned["templating"].clone();
        assert_eq!(same, provisioned, "{name}");
        let key = format!("  umawarden-{name}.json: |-\n    ");
        let (_, rest) = maps.split_once(&key).expect("a ConfigMap");
        let text = rest.lines().next().unwrap();
        assert_eq!(serde_json::from_str::<Value>(text).unwrap(), provisioned, "{name}");
    }
    let labelled = maps.matches("labels: {grafana_dashboard: \"1\"}").count();
    assert_eq!((labelled, maps.matches("kind: ConfigMap").count()), (BOARDS.len(), BOARDS.len()));
    // The bound of Kubernetes on one ConfigMap.
    assert!(maps.split("---").all(|map| map.len() < 1 << 20));
}

/// With `useValueForTime` Grafana draws an annotation at the time given by its value; any text
/// counts as true. Only the rate interval is sure to cover a change between two scrapes.
#[test]
fn annotations_are_drawn_at_the_time_of_their_event() {
    for (name, dashboard) in dashboards() {
        let marks = list(&dashboard["annotations"], "list");
        assert_eq!(marks.is_empty(), name == "fleet", "a mark for each node is no picture");
        for mark in list(&dashboard["annotations"], "list") {
            let is_time = mark["expr"].as_str().unwrap().contains("timestamp_seconds");
            assert_eq!(mark["useValueForTime"], is_time, "{name}: {mark}");
        }
        for (location, expr) in queries(&dashboard) {
            assert!(!expr.contains("$__interval"), "{name}, {location}: {expr}");
        }
    }
}

/// Grafana joins rows by all shared columns, among them the name of the series.
#[test]
fn a_table_of_several_queries_has_one_row_per_node_the_weakest_first() {
    let mut tables = 0;
    for (name, dashboard) in dashboards() {
        let panels = list(&dashboard, "panels").iter();
        for panel in panels.filter(|panel| panel["type"] == "table") {
            let targets = list(panel, "targets");
            if targets.len() == 1 {
                continue;
            }
            for target in targets {
                let expr = target["expr"].as_str().unwrap();
                assert!(expr.starts_with("max by (cluster, instance) ("), "{name}: {expr}");
            }
            let sorted = &panel["options"]["sortBy"][0];
            assert_eq!(
                (&sorted["displayName"], &sorted["desc"]),
                (&"available".into(), &false.into())
            );
            let columns = &list(panel, "transformations")[1]["options"]["renameByName"];
            assert!(columns.as_object().unwrap().values().any(|name| name == "available"));
            tables += 1;
        }
    }
    assert_eq!(tables, 1);
}
