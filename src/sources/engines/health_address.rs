//! The health address of an engine. An engine cannot redirect the probe: only addresses of this
//! node or of its container are used.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use crate::clients::network::{self, may_enter};
use crate::engines::{ServingArguments, facts};
use crate::model::EngineKind;
use crate::parse::container::Container;

/// An engine and what is known of its address.
#[derive(Clone, Copy, Debug)]
pub(super) struct HealthTarget<'a> {
    pub(super) kind: EngineKind,
    pub(super) serving: &'a ServingArguments,
    /// The address on which it listens, in its own network namespace.
    pub(super) at: Option<IpAddr>,
    /// Its container as reported by Docker.
    pub(super) reported: Option<&'a Container>,
}

/// An address, and its network namespace if that is another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HealthAddress {
    pub(super) url: Arc<str>,
    pub(super) network: Option<Arc<str>>,
}

#[derive(Clone, Debug)]
pub(super) struct HealthAddresses {
    procfs: PathBuf,
    may_enter: bool,
}

impl HealthAddresses {
    pub(super) fn new(procfs: PathBuf) -> Self {
        Self { procfs, may_enter: may_enter() }
    }

    /// The address for health probes: the loopback in the engine's own network namespace. Without
    /// the permission to enter it, the container's address or its published port is used. These
    /// must be reachable from here, and do not work for an engine that listens only on its
    /// loopback.
    pub(super) fn health(&self, pid: u32, target: &HealthTarget<'_>) -> Option<HealthAddress> {
        let port = target.serving.port?;
        let path = super::health::path(target.kind)?;
        let own = network::of(&self.procfs, "self").map(|own| own.name);
        let its = network::of(&self.procfs, &pid.to_string()).map(|its| its.name);
        let address = |at: SocketAddr, network| HealthAddress {
            url: format!("http://{at}{path}").into(),
            network,
        };
        let is_own = match (&own, &its) {
            (Some(own), Some(its)) => own == its,
            _ => target.reported.is_some_and(|reported| reported.is_in_host_network),
        };
        let inside = || Some(SocketAddr::new(target.inside()?, port));
        if is_own {
            return inside().map(|at| address(at, None));
        }
        if self.may_enter && own.is_some() && its.is_some() {
            return inside().map(|at| address(at, its));
        }
        let reported = target.reported.filter(|_| !target.is_for_itself())?;
        let published = reported.addresses.first().map(|address| SocketAddr::new(*address, port));
        published.or_else(|| reported.published_at(port)).map(|at| address(at, None))
    }
}

