//! A strict reader of both text formats, so that tests can say what was written.

use std::collections::BTreeSet;

use super::super::negotiation::Format;

/// One line with a value.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub name: String,
    pub labels: Vec<(String, String)>,
    pub value: f64,
}

/// The lines under one TYPE.
#[derive(Clone, Debug, PartialEq)]
pub struct Family {
    pub name: String,
    pub help: String,
    pub kind: String,
    pub samples: Vec<Sample>,
}

/// Reads an exposition; panics at anything that the format does not allow.
pub fn read(text: &str, format: Format) -> Vec<Family> {
    let body = match format {
        Format::OpenMetrics => text.strip_suffix("# EOF\n").expect("ends with # EOF"),
        Format::Text => text,
    };
    assert!(body.is_empty() || body.ends_with('\n'), "the last line is not ended");
    let mut families: Vec<Family> = Vec::new();
    let mut help: Option<(String, String)> = None;
    for line in body.split_terminator('\n') {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, text) = rest.split_once(' ').expect("HELP has a text");
            help = Some((name.to_owned(), unescape(text, format == Format::OpenMetrics)));
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("TYPE has a type");
            let (help_name, help) = help.take().expect("HELP comes right before TYPE");
            assert_eq!(name, help_name);
            assert!(allowed_kinds(format).contains(&kind), "{line}");
            let (name, kind) = (name.to_owned(), kind.to_owned());
            families.push(Family { name, help, kind, samples: Vec::new() });
        } else {
            assert!(!line.starts_with('#') && !line.is_empty(), "{line:?}");
            let sample = sample(line);
            let family = families.last_mut().expect("a TYPE comes before its samples");
            if family.kind == "histogram" {
                let suffix = sample.name.strip_prefix(family.name.as_str()).expect("the same name");
                assert!(["_sum", "_count", "_bucket"].contains(&suffix), "{line}");
            } else {
                assert_eq!(sample.name, expected_name(family, format), "{line}");
            }
            family.samples.push(sample);
        }
    }
    assert_no_duplicates(&families);
    families
}

fn allowed_kinds(format: Format) -> &'static [&'static str] {
    match format {
        Format::Text => &["counter", "gauge", "histogram", "untyped"],
        Format::OpenMetrics => &["counter", "gauge", "histogram", "info", "unknown"],
    }
}

fn expected_name(family: &Family, format: Format) -> String {
    match (format, family.kind.as_str()) {
        (Format::OpenMetrics, "counter") => format!("{}_total", family.name),
        (Format::OpenMetrics, "info") => format!("{}_info", family.name),
        _ => family.name.clone(),
    }
}

fn assert_no_duplicates(families: &[Family]) {
    let mut names = BTreeSet::new();
    let mut series = BTreeSet::new();
    for family in families {
        assert!(names.insert(&family.name), "family {} comes twice", family.name);
        assert!(!family.samples.is_empty(), "family {} is empty", family.name);
        for sample in &family.samples {
            assert!(series.insert((&sample.name, &sample.labels)), "{sample:?} comes twice");
        }
    }
}

fn sample(line: &str) -> Sample {
    let name_end = line.find(['{', ' ']).expect("a name ends");
    let (name, mut rest) = line.split_at(name_end);
    let mut labels = Vec::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        while !rest.starts_with('}') {
            let (label, after) = rest.split_once("=\"").expect("a label has a value");
            assert!(is_name(label), "{label:?}");
            let end = closing_quote(after);
            labels.push((label.to_owned(), unescape(&after[..end], true)));
            rest = &after[end + 1..];
            if let Some(more) = rest.strip_prefix(',') {
                assert!(!more.starts_with('}'), "a comma before the brace: {line}");
                rest = more;
            }
        }
        rest = &rest[1..];
        assert!(!labels.is_empty(), "empty braces: {line}");
    }
    let value = rest.strip_prefix(' ').expect("one blank before the value");
    assert!(is_name(name), "{name:?}");
    Sample { name: name.to_owned(), labels, value: number(value) }
}

fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn closing_quote(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            '"' if !escaped => return at,
            _ => escaped = c == '\\' && !escaped,
        }
    }
    panic!("a label's value does not end: {text:?}");
}

fn unescape(text: &str, quotes: bool) -> String {
    let mut plain = String::new();
    let mut characters = text.chars();
    while let Some(c) = characters.next() {
        plain.push(match c {
            '\\' => match characters.next() {
                Some('n') => '\n',
                Some('\\') => '\\',
                Some('"') if quotes => '"',
                other => panic!("escape {other:?} in {text:?}"),
            },
            '"' if quotes => panic!("bare quote in {text:?}"),
            other => other,
        });
    }
    plain
}

fn number(text: &str) -> f64 {
    let value: f64 = match text {
        "+Inf" => return f64::INFINITY,
        "-Inf" => return f64::NEG_INFINITY,
        "NaN" => return f64::NAN,
        finite => finite.parse().expect("a number"),
    };
    assert!(value.is_finite(), "{text}");
    let whole = value.trunc() == value && value.abs() <= 1e15 && value != 0.0;
    assert!(!whole || !text.contains(['.', 'e']), "whole number as {text}");
    value
}
