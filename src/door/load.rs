//! The files, read and put together, each mistake with its place.

use std::path::Path;

use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use super::files::{Files, Opened};
use super::tls::{self, Material, Part};
use super::tokens::{self, Entry, Who};
use super::web_config::{self, Pem, PemContent, TlsSettings, WebConfig};
use super::{DoorFiles, Named, Terms};
use crate::config::decode::Findings;
use crate::config::mistake::{Mistake, Mistakes, SourceText};

/// Shorter tokens can be guessed.
const LEAST_TOKEN_BYTES: usize = 20;
const MOST_TOKEN_BYTES: usize = 4096;

/// Why the files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DoorError {
    /// One cannot be read at all.
    #[error("cannot use {0}")]
    Unreadable(String),
    /// The web configuration, or something that it names.
    #[error("the web configuration has mistakes\n{0}")]
    WebConfig(Mistakes),
    /// The tokens file, or something that it names.
    #[error("the tokens file has mistakes\n{0}")]
    Tokens(Mistakes),
    /// It is nobody's fault.
    #[error("{0}")]
    Failed(String),
}

/// What was found in good files, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Whether TLS is spoken.
    pub speaks_tls: bool,
    /// Until when the certificate is good.
    pub certificate_expires: Option<Timestamp>,
    /// How many users there are.
    pub users: usize,
    /// How many entries the tokens file has.
    pub entries: usize,
    /// What is worth a warning.
    pub remarks: Vec<String>,
}

/// Reads the files as the daemon does, and says what is in them.
///
/// # Errors
/// What is wrong with them.
pub fn check(files: &DoorFiles, now: Timestamp) -> Result<Checked, DoorError> {
    let terms = load(files, now).1?;
    Ok(Checked {
        speaks_tls: terms.tls.is_some(),
        certificate_expires: terms.tls.as_ref().map(|tls| tls.expires),
        users: terms.users.len(),
        entries: terms.tokens.len() + terms.certificates.len() + terms.people.len(),
        remarks: terms.remarks,
    })
}

/// Reads them, and says which files that were.
pub(super) fn load(files: &DoorFiles, now: Timestamp) -> (Files, Result<Terms, DoorError>) {
    let mut read = Files::default();
    // Both are read whatever is wrong with one, so that a change of either is noticed.
    let web = files.web_config.as_ref().map(|path| load_web(path, now, &mut read));
    let entries = files.tokens.as_ref().map(|path| load_tokens(path, &mut read));
    let joined = join(web.transpose(), entries.transpose());
    (read, joined)
}

fn join(
    web: Result<Option<Web>, DoorError>,
    tokens: Result<Option<Tokens>, DoorError>,
) -> Result<Terms, DoorError> {
    let mut terms = Terms::default();
    if let Some(Web { config, tls }) = web? {
        terms.headers = config.headers;
        terms.users = config.users;
        terms.rate_limit = config.rate_limit;
        terms.remarks = config.remarks;
        terms.tls = tls;
    }
    let Some(Tokens { entries, shown, hashes }) = tokens? else { return Ok(terms) };
    let mut findings = Findings::new(&shown);
    tokens::check_users(&entries, terms.users.iter().map(|user| &*user.name), &mut findings);
    // Those in the file itself are compared there; here are those, too, that stand in other files.
    for (place, (entry, hash)) in entries.iter().zip(&hashes).enumerate() {
        let is_in_a_file = matches!(entry.who, Who::File { .. });
        let mut others = hashes.iter().enumerate().filter(|(other, _)| *other != place);
        if is_in_a_file && hash.is_some() && others.any(|(_, other)| other == hash) {
            let message = format!("the token of {} is another one's, too", entry.name);
            findings
                .add(entry.place.clone(), message)
                .hint("make it one of its own: umawarden token create");
        }
    }
    let mistakes = findings.into_mistakes();
    if !mistakes.is_empty() {
        return Err(DoorError::Tokens(Mistakes(mistakes)));
    }
    for (entry, hash) in entries.into_iter().zip(hashes) {
        let Entry { who, name, role, expires, .. } = entry;
        let named = Named { name, role, expires };
        match (who, hash) {
            (Who::User, _) => terms.people.push(named),
            (Who::Certificate, _) => terms.certificates.push(named),
            (_, Some(hash)) => terms.tokens.push((hash, named)),
            (_, None) => {}
        }
    }
    remark(&mut terms);
    Ok(terms)
}

