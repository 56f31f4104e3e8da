//! The picture of the manual: the page of a replayed incident. `docs/screenshots` runs this.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::json;
use umawarden::access::{AccessControl, AccessFiles};
use umawarden::config::rules::parse_rules;
use umawarden::config::shipped::shipped_rules;
use umawarden::exports::{Limits, NodeNames};
use umawarden::model::{DecisionId, Mode, Moment};
use umawarden::policy::Policy;
use umawarden::policy::memory_ring::MemoryFeed;
use umawarden::recording::{Entry, SegmentReader};

use super::Browser;
use crate::exports::server::{Server, moment, no_queries, start_at};

/// Where the pictures are written.
const FOLDER: &str = "UMAWARDEN_SCREENSHOTS";

/// The incident: a model is read, and the page cache eats the reserve.
const INCIDENT: &str = "tests/incidents/page-cache-flood-observed/recording-1.umarec";

/// The recorded clock.
static UPTIME_MS: AtomicU64 = AtomicU64::new(0);

fn uptime() -> Duration {
    Duration::from_millis(UPTIME_MS.load(Ordering::Relaxed))
}

/// Replays the incident, with the shipped rules, until a while after the last decision.
fn replay(server: &Server) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(INCIDENT);
    let mut reader = SegmentReader::open(BufReader::new(File::open(path).unwrap())).unwrap();
    let rules = parse_rules(&shipped_rules(), Duration::from_millis(100)).unwrap();
    let mut feed = MemoryFeed::new(Arc::clone(&server.memory));
    let mut policy: Option<Policy> = None;
    let mut last: Option<Moment> = None;
    while let Some(entry) = reader.next_entry().unwrap() {
        match entry {
            Entry::Begin(begin) => {
                policy = Some(Policy::new(begin.at, Mode::Observe, &rules, DecisionId(1)));
            }
            Entry::Step(step) => {
                let policy = policy.as_mut().unwrap();
                policy.step(step.at, &step.seen);
                feed.take(&policy.status(step.at));
                last = Some(step.at);
            }
            _ => {}
        }
    }
    let last = last.unwrap();
    UPTIME_MS.store(last.uptime.as_millis() as u64, Ordering::Relaxed);
    server.status.store(Arc::new(policy.unwrap().status(last)));
}

#[test]
fn the_pictures_of_the_manual_are_of_a_replayed_incident() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else {
        eprintln!("skipped: {FOLDER} is not set; docs/screenshots sets it");
        return;
    };
    let Some(mut browser) = Browser::start() else { return };
    let access = AccessControl::open(AccessFiles::default(), || moment(100)).unwrap();
    // A virtual machine, whose model is of no interest.
    let node = NodeNames { name: "node-1".into(), model: None };
    let server = start_at(node, uptime, access, Limits::default(), no_queries());
    replay(&server);
    let url = format!("http://{}/", server.address);
    browser.run("open", json!({ "url": url, "width": 1280, "height": 1100 }));
    browser.run("picture", json!({ "path": folder.join("page.png") }));
    server.end();
}
