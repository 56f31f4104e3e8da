//! The end of a container's log, as `GET /containers/ID/logs` returns it, or a file of the CRI has
//! it. A dying program wrote it: it may be cut anywhere, and its content is not trusted.

use jiff::Timestamp;

use crate::model::is_unprintable;

/// Bytes of a line that are read.
const LONGEST_LINE_BYTES: usize = 4096;
/// Characters of a line that are kept.
const LONGEST_LINE_CHARS: usize = 400;

/// The last lines are kept.
const LAST_LINES: usize = 20;
/// Lines before the last ones that are kept, if they show the reason of the end.
const REASON_LINES: usize = 20;

/// Text after one of these may be a secret: engines log all their arguments at their start.
const SECRETS: [&str; 15] = [
    "api_key",
    "api-key",
    "apikey",
    "admin_key",
    "password",
    "passwd",
    "secret",
    "credential",
    "authorization",
    "bearer ",
    "auth_token",
    "access_token",
    "hf_token",
    "private key",
    "set-cookie",
];

/// The last lines of a log and earlier ones that show the reason of the end, the newest last. Each
/// piece of the log has the number of its output, 0 to 2. Docker writes the time in front of each
/// line. Lines before `since` belong to an earlier run.
pub fn log_end(
    log: &[(usize, Vec<u8>)],
    since: Option<Timestamp>,
    is_reason: impl Fn(&str) -> bool,
) -> Vec<String> {
    let mut lines = Lines { since, open: [const { Vec::new() }; 3], ended: Vec::new() };
    for (output, text) in log {
        lines.read(*output, text);
    }
    for output in 0..lines.open.len() {
        lines.end(output);
    }
    end_of(lines.ended, is_reason)
}

/// The same of the file of a pod's container, whose lines are `TIME STREAM TAGS TEXT`. The tag `P`
/// is that of a part of a line, `F` that of its end (CRI, `pkg/kubelet/kuberuntime/logs` of
/// Kubernetes).
pub fn pod_log_end(
    text: &[u8],
    since: Option<Timestamp>,
    is_reason: impl Fn(&str) -> bool,
) -> Vec<String> {
    let pieces: Vec<(usize, Vec<u8>)> =
        text.split(|byte| *byte == b'\n').filter_map(piece).collect();
    log_end(&pieces, since, is_reason)
}

/// A line of such a file as a piece of the log, with the time in front.
fn piece(line: &[u8]) -> Option<(usize, Vec<u8>)> {
    let mut parts = line.splitn(4, |byte| *byte == b' ');
    let (at, stream, tags, text) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let output = match stream {
        b"stdout" => 1,
        b"stderr" => 2,
        _ => return None,
    };
    let end: &[u8] = match tags.split(|byte| *byte == b':').next()? {
        b"P" => b"",
        b"F" => b"\n",
        _ => return None,
    };
    Some((output, [at, b" ", text, end].concat()))
}

/// The same of plain output of a program, such as a file that it writes to.
pub fn output_end(outputs: &[Vec<u8>], is_reason: impl Fn(&str) -> bool) -> Vec<String> {
    let lines = outputs.iter().flat_map(|output| output.split(|byte| *byte == b'\n'));
    let shown = lines.map(|line| shown(&line[..line.len().min(LONGEST_LINE_BYTES)]));
    end_of(shown.filter(|line| !line.is_empty()).collect(), is_reason)
}

fn end_of(mut lines: Vec<String>, is_reason: impl Fn(&str) -> bool) -> Vec<String> {
    let last = lines.split_off(lines.len().saturating_sub(LAST_LINES));
    lines.retain(|line| is_reason(line));
    let mut kept = lines.split_off(lines.len().saturating_sub(REASON_LINES));
    kept.extend(last);
    kept
}

/// What was read so far.
struct Lines {
    since: Option<Timestamp>,
    /// The line of each output that has not ended.
    open: [Vec<u8>; 3],
    ended: Vec<String>,
}

