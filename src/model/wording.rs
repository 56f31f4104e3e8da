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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_not_many() {
        let told = [0, 1, 2].map(|number| counted(number, "event"));
        assert_eq!(told, ["0 events", "1 event", "2 events"]);
    }
}
