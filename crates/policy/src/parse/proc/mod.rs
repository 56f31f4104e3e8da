//! Tolerant parsers of `/proc` and `/sys` memory files.
//!
//! They take the bytes as read, allocate nothing once warm, and distinguish three cases: a field
//! that is not there is [`Unsupported`](crate::model::Reading::Unsupported), one that is there but
//! makes no sense is [`Failed`](crate::model::Reading::Failed), and a file in which nothing is
//! known is an error. A number right at the end of a file that does not end with a newline may have
//! been cut off, and counts as making no sense.

pub mod buddyinfo;
pub mod derived;
pub mod maps;
pub mod meminfo;
pub mod node;
pub mod pagemap;
pub mod pressure;
pub mod sockstat;
mod text;
pub mod vmstat;
pub mod zoneinfo;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

pub use text::{colon_number, single_number};

/// Why nothing of a file could be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProcFileError {
    /// It has no bytes.
    #[error("it is empty")]
    Empty,
    /// No line of it is what the kernel writes there.
    #[error("nothing in it is what the kernel writes there")]
    Unrecognized,
    /// It lists more than this program keeps.
    #[error("it lists more zones than can be kept")]
    TooMany,
}
