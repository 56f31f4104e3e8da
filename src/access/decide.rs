//! Authentication of a request, and authorization by role.

use std::net::IpAddr;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, HOST, HeaderValue, ORIGIN};
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::passwords::{PasswordCheck, Passwords};
use super::tls::CertificateNames;
use super::{Principal, Rules};
use crate::model::{Credential, RefusalReason, Role};

/// What a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requirement {
    /// At least this role.
    Role(Role),
    /// The control socket of this node.
    Local,
}

impl Requirement {
    /// Its name in documents.
    pub fn name(self) -> &'static str {
        match self {
            Self::Role(role) => role.name(),
            Self::Local => "local",
        }
    }
}

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessRefusal {
    /// For metrics and the log.
    pub reason: RefusalReason,
    /// The reason, and what to do.
    pub text: String,
    /// Values of `WWW-Authenticate`. Empty if no credential would suffice.
    pub challenges: Vec<&'static str>,
    /// When to retry.
    pub retry_after_seconds: Option<u64>,
}

impl AccessRefusal {
    pub(super) fn new(reason: RefusalReason, text: impl Into<String>) -> Self {
        let (challenges, retry_after_seconds) = (Vec::new(), None);
        Self { reason, text: text.into(), challenges, retry_after_seconds }
    }
}

/// The presented credential, and its role.
struct PresentedCredential {
    credential: Credential,
    role: Role,
    expires: Option<Timestamp>,
}

/// Returns the credential, if one was needed. An error says why the request is refused.
pub(super) async fn decide(
    rules: &Rules,
    passwords: &Passwords,
    now: Timestamp,
    needs: Requirement,
    from: IpAddr,
    headers: &HeaderMap,
    certificate: Option<&CertificateNames>,
) -> Result<Option<Credential>, AccessRefusal> {
    let Requirement::Role(needed) = needs else {
        let text = "only the control socket of this node serves this";
        return Err(AccessRefusal::new(RefusalReason::LocalOnly, text));
    };
    if needed > Role::Read && is_from_another_site(headers) {
        let text = "cross-site requests may not do this";
        return Err(AccessRefusal::new(RefusalReason::CrossSite, text));
    }
    if needed == Role::Read && rules.is_open_to_readers() {
        return Ok(None);
    }
    let presented = present(rules, passwords, now, from, headers, certificate).await?;
    if presented.expires.is_some_and(|expires| expires <= now) {
        let text = format!("{} has expired", presented.credential);
        return Err(challenge(rules, RefusalReason::Expired, text));
    }
    if presented.role < needed {
        let PresentedCredential { credential, role, .. } = presented;
        let text = format!("{credential} has role {role}, but this needs {needed}");
        return Err(AccessRefusal::new(RefusalReason::Role, text));
    }
    Ok(Some(presented.credential))
}

/// The credential that is shown, if it is valid, and its role.
pub(super) async fn identify(
    rules: &Rules,
    passwords: &Passwords,
    now: Timestamp,
    from: IpAddr,
    headers: &HeaderMap,
    certificate: Option<&CertificateNames>,
) -> Option<(Credential, Role)> {
    let shown = present(rules, passwords, now, from, headers, certificate).await.ok()?;
    let is_valid = shown.expires.is_none_or(|expires| expires > now);
    is_valid.then_some((shown.credential, shown.role))
}

async fn present(
    rules: &Rules,
    passwords: &Passwords,
    now: Timestamp,
    from: IpAddr,
    headers: &HeaderMap,
    certificate: Option<&CertificateNames>,
) -> Result<PresentedCredential, AccessRefusal> {
    let mut given = headers.get_all(AUTHORIZATION).iter();
    let Some(authorization) = given.next() else {
        let found = certificate.and_then(|names| by_certificate(rules, names, now));
        return found.ok_or_else(|| no_credential(rules));
    };
    let wrong = |text: &str| challenge(rules, RefusalReason::WrongCredential, text.to_owned());
    if given.next().is_some() {
        return Err(wrong("there are two Authorization headers"));
    }
    match read_authorization(authorization) {
        Some(Authorization::Bearer(token)) => {
            by_token(rules, token).ok_or_else(|| wrong("there is no such token"))
        }
        Some(Authorization::Basic { name, password }) => {
            match passwords.verify(&rules.users, from, &name, &password).await {
                PasswordCheck::Right => Ok(by_user(rules, &name)),
                PasswordCheck::Wrong => Err(wrong("the user or the password is wrong")),
                PasswordCheck::Busy => {
                    let text = "too many passwords are being verified; try again";
                    let refused = AccessRefusal::new(RefusalReason::Busy, text);
                    Err(AccessRefusal { retry_after_seconds: Some(1), ..refused })
                }
            }
        }
        None => Err(wrong("the Authorization header is neither a bearer token nor a password")),
    }
}

