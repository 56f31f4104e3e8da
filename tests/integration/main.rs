//! The one integration binary: the program from outside.

mod journal;
