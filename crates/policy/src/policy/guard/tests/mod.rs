//! Each rail by itself: pure functions of state and time.

mod breaker;
mod budget;
mod fleet;
mod maintenance;
mod people;
mod protection;
mod restore;
