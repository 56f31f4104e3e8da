//! The one integration binary: the program from outside.

mod config;
mod rules_check;
