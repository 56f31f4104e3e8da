//! Real Prometheus, Alertmanager and collectors: these tests ask little of the machine and wait
//! much, so that they may run side by side.

mod access;
mod alertmanager;
mod cluster;
mod collector;
mod dashboards;
mod prometheus;

use std::net::TcpListener;

/// Where nobody listens on this machine.
fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// The program of a Prometheus 3, which reads expressions as the rules here mean them.
fn prometheus_3() -> String {
    std::env::var("UMAWARDEN_PROMETHEUS").unwrap_or_else(|_| "prometheus".to_owned())
}
