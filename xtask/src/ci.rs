//! What CI runs, in the order in which it fails fastest.

use std::time::Instant;

use crate::{api_proof, licences, mutants, packages, readme, root, sim, tidy};

type Step = (&'static str, fn() -> Result<(), String>);

const STEPS: &[Step] = &[
    ("packages", packages::install),
    ("format", || crate::run("cargo", &["fmt", "--all", "--check"])),
    ("tidy", || tidy::run(&root())),
    ("licences", || licences::run(&root())),
    ("clippy", || {
        crate::run("cargo", &["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"])
    }),
    ("docs", docs),
    ("test", || crate::run("cargo", &["test", "--workspace", "--locked"])),
    ("sim", || sim::run_with(&[])),
    ("mutants", || mutants::run(&[])),
    ("shims", shims),
    ("release", || crate::run("cargo", &["build", "--release", "--locked", "--package", "fanfare"])),
    ("demo", || crate::run("target/release/fanfare", &["demo"])),
    ("api-proof", || api_proof::run_with(&["--binary".to_owned(), "target/release/fanfare".to_owned()])),
    ("bench", || crate::bench::run(&["--quick".to_owned()])),
    ("fuzz", || crate::fuzz::run(&[])),
    ("readme", || readme::run(&root())),
];

/// Runs every step; stops at the first that fails.
pub(crate) fn run() -> Result<(), String> {
    let begun = Instant::now();
    for (name, step) in STEPS {
        let step_begun = Instant::now();
        eprintln!("=== {name}");
        step().map_err(|error| format!("{name}: {error}"))?;
        eprintln!("=== {name}: {:.1} s", step_begun.elapsed().as_secs_f64());
    }
    eprintln!("all of CI passed in {:.0} s", begun.elapsed().as_secs_f64());
    Ok(())
}

/// Broken links and bad markup in documentation are errors.
fn docs() -> Result<(), String> {
    let status = std::process::Command::new("cargo")
        .args(["doc", "--workspace", "--no-deps", "--locked", "--document-private-items"])
        .env("RUSTDOCFLAGS", "-D warnings")
        .current_dir(root())
        .status()
        .map_err(|error| error.to_string())?;
    if status.success() { Ok(()) } else { Err(format!("cargo doc ended with {status}")) }
}

/// The language shims' own tests, in their own languages.
fn shims() -> Result<(), String> {
    let dir = root().join("crates/fanfare-sandbox-process/shims");
    let status = std::process::Command::new("/usr/bin/python3")
        .args(["-m", "unittest", "discover", "-s", "tests"])
        .current_dir(dir)
        .status()
        .map_err(|error| error.to_string())?;
    if status.success() { Ok(()) } else { Err(format!("the shims' tests ended with {status}")) }
}
