//! Real Prometheus, Alertmanager and collectors: these tests ask little of the machine and wait
//! much, so that they may run side by side.

mod alertmanager;
mod cluster;
mod collector;
mod dashboards;
mod door;
mod prometheus;
