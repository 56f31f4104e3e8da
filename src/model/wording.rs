//! Wording that all share.

/// `1 record`, `2 records`.
pub fn counted(number: u64, one: &str) -> String {
    let many = if number == 1 { "" } else { "s" };
    format!("{number} {one}{many}")
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
