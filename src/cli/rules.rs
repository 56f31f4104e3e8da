//! umawarden rules
