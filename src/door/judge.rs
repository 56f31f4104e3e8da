//! Who somebody on the network is, and whether that is enough for what they ask.

use std::net::IpAddr;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, HOST, HeaderValue, ORIGIN};
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::passwords::{Answer, Passwords};
use super::tls::Names;
use super::{Named, Terms};
use crate::model::{Credential, RefusalReason, Role};

/// What a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Whoever may do that much.
    Role(Role),
    /// To come from this node, by the control socket.
    Local,
}

impl Access {
    /// For documents.
    pub fn name(self) -> &'static str {
        match self {
            Self::Role(role) => role.name(),
            Self::Local => "local",
        }
    }
}

/// Why a request is not served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// In one word.
    pub reason: RefusalReason,
    /// What is wrong, and what to do.
    pub text: String,
    /// What may be shown instead: values of `WWW-Authenticate`. Empty where nothing would do.
    pub challenges: Vec<&'static str>,
    /// When to come again.
    pub retry_after_seconds: Option<u64>,
}

impl Refused {
    pub(super) fn new(reason: RefusalReason, text: impl Into<String>) -> Self {
        let (challenges, retry_after_seconds) = (Vec::new(), None);
        Self { reason, text: text.into(), challenges, retry_after_seconds }
    }
}

/// What was shown, and what it is good for.
struct Shown {
    credential: Credential,
    role: Role,
    expires: Option<Timestamp>,
}

/// Says who it is, where that had to be known; an error says why the request is not served.
pub(super) async fn judge(
    terms: &Terms,
    passwords: &Passwords,
    now: Timestamp,
    access: Access,
    from: IpAddr,
    headers: &HeaderMap,
    certificate: Option<&Names>,
) -> Result<Option<Credential>, Refused> {
    let Access::Role(needed) = access else {
        let text = "this is answered on this node alone, by the control socket";
        return Err(Refused::new(RefusalReason::LocalOnly, text));
    };
    if needed > Role::Read && is_from_another_site(headers) {
        let text = "a page of another site may not do that";
        return Err(Refused::new(RefusalReason::CrossSite, text));
    }
    if needed == Role::Read && terms.is_open_to_readers() {
        return Ok(None);
    }
    let shown = show(terms, passwords, now, from, headers, certificate).await?;
    if shown.expires.is_some_and(|expires| expires <= now) {
        let text = format!("{} has expired", shown.credential);
        return Err(challenge(terms, RefusalReason::Expired, text));
    }
    if shown.role < needed {
        let Shown { credential, role, .. } = shown;
        let text = format!("{credential} has the role {role}, and this needs {needed}");
        return Err(Refused::new(RefusalReason::Role, text));
    }
    Ok(Some(shown.credential))
}

async fn show(
    terms: &Terms,
    passwords: &Passwords,
    now: Timestamp,
    from: IpAddr,
    headers: &HeaderMap,
    certificate: Option<&Names>,
) -> Result<Shown, Refused> {
    let mut given = headers.get_all(AUTHORIZATION).iter();
    let Some(authorization) = given.next() else {
        let found = certificate.and_then(|names| by_certificate(terms, names, now));
        return found.ok_or_else(|| no_credential(terms));
    };
    let wrong = |text: &str| challenge(terms, RefusalReason::WrongCredential, text.to_owned());
    if given.next().is_some() {
        return Err(wrong("there are two Authorization headers"));
    }
    match read_authorization(authorization) {
        Some(Authorization::Bearer(token)) => {
            by_token(terms, token).ok_or_else(|| wrong("there is no such token"))
        }
        Some(Authorization::Basic { name, password }) => {
            match passwords.verify(&terms.users, from, &name, &password).await {
                Answer::Right => Ok(by_user(terms, &name)),
                Answer::Wrong => Err(wrong("the user or the password is wrong")),
                Answer::Busy => {
                    let text = "too many passwords are being verified; come again";
                    let refused = Refused::new(RefusalReason::Busy, text);
                    Err(Refused { retry_after_seconds: Some(1), ..refused })
                }
            }
        }
        None => Err(wrong("the Authorization header is neither a bearer token nor a password")),
    }
}

fn no_credential(terms: &Terms) -> Refused {
    if terms.takes_any_credential() {
        let text = "show who you are: a bearer token, a password, or a client certificate";
        return challenge(terms, RefusalReason::NoCredential, text.to_owned());
    }
    let text = "orders are not taken over the network without a credential, and none is \
                configured (--web.tokens.file)";
    Refused::new(RefusalReason::NoCredential, text)
}

fn challenge(terms: &Terms, reason: RefusalReason, text: String) -> Refused {
    let bearer = match reason {
        RefusalReason::NoCredential => "Bearer realm=\"umawarden\"",
        _ => "Bearer realm=\"umawarden\", error=\"invalid_token\"",
    };
    let takes_tokens = !terms.tokens.is_empty();
    let takes_passwords = !terms.users.is_empty();
    let basic = "Basic realm=\"umawarden\", charset=\"UTF-8\"";
    let mut challenges = Vec::new();
    challenges.extend(takes_passwords.then_some(basic));
    // A 401 has to name something.
    challenges.extend((takes_tokens || !takes_passwords).then_some(bearer));
    Refused { challenges, ..Refused::new(reason, text) }
}

/// All are compared, so that the time tells nothing of which is near.
fn by_token(terms: &Terms, token: &[u8]) -> Option<Shown> {
    let hash: [u8; 32] = Sha256::digest(token).into();
    let mut found = None;
    for (known, named) in &terms.tokens {
        if bool::from(known.ct_eq(&hash)) {
            found = Some(named);
        }
    }
    found.map(|named| Shown {
        credential: Credential::Token(Arc::clone(&named.name)),
        role: named.role,
        expires: named.expires,
    })
}

/// The most that any of its names is good for; what has expired counts last.
fn by_certificate(terms: &Terms, names: &Names, now: Timestamp) -> Option<Shown> {
    let is_good = |named: &Named| named.expires.is_none_or(|expires| expires > now);
    let known = terms.certificates.iter().filter(|named| names.has(&named.name));
    let best = known.max_by_key(|named| (is_good(named), named.role))?;
    let expires = [best.expires, names.expires].into_iter().flatten().min();
    Some(Shown {
        credential: Credential::Certificate(Arc::clone(&best.name)),
        role: best.role,
        expires,
    })
}

/// Whoever has no entry of their own may look.
fn by_user(terms: &Terms, name: &str) -> Shown {
    let named = terms.people.iter().find(|named| &*named.name == name);
    Shown {
        credential: Credential::User(name.into()),
        role: named.map_or(Role::Read, |named| named.role),
        expires: named.and_then(|named| named.expires),
    }
}

/// What an `Authorization` header says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Authorization<'h> {
    Bearer(&'h [u8]),
    Basic { name: String, password: Vec<u8> },
}

/// Reads it; `None` is for what cannot be read.
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

/// Browsers say where a request comes from, and bring passwords and certificates along without
/// being asked; whoever says nothing is no browser.
fn is_from_another_site(headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if matches!(text("sec-fetch-site"), Some("cross-site" | "same-site")) {
        return true;
    }
    let Some(origin) = headers.get(ORIGIN) else { return false };
    let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    origin.is_none_or(|(_, origin)| text(HOST.as_str()) != Some(origin))
}
