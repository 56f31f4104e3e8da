//! Which metrics a scrape asks for: `/metrics?name[]=uma_memory_free_bytes&name[]=…`.

use std::collections::BTreeSet;

use axum::extract::Query;
use hyper::Uri;

/// What asks for one, as in Prometheus' own client libraries.
const PARAMETER: &str = "name[]";

/// The names that are asked for, as samples bear them; whoever names none asks for all. The bound
/// on a request's address bounds them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Selection(Option<BTreeSet<String>>);

impl Selection {
    /// What a request asks for. Other parameters are none of ours: a scrape may bring any.
    pub(super) fn of(uri: &Uri) -> Self {
        let pairs = Query::<Vec<(String, String)>>::try_from_uri(uri);
        let Ok(Query(pairs)) = pairs else { return Self::default() };
        let named = pairs.into_iter().filter(|(parameter, _)| parameter == PARAMETER);
        let names: BTreeSet<String> = named.map(|(_, name)| name).collect();
        Self((!names.is_empty()).then_some(names))
    }

    /// Whether all are asked for.
    pub(super) fn is_everything(&self) -> bool {
        self.0.is_none()
    }

    /// Whether samples of that name are asked for.
    pub(super) fn takes(&self, name: &str) -> bool {
        self.0.as_ref().is_none_or(|names| names.contains(name))
    }

    /// Whether that is asked for by its name, whatever else is.
    pub(super) fn names(&self, name: &str) -> bool {
        self.0.as_ref().is_some_and(|names| names.contains(name))
    }

    /// From now on samples of that name, too, unless all are asked for.
    pub(super) fn add(&mut self, name: &str) {
        if let Some(names) = &mut self.0 {
            names.insert(name.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(query: &str) -> Selection {
        Selection::of(&format!("/metrics{query}").parse().unwrap())
    }

    #[test]
    fn who_names_nothing_gets_all_and_who_names_something_that() {
        for all in ["", "?", "?name=a", "?names[]=a", "?collect%5B%5D=cpu", "?=&&&x"] {
            assert!(of(all).takes("anything"), "{all}");
        }
        for two in ["?name[]=a&name[]=b", "?name%5B%5D=a&x=y&name%5b%5d=b&name[]=a"] {
            let told = of(two);
            assert!(told.takes("a") && told.takes("b") && !told.takes("c"), "{two}");
        }
        for none in ["?name[]=", "?name[]", "?name[]=%ff", "?name[]=a,b", "?name[]=A"] {
            assert!(!of(none).takes("a"), "{none}");
        }
    }
}
