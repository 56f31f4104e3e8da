//! Reads the files and combines them. Each mistake has its position.

use std::path::Path;

use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use super::files::{FileContent, Files};
use super::tls::{self, TlsMaterial, TlsPart};
use super::tokens::{self, TokenEntry, TokenSubject};
use super::web_config::{self, Pem, PemContent, TlsSettings, WebConfig};
use super::{AccessFiles, Principal, Rules};
use crate::config::decode::Findings;
use crate::config::mistake::{Mistake, Mistakes, SourceText};

/// A shorter token can be guessed.
const LEAST_TOKEN_BYTES: usize = 20;
const MOST_TOKEN_BYTES: usize = 4096;

/// Why the files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// A file cannot be read.
    #[error("cannot use {0}")]
    Unreadable(String),
    /// Mistakes in the web configuration, or in a file that it names.
    #[error("the web configuration has mistakes\n{0}")]
    WebConfig(Mistakes),
    /// Mistakes in the tokens file, or in a file that it names.
    #[error("the tokens file has mistakes\n{0}")]
    Tokens(Mistakes),
    /// A failure of the system.
    #[error("{0}")]
    Failed(String),
}

/// A summary of valid files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessSummary {
    /// Whether TLS is configured.
    pub has_tls: bool,
    /// The end of the certificate's validity.
    pub certificate_expires: Option<Timestamp>,
    /// The number of `basic_auth_users`.
    pub users: usize,
    /// The number of entries in the tokens file. `None` without one.
    pub entries: usize,
    /// Findings that do not make the files invalid.
    pub remarks: Vec<String>,
}

/// Reads the files like the daemon, and summarises them.
///
/// # Errors
/// All mistakes in the files.
pub fn check(files: &AccessFiles, now: Timestamp) -> Result<AccessSummary, AccessError> {
    let rules = load(files, now).1?;
    Ok(AccessSummary {
        has_tls: rules.tls.is_some(),
        certificate_expires: rules.tls.as_ref().map(|tls| tls.expires),
        users: rules.users.len(),
        entries: rules.tokens.len() + rules.certificates.len() + rules.user_roles.len(),
        remarks: rules.remarks,
    })
}

/// Reads the files, and returns their state too.
pub(super) fn load(files: &AccessFiles, now: Timestamp) -> (Files, Result<Rules, AccessError>) {
    let mut read = Files::default();
    // Both are read even if one has mistakes, so that a change of either is noticed.
    let web = files.web_config.as_ref().map(|path| load_web(path, now, &mut read));
    let entries = files.tokens.as_ref().map(|path| load_tokens(path, &mut read));
    let joined = join(web.transpose(), entries.transpose());
    (read, joined)
}

fn join(
    web: Result<Option<WebAccess>, AccessError>,
    tokens: Result<Option<Tokens>, AccessError>,
) -> Result<Rules, AccessError> {
    let mut rules = Rules::default();
    if let Some(WebAccess { config, tls }) = web? {
        rules.headers = config.headers;
        rules.users = config.users;
        rules.rate_limit = config.rate_limit;
        rules.remarks = config.remarks;
        rules.tls = tls;
    }
    let Some(Tokens { entries, shown, hashes }) = tokens? else { return Ok(rules) };
    let mut findings = Findings::new(&shown);
    tokens::check_users(&entries, rules.users.iter().map(|user| &*user.name), &mut findings);
    // Hashes in the file were compared there. Here they are compared with tokens in other files.
    for (index, (entry, hash)) in entries.iter().zip(&hashes).enumerate() {
        let is_in_a_file = matches!(entry.subject, TokenSubject::File { .. });
        let mut others = hashes.iter().enumerate().filter(|(other, _)| *other != index);
        if is_in_a_file && hash.is_some() && others.any(|(_, other)| other == hash) {
            let message = format!("the token of {} belongs to another entry, too", entry.name);
            findings
                .add(entry.position.clone(), message)
                .hint("give it one of its own: umawarden token create");
        }
    }
    let mistakes = findings.into_mistakes();
    if !mistakes.is_empty() {
        return Err(AccessError::Tokens(Mistakes(mistakes)));
    }
    for (entry, hash) in entries.into_iter().zip(hashes) {
        let TokenEntry { subject, name, role, expires, .. } = entry;
        let named = Principal { name, role, expires };
        match (subject, hash) {
            (TokenSubject::User, _) => rules.user_roles.push(named),
            (TokenSubject::Certificate, _) => rules.certificates.push(named),
            (_, Some(hash)) => rules.tokens.push((hash, named)),
            (_, None) => {}
        }
    }
    remark(&mut rules);
    Ok(rules)
}

fn remark(rules: &mut Rules) {
    if rules.tls.is_none() && !rules.tokens.is_empty() {
        let text = "tokens are sent unencrypted: there is no TLS (tls_server_config)";
        rules.remarks.push(text.to_owned());
    }
    let verifies = rules.tls.as_ref().is_some_and(|tls| tls.verifies_clients);
    if !rules.certificates.is_empty() && !verifies {
        let text = "the tokens file names certificates, but none is verified: write \
                    client_auth_type: RequireAndVerifyClientCert, or VerifyClientCertIfGiven";
        rules.remarks.push(text.to_owned());
    }
}

struct WebAccess {
    config: WebConfig,
    tls: Option<tls::Tls>,
}

