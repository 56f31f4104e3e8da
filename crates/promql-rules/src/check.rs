//! Checks a tree against the series that this build exports.

use std::sync::Arc;

use super::functions::Function;
use super::matcher::{MatchOp, Matcher, NAME_LABEL};
use super::suggest::did_you_mean;
use super::syntax::{Kind, Node, Selector};
use super::{ExprError, KnownSeries, typing};

/// Finds the first metric or matched label that does not exist.
pub(super) fn node(node: &Node, known: &dyn KnownSeries) -> Result<(), ExprError> {
    match &node.kind {
        Kind::Selector(inner) | Kind::Range { selector: inner, .. } => selector(inner, known),
        _ => {
            node.children().into_iter().try_for_each(|child| self::node(child, known))?;
            grouping(node, known)
        }
    }
}

/// Finds grouping or matching labels that no operand has.
fn grouping(node: &Node, known: &dyn KnownSeries) -> Result<(), ExprError> {
    let written: Vec<&Arc<str>> = match &node.kind {
        Kind::Aggregate(aggregate) => aggregate.grouping.iter().collect(),
        Kind::Binary(binary) => {
            let include = binary.matching.group.iter().flat_map(|group| &group.include);
            binary.matching.labels.iter().chain(include).collect()
        }
        _ => return Ok(()),
    };
    if has_other_labels(node, known) {
        return Ok(());
    }
    let mut labels = vec![NAME_LABEL.to_owned()];
    if !written.is_empty() {
        collect_labels(node, known, &mut labels);
    }
    let Some(label) =
        written.into_iter().find(|label| !labels.iter().any(|known| known.as_str() == &***label))
    else {
        return Ok(());
    };
    let error =
        ExprError::new(node.span.clone(), format!("no series here has the label \"{label}\""));
    Err(match did_you_mean(label, labels.iter().skip(1).map(String::as_str)) {
        Some(hint) => error.with_hint(hint),
        None => error.with_hint("group and match by labels that the series have"),
    })
}

/// The labels that elements may have: those of the series, and those that functions make.
fn collect_labels(node: &Node, known: &dyn KnownSeries, labels: &mut Vec<String>) {
    match &node.kind {
        Kind::Selector(selector) | Kind::Range { selector, .. } => {
            let found = known.labels(&selector.name).unwrap_or_default();
            labels.extend(found.into_iter().map(str::to_owned));
        }
        Kind::Call {
            function: Function::LabelReplace | Function::LabelJoin, arguments, ..
        } => {
            labels.extend(typing::text(arguments, 1).map(|(label, _)| label.to_owned()));
        }
        _ => {}
    }
    node.children().into_iter().for_each(|child| collect_labels(child, known, labels));
}

/// Whether an operand has series of other exporters, with labels of their own.
fn has_other_labels(node: &Node, known: &dyn KnownSeries) -> bool {
    match &node.kind {
        Kind::Selector(selector) | Kind::Range { selector, .. } => {
            known.has_other_labels(&selector.name)
        }
        _ => node.children().into_iter().any(|child| has_other_labels(child, known)),
    }
}

fn selector(selector: &Selector, known: &dyn KnownSeries) -> Result<(), ExprError> {
    let name = &*selector.name;
    let Some(labels) = known.labels(name) else {
        let error =
            ExprError::new(selector.name_span.clone(), format!("unknown series \"{name}\""));
        let hint = did_you_mean(name, known.names()).or_else(|| known.hint(name));
        return Err(match hint {
            Some(hint) => error.with_hint(hint),
            None => error,
        });
    };
    for matcher in &selector.matchers {
        let label = &*matcher.label;
        if labels.contains(&label) {
            satisfiable(selector, matcher, known)?;
            continue;
        }
        if known.has_other_labels(name) {
            continue;
        }
        // A label that is never present equals "", which Prometheus allows.
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

/// If all values of a label are known, one of them must match.
fn satisfiable(
    selector: &Selector,
    matcher: &Matcher,
    known: &dyn KnownSeries,
) -> Result<(), ExprError> {
    let (name, label) = (&*selector.name, &*matcher.label);
    let Some(values) = known.values(name, label) else { return Ok(()) };
    let of_label: Vec<_> =
        selector.matchers.iter().filter(|other| *other.label == *label).collect();
    if values.iter().any(|value| of_label.iter().all(|matcher| matcher.passes(value))) {
        return Ok(());
    }
    // Of several that exclude each other, the last is reported.
    let alone = !values.iter().any(|value| matcher.passes(value));
    if !alone && of_label.last().is_none_or(|last| !std::ptr::eq(*last, matcher)) {
        return Ok(());
    }
    let written = format!("{label}{}\"{}\"", matcher.op.symbol(), matcher.value);
    let message = match alone {
        true => format!("no series \"{name}\" has {written}"),
        false => format!("no series \"{name}\" has {written} and the matchers before it"),
    };
    let error = ExprError::new(matcher.value_span.clone(), message);
    Err(error.with_hint(values_hint(label, &matcher.value, values)))
}

/// The most similar value, or all values.
pub(super) fn values_hint(label: &str, written: &str, values: &[&str]) -> String {
    let there_are = || values.iter().copied().filter(|value| !value.is_empty());
    did_you_mean(written, there_are()).unwrap_or_else(|| {
        let values: Vec<&str> = there_are().collect();
        format!("values of {label}: {}", values.join(", "))
    })
}
