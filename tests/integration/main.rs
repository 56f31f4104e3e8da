//! The one integration binary: the program from outside.

mod history;
mod journal;