impl Lines {
    /// Each piece of a long line has the time in front of it.
    fn read(&mut self, output: usize, text: &[u8]) {
        let mut pieces = text.split(|byte| *byte == b'\n').peekable();
        while let Some(piece) = pieces.next() {
            let (at, piece) = stamped(piece);
            let is_older = at.zip(self.since).is_some_and(|(at, since)| is_older(at, since));
            if let Some(open) = self.open.get_mut(output).filter(|_| !is_older) {
                let left = LONGEST_LINE_BYTES.saturating_sub(open.len());
                open.extend_from_slice(&piece[..piece.len().min(left)]);
            }
            if pieces.peek().is_some() {
                self.end(output);
            }
        }
    }

    fn end(&mut self, output: usize) {
        let Some(open) = self.open.get_mut(output) else { return };
        let line = shown(&std::mem::take(open));
        if !line.is_empty() {
            self.ended.push(line);
        }
    }
}

/// Podman writes whole seconds.
fn is_older(at: Timestamp, since: Timestamp) -> bool {
    let is_whole = at.subsec_nanosecond() == 0;
    if is_whole { at.as_second() < since.as_second() } else { at < since }
}

/// The time in front of a line, and the line.
fn stamped(line: &[u8]) -> (Option<Timestamp>, &[u8]) {
    let Some(end) = line.iter().take(48).position(|byte| *byte == b' ') else {
        return (None, line);
    };
    let (stamp, rest) = line.split_at(end);
    let is_like_one = stamp.len() >= 20 && stamp.get(4) == Some(&b'-') && stamp.is_ascii();
    let stamp = std::str::from_utf8(stamp).ok().filter(|_| is_like_one);
    match stamp.and_then(|stamp| stamp.parse().ok()) {
        Some(at) => (Some(at), &rest[1..]),
        None => (None, line),
    }
}

/// A line for people: what was drawn over is left out, as are colours; nothing that a terminal
/// would obey is left, and no secret.
fn shown(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    let text = text.trim_end();
    let text = text.rsplit('\r').next().unwrap_or(text);
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '\u{1b}' if characters.peek() == Some(&'[') => {
                // The end of a control sequence is the first of these.
                characters.next();
                let _end = characters.find(|one| matches!(one, '@'..='~'));
            }
            '\t' => plain.push(' '),
            character if is_unprintable(character) => plain.push(char::REPLACEMENT_CHARACTER),
            character => plain.push(character),
        }
    }
    let plain = without_secrets(plain.trim());
    match plain.char_indices().nth(LONGEST_LINE_CHARS) {
        Some((end, _)) => format!("{}…", &plain[..end]),
        None => plain,
    }
}

/// Whether a text has a word after which a secret may follow, or an address with a password.
pub fn may_hold_secret(text: &str) -> bool {
    secret_at(text).is_some_and(|at| at < text.len())
}

/// Where a secret may begin.
fn secret_at(line: &str) -> Option<usize> {
    let lower = line.to_ascii_lowercase();
    let named = SECRETS.iter().filter_map(|name| Some(lower.find(name)? + name.len()));
    // Of an address with a password in it the address is all that is hidden.
    let in_address = lower.find("://").filter(|at| {
        let host = lower[at + 3..].split(['/', ' ', '"', '\'']).next().unwrap_or_default();
        host.contains('@')
    });
    named.chain(in_address.map(|at| at + 3)).min()
}

