//! The whole cluster in virtual time, seed by seed.

use crate::run;

/// Seeds that CI runs: of all scenarios in turn.
const SEEDS: &str = "10000";

/// Passes its arguments on; without any, what CI runs.
pub(crate) fn run_with(args: &[String]) -> Result<(), String> {
    let mut line =
        vec!["run", "--quiet", "--locked", "--package", "fanfare-sim", "--bin", "fanfare-seeds", "--"];
    line.extend(args.iter().map(String::as_str));
    if !args.iter().any(|arg| arg == "--seeds") {
        line.extend(["--seeds", SEEDS]);
    }
    run("cargo", &line)
}
