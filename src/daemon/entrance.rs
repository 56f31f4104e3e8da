//! What clients connect to: listeners, access control, and all that the HTTP server serves.

use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::{Arc, Mutex};

use anyhow::Context;
use arc_swap::{ArcSwap, ArcSwapOption};
use tokio::sync::mpsc;

use super::alerting::Alerting;
use super::begin::limits;
use super::leases::LeaseWatch;
use super::orders::Orders;
use super::service::{DaemonService, Loader, LoopRequests};
use super::wake::Wake;
use super::{clock, cluster, queries, refill, samples, watchdog};
use crate::access::{AccessControl, AccessFiles};
use crate::config::measure::{ListenAddress, ListenHost};
use crate::config::reader::LoadedConfig;
use crate::config::settings::{Settings, WebSettings};
use crate::exports::{self, NodeNames, ReloadFailure, Served};
use crate::model::Moment;
use crate::policy::memory_ring::MemoryRing;
use crate::policy::rule::RuleSet;
use crate::sources::machine;

/// Orders in the queue.
const ORDERS: usize = 16;

/// The files of access control.
pub fn access_files(settings: &Settings) -> AccessFiles {
    let WebSettings { config_file, tokens_file, .. } = &settings.web;
    AccessFiles { web_config: config_file.clone(), tokens: tokens_file.clone() }
}

/// The listeners and access control.
pub(super) struct ServerSockets {
    listeners: Vec<TcpListener>,
    access: Arc<AccessControl>,
}

impl ServerSockets {
    /// Invalid access control prevents the program from listening.
    pub(super) fn open(settings: &Settings) -> anyhow::Result<Self> {
        let access = Arc::new(AccessControl::open(access_files(settings), clock::now)?);
        let listeners = match settings.web.systemd_socket {
            true => exports::passed_by_systemd()?,
            false => exports::bind(&resolve(&settings.web.listen)?)?,
        };
        Ok(Self { listeners, access })
    }

    /// Where the page is.
    pub(super) fn addresses(&self) -> Vec<String> {
        let scheme = if self.access.handshake().tls.is_some() { "https" } else { "http" };
        let bound = self.listeners.iter().filter_map(|listener| listener.local_addr().ok());
        bound.map(|address| format!("{scheme}://{address}/")).collect()
    }
}

/// What the loop shares with the HTTP server, beside the status.
#[derive(Debug, Default)]
pub(super) struct ServerShared {
    pub(super) reload_failure: Arc<ArcSwapOption<ReloadFailure>>,
    /// The loaded rules.
    pub(super) rules: Arc<ArcSwap<RuleSet>>,
    /// The memory of the last hour.
    pub(super) memory: Arc<Mutex<MemoryRing>>,
}

impl ServerShared {
    /// Of a start: the loaded rules, and the memory of the last hour by the flight recorder.
    pub(super) fn begin(loaded: &LoadedConfig, boot_id: &str, started: Moment) -> Self {
        let shared = Self::default();
        shared.rules.store(Arc::new(loaded.rules.clone()));
        refill::start(&loaded.settings.storage.path, boot_id, started, &shared.memory);
        shared
    }
}

/// Starts the HTTP server.
pub(super) fn serve(
    settings: &Settings,
    entrance: ServerSockets,
    (loader, wake): (Loader, &Wake),
    taker: Orders,
    (alerting, leases): (&Alerting, &LeaseWatch),
    shared: &ServerShared,
) -> anyhow::Result<(DaemonService, Arc<AccessControl>)> {
    let (reload, reloads) = mpsc::channel(4);
    let (order, orders) = mpsc::channel(ORDERS);
    // One request at a time is sent.
    let (explain, explanations) = mpsc::channel(1);
    for address in entrance.addresses() {
        tracing::debug!("listening on {address}");
    }
    let ServerSockets { listeners, access } = entrance;
    let served = Served {
        status: Arc::clone(&taker.status),
        telemetry_path: settings.web.telemetry_path.clone(),
        node: node_names(settings),
        memory: Arc::clone(&shared.memory),
        queries: queries::queries(&settings.storage.path, &shared.rules),
        samples: samples::start(settings, &taker.status, &listeners)?,
        explain,
        reload,
        control_socket: settings.web.control_socket.clone(),
        orders: order,
        leases: leases.sender(),
        received: alerting.inbox(),
        reload_failure: Arc::clone(&shared.reload_failure),
        access: Arc::clone(&access),
        instance: cluster::instance(),
        uptime: clock::uptime,
        limits: limits(),
    };
    let requests = LoopRequests { reloads, orders, explanations, taker };
    watchdog::start(Arc::clone(&served.status)).context("cannot start the watchdog's thread")?;
    Ok((DaemonService::start(listeners, served, requests, loader, wake.clone())?, access))
}

/// The node's name in its cluster, or the host's, and the machine's model.
fn node_names(settings: &Settings) -> NodeNames {
    let name = match &settings.cluster {
        Some(cluster) => cluster::names(cluster).node,
        None => cluster::host(),
    };
    NodeNames { name, model: machine::model(&settings.path.sysfs) }
}

fn resolve(addresses: &[ListenAddress]) -> anyhow::Result<Vec<SocketAddr>> {
    let mut resolved = Vec::new();
    for address in addresses {
        match &address.host {
            ListenHost::Name(name) => {
                let found = (name.as_str(), address.port).to_socket_addrs();
                resolved.extend(found.with_context(|| {
                    format!("cannot listen on {name}:{}: the name is not known", address.port)
                })?);
            }
            // The first candidate represents all of them with IPv6.
            ListenHost::All | ListenHost::Address(_) => {
                resolved.extend(address.candidates().first());
            }
        }
    }
    Ok(resolved)
}
