use std::collections::BTreeSet;

use super::{METRICS, MetricKind, metric};

#[test]
fn names_are_unique_and_say_what_they_are() {
    let mut names = BTreeSet::new();
    for metric in METRICS {
        let name = metric.name;
        assert!(names.insert(name), "{name} is twice in the table");
        if metric.is_of_others {
            continue;
        }
        assert!(name.starts_with("uma_") || name.starts_with("process_"), "{name}");
        assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{name}");
        assert_eq!(name.ends_with("_total"), metric.kind == MetricKind::Counter, "{name}");
        assert_eq!(name.ends_with("_info"), metric.kind == MetricKind::Info, "{name}");
        let is_part = ["_bucket", "_sum", "_count"].iter().any(|suffix| name.ends_with(suffix));
        assert_eq!(is_part, metric.kind == MetricKind::Histogram, "{name}");
    }
}

#[test]
fn labels_are_sorted_and_no_process_names_itself_in_one() {
    for metric in METRICS {
        assert!(metric.labels.is_sorted_by(|left, right| left < right), "{}", metric.name);
        assert!(!metric.labels.contains(&"pid") && !metric.labels.contains(&"comm"));
        assert!(metric.optional.iter().all(|label| metric.labels.contains(label)));
        assert!(metric.optional.iter().all(|label| metric.values(label).is_none()));
    }
}

#[test]
fn histograms_are_whole_and_stand_together() {
    let parts: Vec<_> = METRICS.iter().filter(|m| m.kind == MetricKind::Histogram).collect();
    for whole in parts.chunks(3) {
        let [bucket, sum, count] = whole else { panic!("{whole:?}") };
        let base = bucket.name.strip_suffix("_bucket").unwrap();
        assert_eq!((sum.name, count.name), (&*format!("{base}_sum"), &*format!("{base}_count")));
        assert_eq!((bucket.labels, sum.labels, count.labels), (&["le"][..], &[][..], &[][..]));
        let index = METRICS.iter().position(|metric| metric.name == bucket.name).unwrap();
        assert_eq!(METRICS[index + 2].name, count.name);
    }
}

#[test]
fn help_is_plain_and_a_scrape_has_the_first_clause() {
    for metric in METRICS {
        assert!(metric.help.ends_with('.'), "{}", metric.name);
        assert!(!metric.help.contains(['\n', '\\', '"']), "{}", metric.name);
        let summary = metric.summary();
        assert!(metric.help.starts_with(summary) && !summary.ends_with('.'), "{summary}");
        assert!((10..=110).contains(&summary.len()), "{} bytes: {summary}", summary.len());
    }
}

#[test]
fn metrics_are_found_by_their_full_name() {
    assert_eq!(
        metric("uma_actions_total").map(|m| m.labels),
        Some(["action", "outcome"].as_slice())
    );
    assert!(metric("uma_actions").is_none());
}
