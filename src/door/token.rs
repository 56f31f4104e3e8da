//! New tokens: long, random, and kept as their hash.

use std::fmt::Write as _;

use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use super::tokens::plain_name;
use crate::model::Role;

/// 256 bits: nobody guesses them, and so a plain hash is as good as a slow one.
const TOKEN_BYTES: usize = 32;

/// How every token begins, so that it is known for what it is where it should not be.
const PREFIX: &str = "umawarden_";

/// A token, and what the file has of it.
#[derive(Debug)]
pub struct NewToken {
    /// Its name.
    pub name: String,
    /// What its owner may do.
    pub role: Role,
    /// When it ends.
    pub expires: Option<Timestamp>,
    /// The secret itself, which is nowhere else.
    pub token: String,
    /// Its hash, in hexadecimal digits.
    pub sha256: String,
}

/// Makes one.
///
/// # Errors
/// The name cannot be one, or there is no randomness.
pub fn create(name: &str, role: Role, expires: Option<Timestamp>) -> Result<NewToken, String> {
    let name = plain_name(name).map_err(|why| format!("{name:?} is no token's name: {why}"))?;
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