fn without_secrets(line: &str) -> String {
    match secret_at(line).filter(|at| *at < line.len()) {
        Some(at) => format!("{} [the rest may hold a secret]", &line[..at]),
        None => line.to_owned(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    fn log_end(log: &[u8], is_terminal: bool, since: Option<Timestamp>) -> Vec<String> {
        super::log_end(&pieces(log, is_terminal), since, |line| line.contains("CUDA out of memory"))
    }

    fn framed(output: u8, text: &str) -> Vec<u8> {
        let length = u32::try_from(text.len()).unwrap().to_be_bytes();
        [&[output, 0, 0, 0][..], &length, text.as_bytes()].concat()
    }

    fn at(second: u32) -> String {
        format!("2026-11-22T10:00:{second:02}.123456789Z ")
    }

    #[test]
    fn docker_logs_are_read_without_times_and_frames() {
        let log = [
            framed(1, &format!("{}INFO starts\n", at(1))),
            framed(2, &format!("{}torch.OutOfMemoryError: CUDA ", at(2))),
            framed(1, &format!("{}INFO between\n", at(2))),
            framed(2, &format!("{}out of memory.\n", at(3))),
            framed(2, &format!("{}Traceback", at(4))),
        ];
        let whole = log.concat();
        let found = [
            "INFO starts",
            "INFO between",
            "torch.OutOfMemoryError: CUDA out of memory.",
            "Traceback",
        ];
        assert_eq!(log_end(&whole, false, None), found);
        // Docker has died in the middle of it.
        assert_eq!(log_end(&whole[..whole.len() - 5], false, None)[3], "Trac");
        // Of a life that began later the rest is not.
        let since = "2026-11-22T10:00:02.5Z".parse().ok();
        assert_eq!(log_end(&whole, false, since), ["out of memory.", "Traceback"]);
    }

    #[test]
    fn terminal_output_is_read_as_it_was_displayed() {
        let log = format!(
            "{}Loading:  10%\rLoading: 100%\r\n{}\u{1b}[36mINFO\u{1b}[0m\tready\u{7}\r\n\r\n",
            at(1),
            at(2)
        );
        assert_eq!(log_end(log.as_bytes(), true, None), ["Loading: 100%", "INFO ready\u{fffd}"]);
        // It is not declared as one.
        assert_eq!(log_end(log.as_bytes(), false, None).len(), 2);
        assert_eq!(log_end(b"", false, None), Vec::<String>::new());
        assert_eq!(log_end(b"\x01\0\0\0\xff\xff\xff\xffx", false, None), ["x"]);
    }

    #[test]
    fn podman_writes_whole_seconds_and_offsets() {
        let log = framed(1, "2026-11-22T10:00:01Z late\n");
        let since = "2026-11-22T10:00:01.9Z".parse().ok();
        assert_eq!(log_end(&log, false, since), ["late"]);
        let log = framed(1, "2026-11-22T12:00:01.5+02:00 late\n");
        let since = "2026-11-22T10:00:01Z".parse().ok();
        assert_eq!(log_end(&log, false, since), ["late"]);
        let since = "2026-11-22T10:00:02Z".parse().ok();
        assert_eq!(log_end(&log, false, since), Vec::<String>::new());
    }

    #[test]
    fn the_last_lines_and_those_with_a_cause_are_kept() {
        let mut log: String = (0..100).map(|line| format!("line {line}\n")).collect();
        log.insert_str(0, "RuntimeError: CUDA out of memory. Tried to allocate 2 GiB\n");
        let found = log_end(log.as_bytes(), true, None);
        assert_eq!(found.len(), 21);
        assert!(found[0].contains("CUDA out of memory"));
        assert_eq!((&*found[1], &*found[20]), ("line 80", "line 99"));
        let long = "x".repeat(1 << 20);
        let found = log_end(long.as_bytes(), true, None);
        assert_eq!(found[0].chars().count(), LONGEST_LINE_CHARS + 1);
    }

    #[test]
    fn no_secret_is_kept() {
        for (line, found) in [
            (
                "server_args=ServerArgs(model_path='m', api_key='sk-1', port=1)",
                "server_args=ServerArgs(model_path='m', api_key [the rest may hold a secret]",
            ),
            ("GET / Authorization: Bearer x", "GET / Authorization [the rest may hold a secret]"),
            ("at https://u:pw@host/x", "at https:// [the rest may hold a secret]"),
            ("token usage: 0.93, 12 tokens/s", "token usage: 0.93, 12 tokens/s"),
            ("at https://host/a@b", "at https://host/a@b"),
        ] {
            assert_eq!(log_end(line.as_bytes(), true, None), [found]);
        }
    }

    /// Of the file that containerd 1.6.20 writes.
    #[test]
    fn a_log_of_a_pods_container_is_read_and_its_parts_are_joined() {
        let lines = [
            "stdout F INFO starts",
            "stderr P torch.OutOfMemoryError: CUDA ",
            "stdout F INFO between",
            "stderr P out of ",
            "stderr F memory.",
            "stdout F:tag 2026-11-22T10:00:00Z is its own",
            "stdin F none",
            "stdout X none",
            "stdout F",
            "stdout F ",
            "stderr P Trac",
        ];
        let log: String =
            lines.iter().zip(1..).map(|(line, second)| format!("{}{line}\n", at(second))).collect();
        let read = |since: Option<&str>| {
            let since = since.map(|since| since.parse().unwrap());
            pod_log_end(log.as_bytes(), since, |line| line.contains("out of memory"))
        };
        let wanted = [
            "INFO starts",
            "INFO between",
            "torch.OutOfMemoryError: CUDA out of memory.",
            "2026-11-22T10:00:00Z is its own",
            "Trac",
        ];
        assert_eq!(read(None), wanted);
        assert_eq!(read(Some("2026-11-22T10:00:04.5Z"))[..2], ["memory.", wanted[3]]);
        assert_eq!(pod_log_end(b"", None, |_| true), Vec::<String>::new());
        let secret = format!("{}stdout F api_key=abc", at(1));
        let found = pod_log_end(secret.as_bytes(), None, |_| true);
        assert_eq!(found, ["api_key [the rest may hold a secret]"]);
    }

    proptest! {
        #[test]
        fn an_arbitrary_log_of_a_pod_does_not_panic(
            lines in prop::collection::vec("[PF: a-z0-9]{0,40}", 0..40),
            bytes in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let written = |line: &String| format!("{}stdout {line}\n", at(1)).into_bytes();
            let log: Vec<u8> = lines.iter().flat_map(written).chain(bytes).collect();
            let found = pod_log_end(&log, None, |_| true);
            prop_assert!(found.len() <= LAST_LINES + REASON_LINES);
            prop_assert!(found.iter().all(|line| !line.chars().any(char::is_control)));
        }

        #[test]
        fn arbitrary_logs_do_not_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..600),
            frames in prop::collection::vec((0_u8..3, "\\PC{0,40}\n?"), 0..40),
            is_terminal: bool,
            cut in 0_usize..2000,
        ) {
            let mut log: Vec<u8> = frames.iter().flat_map(|(to, text)| framed(*to, text)).collect();
            log.truncate(cut);
            log.extend(bytes);
            let found = log_end(&log, is_terminal, None);
            prop_assert!(found.len() <= LAST_LINES + REASON_LINES);
            for line in found {
                prop_assert!(!line.is_empty() && !line.chars().any(char::is_control), "{line:?}");
                prop_assert!(line.chars().count() <= LONGEST_LINE_CHARS + 1, "{line:?}");
            }
        }

        #[test]
        fn complete_lines_are_returned(lines in prop::collection::vec("[a-z]{1,30}", 0..15)) {
            let framed = |line: &String| framed(1, &format!("{line}\n"));
            let log: Vec<u8> = lines.iter().flat_map(framed).collect();
            prop_assert_eq!(log_end(&log, false, None), lines);
        }
    }

    /// Takes a log apart into pieces, as the client of Docker does.
    pub(in super::super) fn pieces(log: &[u8], is_terminal: bool) -> Vec<(usize, Vec<u8>)> {
        let (mut pieces, mut rest) = (Vec::new(), log);
        while !is_terminal && let Some((output, text, behind)) = frame(rest) {
            pieces.push((output, text.to_owned()));
            rest = behind;
        }
        pieces.push((0, rest.to_owned()));
        pieces
    }

    /// The first frame, of what it is, and what follows it. The last one may be cut.
    fn frame(bytes: &[u8]) -> Option<(usize, &[u8], &[u8])> {
        let (header, rest) = bytes.split_at_checked(8)?;
        let [output @ 0..=2, 0, 0, 0, length @ ..] = header else { return None };
        let length = u32::from_be_bytes(length.try_into().ok()?);
        let length = usize::try_from(length).ok()?.min(rest.len());
        let (text, behind) = rest.split_at(length);
        Some((usize::from(*output), text, behind))
    }
}
