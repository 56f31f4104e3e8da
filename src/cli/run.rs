//! `umawarden run`: the daemon.
