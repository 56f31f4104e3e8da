//! What came of a test.

use std::ops::Range;
use std::time::Duration;

use serde::Serialize;

/// What a test looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Check {
    /// The alerts of one name that fire.
    Alert,
    /// What an expression yields.
    Expr,
    /// The decisions of a stretch of time.
    Remedy,
    /// The rules could be evaluated.
    Evaluation,
}

impl Check {
    /// The name in JSON and texts.
    pub fn name(self) -> &'static str {
        match self {
            Self::Alert => "alert",
            Self::Expr => "expr",
            Self::Remedy => "remedy",
            Self::Evaluation => "evaluation",
        }
    }
}

/// One expectation that was not met.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// What was looked at.
    pub check: Check,
    /// Where the expectation stands in the file.
    pub span: Range<usize>,
    /// The time that it is about.
    pub at: Duration,
    /// The alert, expression or rule.
    pub subject: String,
    /// What went wrong, where there is nothing to compare.
    pub message: Option<String>,
    /// What was expected, a row of cells for each.
    pub expected: Vec<Row>,
    /// What came, in the same columns.
    pub got: Vec<Row>,
}

/// One line of a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// What to show, in columns.
    pub cells: Vec<String>,
    /// Whether the other side has it too.
    pub matched: bool,
}

/// How one test ended.
#[derive(Clone, Debug, PartialEq)]
pub struct TestReport {
    /// As the file names it; `test 3` for a third one without a name.
    pub name: String,
    /// Where it stands in the file.
    pub span: Range<usize>,
    /// How many expectations it has.
    pub checks: usize,
    /// Those that were not met, in the order of the file.
    pub failures: Vec<Failure>,
}
