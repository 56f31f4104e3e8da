use proptest::prelude::*;

use super::*;

type Read = Vec<(String, Vec<(String, String)>, f64)>;

fn read_in_parts(parts: &[&[u8]]) -> Result<Read, MalformedMetrics> {
    let mut read = Vec::new();
    let mut take = |line: MetricLine<'_>| {
        let labels =
            line.labels.iter().map(|(name, value)| ((*name).to_owned(), value.to_string()));
        read.push((line.name.to_owned(), labels.collect(), line.value));
    };
    let mut reader = MetricReader::new();
    for part in parts {
        reader.feed(part, &|_| true, &mut take)?;
    }
    reader.end(&|_| true, &mut take)?;
    Ok(read)
}

fn read(text: &str) -> Result<Read, MalformedMetrics> {
    read_in_parts(&[text.as_bytes()])
}

#[test]
fn lines_of_any_exporter_are_read() {
    let text = "# HELP a A help.\n# TYPE a gauge\na 1\n\na{b=\"c\"} 2 1700000000000\n\
                a { b = \"d\" , } -Inf\n a_bucket{le=\"+Inf\"} 3 # {trace=\"1\"} 0.5 1.2\n\
                x:y{z=\"q\\\"\\\\\\n\\w\"} NaN\r\n{\"quoted.name\"} 1\nlast 1e3";
    let read = read(text).unwrap();
    let pairs = |labels: &[(&str, &str)]| -> Vec<(String, String)> {
        labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    };
    assert_eq!(read.len(), 6);
    assert_eq!(read[0], ("a".to_owned(), vec![], 1.0));
    assert_eq!(read[1], ("a".to_owned(), pairs(&[("b", "c")]), 2.0));
    assert_eq!(read[2], ("a".to_owned(), pairs(&[("b", "d")]), f64::NEG_INFINITY));
    assert_eq!(read[3], ("a_bucket".to_owned(), pairs(&[("le", "+Inf")]), 3.0));
    assert_eq!(read[4].1, pairs(&[("z", "q\"\\\n\\w")]));
    assert!(read[4].2.is_nan());
    assert_eq!(read[5], ("last".to_owned(), vec![], 1000.0));
}

#[test]
fn lines_after_the_end_are_ignored() {
    assert_eq!(read("a 1\n# EOF\nb 2\n").unwrap().len(), 1);
}

#[test]
fn invalid_metrics_are_reported_with_their_line() {
    for (text, expected) in [
        ("a 1\na\n", "line 2: it has no value"),
        ("a x\n", "line 1: it has no value"),
        ("a 1 x\n", "line 1: what follows its value is no time"),
        ("a 1 2 3\n", "line 1: there is more than a value and a time"),
        ("<html>\n", "line 1: it does not begin with a name"),
        ("a{b=\"c\" 1\n", "line 1: there is no comma between its labels"),
        ("a{b=\"c\",b=\"d\"} 1\n", "line 1: a label is given twice"),
        ("a{b=c} 1\n", "line 1: a label's value is not in quotes"),
        ("a{b=\"c} 1\n", "line 1: a label's value has no end"),
        ("a{b=\"c\\", "line 1: a label's value has no end"),
        ("a{b 1\n", "line 1: its labels have no end"),
        ("a{=\"c\"} 1\n", "line 1: a label has no name"),
    ] {
        assert_eq!(read(text).unwrap_err().to_string(), expected, "{text}");
    }
    let long = "a".repeat(LONGEST_LINE + 1);
    assert!(read(&long).unwrap_err().to_string().contains("longer than 16 KiB"));
    assert!(read(&format!("{long}\n")).is_err());
    let half = "a".repeat(LONGEST_LINE / 2 + 1);
    assert!(read_in_parts(&[half.as_bytes(), half.as_bytes()]).is_err());
    assert!(read_in_parts(&[b"a\xff 1\n"]).is_err());
}

#[test]
fn unrequested_metrics_are_not_parsed() {
    let mut names = Vec::new();
    let mut take = |line: MetricLine<'_>| names.push(line.name.to_owned());
    let mut reader = MetricReader::new();
    reader.feed(b"b{broken\na 1\nab 2\n", &|name| name == "a", &mut take).unwrap();
    assert_eq!(names, ["a"]);
}

proptest! {
    #[test]
    fn chunking_does_not_change_the_result(
        text in prop_oneof![
            "(a|b|\\{|\\}|\"|=|,| |\\\\|\n|#|1|NaN|e){0,60}".prop_map(String::into_bytes),
            proptest::collection::vec(any::<u8>(), 0..200),
        ],
        cut in any::<prop::sample::Index>(),
    ) {
        let cut = cut.index(text.len() + 1);
        let (one, other) = text.split_at(cut);
        let whole = format!("{:?}", read_in_parts(&[&text]));
        let parts = format!("{:?}", read_in_parts(&[one, other]));
        // What was taken before a mistake does not count.
        prop_assert_eq!(whole, parts);
    }

    #[test]
    fn metrics_are_read_as_they_were_written(
        name in "[a-zA-Z_:][a-zA-Z0-9_:]{0,8}",
        labels in proptest::collection::btree_map("[a-z_][a-z0-9_]{0,4}", "\\PC{0,6}[\"\\\\\n]?", 0..4),
        value in any::<f64>(),
    ) {
        let escape = |text: &String| {
            text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
        };
        let written: Vec<String> =
            labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escape(value))).collect();
        let text = format!("{name}{{{}}} {value}\n", written.join(","));
        let read = read(&text).unwrap();
        prop_assert_eq!(read.len(), 1);
        prop_assert_eq!(&read[0].0, &name);
        let expected: Vec<(String, String)> = labels.into_iter().collect();
        prop_assert_eq!(&read[0].1, &expected);
        prop_assert!(read[0].2 == value || (read[0].2.is_nan() && value.is_nan()));
    }
}
