//! Selectors: names, matchers, ranges, offsets.

use std::ops::Range;
use std::sync::Arc;

use super::super::ExprError;
use super::super::lexer::Token;
use super::super::literal::LONGEST_MS;
use super::super::matcher::{MatchOp, Matcher, NAME_LABEL};
use super::super::syntax::{Kind, Node, Selector};
use super::Parser;

/// A metric's name, and its place in the text.
type MetricName = (Arc<str>, Range<usize>);

impl Parser<'_> {
    /// Reads `name{…}[range] offset …`.
    pub(super) fn selector(&mut self) -> Result<Node, ExprError> {
        let start = self.span().start;
        let (name, matchers) = self.name_and_matchers()?;
        let Some((name, name_span)) = name else {
            let message = match matchers.iter().all(|matcher| matcher.passes("")) {
                true => "vector selector must contain at least one non-empty matcher",
                false => "a selector without a metric's name is not supported here",
            };
            return Err(ExprError::new(start..self.end(), message)
                .with_hint("name the metric: uma_memory_free_bytes{…}"));
        };
        let mut selector = Selector { name, name_span, matchers, offset_ms: 0 };
        let mut range_ms = None;
        if self.at_sign("[") {
            range_ms = Some(self.range()?);
        }
        if self.take_keyword("offset") {
            selector.offset_ms = self.offset()?;
            if self.at_sign("[") && !self.is_subquery() {
                let message = "no offset modifiers allowed before range";
                return Err(ExprError::new(self.span(), message)
                    .with_hint("write the range first: metric[5m] offset 1m"));
            }
        }
        match range_ms {
            Some(range_ms) => self.node(start, Kind::Range { selector, range_ms }),
            None => self.node(start, Kind::Selector(selector)),
        }
    }

    /// Reads `name{…}` up to the end of the text.
    pub(super) fn lone_selector(&mut self) -> Result<(Option<Arc<str>>, Vec<Matcher>), ExprError> {
        let start = self.span().start;
        let (name, matchers) = self.name_and_matchers()?;
        if self.peek() != &Token::End {
            return Err(self.unexpected("a selector alone, such as metric{label=\"value\"}"));
        }
        if name.is_none() && matchers.iter().all(|matcher| matcher.passes("")) {
            let message = "a selector must contain at least one non-empty matcher";
            return Err(ExprError::new(start..self.end(), message)
                .with_hint("{__name__!=\"\"} selects all series"));
        }
        Ok((name.map(|(name, _)| name), matchers))
    }

    /// Reads `name{…}`; the name has its place in the text.
    fn name_and_matchers(&mut self) -> Result<(Option<MetricName>, Vec<Matcher>), ExprError> {
        let mut name = None;
        if self.peek() == &Token::Word {
            name = Some((self.written().into(), self.span()));
            self.advance();
        }
        let mut matchers = Vec::new();
        if self.take_sign("{") {
            self.matchers(&mut name, &mut matchers)?;
        }
        Ok((name, matchers))
    }

    /// Reads up to the closing brace, which may hold the metric's name too.
    fn matchers(
        &mut self,
        name: &mut Option<MetricName>,
        matchers: &mut Vec<Matcher>,
    ) -> Result<(), ExprError> {
        while !self.take_sign("}") {
            let span = self.span();
            let label: Arc<str> = match self.peek().clone() {
                Token::Word if !self.written().contains(':') => self.written().into(),
                Token::Text(text) => text.into(),
                Token::End => return Err(self.unexpected("\"}\"").with_hint("close the brace")),
                _ => return Err(self.unexpected("a label name or \"}\"")),
            };
            let quoted = matches!(self.peek(), Token::Text(_));
            self.advance();
            match self.match_op() {
                Some(op) => self.matcher(&label, op, span, name, matchers)?,
                None if quoted && (self.at_sign(",") || self.at_sign("}")) => {
                    set_name(name, label, span)?;
                }
                None => {
                    return Err(self
                        .unexpected("=, !=, =~ or !~")
                        .with_hint("matchers look like {label=\"value\"}"));
                }
            }
            if !self.at_sign("}") {
                self.expect_sign(",", "or \"}\" after a matcher")?;
            }
        }
        Ok(())
    }

    fn match_op(&self) -> Option<MatchOp> {
        match self.peek() {
            Token::Sign(sign) => MatchOp::of_symbol(sign),
            _ => None,
        }
    }

    fn matcher(
        &mut self,
        label: &str,
        op: MatchOp,
        span: Range<usize>,
        name: &mut Option<(Arc<str>, Range<usize>)>,
        matchers: &mut Vec<Matcher>,
    ) -> Result<(), ExprError> {
        self.advance();
        let value_span = self.span();
        let Token::Text(value) = self.peek().clone() else {
            return Err(self
                .unexpected("a string")
                .with_hint(format!("quote the value: {{{label}{}\"…\"}}", op.symbol())));
        };
        self.advance();
        if label != NAME_LABEL || self.takes_any_name {
            if matches!(op, MatchOp::Matches | MatchOp::NotMatches) {
                self.count_pattern(value_span.clone())?;
            }
            matchers.push(Matcher::new(label, op, &value, span, value_span)?);
            return Ok(());
        }
        if op != MatchOp::Equal || value.is_empty() {
            let message = "matching several metrics by name is not supported here";
            return Err(ExprError::new(span.start..value_span.end, message)
                .with_hint("name one metric, and join several with or"));
        }
        set_name(name, value.into(), value_span)
    }

    /// Whether the brackets ahead hold a colon.
    pub(super) fn is_subquery(&self) -> bool {
        let ahead = &self.tokens[self.next.min(self.tokens.len())..];
        ahead
            .iter()
            .take_while(|(token, _)| token != &Token::Sign("]"))
            .any(|(token, _)| token == &Token::Sign(":"))
    }

    pub(super) fn subquery_refused(&self) -> ExprError {
        ExprError::new(self.span(), "subqueries are not supported here").with_hint(
            "use an ..._over_time function over a metric's range; in a rule, for: asks how long",
        )
    }

    /// Reads `[5m]`.
    fn range(&mut self) -> Result<i64, ExprError> {
        if self.is_subquery() {
            return Err(self.subquery_refused());
        }
        self.advance();
        let span = self.span();
        let ms = self.duration("a duration such as 5m")?;
        if ms <= 0 {
            return Err(ExprError::new(span, "duration must be greater than 0"));
        }
        self.expect_sign("]", "after the duration")?;
        Ok(ms)
    }

    /// Reads the duration after `offset`.
    fn offset(&mut self) -> Result<i64, ExprError> {
        if self.at_sign("-") {
            let message = "a negative offset is not supported here";
            return Err(
                ExprError::new(self.span(), message).with_hint("predict_linear(…) extends a trend")
            );
        }
        self.take_sign("+");
        self.duration("a duration such as 5m after offset")
    }

    /// Reads a duration, or a number of seconds, in milliseconds.
    fn duration(&mut self, expected: &str) -> Result<i64, ExprError> {
        let span = self.span();
        let ms = match self.peek() {
            Token::Duration(ms) => *ms as f64,
            Token::Number(seconds) => seconds * 1000.0,
            _ => return Err(self.unexpected(expected)),
        };
        if !ms.is_finite() || ms.abs() > LONGEST_MS as f64 {
            return Err(ExprError::new(span, "duration out of range"));
        }
        if (ms - ms.round()).abs() > 1e-6 {
            return Err(ExprError::new(span, "a duration is a whole number of milliseconds"));
        }
        self.advance();
        Ok(ms.round() as i64)
    }
}

fn set_name(
    name: &mut Option<(Arc<str>, Range<usize>)>,
    value: Arc<str>,
    span: Range<usize>,
) -> Result<(), ExprError> {
    if let Some((first, _)) = name {
        let message = format!("metric name must not be set twice: \"{first}\" or \"{value}\"");
        return Err(ExprError::new(span, message));
    }
    if value.is_empty() {
        return Err(ExprError::new(span, "the metric's name is empty"));
    }
    *name = Some((value, span));
    Ok(())
}
