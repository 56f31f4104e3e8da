//! Simulated machines under virtual time: whatever happens, what must hold holds.
//!
//! `UMAWARDEN_SIMULATION_HOURS` simulates so many hours with fresh seeds, and 10,000 boots. A run
//! that fails prints how to run it again: `UMAWARDEN_SIMULATION_SEED`, with
//! `UMAWARDEN_SIMULATION_WITHOUT` naming what is not needed to make it fail, separated by commas.

mod alertmanager;
mod broken;
mod chance;
mod checker;
mod disturbance;
mod engine;
mod executor;
mod fleet;
mod journal;
mod kernel_ring;
mod machine;
mod neighbours;
mod orders;
mod process;
mod rails;
mod readings;
mod reboots;
mod recorded;
mod rule_book;
mod runs;
mod settings;
mod takers;
mod world;
