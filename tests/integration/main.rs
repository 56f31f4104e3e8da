//! The one integration binary: the program from outside.

mod config;
mod history;
mod journal;
mod rules_check;
