use jiff::Timestamp;
use proptest::prelude::*;

use super::super::page_request::{Filter, parse};
use super::super::{PageRequest, PageStart};

fn now() -> Timestamp {
    "2026-11-21T07:30:00Z".parse().unwrap()
}

fn parsed(query: &str, filter: Filter) -> Result<PageRequest, String> {
    parse(&format!("/api/v1/x?{query}").parse().unwrap(), filter, now())
}

#[test]
fn a_bare_request_means_the_newest_hundred() {
    for uri in ["/api/v1/events", "/api/v1/events?"] {
        let request = parse(&uri.parse().unwrap(), Filter::Kind, now()).unwrap();
        assert_eq!((request.limit, request.start), (100, PageStart::Newest));
        assert_eq!((request.since, request.until), (None, None));
        assert!(request.kinds.is_empty());
    }
}

#[test]
fn every_parameter_is_understood() {
    let request = parsed(
        "limit=1000&before=7&since=2026-11-21T03:00:00%2B01:00&until=1795312800.25&kind=oom_kill",
        Filter::Kind,
    )
    .unwrap();
    assert_eq!(request.limit, 1000);
    assert_eq!(request.start, PageStart::Before(7));
    assert_eq!(request.since.unwrap().to_string(), "2026-11-21T02:00:00Z");
    assert_eq!(request.until.unwrap().as_millisecond(), 1_795_312_800_250);
    assert_eq!(request.kinds, ["oom_kill"]);
    let request = parsed("kind=oom_kill,xid", Filter::Kind).unwrap();
    assert_eq!(request.kinds, ["oom_kill", "xid"]);
    let request = parsed("since=2h&until=-1h", Filter::Kind).unwrap();
    assert_eq!(request.since.unwrap().to_string(), "2026-11-21T05:30:00Z");
    assert_eq!(request.until.unwrap().to_string(), "2026-11-21T06:30:00Z");
    let request = parsed("after=0&rule=memory/PageCache+Eats", Filter::Rule).unwrap();
    assert_eq!(request.start, PageStart::After(0));
    assert_eq!(request.rule.as_deref(), Some("memory/PageCache Eats"));
}

#[test]
fn a_bad_parameter_is_named() {
    let cases = [
        ("limit=0", "\"limit\""),
        ("limit=1001", "1 to 1000"),
        ("limit=-1", "\"limit\""),
        ("limit=", "\"limit\""),
        ("after=x", "\"after\""),
        ("before=99999999999999999999999", "\"before\""),
        ("after=1&before=2", "exclude"),
        ("since=yesterday", "\"since\""),
        ("since=NaN", "\"since\""),
        ("until=inf", "\"until\""),
        ("until=1e300", "\"until\""),
        ("since=5&until=4", "later"),
        ("kind=nonsense", "nv_no_memory"),
        ("kind=xid,nonsense", "with commas"),
        ("kind=xid,", "with commas"),
        ("kind=", "with commas"),
        ("rule=a", "unknown parameter \"rule\""),
        ("limit=1&limit=2", "duplicate"),
        ("%00=1", "unknown parameter"),
    ];
    for (query, named) in cases {
        let problem = parsed(query, Filter::Kind).unwrap_err();
        assert!(problem.contains(named), "{query:?}: {problem}");
    }
    assert!(parsed("kind=xid", Filter::Rule).unwrap_err().contains("\"kind\""));
    assert!(parsed("rule=", Filter::Rule).unwrap_err().contains("\"rule\""));
}

proptest! {
    #[test]
    fn any_query_yields_a_bounded_page(
        query in "([a-z]{1,6}|limit|after|since)=[0-9a-zA-Z%.+-]{0,12}(&[!-\"$-~]{0,20})?",
    ) {
        let Ok(uri) = format!("/?{query}").parse() else { return Ok(()) };
        if let Ok(request) = parse(&uri, Filter::Rule, now()) {
            prop_assert!((1..=1000).contains(&request.limit));
            prop_assert!(request.kinds.is_empty());
        }
    }
}
