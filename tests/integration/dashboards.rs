//! `dashboards/`, as far as they can be checked without a Prometheus;
//! `real/servers/dashboards.rs` runs each query.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;
use umawarden::model::METRICS;

/// All dashboards, by the name of their file.
pub fn dashboards() -> Vec<(String, Value)> {
    ["node", "cluster", "remedies"]
        .into_iter()
        .map(|name| {
            let path = format!("dashboards/{name}.json");
            let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path));
            (name.to_owned(), serde_json::from_str(&text.unwrap()).unwrap())
        })
        .collect()
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

/// The names of our series in an expression.
fn names(expr: &str) -> BTreeSet<&str> {
    let words = expr.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| word.starts_with("uma_") || word.starts_with("process_")).collect()
}

#[test]
fn every_series_of_a_dashboard_is_exported() {
    let known: BTreeSet<&str> = METRICS.iter().map(|metric| metric.name).collect();
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
            assert_eq!(panel["datasource"]["uid"], "${datasource}", "{location}");
            assert!(!list(panel, "targets").is_empty(), "{location}");
            assert!(
                panel["description"].as_str().is_some_and(|text| !text.is_empty()),
                "{location}"
            );
        }
        for (location, expr) in queries(&dashboard) {
            let is_variable = location.starts_with("variable");
            assert!(is_variable || expr.contains("$instance"), "{name}, {location}: {expr}");
        }
    }
}

/// With `useValueForTime` Grafana draws an annotation at the time given by its value; any text
/// counts as true. Only the rate interval is sure to cover a change between two scrapes.
#[test]
fn annotations_are_drawn_at_the_time_of_their_event() {
    for (name, dashboard) in dashboards() {
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
