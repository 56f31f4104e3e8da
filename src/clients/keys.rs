//! Keys: read for each use, never kept, never printed.

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::header::HeaderValue;
use rustix::fs::{Mode, OFlags, open};

use crate::model::{Credentials, SecretSource};

/// The length limit of keys and passwords, in bytes.
const LONGEST_KEY: u64 = 4096;

/// The value of an `Authorization` header.
#[derive(Clone)]
pub struct Secret(HeaderValue);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// A key could not be read. The message never has any of its text.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read.
    #[error("the key in {from} cannot be read: {error}")]
    Unreadable {
        /// The source of the key.
        from: SecretSource,
        /// The error of the system.
        error: io::Error,
    },
    /// The variable is not set.
    #[error("the key is to be in {0}, which is not set in this program's environment")]
    Unset(SecretSource),
    /// The content is no key.
    #[error(
        "in {0} is no key: it must be one line of visible ASCII, without spaces, of at most \
         {LONGEST_KEY} characters"
    )]
    NoKey(SecretSource),
    /// The content is no password.
    #[error(
        "in {0} is no password: it must be one line of UTF-8 text of at most {LONGEST_KEY} bytes"
    )]
    NoPassword(SecretSource),
}

impl Secret {
    /// Reads a key from its source.
    ///
    /// # Errors
    /// The source has no usable value.
    pub fn read(source: &SecretSource) -> Result<Self, KeyError> {
        Self::bearer(source, &text(source)?)
    }

    /// Reads a password from its source, for the user `username`.
    ///
    /// # Errors
    /// The source has no usable value.
    pub fn read_basic(username: &str, source: &SecretSource) -> Result<Self, KeyError> {
        Self::basic(source, username, &text(source)?)
    }

    /// Reads the credentials for another node.
    pub(super) fn read_for(credentials: &Credentials) -> Result<Self, KeyError> {
        let (Credentials::Bearer(file) | Credentials::Basic { password: file, .. }) = credentials;
        // For error texts only: the file is read by its path, which need not be UTF-8.
        let source = SecretSource::File(file.to_string_lossy().into());
        let text = text_of(file, &source)?;
        match credentials {
            Credentials::Bearer(_) => Self::bearer(&source, &text),
            Credentials::Basic { username, .. } => Self::basic(&source, username, &text),
        }
    }

    fn bearer(source: &SecretSource, text: &[u8]) -> Result<Self, KeyError> {
        let header = key(text).and_then(|key| Self::of(&format!("Bearer {key}")));
        header.ok_or_else(|| KeyError::NoKey(source.clone()))
    }

    fn basic(source: &SecretSource, username: &str, text: &[u8]) -> Result<Self, KeyError> {
        let header = password(text).and_then(|password| {
            let both = STANDARD.encode(format!("{username}:{password}"));
            Self::of(&format!("Basic {both}"))
        });
        header.ok_or_else(|| KeyError::NoPassword(source.clone()))
    }

    fn of(header: &str) -> Option<Self> {
        let mut value = HeaderValue::from_str(header).ok()?;
        value.set_sensitive(true);
        Some(Self(value))
    }

    /// The header value.
    pub fn header(&self) -> HeaderValue {
        self.0.clone()
    }
}

fn text(source: &SecretSource) -> Result<Vec<u8>, KeyError> {
    match source {
        SecretSource::File(path) => text_of(Path::new(&**path), source),
        SecretSource::Environment(name) => std::env::var_os(&**name)
            .map(OsString::into_encoded_bytes)
            .ok_or_else(|| KeyError::Unset(source.clone())),
    }
}

fn text_of(file: &Path, source: &SecretSource) -> Result<Vec<u8>, KeyError> {
    read_secret(file, LONGEST_KEY)
        .map_err(|error| KeyError::Unreadable { from: source.clone(), error })
}

/// A word of printable ASCII characters, as a header allows.
fn key(text: &[u8]) -> Option<&str> {
    line(text).filter(|key| key.bytes().all(|byte| byte.is_ascii_graphic()))
}

/// Passwords may have spaces and any letters: the header encodes them.
fn password(text: &[u8]) -> Option<&str> {
    line(text).filter(|password| !password.contains(char::is_control))
}

/// The text without leading and trailing white space; `None` if it is empty or too long.
fn line(text: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(text.trim_ascii()).ok()?;
    (!text.is_empty() && text.len() as u64 <= LONGEST_KEY).then_some(text)
}

/// Reads a regular file up to a size limit.
pub(super) fn read_file(path: impl AsRef<Path>, most_bytes: u64) -> io::Result<Vec<u8>> {
    read(open_file(path.as_ref())?, most_bytes)
}

/// The same for secrets, which must not be world-accessible.
pub(super) fn read_secret(path: impl AsRef<Path>, most_bytes: u64) -> io::Result<Vec<u8>> {
    let path = path.as_ref();
    let file = open_file(path)?;
    check(&file.metadata()?, path)?;
    read(file, most_bytes)
}

/// Checks that a file is not world-accessible.
///
/// # Errors
/// Others may read or write the file, or its mode cannot be read.
pub fn check_permissions(path: &Path) -> io::Result<()> {
    check(&fs::metadata(path)?, path)
}

