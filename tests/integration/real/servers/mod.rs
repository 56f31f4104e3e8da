//! Real Prometheus, Alertmanager and collectors: these tests take little processor time and wait
//! long, so they may run in parallel.

mod access;
mod alertmanager;
mod cluster;
mod collector;
mod dashboards;
mod prometheus;
mod queries;

use std::net::TcpListener;

/// An address of this machine without a listener.
fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// The program of a Prometheus 3, which reads expressions as the rules here mean them.
fn prometheus_3() -> String {
    std::env::var("UMAWARDEN_PROMETHEUS").unwrap_or_else(|_| "prometheus".to_owned())
}
