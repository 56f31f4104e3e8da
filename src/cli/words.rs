//! Wording that the commands share.

/// `1 record`, `2 records`.
pub(super) fn count(number: u64, one: &str) -> String {
    let many = if number == 1 { "" } else { "s" };
    format!("{number} {one}{many}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_not_many() {
        assert_eq!(
            [0, 1, 2].map(|number| count(number, "event")),
            ["0 events", "1 event", "2 events"]
        );
    }
}
