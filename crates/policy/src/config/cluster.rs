//! `cluster`: the other nodes of an engine that spans several.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use promql_rules::is_label_name;

use super::decode::{Advice, Findings, Table, each, list, value};
use super::measure::{duration_within, path, written};
use super::yaml::YamlNode;
pub use crate::model::MOST_PEERS;
use crate::model::{Access, ClusterSettings, Credentials, PeerAddress, PrometheusServer, TlsFiles};

const KEYS: [&str; 12] = [
    "name",
    "node",
    "peers",
    "dns",
    "file_sd",
    "prometheus",
    "interval",
    "timeout",
    "metrics_path",
    "tls",
    "bearer_token_file",
    "basic_auth",
];

const ADVICE: [Advice; 4] = [
    (&["scrape_interval"], "it is called interval"),
    (&["scrape_timeout"], "it is called timeout"),
    (&["tls_config", "ca_file", "cert_file", "key_file"], "write tls: {ca_file: …}"),
    (&["static_configs", "targets"], "write peers: [spark-2, spark-3:9942]"),
];

const PROMETHEUS_KEYS: [&str; 6] =
    ["url", "node_label", "matchers", "tls", "bearer_token_file", "basic_auth"];

/// Names and files are for who has more nodes.
const MOST_ENTRIES: usize = 64;

const LONGEST_NAME: usize = 255;

const USUAL_NAME: &str = "cluster";

/// Memory changes within seconds.
const USUAL_INTERVAL: Duration = Duration::from_secs(1);

/// Prometheus usually scrapes every 15 s.
const USUAL_PROMETHEUS_INTERVAL: Duration = Duration::from_secs(15);

const INTERVALS: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(60)];

/// Longest default timeout.
const LONGEST_USUAL_TIMEOUT: Duration = Duration::from_secs(5);

const LEAST_TIMEOUT: Duration = Duration::from_millis(50);

/// Reads the block; `None` where there are mistakes.
pub(super) fn read(node: &YamlNode, findings: &mut Findings<'_>) -> Option<ClusterSettings> {
    let table = Table::read_advised(node, "cluster", &KEYS, &ADVICE, findings)?;
    let is_asked = ["peers", "dns", "file_sd", "prometheus"].map(|key| table.key(key).is_some());
    if !is_asked.contains(&true) {
        findings
            .add(table.span(), "cluster names no peers")
            .hint("write peers: [spark-2, spark-3:9942], dns, file_sd or prometheus");
        return None;
    }
    let name = table.value_optional("name", label_value, findings);
    let own = table.value_optional("node", label_value, findings);
    let peers = addresses(&table, "peers", findings);
    let dns = addresses(&table, "dns", findings);
    let files = files(&table, findings);
    let prometheus = table.read_optional("prometheus", prometheus, findings);
    let (interval, timeout) =
        times(&table, prometheus.as_ref().is_some_and(Option::is_some), findings)?;
    let metrics_path = table.value_optional("metrics_path", path_of_url, findings);
    let access = access(&table, findings);
    Some(ClusterSettings {
        name: name?.unwrap_or_else(|| USUAL_NAME.into()),
        node: own?,
        peers: peers?,
        dns: dns?,
        files: files?,
        prometheus: prometheus?,
        interval,
        timeout,
        metrics_path: metrics_path?.unwrap_or_else(|| "/metrics".to_owned()),
        access: access?,
    })
}

/// Relative paths count from that folder.
pub(super) fn in_folder(mut settings: ClusterSettings, folder: &Path) -> ClusterSettings {
    let join = |path: &mut PathBuf| *path = folder.join(&*path);
    settings.files.iter_mut().for_each(join);
    let server = settings.prometheus.as_mut().map(|server| &mut server.access);
    for access in [&mut settings.access].into_iter().chain(server) {
        if let Some(tls) = &mut access.tls {
            tls.ca.iter_mut().for_each(join);
            if let Some((certificate, key)) = &mut tls.own {
                [certificate, key].into_iter().for_each(join);
            }
        }
        match &mut access.credentials {
            Some(Credentials::Bearer(file) | Credentials::Basic { password: file, .. }) => {
                join(file)
            }
            None => {}
        }
    }
    settings
}

