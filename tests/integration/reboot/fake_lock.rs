//! A fake lock server: a counting semaphore, as the protocol defines it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::Value;

use crate::empty_cache::fake::{FakeServer, Reply, Request};

/// Holders of a slot, by group.
pub type Holders = BTreeMap<String, Vec<String>>;

pub struct FakeLock {
    server: FakeServer,
    holders: Arc<Mutex<Holders>>,
}

impl FakeLock {
    /// With so many slots in each group.
    pub fn start(slots: usize) -> Self {
        let holders: Arc<Mutex<Holders>> = Arc::default();
        let shared = Arc::clone(&holders);
        let server =
            FakeServer::start(move |request| answer(request, &mut shared.lock().unwrap(), slots));
        Self { server, holders }
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.server.port)
    }

    pub fn holders(&self) -> MutexGuard<'_, Holders> {
        self.holders.lock().unwrap()
    }

    pub fn requests(&self) -> Vec<Request> {
        self.server.requests()
    }
}

fn error(kind: &str, value: &str) -> Reply {
    Reply::Answer(400, format!("{{\"kind\": \"{kind}\", \"value\": \"{value}\"}}"))
}

fn answer(request: &Request, holders: &mut Holders, slots: usize) -> Reply {
    if request.method != "POST" || request.fleet_lock.as_deref() != Some("true") {
        return error("missing_header", "it is not meant for a lock server");
    }
    let body: Value = serde_json::from_str(&request.body).unwrap_or_default();
    let of = |name: &str| body["client_params"][name].as_str().unwrap_or_default().to_owned();
    let (id, group) = (of("id"), of("group"));
    if id.is_empty() || group.is_empty() {
        return error("bad_parameters", "who are you?");
    }
    let holding = holders.entry(group).or_default();
    match request.path.as_str() {
        "/v1/pre-reboot" if holding.contains(&id) => {}
        "/v1/pre-reboot" if holding.len() >= slots => {
            return error("failed_lock_semaphore_full", "semaphore currently full");
        }
        "/v1/pre-reboot" => holding.push(id),
        "/v1/steady-state" => holding.retain(|holder| *holder != id),
        _ => return Reply::Answer(404, "404 page not found".to_owned()),
    }
    Reply::Answer(200, String::new())
}
