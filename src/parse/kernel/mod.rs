//! Kernel-log lines into events.