fn check(found: &Metadata, path: &Path) -> io::Result<()> {
    let permissions = found.mode() & 0o7777;
    let may = match permissions & 0o006 {
        0 => return Ok(()),
        0o004 => "read",
        0o002 => "write",
        _ => "read and write",
    };
    Err(io::Error::other(format!(
        "everybody on this machine may {may} it (mode {permissions:04o}): chmod o-rwx {}",
        path.display()
    )))
}

fn open_file(path: &Path) -> io::Result<File> {
    // A FIFO at this path must not block.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(open(path, flags, Mode::empty())?);
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is no file")),
    }
}

fn read(file: File, most_bytes: u64) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    file.take(most_bytes + 1).read_to_end(&mut text)?;
    match text.len() as u64 <= most_bytes {
        true => Ok(text),
        false => Err(io::Error::other(format!("it is longer than {} KiB", most_bytes >> 10))),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn write(path: &Path, text: &[u8], mode: u32) {
        fs::write(path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn read(text: &[u8]) -> Result<Secret, KeyError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        write(&path, text, 0o600);
        Secret::read(&SecretSource::File(path.to_str().unwrap().into()))
    }

    #[test]
    fn a_key_is_one_line_and_is_never_printed() {
        let secret = read(b"sk-123\n").unwrap();
        assert_eq!(secret.header().to_str().unwrap(), "Bearer sk-123");
        assert!(secret.header().is_sensitive());
        assert_eq!(format!("{secret:?} {:?}", secret.header()), "Secret Sensitive");
        for text in [b"".as_slice(), b"  \n", b"a b", b"a\nb", b"\xff"] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains("is no key"), "{error}");
            assert!(error.ends_with("of at most 4096 characters"), "{error}");
        }
        let error = read(&[b'a'; 5000]).unwrap_err().to_string();
        assert!(error.ends_with("it is longer than 4 KiB"), "{error}");
    }

    #[test]
    fn a_world_accessible_file_is_refused_as_secret() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let source = SecretSource::File(path.to_str().unwrap().into());
        for (mode, expected) in [
            (0o604, "may read it (mode 0604): chmod o-rwx /"),
            (0o602, "may write it (mode 0602): chmod o-rwx /"),
            (0o646, "may read and write it (mode 0646): chmod o-rwx /"),
        ] {
            write(&path, b"sk-123\n", mode);
            let credentials = Credentials::Bearer(path.clone());
            for read in [
                Secret::read(&source),
                Secret::read_basic("a", &source),
                Secret::read_for(&credentials),
            ] {
                let why = read.unwrap_err().to_string();
                assert!(why.contains(expected) && !why.contains("sk-123"), "{why}");
            }
            assert!(check_permissions(&path).is_err());
            read_file(&path, 4096).unwrap();
        }
        write(&path, b"sk-123\n", 0o640);
        Secret::read(&source).unwrap();
        check_permissions(&path).unwrap();
    }

    #[test]
    fn a_password_is_sent_with_its_user() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("password");
        let source = SecretSource::File(path.to_str().unwrap().into());
        let read = || {
            let username = "Aladdin".to_owned();
            let credentials = Credentials::Basic { username, password: path.clone() };
            [Secret::read_basic("Aladdin", &source), Secret::read_for(&credentials)]
        };
        for text in [b"open\nsesame".as_slice(), b"open\0sesame", b"sesame\xff", b" \n"] {
            write(&path, text, 0o600);
            for read in read() {
                let error = read.unwrap_err().to_string();
                assert!(error.contains("is no password") && !error.contains("sesame"), "{error}");
                assert!(error.ends_with("of at most 4096 bytes"), "{error}");
            }
        }
        for text in ["opensesame", "open sesame", "Öffne dich"] {
            write(&path, format!("{text}\n").as_bytes(), 0o600);
            let expected = format!("Basic {}", STANDARD.encode(format!("Aladdin:{text}")));
            for read in read() {
                let header = read.unwrap().header();
                assert_eq!(header.to_str().unwrap(), expected);
                assert!(header.is_sensitive());
            }
        }
        write(&path, b"opensesame\n", 0o600);
        let header = Secret::read_basic("Aladdin", &source).unwrap().header();
        assert_eq!(header.to_str().unwrap(), "Basic QWxhZGRpbjpvcGVuc2VzYW1l");
    }

    #[test]
    fn a_token_is_the_same_for_every_server() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let credentials = Credentials::Bearer(path.clone());
        write(&path, b"sk-123\n", 0o600);
        let secret = Secret::read_for(&credentials).unwrap();
        assert_eq!(secret.header().to_str().unwrap(), "Bearer sk-123");
        write(&path, b"sk 123\n", 0o600);
        let error = Secret::read_for(&credentials).unwrap_err().to_string();
        assert!(error.starts_with(&format!("in {} is no key", path.display())), "{error}");
    }

    #[test]
    fn the_error_for_a_missing_key_names_its_source() {
        let of = |source| Secret::read(&source).unwrap_err().to_string();
        let error = of(SecretSource::File("/nonexistent/key".into()));
        assert!(
            error.starts_with("the key in /nonexistent/key cannot be read: No such"),
            "{error}"
        );
        let error = of(SecretSource::File("/dev/null".into()));
        assert!(error.ends_with("it is no file"), "{error}");
        let error = of(SecretSource::Environment("UMAWARDEN_NO_SUCH_KEY".into()));
        assert!(error.contains("the variable UMAWARDEN_NO_SUCH_KEY, which is not set"), "{error}");
    }
}
