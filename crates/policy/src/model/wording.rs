//! Texts for people that all modules share.

use std::str::FromStr as _;

use bytesize::ByteSize;

/// `1 record`, `2 records`.
pub fn counted(number: u64, one: &str) -> String {
    let many = if number == 1 { "" } else { "s" };
    format!("{number} {one}{many}")
}

/// An act and its reason, where there is one.
pub fn because(what: &str, comment: &str) -> String {
    match comment {
        "" => what.to_owned(),
        comment => format!("{what}: {comment}"),
    }
}

/// `512 B`, `1.5 MiB`, `90.0 GiB`.
#[expect(clippy::cast_precision_loss, reason = "one digit after the point is shown")]
pub fn bytes_text(bytes: u64) -> String {
    measured_bytes_text(bytes as f64)
}

/// As [`bytes_text`], of a measured value: it may be negative or not finite.
pub fn measured_bytes_text(bytes: f64) -> String {
    let mut value = bytes;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if value.abs() < 1024.0 || !value.is_finite() {
            let digits = usize::from(unit != "B");
            return format!("{value:.digits$} {unit}");
        }
        value /= 1024.0;
    }
    format!("{value:.1} TiB")
}

/// A size in bytes: `256MiB`, `1GiB`, `500MB`.
pub fn size_bytes(text: &str) -> Result<u64, String> {
    match ByteSize::from_str(text) {
        Ok(ByteSize(bytes)) if bytes < u64::MAX => Ok(bytes),
        Ok(_) => Err(format!("{text} is too large a size")),
        Err(_) => Err(format!("\"{text}\" is not a size; write it like 64MiB or 1GiB")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_one_are_singular() {
        let texts = [0, 1, 2].map(|number| counted(number, "event"));
        assert_eq!(texts, ["0 events", "1 event", "2 events"]);
    }
}
