//! `alertmanager`: alerts received from Alertmanagers, and those sent to them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use promql_rules::is_label_name;

use super::decode::{Advice, Findings, Table, each, list, pairs, value};
use super::engines::key_file;
use super::measure::base_url;
use super::reboot::absolute;
use super::yaml::YamlNode;
use crate::model::{
    AlertSending, AlertmanagerCredentials, AlertmanagerServer, AlertmanagerSettings, SecretSource,
    SentDecisions,
};

const KEYS: [&str; 5] = ["receive", "send", "resend_every", "labels", "decisions"];
const SERVER_KEYS: [&str; 6] =
    ["url", "bearer_token_file", "username", "password_file", "ca_file", "timeout"];

const ADVICE: [Advice; 4] = [
    (&["external_url"], "it belongs to web"),
    (&["forget_after"], "it belongs to receive"),
    (&["url", "urls", "alertmanagers"], "write send: [{url: \"http://alertmanager:9093\"}]"),
    (
        &["bearer_token_file", "username", "password_file", "ca_file", "timeout"],
        "it belongs to an entry of send",
    ),
];
const SERVER_ADVICE: [Advice; 2] = [
    (&["bearer_token", "token"], "name a file that holds it: bearer_token_file"),
    (&["password"], "name a file that holds it: password_file"),
];

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

/// A usual cluster of Alertmanagers has three.
pub const MOST_SERVERS: usize = 8;
const MOST_LABELS: usize = 16;
const MOST_VALUE_BYTES: usize = 256;
const MOST_USERNAME_BYTES: usize = 256;

/// Reads the block; `None` where there are mistakes.
pub(super) fn read(node: &YamlNode, findings: &mut Findings<'_>) -> Option<AlertmanagerSettings> {
    let table = Table::read_advised(node, "alertmanager", &KEYS, &ADVICE, findings)?;
    let usual = AlertmanagerSettings::default();
    let forget_after = table.read_or(
        "receive",
        usual.forget_after,
        |node, findings| receive(node, usual.forget_after, findings),
        findings,
    );
    let to = table.read_or("send", Vec::new(), servers, findings);
    let labels = table.read_or("labels", BTreeMap::new(), labels, findings);
    let resend_every = table.duration_or(
        "resend_every",
        usual.sending.resend_every,
        SECOND..=MINUTE * 60,
        findings,
    );
    let choices = &SentDecisions::CHOICES;
    let decisions = table.choice_or("decisions", SentDecisions::None, choices, findings);
    if table.get("send").is_none() {
        for key in ["resend_every", "labels", "decisions"] {
            if let Some(found) = table.key(key) {
                findings
                    .add(found.span.clone(), format!("{key} is given, and send is not"))
                    .hint("write send: [{url: \"http://alertmanager:9093\"}]");
            }
        }
    }
    let sending = AlertSending {
        to: to?,
        resend_every: resend_every?,
        labels: labels?,
        decisions: decisions?,
    };
    Some(AlertmanagerSettings { forget_after: forget_after?, sending })
}

fn receive(node: &YamlNode, usual: Duration, findings: &mut Findings<'_>) -> Option<Duration> {
    let table = Table::read(node, "receive", &["forget_after"], findings)?;
    table.duration_or("forget_after", usual, MINUTE..=MINUTE * 60 * 24 * 7, findings)
}

fn servers(node: &YamlNode, findings: &mut Findings<'_>) -> Option<Vec<AlertmanagerServer>> {
    let entries = list(node, "send", findings)?;
    if entries.is_empty() || entries.len() > MOST_SERVERS {
        findings
            .add(node.span.clone(), format!("send names 1 to {MOST_SERVERS} Alertmanagers"))
            .hint("write send: [{url: \"http://alertmanager:9093\"}]");
        return None;
    }
    let servers = each(entries, findings, server)?;
    for (index, (server, node)) in servers.iter().zip(entries).enumerate() {
        if servers[..index].iter().any(|other| other.url == server.url) {
            findings.add(node.span.clone(), format!("{} is named twice", server.url));
        }
    }
    Some(servers)
}

