//! Events, decisions and outcomes on disk.
