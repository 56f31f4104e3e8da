//! Rules inside the binary that a configuration leaves out.

use super::RuleId;
use super::names::named;

/// A rule inside the binary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShippedRule {
    /// Group and alert name.
    pub id: RuleId,
    /// What else it is known as.
    pub part: Option<ShippedPart>,
}

named! {
    /// What only one rule does.
    pub enum ShippedPart {
        /// Stops the engine whose growth takes the memory.
        Brake = "brake",
        /// Evicts model files behind a loading engine.
        LoadGuard = "load guard",
    }
}

/// Which shipped rules are off, for people; `None`: all are loaded.
pub fn off_text(off: &[ShippedRule]) -> Option<String> {
    let number = match off.len() {
        0 => return None,
        1 => format!("the shipped rule {} is off", off[0].id),
        several => format!("{several} shipped rules are off"),
    };
    let parts = off.iter().filter_map(|rule| Some((rule.part?, &rule.id)));
    let parts: Vec<String> =
        parts.map(|(part, id)| format!("the {} ({id})", part.name())).collect();
    Some(match parts.is_empty() {
        true => number,
        false => format!("{number}, among them {}", parts.join(" and ")),
    })
}

/// Their names in a line; of many the groups, each with its number of rules.
pub fn off_names(off: &[ShippedRule]) -> String {
    if off.len() <= MOST_NAMES {
        return off.iter().map(|rule| rule.id.to_string()).collect::<Vec<_>>().join(", ");
    }
    let groups = off.chunk_by(|one, other| one.id.group == other.id.group);
    let groups = groups.map(|rules| format!("{} ({})", rules[0].id.group, rules.len()));
    format!("by group: {}", groups.collect::<Vec<_>>().join(", "))
}

const MOST_NAMES: usize = 8;

/// What to do about it.
pub const ADD_SHIPPED: &str = "write rule_files: [shipped, …] to load them too";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_off_is_counted_and_the_brake_is_named() {
        let rule = |alert: &str, part| ShippedRule {
            id: RuleId { group: "g".into(), alert: alert.into() },
            part,
        };
        assert_eq!(off_text(&[]), None);
        let one = off_text(&[rule("A", None)]).unwrap();
        assert_eq!(one, "the shipped rule g/A is off");
        let all = [
            rule("A", None),
            rule("B", Some(ShippedPart::Brake)),
            rule("C", Some(ShippedPart::LoadGuard)),
        ];
        let text = "3 shipped rules are off, among them the brake (g/B) and the load guard (g/C)";
        assert_eq!(off_text(&all).unwrap(), text);
        assert_eq!(off_names(&all), "g/A, g/B, g/C");
        let many = [&all[..]; 3].concat();
        assert_eq!(off_names(&many), "by group: g (9)");
    }
}
