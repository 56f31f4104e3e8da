//! Posts alerts to an Alertmanager, through version 2 of its API.

use serde_json::Value;

use super::{CallError, ClientSession, KeyError, Secret};
use crate::model::{AlertmanagerCredentials, AlertmanagerServer, TlsFiles};

/// The path of the API.
const PATH: &str = "/api/v2/alerts";

/// A post to an Alertmanager failed.
#[derive(Debug, thiserror::Error)]
pub enum PostError {
    /// The credentials cannot be read.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// There was no response.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The Alertmanager refuses the post.
    #[error("it answers {status} at {PATH}: {text}{}", hint(*status))]
    Refused {
        /// The HTTP status.
        status: u16,
        /// The beginning of the body.
        text: String,
    },
}

impl PostError {
    /// Whether the alerts of this post are refused, while others may be taken.
    pub fn is_of_this_post(&self) -> bool {
        matches!(self, Self::Refused { status: 400 | 413 | 422, .. })
    }
}

/// The remedy for an error.
fn hint(status: u16) -> &'static str {
    match status {
        300..=399 => "; name the address that it sends to as url",
        401 | 403 => {
            "; it requires credentials, or others: bearer_token_file, or username and \
             password_file"
        }
        404 => "; is the path in url right?",
        _ => "",
    }
}

/// Posts alerts. Certificates and credentials are read anew each time: both may have been renewed.
///
/// # Errors
/// The Alertmanager may not have the alerts. Posting again does no harm.
pub fn post(server: &AlertmanagerServer, alerts: &Value) -> Result<(), PostError> {
    let key = key(server)?;
    let is_tls = server.url.starts_with("https://");
    let trust = is_tls.then(|| TlsFiles::trusting(server.ca_file.clone()));
    let session = ClientSession::open_far("alertmanager", &server.url, trust)?;
    let answer = session.post_as(key, PATH, alerts, server.timeout)?;
    match answer.is_success() {
        true => Ok(()),
        false => Err(PostError::Refused { status: answer.status, text: answer.beginning() }),
    }
}

/// Reads the token or password, if credentials are configured.
pub(super) fn key(server: &AlertmanagerServer) -> Result<Option<Secret>, KeyError> {
    let read = |credentials: &AlertmanagerCredentials| match credentials {
        AlertmanagerCredentials::Bearer(token) => Secret::read(token),
        AlertmanagerCredentials::Basic { username, password } => {
            Secret::read_basic(username, password)
        }
    };
    server.credentials.as_ref().map(read).transpose()
}
