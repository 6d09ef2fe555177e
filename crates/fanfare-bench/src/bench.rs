//! What every bench has in common.

use std::path::{Path, PathBuf};

use rand::SeedableRng;
use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::SliceRandom;
use tempfile::TempDir;

use crate::affinity::{self, Plan};
use crate::args::Args;
use crate::error::{Context, Result};

/// One run of one bench.
#[derive(Debug)]
pub(crate) struct Bench {
    /// The command that repeats it.
    pub(crate) command: String,
    pub(crate) quick: bool,
    /// Rounds of comparisons.
    pub(crate) rounds: usize,
    pub(crate) pins: Option<Plan>,
    /// On disk; gone with this.
    scratch: TempDir,
    rng: Xoshiro256PlusPlus,
}

impl Bench {
    pub(crate) fn new(args: &Args, command: String, out: &Path) -> Result<Bench> {
        let scratch = tempfile::Builder::new().prefix("scratch-").tempdir_in(out).context(out.display())?;
        // Sandboxes of other users must find their code in it.
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(scratch.path(), mode).context(scratch.path().display())?;
        Ok(Bench {
            command,
            quick: args.quick,
            rounds: if args.quick { 1 } else { args.rounds as usize },
            pins: Plan::of(&affinity::available()?),
            scratch,
            rng: Xoshiro256PlusPlus::seed_from_u64(args.seed),
        })
    }

    /// A directory on disk.
    pub(crate) fn dir(&self) -> &Path {
        self.scratch.path()
    }

    /// `full`, or `quick` in a smoke test.
    pub(crate) fn either<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    /// These in random order: what comes after what must not decide a comparison.
    pub(crate) fn shuffled<T: Copy>(&mut self, items: &[T]) -> Vec<T> {
        let mut items = items.to_vec();
        items.shuffle(&mut self.rng);
        items
    }
}

/// The program of compiled functions, beside this one.
pub(crate) fn function_program() -> Result<PathBuf> {
    Ok(std::env::current_exe().context("find this program")?.with_file_name("fanfare-bench-function"))
}
