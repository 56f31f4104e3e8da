//! Durations, sizes, addresses and names, as people write them in files and flags.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::model::DaemonSetName;

pub use crate::model::{duration, duration_text as written, size_bytes};

#[cfg(test)]
mod tests;

/// A duration within bounds, both allowed.
pub fn duration_within(text: &str, least: Duration, most: Duration) -> Result<Duration, String> {
    let found = duration(text)?;
    if (least..=most).contains(&found) {
        return Ok(found);
    }
    Err(format!("{text} is out of bounds: from {} to {}", written(least), written(most)))
}

/// A path, relative or absolute.
pub fn path(text: &str) -> Result<PathBuf, String> {
    match text {
        "" => Err("a path cannot be empty".to_owned()),
        text if text.contains('\0') => Err("a path cannot contain a NUL".to_owned()),
        text => Ok(PathBuf::from(text)),
    }
}

/// The name of a node in Kubernetes: a DNS subdomain of RFC 1123.
pub fn node_name(text: &str) -> Result<String, String> {
    let is_inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
    let is_name = text.len() <= 253
        && text.chars().all(is_inner)
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.ends_with(|c: char| c.is_ascii_alphanumeric());
    let wrong = || format!("\"{text}\" is no name of a node: lower-case letters, digits, - and .");
    is_name.then(|| text.to_owned()).ok_or_else(wrong)
}

/// A DaemonSet of Kubernetes, as `NAMESPACE/NAME`.
pub fn daemon_set(text: &str) -> Result<DaemonSetName, String> {
    let wrong = || format!("\"{text}\" is no DaemonSet; write it as in umawarden/umawarden");
    let (namespace, name) = text.split_once('/').ok_or_else(wrong)?;
    let [namespace, name] = [namespace, name].map(|part| node_name(part).map_err(|_| wrong()));
    Ok(DaemonSetName { namespace: namespace?, name: name? })
}

/// The address of a server, with the path below which it is; without slashes at its end.
pub fn base_url(text: &str) -> Result<String, String> {
    let host = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    let host = host.unwrap_or_default();
    let is_plain = |c: char| c.is_ascii_graphic() && !"?#@\\\"<>".contains(c);
    if host.is_empty() || host.starts_with(['/', ':']) || !host.chars().all(is_plain) {
        return Err(format!("\"{text}\" is no address; write it as in http://host:8080"));
    }
    Ok(text.trim_end_matches('/').to_owned())
}

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenAddress {
    /// On which of the node's addresses.
    pub host: ListenHost,
    /// 0 lets the kernel choose.
    pub port: u16,
}

/// On which of the node's addresses to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenHost {
    /// All of them, IPv6 and IPv4.
    All,
    /// This one.
    Address(IpAddr),
    /// The addresses of that name.
    Name(String),
}

impl ListenAddress {
    /// What to bind: the first that works will do. Empty for a name, which is to be resolved first.
    pub fn candidates(&self) -> Vec<SocketAddr> {
        match &self.host {
            // IPv6 sockets take IPv4 as well, but a kernel without IPv6 has none.
            ListenHost::All => vec![
                SocketAddr::from((Ipv6Addr::UNSPECIFIED, self.port)),
                SocketAddr::from((Ipv4Addr::UNSPECIFIED, self.port)),
            ],
            ListenHost::Address(address) => vec![SocketAddr::from((*address, self.port))],
            ListenHost::Name(_) => Vec::new(),
        }
    }
}

impl std::fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.host {
            ListenHost::All => write!(f, ":{}", self.port),
            ListenHost::Address(address) => SocketAddr::from((*address, self.port)).fmt(f),
            ListenHost::Name(name) => write!(f, "{name}:{}", self.port),
        }
    }
}

impl FromStr for ListenAddress {
    type Err = String;

    /// `:9942`, `127.0.0.1:9942`, `[::1]:9942`, `localhost:9942`.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(Self { host: ListenHost::Address(address.ip()), port: address.port() });
        }
        let wrong = |why: &str| {
            format!(
                "\"{text}\" is not an address to listen on: {why}; \
                 write :9942, 127.0.0.1:9942 or [::1]:9942"
            )
        };
        let (host, port) = text.rsplit_once(':').ok_or_else(|| wrong("it has no port"))?;
        if port.is_empty() || !port.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(wrong("the port is not a number"));
        }
        let port = port.parse().map_err(|_| wrong("ports end at 65535"))?;
        let host = match host {
            "" => ListenHost::All,
            _ if host.contains([':', '[', ']']) => return Err(wrong("IPv6 goes in brackets")),
            _ if is_host_name(host) => ListenHost::Name(host.to_owned()),
            _ => return Err(wrong("the host is neither an address nor a name")),
        };
        Ok(Self { host, port })
    }
}

fn is_host_name(host: &str) -> bool {
    let label = |label: &str| {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        !label.is_empty() && label.len() <= 63 && label.bytes().all(allowed)
    };
    // What ends in a number is a mistyped IPv4 address, as in 300.1.1.1.
    let last_is_number =
        host.rsplit('.').next().is_some_and(|last| last.bytes().all(|b| b.is_ascii_digit()));
    host.len() <= 253 && host.split('.').all(label) && !last_is_number
}

/// A path to serve metrics on.
pub fn telemetry_path(text: &str) -> Result<String, String> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_.~".contains(&byte);
    if !text.starts_with('/') || !text.bytes().all(allowed) {
        return Err(format!(
            "\"{text}\" is not a path: begin with / and use letters, digits, - _ . ~"
        ));
    }
    let ours = |prefix: &str| text == prefix || text.starts_with(&format!("{prefix}/"));
    if text == "/" || ours("/-") || ours("/api") {
        return Err(format!("{text} is taken: /, /-/… and /api/… have other uses"));
    }
    Ok(text.to_owned())
}