fn load_web(path: &Path, now: Timestamp, files: &mut Files) -> Result<WebAccess, AccessError> {
    let unreadable = |why: String| AccessError::Unreadable(format!("{}: {why}", path.display()));
    let opened = files.read(path).map_err(unreadable)?;
    opened.not_everybody_writes(path).map_err(unreadable)?;
    let is_secret = opened.not_everybody_reads(path);
    let source = source(path, opened).map_err(unreadable)?;
    let (mut config, shown) = web_config::parse(&source).map_err(AccessError::WebConfig)?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let tls = match &config.tls {
        None => None,
        Some(settings) => {
            if let (PemContent::Inline(_), Err(why)) = (&settings.key.content, is_secret) {
                config.remarks.push(format!("key in {}: {why}", path.display()));
            }
            let tls = load_tls(settings, folder, &shown, files, &mut config.remarks);
            Some(tls.map_err(|mistake| AccessError::WebConfig(Mistakes(vec![mistake])))?)
        }
    };
    if let Some(tls) = tls.as_ref().filter(|tls| tls.expires <= now) {
        config.remarks.push(format!("the server's certificate expired at {}", tls.expires));
    }
    Ok(WebAccess { config, tls })
}

fn load_tls(
    settings: &TlsSettings,
    folder: &Path,
    shown: &SourceText,
    files: &mut Files,
    remarks: &mut Vec<String>,
) -> Result<tls::Tls, Mistake> {
    let wrong = |pem: &Pem, why: String| {
        let message = match &pem.content {
            PemContent::File(path) => {
                format!("{}: {}: {why}", pem.key, folder.join(path).display())
            }
            PemContent::Inline(_) => format!("{}: {why}", pem.key),
        };
        shown.mistake(pem.position.clone(), message)
    };
    let mut read = |pem: &Pem, is_secret: bool| match &pem.content {
        PemContent::Inline(text) => Ok(text.clone().into_bytes()),
        PemContent::File(path) => {
            let path = folder.join(path);
            let opened = files.read(&path).map_err(|why| wrong(pem, why))?;
            if is_secret && let Err(why) = opened.not_everybody_reads(&path) {
                remarks.push(format!("{} {}: {why}", pem.key, path.display()));
            }
            Ok(opened.bytes)
        }
    };
    let certificate = read(&settings.certificate, false)?;
    let key = read(&settings.key, true)?;
    let authorities = settings.client_authorities.as_ref();
    let authorities = authorities.map(|pem| read(pem, false)).transpose()?;
    let material = TlsMaterial {
        certificate: &certificate,
        key: &key,
        client_authorities: authorities.as_deref(),
    };
    tls::build(settings, &material).map_err(|(part, why)| {
        let pem = match part {
            TlsPart::Certificate => &settings.certificate,
            TlsPart::Key => &settings.key,
            TlsPart::ClientAuthorities => {
                settings.client_authorities.as_ref().unwrap_or(&settings.certificate)
            }
        };
        wrong(pem, why)
    })
}

struct Tokens {
    entries: Vec<TokenEntry>,
    shown: SourceText,
    /// For each entry; `None` if it is not a token.
    hashes: Vec<Option<[u8; 32]>>,
}

fn load_tokens(path: &Path, files: &mut Files) -> Result<Tokens, AccessError> {
    let unreadable = |why: String| AccessError::Unreadable(format!("{}: {why}", path.display()));
    let opened = files.read(path).map_err(unreadable)?;
    opened.only_owner_writes(path).map_err(unreadable)?;
    opened.not_everybody_reads(path).map_err(unreadable)?;
    let source = source(path, opened).map_err(unreadable)?;
    let (entries, shown) = tokens::parse(&source).map_err(AccessError::Tokens)?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut findings = Findings::new(&shown);
    let mut hashes = Vec::with_capacity(entries.len());
    for entry in &entries {
        hashes.push(match &entry.subject {
            TokenSubject::Hash(hash) => Some(*hash),
            TokenSubject::Certificate | TokenSubject::User => None,
            TokenSubject::File { path, position } => {
                let path = folder.join(path);
                let hash = token_hash(&path, files);
                if let Err(why) = &hash {
                    let message = format!("token_file: {}: {why}", path.display());
                    findings.add(position.clone(), message);
                }
                hash.ok()
            }
        });
    }
    match findings.into_mistakes() {
        mistakes if mistakes.is_empty() => Ok(Tokens { entries, shown, hashes }),
        mistakes => Err(AccessError::Tokens(Mistakes(mistakes))),
    }
}

/// The hash of the token in a file, without a final newline.
fn token_hash(path: &Path, files: &mut Files) -> Result<[u8; 32], String> {
    let opened = files.read(path)?;
    opened.only_owner_writes(path)?;
    opened.not_everybody_reads(path)?;
    let token = opened.bytes.trim_ascii();
    if !(LEAST_TOKEN_BYTES..=MOST_TOKEN_BYTES).contains(&token.len()) {
        return Err(format!("a token has {LEAST_TOKEN_BYTES} to {MOST_TOKEN_BYTES} characters"));
    }
    if !token.iter().all(u8::is_ascii_graphic) {
        return Err("a token is one word of ASCII characters".to_owned());
    }
    Ok(Sha256::digest(token).into())
}

fn source(path: &Path, opened: FileContent) -> Result<SourceText, String> {
    let text = String::from_utf8(opened.bytes).map_err(|error| {
        let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = good.iter().filter(|byte| **byte == b'\n').count() + 1;
        format!("line {line} is not UTF-8; save it as UTF-8")
    })?;
    Ok(SourceText::new(path.display().to_string(), text))
}
