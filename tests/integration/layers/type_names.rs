//! A crate defines each name of a type once.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::{CRATES, ROOTS, first_name, is_test, rust_files};

/// Files that take the place of others in builds without a feature, and so have the same names.
const STAND_INS: &[&str] = &["src/actions/reboot/no_drain.rs", "src/daemon/no_kubernetes.rs"];

/// The type that a line of code defines. Types of a trait's implementation are indented.
fn defined_type(line: &str) -> Option<&str> {
    let is_inner = line.starts_with(' ');
    let line = line.trim_start();
    let visible = line.strip_prefix("pub ").or_else(|| {
        line.strip_prefix("pub(").and_then(|rest| rest.split_once(") ")).map(|(_, rest)| rest)
    });
    let (keyword, rest) = visible.unwrap_or(line).split_once(' ')?;
    let defines = match keyword {
        "struct" | "enum" | "trait" | "union" => true,
        "type" => !is_inner,
        _ => false,
    };
    Some(first_name(rest)).filter(|name| defines && !name.is_empty())
}

#[test]
fn type_names_stand_once_in_a_crate() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut wrong = Vec::new();
    for folder in ROOTS.iter().chain(CRATES) {
        let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for path in rust_files(&root.join(folder)).into_iter().filter(|path| !is_test(path)) {
            let relative = path.strip_prefix(root).unwrap().display().to_string();
            if STAND_INS.contains(&relative.as_str()) {
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            for (number, line) in text.lines().enumerate() {
                if line == "mod tests {" {
                    break;
                }
                if let Some(defined) = defined_type(line) {
                    let place = format!("{relative}:{}", number + 1);
                    places.entry(defined.to_owned()).or_default().push(place);
                }
            }
        }
        assert!(places.len() > 50, "{folder}: {} types", places.len());
        let doubled = places.into_iter().filter(|(_, places)| places.len() > 1);
        wrong.extend(doubled.map(|(defined, places)| {
            format!("{folder} has several types {defined}: {}", places.join(", "))
        }));
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn every_form_of_a_type_is_found() {
    let lines =
        ["struct A<'a> {", "pub(in crate::b) enum A {", "pub type A = u8;", "    struct A;"];
    assert!(lines.iter().all(|line| defined_type(line) == Some("A")));
    let lines = ["    type Err = u8;", "impl A for B {", "let structure = 1;", "/// struct A", "}"];
    assert!(lines.iter().all(|line| defined_type(line).is_none()));
}
