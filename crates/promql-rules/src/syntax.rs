//! The syntax tree of an expression.

use std::ops::Range;
use std::sync::Arc;

use regex::Regex;

use super::functions::Function;
use super::matcher::{MatchOp, Matcher};
use crate::store::LOOKBACK_MS;
use crate::{CLUSTER_LABEL, EXPORTED_NODE_LABEL, NODE_LABEL, Wanted};

/// One node of the tree.
#[derive(Clone, Debug)]
pub(super) struct Node {
    /// Range in the text.
    pub span: Range<usize>,
    /// Depth of the tree below; bounded, since evaluation is recursive.
    pub height: usize,
    /// Its kind, with its operands.
    pub kind: Kind,
}

/// The kinds of nodes.
#[derive(Clone, Debug)]
pub(super) enum Kind {
    /// `1.5`, `5m`.
    Number(f64),
    /// `"text"`.
    Text(Arc<str>),
    /// `metric{label="value"}`.
    Selector(Selector),
    /// `metric[5m]`.
    Range {
        /// The series whose samples are read.
        selector: Selector,
        /// Length of the range.
        range_ms: i64,
    },
    /// `+expr` or `-expr`.
    Unary {
        /// Whether the sign is a minus.
        negative: bool,
        /// The expression after the sign.
        operand: Box<Node>,
    },
    /// `left op right`.
    Binary(Box<Binary>),
    /// `sum by (label) (expr)`.
    Aggregate(Box<Aggregate>),
    /// `rate(metric[5m])`.
    Call {
        /// The function that is called.
        function: Function,
        /// Its arguments, checked.
        arguments: Vec<Node>,
        /// The pattern of `label_replace`.
        pattern: Option<Regex>,
    },
    /// `(expr)`.
    Parentheses(Box<Node>),
}

/// A vector selector; also the inside of a range selector.
#[derive(Clone, Debug)]
pub(super) struct Selector {
    /// Name of the metric.
    pub name: Arc<str>,
    /// Range of the name in the text.
    pub name_span: Range<usize>,
    /// Conditions on labels.
    pub matchers: Vec<Matcher>,
    /// Offset into the past.
    pub offset_ms: i64,
}

impl Selector {
    /// The series that it reads of any node.
    pub(super) fn wanted(&self) -> Wanted {
        let of_nodes = [CLUSTER_LABEL, NODE_LABEL, EXPORTED_NODE_LABEL];
        let is_plain = |matcher: &&Matcher| {
            matcher.op == MatchOp::Equal
                && !matcher.value.is_empty()
                && !of_nodes.contains(&&*matcher.label)
        };
        let plain = self.matchers.iter().filter(is_plain);
        let mut labels: Vec<_> =
            plain.map(|matcher| (Arc::clone(&matcher.label), Arc::clone(&matcher.value))).collect();
        labels.sort();
        labels.dedup();
        Wanted { name: Arc::clone(&self.name), labels }
    }
}

/// A binary operation.
#[derive(Clone, Debug)]
pub(super) struct Binary {
    /// The operator.
    pub op: BinaryOp,
    /// Whether a comparison yields 0 or 1 instead of filtering.
    pub returns_bool: bool,
    /// The vector matching.
    pub matching: Matching,
    /// The left operand.
    pub left: Node,
    /// The right operand.
    pub right: Node,
}

/// Which labels must agree for two elements to match, and on which side there may be many.
#[derive(Clone, Debug, Default)]
pub(super) struct Matching {
    /// `on` rather than `ignoring`.
    pub on: bool,
    /// The labels named there.
    pub labels: Vec<Arc<str>>,
    /// Whether `on` or `ignoring` was written at all.
    pub written: bool,
    /// `group_left` or `group_right`.
    pub group: Option<Group>,
}

/// Many-to-one matching.
#[derive(Clone, Debug)]
pub(super) struct Group {
    /// `group_left`: the many side is the left one.
    pub left: bool,
    /// Labels copied from the one side.
    pub include: Vec<Arc<str>>,
}

impl Group {
    /// Whether a match has labels of the one side.
    pub(super) fn copies(&self) -> bool {
        !self.include.is_empty()
    }
}

/// Binary operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BinaryOp {
    /// `or`
    Or,
    /// `and`
    And,
    /// `unless`
    Unless,
    /// `==`
    Equal,
    /// `!=`
    NotEqual,
    /// `<`
    Less,
    /// `<=`
    LessOrEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterOrEqual,
    /// `+`
    Add,
    /// `-`
    Subtract,
    /// `*`
    Multiply,
    /// `/`
    Divide,
    /// `%`
    Remainder,
    /// `atan2`
    Atan2,
    /// `^`
    Power,
}

impl BinaryOp {
    /// All of them.
    pub(super) const ALL: [Self; 16] = [
        Self::Or,
        Self::And,
        Self::Unless,
        Self::Equal,
        Self::NotEqual,
        Self::Less,
        Self::LessOrEqual,
        Self::Greater,
        Self::GreaterOrEqual,
        Self::Add,
        Self::Subtract,
        Self::Multiply,
        Self::Divide,
        Self::Remainder,
        Self::Atan2,
        Self::Power,
    ];