fn remark(terms: &mut Terms) {
    if terms.tls.is_none() && !terms.tokens.is_empty() {
        let text = "tokens cross the network in the clear: there is no TLS (tls_server_config)";
        terms.remarks.push(text.to_owned());
    }
    let verifies = terms.tls.as_ref().is_some_and(|tls| tls.verifies_clients);
    if !terms.certificates.is_empty() && !verifies {
        let text = "the tokens file names certificates, and none is ever verified: write \
                    client_auth_type: RequireAndVerifyClientCert, or VerifyClientCertIfGiven";
        terms.remarks.push(text.to_owned());
    }
}

struct Web {
    config: WebConfig,
    tls: Option<tls::Tls>,
}

fn load_web(path: &Path, now: Timestamp, files: &mut Files) -> Result<Web, DoorError> {
    let unreadable = |why: String| DoorError::Unreadable(format!("{}: {why}", path.display()));
    let opened = files.read(path).map_err(unreadable)?;
    opened.not_everybody_writes(path).map_err(unreadable)?;
    let is_secret = opened.not_everybody_reads(path);
    let source = source(path, opened).map_err(unreadable)?;
    let (mut config, shown) = web_config::parse(&source).map_err(DoorError::WebConfig)?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let tls = match &config.tls {
        None => None,
        Some(settings) => {
            if let (PemContent::Inline(_), Err(why)) = (&settings.key.content, is_secret) {
                config.remarks.push(format!("key in {}: {why}", path.display()));
            }
            let tls = load_tls(settings, folder, &shown, files, &mut config.remarks);
            Some(tls.map_err(|mistake| DoorError::WebConfig(Mistakes(vec![mistake])))?)
        }
    };
    if let Some(tls) = tls.as_ref().filter(|tls| tls.expires <= now) {
        config.remarks.push(format!("the server's certificate has expired at {}", tls.expires));
    }
    Ok(Web { config, tls })
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
        shown.mistake(pem.place.clone(), message)
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
    let material = Material {
        certificate: &certificate,
        key: &key,
        client_authorities: authorities.as_deref(),
    };
    tls::build(settings, &material).map_err(|(part, why)| {
        let pem = match part {
            Part::Certificate => &settings.certificate,
            Part::Key => &settings.key,
            Part::ClientAuthorities => {
                settings.client_authorities.as_ref().unwrap_or(&settings.certificate)
            }
        };
        wrong(pem, why)
    })
}

struct Tokens {
    entries: Vec<Entry>,
    shown: SourceText,
    /// Of each entry that is a token.
    hashes: Vec<Option<[u8; 32]>>,
}

fn load_tokens(path: &Path, files: &mut Files) -> Result<Tokens, DoorError> {
    let unreadable = |why: String| DoorError::Unreadable(format!("{}: {why}", path.display()));
    let opened = files.read(path).map_err(unreadable)?;
    opened.only_owner_writes(path).map_err(unreadable)?;
    opened.not_everybody_reads(path).map_err(unreadable)?;
    let source = source(path, opened).map_err(unreadable)?;
    let (entries, shown) = tokens::parse(&source).map_err(DoorError::Tokens)?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut findings = Findings::new(&shown);
    let mut hashes = Vec::with_capacity(entries.len());
    for entry in &entries {
        hashes.push(match &entry.who {
            Who::Hash(hash) => Some(*hash),
            Who::Certificate | Who::User => None,
            Who::File { path, place } => {
                let path = folder.join(path);
                let hash = token_hash(&path, files);
                if let Err(why) = &hash {
                    let message = format!("token_file: {}: {why}", path.display());
                    findings.add(place.clone(), message);
                }
                hash.ok()
            }
        });
    }
    match findings.into_mistakes() {
        mistakes if mistakes.is_empty() => Ok(Tokens { entries, shown, hashes }),
        mistakes => Err(DoorError::Tokens(Mistakes(mistakes))),
    }
}

/// The hash of the token that stands in a file, with or without a line's end.
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

fn source(path: &Path, opened: Opened) -> Result<SourceText, String> {
    let text = String::from_utf8(opened.bytes).map_err(|error| {
        let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = good.iter().filter(|byte| **byte == b'\n').count() + 1;
        format!("line {line} is not UTF-8; save it as UTF-8")
    })?;
    Ok(SourceText::new(path.display().to_string(), text))
}
