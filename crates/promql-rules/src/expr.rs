//! Expressions, their results, and the catalogue of series that they read.

use std::ops::Range;
use std::sync::Arc;

use super::analysis::{Facts, Never, Threshold};
use super::store::{SeriesId, SeriesStore, Window};
use super::syntax::{Kind, Node, ValueType};
use super::{SeriesKey, Wanted, analysis, check, eval, literal, parser, rewrite};

/// A parsed and type-checked expression.
#[derive(Clone, Debug)]
pub struct Expr {
    pub(crate) root: Node,
    patterns: usize,
}

/// A mistake in an expression, with its span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExprError {
    /// Byte range within the expression's text.
    pub span: Range<usize>,
    /// What is wrong, without position and remedy.
    pub message: String,
    /// The remedy, e.g. `did you mean "uma_memory_free_bytes"?`.
    pub hint: Option<String>,
}

impl ExprError {
    pub(crate) fn new(span: Range<usize>, message: impl Into<String>) -> Self {
        Self { span, message: message.into(), hint: None }
    }

    pub(crate) fn with_hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    pub(crate) fn with_message(self, message: &str) -> Self {
        Self { message: message.to_owned(), ..self }
    }
}

impl std::fmt::Display for ExprError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)?;
        match &self.hint {
            Some(hint) => write!(f, " ({hint})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for ExprError {}

/// The instant of an evaluation.
#[derive(Clone, Copy, Debug)]
pub struct EvalTime {
    /// On the store's time line, in milliseconds: windows and lookback count from here.
    pub timeline_ms: i64,
    /// Wall clock, in milliseconds since 1970: what `time()` returns.
    pub utc_ms: i64,
}

/// A label set, sorted by name.
pub type Labels = Arc<[(Arc<str>, Arc<str>)]>;

/// One element of an instant vector.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The metric's name, unless an operation has dropped it.
    pub name: Option<Arc<str>>,
    /// The other labels.
    pub labels: Labels,
    /// The number of the element; may be NaN.
    pub value: f64,
}

/// The value of an expression.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A number.
    Scalar(f64),
    /// An instant vector.
    Vector(Vec<Sample>),
}

/// The result of an evaluation.
#[derive(Clone, Debug, PartialEq)]
pub enum Evaluated {
    /// A known result.
    Known(Value),
    /// It is unknown: these readings are missing, each with the reason, and no other part decides.
    Unknown(Vec<String>),
}

/// The exported series of a build, for checks at load.
pub trait KnownSeries {
    /// The label names of a metric, or `None` if there is no such metric.
    fn labels(&self, name: &str) -> Option<Vec<&str>>;
    /// All metric names, for did-you-mean.
    fn names(&self) -> Vec<&str>;
    /// All values that a label of a metric may have; `None` where that is not known beforehand.
    fn values(&self, _name: &str, _label: &str) -> Option<&[&str]> {
        None
    }
    /// Whether some series of a metric lack that label.
    fn may_lack(&self, _name: &str, _label: &str) -> bool {
        false
    }
    /// Whether series of a metric may have other labels, and lack some of these.
    fn has_other_labels(&self, _name: &str) -> bool {
        false
    }
    /// The least and the greatest value that a metric may have.
    fn bounds(&self, _name: &str) -> Option<(f64, f64)> {
        None
    }
    /// The remedy for an unknown metric without a similar name.
    fn hint(&self, _name: &str) -> Option<String> {
        None
    }
}

impl std::fmt::Display for Expr {
    /// In one line, or with `{:#}` each outer `and`, `or` and `unless` in a line of its own. It
    /// parses to the same expression.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.root.fmt(f)
    }
}

/// Reads a number as PromQL writes it, without a sign.
pub fn number(text: &str) -> Option<f64> {
    literal::number(text)
}

/// Reads a quoted string with Go's escapes.
pub fn unquote(quoted: &str) -> Result<String, String> {
    literal::unquote(quoted).map_err(|(_, message)| message)
}

/// Parses and type-checks. A text beyond the limits on length, nesting and operations is an error.
pub fn parse(text: &str) -> Result<Expr, ExprError> {
    let (root, patterns) = parser::parse(text)?;
    Ok(Expr { root, patterns })
}

/// As [`parse`], but takes a range selector or a string alone as well: [`Expr::samples`] and
/// [`Expr::string`] have their values.
pub fn parse_query(text: &str) -> Result<Expr, ExprError> {
    let (root, patterns) = parser::parse_any(text)?;
    Ok(Expr { root, patterns })
}

impl Expr {
    /// Finds series and label names that this build does not export.
    pub fn check(&self, known: &dyn KnownSeries) -> Result<(), ExprError> {
        check::node(&self.root, known)
    }

    /// Parts that can never have a result.
    pub fn never(&self, known: &dyn KnownSeries) -> Vec<Never> {
        analysis::never(&self.root, known)
    }

    /// Values in matchers that no series has, where other values of the same matcher exist.
    pub fn idle_values(&self, known: &dyn KnownSeries) -> Vec<ExprError> {
        analysis::idle_values(&self.root, known)
    }

