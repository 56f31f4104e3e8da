//! Checks the certificate, key and credential files of the configuration. The daemon reads them
//! anew for each connection.

use std::path::Path;

use super::collector::{Collector, CollectorEndpoint};
use super::keys::Secret;
use super::{alertmanager, tls};
use crate::model::{Access, AlertmanagerServer, EngineKeys, RebootLock, TlsFiles};

/// Mistakes in the files for other nodes or a Prometheus.
pub fn of_access(access: &Access) -> Vec<String> {
    let tls = access.tls.as_ref().and_then(|files| tls::config(files).err());
    let key = access.credentials.as_ref().and_then(|source| Secret::read_for(source).err());
    tls.into_iter().chain(key.map(|error| error.to_string())).collect()
}

/// Mistakes in the files for an Alertmanager.
pub fn of_alertmanager(server: &AlertmanagerServer) -> Vec<String> {
    let key = alertmanager::key(server).err();
    let authority = of_authority(server.ca_file.as_deref());
    authority.into_iter().chain(key.map(|error| error.to_string())).collect()
}

/// Mistakes in the files for a collector.
pub fn of_collector(endpoint: CollectorEndpoint) -> Vec<String> {
    let authority = of_authority(endpoint.ca_file.as_deref());
    let headers = Collector::new(endpoint).check_headers();
    authority.into_iter().chain(headers.err()).collect()
}

/// Mistakes in the files for a FleetLock server.
pub fn of_lock(lock: &RebootLock) -> Option<String> {
    of_authority(lock.ca_file.as_deref())
}

/// Mistakes in the key files of an engine.
pub fn of_engine(keys: &EngineKeys) -> Vec<String> {
    let both = [&keys.api, &keys.admin].into_iter().flatten();
    both.filter_map(|source| Secret::read(source).err()).map(|error| error.to_string()).collect()
}

fn of_authority(file: Option<&Path>) -> Option<String> {
    tls::config(&TlsFiles::trusting(Some(file?.to_owned()))).err()
}
