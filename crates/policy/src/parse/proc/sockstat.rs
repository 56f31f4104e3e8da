//! `/proc/net/sockstat`.

/// Pages of TCP and UDP sockets (`mem`). `None` if neither line is there.
pub fn memory_pages(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    let of = |protocol: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(protocol))?;
        let mut words = line.split_ascii_whitespace();
        words.find(|word| *word == "mem")?;
        words.next()?.parse::<u64>().ok()
    };
    match (of("TCP:"), of("UDP:")) {
        (None, None) => None,
        (tcp, udp) => Some(tcp.unwrap_or(0).saturating_add(udp.unwrap_or(0))),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEXT: &str = "sockets: used 35\nTCP: inuse 4 orphan 0 tw 0 alloc 6 mem 48\n\
        UDP: inuse 0 mem 2\nUDPLITE: inuse 0\nRAW: inuse 0\nFRAG: inuse 0 memory 0\n";

    #[test]
    fn pages_of_tcp_and_udp_are_added_up() {
        assert_eq!(memory_pages(TEXT.as_bytes()), Some(50));
        assert_eq!(memory_pages(b"TCP: inuse 4 mem 7\n"), Some(7));
        assert_eq!(memory_pages(b"UDPLITE: inuse 0\n"), None);
        assert_eq!(memory_pages(b"TCP: inuse 4 mem\n"), None);
    }

    proptest! {
        #[test]
        fn arbitrary_text_is_read(text in prop::collection::vec(any::<u8>(), 0..256)) {
            memory_pages(&text);
        }
    }
}
