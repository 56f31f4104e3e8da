//! The parameters of a journal page: `?limit=…&after=…&since=…`.

use axum::extract::Query;
use hyper::Uri;
use jiff::Timestamp;

use super::{PageRequest, PageStart};
use crate::model::{EventKind, instant};

/// Entries on a page that names no limit.
const DEFAULT_LIMIT: usize = 100;
/// The most entries that one page may have.
const MAX_LIMIT: usize = 1000;
/// The longest name of a rule.
const MAX_RULE_BYTES: usize = 512;

/// The filter of a list, in addition to time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Filter {
    /// `kind`, for events.
    Kind,
    /// `rule`, for decisions.
    Rule,
    None,
}

impl Filter {
    fn name(self) -> &'static str {
        match self {
            Self::Kind => ", kind",
            Self::Rule => ", rule",
            Self::None => "",
        }
    }
}

/// Reads the parameters. Relative times count back from `now`.
///
/// # Errors
/// The parameter, and what it should be.
pub(super) fn parse(uri: &Uri, filter: Filter, now: Timestamp) -> Result<PageRequest, String> {
    let Query(pairs) = Query::<Vec<(String, String)>>::try_from_uri(uri)
        .map_err(|error| format!("cannot parse the query: {error}"))?;
    let mut request = PageRequest::newest(DEFAULT_LIMIT);
    let mut seen: Vec<&str> = Vec::new();
    for (name, value) in &pairs {
        if seen.contains(&name.as_str()) {
            return Err(format!("duplicate parameter {name:?}"));
        }
        seen.push(name);
        set(&mut request, (filter, now), name, value)?;
    }
    if seen.contains(&"after") && seen.contains(&"before") {
        return Err("parameters \"after\" and \"before\" exclude each other".to_owned());
    }
    match (request.since, request.until) {
        (Some(since), Some(until)) if since > until => {
            Err("parameter \"since\" is later than \"until\"".to_owned())
        }
        _ => Ok(request),
    }
}

fn set(
    request: &mut PageRequest,
    (filter, now): (Filter, Timestamp),
    name: &str,
    value: &str,
) -> Result<(), String> {
    let wrong = |expected: &str| format!("parameter {name:?}: {value:?} is not {expected}");
    let id = || value.parse().map_err(|_| wrong("an id"));
    let time = || {
        instant(value, now)
            .map_err(|expected| format!("parameter {name:?}: {value:?} is not a time: {expected}"))
    };
    match (name, filter) {
        ("limit", _) => {
            request.limit = value
                .parse()
                .ok()
                .filter(|limit| (1..=MAX_LIMIT).contains(limit))
                .ok_or_else(|| wrong("a number from 1 to 1000"))?;
        }
        ("after", _) => request.start = PageStart::After(id()?),
        ("before", _) => request.start = PageStart::Before(id()?),
        ("since", _) => request.since = Some(time()?),
        ("until", _) => request.until = Some(time()?),
        ("kind", Filter::Kind) => {
            let kinds: Vec<&str> = value.split(',').collect();
            if !kinds.iter().all(|kind| EventKind::KINDS.contains(kind)) {
                let known = EventKind::KINDS.join(", ");
                return Err(wrong(&format!("one of {known}, or several with commas")));
            }
            request.kinds = kinds.into_iter().map(str::to_owned).collect();
        }
        ("rule", Filter::Rule) => {
            if value.is_empty() || value.len() > MAX_RULE_BYTES {
                return Err(wrong("a rule's name (group/alert, or alert)"));
            }
            request.rule = Some(value.to_owned());
        }
        _ => {
            let known = filter.name();
            return Err(format!(
                "unknown parameter {name:?}; known: limit, after, before, since, until{known}"
            ));
        }
    }
    Ok(())
}
