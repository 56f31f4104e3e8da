//! The one loop, the only reader of the clock.
