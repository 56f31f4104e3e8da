//! A log line is a constant, short message with fields, so that it can be searched for.

use std::fs;
use std::path::Path;

use super::rust_files;

const FOLDERS: [&str; 6] = [
    "src/daemon",
    "src/actions",
    "src/sources",
    "src/kubernetes",
    "src/otlp",
    "crates/records/src",
];

/// Its three lines describe the node to a person at the start.
const LINES_OF_THE_START: &str = "daemon/first.rs";

const LEVELS: [&str; 3] = ["tracing::info!(", "tracing::warn!(", "tracing::error!("];

const MOST_WORDS: usize = 8;

/// The message of a log line, from the text after `tracing::…!(`: the last string that is no value.
fn message_of(text: &str) -> Option<&str> {
    let (mut depth, mut before, mut message) = (0, ',', None);
    let mut rest = text.char_indices();
    while let Some((at, next)) = rest.next() {
        match next {
            '"' => {
                let mut is_escaped = false;
                let (end, _) = rest.find(|(_, next)| {
                    let is_end = *next == '"' && !is_escaped;
                    is_escaped = *next == '\\' && !is_escaped;
                    is_end
                })?;
                if depth == 0 && before == ',' {
                    message = Some(&text[at + 1..end]);
                }
            }
            '(' | '[' | '{' => depth += 1,
            ')' if depth == 0 => return message,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        if !next.is_whitespace() {
            before = next;
        }
    }
    None
}

#[test]
fn a_log_line_is_a_constant_short_message_with_fields() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut lines, mut wrong) = (0, Vec::new());
    for path in FOLDERS.iter().flat_map(|folder| rust_files(&root.join(folder))) {
        if path.ends_with(LINES_OF_THE_START) {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        for (at, found) in LEVELS.iter().flat_map(|level| text.match_indices(level)) {
            lines += 1;
            let message = message_of(&text[at + found.len()..]).unwrap_or("{}");
            if message.contains('{') || message.split_whitespace().count() > MOST_WORDS {
                let line = text[..at].matches('\n').count() + 1;
                wrong.push(format!("{}:{line}: {message}", path.display()));
            }
        }
    }
    assert!(lines > 80, "{lines}");
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    assert_eq!(message_of(r#"%error, "disk full");"#), Some("disk full"));
    let interpolated = r#"remedy = "a \"b", of = name("c"), "{what} failed")"#;
    assert_eq!(message_of(interpolated), Some("{what} failed"));
}
