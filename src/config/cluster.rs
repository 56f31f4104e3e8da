//! `cluster`: the other nodes of an engine that spans several.

use super::decode::{Findings, Table, each, list, value};
use super::yaml::Node;
use crate::model::PeerAddress;

const KEYS: [&str; 1] = ["peers"];

/// Nobody has a larger cluster of nodes that ask each other.
pub const MOST_PEERS: usize = 64;

/// Reads its peers; `None` where there are mistakes.
pub(super) fn read(node: &Node, findings: &mut Findings<'_>) -> Option<Vec<PeerAddress>> {
    let table = Table::read(node, "cluster", &KEYS, findings)?;
    let Some(node) = table.get("peers") else {
        findings
            .add(table.place(), "cluster names no peers")
            .hint("write peers: [spark-2, spark-3:9942]");
        return None;
    };
    let entries = list(node, "peers", findings)?;
    if entries.len() > MOST_PEERS {
        findings.add(node.span.clone(), format!("more than {MOST_PEERS} peers"));
        return None;
    }
    let address = |node: &Node, findings: &mut Findings<'_>| {
        value(node, "an entry of peers", str::parse::<PeerAddress>, findings)
    };
    let peers = each(entries, findings, address)?;
    for (place, (peer, node)) in peers.iter().zip(entries).enumerate() {
        if peers[..place].contains(peer) {
            findings.add(node.span.clone(), format!("{peer} is named twice"));
        }
    }
    Some(peers)
}

#[cfg(test)]
mod tests {
    use crate::config::mistake::SourceText;
    use crate::config::settings::parse_settings;

    fn read(text: &str) -> Result<Vec<String>, String> {
        let settings = parse_settings(&SourceText::new("f", text));
        let settings = settings.map_err(|mistakes| mistakes.to_string())?;
        Ok(settings.peers.unwrap_or_default().iter().map(ToString::to_string).collect())
    }

    #[test]
    fn peers_are_hosts_with_or_without_a_port() {
        let told = read("cluster: {peers: [spark-2, '10.0.0.3:9999', '[fd00::2]']}").unwrap();
        assert_eq!(told, ["spark-2", "10.0.0.3:9999", "[fd00::2]"]);
        assert!(read("cluster: {peers: []}").unwrap().is_empty());
    }

    #[test]
    fn mistakes_are_told_with_their_place() {
        for (text, expected) in [
            ("cluster: {}", "cluster names no peers"),
            ("cluster: {pears: [a]}", "did you mean \"peers\"?"),
            ("cluster: {peers: a}", "peers must be a list"),
            ("cluster: {peers: ['http://a']}", "1:19: an entry of peers: \"http://a\" is no host"),
            ("cluster: {peers: [a, b, a]}", "1:25: a is named twice"),
            ("peers: [a]", "write cluster: {peers: [HOST, HOST:PORT]}"),
        ] {
            let told = read(text).unwrap_err();
            assert!(told.contains(expected), "{text}: {told}");
        }
        let many: Vec<String> = (0..65).map(|number| format!("n{number}")).collect();
        assert!(read(&format!("cluster: {{peers: [{}]}}", many.join(","))).is_err());
    }
}