impl HealthTarget<'_> {
    /// The address on which it listens; else its configured one, if that can only be local.
    fn inside(&self) -> Option<IpAddr> {
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        match self.at {
            Some(at) if at.is_unspecified() => Some(loopback),
            Some(at) => Some(at),
            None => match self.host() {
                Ok(host) if host.is_unspecified() => Some(loopback),
                Ok(host) => Some(host).filter(IpAddr::is_loopback),
                Err("localhost") => Some(loopback),
                Err(_) => None,
            },
        }
    }

    /// Whether it is reachable only from its own network namespace.
    fn is_for_itself(&self) -> bool {
        match self.at {
            Some(at) => at.is_loopback(),
            None => self.host().map_or_else(|host| host == "localhost", |host| host.is_loopback()),
        }
    }

    /// The configured host; the first of several.
    fn host(&self) -> Result<IpAddr, &str> {
        let usual = facts(self.kind).host;
        let host = self.serving.host.as_deref().unwrap_or(usual);
        let host = host.split(',').next().unwrap_or_default();
        host.parse().map_err(|_| host)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use super::*;

    fn put(procfs: &Path, process: &str, network: &str) {
        let folder = procfs.join(process).join("ns");
        fs::create_dir_all(&folder).unwrap();
        symlink(network, folder.join("net")).unwrap();
    }

    fn target(serving: &ServingArguments) -> HealthTarget<'_> {
        HealthTarget { kind: EngineKind::Vllm, serving, at: None, reported: None }
    }

    fn serving(host: Option<&str>) -> ServingArguments {
        ServingArguments {
            host: host.map(str::to_owned),
            port: Some(8000),
            ..ServingArguments::default()
        }
    }

    fn reported(address: Option<HealthAddress>) -> Option<(String, Option<String>)> {
        address
            .map(|address| (address.url.to_string(), address.network.map(|name| name.to_string())))
    }

    #[test]
    fn health_is_queried_in_the_network_of_the_engine() {
        let folder = tempfile::tempdir().unwrap();
        put(folder.path(), "self", "net:[1]");
        put(folder.path(), "10", "net:[1]");
        put(folder.path(), "20", "net:[2]");
        let addresses = HealthAddresses { procfs: folder.path().to_owned(), may_enter: true };
        let here = Some(("http://127.0.0.1:8000/health".to_owned(), None));
        let there = Some(("http://127.0.0.1:8000/health".to_owned(), Some("net:[2]".to_owned())));
        for host in [None, Some("0.0.0.0"), Some("::"), Some("localhost"), Some("0.0.0.0,::")] {
            let serving = serving(host);
            assert_eq!(reported(addresses.health(10, &target(&serving))), here, "{host:?}");
            assert_eq!(reported(addresses.health(20, &target(&serving))), there, "{host:?}");
        }
        let six = serving(Some("::1"));
        let six = reported(addresses.health(10, &target(&six)));
        assert_eq!(six.unwrap().0, "http://[::1]:8000/health");
        // Another host may be any machine until a process of the engine listens on it.
        for host in ["192.168.1.5", "example.org"] {
            let serving = serving(Some(host));
            assert_eq!(addresses.health(10, &target(&serving)), None, "{host}");
            let at = Some("192.168.1.5".parse().unwrap());
            let listening = HealthTarget { at, ..target(&serving) };
            let reported = reported(addresses.health(20, &listening)).unwrap();
            assert_eq!(reported.0, "http://192.168.1.5:8000/health");
            assert_eq!(reported.1.as_deref(), Some("net:[2]"));
        }
        assert_eq!(
            addresses.health(30, &target(&serving(None))),
            None,
            "its network is not visible"
        );
    }

    #[test]
    fn health_is_queried_at_dockers_addresses_without_access_to_the_network() {
        let folder = tempfile::tempdir().unwrap();
        put(folder.path(), "self", "net:[1]");
        put(folder.path(), "20", "net:[2]");
        let addresses = HealthAddresses { procfs: folder.path().to_owned(), may_enter: false };
        let usual = serving(None);
        assert_eq!(addresses.health(20, &target(&usual)), None);
        let bridge = Container {
            addresses: vec!["172.17.0.2".parse().unwrap()],
            published: vec![(8000, "127.0.0.1:18000".parse().unwrap())],
            ..Container::default()
        };
        let of = |reported: &Container, serving: &ServingArguments, pid| {
            let target = HealthTarget { reported: Some(reported), ..target(serving) };
            addresses.health(pid, &target).map(|address| address.url.to_string())
        };
        // Neither a closed nor an invisible namespace matters.
        for pid in [20, 30] {
            let url = of(&bridge, &usual, pid);
            assert_eq!(url.as_deref(), Some("http://172.17.0.2:8000/health"));
        }
        let published = Container { addresses: Vec::new(), ..bridge.clone() };
        let url = of(&published, &usual, 20);
        assert_eq!(url.as_deref(), Some("http://127.0.0.1:18000/health"));
        assert_eq!(
            of(&bridge, &serving(Some("127.0.0.1")), 20),
            None,
            "only its own network reaches it"
        );
        assert_eq!(of(&Container::default(), &usual, 20), None, "--network none");
        let host = Container { is_in_host_network: true, ..Container::default() };
        let url = of(&host, &usual, 30);
        assert_eq!(url.as_deref(), Some("http://127.0.0.1:8000/health"));
    }
}