fn addresses(
    table: &Table<'_>,
    key: &str,
    findings: &mut Findings<'_>,
) -> Option<Vec<PeerAddress>> {
    let Some(node) = table.get(key) else { return Some(Vec::new()) };
    let entries = list(node, key, findings)?;
    if entries.len() > MOST_PEERS {
        findings.add(node.span.clone(), format!("more than {MOST_PEERS} peers")).hint(
            "nodes that ask each other cost each other; ask a Prometheus: prometheus: {url: …}",
        );
        return None;
    }
    let what = format!("an entry of {key}");
    let address =
        |node: &YamlNode, findings: &mut Findings<'_>| value(node, &what, str::parse, findings);
    let peers: Vec<PeerAddress> = each(entries, findings, address)?;
    for (index, (peer, node)) in peers.iter().zip(entries).enumerate() {
        if peers[..index].contains(peer) {
            findings.add(node.span.clone(), format!("{peer} is named twice"));
        }
    }
    Some(peers)
}

fn files(table: &Table<'_>, findings: &mut Findings<'_>) -> Option<Vec<PathBuf>> {
    let Some(node) = table.get("file_sd") else { return Some(Vec::new()) };
    let entries = list(node, "file_sd", findings)?;
    if entries.len() > MOST_ENTRIES {
        findings.add(node.span.clone(), format!("more than {MOST_ENTRIES} files"));
        return None;
    }
    let file = |text: &str| {
        let path = path(text)?;
        let is_known = path
            .extension()
            .is_some_and(|name| ["yaml", "yml", "json"].iter().any(|known| name == *known));
        is_known.then_some(path).ok_or_else(|| {
            format!("\"{text}\" is neither .yaml nor .json; a pattern may precede: peers/*.yaml")
        })
    };
    each(entries, findings, |node, findings| value(node, "an entry of file_sd", file, findings))
}

fn times(
    table: &Table<'_>,
    is_prometheus: bool,
    findings: &mut Findings<'_>,
) -> Option<(Duration, Duration)> {
    let [least, most] = INTERVALS;
    let interval =
        table.value_optional("interval", |text| duration_within(text, least, most), findings)?;
    let usual = if is_prometheus { USUAL_PROMETHEUS_INTERVAL } else { USUAL_INTERVAL };
    let interval = interval.unwrap_or(usual);
    let within = |text: &str| duration_within(text, LEAST_TIMEOUT, most);
    let timeout = table.value_optional("timeout", within, findings)?;
    if let (Some(timeout), Some(node)) = (timeout, table.get("timeout"))
        && timeout >= interval
    {
        findings
            .add(
                node.span.clone(),
                format!("a timeout must be shorter than the interval of {}", written(interval)),
            )
            .hint("a node without a response by then is queried again");
        return None;
    }
    Some((interval, timeout.unwrap_or((interval * 4 / 5).min(LONGEST_USUAL_TIMEOUT))))
}

fn prometheus(node: &YamlNode, findings: &mut Findings<'_>) -> Option<PrometheusServer> {
    const EXAMPLE: &str = "write prometheus: {url: \"http://prometheus:9090\"}";
    let table = Table::read(node, "prometheus", &PROMETHEUS_KEYS, findings)?;
    let Some(url) = table.get("url") else {
        findings.add(table.span(), "prometheus needs a url").hint(EXAMPLE);
        return None;
    };
    let url = value(url, "url", server_url, findings);
    let node_label = table.value_optional("node_label", label_name, findings);
    let matchers = table.value_optional("matchers", matchers, findings);
    let access = access(&table, findings);
    let (url, access) = (url?, access?);
    if access.tls.is_some() && !url.starts_with("https://") {
        let span = table.key("tls").map_or_else(|| table.span(), |key| key.span.clone());
        findings.add(span, "tls is for https").hint("write url: \"https://…\", or remove tls");
        return None;
    }
    let tls = match url.starts_with("https://") {
        true => Some(access.tls.unwrap_or_default()),
        false => None,
    };
    Some(PrometheusServer {
        url,
        node_label: node_label?.unwrap_or_else(|| "instance".into()),
        matchers: matchers?,
        access: Access { tls, ..access },
    })
}

fn server_url(text: &str) -> Result<String, String> {
    let wrong = || format!("\"{text}\" is no address; write it as in http://prometheus:9090");
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    let rest = rest.ok_or_else(wrong)?;
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    authority.parse::<PeerAddress>().map_err(|_| wrong())?;
    path_of_url(&format!("/{path}")).map_err(|_| wrong())?;
    Ok(text.trim_end_matches('/').to_owned())
}

fn label_name(text: &str) -> Result<Arc<str>, String> {
    match is_label_name(text) && text != "__name__" {
        true => Ok(text.into()),
        false => Err(format!("\"{text}\" is no label's name")),
    }
}

