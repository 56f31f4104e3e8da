//! The metrics of another node, in parts.
#![no_main]

use libfuzzer_sys::fuzz_target;
use umawarden::parse::exposition::{MetricLine, MetricReader};

/// All lines, or nothing.
fn read(parts: &[&[u8]]) -> Option<Vec<String>> {
    let mut lines = Vec::new();
    let mut take = |line: MetricLine<'_>| {
        assert!(!line.name.is_empty() && line.labels.len() <= 32);
        lines.push(format!("{line:?}"));
    };
    let mut reader = MetricReader::new();
    for part in parts {
        reader.feed(part, &|_| true, &mut take).ok()?;
    }
    reader.end(&|_| true, &mut take).ok()?;
    Some(lines)
}

fuzz_target!(|input: (u16, &[u8])| {
    let (cut, text) = input;
    let (one, other) = text.split_at(usize::from(cut).min(text.len()));
    assert_eq!(read(&[text]), read(&[one, other]));
});
