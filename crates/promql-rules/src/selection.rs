//! Selections of series of any metrics, as in `match[]` of Prometheus' API.

use std::sync::Arc;

use super::matcher::{Matcher, NAME_LABEL};
use super::{ExprError, SeriesKey, parser};

/// A selector alone: `metric{label="value"}`, or `{__name__=~"uma_.*"}`.
#[derive(Clone, Debug)]
pub struct Selection {
    name: Option<Arc<str>>,
    matchers: Vec<Matcher>,
}

impl Selection {
    /// Parses a selector.
    ///
    /// # Errors
    /// The text is no selector, or one that every series without labels matches.
    pub fn parse(text: &str) -> Result<Self, ExprError> {
        let (name, matchers) = parser::selector(text)?;
        Ok(Self { name, matchers })
    }

    /// Whether it selects a series.
    pub fn selects(&self, key: &SeriesKey) -> bool {
        let value = |label: &str| match label {
            NAME_LABEL => &*key.name,
            label => {
                let found = key.labels.iter().find(|(name, _)| &**name == label);
                found.map(|(_, value)| &**value).unwrap_or_default()
            }
        };
        self.name.as_ref().is_none_or(|name| *name == key.name)
            && self.matchers.iter().all(|matcher| matcher.passes(value(&matcher.label)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selection_matches_names_like_labels() {
        let free = SeriesKey::new("uma_free_bytes", &[("pool", "host")]);
        for (text, selects) in [
            ("uma_free_bytes", true),
            ("uma_free_bytes{pool=\"host\"}", true),
            ("{\"uma_free_bytes\"}", true),
            ("{__name__=\"uma_free_bytes\"}", true),
            ("{__name__=~\"uma_.*\"}", true),
            ("{__name__!=\"\"}", true),
            ("{pool!=\"\"}", true),
            ("{__name__=~\"uma\"}", false),
            ("{__name__!~\"uma_.*\",pool=\"host\"}", false),
            ("uma_free_bytes{pool=\"gpu0\"}", false),
            ("uma_free", false),
        ] {
            let selection =
                Selection::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(selection.selects(&free), selects, "{text}");
        }
    }

    #[test]
    fn other_texts_are_errors_at_their_place() {
        for (text, at) in [
            ("", 0),
            ("{}", 0),
            ("{pool=\"\"}", 0),
            ("{pool=~\".*\"}", 0),
            ("a + b", 2),
            ("a[5m]", 1),
            ("a offset 1m", 2),
            ("rate(a[5m])", 4),
            ("a{b=\"c\"", 7),
            ("{b=~\"(\"}", 4),
            ("1", 0),
        ] {
            let error = Selection::parse(text).expect_err(text);
            assert_eq!(error.span.start, at, "{text}: {error}");
        }
        assert!(Selection::parse(&"a".repeat(5000)).is_err());
    }
}
