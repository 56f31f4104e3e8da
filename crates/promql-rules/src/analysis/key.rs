//! Expressions in a canonical form: equal forms have equal results.

use std::fmt::Write as _;

use super::super::literal::write_duration;
use super::super::syntax::{Aggregate, Binary, Kind, Matching, Node, Selector};
use super::bounds::constant;

/// The expression without needless parentheses, matchers and labels in order.
pub(super) fn key(node: &Node) -> String {
    let mut out = String::new();
    write(node, &mut out);
    out
}

fn write(node: &Node, out: &mut String) {
    if let Some(number) = constant(node) {
        push(out, format_args!("{number:?}"));
        return;
    }
    match &node.kind {
        Kind::Number(number) => push(out, format_args!("{number:?}")),
        Kind::Text(text) => push(out, format_args!("{text:?}")),
        Kind::Selector(inner) => selector(inner, None, out),
        Kind::Range { selector: inner, range_ms } => selector(inner, Some(*range_ms), out),
        Kind::Parentheses(inner) => write(inner, out),
        Kind::Unary { negative: false, operand } => write(operand, out),
        Kind::Unary { operand, .. } => {
            out.push_str("(-");
            write(operand, out);
            out.push(')');
        }
        Kind::Binary(inner) => binary(inner, out),
        Kind::Aggregate(inner) => aggregate(inner, out),
        Kind::Call { function, arguments, .. } => {
            out.push_str(function.signature().name);
            list(arguments.iter(), out);
        }
    }
}

fn push(out: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = out.write_fmt(text);
}

fn list<'n>(nodes: impl Iterator<Item = &'n Node>, out: &mut String) {
    out.push('(');
    for (position, node) in nodes.enumerate() {
        if position > 0 {
            out.push_str(", ");
        }
        write(node, out);
    }
    out.push(')');
}

fn selector(selector: &Selector, range_ms: Option<i64>, out: &mut String) {
    out.push_str(&selector.name);
    let mut matchers: Vec<String> = selector
        .matchers
        .iter()
        .map(|matcher| format!("{}{}{:?}", matcher.label, matcher.op.symbol(), matcher.value))
        .collect();
    matchers.sort();
    matchers.dedup();
    if !matchers.is_empty() {
        push(out, format_args!("{{{}}}", matchers.join(",")));
    }
    for (before, after, duration_ms) in [("[", "]", range_ms), (" offset ", "", offset(selector))] {
        if let Some(duration_ms) = duration_ms {
            out.push_str(before);
            // Writing to a string cannot fail.
            let _ = write_duration(out, duration_ms);
            out.push_str(after);
        }
    }
}

fn offset(selector: &Selector) -> Option<i64> {
    Some(selector.offset_ms).filter(|offset_ms| *offset_ms != 0)
}

fn binary(binary: &Binary, out: &mut String) {
    out.push('(');
    write(&binary.left, out);
    push(out, format_args!(" {} ", binary.op.symbol()));
    if binary.returns_bool {
        out.push_str("bool ");
    }
    matching(&binary.matching, out);
    write(&binary.right, out);
    out.push(')');
}

fn labels(labels: &[std::sync::Arc<str>], out: &mut String) {
    let mut labels: Vec<&str> = labels.iter().map(|label| &**label).collect();
    labels.sort_unstable();
    labels.dedup();
    push(out, format_args!("({}) ", labels.join(", ")));
}

fn matching(matching: &Matching, out: &mut String) {
    if !matching.written {
        return;
    }
    out.push_str(if matching.on { "on " } else { "ignoring " });
    labels(&matching.labels, out);
    if let Some(group) = &matching.group {
        out.push_str(if group.left { "group_left " } else { "group_right " });
        labels(&group.include, out);
    }
}

fn aggregate(aggregate: &Aggregate, out: &mut String) {
    out.push_str(aggregate.op.name());
    if aggregate.without || !aggregate.grouping.is_empty() {
        out.push_str(if aggregate.without { " without " } else { " by " });
        labels(&aggregate.grouping, out);
    }
    list(aggregate.parameter.iter().chain([&aggregate.operand]), out);
}
