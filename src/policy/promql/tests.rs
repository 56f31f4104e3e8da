use super::*;

struct Known;

impl KnownSeries for Known {
    fn labels(&self, name: &str) -> Option<Vec<&str>> {
        match name {
            "uma_memory_free_bytes" => Some(Vec::new()),
            "uma_memory_page_cache_bytes" => Some(vec!["state"]),
            _ => None,
        }
    }

    fn names(&self) -> Vec<&str> {
        vec!["uma_memory_free_bytes", "uma_memory_page_cache_bytes"]
    }
}

fn refused(text: &str) -> (String, String, Option<String>) {
    let error = match parse(text) {
        Err(error) => error,
        Ok(expr) => expr.check(&Known).expect_err(text),
    };
    (text[error.span.clone()].to_owned(), error.message, error.hint)
}

fn refused_with(text: &str, at: &str, message: &str, hint: Option<&str>) {
    assert_eq!(
        refused(text),
        (at.to_owned(), message.to_owned(), hint.map(str::to_owned)),
        "{text}"
    );
}

#[test]
fn an_unknown_series_gets_the_closest_name() {
    refused_with(
        "1 + uma_memory_fre_bytes",
        "uma_memory_fre_bytes",
        "unknown series \"uma_memory_fre_bytes\"",
        Some("did you mean \"uma_memory_free_bytes\"?"),
    );
    refused_with(
        "uma_memory_page_cache_bytes{stat=\"clean\"}",
        "stat",
        "series \"uma_memory_page_cache_bytes\" has no label \"stat\"",
        Some("did you mean \"state\"?"),
    );
}

#[test]
fn a_type_error_says_what_is_missing() {
    refused_with(
        "rate(uma_memory_free_bytes) > 1",
        "uma_memory_free_bytes",
        "expected type range vector in call to function \"rate\", got instant vector",
        Some("add a range such as [1m]"),
    );
    refused_with(
        "1 > 2",
        "1 > 2",
        "comparisons between scalars must use BOOL modifier",
        Some("write > bool"),
    );
    refused_with(
        "clamp(uma_memory_free_bytes, 1)",
        "clamp(uma_memory_free_bytes, 1)",
        "expected 3 argument(s) in call to \"clamp\", got 2",
        Some("write clamp(vector, number, number)"),
    );
}

#[test]
fn what_is_not_built_is_refused_by_name() {
    for (text, what) in [
        ("max_over_time(uma_memory_free_bytes[5m:1m])", "subqueries"),
        ("max_over_time((uma_memory_free_bytes > 1)[5m:])", "subqueries"),
        ("uma_memory_free_bytes @ 1", "the @ modifier"),
        ("count_values(\"x\", uma_memory_free_bytes)", "count_values"),
        ("histogram_sum(uma_memory_free_bytes)", "function histogram_sum"),
        ("{__name__=~\"uma_.*\"}", "matching several metrics by name"),
    ] {
        let (_, message, hint) = refused(text);
        assert_eq!(
            message,
            format!(
                "{what} {} not supported in rules here",
                match what {
                    "subqueries" => "are",
                    _ => "is",
                }
            )
        );
        assert!(hint.is_some(), "{text}");
    }
}

#[test]
fn hostile_lengths_and_depths_end_in_an_error() {
    for text in [
        "(".repeat(60_000),
        "(".repeat(4000),
        "-".repeat(4000),
        format!("1{}", "+1".repeat(20_000)),
        format!("1{}", "+1".repeat(2000)),
        format!("1{}", "^1".repeat(2000)),
        "abs(".repeat(1000),
        "sum(".repeat(1000),
        format!("uma{}", "{".repeat(4000)),
        "\"\\".repeat(2000),
    ] {
        assert!(parse(&text).is_err(), "{} bytes were accepted", text.len());
    }
}