fn server(node: &YamlNode, findings: &mut Findings<'_>) -> Option<AlertmanagerServer> {
    let what = "an entry of send";
    let table = Table::read_advised(node, what, &SERVER_KEYS, &SERVER_ADVICE, findings)?;
    let Some(url) = table.get("url") else {
        findings
            .add(table.span(), format!("{what} needs a url"))
            .hint("write url: \"http://alertmanager:9093\"");
        return None;
    };
    let url = value(url, "url", base_url, findings);
    let is_plain = url.as_deref().is_some_and(|url| url.starts_with("http://"));
    let ca_file = match table.get("ca_file") {
        Some(node) if is_plain => {
            findings
                .add(node.span.clone(), "ca_file is for https, and the url is plain http")
                .hint("write url: \"https://…\", or leave it out");
            None
        }
        Some(node) => value(node, "ca_file", absolute, findings).map(Some),
        None => Some(None),
    };
    let timeout = table.duration_or("timeout", DEFAULT_TIMEOUT, SECOND..=MINUTE, findings);
    let credentials = credentials(&table, findings);
    Some(AlertmanagerServer {
        url: url?,
        ca_file: ca_file?,
        credentials: credentials?,
        timeout: timeout?,
    })
}

/// A token, or a user and a password; the inner `None` is neither.
fn credentials(
    table: &Table<'_>,
    findings: &mut Findings<'_>,
) -> Option<Option<AlertmanagerCredentials>> {
    let mut file = |key: &str| -> Option<Option<SecretSource>> {
        table.value_optional(key, key_file, findings)
    };
    let (token, password) = (file("bearer_token_file"), file("password_file"));
    let username = table.value_optional("username", username, findings);
    match (token?, username?, password?) {
        (None, None, None) => Some(None),
        (Some(token), None, None) => Some(Some(AlertmanagerCredentials::Bearer(token))),
        (None, Some(username), Some(password)) => {
            Some(Some(AlertmanagerCredentials::Basic { username, password }))
        }
        (Some(_), ..) => {
            let text = "bearer_token_file is given, and a user or a password as well";
            findings.add(table.span(), text).hint("remove one of the two");
            None
        }
        (None, ..) => {
            let text = "username and password_file belong together";
            findings.add(table.span(), text).hint("write both, or neither");
            None
        }
    }
}

/// A colon would begin the password.
fn username(text: &str) -> Result<String, String> {
    let is_plain = |c: char| !c.is_control() && c != ':';
    if text.is_empty() || text.len() > MOST_USERNAME_BYTES || !text.chars().all(is_plain) {
        return Err(format!("\"{text}\" is no user's name: no colon, and no control characters"));
    }
    Ok(text.to_owned())
}

