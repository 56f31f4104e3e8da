//! Mistakes in files of secrets are shown without secrets: people write passwords in place of
//! hashes.

use std::sync::Arc;

use crate::config::mistake::{Mistake, SourceText};
use crate::config::yaml::{self, Content, YamlNode};

/// Parses a text. Returns its tree, and the text with every value masked unless `is_shown` allows
/// its path of keys. Positions in both are equal.
pub(super) fn parse(
    source: &SourceText,
    is_shown: fn(&[&str]) -> bool,
) -> Result<(Arc<YamlNode>, SourceText), Mistake> {
    let root = yaml::parse(source).map_err(hide_values)?;
    let mut bytes = source.text.clone().into_bytes();
    hide(&root, &mut Vec::new(), is_shown, &mut bytes);
    // A masked value becomes ASCII from its first byte to its last.
    let text = String::from_utf8(bytes).unwrap_or_default();
    Ok((root, SourceText::new(Arc::clone(&source.name), text)))
}

fn hide<'n>(
    node: &'n YamlNode,
    keys: &mut Vec<&'n str>,
    is_shown: fn(&[&str]) -> bool,
    bytes: &mut [u8],
) {
    match &node.content {
        Content::Null => {}
        Content::Scalar(_) if is_shown(keys) => {}
        Content::Scalar(_) => {
            let written = bytes.get_mut(node.span.clone()).unwrap_or_default();
            for byte in written.iter_mut().filter(|byte| !byte.is_ascii_whitespace()) {
                *byte = b'*';
            }
        }
        Content::List(entries) => {
            for entry in entries {
                hide(entry, keys, is_shown, bytes);
            }
        }
        Content::Map(pairs) => {
            for (key, value) in pairs {
                keys.push(key.text().unwrap_or_default());
                hide(value, keys, is_shown, bytes);
                keys.pop();
            }
        }
    }
}

/// Without a tree, any text after a colon may be a secret.
fn hide_values(mut mistake: Mistake) -> Mistake {
    let mut is_value = !mistake.source_line.contains(':');
    let hidden = mistake.source_line.chars().map(|c| {
        let shown = if is_value && !c.is_whitespace() { '*' } else { c };
        is_value |= c == ':';
        shown
    });
    mistake.source_line = hidden.collect();
    mistake
}
