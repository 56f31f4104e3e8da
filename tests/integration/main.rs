//! The one integration binary: the program from outside.

mod promql_oracle;