fn no_credential(rules: &Rules) -> AccessRefusal {
    if rules.takes_any_credential() {
        let text = "a credential is needed: a bearer token, a password, or a client certificate";
        return challenge(rules, RefusalReason::NoCredential, text.to_owned());
    }
    let text = "orders over the network need a credential, and none is configured \
            (--web.tokens.file)";
    AccessRefusal::new(RefusalReason::NoCredential, text)
}

fn challenge(rules: &Rules, reason: RefusalReason, text: String) -> AccessRefusal {
    let bearer = match reason {
        RefusalReason::NoCredential => "Bearer realm=\"umawarden\"",
        _ => "Bearer realm=\"umawarden\", error=\"invalid_token\"",
    };
    let takes_tokens = !rules.tokens.is_empty();
    let takes_passwords = !rules.users.is_empty();
    let basic = "Basic realm=\"umawarden\", charset=\"UTF-8\"";
    let mut challenges = Vec::new();
    challenges.extend(takes_passwords.then_some(basic));
    // A 401 has to name a scheme.
    challenges.extend((takes_tokens || !takes_passwords).then_some(bearer));
    AccessRefusal { challenges, ..AccessRefusal::new(reason, text) }
}

/// Compares with all tokens, so that the time reveals nothing.
fn by_token(rules: &Rules, token: &[u8]) -> Option<PresentedCredential> {
    let hash: [u8; 32] = Sha256::digest(token).into();
    let mut found = None;
    for (known, principal) in &rules.tokens {
        if bool::from(known.ct_eq(&hash)) {
            found = Some(principal);
        }
    }
    found.map(|principal| PresentedCredential {
        credential: Credential::Token(Arc::clone(&principal.name)),
        role: principal.role,
        expires: principal.expires,
    })
}

/// The highest role of the certificate's names. Expired entries come last.
fn by_certificate(
    rules: &Rules,
    names: &CertificateNames,
    now: Timestamp,
) -> Option<PresentedCredential> {
    let is_good = |principal: &Principal| principal.expires.is_none_or(|expires| expires > now);
    let known = rules.certificates.iter().filter(|principal| names.has(&principal.name));
    let best = known.max_by_key(|principal| (is_good(principal), principal.role))?;
    let expires = [best.expires, names.expires].into_iter().flatten().min();
    Some(PresentedCredential {
        credential: Credential::Certificate(Arc::clone(&best.name)),
        role: best.role,
        expires,
    })
}

/// A user without an entry has the role read.
fn by_user(rules: &Rules, name: &str) -> PresentedCredential {
    let principal = rules.user_roles.iter().find(|principal| &*principal.name == name);
    PresentedCredential {
        credential: Credential::User(name.into()),
        role: principal.map_or(Role::Read, |principal| principal.role),
        expires: principal.and_then(|principal| principal.expires),
    }
}

/// The content of an `Authorization` header.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Authorization<'h> {
    Bearer(&'h [u8]),
    Basic { name: String, password: Vec<u8> },
}

/// Parses the header. `None` if it is invalid.
pub(super) fn read_authorization(header: &HeaderValue) -> Option<Authorization<'_>> {
    let header = header.as_bytes();
    let blank = header.iter().position(|byte| *byte == b' ')?;
    let (scheme, rest) = header.split_at(blank);
    let rest = rest.trim_ascii();
    if scheme.eq_ignore_ascii_case(b"bearer") {
        return Some(Authorization::Bearer(rest)).filter(|_| !rest.is_empty());
    }
    if !scheme.eq_ignore_ascii_case(b"basic") {
        return None;
    }
    let decoded = BASE64_STANDARD.decode(rest).ok()?;
    let colon = decoded.iter().position(|byte| *byte == b':')?;
    let (name, password) = decoded.split_at(colon);
    let name = String::from_utf8(name.to_vec()).ok()?;
    Some(Authorization::Basic { name, password: password.get(1..)?.to_vec() })
}

/// Browsers send the origin of a request, and add passwords and certificates unasked. A client that
/// sends no origin is no browser.
fn is_from_another_site(headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if matches!(text("sec-fetch-site"), Some("cross-site" | "same-site")) {
        return true;
    }
    let Some(origin) = headers.get(ORIGIN) else { return false };
    let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    origin.is_none_or(|(_, origin)| text(HOST.as_str()) != Some(origin))
}
