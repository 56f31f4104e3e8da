//! `otlp`: where metrics and traces are sent.

use std::path::PathBuf;
use std::time::Duration;

use super::decode::{self, Findings, Table, choice, each, list, pairs, value};
use super::measure::path;
use super::yaml::YamlNode;
use crate::model::Signal;

const KEYS: [&str; 7] =
    ["endpoint", "signals", "interval", "timeout", "headers_file", "ca_file", "resource"];

const EXAMPLE: &str = "write otlp: {endpoint: \"http://localhost:4318\"}";

/// As often as metrics are usually scraped.
pub const DEFAULT_INTERVAL: Duration = Duration::from_secs(15);

/// As others that speak OTLP have it.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

const SECOND: Duration = Duration::from_secs(1);
const LONGEST_INTERVAL: Duration = Duration::from_secs(3_600);
const LONGEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Most resource attributes.
const MOST_ATTRIBUTES: usize = 32;
const LONGEST_ATTRIBUTE: usize = 256;

/// Where metrics and traces are sent, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtlpSettings {
    /// `http://host:port/path` or `https://…`, without the path of a signal.
    pub endpoint: String,
    /// The signals that are sent.
    pub signals: Vec<Signal>,
    /// Time between two exports of metrics.
    pub interval: Duration,
    /// Longest time of a request.
    pub timeout: Duration,
    /// A file with headers: `name: value`, one a line.
    pub headers_file: Option<PathBuf>,
    /// Certificates that are trusted over TLS, instead of those of the system.
    pub ca_file: Option<PathBuf>,
    /// Additional resource attributes.
    pub resource: Vec<(String, String)>,
}

impl OtlpSettings {
    /// With everything else as it usually is.
    pub fn to(endpoint: String) -> Self {
        Self {
            endpoint,
            signals: Signal::ALL.to_vec(),
            interval: DEFAULT_INTERVAL,
            timeout: DEFAULT_TIMEOUT,
            headers_file: None,
            ca_file: None,
            resource: Vec::new(),
        }
    }
}

/// The address of a collector, without the paths of the signals.
pub fn endpoint(text: &str) -> Result<String, String> {
    let no_address = || format!("\"{text}\" is no address; write it as in http://localhost:4318");
    let is_plain = |c: char| c.is_ascii_graphic() && !"?#@\\\"<>".contains(c);
    let uri: http::Uri = text.parse().map_err(|_| no_address())?;
    let is_web = matches!(uri.scheme_str(), Some("http" | "https"));
    if !is_web || uri.host().is_none_or(str::is_empty) || !text.chars().all(is_plain) {
        return Err(no_address());
    }
    let base = text.trim_end_matches('/');
    for path in ["/v1/metrics", "/v1/traces"] {
        if let Some(shorter) = base.strip_suffix(path) {
            return Err(format!("\"{text}\" is for one signal alone: write {shorter}"));
        }
    }
    Ok(base.to_owned())
}

/// Reads it; `None` where there are mistakes.
pub(super) fn read(node: &YamlNode, findings: &mut Findings<'_>) -> Option<OtlpSettings> {
    if node.text().is_some() {
        decode::wrong_kind(node, "otlp", decode::MAPPING, findings).hint(EXAMPLE);
        return None;
    }
    let table = Table::read(node, "otlp", &KEYS, findings)?;
    let Some(address) = table.get("endpoint") else {
        findings.add(table.span(), "otlp needs an endpoint").hint(EXAMPLE);
        return None;
    };
    let mut settings = OtlpSettings::to(value(address, "endpoint", endpoint, findings)?);
    let is_plain = settings.endpoint.starts_with("http://");
    settings.signals = table.read_or("signals", settings.signals, signals, findings)?;
    let bounds = SECOND..=LONGEST_INTERVAL;
    settings.interval = table.duration_or("interval", settings.interval, bounds, findings)?;
    let bounds = SECOND..=LONGEST_TIMEOUT;
    settings.timeout = table.duration_or("timeout", settings.timeout, bounds, findings)?;
    settings.headers_file = table.value_optional("headers_file", path, findings)?;
    if let Some(node) = table.get("ca_file") {
        if is_plain {
            let text = "ca_file is for https, and the endpoint is plain http";
            findings
                .add(node.span.clone(), text)
                .hint("write endpoint: \"https://…\", or leave it out");
            return None;
        }
        settings.ca_file = Some(value(node, "ca_file", path, findings)?);
    }
    settings.resource = table.read_or("resource", settings.resource, attributes, findings)?;
    Some(settings)
}

