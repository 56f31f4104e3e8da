//! The web configuration of Prometheus' servers and exporters (`--web.config.file`), as written.
//!
//! Settings that this server does not support are refused with their position, and not ignored.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bcrypt::HashParts;
use hyper::header::HeaderValue;
use rustls::{CipherSuite, NamedGroup};

use super::secrecy;
use crate::config::decode::{Findings, Table, boolean, choice, duration, each, list, text, value};
use crate::config::mistake::{Mistakes, SourceText};
use crate::config::yaml::{Content, YamlNode};

/// The most users. More belong behind an authenticating proxy.
const MOST_USERS: usize = 256;
/// The highest cost of a hash. A higher one takes seconds of CPU for each guess.
const MOST_COST: u32 = 16;
const MOST_NAME_CHARS: usize = 128;
const MOST_SANS: usize = 256;

const KEYS: [&str; 4] =
    ["tls_server_config", "http_server_config", "rate_limit", "basic_auth_users"];
/// Keys of `tls_server_config` whose values may be shown in errors.
const SHOWN_TLS_KEYS: [&str; 11] = [
    "client_ca",
    "cert_file",
    "key_file",
    "client_auth_type",
    "client_ca_file",
    "cipher_suites",
    "curve_preferences",
    "min_version",
    "max_version",
    "prefer_server_cipher_suites",
    "client_allowed_sans",
];
/// Keys whose values are secrets, or may contain one.
const HIDDEN_TLS_KEYS: [&str; 2] = ["cert", "key"];
const HTTP_KEYS: [&str; 2] = ["http2", "headers"];
const RATE_KEYS: [&str; 2] = ["interval", "burst"];

/// Supported headers, and their allowed values, if these are restricted.
const HEADERS: [(&str, &[&str]); 5] = [
    ("Content-Security-Policy", &[]),
    ("X-Frame-Options", &["deny", "sameorigin"]),
    ("X-Content-Type-Options", &["nosniff"]),
    ("X-XSS-Protection", &[]),
    ("Strict-Transport-Security", &[]),
];

/// Whether the value of a path of keys may be shown in errors. Headers are public; users and hashes
/// have keys of their own.
fn is_shown(keys: &[&str]) -> bool {
    match keys {
        ["tls_server_config", key] => SHOWN_TLS_KEYS.contains(key),
        ["http_server_config", "http2"] => true,
        ["http_server_config", "headers", name] => HEADERS.iter().any(|(known, _)| known == name),
        ["rate_limit", key] => RATE_KEYS.contains(key),
        _ => false,
    }
}

/// Which client certificates are requested and verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ClientAuth {
    #[default]
    None,
    /// Optional, not verified.
    Request,
    /// Mandatory, not verified.
    RequireAny,
    /// Optional, verified if present.
    VerifyIfGiven,
    /// Mandatory, verified.
    RequireAndVerify,
}

const CLIENT_AUTH: [(&str, ClientAuth); 6] = [
    ("NoClientCert", ClientAuth::None),
    ("RequestClientCert", ClientAuth::Request),
    ("RequireAnyClientCert", ClientAuth::RequireAny),
    ("RequireClientCert", ClientAuth::RequireAny),
    ("VerifyClientCertIfGiven", ClientAuth::VerifyIfGiven),
    ("RequireAndVerifyClientCert", ClientAuth::RequireAndVerify),
];

/// `None`: known, but not supported.
const VERSIONS: [(&str, Option<TlsVersion>); 4] = [
    ("TLS13", Some(TlsVersion::Tls13)),
    ("TLS12", Some(TlsVersion::Tls12)),
    ("TLS11", None),
    ("TLS10", None),
];

const CURVES: [(&str, Option<NamedGroup>); 4] = [
    ("X25519", Some(NamedGroup::X25519)),
    ("CurveP256", Some(NamedGroup::secp256r1)),
    ("CurveP384", Some(NamedGroup::secp384r1)),
    ("CurveP521", None),
];

