//! Text into validated settings and rules, every mistake with its place.
