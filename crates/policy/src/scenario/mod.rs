//! Rule tests: declared series in, expected alerts, samples and decisions compared.
//!
//! The format is that of `promtool test rules`, with `remedy_test`, `mode`, `outcomes` and
//! `guard_rails` added.
//! Time is virtual and passes through [`Policy::step`], as it does in the daemon.
//!
//! To add a kind of check: its keys and reader in `file`, the time of its check in `play`, the
//! text of its failure in `compare`.
//!
//! [`Policy::step`]: crate::policy::Policy::step

mod agree;
mod compare;
mod file;
mod guard;
mod notation;
mod play;
mod remedy;
mod report;
#[cfg(test)]
mod tests;
mod world;

pub use agree::{Remark, agree};
pub use file::{TestCase, TestFile, parse_tests};
pub use play::play;
pub use report::{Check, ComparisonRow, Failure, TestReport};