const CIPHERS: [(&str, Option<CipherSuite>); 17] = [
    ("TLS_AES_128_GCM_SHA256", Some(CipherSuite::TLS13_AES_128_GCM_SHA256)),
    ("TLS_AES_256_GCM_SHA384", Some(CipherSuite::TLS13_AES_256_GCM_SHA384)),
    ("TLS_CHACHA20_POLY1305_SHA256", Some(CipherSuite::TLS13_CHACHA20_POLY1305_SHA256)),
    (
        "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        Some(CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
    ),
    (
        "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
        Some(CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
    ),
    (
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        Some(CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
    ),
    (
        "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
        Some(CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
    ),
    (
        "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        Some(CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
    ),
    (
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
        Some(CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
    ),
    ("TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA", None),
    ("TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA", None),
    ("TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA", None),
    ("TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA", None),
    ("TLS_RSA_WITH_AES_128_GCM_SHA256", None),
    ("TLS_RSA_WITH_AES_256_GCM_SHA384", None),
    ("TLS_RSA_WITH_AES_128_CBC_SHA", None),
    ("TLS_RSA_WITH_AES_256_CBC_SHA", None),
];

/// A supported version of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TlsVersion {
    Tls12,
    Tls13,
}

/// The content of the file.
#[derive(Debug, Default)]
pub(super) struct WebConfig {
    pub(super) tls: Option<TlsSettings>,
    pub(super) headers: Vec<(&'static str, HeaderValue)>,
    pub(super) users: Vec<User>,
    pub(super) rate_limit: Option<RateLimit>,
    /// Findings that do not make the file invalid.
    pub(super) remarks: Vec<String>,
}

/// `tls_server_config`.
#[derive(Debug)]
pub(super) struct TlsSettings {
    pub(super) certificate: Pem,
    pub(super) key: Pem,
    pub(super) client_auth: ClientAuth,
    pub(super) client_authorities: Option<Pem>,
    pub(super) client_allowed_sans: Option<Vec<String>>,
    pub(super) versions: (TlsVersion, TlsVersion),
    /// Suites of TLS 1.2 in order of preference; empty: the defaults.
    pub(super) cipher_suites: Vec<CipherSuite>,
    pub(super) server_prefers: bool,
    /// In order of preference; empty: the defaults.
    pub(super) curves: Vec<NamedGroup>,
}

/// PEM, inline or in a file.
#[derive(Debug)]
pub(super) struct Pem {
    /// The key that has it.
    pub(super) key: &'static str,
    /// The position of its value.
    pub(super) position: Range<usize>,
    pub(super) content: PemContent,
}

#[derive(Debug)]
pub(super) enum PemContent {
    /// A file, relative to the configuration's folder.
    File(PathBuf),
    Inline(String),
}

/// One of `basic_auth_users`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct User {
    pub(super) name: Arc<str>,
    /// A bcrypt hash.
    pub(super) hash: String,
    pub(super) cost: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RateLimit {
    pub(super) interval: Duration,
    pub(super) burst: u32,
}

/// Parses a web configuration. Returns it and the text that may be shown.
pub(super) fn parse(source: &SourceText) -> Result<(WebConfig, SourceText), Mistakes> {
    let (root, shown) =
        secrecy::parse(source, is_shown).map_err(|mistake| Mistakes(vec![mistake]))?;
    let mut findings = Findings::new(&shown);
    let mut config = WebConfig::default();
    if !matches!(root.content, Content::Null)
        && let Some(table) = Table::read(&root, "the web configuration", &KEYS, &mut findings)
    {
        let mut remarks = Vec::new();
        config.tls =
            table.get("tls_server_config").and_then(|node| tls(node, &mut remarks, &mut findings));
        if let Some(node) = table.get("http_server_config") {
            config.headers = http(node, &mut remarks, &mut findings).unwrap_or_default();
        }
        config.rate_limit = table.get("rate_limit").and_then(|node| rate(node, &mut findings));
        if let Some(node) = table.get("basic_auth_users") {
            config.users = users(node, &mut findings).unwrap_or_default();
        }
        if config.tls.is_none() && !config.users.is_empty() {
            remarks.push("passwords are sent unencrypted: there is no TLS".to_owned());
        }
        config.remarks = remarks;
    }
    match findings.into_mistakes() {
        mistakes if mistakes.is_empty() => Ok((config, shown)),
        mistakes => Err(Mistakes(mistakes)),
    }
}

fn tls(
    node: &YamlNode,
    remarks: &mut Vec<String>,
    findings: &mut Findings<'_>,
) -> Option<TlsSettings> {
    let keys = [SHOWN_TLS_KEYS.as_slice(), &HIDDEN_TLS_KEYS].concat();
    let table = Table::read(node, "tls_server_config", &keys, findings)?;
    if matches!(&node.content, Content::Map(entries) if entries.is_empty()) {
        return None;
    }
    let certificate = pem(&table, ["cert_file", "cert"], findings);
    let key = pem(&table, ["key_file", "key"], findings);
    for [file, inline, usual] in
        [["cert_file", "cert", "server.pem"], ["key_file", "key", "server.key"]]
    {
        if table.get(file).is_none() && table.get(inline).is_none() {
            findings
                .add(table.span(), format!("tls_server_config has neither {file} nor {inline}"))
                .hint(format!("write {file}: {usual}; it is relative to this file's folder"));
        }
    }
    let client_authorities = pem(&table, ["client_ca_file", "client_ca"], findings);
    let client_auth = table
        .get("client_auth_type")
        .and_then(|node| choice(node, "client_auth_type", &CLIENT_AUTH, findings));
    let client_allowed_sans =
        table.get("client_allowed_sans").and_then(|node| sans(node, findings));
    check_clients(&table, client_auth, &client_authorities, remarks, findings);
    let versions = versions(&table, findings);
    let cipher_suites = suites(&table, versions, findings);
    let curves = table.get("curve_preferences").and_then(|node| {
        let what = "an entry of curve_preferences";
        supported_all(node, "curve_preferences", what, &CURVES, findings)
    });
    let prefers = table.get("prefer_server_cipher_suites");
    let prefers = prefers.map(|node| boolean(node, "prefer_server_cipher_suites", findings));
    Some(TlsSettings {
        certificate: certificate?,
        key: key?,
        client_auth: client_auth.unwrap_or_default(),
        client_authorities,
        client_allowed_sans,
        versions: versions?,
        cipher_suites,
        server_prefers: prefers.flatten().unwrap_or(true),
        curves: curves.unwrap_or_default(),
    })
}

/// The suites of TLS 1.2. As in Go, those of TLS 1.3 are always offered.
fn suites(
    table: &Table<'_>,
    versions: Option<(TlsVersion, TlsVersion)>,
    findings: &mut Findings<'_>,
) -> Vec<CipherSuite> {
    let (Some(key), Some(node)) = (table.key("cipher_suites"), table.get("cipher_suites")) else {
        return Vec::new();
    };
    let what = "an entry of cipher_suites";
    let Some(named) = supported_all(node, "cipher_suites", what, &CIPHERS, findings) else {
        return Vec::new();
    };
    let is_of_1_3 = |suite: &CipherSuite| {
        matches!(
            suite,
            CipherSuite::TLS13_AES_128_GCM_SHA256
                | CipherSuite::TLS13_AES_256_GCM_SHA384
                | CipherSuite::TLS13_CHACHA20_POLY1305_SHA256
        )
    };
    let of_1_2: Vec<CipherSuite> = named.iter().copied().filter(|one| !is_of_1_3(one)).collect();
    let speaks_1_2 = versions.is_some_and(|(least, _)| least == TlsVersion::Tls12);
    if speaks_1_2 && of_1_2.is_empty() && !named.is_empty() {
        findings
            .add(key.span.clone(), "no suite of TLS 1.2 is left, but min_version allows TLS 1.2")
            .hint("name one of TLS 1.2, or write min_version: TLS13");
    }
    of_1_2
}

/// A file or an inline value.
fn pem(
    table: &Table<'_>,
    [file, inline]: [&'static str; 2],
    findings: &mut Findings<'_>,
) -> Option<Pem> {
    let (key, node) = match (table.get(file), table.get(inline)) {
        (None, None) => return None,
        (Some(_), Some(second)) => {
            findings
                .add(second.span.clone(), format!("both {file} and {inline} are given"))
                .hint("remove one of the two");
            return None;
        }
        (Some(node), None) => (file, node),
        (None, Some(node)) => (inline, node),
    };
    let written = text(node, key, findings)?;
    let content = match key == file {
        true if written.contains('\0') => {
            findings.add(node.span.clone(), format!("{key}: a path cannot contain a NUL"));
            return None;
        }
        true => PemContent::File(PathBuf::from(written)),
        false => PemContent::Inline(written.to_owned()),
    };
    Some(Pem { key, position: node.span.clone(), content })
}

fn sans(node: &YamlNode, findings: &mut Findings<'_>) -> Option<Vec<String>> {
    let what = "client_allowed_sans";
    let entries = list(node, what, findings)?;
    if entries.is_empty() || entries.len() > MOST_SANS {
        findings
            .add(node.span.clone(), format!("{what} must name 1 to {MOST_SANS} names"))
            .hint("remove it to accept every certificate of the authority");
        return None;
    }
    each(entries, findings, |entry, findings| {
        text(entry, "an entry of client_allowed_sans", findings).map(str::to_owned)
    })
}

/// Checks that the settings for client certificates are consistent.
fn check_clients(
    table: &Table<'_>,
    auth: Option<ClientAuth>,
    authorities: &Option<Pem>,
    remarks: &mut Vec<String>,
    findings: &mut Findings<'_>,
) {
    let is_misspelt = auth.is_none() && table.get("client_auth_type").is_some();
    let position_of = |key: &str| table.key(key).map_or(table.span(), |key| key.span.clone());
    let auth = auth.unwrap_or_default();
    let verifies = matches!(auth, ClientAuth::VerifyIfGiven | ClientAuth::RequireAndVerify);
    match authorities {
        _ if is_misspelt => return,
        Some(pem) if auth == ClientAuth::None => findings
            .add(
                position_of(pem.key),
                format!("{} is given, but no client certificate is requested", pem.key),
            )
            .hint("write client_auth_type: RequireAndVerifyClientCert"),
        Some(pem) if !verifies => remarks.push(format!(
            "{} has no effect: this client_auth_type does not verify certificates",
            pem.key
        )),
        None if verifies => findings
            .add(position_of("client_auth_type"), "no authority for client certificates is given")
            .hint("name the authority that signs them: client_ca_file: clients.pem"),
        Some(_) | None => {}
    }
    let needs_one = matches!(auth, ClientAuth::RequireAny | ClientAuth::RequireAndVerify);
    if table.get("client_allowed_sans").is_some() {
        if !needs_one {
            findings
                .add(position_of("client_allowed_sans"), "client certificates are optional")
                .hint("write client_auth_type: RequireAndVerifyClientCert");
        } else if auth == ClientAuth::RequireAny {
            remarks.push(
                "client_allowed_sans protects nothing: with RequireAnyClientCert anybody can \
                 write a certificate with any name"
                    .to_owned(),
            );
        }
    }
}

fn versions(table: &Table<'_>, findings: &mut Findings<'_>) -> Option<(TlsVersion, TlsVersion)> {
    let mut read = |key: &'static str, usual| match table.get(key) {
        Some(node) => supported(node, key, &VERSIONS, findings),
        None => Some(usual),
    };
    let least = read("min_version", TlsVersion::Tls12);
    let most = read("max_version", TlsVersion::Tls13);
    let (least, most) = (least?, most?);
    if least > most {
        let key = table.key("max_version").or_else(|| table.key("min_version"));
        let position = key.map_or(table.span(), |key| key.span.clone());
        findings.add(position, "max_version is before min_version: no version is left");
        return None;
    }
    Some((least, most))
}

/// One of the known names. Unsupported names get another message than unknown ones.
fn supported<T: Copy>(
    node: &YamlNode,
    what: &str,
    names: &[(&str, Option<T>)],
    findings: &mut Findings<'_>,
) -> Option<T> {
    let found = choice(node, what, names, findings)?;
    if found.is_none() {
        let supported = names.iter().filter(|(_, one)| one.is_some()).map(|(name, _)| *name);
        let supported: Vec<&str> = supported.collect();
        let name = node.text().unwrap_or_default();
        findings
            .add(node.span.clone(), format!("{what}: {name} is not supported: weak or rare"))
            .hint(format!("write one of: {}", supported.join(", ")));
    }
    found
}

fn supported_all<T: Copy>(
    node: &YamlNode,
    list_name: &str,
    what: &str,
    names: &[(&str, Option<T>)],
    findings: &mut Findings<'_>,
) -> Option<Vec<T>> {
    let entries = list(node, list_name, findings)?;
    each(entries, findings, |entry, findings| supported(entry, what, names, findings))
}

fn http(
    node: &YamlNode,
    remarks: &mut Vec<String>,
    findings: &mut Findings<'_>,
) -> Option<Vec<(&'static str, HeaderValue)>> {
    let table = Table::read(node, "http_server_config", &HTTP_KEYS, findings)?;
    if let Some(node) = table.get("http2")
        && boolean(node, "http2", findings) == Some(true)
    {
        remarks.push("http2 has no effect: only HTTP/1.1 is supported".to_owned());
    }
    let node = table.get("headers")?;
    let names = HEADERS.map(|(name, _)| name);
    let table = Table::read(node, "headers", &names, findings)?;
    let mut headers = Vec::new();
    for (name, values) in HEADERS {
        let Some(node) = table.get(name) else { continue };
        let written = match values {
            [] => text(node, name, findings),
            _ => {
                let choices: Vec<(&str, &str)> = values.iter().map(|one| (*one, *one)).collect();
                choice(node, name, &choices, findings)
            }
        };
        match written.map(HeaderValue::from_str) {
            Some(Ok(value)) if !value.is_empty() => headers.push((name, value)),
            Some(Err(_)) => {
                findings.add(node.span.clone(), format!("{name}: not a valid header value"));
            }
            Some(Ok(_)) | None => {}
        }
    }
    Some(headers)
}

fn rate(node: &YamlNode, findings: &mut Findings<'_>) -> Option<RateLimit> {
    let table = Table::read(node, "rate_limit", &RATE_KEYS, findings)?;
    let interval = table.get("interval").and_then(|node| duration(node, "interval", findings));
    let burst = table.get("burst").map(|node| {
        let read = |text: &str| match text.parse() {
            Ok(0) | Err(_) => Err(format!("\"{text}\" is not a number from 1 to {}", u32::MAX)),
            Ok(burst) => Ok(burst),
        };
        value(node, "burst", read, findings)
    });
    let interval = interval.filter(|interval| !interval.is_zero())?;
    let Some(burst) = burst else {
        findings
            .add(table.span(), "rate_limit has no burst: no request would be served")
            .hint("write burst: 20, the number of requests that may come at once");
        return None;
    };
    burst.map(|burst| RateLimit { interval, burst })
}

fn users(node: &YamlNode, findings: &mut Findings<'_>) -> Option<Vec<User>> {
    let pairs = crate::config::decode::pairs(node, "basic_auth_users", findings)?;
    if pairs.len() > MOST_USERS {
        findings.add(node.span.clone(), format!("more than {MOST_USERS} users"));
        return None;
    }
    let mut users = Vec::with_capacity(pairs.len());
    for (name, key, value) in pairs {
        let fits = !name.is_empty() && name.chars().count() <= MOST_NAME_CHARS;
        if !fits || name.contains(|c: char| c == ':' || c.is_control()) {
            let message = "a user's name has 1 to 128 characters, and no colon among them";
            findings.add(key.span.clone(), message);
            continue;
        }
        let hash = text(value, "a user's password", findings).map(str::to_owned);
        let Some(hash) = hash else { continue };
        match hash.parse::<HashParts>().map(|parts| parts.get_cost()) {
            Ok(cost) if cost <= MOST_COST => users.push(User { name: name.into(), hash, cost }),
            Ok(cost) => findings
                .add(
                    value.span.clone(),
                    format!("the hash has cost {cost}: each guess takes seconds of CPU"),
                )
                .hint(format!(
                    "make one of 10 to {MOST_COST}: htpasswd -nBC 10 \"\" | tr -d ':\\n'"
                )),
            // The value is not shown: it may be a password.
            Err(_) => findings
                .add(value.span.clone(), "the password must be hashed with bcrypt: $2y$10$…")
                .hint("make the hash with: htpasswd -nBC 10 \"\" | tr -d ':\\n'"),
        }
    }
    Some(users)
}
