//! Function calls and aggregations.

use std::sync::Arc;

use super::super::ExprError;
use super::super::functions::{FUNCTIONS, Function, REFUSED, UNBUILT};
use super::super::lexer::Token;
use super::super::matcher;
use super::super::suggest::did_you_mean;
use super::super::syntax::{Aggregate, AggregateOp, Kind, Node};
use super::super::typing;
use super::{Parser, is_label_name};

/// Unsupported aggregations of Prometheus, each with an alternative.
pub(crate) const REFUSED_AGGREGATIONS: [(&str, &str); 3] = [
    ("count_values", "count a comparison instead: count(metric == 1)"),
    ("limitk", "use topk"),
    ("limit_ratio", "use topk"),
];

/// Whether `without` was written rather than `by`, and the labels.
type Grouping = (bool, Vec<Arc<str>>);

impl Parser<'_> {
    /// Reads `sum by (label) (expr)` or `sum(expr) by (label)`, if an aggregation follows.
    pub(super) fn aggregate(&mut self, called: bool) -> Result<Option<Node>, ExprError> {
        let span = self.span();
        let written = self.written().to_ascii_lowercase();
        let is_use = called || self.is_grouping_after_next();
        if let Some((name, hint)) = REFUSED_AGGREGATIONS.iter().find(|(name, _)| *name == written)
            && is_use
        {
            let message = format!("{name} is not supported here");
            return Err(ExprError::new(span, message).with_hint(*hint));
        }
        let Some(op) = AggregateOp::ALL.into_iter().find(|op| op.name() == written && is_use)
        else {
            return Ok(None);
        };
        self.advance();
        let mut grouping = self.grouping()?;
        let (parameter, operand) = self.aggregated(op)?;
        if grouping.is_none() {
            grouping = self.grouping()?;
        }
        let (without, grouping) = grouping.unwrap_or_default();
        let aggregate = Aggregate { op, without, grouping, parameter, operand };
        self.node(span.start, Kind::Aggregate(Box::new(aggregate))).map(Some)
    }

    fn is_grouping_after_next(&self) -> bool {
        let Some((Token::Word, span)) = self.tokens.get(self.next + 1) else { return false };
        let word = &self.text[span.clone()];
        word.eq_ignore_ascii_case("by") || word.eq_ignore_ascii_case("without")
    }

    fn grouping(&mut self) -> Result<Option<Grouping>, ExprError> {
        let without = self.at_keyword("without");
        if !without && !self.at_keyword("by") {
            return Ok(None);
        }
        self.advance();
        Ok(Some((without, self.label_list()?)))
    }

    fn aggregated(&mut self, op: AggregateOp) -> Result<(Option<Node>, Node), ExprError> {
        let start = self.span().start;
        let mut arguments = self.arguments()?;
        let expected = 1 + usize::from(op.takes_parameter());
        let found = arguments.len();
        let operand = arguments.pop().filter(|_| found == expected);
        let Some(operand) = operand else {
            let message = match found {
                0 => "no arguments for aggregate expression provided".to_owned(),
                _ => format!(
                    "wrong number of arguments for aggregate expression provided, expected \
                     {expected}, got {found}"
                ),
            };
            let error = ExprError::new(start..self.end(), message);
            return Err(match op.takes_parameter() {
                true => error.with_hint(format!("write {}(number, vector)", op.name())),
                false => error.with_hint("join several vectors with or"),
            });
        };
        Ok((arguments.pop(), operand))
    }

    /// Reads `name(argument, …)`.
    pub(super) fn call(&mut self) -> Result<Node, ExprError> {
        let span = self.span();
        let name = self.written();
        let Some(signature) = Function::named(name) else {
            return Err(unknown_function(name, span));
        };
        self.advance();
        let arguments = self.arguments()?;
        let kind = Kind::Call { function: signature.function, arguments, pattern: None };
        let mut node = self.node(span.start, kind)?;
        if let Kind::Call { function: Function::LabelReplace, arguments, pattern } = &mut node.kind
            && let Some((text, node)) = typing::text(arguments, 4)
        {
            self.count_pattern(node.span.clone())?;
            *pattern = Some(matcher::compile(text).map_err(|reason| {
                let message = format!("invalid regular expression in label_replace(): {reason}");
                ExprError::new(node.span.clone(), message)
            })?);
        }
        Ok(node)
    }

    fn arguments(&mut self) -> Result<Vec<Node>, ExprError> {
        self.expect_sign("(", "before the arguments")?;
        let mut arguments = Vec::new();
        if self.take_sign(")") {
            return Ok(arguments);
        }
        loop {
            arguments.push(self.expression(0)?);
            let comma = self.span();
            if !self.take_sign(",") {
                break;
            }
            if self.at_sign(")") {
                let message = "trailing commas not allowed in function call args";
                return Err(ExprError::new(comma, message));
            }
        }
        self.expect_sign(")", "or \",\" after an argument")?;
        Ok(arguments)
    }

    /// Reads `(label, …)`.
    pub(super) fn label_list(&mut self) -> Result<Vec<Arc<str>>, ExprError> {
        if self.peek() == &Token::Word {
            let hint = format!("write ({})", self.written());
            return Err(self.unexpected("\"(\" before the labels").with_hint(hint));
        }
        self.expect_sign("(", "before the labels")?;
        let mut labels: Vec<Arc<str>> = Vec::new();
        while !self.take_sign(")") {
            let label: Arc<str> = match self.peek().clone() {
                Token::Word if is_label_name(self.written()) => self.written().into(),
                Token::Text(text) if !text.is_empty() => text.into(),
                _ => return Err(self.unexpected("a label name or \")\"")),
            };
            self.advance();
            labels.push(label);
            if !self.at_sign(")") {
                self.expect_sign(",", "or \")\" after a label")?;
            }
        }
        Ok(labels)
    }
}

fn unknown_function(name: &str, span: std::ops::Range<usize>) -> ExprError {
    if let Some((name, hint)) = REFUSED.iter().find(|(refused, _)| *refused == name) {
        let message = format!("function {name} is not supported here");
        return ExprError::new(span, message).with_hint(*hint);
    }
    if UNBUILT.contains(&name) {
        let message = format!("function {name} is not supported here");
        return ExprError::new(span, message);
    }
    let error = ExprError::new(span, format!("unknown function with name \"{name}\""));
    let names = FUNCTIONS.iter().map(|signature| signature.name);
    let names = names.chain(AggregateOp::ALL.map(AggregateOp::name));
    match did_you_mean(name, names) {
        Some(hint) => error.with_hint(hint),
        None => error,
    }
}
