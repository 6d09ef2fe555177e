//! One run.

use crate::report::Report;
use crate::scenario::Scenario;
use crate::world::World;

/// Lets a scenario happen. The same scenario and seed give the same report.
#[must_use]
pub fn run(scenario: &Scenario, seed: u64) -> Report {
    World::new(scenario, seed, None).run(seed)
}

/// The same, told line by line as it happens: the same scenario and seed give the same lines.
pub fn run_told(scenario: &Scenario, seed: u64, mut line: impl FnMut(String)) -> Report {
    World::new(scenario, seed, Some(&mut line)).run(seed)
}
