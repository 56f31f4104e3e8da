//! The result of a test.

use std::ops::Range;
use std::time::Duration;

use crate::model::named;

named! {
    /// The kind of an expectation.
    pub enum Check {
        /// The firing alerts of one name.
        Alert = "alert",
        /// The result of an expression.
        Expr = "expr",
        /// The decisions since the previous check.
        Remedy = "remedy",
        /// Whether the rules could be evaluated.
        Evaluation = "evaluation",
    }
}

/// One expectation that was not met.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// The kind of the expectation.
    pub check: Check,
    /// Range of the expectation in the file.
    pub span: Range<usize>,
    /// Time of the check, since the start of the test.
    pub at: Duration,
    /// The alert, expression or rule.
    pub subject: String,
    /// The error, where there is nothing to compare.
    pub message: Option<String>,
    /// Expected results, a row for each.
    pub expected: Vec<ComparisonRow>,
    /// Actual results, in the same columns.
    pub got: Vec<ComparisonRow>,
}

/// One line of a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComparisonRow {
    /// Texts, by column.
    pub cells: Vec<String>,
    /// Whether the other side has the same row.
    pub matched: bool,
}

/// How one test ended.
#[derive(Clone, Debug, PartialEq)]
pub struct TestReport {
    /// As the file names it; `test 3` for a third one without a name.
    pub name: String,
    /// Range of the test in the file.
    pub span: Range<usize>,
    /// Number of its expectations.
    pub checks: usize,
    /// Unmet expectations, in the order of the file.
    pub failures: Vec<Failure>,
}
