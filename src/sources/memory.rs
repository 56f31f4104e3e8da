//! The memory source.
