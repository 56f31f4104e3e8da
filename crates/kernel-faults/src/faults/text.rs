//! Small pieces of the kernel's print formats that several messages share.

/// Bytes that a `comm` can hold (`TASK_COMM_LEN`, its NUL included).
const COMM_BYTES: usize = 16;

/// A leading decimal number and what follows it.
pub(super) fn number(text: &str) -> Option<(u64, &str)> {
    let end = text.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    Some((text.get(..end)?.parse().ok()?, text.get(end..)?))
}

/// A leading process id and what follows it.
pub(super) fn pid(text: &str) -> Option<(u32, &str)> {
    let (pid, rest) = number(text)?;
    Some((u32::try_from(pid).ok()?, rest))
}

/// A whole text that is a process id.
pub(super) fn whole_pid(text: &str) -> Option<u32> {
    pid(text).filter(|(_, rest)| rest.is_empty()).map(|(pid, _)| pid)
}

/// A leading hexadecimal number after its `0x`, and what follows it.
pub(super) fn hex(text: &str) -> Option<(u64, &str)> {
    let digits = text.strip_prefix("0x")?;
    let end = digits.bytes().position(|byte| !byte.is_ascii_hexdigit()).unwrap_or(digits.len());
    Some((u64::from_str_radix(digits.get(..end)?, 16).ok()?, digits.get(end..)?))
}

/// Whether a text is short enough for a process' name; an escape `\xNN` counts as one byte.
pub(super) fn fits_comm(text: &str) -> bool {
    text.len() <= 4 * COMM_BYTES && raw_len(text) <= COMM_BYTES
}

fn raw_len(text: &str) -> usize {
    let bytes = text.as_bytes();
    let escapes = bytes
        .windows(4)
        .filter(|four| four.starts_with(b"\\x") && four[2..].iter().all(u8::is_ascii_hexdigit))
        .count();
    bytes.len().saturating_sub(3 * escapes)
}

/// `GPU<n> `, which newer drivers put before a message.
pub(super) fn gpu_prefix(text: &str) -> (Option<u32>, &str) {
    let Some((gpu, rest)) = text.strip_prefix("GPU").and_then(pid) else { return (None, text) };
    match rest.strip_prefix(' ') {
        Some(rest) => (Some(gpu), rest),
        None => (None, text),
    }
}

/// A leading C identifier and what follows it.
pub(super) fn identifier(text: &str) -> Option<(&str, &str)> {
    let end = text
        .bytes()
        .position(|byte| !(byte.is_ascii_alphanumeric() || byte == b'_'))
        .unwrap_or(text.len());
    let (name, rest) = text.split_at_checked(end)?;
    (!name.is_empty() && !name.as_bytes()[0].is_ascii_digit()).then_some((name, rest))
}
