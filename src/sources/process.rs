//! The process source.
