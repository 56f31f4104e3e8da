//! The one prefix that a tool puts before each line of a log: a host, a pod, a file, a number.
//!
//! It is read only where a stamp follows in the first stamped line of the log. Later it would be
//! the text of another message.

use super::{header, json, stamp};

/// The form of a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// `123:` and `123-`: grep -n.
    Line,
    /// `   123<tab>`, `    123 `, `  123 │ ` and `123) `: cat -n, nl, less -N, bat, lists.
    Column,
    /// `node17: ` or `node17 -> `: pdsh, clush, mpssh, srun -l, talosctl for several nodes.
    Host,
    /// `mon-1  | ` or `mon-1 |`: Docker Compose, nerdctl.
    Service,
    /// `[pod/kmsg-abc/kmsg] ` or `[node17] `: kubectl logs --prefix, Fabric.
    Bracketed,
    /// `kmsg-abc kmsg ` or `node17 `: so many words, as of stern, knife ssh, oc adm node-logs.
    Words(u8),
    /// `node17<tab>`: GNU parallel --tag.
    Tab,
    /// `[1,0]<stdout>:`: mpirun.
    Rank,
    /// `/var/log/kern.log:`: grep over several files.
    File,
    /// `kern.log:123:`: the same with -n.
    FileAndLine,
    /// `[09:00:00] `: the clock of a terminal or of a console server.
    Clock,
}

const SHAPES: [Shape; 13] = [
    Shape::Line,
    Shape::Column,
    Shape::Host,
    Shape::Service,
    Shape::Clock,
    Shape::Bracketed,
    Shape::Rank,
    Shape::Tab,
    Shape::Words(1),
    Shape::Words(2),
    Shape::Words(3),
    Shape::File,
    Shape::FileAndLine,
];

/// The size limit of a name in a prefix, in bytes.
const LONGEST_NAME: usize = 255;
/// The most digits of a number of a line, or of its time in nanoseconds.
const LONGEST_NUMBER: usize = 19;

/// The shape of the prefix of a line whose stamp follows it.
pub(super) fn find(text: &str) -> Option<Shape> {
    SHAPES.into_iter().find(|shape| {
        split(text, *shape).is_some_and(|(_, rest)| match shape {
            // Words, or digits, may begin any text; the kernel's own stamp may not.
            Shape::Clock => stamp::boot_seconds(rest).is_some(),
            Shape::Words(_) => {
                // stern -t has a time between its words and the line.
                let timed = rest.split_once(' ').and_then(|(_, line)| stamp::boot_seconds(line));
                let is_of_kernel =
                    rest.starts_with('[') || rest.contains(" kernel: ") || timed.is_some();
                is_of_kernel && header::is_stamped(rest)
            }
            _ => is_stamped(rest),
        })
    })
}

/// Whether a text is the line of a log by itself.
pub(super) fn is_stamped(text: &str) -> bool {
    header::is_stamped(text) || json::is_record(text)
}

/// The name in a prefix, empty if it names nothing, and the text after it.
pub(super) fn split(text: &str, shape: Shape) -> Option<(&str, &str)> {
    match shape {
        Shape::Line => Some(("", line_number(text)?)),
        Shape::Column => {
            let (number, rest) = digits(text.trim_start_matches([' ', '\t']))?;
            let rest = rest.strip_prefix([')', '.']).unwrap_or(rest);
            let rest = rest.strip_prefix(['\t', ' '])?.trim_start_matches(' ');
            let rest = rest.strip_prefix(['|', '│']).unwrap_or(rest).trim_start_matches(' ');
            (number.len() <= LONGEST_NUMBER).then_some(("", rest))
        }
        Shape::Host => {
            let text = text.trim_start_matches(' ');
            let arrow = text.split_once(" -> ").filter(|(name, _)| is_name(name));
            let (name, rest) = arrow.or_else(|| text.split_once(": "))?;
            (is_name(name) && name != "kernel").then_some((name, rest))
        }
        Shape::Service => {
            let (name, rest) = text.split_once('|')?;
            let rest = rest.strip_prefix(' ').unwrap_or(rest);
            let name = name.trim_end();
            let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
            is_name(bare.unwrap_or(name)).then_some((name, rest))
        }
        Shape::Bracketed => {
            let (name, rest) = text.strip_prefix('[')?.split_once("] ")?;
            let name = name.strip_prefix("pod/").unwrap_or(name);
            let rest = rest.strip_prefix("out: ").unwrap_or(rest);
            is_name(name).then_some((name, rest))
        }
        Shape::Words(count) => {
            let mut blanks = text.match_indices(' ').map(|(at, _)| at);
            let end = blanks.nth(usize::from(count).checked_sub(1)?)?;
            let (names, rest) = text.split_at_checked(end)?;
            let is_word = |word: &str| is_name(word) && !word.contains([':', '/', '@']);
            names.split(' ').all(is_word).then_some((names, rest.get(1..)?))
        }
        Shape::Tab => text.split_once('\t').filter(|(name, _)| is_name(name)),
        Shape::Rank => {
            let (rank, rest) = text.strip_prefix('[')?.split_once("]<std")?;
            let (_, rest) = rest.split_once(">:")?;
            is_name(&rank.replace(',', "."))
                .then_some((rank, rest.strip_prefix(' ').unwrap_or(rest)))
        }
        Shape::File => {
            let (name, rest) = text.split_once(':')?;
            (is_file(name) && name != "kernel").then_some((name, rest))
        }
        Shape::FileAndLine => {
            let (name, rest) = text.split_once(':')?;
            is_file(name).then_some((name, line_number(rest)?))
        }
        Shape::Clock => {
            let bracketed = text.strip_prefix('[').and_then(|rest| rest.split_once("] "));
            let (clock, rest) = bracketed.or_else(|| text.split_once(' '))?;
            let is_clock = clock.contains(':')
                && clock.len() <= 32
                && clock.bytes().all(|byte| byte.is_ascii_digit() || b":.,-/TZ+ ".contains(&byte));
            is_clock.then_some(("", rest))
        }
    }
}

/// The text after `kern.log-` or `kern.log-122-`: grep prints so the lines around a match.
pub(super) fn beside<'a>(text: &'a str, shape: Shape, file: &str) -> Option<&'a str> {
    let rest = text.strip_prefix(file)?.strip_prefix('-')?;
    match shape {
        Shape::File => Some(rest),
        Shape::FileAndLine => line_number(rest),
        _ => None,
    }
}

fn line_number(text: &str) -> Option<&str> {
    let (number, rest) = digits(text)?;
    (number.len() <= LONGEST_NUMBER).then_some(())?;
    rest.strip_prefix([':', '-'])
}

fn digits(text: &str) -> Option<(&str, &str)> {
    let end = text.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    let (number, rest) = text.split_at_checked(end)?;
    (!number.is_empty()).then_some((number, rest))
}

/// A host, an address, a pod or a service.
fn is_name(text: &str) -> bool {
    (1..=LONGEST_NAME).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-@/:+%".contains(&byte))
}

fn is_file(text: &str) -> bool {
    if text == "(standard input)" {
        return true;
    }
    let odd = [' ', '\t', '[', ']', '(', ')', '{', '}', '<', '>', '"', '\'', '=', ',', ';', '|'];
    (1..=LONGEST_NAME).contains(&text.len()) && !text.contains(odd)
}
