//! Keys: read when they are needed, never kept, never shown.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::header::HeaderValue;
use rustix::fs::{Mode, OFlags, open};

use crate::model::SecretPlace;

/// No key is longer.
const LONGEST_KEY: u64 = 4096;

/// A key, as `Authorization` says it.
#[derive(Clone)]
pub struct Secret(HeaderValue);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// A key could not be read. Nothing of it is told.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read.
    #[error("the key in {place} cannot be read: {error}")]
    Unreadable {
        /// Which.
        place: SecretPlace,
        /// How.
        error: io::Error,
    },
    /// There is no such variable.
    #[error("the key is to be in {0}, which is not set in this program's environment")]
    Unset(SecretPlace),
    /// It is no key.
    #[error("in {0} is no key: it must be one line of printable ASCII of at most {LONGEST_KEY}")]
    NoKey(SecretPlace),
}

impl Secret {
    /// Reads the key that is kept there.
    ///
    /// # Errors
    /// There is none.
    pub fn read(place: &SecretPlace) -> Result<Self, KeyError> {
        let text = Self::text(place)?;
        Self::new(&text).ok_or_else(|| KeyError::NoKey(place.clone()))
    }

    fn text(place: &SecretPlace) -> Result<Vec<u8>, KeyError> {
        Ok(match place {
            SecretPlace::File(path) => read_file(&**path)
                .map_err(|error| KeyError::Unreadable { place: place.clone(), error })?,
            SecretPlace::Environment(name) => std::env::var_os(&**name)
                .ok_or_else(|| KeyError::Unset(place.clone()))?
                .into_encoded_bytes(),
        })
    }

    /// Reads the password that is kept there, for that user.
    ///
    /// # Errors
    /// There is none.
    pub fn read_basic(username: &str, place: &SecretPlace) -> Result<Self, KeyError> {
        let text = Self::text(place)?;
        let no_key = || KeyError::NoKey(place.clone());
        let password = key(&text).ok_or_else(no_key)?;
        let both = [username.as_bytes(), b":", password].concat();
        Self::of(&format!("Basic {}", STANDARD.encode(both))).ok_or_else(no_key)
    }

    fn new(text: &[u8]) -> Option<Self> {
        let key = std::str::from_utf8(key(text)?).ok()?;
        Self::of(&format!("Bearer {key}"))
    }

    fn of(header: &str) -> Option<Self> {
        let mut value = HeaderValue::from_str(header).ok()?;
        value.set_sensitive(true);
        Some(Self(value))
    }

    /// What the header says.
    pub fn header(&self) -> HeaderValue {
        self.0.clone()
    }
}

/// One line of what can stand in a header.
fn key(text: &[u8]) -> Option<&[u8]> {
    let key = text.trim_ascii();
    let is_key =
        !key.is_empty() && key.len() as u64 <= LONGEST_KEY && key.iter().all(u8::is_ascii_graphic);
    is_key.then_some(key)
}

/// A file that is one: a pipe in its place must not hold anybody up.
pub(super) fn read_file(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(open(path.as_ref(), flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    let mut text = Vec::new();
    file.take(LONGEST_KEY + 1).read_to_end(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn read(text: &[u8]) -> Result<Secret, KeyError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        fs::write(&path, text).unwrap();
        Secret::read(&SecretPlace::File(path.to_str().unwrap().into()))
    }

    #[test]
    fn a_key_is_one_line_and_shows_itself_to_nobody() {
        let secret = read(b"sk-123\n").unwrap();
        assert_eq!(secret.header().to_str().unwrap(), "Bearer sk-123");
        assert!(secret.header().is_sensitive());
        assert_eq!(format!("{secret:?} {:?}", secret.header()), "Secret Sensitive");
        for text in [b"".as_slice(), b"  \n", b"a b", b"a\nb", b"\xff", &[b'a'; 5000]] {
            let told = read(text).unwrap_err().to_string();
            assert!(told.contains("is no key") && !told.contains("aaaa"), "{told}");
        }
    }

    #[test]
    fn a_password_goes_with_its_user() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("password");
        fs::write(&path, "open sesame\n").unwrap();
        let place = SecretPlace::File(path.to_str().unwrap().into());
        let told = Secret::read_basic("Aladdin", &place).unwrap_err().to_string();
        assert!(told.contains("is no key") && !told.contains("sesame"), "{told}");
        fs::write(&path, "opensesame\n").unwrap();
        let secret = Secret::read_basic("Aladdin", &place).unwrap();
        assert_eq!(secret.header().to_str().unwrap(), "Basic QWxhZGRpbjpvcGVuc2VzYW1l");
        assert!(secret.header().is_sensitive());
    }

    #[test]
    fn what_is_not_there_is_told_by_its_place() {
        let of = |place| Secret::read(&place).unwrap_err().to_string();
        let told = of(SecretPlace::File("/nonexistent/key".into()));
        assert!(told.starts_with("the key in /nonexistent/key cannot be read: No such"), "{told}");
        let told = of(SecretPlace::File("/dev/null".into()));
        assert!(told.ends_with("it is no file"), "{told}");
        let told = of(SecretPlace::Environment("UMAWARDEN_NO_SUCH_KEY".into()));
        assert!(told.contains("the variable UMAWARDEN_NO_SUCH_KEY, which is not set"), "{told}");
    }
}
