//! What a run leaves in its directory.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use fanfare_load::{Run, results};
use fanfare_trace::Plan;
use serde::Serialize;

use crate::exit::Failure;

/// The plan that was replayed.
const PLAN: &str = "plan.csv";
/// What the run came to, as `-o json` prints it.
const SUMMARY: &str = "summary.json";

/// The directory, made if it is not there, and empty.
pub(crate) fn prepare(path: &Path) -> Result<PathBuf, Failure> {
    let failed = |e: io::Error| Failure::usage(format!("cannot write to {}: {e}", path.display()));
    fs::create_dir_all(path).map_err(failed)?;
    if fs::read_dir(path).map_err(failed)?.next().is_some() {
        return Err(Failure::usage(format!("{} is not empty", path.display()))
            .next("name a new directory with --out, so that no earlier run is overwritten"));
    }
    Ok(path.to_owned())
}

/// Writes a row for each invocation.
pub(crate) fn write_invocations(
    directory: &Path,
    plan: &Plan,
    run: &Run,
    names: &[String],
) -> Result<(), Failure> {
    let minutes = plan.span_us.div_ceil(60_000_000);
    // As InVitro calls it.
    let path = directory.join(format!("experiment_duration_{minutes}.csv"));
    written(&path, |out| results::write(plan, run, names, out))
}

/// Writes the plan and what it came to into the directory.
pub(crate) fn write_summary(directory: &Path, plan: &Plan, report: &impl Serialize) -> Result<(), Failure> {
    write_plan(plan, &directory.join(PLAN))?;
    written(&directory.join(SUMMARY), |out| {
        serde_json::to_writer_pretty(&mut *out, report)?;
        out.write_all(b"\n")
    })
}

/// Writes the plan.
pub(crate) fn write_plan(plan: &Plan, path: &Path) -> Result<(), Failure> {
    written(path, |out| plan.write(out))
}

fn written(path: &Path, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> Result<(), Failure> {
    let attempt = || {
        let mut out = BufWriter::new(File::create(path)?);
        write(&mut out)?;
        out.flush()
    };
    attempt().map_err(|e| Failure::platform(format!("cannot write {}: {e}", path.display())))
}
