//! Types of operands and arguments, worded as Prometheus does.

use super::ExprError;
use super::functions::{Function, Signature};
use super::syntax::{Aggregate, Binary, Kind, Node, ValueType};
use super::vocabulary::usage;

/// Checks the operands of one node; those of its parts have been checked before.
pub(super) fn node(node: &Node) -> Result<(), ExprError> {
    match &node.kind {
        Kind::Unary { operand, .. } => unary(operand),
        Kind::Binary(inner) => binary(node, inner),
        Kind::Aggregate(inner) => aggregate(inner),
        Kind::Call { function, arguments, .. } => call(node, function.signature(), arguments),
        Kind::Number(_)
        | Kind::Text(_)
        | Kind::Selector(_)
        | Kind::Range { .. }
        | Kind::Parentheses(_) => Ok(()),
    }
}

/// Checks that a whole expression is a number or a vector.
pub(super) fn result(node: &Node) -> Result<(), ExprError> {
    let found = node.value_type();
    let message = format!(
        "invalid expression type \"{}\", must be scalar or instant vector",
        found.documented()
    );
    let error = ExprError::new(node.span.clone(), message);
    match found {
        ValueType::Scalar | ValueType::Vector => Ok(()),
        ValueType::Text => Err(error.with_hint("a metric's name is written without quotes")),
        ValueType::Range => Err(error.with_hint("take a function over the range, such as rate(…)")),
    }
}

fn unary(operand: &Node) -> Result<(), ExprError> {
    match operand.value_type() {
        ValueType::Scalar | ValueType::Vector => Ok(()),
        found => Err(ExprError::new(
            operand.span.clone(),
            format!(
                "unary expression only allowed on expressions of type scalar or instant vector, \
                 got \"{}\"",
                found.documented()
            ),
        )),
    }
}

fn binary(node: &Node, binary: &Binary) -> Result<(), ExprError> {
    let types = [binary.left.value_type(), binary.right.value_type()];
    for (side, found) in [&binary.left, &binary.right].into_iter().zip(types) {
        if !matches!(found, ValueType::Scalar | ValueType::Vector) {
            let message = "binary expression must contain only scalar and instant vector types";
            return Err(ExprError::new(side.span.clone(), message).with_hint(match found {
                ValueType::Range => "take a function over the range, such as rate(…)",
                _ => "strings are only allowed in matchers and arguments",
            }));
        }
    }
    let symbol = binary.op.symbol();
    if binary.op.is_set() && types.contains(&ValueType::Scalar) {
        let message = format!("set operator \"{symbol}\" not allowed in binary scalar expression");
        return Err(ExprError::new(node.span.clone(), message)
            .with_hint("vector(…) makes a vector of a number"));
    }
    // Prometheus takes `on ()` there, since it names no label.
    if !binary.matching.labels.is_empty() && types != [ValueType::Vector; 2] {
        let message = "vector matching only allowed between instant vectors";
        return Err(ExprError::new(node.span.clone(), message));
    }
    if binary.op.is_comparison() && !binary.returns_bool && types == [ValueType::Scalar; 2] {
        let message = "comparisons between scalars must use BOOL modifier".to_owned();
        return Err(
            ExprError::new(node.span.clone(), message).with_hint(format!("write {symbol} bool"))
        );
    }
    Ok(())
}

fn aggregate(aggregate: &Aggregate) -> Result<(), ExprError> {
    expect_type(&aggregate.operand, ValueType::Vector, "aggregation expression")?;
    match &aggregate.parameter {
        Some(parameter) => expect_type(parameter, ValueType::Scalar, "aggregation parameter"),
        None => Ok(()),
    }
}

fn call(node: &Node, signature: &Signature, arguments: &[Node]) -> Result<(), ExprError> {
    let name = signature.name;
    let (least, most, found) = (signature.at_least, signature.arguments.len(), arguments.len());
    let bound = match (least == most, signature.repeats_last) {
        (true, _) if found != most => format!("expected {most}"),
        (false, _) if found < least => format!("expected at least {least}"),
        (false, false) if found > most => format!("expected at most {most}"),
        _ => return argument_types(signature, arguments),
    };
    let message = format!("{bound} argument(s) in call to \"{name}\", got {found}");
    Err(ExprError::new(node.span.clone(), message).with_hint(format!("write {}", usage(signature))))
}

fn argument_types(signature: &Signature, arguments: &[Node]) -> Result<(), ExprError> {
    let context = format!("call to function \"{}\"", signature.name);
    let last = signature.arguments.last();
    for (position, argument) in arguments.iter().enumerate() {
        if let Some(expected) = signature.arguments.get(position).or(last) {
            expect_type(argument, *expected, &context)?;
        }
    }
    match signature.function {
        Function::LabelReplace | Function::LabelJoin => target_label(arguments),
        _ => Ok(()),
    }
}

/// A label may have any name but an empty one.
fn target_label(arguments: &[Node]) -> Result<(), ExprError> {
    match text(arguments, 1) {
        Some(("", node)) => {
            let message = "invalid destination label name: \"\"";
            Err(ExprError::new(node.span.clone(), message))
        }
        _ => Ok(()),
    }
}

/// The string argument at a position.
pub(super) fn text(arguments: &[Node], position: usize) -> Option<(&str, &Node)> {
    let node = arguments.get(position)?;
    match &node.bare().kind {
        Kind::Text(text) => Some((text, node)),
        _ => None,
    }
}

/// Checks the type of a value in its context.
fn expect_type(node: &Node, expected: ValueType, context: &str) -> Result<(), ExprError> {
    let found = node.value_type();
    if found == expected {
        return Ok(());
    }
    let message =
        format!("expected type {} in {context}, got {}", expected.documented(), found.documented());
    let error = ExprError::new(node.span.clone(), message);
    Err(match (expected, found) {
        (ValueType::Range, ValueType::Vector) => match node.bare().kind {
            Kind::Selector(_) => error.with_hint("add a range such as [1m]"),
            _ => error.with_hint("a range such as [1m] follows a metric directly"),
        },
        (ValueType::Vector, ValueType::Range) => {
            error.with_hint("leave the range out, or take a function over it such as rate(…)")
        }
        (ValueType::Vector, ValueType::Scalar) => error.with_hint("vector(…) makes a vector of it"),
        (ValueType::Scalar, ValueType::Vector) => {
            error.with_hint("scalar(…) takes the value of a single series")
        }
        _ => error,
    })
}
