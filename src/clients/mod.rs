//! Thin clients of outside systems, all of which may hang, vanish or lie: each call has a deadline,
//! and no answer is longer than was asked for.

pub mod docker;
