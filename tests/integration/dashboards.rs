//! `dashboards/`: what Grafana is given, as far as that can be told without a Prometheus;
//! `real/dashboards.rs` has each query answered.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;
use umawarden::model::METRICS;

/// A dashboard, by its file's name.
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

/// Every query of a dashboard, and where it is: of its panels, its annotations and its variables.
pub fn queries(dashboard: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut found = Vec::new();
    for panel in list(dashboard, "panels") {
        for target in list(panel, "targets") {
            let place = format!("panel {} {}", panel["title"], target["refId"]);
            found.push((place, text(&target["expr"])));
        }
    }
    for annotation in list(&dashboard["annotations"], "list") {
        assert_eq!(annotation["expr"], annotation["target"]["expr"]);
        found.push((format!("annotation {}", annotation["name"]), text(&annotation["expr"])));
    }
    for variable in list(&dashboard["templating"], "list") {
        let asked = text(&variable["query"]["query"]);
        let inner = asked.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')'));
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
fn every_series_that_a_dashboard_shows_is_exported() {
    let known: BTreeSet<&str> = METRICS.iter().map(|metric| metric.name).collect();
    for (name, dashboard) in dashboards() {
        let queries = queries(&dashboard);
        assert!(queries.len() > 20, "{name}: {}", queries.len());
        for (place, expr) in queries {
            let named = names(&expr);
            assert!(!named.is_empty(), "{name}, {place}: {expr}");
            let unknown: Vec<_> = named.difference(&known).collect();
            assert!(unknown.is_empty(), "{name}, {place}: {unknown:?}");
        }
    }
}

#[test]
fn every_panel_asks_the_chosen_source_about_the_chosen_nodes_and_says_what_it_shows() {
    for (name, dashboard) in dashboards() {
        assert_eq!(dashboard["uid"], format!("umawarden-{name}"));
        for panel in list(&dashboard, "panels").iter().filter(|panel| panel["type"] != "row") {
            let place = format!("{name}: {}", panel["title"]);
            assert_eq!(panel["datasource"]["uid"], "${datasource}", "{place}");
            assert!(!list(panel, "targets").is_empty(), "{place}");
            assert!(panel["description"].as_str().is_some_and(|text| !text.is_empty()), "{place}");
        }
        for (place, expr) in queries(&dashboard) {
            let is_variable = place.starts_with("variable");
            assert!(is_variable || expr.contains("$instance"), "{name}, {place}: {expr}");
        }
    }
}

/// Grafana takes any text for true, and a mark with a value for time is drawn there. What a counter
/// does between two scrapes only the interval of rates is sure to see.
#[test]
fn marks_stand_where_they_happened() {
    for (name, dashboard) in dashboards() {
        for mark in list(&dashboard["annotations"], "list") {
            let is_time = mark["expr"].as_str().unwrap().contains("timestamp_seconds");
            assert_eq!(mark["useValueForTime"], is_time, "{name}: {mark}");
        }
        for (place, expr) in queries(&dashboard) {
            assert!(!expr.contains("$__interval"), "{name}, {place}: {expr}");
        }
    }
}

/// Grafana joins rows by all columns that the queries share, a series' name among them.
#[test]
fn a_table_of_several_queries_has_a_row_for_each_node_and_the_weakest_first() {
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
