//! Headers of HTTP requests as people write them down: a file of lines, or the list that
//! OpenTelemetry's variables hold. Errors name the line or entry, never its content.

use percent_encoding::percent_decode_str;

/// Longest text that is read.
pub const MOST_TEXT_BYTES: usize = 64 << 10;

/// Most headers of a text.
const MOST_HEADERS: usize = 32;

/// Names and values.
type Headers = Vec<(String, String)>;

/// Reads `name: value`, one a line; empty lines and those that begin with `#` mean nothing.
///
/// # Errors
/// Which line is none, and how one is written.
pub fn header_lines(text: &str) -> Result<Headers, String> {
    within(text)?;
    let lines = text.lines().enumerate().map(|(number, line)| (number + 1, line.trim()));
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let header = |(number, line): (usize, &str)| {
        let header = line.split_once(':').and_then(|(name, value)| header(name, value.trim()));
        header.ok_or_else(|| format!("line {number} is no header; write it as name: value"))
    };
    few(lines.map(header).collect::<Result<_, _>>()?)
}

/// Reads `name=value,name=value`, values percent-encoded where they must be.
///
/// # Errors
/// Which entry is none, and how one is written.
pub fn header_pairs(text: &str) -> Result<Headers, String> {
    within(text)?;
    let pairs = text.split(',').enumerate().filter(|(_, pair)| !pair.trim().is_empty());
    let header = |(index, pair): (usize, &str)| {
        let header = pair.split_once('=').and_then(|(name, value)| {
            let value = percent_decode_str(value.trim()).decode_utf8().ok()?;
            header(name, &value)
        });
        header.ok_or_else(|| format!("entry {} is no header; write name=value", index + 1))
    };
    few(pairs.map(header).collect::<Result<_, _>>()?)
}

fn within(text: &str) -> Result<(), String> {
    match text.len() {
        ..=MOST_TEXT_BYTES => Ok(()),
        _ => Err(format!("it is longer than {} KiB", MOST_TEXT_BYTES >> 10)),
    }
}

fn few(headers: Headers) -> Result<Headers, String> {
    match headers.len() {
        ..=MOST_HEADERS => Ok(headers),
        _ => Err(format!("more than {MOST_HEADERS} headers")),
    }
}

/// A name is a token (RFC 9110), a value has nothing that would end its line.
fn header(name: &str, value: &str) -> Option<(String, String)> {
    let name = name.trim();
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let is_name = !name.is_empty() && name.bytes().all(is_token);
    let is_value = !value.is_empty() && value.trim() == value;
    let is_value = is_value && value.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    (is_name && is_value).then(|| (name.to_ascii_lowercase(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pair(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn headers_are_lines_or_pairs() {
        let lines = header_lines("# for the collector\n\nAuthorization: Bearer a:b=\r\nx-id:7\n");
        let expected = vec![pair("authorization", "Bearer a:b="), pair("x-id", "7")];
        assert_eq!(lines.unwrap(), expected);
        let pairs = header_pairs("Authorization=Bearer%20a:b%3D, x-id = 7,");
        assert_eq!(pairs.unwrap(), expected);
        assert!(header_lines("").unwrap().is_empty() && header_pairs(" ").unwrap().is_empty());
    }

    #[test]
    fn wrong_headers_are_reported_by_position_and_never_shown() {
        for text in ["\nsecret", "\na b: secret", "\nx:", "\nx: secret\u{1}", "\n: secret"] {
            let error = header_lines(text).unwrap_err();
            assert_eq!(error, "line 2 is no header; write it as name: value", "{text:?}");
        }
        for text in ["a=b,secret", "a=b,=secret", "a=b,x=%0d%0asecret", "a=b,x=%ff"] {
            let error = header_pairs(text).unwrap_err();
            assert_eq!(error, "entry 2 is no header; write name=value", "{text:?}");
        }
        assert!(header_lines(&"a: b\n".repeat(33)).unwrap_err().contains("more than 32"));
        assert!(header_lines(&"a".repeat(MOST_TEXT_BYTES + 1)).unwrap_err().contains("64 KiB"));
    }

    proptest! {
        #[test]
        fn accepted_headers_can_be_sent(text in "[ -~\n\r\tä%=:,]{0,64}") {
            for headers in [header_lines(&text), header_pairs(&text)].into_iter().flatten() {
                for (name, value) in headers {
                    prop_assert!(header(&name, &value) == Some((name, value)));
                }
            }
        }
    }
}
