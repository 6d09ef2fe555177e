//! Tasks of this workspace: `cargo xtask ci`, `cargo xtask tidy`, `cargo xtask readme`, `cargo xtask
//! api-proof`, `cargo xtask sim`, `cargo xtask mutants`, `cargo xtask fuzz`, `cargo xtask cgroup2`, `cargo xtask bench`.

mod api_proof;
mod bench;
mod cgroup2;
mod ci;
mod fuzz;
mod licences;
mod mutants;
mod packages;
mod readme;
mod sim;
mod tidy;

use std::path::PathBuf;
use std::process::{Command, ExitCode};

const HELP: &str = "\
Usage: cargo xtask TASK

  ci         everything CI runs; installs the Debian packages it needs (as root)
  tidy       rules of the tree that no compiler checks, and the licences of what it builds on
  readme     run the commands of README.md and docs/ as a reader would
  api-proof  hold the control API to its OpenAPI document: `api-proof [--seed N] [--binary PATH]`
  sim        run the cluster in virtual time, with faults: `sim [--seeds N] [--from SEED] [--scenario NAME] [--told]`
  mutants    break decisions on purpose, and see the simulator find it: `mutants [NAME…]`
  fuzz       look for input that breaks a parser: `fuzz [--seconds N] [TARGET…]`
  cgroup2    run the `process` runtime on a kernel with cgroup v2 alone, in a virtual machine:
             `cgroup2 [--suite NAME] [--accel kvm] [FILTER…]`
  bench      measure what everything costs, beside its peers; `bench --help` lists what there is, and
             `--profile dist` measures what is shipped
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.first().map(String::as_str) {
        Some("ci") => ci::run(),
        Some("tidy") => tidy::run(&root()).and_then(|()| licences::run(&root())),
        Some("readme") => readme::run(&root()),
        Some("api-proof") => api_proof::run_with(&args[1..]),
        Some("fuzz") => fuzz::run(&args[1..]),
        Some("sim") => sim::run_with(&args[1..]),
        Some("mutants") => mutants::run(&args[1..]),
        Some("cgroup2") => cgroup2::run(&args[1..]),
        Some("bench") => bench::run(&args[1..]),
        _ => {
            eprint!("{HELP}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The workspace's root.
fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().map(PathBuf::from).unwrap_or_default()
}

/// Runs a command in the root and fails with what it was when it fails.
fn run(program: &str, args: &[&str]) -> Result<(), String> {
    let line = format!("{program} {}", args.join(" "));
    eprintln!("$ {line}");
    let status = Command::new(program).args(args).current_dir(root()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{line}` ended with {status}")),
        Err(error) => Err(format!("`{line}` could not be started: {error}")),
    }
}
