//! Checks a tree against the series that this build exports.

use super::matcher::MatchOp;
use super::suggest::did_you_mean;
use super::syntax::{Kind, Node, Selector};
use super::{ExprError, KnownSeries};

/// Finds the first metric or matched label that does not exist.
pub(super) fn node(node: &Node, known: &dyn KnownSeries) -> Result<(), ExprError> {
    match &node.kind {
        Kind::Selector(inner) | Kind::Range { selector: inner, .. } => selector(inner, known),
        _ => node.children().into_iter().try_for_each(|child| self::node(child, known)),
    }
}

fn selector(selector: &Selector, known: &dyn KnownSeries) -> Result<(), ExprError> {
    let name = &*selector.name;
    let Some(labels) = known.labels(name) else {
        let error =
            ExprError::new(selector.name_span.clone(), format!("unknown series \"{name}\""));
        return Err(match did_you_mean(name, known.names()) {
            Some(hint) => error.with_hint(hint),
            None => error.with_hint("rules read the series that this node itself exports"),
        });
    };
    for matcher in &selector.matchers {
        let label = &*matcher.label;
        if labels.contains(&label) {
            continue;
        }
        // A label that never is there equals "", which Prometheus allows to ask for.
        if matcher.op == MatchOp::Equal && matcher.value.is_empty() {
            continue;
        }
        let message = format!("series \"{name}\" has no label \"{label}\"");
        let error = ExprError::new(matcher.span.clone(), message);
        return Err(match did_you_mean(label, labels.iter().copied()) {
            Some(hint) => error.with_hint(hint),
            None if labels.is_empty() => error.with_hint("it has no labels"),
            None => error.with_hint(format!("its labels: {}", labels.join(", "))),
        });
    }
    Ok(())
}
