//! Which sources an expression needs, from the names in its text.

use std::collections::BTreeSet;

use umawarden::model::{Source, metric};
use umawarden::policy::rule::Query;

/// The sources of all metrics that it names.
pub fn sources(query: &Query) -> BTreeSet<Source> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let words = query.text.split(|letter| !is_part(letter));
    words.filter_map(metric).map(|metric| metric.source).collect()
}