    /// The operator as written; words in lower case.
    pub(super) fn symbol(self) -> &'static str {
        match self {
            Self::Or => "or",
            Self::And => "and",
            Self::Unless => "unless",
            Self::Equal => "==",
            Self::NotEqual => "!=",
            Self::Less => "<",
            Self::LessOrEqual => "<=",
            Self::Greater => ">",
            Self::GreaterOrEqual => ">=",
            Self::Add => "+",
            Self::Subtract => "-",
            Self::Multiply => "*",
            Self::Divide => "/",
            Self::Remainder => "%",
            Self::Atan2 => "atan2",
            Self::Power => "^",
        }
    }

    /// The precedence; all but `^` are left-associative.
    pub(super) fn precedence(self) -> u8 {
        match self {
            Self::Or => 1,
            Self::And | Self::Unless => 2,
            Self::Add | Self::Subtract => 4,
            Self::Multiply | Self::Divide | Self::Remainder | Self::Atan2 => 5,
            Self::Power => 6,
            _ => 3,
        }
    }

    /// Whether it is a comparison.
    pub(super) fn is_comparison(self) -> bool {
        self.precedence() == 3
    }

    /// `and`, `or`, `unless`.
    pub(super) fn is_set(self) -> bool {
        self.precedence() <= 2
    }
}

/// An aggregation over the elements of a vector.
#[derive(Clone, Debug)]
pub(super) struct Aggregate {
    /// The operator.
    pub op: AggregateOp,
    /// `without` rather than `by`.
    pub without: bool,
    /// The labels named there.
    pub grouping: Vec<Arc<str>>,
    /// The `k` of `topk(k, …)` and the like.
    pub parameter: Option<Node>,
    /// The aggregated expression.
    pub operand: Node,
}

/// Aggregation operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AggregateOp {
    Sum,
    Avg,
    Min,
    Max,
    Count,
    Group,
    Stddev,
    Stdvar,
    Topk,
    Bottomk,
    Quantile,
}

impl AggregateOp {
    /// All of them.
    pub(super) const ALL: [Self; 11] = [
        Self::Sum,
        Self::Avg,
        Self::Min,
        Self::Max,
        Self::Count,
        Self::Group,
        Self::Stddev,
        Self::Stdvar,
        Self::Topk,
        Self::Bottomk,
        Self::Quantile,
    ];

    /// The operator as written.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Avg => "avg",
            Self::Min => "min",
            Self::Max => "max",
            Self::Count => "count",
            Self::Group => "group",
            Self::Stddev => "stddev",
            Self::Stdvar => "stdvar",
            Self::Topk => "topk",
            Self::Bottomk => "bottomk",
            Self::Quantile => "quantile",
        }
    }

    /// Whether a number comes before the vector.
    pub(super) fn takes_parameter(self) -> bool {
        matches!(self, Self::Topk | Self::Bottomk | Self::Quantile)
    }
}

/// The types of PromQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueType {
    /// A number.
    Scalar,
    /// A string literal.
    Text,
    /// One value for each series.
    Vector,
    /// Several values for each series.
    Range,
}

impl ValueType {
    /// The name in errors of Prometheus.
    pub fn documented(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Text => "string",
            Self::Vector => "instant vector",
            Self::Range => "range vector",
        }
    }
}

impl Node {
    pub(super) fn value_type(&self) -> ValueType {
        match &self.kind {
            Kind::Number(_) => ValueType::Scalar,
            Kind::Text(_) => ValueType::Text,
            Kind::Selector(_) | Kind::Aggregate(_) => ValueType::Vector,
            Kind::Range { .. } => ValueType::Range,
            Kind::Unary { operand, .. } | Kind::Parentheses(operand) => operand.value_type(),
            Kind::Binary(binary) => {
                let scalar = ValueType::Scalar;
                let both = [binary.left.value_type(), binary.right.value_type()];
                if both == [scalar; 2] { scalar } else { ValueType::Vector }
            }
            Kind::Call { function, .. } => function.returns(),
        }
    }

    /// The node without its outer parentheses.
    pub(super) fn bare(&self) -> &Self {
        let mut node = self;
        while let Kind::Parentheses(inner) = &node.kind {
            node = inner;
        }
        node
    }

    /// Whether it is a comparison.
    pub(super) fn compares(&self) -> bool {
        matches!(&self.kind, Kind::Binary(binary) if binary.op.is_comparison())
    }

    /// Whether it filters its operands, by value or by presence.
    pub(super) fn may_filter(&self) -> bool {
        match &self.kind {
            Kind::Binary(binary) if binary.op.is_set() => true,
            Kind::Binary(binary) => self.compares() && !binary.returns_bool,
            Kind::Call { function, .. } => {
                matches!(function, Function::Absent | Function::AbsentOverTime)
            }
            _ => false,
        }
    }

    /// Its direct operands.
    pub(super) fn children(&self) -> Vec<&Self> {
        match &self.kind {
            Kind::Number(_) | Kind::Text(_) | Kind::Selector(_) | Kind::Range { .. } => Vec::new(),
            Kind::Unary { operand, .. } | Kind::Parentheses(operand) => vec![operand],
            Kind::Binary(binary) => vec![&binary.left, &binary.right],
            Kind::Aggregate(aggregate) => {
                aggregate.parameter.iter().chain([&aggregate.operand]).collect()
            }
            Kind::Call { arguments, .. } => arguments.iter().collect(),
        }
    }

    /// The metrics that it reads, each with the required past in milliseconds.
    pub(super) fn collect_reads(&self, reads: &mut Vec<(Arc<str>, i64)>) {
        match &self.kind {
            Kind::Selector(selector) if selector.offset_ms > 0 => {
                let reach_ms = selector.offset_ms.saturating_add(LOOKBACK_MS);
                reads.push((selector.name.clone(), reach_ms));
            }
            Kind::Selector(selector) => reads.push((selector.name.clone(), 0)),
            Kind::Range { selector, range_ms } => {
                let reach_ms = range_ms.saturating_add(selector.offset_ms.max(0));
                reads.push((selector.name.clone(), reach_ms));
            }
            _ => self.children().into_iter().for_each(|child| child.collect_reads(reads)),
        }
    }
}
