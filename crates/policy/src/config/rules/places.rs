//! Where rules are written.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::examine::{entries, groups_of, value};
use crate::config::mistake::SourceText;
use crate::config::yaml;
use crate::model::RuleId;

/// File and line of each rule of these files.
pub fn places(files: &[SourceText]) -> BTreeMap<RuleId, (Arc<str>, usize)> {
    let mut places = BTreeMap::new();
    for source in files {
        let Ok(root) = yaml::parse(source) else { continue };
        for group in groups_of(&root) {
            let Some(name) = value(group, "name").and_then(|node| node.text()) else { continue };
            for rule in entries(group, "rules") {
                let Some(alert) = value(rule, "alert") else { continue };
                let Some(text) = alert.text() else { continue };
                let id = RuleId { group: name.into(), alert: text.into() };
                let (line, _) = source.position(alert.span.start);
                places.insert(id, (Arc::clone(&source.name), line));
            }
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_has_the_line_of_its_name() {
        let text = "groups:\n- name: g\n  rules:\n  - expr: a\n    alert: A\n  - {alert: B}\n";
        let found = places(&[SourceText::new("f", text), SourceText::new("bad", "a: [")]);
        let lines: Vec<(String, usize)> =
            found.iter().map(|(id, (file, line))| (format!("{file} {id}"), *line)).collect();
        assert_eq!(lines, [("f g/A".to_owned(), 5), ("f g/B".to_owned(), 6)]);
    }
}
