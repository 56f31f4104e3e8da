//! What a collector of logs puts before each line: Docker Compose, kubectl, a runtime, the journal.

/// Whether a text before the words of a line is only such a prefix, or nothing.
pub(super) fn is_prefix(text: &str) -> bool {
    let text = text.trim();
    let rest = text.split_once('|').filter(|(name, _)| is_word(name.trim())).map(|(_, rest)| rest);
    let rest = rest.unwrap_or(text).trim_start();
    let pod = rest.strip_prefix("[pod/").and_then(|rest| rest.split_once(']'));
    let rest = pod.filter(|(name, _)| is_word(name)).map_or(rest, |(_, rest)| rest).trim_start();
    let Some(rest) = behind_stamp(rest) else { return rest.is_empty() };
    let rest = rest.strip_prefix("stdout F").or(rest.strip_prefix("stderr F")).unwrap_or(rest);
    // A host and a program, or only the program.
    let mut words = rest.split_whitespace().rev();
    let is_program = words.next().is_none_or(|program| program.ends_with(':'));
    is_program && words.count() <= 1
}

/// The text behind `Nov 21 02:31:07`, `2026-11-21 02:31:07` or `2026-11-21T02:31:07Z`.
fn behind_stamp(text: &str) -> Option<&str> {
    let (first, rest) = text.split_once(' ').unwrap_or((text, ""));
    let is_time = |word: &str| word.starts_with(is_digit) && word.contains(':');
    if is_time(first) {
        return Some(rest.trim_start());
    }
    let is_month =
        first.len() == 3 && first.starts_with(|letter: char| letter.is_ascii_uppercase());
    let is_date = first.starts_with(is_digit) && first.contains('-');
    let rest = match is_month {
        true => rest.trim_start().trim_start_matches(is_digit).trim_start(),
        false if is_date => rest.trim_start(),
        false => return None,
    };
    let (time, rest) = rest.split_once(' ').unwrap_or((rest, ""));
    is_time(time).then_some(rest.trim_start())
}

fn is_digit(letter: char) -> bool {
    letter.is_ascii_digit()
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && !text.contains(char::is_whitespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_has_a_time_or_a_name_and_no_other_words() {
        for text in [
            "",
            "vllm-1  | ",
            "vllm-1 | 2026-11-21T02:31:07.1Z ",
            "[pod/vllm-0/vllm] ",
            "Nov 21 02:31:07 host vllm[12]: ",
            "Nov  1 02:31:07 vllm[12]: ",
            "2026-11-21T02:31:07+0000 host serve.sh: ",
            "2026-11-21T02:31:07.123456789Z stdout F ",
            "2026-11-21 02:31:07 ",
        ] {
            assert!(is_prefix(text), "{text}");
        }
        for text in [
            "not ",
            "a b | ",
            "Nov 21 02:31:07 host vllm[12]: it was ",
            "2026-11-21T02:31:07Z it was: a ",
            "Nov 21 ",
            "[pod/a b] ",
            "INFO: ",
        ] {
            assert!(!is_prefix(text), "{text}");
        }
    }
}
