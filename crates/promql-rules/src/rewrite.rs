//! Rewrites an expression for another reader: a Prometheus that scrapes several nodes, or seldom.

use std::sync::Arc;

use super::analysis::shape;
use super::functions::Function;
use super::syntax::{AggregateOp, Binary, BinaryOp, Kind, Node, ValueType};
use super::{ExprError, KnownSeries};

/// The expression for series with further labels of the scraped target, of which the named ones
/// identify targets; `None`: it is the same. Expressions without labels cannot be separated by
/// target.
pub(super) fn by(
    root: &Node,
    labels: &[Arc<str>],
    known: &dyn KnownSeries,
) -> Result<Option<Node>, ExprError> {
    if let Some(node) = first(root, &|node| without_labels(node).is_some()) {
        let what = without_labels(node).unwrap_or_default();
        let message = format!("{what}(…) is one for all nodes together");
        return Err(ExprError::new(node.span.clone(), message));
    }
    if let Some((node, name)) = of_others(root, known) {
        let message = format!("{name} has the labels that its own rules have left");
        return Err(ExprError::new(node.span.clone(), message));
    }
    Ok(changed(root, &mut |node| separate(node, labels, known)))
}

/// The expression with ranges of at least that length; `None`: it is the same.
pub(super) fn widened(root: &Node, least_ms: i64) -> Option<Node> {
    changed(root, &mut |node| match &mut node.kind {
        Kind::Range { range_ms, .. } if *range_ms < least_ms => {
            *range_ms = least_ms;
            true
        }
        _ => false,
    })
}

fn first<'n>(node: &'n Node, wanted: &dyn Fn(&Node) -> bool) -> Option<&'n Node> {
    if wanted(node) {
        return Some(node);
    }
    node.children().into_iter().find_map(|child| first(child, wanted))
}

/// A selector of series of other exporters, and their name.
fn of_others<'n>(root: &'n Node, known: &dyn KnownSeries) -> Option<(&'n Node, &'n str)> {
    let name = |node: &'n Node| match &node.kind {
        Kind::Selector(selector) | Kind::Range { selector, .. } => Some(&*selector.name),
        _ => None,
    };
    let is_of_others = |node: &Node| match &node.kind {
        Kind::Selector(selector) | Kind::Range { selector, .. } => {
            known.has_other_labels(&selector.name)
        }
        _ => false,
    };
    let node = first(root, &is_of_others)?;
    Some((node, name(node)?))
}

fn without_labels(node: &Node) -> Option<&'static str> {
    let Kind::Call { function, .. } = &node.kind else { return None };
    let is_one = matches!(
        function,
        Function::Scalar | Function::Vector | Function::Absent | Function::AbsentOverTime
    );
    is_one.then(|| function.signature().name)
}

/// Makes elements match and aggregate target by target. Inner nodes come later.
fn separate(node: &mut Node, labels: &[Arc<str>], known: &dyn KnownSeries) -> bool {
    let named = match &mut node.kind {
        Kind::Aggregate(aggregate) if !aggregate.without => &mut aggregate.grouping,
        Kind::Binary(binary) => {
            if [&binary.left, &binary.right].map(Node::value_type) != [ValueType::Vector; 2] {
                return false;
            }
            if !(binary.matching.written && binary.matching.on) {
                if keeps_target(&binary.left) == keeps_target(&binary.right) {
                    return false;
                }
                name_matched_labels(binary, known);
            }
            &mut binary.matching.labels
        }
        _ => return false,
    };
    let missing: Vec<Arc<str>> =
        labels.iter().filter(|label| !named.contains(label)).cloned().collect();
    named.extend(missing.iter().cloned());
    !missing.is_empty()
}

/// If one side has lost the other labels of the target, matching by all labels finds nothing: the
/// labels of the series are named instead.
fn name_matched_labels(binary: &mut Binary, known: &dyn KnownSeries) {
    let mut named: Vec<Arc<str>> = Vec::new();
    for side in [&binary.left, &binary.right] {
        let own = shape(side, known).map(|shape| shape.names()).unwrap_or_default();
        named.extend(own);
    }
    named.retain(|label| !binary.matching.labels.contains(label));
    named.sort();
    named.dedup();
    binary.matching.on = true;
    binary.matching.written = true;
    binary.matching.labels = named;
}

/// Whether elements still have every label of their target.
fn keeps_target(node: &Node) -> bool {
    match &node.kind {
        Kind::Number(_) | Kind::Text(_) | Kind::Selector(_) | Kind::Range { .. } => true,
        Kind::Unary { operand, .. } | Kind::Parentheses(operand) => keeps_target(operand),
        Kind::Call { arguments, .. } => arguments.iter().all(keeps_target),
        Kind::Aggregate(aggregate) => {
            let keeps = matches!(aggregate.op, AggregateOp::Topk | AggregateOp::Bottomk)
                || aggregate.without;
            keeps && keeps_target(&aggregate.operand)
        }
        Kind::Binary(binary) => {
            let (left, right) = (keeps_target(&binary.left), keeps_target(&binary.right));
            let vectors = [&binary.left, &binary.right].map(Node::value_type);
            match (&binary.matching.group, binary.op) {
                _ if vectors != [ValueType::Vector; 2] => left && right,
                (_, BinaryOp::And | BinaryOp::Unless) => left,
                (Some(group), _) => {
                    if group.left {
                        left
                    } else {
                        right
                    }
                }
                (None, BinaryOp::Or) => left && right,
                (None, _) => left && right && !(binary.matching.written && binary.matching.on),
            }
        }
    }
}

/// A copy in which each node may be changed; `None`: no node was changed.
fn changed(root: &Node, change: &mut dyn FnMut(&mut Node) -> bool) -> Option<Node> {
    let mut copy = root.clone();
    visit(&mut copy, change).then_some(copy)
}

fn visit(node: &mut Node, change: &mut dyn FnMut(&mut Node) -> bool) -> bool {
    let mut any = change(node);
    let mut below = |node: &mut Node| any |= visit(node, change);
    match &mut node.kind {
        Kind::Number(_) | Kind::Text(_) | Kind::Selector(_) | Kind::Range { .. } => {}
        Kind::Unary { operand, .. } | Kind::Parentheses(operand) => below(operand),
        Kind::Binary(binary) => {
            below(&mut binary.left);
            below(&mut binary.right);
        }
        Kind::Aggregate(aggregate) => {
            aggregate.parameter.iter_mut().for_each(&mut below);
            below(&mut aggregate.operand);
        }
        Kind::Call { arguments, .. } => arguments.iter_mut().for_each(&mut below),
    }
    any
}
