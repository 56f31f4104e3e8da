//! Tolerant parsers of `/proc` and `/sys` memory files.