fn signals(node: &YamlNode, findings: &mut Findings<'_>) -> Option<Vec<Signal>> {
    let entries = list(node, "signals", findings)?;
    if entries.is_empty() {
        findings
            .add(node.span.clone(), "signals names none, so that nothing would be sent")
            .hint("leave otlp out, or write signals: [metrics, traces]");
        return None;
    }
    let mut signals = each(entries, findings, |entry, findings| {
        choice(entry, "an entry of signals", &Signal::CHOICES, findings)
    })?;
    signals.sort_unstable();
    signals.dedup();
    Some(signals)
}

fn attributes(node: &YamlNode, findings: &mut Findings<'_>) -> Option<Vec<(String, String)>> {
    let entries = pairs(node, "resource", findings)?;
    if entries.len() > MOST_ATTRIBUTES {
        findings.add(node.span.clone(), format!("more than {MOST_ATTRIBUTES} attributes"));
        return None;
    }
    let attribute = |(name, _, node): (&str, &YamlNode, &YamlNode)| {
        Some((name.to_owned(), value(node, name, attribute, findings)?))
    };
    entries.into_iter().map(attribute).collect()
}

fn attribute(text: &str) -> Result<String, String> {
    match text.len() {
        0 => Err("an attribute cannot be empty".to_owned()),
        1..=LONGEST_ATTRIBUTE => Ok(text.to_owned()),
        _ => Err(format!("an attribute has at most {LONGEST_ATTRIBUTE} bytes")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::mistake::SourceText;
    use crate::config::settings::parse_settings;

    #[test]
    fn only_the_endpoint_has_no_default() {
        let read = |text: &str| parse_settings(&SourceText::new("f", text)).unwrap().otlp.unwrap();
        let usual = OtlpSettings::to("http://localhost:4318".to_owned());
        assert_eq!(read("otlp: {endpoint: 'http://localhost:4318/'}"), usual);
        let all = read(
            "otlp:\n  endpoint: https://[fd00::1]:9090/api/v1/otlp\n  signals: [traces, metrics, \
             traces]\n  interval: 1m\n  timeout: 5s\n  headers_file: headers\n  ca_file: \
             /etc/ca.pem\n  resource: {deployment.environment: lab, rack: \"7\"}\n",
        );
        let expected = OtlpSettings {
            endpoint: "https://[fd00::1]:9090/api/v1/otlp".to_owned(),
            signals: vec![Signal::Metrics, Signal::Traces],
            interval: Duration::from_secs(60),
            timeout: Duration::from_secs(5),
            headers_file: Some("headers".into()),
            ca_file: Some("/etc/ca.pem".into()),
            resource: [("deployment.environment", "lab"), ("rack", "7")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .to_vec(),
        };
        assert_eq!(all, expected);
    }

    #[test]
    fn mistakes_are_reported_at_their_place_with_a_correction() {
        for (text, found) in [
            ("otlp: 'http://a:4318'", "write otlp: {endpoint: \"http://localhost:4318\"}"),
            ("otlp: {interval: 10s}", "otlp needs an endpoint"),
            ("otlp: {endpoint: 'a:4318'}", "1:18: endpoint: \"a:4318\" is no address"),
            ("otlp: {endpoint: 'grpc://a:4317'}", "is no address"),
            ("otlp: {endpoint: 'http://u:p@a'}", "is no address"),
            ("otlp: {endpoint: 'http://a/?x=1'}", "is no address"),
            ("otlp: {endpoint: 'http://a/v1/traces'}", "write http://a"),
            ("otlp: {endpoint: 'http://a', interval: 1ms}", "out of bounds"),
            ("otlp: {endpoint: 'http://a', timeout: 1h}", "out of bounds"),
            ("otlp: {endpoint: 'http://a', signals: []}", "nothing would be sent"),
            ("otlp: {endpoint: 'http://a', signals: [logs]}", "cannot be \"logs\""),
            ("otlp: {endpoint: 'http://a', ca_file: /a}", "1:39: ca_file is for https"),
            ("otlp: {endpoint: 'http://a', headers: x}", "headers_file"),
            ("otlp: {endpoint: 'http://a', resource: {a: ''}}", "cannot be empty"),
            ("otlp: {endpoint: 'http://a', resource: [a]}", "resource must be"),
        ] {
            let error = parse_settings(&SourceText::new("f", text)).unwrap_err().to_string();
            assert!(error.contains(found), "{text}: {error}");
        }
    }
}
