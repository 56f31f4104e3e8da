//! Simulated machines under virtual time: every invariant holds whatever happens.
//! `UMAWARDEN_SIMULATION_HOURS` simulates so many hours with new seeds, and 10,000 boots. A failing
//! run prints how to repeat it: `UMAWARDEN_SIMULATION_SEED`, with `UMAWARDEN_SIMULATION_WITHOUT`
//! naming the parts that the failure does not need, separated by commas.

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
