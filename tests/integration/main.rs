//! The one integration binary: the program from outside.

mod config;
mod promql_oracle;
mod rules_check;
