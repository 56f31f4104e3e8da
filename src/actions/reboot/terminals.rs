//! Writes a message to the terminals of logged-in users, as wall(1) does.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::termios::isatty;

/// The most terminals that get a message.
const MOST_TERMINALS: usize = 64;

/// The length limit of a message.
const MOST_CHARS: usize = 1000;

/// Writes to terminals without waiting. Returns the number with the whole message.
pub(super) fn write_all(devices: &Path, terminals: &BTreeSet<Arc<str>>, text: &str) -> usize {
    let message = message(text);
    let named = terminals.iter().filter(|name| is_terminal(name)).take(MOST_TERMINALS);
    named.filter(|name| write(&devices.join(&***name), message.as_bytes()).is_some()).count()
}

/// `pts/3`, `tty1`, `ttyS0`, `ttyAMA0`, and no path that leaves the folder.
fn is_terminal(name: &str) -> bool {
    let is_within = |text: &str, most: usize| !text.is_empty() && text.len() <= most;
    if let Some(number) = name.strip_prefix("pts/") {
        return is_within(number, 7) && number.bytes().all(|byte| byte.is_ascii_digit());
    }
    let rest = name.strip_prefix("tty").unwrap_or_default();
    is_within(rest, 16) && rest.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// A terminal executes control characters, and a non-ASCII character may be one in its encoding.
fn message(text: &str) -> String {
    let lines = text.lines().map(|line| {
        let plain = |c: char| if matches!(c, ' '..='~') { c } else { '?' };
        line.chars().map(plain).collect::<String>()
    });
    let text: String = lines.collect::<Vec<_>>().join("\n").chars().take(MOST_CHARS).collect();
    format!("\r\n\r\nTo all who are logged in:\r\n\r\n{}\r\n\r\n", text.replace('\n', "\r\n"))
}

/// `None`: it is no terminal, or takes nothing now since its reader does not read.
fn write(path: &Path, message: &[u8]) -> Option<()> {
    // The open waits for no modem, and does not make it the controlling terminal.
    let flags =
        OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let terminal: OwnedFd = open(path, flags, Mode::empty()).ok()?;
    let is_device = fstat(&terminal)
        .is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::CharacterDevice);
    if !is_device || !isatty(&terminal) {
        return None;
    }
    let mut rest = message;
    while !rest.is_empty() {
        match rustix::io::write(&terminal, rest) {
            Ok(0) | Err(_) => return None,
            Ok(written) => rest = rest.get(written..)?,
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read as _;

    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

    use super::*;

    /// A real terminal: what is read from it, and its name.
    fn terminal() -> (File, Arc<str>) {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        (File::from(master), name.strip_prefix("/dev/").unwrap().into())
    }

    fn names(names: &[&str]) -> BTreeSet<Arc<str>> {
        names.iter().map(|name| Arc::from(*name)).collect()
    }

    #[test]
    fn real_terminals_get_the_message_without_control_sequences() {
        let (mut reader, name) = terminal();
        let ttys = names(&[&name, "pts/9999999", "tty/../pts/0", "null"]);
        let reached = write_all(Path::new("/dev"), &ttys, "why: \x1b]0;evil\x07\u{9b}2J é\nsecond");
        assert_eq!(reached, 1);
        let mut bytes = [0; 4096];
        let length = reader.read(&mut bytes).unwrap();
        let text = std::str::from_utf8(&bytes[..length]).unwrap();
        assert!(text.contains("why: ?]0;evil??2J ?\r"), "{text:?}");
        assert!(text.contains("second"), "{text:?}");
        assert!(text.chars().all(|c| matches!(c, ' '..='~' | '\r' | '\n')), "{text:?}");
    }

    #[test]
    fn a_terminal_without_a_reader_does_not_block() {
        let (reader, name) = terminal();
        let ttys = names(&[&name]);
        // A terminal keeps some for its reader, and then takes no more.
        let reached = (0..200).map(|_| write_all(Path::new("/dev"), &ttys, &"x".repeat(900)));
        let reached = reached.collect::<Vec<_>>();
        assert_eq!((reached.first(), reached.last()), (Some(&1), Some(&0)));
        drop(reader);
        assert_eq!(write_all(Path::new("/dev"), &ttys, "gone"), 0);
    }

    #[test]
    fn only_terminals_are_written_to() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("pts")).unwrap();
        for name in ["pts/1", "tty1"] {
            std::fs::write(folder.path().join(name), "as it was").unwrap();
        }
        std::os::unix::fs::symlink("/dev/null", folder.path().join("tty2")).unwrap();
        assert_eq!(write_all(folder.path(), &names(&["pts/1", "tty1", "tty2"]), "text"), 0);
        assert_eq!(std::fs::read_to_string(folder.path().join("tty1")).unwrap(), "as it was");
        for name in ["", "pts/", "pts/1/../2", "pts/x", ":0", "../etc/passwd", "tty", "tty1/x"] {
            assert!(!is_terminal(name), "{name}");
        }
        assert!(["pts/0", "tty1", "ttyS0", "ttyAMA0"].iter().all(|name| is_terminal(name)));
    }

    #[test]
    fn messages_are_short() {
        assert!(message(&"line\n".repeat(5000)).len() < 2500);
    }
}
