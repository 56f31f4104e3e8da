//! What people ordered, for people.

use crate::model::{OperatorCommand, OperatorOrder, RuleSelector};

/// One line on an order: what, why, and who.
pub(super) fn order_text(command: &OperatorCommand) -> String {
    let what = match &command.order {
        OperatorOrder::Silence { id, rules, until } => {
            format!("silence {id} of {} until {until:.0}", selector_text(rules))
        }
        OperatorOrder::EndSilence { id } => format!("silence {id} ended"),
        OperatorOrder::Approve { decision, until } => {
            format!("decision #{decision} approved until {until:.0}")
        }
        OperatorOrder::ResetBreaker { rules } => {
            format!("breaker of {} reset", selector_text(rules))
        }
    };
    let comment = match command.comment.as_str() {
        "" => String::new(),
        comment => format!(": {comment}"),
    };
    format!("{what}, by {}{comment}", command.author)
}

/// What the daemon says of an order that it carried out.
pub(super) fn told_order(data: &serde_json::Value) -> String {
    match serde_json::from_value::<OperatorCommand>(data.clone()) {
        Ok(command) => order_text(&command),
        Err(_) => data.to_string(),
    }
}

/// Which rules, in words.
pub(super) fn selector_text(rules: &RuleSelector) -> String {
    match rules {
        RuleSelector::All => "all rules".to_owned(),
        RuleSelector::Alert(alert) => alert.to_string(),
        RuleSelector::Rule(rule) => rule.to_string(),
    }
}
