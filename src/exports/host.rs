//! The Host header of a request: RFC 9112, section 3.2.

use hyper::header::{self, HeaderValue};
use hyper::http::uri::Authority;
use hyper::{HeaderMap, Version};

/// The error of the Host header, if any. An empty one is valid, as in Go's server.
pub(super) fn fault(version: Version, headers: &HeaderMap) -> Option<&'static str> {
    let mut named = headers.get_all(header::HOST).iter();
    match (named.next(), named.next()) {
        (None, _) if version == Version::HTTP_11 => {
            Some("the request has no Host header, which HTTP/1.1 requires: send one\n")
        }
        (None, _) => None,
        (Some(_), Some(_)) => Some("the request has more than one Host header: send one\n"),
        (Some(host), None) if is_host(host) => None,
        (Some(_), None) => Some("the Host header is not HOST or HOST:PORT\n"),
    }
}

fn is_host(value: &HeaderValue) -> bool {
    let bytes = value.as_bytes();
    bytes.is_empty()
        || Authority::try_from(bytes).is_ok_and(|authority| !authority.as_str().contains('@'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_served(version: Version, hosts: &[&[u8]]) -> bool {
        let mut headers = HeaderMap::new();
        for host in hosts {
            headers.append(header::HOST, HeaderValue::from_bytes(host).unwrap());
        }
        fault(version, &headers).is_none()
    }

    #[test]
    fn exactly_one_host_is_required_except_in_http_1_0() {
        assert!(!is_served(Version::HTTP_11, &[]));
        assert!(is_served(Version::HTTP_10, &[]));
        for version in [Version::HTTP_10, Version::HTTP_11] {
            for host in [&b"x"[..], b"node:9942", b"10.0.0.1", b"[::1]:9942", b""] {
                assert!(is_served(version, &[host]), "{host:?}");
                assert!(!is_served(version, &[host, host]), "{host:?}");
            }
            for host in [&b"a b"[..], b"a, b", b"me@x", b"x/y", b"http://x", b"\xff", b"[::1"] {
                assert!(!is_served(version, &[host]), "{host:?}");
            }
        }
    }
}
