//! The tokens file (`--web.tokens.file`): hashes of bearer tokens, and the roles of client
//! certificates and users beyond reading.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;
use promql_rules::did_you_mean;

use super::secrecy;
use crate::config::decode::{Advice, Findings, Table, choice, each, list, text, value};
use crate::config::mistake::{Mistakes, SourceText};
use crate::config::yaml::YamlNode;
use crate::model::Role;

/// The most entries: each is compared with every request.
const MOST_ENTRIES: usize = 256;
const MOST_NAME_BYTES: usize = 64;
const MOST_CERTIFICATE_NAME_BYTES: usize = 256;

const KEYS: [&str; 7] = ["name", "role", "sha256", "token_file", "certificate", "user", "expires"];

const ADVICE: [Advice; 1] = [(
    &["token", "secret", "password"],
    "only its hash belongs here: write sha256: …, as umawarden token create prints it",
)];

/// Keys whose values are not secret.
const SHOWN: [&str; 6] = ["name", "role", "token_file", "certificate", "user", "expires"];

/// One entry of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TokenEntry {
    pub(super) subject: TokenSubject,
    /// The name of its token, certificate or user.
    pub(super) name: Arc<str>,
    pub(super) role: Role,
    /// The end of its validity.
    pub(super) expires: Option<Timestamp>,
    /// The position of its name.
    pub(super) position: Range<usize>,
}

/// How it is authenticated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TokenSubject {
    /// A token with this SHA-256.
    Hash([u8; 32]),
    /// A token in a file, relative to the folder of this one.
    File { path: PathBuf, position: Range<usize> },
    /// A client certificate with this name.
    Certificate,
    /// One of `basic_auth_users`.
    User,
}

fn is_shown(keys: &[&str]) -> bool {
    matches!(keys, [key] if SHOWN.contains(key))
}

/// Parses the file's text. Returns the entries and the text that may be shown.
pub(super) fn parse(source: &SourceText) -> Result<(Vec<TokenEntry>, SourceText), Mistakes> {
    let (root, shown) =
        secrecy::parse(source, is_shown).map_err(|mistake| Mistakes(vec![mistake]))?;
    let mut findings = Findings::new(&shown);
    let entries = read(&root, &mut findings).unwrap_or_default();
    match findings.into_mistakes() {
        mistakes if mistakes.is_empty() => Ok((entries, shown)),
        mistakes => Err(Mistakes(mistakes)),
    }
}

fn read(root: &YamlNode, findings: &mut Findings<'_>) -> Option<Vec<TokenEntry>> {
    let written = list(root, "the tokens file", findings)?;
    if written.len() > MOST_ENTRIES {
        findings.add(root.span.clone(), format!("more than {MOST_ENTRIES} entries"));
        return None;
    }
    let entries = each(written, findings, entry)?;
    let mut known = BTreeSet::new();
    let mut hashes = BTreeSet::new();
    for entry in &entries {
        let kind = match &entry.subject {
            TokenSubject::Hash(hash) => {
                if !hashes.insert(hash) {
                    let message =
                        format!("the token of {} belongs to another entry, too", entry.name);
                    findings
                        .add(entry.position.clone(), message)
                        .hint("give it one of its own: umawarden token create");
                }
                "token"
            }
            TokenSubject::File { .. } => "token",
            TokenSubject::Certificate => "certificate",
            TokenSubject::User => "user",
        };
        if !known.insert((kind, &entry.name)) {
            findings.add(entry.position.clone(), format!("{kind} {} is there twice", entry.name));
        }
    }
    Some(entries)
}

fn entry(node: &YamlNode, findings: &mut Findings<'_>) -> Option<TokenEntry> {
    let table = Table::read_advised(node, "an entry", &KEYS, &ADVICE, findings)?;
    let role = match table.get("role") {
        Some(node) => choice(node, "role", &Role::CHOICES, findings),
        None => {
            findings
                .add(table.span(), "the entry has no role")
                .hint("write role: read, operate or remedy");
            None
        }
    };
    let expires = match table.get("expires") {
        Some(node) => Some(value(node, "expires", instant, findings)?),
        None => None,
    };
    let (key, node) = owner(&table, findings)?;
    let name: Arc<str> = match key {
        "name" => value(node, key, |text| plain_name(text).map(Arc::from), findings)?,
        _ => value(node, key, |text| foreign_name(text).map(Arc::from), findings)?,
    };
    let subject = match key {
        "name" => token(&table, findings)?,
        "certificate" => TokenSubject::Certificate,
        _ => TokenSubject::User,
    };
    if key != "name"
        && let Some(stray) = table.key("sha256").or_else(|| table.key("token_file"))
    {
        let message = format!("a {key} has no token");
        findings.add(stray.span.clone(), message).hint("a token has a name: write name: …");
        return None;
    }
    Some(TokenEntry { subject, name, role: role?, expires, position: node.span.clone() })
}

