//! Orders as text.

use crate::model::{OperatorCommand, OperatorOrder, RuleSelector, duration_text};

/// One line: the order, its reason and its author, and why nothing came of it.
pub(super) fn order_text(command: &OperatorCommand) -> String {
    let what = match &command.order {
        OperatorOrder::Silence { id, rules, until } => {
            format!("silence {id} of {} until {until:.0}", selector_text(rules))
        }
        OperatorOrder::EndSilence { id } => format!("silence {id} ended"),
        OperatorOrder::Approve { decision, until } => {
            format!("decision #{decision} approved until {until:.0}")
        }
        OperatorOrder::Deny { decision, until } => {
            format!("decision #{decision} denied until {until:.0}")
        }
        OperatorOrder::ResetBreaker { rules } => {
            format!("breaker of {} reset", selector_text(rules))
        }
        OperatorOrder::Reboot { delay, force } => {
            let after = delay.map(|delay| format!(" in {}", duration_text(delay)));
            let force: Vec<&str> = force.iter().map(|force| force.name()).collect();
            let force = match force.is_empty() {
                true => String::new(),
                false => format!(", whatever {} say", force.join(", ")),
            };
            format!("reboot ordered{}{force}", after.unwrap_or_default())
        }
        OperatorOrder::CancelReboot => "reboot called off".to_owned(),
        OperatorOrder::ClearReboots => "reboots that did not help forgiven".to_owned(),
    };
    let comment = match command.comment.as_str() {
        "" => String::new(),
        comment => format!(": {comment}"),
    };
    let refused = command.refused.as_ref().map(|why| format!("; refused: {why}"));
    format!("{what}, by {}{comment}{}", command.author, refused.unwrap_or_default())
}

/// The daemon's response to an order.
pub(super) fn order_result(data: &serde_json::Value) -> String {
    match serde_json::from_value::<OperatorCommand>(data.clone()) {
        Ok(command) => order_text(&command),
        Err(_) => data.to_string(),
    }
}

/// Selected rules in words.
pub(super) fn selector_text(rules: &RuleSelector) -> String {
    match rules {
        RuleSelector::All => "all rules".to_owned(),
        RuleSelector::Alert(alert) => alert.to_string(),
        RuleSelector::Rule(rule) => rule.to_string(),
    }
}