/// The matchers between the braces of a selector.
fn matchers(text: &str) -> Result<Arc<str>, String> {
    let text = text.trim();
    let inside = text.strip_prefix('{').and_then(|text| text.strip_suffix('}')).unwrap_or(text);
    match promql_rules::parse(&format!("up{{{inside}}}")) {
        Ok(expr) if expr.is_selector() => Ok(inside.trim().trim_end_matches(',').into()),
        Ok(_) => Err(format!("\"{text}\" is more than matchers; write job=\"umawarden\"")),
        Err(error) => Err(format!("{}; write job=\"umawarden\"", error.message)),
    }
}

/// TLS and credentials of the requests.
fn access(table: &Table<'_>, findings: &mut Findings<'_>) -> Option<Access> {
    let tls = match table.get("tls") {
        Some(node) => tls(node, findings).map(Some),
        // An empty block means the trusted authorities of the system.
        None => Some(table.key("tls").map(|_| TlsFiles::default())),
    };
    let bearer = table.value_optional("bearer_token_file", path, findings);
    let basic = table.read_optional("basic_auth", basic, findings);
    let credentials = match (bearer?, basic?) {
        (Some(_), Some(_)) => {
            let span = table.key("basic_auth").map_or_else(|| table.span(), |key| key.span.clone());
            findings
                .add(span, "bearer_token_file and basic_auth exclude each other")
                .hint("remove one of them");
            return None;
        }
        (Some(file), None) => Some(Credentials::Bearer(file)),
        (None, basic) => basic,
    };
    Some(Access { tls: tls?, credentials })
}

fn tls(node: &YamlNode, findings: &mut Findings<'_>) -> Option<TlsFiles> {
    let keys = ["ca_file", "cert_file", "key_file", "server_name"];
    let table = Table::read(node, "tls", &keys, findings)?;
    let ca = table.value_optional("ca_file", path, findings);
    let certificate = table.value_optional("cert_file", path, findings);
    let key = table.value_optional("key_file", path, findings);
    let server_name = table.value_optional("server_name", label_value, findings);
    let own = match (certificate?, key?) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        _ => {
            findings
                .add(table.span(), "cert_file and key_file belong together")
                .hint("write both, or neither");
            return None;
        }
    };
    Some(TlsFiles { ca: ca?, own, server_name: server_name?.map(|name| name.to_string()) })
}

fn basic(node: &YamlNode, findings: &mut Findings<'_>) -> Option<Credentials> {
    const EXAMPLE: &str =
        "write basic_auth: {username: umawarden, password_file: /etc/umawarden/password}";
    let table = Table::read(node, "basic_auth", &["username", "password_file"], findings)?;
    let username = table.value_optional("username", username, findings)?;
    let password = table.value_optional("password_file", path, findings)?;
    let (Some(username), Some(password)) = (username, password) else {
        findings.add(table.span(), "basic_auth needs username and password_file").hint(EXAMPLE);
        return None;
    };
    Some(Credentials::Basic { username, password })
}

fn username(text: &str) -> Result<String, String> {
    let is_name = !text.is_empty() && !text.contains(':') && !text.chars().any(char::is_control);
    is_name
        .then(|| text.to_owned())
        .ok_or_else(|| format!("\"{text}\" is no name: it holds no colon"))
}

fn label_value(text: &str) -> Result<Arc<str>, String> {
    let is_fine = !text.trim().is_empty()
        && text.len() <= LONGEST_NAME
        && !text.chars().any(char::is_control);
    is_fine
        .then(|| text.into())
        .ok_or_else(|| format!("a name has 1 to {LONGEST_NAME} bytes and no control characters"))
}

