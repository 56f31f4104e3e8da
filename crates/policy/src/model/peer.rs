//! The address of umawarden on another node.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use http::uri::Authority;

/// Default port of umawarden.
const USUAL_PORT: u16 = 9942;

/// The address of umawarden on another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerAddress {
    name: Arc<str>,
    host: String,
    port: u16,
    origin: String,
}

impl FromStr for PeerAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("{text:?} is no host, with or without a port: spark-2, 10.0.0.2:9942, [::1]:80")
        };
        let authority: Authority = text.parse().map_err(|_| wrong())?;
        let host = authority.host();
        if host.is_empty() || text.contains('@') {
            return Err(wrong());
        }
        let port = match text.strip_prefix(host) {
            Some("") => USUAL_PORT,
            Some(port) => port
                .strip_prefix(':')
                .and_then(|port| port.parse().ok())
                .filter(|port| *port > 0)
                .ok_or_else(wrong)?,
            None => return Err(wrong()),
        };
        let origin = format!("http://{host}:{port}");
        Ok(Self { name: text.into(), host: host.to_owned(), port, origin })
    }
}

impl PeerAddress {
    /// Name as configured or discovered.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The same address under another name.
    #[must_use]
    pub fn named(self, name: Arc<str>) -> Self {
        Self { name, ..self }
    }

    /// The host: a name, or an address, in brackets if it has colons.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The TCP port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Whether another one has the same scheme, host and port.
    pub fn is_at(&self, other: &Self) -> bool {
        self.host.eq_ignore_ascii_case(&other.host) && self.port == other.port
    }

    /// Scheme, host and port.
    pub fn origin(&self) -> &str {
        &self.origin
    }
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_the_usual_port_unless_it_names_one() {
        let origin =
            |text: &str| text.parse::<PeerAddress>().map(|address| address.origin().to_owned());
        for (text, expected) in [
            ("spark-2", "http://spark-2:9942"),
            ("10.0.0.2:80", "http://10.0.0.2:80"),
            ("[fd00::2]", "http://[fd00::2]:9942"),
            ("[fd00::2]:1", "http://[fd00::2]:1"),
        ] {
            assert_eq!(origin(text).as_deref(), Ok(expected), "{text}");
        }
        for wrong in
            ["", ":80", "a:", "a:0", "a:99999", "a:b", "fd00::2", "a/b", "http://a", "u@a", "a b"]
        {
            assert!(origin(wrong).is_err(), "{wrong}");
        }
    }
}
