use proptest::prelude::*;

use crate::exports::LONGEST;
use crate::exports::order::{
    OrderKind, OrderPeriod, RuleChoice, Unreadable, attribution, reply, silence,
};
use crate::model::RuleSelector;

/// What no order may carry on to a terminal, a page or the journal.
fn is_harmless(text: &str, most_chars: usize) -> bool {
    !text.contains(char::is_control) && text.chars().count() <= most_chars
}

fn names(rules: &RuleChoice) -> Vec<String> {
    match rules {
        RuleChoice::Named(name) => vec![name.clone()],
        RuleChoice::Selected(RuleSelector::All) => Vec::new(),
        RuleChoice::Selected(RuleSelector::Alert(alert)) => vec![alert.to_string()],
        RuleChoice::Selected(RuleSelector::Rule(rule)) => {
            vec![rule.group.to_string(), rule.alert.to_string()]
        }
    }
}

/// What holds of every order that is accepted.
fn check(body: &[u8]) -> Result<(), TestCaseError> {
    let lasts_long_enough = |lasts: OrderPeriod| match lasts {
        OrderPeriod::For(duration) => !duration.is_zero() && duration <= LONGEST,
        OrderPeriod::Until(_) => true,
    };
    match silence(body) {
        Ok((OrderKind::Silence { rules, lasts }, words)) => {
            prop_assert!(names(&rules).iter().all(|name| is_harmless(name, 512)));
            prop_assert!(names(&rules).iter().all(|name| !name.is_empty()));
            prop_assert!(lasts_long_enough(lasts));
            prop_assert!(is_harmless(&words.comment, 1024));
            prop_assert!(words.name.is_none_or(|name| !name.is_empty() && is_harmless(&name, 128)));
        }
        Ok((other, _)) => prop_assert!(false, "{other:?}"),
        Err(Unreadable::Syntax(text) | Unreadable::Content(text)) => {
            prop_assert!(!text.is_empty() && text.len() < 8 * 1024, "{text}");
        }
    }
    if let Ok((Some(lasts), _)) = reply(body) {
        prop_assert!(lasts_long_enough(lasts));
    }
    if let Ok(words) = attribution(body) {
        prop_assert!(is_harmless(&words.comment, 1024));
    }
    Ok(())
}

#[test]
fn the_body_is_optional_if_no_field_is_required() {
    for body in [b"".as_slice(), b" \n", b"{}", b" { } "] {
        assert_eq!(attribution(body), Ok(super::super::order::Attribution::default()));
        assert_eq!(reply(body).unwrap().0, None);
        assert!(matches!(silence(body), Err(Unreadable::Content(_))));
    }
}

proptest! {
    #[test]
    fn any_body_is_a_harmless_order_or_refused(
        body in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..300),
            "[{\\[\":,a-z0-9\\\\ ]{0,300}".prop_map(String::into_bytes),
        ],
    ) {
        check(&body)?;
    }

    #[test]
    fn any_field_value_is_a_harmless_order_or_refused(
        key in "(rule|rules|duration|until|author|comment|decision|x)",
        value in "(\"all\"|null|-1|1e999|\\[\\]|\\{\"alert\": ?\"[^\"\\\\]{0,9}\"\\}|\"[^\"\\\\]{0,40}\")",
        more in "(, ?\"[a-z]{1,9}\": ?\"[0-9a-zA-Z:. -]{0,30}\"){0,4}",
        repeat in 1_usize..40,
    ) {
        let value = value.replacen("\"\"", &format!("\"{}\"", "ü".repeat(repeat * 40)), 1);
        let body = format!("{{\"{key}\": {value}{more}, \"duration\": \"1h\"}}");
        check(body.as_bytes())?;
        let body = format!("{{\"rule\": \"a/b\", \"{key}\": {value}{more}}}");
        check(body.as_bytes())?;
    }
}