fn path_of_url(text: &str) -> Result<String, String> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_.~".contains(&byte);
    let is_fine = text.starts_with('/') && text.bytes().all(allowed);
    is_fine.then(|| text.to_owned()).ok_or_else(|| {
        format!("\"{text}\" is not a path: begin with / and use letters, digits, - _ . ~")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::mistake::SourceText;
    use crate::config::settings::parse_settings;

    fn read(text: &str) -> Result<ClusterSettings, String> {
        let settings = parse_settings(&SourceText::new("f", text));
        let settings = settings.map_err(|mistakes| mistakes.to_string())?;
        Ok(settings.cluster.unwrap())
    }

    #[test]
    fn peers_are_hosts_with_or_without_a_port() {
        let found = read("cluster: {peers: [spark-2, '10.0.0.3:9999', '[fd00::2]']}").unwrap();
        let names: Vec<String> = found.peers.iter().map(ToString::to_string).collect();
        assert_eq!(names, ["spark-2", "10.0.0.3:9999", "[fd00::2]"]);
        assert_eq!((&*found.name, found.node, found.interval), ("cluster", None, USUAL_INTERVAL));
        assert_eq!(found.timeout, Duration::from_millis(800));
        assert!(read("cluster: {peers: []}").unwrap().peers.is_empty());
    }

    #[test]
    fn every_key_is_read() {
        let found = read(
            "cluster:\n  name: rack\n  node: spark-1\n  dns: [sparks.lan]\n  file_sd: \
             [p/*.yaml]\n  interval: 2s\n  timeout: 1s\n  metrics_path: /m\n  tls: \
             {ca_file: ca, cert_file: c, key_file: k, server_name: s}\n  basic_auth: \
             {username: u, password_file: w}\n  prometheus: {url: 'https://p:9090/x/', \
             node_label: node, matchers: '{job=\"a\"}', bearer_token_file: t}\n",
        );
        let found = in_folder(found.unwrap(), Path::new("/etc"));
        assert_eq!(found.files, [PathBuf::from("/etc/p/*.yaml")]);
        let tls = found.access.tls.unwrap();
        assert_eq!(tls.ca, Some("/etc/ca".into()));
        assert_eq!(tls.own, Some(("/etc/c".into(), "/etc/k".into())));
        let basic = Credentials::Basic { username: "u".to_owned(), password: "/etc/w".into() };
        assert_eq!(found.access.credentials, Some(basic));
        let server = found.prometheus.unwrap();
        assert_eq!((&*server.url, &*server.node_label), ("https://p:9090/x", "node"));
        assert_eq!(server.matchers.as_deref(), Some("job=\"a\""));
        assert_eq!(server.access.credentials, Some(Credentials::Bearer("/etc/t".into())));
        assert!(server.access.tls.is_some());
        let usual = read("cluster: {prometheus: {url: 'http://p'}}").unwrap();
        assert_eq!(usual.interval, USUAL_PROMETHEUS_INTERVAL);
        assert_eq!(usual.prometheus.unwrap().access, Access::default());
    }

    #[test]
    fn mistakes_are_reported_with_their_line() {
        for (text, expected) in [
            ("cluster: {}", "cluster names no peers"),
            ("cluster: {pears: [a]}", "did you mean \"peers\"?"),
            ("cluster: {peers: a}", "peers must be a list"),
            ("cluster: {peers: ['http://a']}", "1:19: an entry of peers: \"http://a\" is no host"),
            ("cluster: {peers: [a, b, a]}", "1:25: a is named twice"),
            ("peers: [a]", "write cluster: {peers: [HOST, HOST:PORT]}"),
            ("cluster: {peers: [a], name: ' '}", "name: a name has 1 to 255 bytes"),
            ("cluster: {peers: [a], interval: 1ms}", "interval: "),
            ("cluster: {peers: [a], timeout: 1s}", "1:32: a timeout must be shorter than"),
            ("cluster: {file_sd: [a.txt]}", "is neither .yaml nor .json"),
            (
                "cluster: {peers: [a], tls: {cert_file: a}}",
                "cert_file and key_file belong together",
            ),
            (
                "cluster: {peers: [a], basic_auth: {username: a}}",
                "needs username and password_file",
            ),
            (
                "cluster: {peers: [a], bearer_token_file: t, basic_auth: {username: a, \
                 password_file: b}}",
                "exclude each other",
            ),
            ("cluster: {prometheus: {}}", "prometheus needs a url"),
            ("cluster: {prometheus: {url: 'ftp://a'}}", "is no address"),
            ("cluster: {prometheus: {url: 'http://a', tls: {}}}", "tls is for https"),
            ("cluster: {prometheus: {url: 'http://a', node_label: 1x}}", "is no label's name"),
            ("cluster: {prometheus: {url: 'http://a', matchers: 'a='}}", "write job=\"umawarden\""),
            (
                "cluster: {prometheus: {url: 'http://a', matchers: 'a=\"b\"} or up{'}}",
                "is more than",
            ),
            ("cluster: {peers: [a], metrics_path: x}", "is not a path"),
            ("cluster: {peers: [a], scrape_interval: 1s}", "it is called interval"),
        ] {
            let found = read(text).unwrap_err();
            assert!(found.contains(expected), "{text}: {found}");
        }
        let many: Vec<String> = (0..65).map(|number| format!("n{number}")).collect();
        assert!(read(&format!("cluster: {{peers: [{}]}}", many.join(","))).is_err());
    }
}
