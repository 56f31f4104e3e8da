//! Each rail by itself: pure functions of state and time.

mod budget;
