//! An Alertmanager, which is told of alerts through its API, version 2.

use serde_json::Value;

use super::{CallError, KeyError, Secret, Session};
use crate::model::{AlertmanagerCredentials, AlertmanagerServer, TlsFiles};

/// Where alerts are told.
const PATH: &str = "/api/v2/alerts";

/// An Alertmanager was not told.
#[derive(Debug, thiserror::Error)]
pub enum TellError {
    /// What it asks for cannot be read.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// It has not answered.
    #[error(transparent)]
    Call(#[from] CallError),
    /// It will not.
    #[error("it answers {status} at {PATH}: {text}{}", hint(*status))]
    Refused {
        /// The status.
        status: u16,
        /// The beginning of what it said.
        text: String,
    },
}

impl TellError {
    /// Whether the alerts of this post are refused, while others may be taken.
    pub fn is_of_this_post(&self) -> bool {
        matches!(self, Self::Refused { status: 400 | 413 | 422, .. })
    }
}

/// What to do about it.
fn hint(status: u16) -> &'static str {
    match status {
        300..=399 => "; name the address that it sends to as url",
        401 | 403 => {
            "; it asks for credentials, or for others: bearer_token_file, or username and \
             password_file"
        }
        404 => "; is the path in url right?",
        _ => "",
    }
}

/// Tells it of alerts. Each time anew it is read who is trusted, and what it asks for: both may
/// have been renewed.
///
/// # Errors
/// It may not have taken them. To tell it again does no harm.
pub fn tell(server: &AlertmanagerServer, alerts: &Value) -> Result<(), TellError> {
    let key = key(server)?;
    let is_tls = server.url.starts_with("https://");
    let trust = is_tls.then(|| TlsFiles::trusting(server.ca_file.clone()));
    let session = Session::open_far("alertmanager", &server.url, trust)?;
    let answer = session.post_as(key, PATH, alerts, server.timeout)?;
    match answer.is_success() {
        true => Ok(()),
        false => Err(TellError::Refused { status: answer.status, text: answer.beginning() }),
    }
}

/// Reads what it asks for.
pub(super) fn key(server: &AlertmanagerServer) -> Result<Option<Secret>, KeyError> {
    let read = |credentials: &AlertmanagerCredentials| match credentials {
        AlertmanagerCredentials::Bearer(token) => Secret::read(token),
        AlertmanagerCredentials::Basic { username, password } => {
            Secret::read_basic(username, password)
        }
    };
    server.credentials.as_ref().map(read).transpose()
}
