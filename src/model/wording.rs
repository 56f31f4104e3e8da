//! Wording that all share.

/// `1 record`, `2 records`.
pub fn counted(number: u64, one: &str) -> String {
    let many = if number == 1 { "" } else { "s" };
    format!("{number} {one}{many}")
}

/// What somebody did, and why where they said so.
pub fn because(what: &str, comment: &str) -> String {
    match comment {
        "" => what.to_owned(),
        comment => format!("{what}: {comment}"),
    }
}

/// `512 B`, `1.5 MiB`, `90.0 GiB`.
pub fn bytes_text(bytes: f64) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_not_many() {
        let told = [0, 1, 2].map(|number| counted(number, "event"));
        assert_eq!(told, ["0 events", "1 event", "2 events"]);
    }
}
