//! The README of the chart agrees with its values and with what it makes of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;

use serde_json::{Value, json};

use super::rights::{FEATURES, Feature};
use super::{container, objects, path, read, strings, yaml};

const README: &str = "packaging/kubernetes/chart/umawarden/README.md";

/// The line before the table of values, which ends the document.
const MARK: &str = "<!-- Written from values.yaml: UPDATE_GOLDEN=1 cargo test chart:: -->\n";

fn schema() -> Value {
    let text = read("packaging/kubernetes/chart/umawarden/values.schema.json");
    serde_json::from_str(&text).unwrap()
}

/// The comment above each key, by the key's path.
fn comments(text: &str) -> BTreeMap<String, String> {
    let (mut found, mut comment) = (BTreeMap::new(), Vec::new());
    let mut path: Vec<(usize, &str)> = Vec::new();
    for line in text.lines() {
        let content = line.trim_start();
        let indent = line.len() - content.len();
        if let Some(words) = content.strip_prefix('#') {
            comment.push(words.trim());
            continue;
        }
        if let Some((key, _)) = content.split_once(':').filter(|_| !content.starts_with('-')) {
            path.retain(|(outer, _)| *outer < indent);
            path.push((indent, key));
            let names: Vec<&str> = path.iter().map(|(_, key)| *key).collect();
            found.insert(names.join("."), comment.join(" "));
        }
        comment.clear();
    }
    found
}

/// Adds a row for each value, and for each group that has a comment.
fn write_rows(
    table: &mut String,
    values: &Value,
    schema: &Value,
    above: &str,
    comments: &BTreeMap<String, String>,
) {
    for (key, value) in values.as_object().unwrap() {
        let name = format!("{above}{key}");
        let (known, meaning) = (&schema["properties"][key], &comments[&name]);
        // Texts and lists of Kubernetes, and settings of the program, are one value.
        if known["additionalProperties"] != json!(false) {
            writeln!(table, "| `{name}` | `{value}` | {meaning} |").unwrap();
            continue;
        }
        if !meaning.is_empty() {
            writeln!(table, "| `{name}` | | {meaning} |").unwrap();
        }
        write_rows(table, value, known, &format!("{name}."), comments);
    }
}

#[test]
fn the_readme_lists_every_value_with_its_default_and_its_comment() {
    let text = read("packaging/kubernetes/chart/umawarden/values.yaml");
    let mut table = "\n| value | default | meaning |\n|---|---|---|\n".to_owned();
    write_rows(&mut table, &yaml(&text), &schema(), "", &comments(&text));
    let found = read(README);
    let (before, _) = found.split_once(MARK).expect("the mark of the table");
    let wanted = format!("{before}{MARK}{}", table.replace("  ", " "));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(path(README), &wanted).unwrap();
    }
    assert_eq!(read(README), wanted, "{README}: UPDATE_GOLDEN=1 writes the table anew");
}

/// The cells of the row that begins with this code.
fn row(readme: &str, code: &str) -> Vec<String> {
    let beginning = format!("| `{code}` |");
    let line = readme.lines().find(|line| line.starts_with(&beginning));
    let line = line.unwrap_or_else(|| panic!("{README} has no row {code:?}"));
    line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
}

/// The code in a cell.
fn code(cell: &str) -> BTreeSet<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

#[test]
fn the_readme_names_the_rights_of_each_feature_at_the_api_server() {
    // The values are in a table below, with the same beginnings of rows.
    let readme = read(README);
    let (readme, _) = readme.split_once(MARK).unwrap();
    for Feature { place, value, rights } in &FEATURES {
        let value = value.trim_matches(['[', ']', '"']);
        let name = match *place {
            "/enforce" | "/rights" => value.to_owned(),
            "/kubernetes/drain" => format!("kubernetes.drain: {value}"),
            place => place.trim_start_matches('/').replace('/', "."),
        };
        let cells = row(readme, &name);
        let expected: Vec<String> =
            rights.iter().map(|(verb, resource)| format!("{verb} {resource}")).collect();
        let expected: BTreeSet<&str> = expected.iter().map(String::as_str).collect();
        assert_eq!(code(cells.last().unwrap()), expected, "{name}");
    }
}

#[test]
fn the_readme_names_the_capabilities_that_each_grade_adds() {
    let (readme, schema) = (read(README), schema());
    let capabilities = |grades: &[&str]| {
        let values = json!({"privileged": false, "enforce": grades});
        let objects = objects(&values, "1.31.0")?;
        let added = &container(&objects)["securityContext"]["capabilities"]["add"];
        Some(strings(added).into_iter().map(str::to_owned).collect::<BTreeSet<_>>())
    };
    for grade in strings(&schema["properties"]["enforce"]["items"]["enum"]) {
        let cells = row(&readme, grade);
        let (Some(base), Some(with)) = (capabilities(&[]), capabilities(&[grade])) else {
            continue;
        };
        let is_capability = |text: &&str| text.chars().all(|c| c.is_ascii_uppercase() || c == '_');
        let named = code(&cells[2]).into_iter().filter(is_capability).map(str::to_owned);
        let added = with.difference(&base).cloned();
        assert_eq!(named.collect::<BTreeSet<_>>(), added.collect(), "{grade}");
    }
}
