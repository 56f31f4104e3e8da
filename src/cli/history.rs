//! umawarden history
