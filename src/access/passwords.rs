//! Verifies passwords on another thread, one at a time, client addresses in turn. Verified
//! passwords are cached.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use subtle::ConstantTimeEq as _;
use tokio::task::spawn_blocking;

use super::turns::AccessTurns;
use super::web_config::User;

/// Cached wrong passwords, so that a client that repeats one costs nothing.
const MOST_WRONG: usize = 256;
/// The longest password. bcrypt uses 72 bytes.
const MOST_PASSWORD_BYTES: usize = 1024;

/// A hash for unknown users; salt and result are arbitrary.
const UNKNOWN_USER: &str = "$XXXXXXXXXXXXXXXXXXXXXOcxkQhhoXfrLpyKuXSXQwk9tnRJJpO5G";

type Seal = [u8; 32];

/// Whether a password is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PasswordCheck {
    Right,
    Wrong,
    /// Too many verifications of this address, or of too many addresses, are waiting.
    Busy,
}

pub(super) struct Passwords {
    /// Random for this process, so that the cache is useless to others.
    key: [u8; 32],
    /// One at a time: bcrypt takes a whole CPU.
    turns: Arc<AccessTurns>,
    known: Mutex<Cache>,
}

#[derive(Default)]
struct Cache {
    /// The right password of each user, for its current hash.
    right: BTreeMap<Arc<str>, Seal>,
    wrong: VecDeque<Seal>,
}

impl Passwords {
    pub(super) fn new() -> Result<Self, String> {
        let mut key = [0; 32];
        super::fill_with_random(&mut key)?;
        Ok(Self { key, turns: Arc::default(), known: Mutex::default() })
    }

    /// Verifies a password. An unknown user takes as long as the hash with the highest cost. If
    /// costs differ, the time reveals users with a cheaper hash.
    pub(super) async fn verify(
        &self,
        users: &[User],
        from: IpAddr,
        name: &str,
        password: &[u8],
    ) -> PasswordCheck {
        if password.len() > MOST_PASSWORD_BYTES {
            return PasswordCheck::Wrong;
        }
        let user = users.iter().find(|user| &*user.name == name);
        let hash = user.map_or_else(|| unknown_user(users), |user| user.hash.clone());
        let seal = self.seal(name, &hash, password);
        if let Some(known) = self.known(name, &seal) {
            return known;
        }
        let Some(turn) = self.turns.wait(from).await else { return PasswordCheck::Busy };
        // An earlier request may have verified the same password.
        if let Some(known) = self.known(name, &seal) {
            return known;
        }
        let password = password.to_vec();
        let verified = spawn_blocking(move || {
            // The client may disconnect; the turn lasts as long as the work.
            let _turn = turn;
            bcrypt::verify(&password, &hash).unwrap_or(false)
        });
        let is_right = verified.await.unwrap_or(false) && user.is_some();
        self.remember(user, seal, is_right);
        if is_right { PasswordCheck::Right } else { PasswordCheck::Wrong }
    }

    fn seal(&self, name: &str, hash: &str, password: &[u8]) -> Seal {
        let Ok(mut seal) = Hmac::<Sha256>::new_from_slice(&self.key) else { return [0; 32] };
        for part in [name.as_bytes(), hash.as_bytes(), password] {
            // With lengths, so that triples are unambiguous.
            seal.update(&(part.len() as u64).to_le_bytes());
            seal.update(part);
        }
        seal.finalize().into_bytes().into()
    }

    fn known(&self, name: &str, seal: &Seal) -> Option<PasswordCheck> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same = |other: &Seal| bool::from(other.ct_eq(seal));
        if known.right.get(name).is_some_and(is_same) {
            return Some(PasswordCheck::Right);
        }
        known.wrong.iter().any(is_same).then_some(PasswordCheck::Wrong)
    }

    fn remember(&self, user: Option<&User>, seal: Seal, is_right: bool) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        match user.filter(|_| is_right) {
            Some(user) => {
                known.right.insert(Arc::clone(&user.name), seal);
            }
            None => {
                if known.wrong.len() >= MOST_WRONG {
                    known.wrong.pop_front();
                }
                known.wrong.push_back(seal);
            }
        }
    }

    /// Forgets removed users. Another hash has another seal.
    pub(super) fn keep(&self, users: &[User]) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.right.retain(|name, _| users.iter().any(|user| user.name == *name));
    }
}

/// A hash that no password has, with the highest cost of all users.
pub(super) fn unknown_user(users: &[User]) -> String {
    let cost = users.iter().map(|user| user.cost).max().unwrap_or(10);
    format!("$2b${cost:02}{UNKNOWN_USER}")
}
