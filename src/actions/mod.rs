//! One file per thing done.
