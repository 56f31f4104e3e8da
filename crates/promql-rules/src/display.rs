//! A tree as text, which parses to the same tree.

use std::fmt::{Display, Formatter, Result, Write};

use super::literal::write_duration;
use super::matcher::MatchOp;
use super::parser::is_label_name;
use super::syntax::{Aggregate, Binary, Kind, Matching, Node, Selector};

impl Display for Node {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match &self.kind {
            Kind::Number(number) => write_number(f, *number),
            Kind::Text(text) => write_text(f, text),
            Kind::Selector(selector) => {
                write_selector(f, selector)?;
                write_offset(f, selector)
            }
            Kind::Range { selector, range_ms } => {
                write_selector(f, selector)?;
                f.write_char('[')?;
                write_duration(f, *range_ms)?;
                f.write_char(']')?;
                write_offset(f, selector)
            }
            Kind::Unary { negative, operand } => {
                write!(f, "{}{operand}", if *negative { '-' } else { '+' })
            }
            Kind::Binary(binary) => write_binary(f, binary),
            Kind::Aggregate(aggregate) => write_aggregate(f, aggregate),
            Kind::Call { function, arguments, .. } => {
                write!(f, "{}(", function.signature().name)?;
                write_list(f, arguments)?;
                f.write_char(')')
            }
            Kind::Parentheses(inner) => write!(f, "({inner})"),
        }
    }
}

fn write_number(f: &mut Formatter<'_>, number: f64) -> Result {
    match number.abs() {
        f64::INFINITY => f.write_str("Inf"),
        0.0 | 1e-3..1e15 => write!(f, "{number}"),
        _ => write!(f, "{number:?}"),
    }
}

fn write_text(f: &mut Formatter<'_>, text: &str) -> Result {
    f.write_char('"')?;
    for character in text.chars() {
        match character {
            '"' | '\\' => write!(f, "\\{character}")?,
            '\n' => f.write_str("\\n")?,
            _ => f.write_char(character)?,
        }
    }
    f.write_char('"')
}

fn write_selector(f: &mut Formatter<'_>, selector: &Selector) -> Result {
    let is_plain = selector.name.split(':').all(|part| part.is_empty() || is_label_name(part))
        && selector.name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
    let mut separator = "";
    if is_plain {
        f.write_str(&selector.name)?;
        if selector.matchers.is_empty() {
            return Ok(());
        }
        f.write_char('{')?;
    } else {
        f.write_char('{')?;
        write_text(f, &selector.name)?;
        separator = ",";
    }
    for matcher in &selector.matchers {
        f.write_str(separator)?;
        write_label(f, &matcher.label)?;
        f.write_str(MatchOp::symbol(matcher.op))?;
        write_text(f, &matcher.value)?;
        separator = ",";
    }
    f.write_char('}')
}

fn write_label(f: &mut Formatter<'_>, label: &str) -> Result {
    if is_label_name(label) { f.write_str(label) } else { write_text(f, label) }
}

fn write_labels(f: &mut Formatter<'_>, labels: &[std::sync::Arc<str>]) -> Result {
    f.write_char('(')?;
    for (position, label) in labels.iter().enumerate() {
        if position > 0 {
            f.write_str(", ")?;
        }
        write_label(f, label)?;
    }
    f.write_char(')')
}

fn write_offset(f: &mut Formatter<'_>, selector: &Selector) -> Result {
    if selector.offset_ms == 0 {
        return Ok(());
    }
    f.write_str(" offset ")?;
    write_duration(f, selector.offset_ms)
}

fn write_binary(f: &mut Formatter<'_>, binary: &Binary) -> Result {
    let breaks = f.alternate() && binary.op.is_set();
    match breaks {
        true => writeln!(f, "{:#}", binary.left)?,
        false => write!(f, "{} ", binary.left)?,
    }
    write!(f, "{} ", binary.op.symbol())?;
    if binary.returns_bool {
        f.write_str("bool ")?;
    }
    write_matching(f, &binary.matching)?;
    match breaks {
        true => write!(f, "{:#}", binary.right),
        false => write!(f, "{}", binary.right),
    }
}

fn write_matching(f: &mut Formatter<'_>, matching: &Matching) -> Result {
    if !matching.written {
        return Ok(());
    }
    f.write_str(if matching.on { "on " } else { "ignoring " })?;
    write_labels(f, &matching.labels)?;
    f.write_char(' ')?;
    if let Some(group) = &matching.group {
        f.write_str(if group.left { "group_left " } else { "group_right " })?;
        write_labels(f, &group.include)?;
        f.write_char(' ')?;
    }
    Ok(())
}

fn write_aggregate(f: &mut Formatter<'_>, aggregate: &Aggregate) -> Result {
    f.write_str(aggregate.op.name())?;
    if aggregate.without || !aggregate.grouping.is_empty() {
        f.write_str(if aggregate.without { " without " } else { " by " })?;
        write_labels(f, &aggregate.grouping)?;
        f.write_char(' ')?;
    }
    f.write_char('(')?;
    if let Some(parameter) = &aggregate.parameter {
        write!(f, "{parameter}, ")?;
    }
    write!(f, "{})", aggregate.operand)
}

fn write_list(f: &mut Formatter<'_>, nodes: &[Node]) -> Result {
    for (position, node) in nodes.iter().enumerate() {
        if position > 0 {
            f.write_str(", ")?;
        }
        write!(f, "{node}")?;
    }
    Ok(())
}