/// The one key that names its subject.
fn owner<'n>(
    table: &Table<'n>,
    findings: &mut Findings<'_>,
) -> Option<(&'static str, &'n YamlNode)> {
    let given = ["name", "certificate", "user"];
    let mut given = given.into_iter().filter_map(|key| Some((key, table.get(key)?)));
    let Some(owner) = given.next() else {
        findings
            .add(table.span(), "the entry has no subject")
            .hint("write name and sha256 for a token, or certificate, or user");
        return None;
    };
    if let Some((key, node)) = given.next() {
        findings
            .add(node.span.clone(), format!("the entry has {} and {key}", owner.0))
            .hint("write one entry for each");
        return None;
    }
    Some(owner)
}

fn token(table: &Table<'_>, findings: &mut Findings<'_>) -> Option<TokenSubject> {
    match (table.get("sha256"), table.get("token_file")) {
        (Some(node), None) => {
            let hash = text(node, "sha256", findings).map(hash)?;
            if hash.is_none() {
                findings
                    .add(node.span.clone(), "sha256 is not the 64 hexadecimal digits of a hash")
                    .hint("umawarden token create prints a token and its hash");
            }
            hash.map(TokenSubject::Hash)
        }
        (None, Some(node)) => {
            let path = text(node, "token_file", findings)?;
            if path.is_empty() || path.contains('\0') {
                findings.add(node.span.clone(), "token_file: not a path");
                return None;
            }
            Some(TokenSubject::File { path: path.into(), position: node.span.clone() })
        }
        (None, None) => {
            findings
                .add(table.span(), "a token needs its hash")
                .hint("write sha256: …, as umawarden token create prints it, or token_file: FILE");
            None
        }
        (Some(_), Some(node)) => {
            findings.add(node.span.clone(), "the entry has sha256 and token_file");
            None
        }
    }
}

/// Decodes 64 hexadecimal digits.
fn hash(text: &str) -> Option<[u8; 32]> {
    let digits = text.as_bytes();
    let mut hash = [0; 32];
    if digits.len() != 64 {
        return None;
    }
    for (byte, pair) in hash.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |at: usize| char::from(*pair.get(at)?).to_digit(16);
        *byte = u8::try_from(digit(0)? * 16 + digit(1)?).ok()?;
    }
    Some(hash)
}

/// A name that is valid in the journal, in the log and in an address.
pub(super) fn plain_name(text: &str) -> Result<&str, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._@".contains(c);
    if text.is_empty() || text.len() > MOST_NAME_BYTES || !text.chars().all(plain) {
        return Err(format!(
            "it must have 1 to {MOST_NAME_BYTES} letters, digits and any of -._@, and nothing else"
        ));
    }
    Ok(text)
}

fn foreign_name(text: &str) -> Result<&str, String> {
    let is_too_long = text.len() > MOST_CERTIFICATE_NAME_BYTES;
    if text.is_empty() || is_too_long || text.contains(char::is_control) {
        return Err(format!("it must have 1 to {MOST_CERTIFICATE_NAME_BYTES} characters"));
    }
    Ok(text)
}

fn instant(text: &str) -> Result<Timestamp, String> {
    text.parse().map_err(|_| {
        format!("\"{text}\" is not an RFC 3339 time: write it like 2027-01-01T00:00:00Z")
    })
}

/// Checks that every named user exists.
pub(super) fn check_users<'u>(
    entries: &[TokenEntry],
    users: impl Iterator<Item = &'u str> + Clone,
    findings: &mut Findings<'_>,
) {
    for entry in entries.iter().filter(|entry| entry.subject == TokenSubject::User) {
        if users.clone().any(|user| user == &*entry.name) {
            continue;
        }
        let hint = did_you_mean(&entry.name, users.clone());
        let hint = hint.unwrap_or_else(|| {
            "name one of basic_auth_users in the file of --web.config.file".to_owned()
        });
        findings.add(entry.position.clone(), format!("there is no user {}", entry.name)).hint(hint);
    }
}
