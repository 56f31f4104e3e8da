//! Thin clients of those who run engines: they may hang, vanish or lie, so that each call has a
//! deadline, and no answer is longer than was asked for.

pub mod docker;
