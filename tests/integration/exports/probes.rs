//! Health, and what is served before the first sample.

use std::sync::Arc;
use std::time::Duration;

use umawarden::model::Source;
use umawarden::policy::status::{SourceStatus, Status};

use super::server::{made_up_status, moment, start};

#[test]
fn health_depends_on_the_sampling_loop_and_not_on_the_server() {
    let server = start();
    assert_eq!(server.get("/-/healthy").status, 200);
    let stale = Status { at: moment(60), ..made_up_status() };
    server.status.store(Arc::new(stale));
    let response = server.get("/-/healthy");
    assert_eq!(response.status, 503);
    assert!(response.text().contains("40.0 s old"), "{}", response.text());
    server.end();
}

#[test]
fn the_server_is_ready_once_the_node_has_been_sampled() {
    let server = start();
    assert_eq!(server.get("/-/ready").status, 200);
    let own = |source| SourceStatus { source, up: true, detail: None, took: Duration::ZERO };
    let blind = SourceStatus { up: false, ..own(Source::Meminfo) };
    let sources = Arc::new([own(Source::Daemon), own(Source::Process), blind]);
    server.status.store(Arc::new(Status { sources, ..made_up_status() }));
    assert_eq!(server.get("/-/ready").status, 503);
    assert_eq!(server.get("/metrics").status, 200, "a failed sample is reported");
    let sources = Arc::new([own(Source::Daemon), own(Source::Process)]);
    server.status.store(Arc::new(Status { sources, ..made_up_status() }));
    let scrape = server.get("/metrics");
    assert_eq!((scrape.status, scrape.text()), (503, "umawarden is not ready: no sample yet\n"));
    server.end();
}