    /// The same condition for the series in Prometheus, with the labels of targets, of which these
    /// identify targets; `None` where nothing changes. The error names a part that cannot be
    /// separated by target.
    pub fn by(
        &self,
        labels: &[Arc<str>],
        known: &dyn KnownSeries,
    ) -> Result<Option<Self>, ExprError> {
        let rewritten = rewrite::by(&self.root, labels, known)?;
        Ok(rewritten.map(|root| Self { root, patterns: self.patterns }))
    }

    /// The same with ranges of at least that length; `None` where nothing changes.
    pub fn widened(&self, least_ms: i64) -> Option<Self> {
        let root = rewrite::widened(&self.root, least_ms)?;
        Some(Self { root, patterns: self.patterns })
    }

    /// The shortest range in it.
    pub fn shortest_range_ms(&self) -> Option<i64> {
        let mut shortest = None;
        let mut nodes = vec![&self.root];
        while let Some(node) = nodes.pop() {
            if let Kind::Range { range_ms, .. } = &node.kind {
                shortest = Some(shortest.map_or(*range_ms, |least: i64| least.min(*range_ms)));
            }
            nodes.extend(node.children());
        }
        shortest
    }

    /// What can be proven of this expression together with others.
    pub fn facts(&self, known: &dyn KnownSeries) -> Facts {
        Facts::of(&self.root, known)
    }

    /// The comparison that it is, if it is one of a vector with a number.
    pub fn threshold(&self) -> Option<Threshold> {
        analysis::threshold(&self.root)
    }

    /// The labels that its results may have; `None` where they are unknown.
    pub fn labels(&self, known: &dyn KnownSeries) -> Option<Vec<Arc<str>>> {
        analysis::labels(&self.root, known)
    }

    /// The metrics it reads, in the order of their names, each with how much past it needs, in
    /// milliseconds.
    pub fn reads(&self) -> Vec<(Arc<str>, i64)> {
        let mut reads = Vec::new();
        self.root.collect_reads(&mut reads);
        reads.sort();
        reads.dedup_by(|next, kept| {
            let same = next.0 == kept.0;
            if same {
                kept.1 = kept.1.max(next.1);
            }
            same
        });
        reads
    }

    /// The type of its value.
    pub fn value_type(&self) -> ValueType {
        self.root.value_type()
    }

    /// The string that it is, if it is one alone.
    pub fn string(&self) -> Option<&Arc<str>> {
        match &self.root.bare().kind {
            Kind::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The series that it selects, if it is a range selector alone, each with its samples in the
    /// range. An error says why some are unknown.
    pub fn samples<'s>(
        &self,
        store: &'s SeriesStore,
        at: EvalTime,
    ) -> Result<Vec<(&'s SeriesKey, Window<'s>)>, String> {
        match &self.root.bare().kind {
            Kind::Range { selector, range_ms } => {
                eval::sampled(selector, *range_ms, store, at).map_err(|why| why.join("; "))
            }
            _ => Err("only a range selector alone has samples".to_owned()),
        }
    }

    /// Whether it is a bare selector.
    pub fn is_selector(&self) -> bool {
        matches!(self.root.kind, Kind::Selector(_))
    }

    /// The series that it reads of any node: by name, and by labels with a fixed value that do not
    /// name a node.
    pub fn wanted(&self) -> Vec<Wanted> {
        let mut wanted = Vec::new();
        let mut nodes = vec![&self.root];
        while let Some(node) = nodes.pop() {
            match &node.kind {
                Kind::Selector(selector) | Kind::Range { selector, .. } => {
                    wanted.push(selector.wanted());
                }
                _ => nodes.extend(node.children()),
            }
        }
        wanted
    }

    /// Whether it is a condition: a vector that a comparison may empty, or a number that is the
    /// truth of a comparison.
    pub fn is_condition(&self) -> bool {
        let is_number = self.root.value_type() == ValueType::Scalar;
        let mut nodes = vec![&self.root];
        while let Some(node) = nodes.pop() {
            if node.may_filter() || (is_number && node.compares()) {
                return true;
            }
            nodes.extend(node.children());
        }
        false
    }

    /// How many regular expressions it holds.
    pub fn patterns(&self) -> usize {
        self.patterns
    }

    /// Evaluates it. An error is one of data, such as a many-to-many match.
    pub fn evaluate(&self, store: &SeriesStore, at: EvalTime) -> Result<Evaluated, String> {
        eval::evaluate_root(&self.root, store, at).map(|evaluation| evaluation.evaluated)
    }

    /// Whether it yields any element, or a number that is neither 0 nor NaN; `None` where that is
    /// unknown. It may be known even if the result is not.
    pub fn yields(&self, store: &SeriesStore, at: EvalTime) -> Result<Option<bool>, String> {
        eval::evaluate_root(&self.root, store, at).map(|evaluation| evaluation.yields)
    }

    /// The series of the store that each of its selectors matches.
    pub fn selected(&self, store: &SeriesStore) -> Vec<Vec<SeriesId>> {
        let mut selected = Vec::new();
        let mut nodes = vec![&self.root];
        while let Some(node) = nodes.pop() {
            match &node.kind {
                Kind::Selector(selector) | Kind::Range { selector, .. } => {
                    selected.push(eval::matching_series(selector, store));
                }
                _ => nodes.extend(node.children()),
            }
        }
        selected
    }
}
