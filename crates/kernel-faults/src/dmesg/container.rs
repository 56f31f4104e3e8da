//! Lines of a container's log (CRI): `2026-11-21T02:31:07.1Z stdout F text`. A runtime splits long
//! ones: all parts but the last have `P`. Those of a job's log of GitLab:
//! `2026-11-21T02:31:07.123456Z 00O text`.

use std::borrow::Cow;

use super::LONGEST_LINE;

struct LinePart<'a> {
    /// The stamp and the stream, with their spaces.
    head: &'a str,
    is_last: bool,
    text: &'a str,
}

fn part(line: &str) -> Option<LinePart<'_>> {
    let (stamp, rest) = line.split_once(' ')?;
    let is_stamp = stamp.len() >= 19 && stamp.starts_with(|first: char| first.is_ascii_digit());
    let rest = rest.strip_prefix("stdout ").or_else(|| rest.strip_prefix("stderr "))?;
    let (tag, text) = rest.split_at_checked(2)?;
    let head = line.get(..line.len() - rest.len())?;
    let is_last = tag == "F ";
    (is_stamp && (is_last || tag == "P ")).then_some(LinePart { head, is_last, text })
}

/// The text after `stdout F `, or after `00O `: stream and output of a job of GitLab.
pub(super) fn text(rest: &str) -> Option<&str> {
    let of_job = || of_job(rest)?.strip_prefix(' ');
    rest.strip_prefix("stdout F ").or_else(|| rest.strip_prefix("stderr F ")).or_else(of_job)
}

/// The text of a line of a job, `2026-11-21T02:31:07.123456Z 00O+text`, which continues the line
/// before it.
pub(super) fn rest_of_line(line: &str) -> Option<&str> {
    let (stamp, rest) = line.split_once(' ')?;
    let is_stamp = stamp.len() >= 20
        && stamp.ends_with('Z')
        && stamp.starts_with(|first: char| first.is_ascii_digit());
    is_stamp.then(|| of_job(rest)?.strip_prefix('+'))?
}

/// The text after the number of a stream and the letter of its output.
fn of_job(rest: &str) -> Option<&str> {
    let (stream, text) = rest.split_at_checked(3)?;
    let number = stream.strip_suffix(['O', 'E'])?;
    number.bytes().all(|byte| byte.is_ascii_hexdigit()).then_some(text)
}

/// The first parts of a line whose last part has not come.
#[derive(Debug, Default)]
pub(super) struct Parts {
    begun: Option<String>,
}

impl Parts {
    /// Takes a line. Returns one that lost its last part, and the line with its first parts;
    /// neither if the line is only a first part.
    pub(super) fn join<'a>(&mut self, line: &'a str) -> (Option<String>, Option<Cow<'a, str>>) {
        let part = part(line);
        match (self.begun.take(), part) {
            (Some(begun), Some(LinePart { is_last, text, .. })) if begun.len() < LONGEST_LINE => {
                let joined = begun + text;
                if is_last {
                    return (None, Some(Cow::Owned(joined)));
                }
                self.begun = Some(joined);
                (None, None)
            }
            (begun, Some(LinePart { head, is_last: false, text })) => {
                self.begun = Some(format!("{head}F {text}"));
                (begun, None)
            }
            (begun, _) => (begun, Some(Cow::Borrowed(line))),
        }
    }

    /// A line without its last part.
    pub(super) fn finish(&mut self) -> Option<String> {
        self.begun.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_joined_and_none_is_lost() {
        let mut parts = Parts::default();
        let head = "2026-11-21T02:31:07.1Z stdout ";
        let mut join = |line: &str| {
            let (lost, line) = parts.join(line);
            (lost, line.map(Cow::into_owned))
        };
        assert_eq!(join("a"), (None, Some("a".to_owned())));
        assert_eq!(join(&format!("{head}P a")), (None, None));
        assert_eq!(join(&format!("{head}P b")), (None, None));
        assert_eq!(join(&format!("{head}F c")), (None, Some(format!("{head}F abc"))));
        assert_eq!(join(&format!("{head}P d")), (None, None));
        assert_eq!(join("e"), (Some(format!("{head}F d")), Some("e".to_owned())));
        assert_eq!(join(&format!("{head}P f")), (None, None));
        assert_eq!(parts.finish(), Some(format!("{head}F f")));
    }

    #[test]
    fn the_rest_of_a_line_of_a_job_is_marked() {
        let stamp = "2026-11-21T02:31:07.123456Z";
        assert_eq!(rest_of_line(&format!("{stamp} 00O+ b")), Some(" b"));
        assert_eq!(text("00O a"), Some("a"));
        assert_eq!(text("0fE a"), Some("a"));
        for line in ["00O+b", "2026-11-21 00O+b"] {
            assert_eq!(rest_of_line(line), None, "{line}");
        }
        for line in ["00X a", "0gO a", "00Oa"] {
            assert_eq!((text(line), rest_of_line(&format!("{stamp} {line}"))), (None, None));
        }
    }
}
