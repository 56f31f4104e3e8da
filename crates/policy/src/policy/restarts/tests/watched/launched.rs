//! Deaths that `umawarden launch` reports.

use super::{bare, end, only, with};
use crate::model::{
    DeathReport, EnginePhase, EngineSeen, Event, ExitStatus, Observation, ProgramEvent,
};

/// The launcher has no phase of a command that ends within a beat.
#[test]
fn a_death_that_a_launcher_reports_is_in_the_phase_that_was_seen_here() {
    let mut dead = with(bare(50));
    let engine = dead.engines.remove(0);
    dead.process_ends = vec![end(&engine, engine.server, ExitStatus::Code { code: 3 })];
    dead.run(3);
    let report = Box::new(DeathReport { phase: None, ..only(&dead) });
    let mut world = with(EngineSeen { is_launched: true, ..bare(50) });
    let (kind, utc) = (ProgramEvent::EngineDied { report }, Some(world.at.utc));
    world.seen.push(Observation::Event(Event { kind: kind.into(), utc, seq: None }));
    world.engines.clear();
    world.run(3);
    assert_eq!(only(&world).phase, Some(EnginePhase::Loading));
    let failures = "uma_engine_failures_total{killer=\"itself\",when=\"before_ready\"}";
    assert_eq!(world.value(failures), Some(1.0));
}
