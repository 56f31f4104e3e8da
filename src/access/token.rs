//! New tokens: random, and stored as a hash.

use std::fmt::Write as _;

use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use super::tokens::plain_name;
use crate::model::Role;

/// 256 bits cannot be guessed, so that a plain hash suffices.
const TOKEN_BYTES: usize = 32;

/// The prefix of every token, which scanners for leaked secrets can find.
const PREFIX: &str = "umawarden_";

/// A token, and its entry in the file.
#[derive(Debug)]
pub struct NewToken {
    /// Its name in the log and the journal.
    pub name: String,
    /// The highest role that it grants.
    pub role: Role,
    /// The end of its validity. `None`: unlimited.
    pub expires: Option<Timestamp>,
    /// The secret, which is stored nowhere.
    pub token: String,
    /// Its hash, in hexadecimal digits.
    pub sha256: String,
}

/// Creates a token.
///
/// # Errors
/// The name is invalid, or the system has no random bytes.
pub fn create(name: &str, role: Role, expires: Option<Timestamp>) -> Result<NewToken, String> {
    let name =
        plain_name(name).map_err(|why| format!("invalid name of a token {name:?}: {why}"))?;
    let mut secret = [0; TOKEN_BYTES];
    super::fill_with_random(&mut secret)?;
    let token = format!("{PREFIX}{}", hex(&secret));
    let sha256 = hex(&Sha256::digest(&token));
    Ok(NewToken { name: name.to_owned(), role, expires, token, sha256 })
}

impl NewToken {
    /// The lines for the tokens file.
    pub fn entry(&self) -> String {
        let mut entry = format!("- name: \"{}\"\n  role: {}\n", self.name, self.role);
        entry += &format!("  sha256: {}\n", self.sha256);
        if let Some(expires) = self.expires {
            entry += &format!("  expires: {expires}\n");
        }
        entry
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a String cannot fail.
        write!(text, "{byte:02x}").unwrap_or_default();
        text
    })
}
