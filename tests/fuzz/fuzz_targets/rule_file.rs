//! A rule file: every mistake has a line and column within the file.
#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use umawarden::config::mistake::{Mistake, SourceText};
use umawarden::config::rules::{ExportOptions, examine, parse_rules, prometheus_rules};

const INTERVAL: Duration = Duration::from_millis(100);

fn check(mistakes: &[Mistake], lines: usize) {
    for mistake in mistakes {
        assert!((1..=lines).contains(&mistake.line), "{mistake:?}");
        assert!(mistake.column >= 1 && mistake.width >= 1, "{mistake:?}");
        assert!(!mistake.message.is_empty(), "{mistake:?}");
    }
}

fuzz_target!(|text: &str| {
    let lines = text.lines().count().max(1) + 1;
    let sources = [SourceText::new("f", text)];
    match parse_rules(&sources, INTERVAL) {
        Ok(rules) => {
            check(&examine(&sources, &rules).findings, lines);
            let exported = prometheus_rules(&rules, &ExportOptions::default());
            let again = parse_rules(&[SourceText::new("export", exported)], INTERVAL);
            let again = again.unwrap_or_else(|mistakes| panic!("{mistakes}"));
            assert_eq!(again.groups.len(), rules.groups.len());
            let by = vec!["instance".into()];
            let adapted = ExportOptions {
                by,
                scrape_interval: Some(Duration::from_secs(15)),
                runbook_url: None,
            };
            prometheus_rules(&rules, &adapted);
        }
        Err(mistakes) => {
            assert!((1..=100).contains(&mistakes.0.len()));
            check(&mistakes.0, lines);
            assert!(mistakes.to_string().chars().all(|c| c == '\n' || !c.is_control()));
        }
    }
});
