//! The metrics that a scrape selects: `/metrics?name[]=uma_memory_free_bytes&name[]=…`.

use std::collections::BTreeSet;

use axum::extract::Query;
use hyper::Uri;

/// The parameter, as in Prometheus' client libraries.
const PARAMETER: &str = "name[]";

/// Selected names of samples; without names, all are selected. The limit of a request's URI bounds
/// them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NameSelection(Option<BTreeSet<String>>);

impl NameSelection {
    /// Reads the selection of a request. Other parameters are ignored: a scrape may have any.
    pub(super) fn of(uri: &Uri) -> Self {
        let pairs = Query::<Vec<(String, String)>>::try_from_uri(uri);
        let Ok(Query(pairs)) = pairs else { return Self::default() };
        let named = pairs.into_iter().filter(|(parameter, _)| parameter == PARAMETER);
        let names: BTreeSet<String> = named.map(|(_, name)| name).collect();
        Self((!names.is_empty()).then_some(names))
    }

    /// Whether all samples are selected.
    pub(super) fn is_everything(&self) -> bool {
        self.0.is_none()
    }

    /// Whether samples of this name are selected.
    pub(super) fn takes(&self, name: &str) -> bool {
        self.0.as_ref().is_none_or(|names| names.contains(name))
    }

    /// Whether this name is selected explicitly.
    pub(super) fn names(&self, name: &str) -> bool {
        self.0.as_ref().is_some_and(|names| names.contains(name))
    }

    /// Adds a name, unless all are selected.
    pub(super) fn add(&mut self, name: &str) {
        if let Some(names) = &mut self.0 {
            names.insert(name.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(query: &str) -> NameSelection {
        NameSelection::of(&format!("/metrics{query}").parse().unwrap())
    }

    #[test]
    fn all_series_are_selected_without_names_and_otherwise_the_named() {
        for all in ["", "?", "?name=a", "?names[]=a", "?collect%5B%5D=cpu", "?=&&&x"] {
            assert!(of(all).takes("anything"), "{all}");
        }
        for two in ["?name[]=a&name[]=b", "?name%5B%5D=a&x=y&name%5b%5d=b&name[]=a"] {
            let selection = of(two);
            assert!(selection.takes("a") && selection.takes("b") && !selection.takes("c"), "{two}");
        }
        for none in ["?name[]=", "?name[]", "?name[]=%ff", "?name[]=a,b", "?name[]=A"] {
            assert!(!of(none).takes("a"), "{none}");
        }
    }
}