fn labels(node: &YamlNode, findings: &mut Findings<'_>) -> Option<BTreeMap<Arc<str>, Arc<str>>> {
    let entries = pairs(node, "labels", findings)?;
    if entries.len() > MOST_LABELS {
        findings.add(node.span.clone(), format!("more than {MOST_LABELS} labels"));
        return None;
    }
    let name = |text: &str| match is_label_name(text) && text != "alertname" {
        true => Ok(Arc::from(text)),
        false => Err(format!("\"{text}\" is no label that can be given to all: cluster, rack")),
    };
    let text = |text: &str| match text.is_empty() || text.len() > MOST_VALUE_BYTES {
        true => Err(format!("a value has 1 to {MOST_VALUE_BYTES} bytes")),
        false => Ok(Arc::from(text)),
    };
    let mut labels = Some(BTreeMap::new());
    for (key, at, node) in entries {
        let key = value(at, "labels", |_| name(key), findings);
        let text = value(node, "labels", text, findings);
        match (key, text, &mut labels) {
            (Some(key), Some(text), Some(labels)) => _ = labels.insert(key, text),
            _ => labels = None,
        }
    }
    labels
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::mistake::SourceText;
    use crate::config::settings::parse_settings;

    fn read(text: &str) -> AlertmanagerSettings {
        let settings = parse_settings(&SourceText::new("f", text));
        settings.unwrap_or_else(|mistakes| panic!("{mistakes}")).alertmanager.unwrap()
    }

    #[test]
    fn alertmanagers_are_configured_as_in_the_readme() {
        assert_eq!(read("alertmanager: {}"), AlertmanagerSettings::default());
        let all = read(
            "alertmanager:\n  receive: {forget_after: 90m}\n  send:\n  - url: \
             http://one:9093/prefix/\n  - url: https://two\n    bearer_token_file: /etc/t\n    \
             ca_file: /etc/ca.pem\n    timeout: 3s\n  - {url: 'http://[::1]:9', username: u, \
             password_file: /etc/p}\n  resend_every: 30s\n  labels: {cluster: lab}\n  \
             decisions: acts\n",
        );
        let secret = |path: &str| SecretSource::File(path.into());
        let server = |url: &str, credentials| AlertmanagerServer {
            url: url.to_owned(),
            ca_file: None,
            credentials,
            timeout: DEFAULT_TIMEOUT,
        };
        let basic =
            AlertmanagerCredentials::Basic { username: "u".to_owned(), password: secret("/etc/p") };
        let expected = AlertmanagerSettings {
            forget_after: MINUTE * 90,
            sending: AlertSending {
                to: vec![
                    server("http://one:9093/prefix", None),
                    AlertmanagerServer {
                        ca_file: Some("/etc/ca.pem".into()),
                        timeout: SECOND * 3,
                        ..server(
                            "https://two",
                            Some(AlertmanagerCredentials::Bearer(secret("/etc/t"))),
                        )
                    },
                    server("http://[::1]:9", Some(basic)),
                ],
                resend_every: SECOND * 30,
                labels: BTreeMap::from([("cluster".into(), "lab".into())]),
                decisions: SentDecisions::Acts,
            },
        };
        assert_eq!(all, expected);
        assert_eq!(all.sending.to[0].to_string(), "one:9093/prefix");
    }

    #[test]
    fn mistakes_are_reported_at_their_place_with_a_correction() {
        let many = "{url: http://a}, ".repeat(9);
        for (text, message) in [
            ("{forget_after: 1h}", "it belongs to receive"),
            ("{url: 'http://a'}", "write send: [{url: \"http://alertmanager:9093\"}]"),
            ("{receive: {forget_after: 1s}}", "1s is out of bounds: from 1m to 1w"),
            ("{receive: {forget: 1h}}", "known keys: forget_after"),
            ("{send: []}", "send names 1 to 8 Alertmanagers"),
            (&*format!("{{send: [{many}]}}"), "send names 1 to 8 Alertmanagers"),
            ("{send: 'http://a'}", "send must be a list"),
            ("{send: [{}]}", "an entry of send needs a url"),
            ("{send: [{url: 'a:9093'}]}", "is no address"),
            ("{send: [{url: 'http://u:p@a'}]}", "is no address"),
            ("{send: [{url: 'http://a'}, {url: 'http://a/'}]}", "http://a is named twice"),
            ("{send: [{url: 'http://a', ca_file: /c}]}", "ca_file is for https"),
            ("{send: [{url: 'http://a', bearer_token: x}]}", "name a file that holds it"),
            ("{send: [{url: 'http://a', bearer_token_file: x}]}", "and not the key"),
            ("{send: [{url: 'http://a', username: u}]}", "belong together"),
            ("{send: [{url: 'http://a', username: 'u:v', password_file: /p}]}", "no colon"),
            (
                "{send: [{url: 'http://a', bearer_token_file: /t, username: u}]}",
                "bearer_token_file is given, and a user or a password as well",
            ),
            ("{send: [{url: 'http://a', timeout: 1h}]}", "1h is out of bounds: from 1s to 1m"),
            ("{resend_every: 1m}", "1:16: resend_every is given, and send is not"),
            ("{send: [{url: 'http://a'}], resend_every: 1ms}", "out of bounds"),
            ("{send: [{url: 'http://a'}], labels: {a-b: c}}", "is no label that can be given"),
            ("{send: [{url: 'http://a'}], labels: {alertname: c}}", "is no label that can be"),
            ("{send: [{url: 'http://a'}], labels: {a: ''}}", "a value has 1 to 256 bytes"),
            ("{send: [{url: 'http://a'}], decisions: some}", "decisions cannot be \"some\""),
        ] {
            let text = format!("alertmanager: {text}");
            let error = parse_settings(&SourceText::new("f", &*text)).unwrap_err().to_string();
            assert!(error.contains(message), "{text}: {error}");
            assert!(!error.contains("bearer_token: \"x\""), "{error}");
        }
    }
}
