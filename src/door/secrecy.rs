//! What is wrong with a file of secrets is shown without them: people write passwords where hashes
//! belong.

use std::sync::Arc;

use crate::config::mistake::{Mistake, SourceText};
use crate::config::yaml::{self, Content, Node};

/// The tree of a text, and the text with everything hidden but the values whose keys, from the
/// outermost on, may be shown. Both have the same places.
pub(super) fn parse(
    source: &SourceText,
    is_shown: fn(&[&str]) -> bool,
) -> Result<(Arc<Node>, SourceText), Mistake> {
    let root = yaml::parse(source).map_err(hide_values)?;
    let mut bytes = source.text.clone().into_bytes();
    hide(&root, &mut Vec::new(), is_shown, &mut bytes);
    // What is hidden becomes ASCII from its first byte to its last.
    let text = String::from_utf8(bytes).unwrap_or_default();
    Ok((root, SourceText::new(Arc::clone(&source.name), text)))
}

fn hide<'n>(
    node: &'n Node,
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

/// Where there is no tree, whatever follows a colon may be a secret.
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
