use super::*;
use crate::config::yaml;

fn decode(text: &str, read: impl FnOnce(&YamlNode, &mut Findings<'_>)) -> Vec<Mistake> {
    let source = SourceText::new("f.yaml", text);
    let root = yaml::parse(&source).expect("valid YAML");
    let mut findings = Findings::new(&source);
    read(&root, &mut findings);
    findings.into_mistakes()
}

fn messages(mistakes: &[Mistake]) -> Vec<String> {
    mistakes.iter().map(|m| format!("{}:{} {}", m.line, m.column, m.message)).collect()
}

#[test]
fn all_mistakes_of_a_mapping_are_found_in_file_order() {
    let found = decode("expr: 1\nlables: 2\nexpr: 3\n<<: 4\n[a]: 5\n", |root, findings| {
        let table = Table::read(root, "a rule", &["expr", "labels"], findings).expect("a map");
        assert_eq!(table.get("expr").and_then(YamlNode::text), Some("1"));
    });
    assert_eq!(
        messages(&found),
        [
            "2:1 unknown key \"lables\" in a rule",
            "3:1 key \"expr\" is given twice in a rule",
            "4:1 merge keys (<<) are not supported",
            "5:1 a key must be text, but this is a list",
        ]
    );
    assert_eq!(found[0].hint.as_deref(), Some("did you mean \"labels\"?"));
}

#[test]
fn a_wrong_value_used_by_many_aliases_is_one_mistake() {
    let found = decode("- &a soon\n- *a\n- *a\n", |root, findings| {
        for entry in list(root, "delays", findings).expect("a list") {
            duration(entry, "for", findings);
        }
    });
    assert_eq!(found.len(), 1);
    assert!(found[0].message.starts_with("for: \"soon\" is not a duration"));
}

#[test]
fn reading_ends_after_a_hundred_mistakes() {
    let text: String = (0..150).map(|n| format!("key{n}: 1\n")).collect();
    let found = decode(&text, |root, findings| {
        Table::read(root, "a rule", &["expr"], findings);
    });
    assert_eq!(found.len(), 100);
    let hint = found[99].hint.as_deref().unwrap_or_default();
    assert!(
        hint.ends_with("this file has more than 100 mistakes; the rest are not shown"),
        "{hint}"
    );
}

#[test]
fn a_key_without_a_value_equals_an_absent_key() {
    decode("expr:\n", |root, findings| {
        let table = Table::read(root, "a rule", &["expr"], findings).expect("a map");
        assert!(table.get("expr").is_none() && table.key("expr").is_some());
    });
}

#[test]
fn values_of_the_wrong_kind_are_named() {
    let found = decode("a: [1]\nb: {c: 1}\nd: maybe\n", |root, findings| {
        let table = Table::read(root, "it", &["a", "b", "d"], findings).expect("a map");
        let get = |key| table.get(key).expect("present");
        text(get("a"), "a", findings);
        list(get("b"), "b", findings);
        boolean(get("d"), "d", findings);
    });
    assert_eq!(
        messages(&found),
        [
            "1:4 a must be text, but this is a list",
            "2:5 b must be a list, but this is a mapping",
            "3:4 d: \"maybe\" is neither true nor false",
        ]
    );
}
