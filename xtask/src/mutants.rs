//! Faults put into the decisions on purpose: the simulator must find each, or else the tests of the crate that it is in.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::root;

/// The crates that decide, and the simulator.
const CRATES: &[&str] = &[
    "fanfare-types",
    "fanfare-policy",
    "fanfare-engine",
    "fanfare-dispatch",
    "fanfare-roster",
    "fanfare-sim",
];
const PATCHES: &str = "crates/fanfare-sim/mutants";
/// Seeds in which most are to be found, and in which nothing is found without them.
const SEEDS: &str = "1500";
/// One that makes the simulator run for longer has not been found.
const SECONDS_MAX: &str = "120";
/// Built often and run shortly.
const PROFILE: &str = "
[profile.dev]
debug = false
opt-level = 1
incremental = true
";

/// Applies each mutant to a copy of the crates, and runs the simulator, and where that finds nothing their tests. Only
/// those that are named, if any are.
pub(crate) fn run(wanted: &[String]) -> Result<(), String> {
    let root = root();
    let dir = root.join("target/mutants");
    let tree = dir.join("tree");
    copy(&root, &tree)?;
    let all = names(&root)?;
    if let Some(unknown) = wanted.iter().find(|name| !all.contains(name)) {
        return Err(format!("there is no mutant {unknown:?}; there are {}", all.join(", ")));
    }
    let clean = simulate(&dir, &tree)?;
    if !clean.status.success() {
        return Err(format!("without a mutant: {}", last_lines(&clean)));
    }
    let mut survivors = Vec::new();
    for name in all.iter().filter(|name| wanted.is_empty() || wanted.contains(name)) {
        apply(&root, name, &["--directory=target/mutants/tree"])?;
        let found = simulate(&dir, &tree).and_then(|found| match found.status.code() {
            Some(0) => test(&root, name, &dir, &tree),
            _ => Ok(found),
        });
        apply(&root, name, &["--directory=target/mutants/tree", "--reverse"])?;
        let found = found.map_err(|error| format!("{name}: {error}"))?;
        let said = last_lines(&found);
        let broken = |line: &&str| line.contains("BROKEN") || line.contains("... FAILED");
        if let Some(by) = said.lines().find(broken).filter(|_| !found.status.success()) {
            eprintln!("{name}: found: {}", by.chars().take(160).collect::<String>());
        } else {
            eprintln!("{name}: NOT FOUND: {said}");
            survivors.push(name.as_str());
        }
    }
    if survivors.is_empty() { Ok(()) } else { Err(format!("not found: {}", survivors.join(", "))) }
}

/// What is wrong with the patches: each must apply, and say in its first line what it breaks.
pub(crate) fn check(root: &Path, breaches: &mut Vec<String>) {
    let Ok(all) = names(root) else { return breaches.push(format!("{PATCHES} cannot be read")) };
    for name in &all {
        let text = fs::read_to_string(root.join(PATCHES).join(format!("{name}.patch"))).unwrap_or_default();
        if text.lines().next().is_none_or(|line| line.is_empty() || line.starts_with("diff")) {
            breaches.push(format!("{PATCHES}/{name}.patch does not say what it breaks"));
        }
        if let Err(error) = apply(root, name, &["--check"]) {
            breaches.push(format!("{PATCHES}/{name}.patch does not apply any more: {error}"));
        }
    }
}

fn names(root: &Path) -> Result<Vec<String>, String> {
    let entries = fs::read_dir(root.join(PATCHES)).map_err(|error| format!("{PATCHES}: {error}"))?;
    let paths = entries.flatten().map(|entry| entry.path());
    let patches = paths.filter(|path| path.extension().is_some_and(|e| e == "patch"));
    let mut names: Vec<String> =
        patches.filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned())).collect();
    names.sort();
    Ok(names)
}

/// A workspace of the crates alone; built files of earlier runs stay beside it.
fn copy(root: &Path, tree: &Path) -> Result<(), String> {
    let failed = |what: &Path| {
        let what = what.display().to_string();
        move |error: std::io::Error| format!("{what}: {error}")
    };
    if tree.exists() {
        fs::remove_dir_all(tree).map_err(failed(tree))?;
    }
    for name in CRATES {
        copy_dir(&root.join("crates").join(name), &tree.join("crates").join(name))?;
    }
    let manifest = root.join("Cargo.toml");
    let text = fs::read_to_string(&manifest).map_err(failed(&manifest))?;
    let kept = text.split("\n[profile.").next().unwrap_or_default();
    let members = CRATES.iter().map(|name| format!("\"crates/{name}\"")).collect::<Vec<_>>().join(", ");
    let lines = kept.lines().filter(|line| !line.starts_with("default-members")).map(|line| {
        if line.starts_with("members = ") { format!("members = [{members}]") } else { line.to_owned() }
    });
    let text = lines.collect::<Vec<_>>().join("\n") + PROFILE;
    fs::write(tree.join("Cargo.toml"), text).map_err(failed(tree))?;
    fs::copy(root.join("Cargo.lock"), tree.join("Cargo.lock")).map(drop).map_err(failed(tree))
}

fn copy_dir(from: &Path, to: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", from.display());
    fs::create_dir_all(to).map_err(failed)?;
    for entry in fs::read_dir(from).map_err(failed)?.flatten() {
        let (path, copy): (PathBuf, PathBuf) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy_dir(&path, &copy)?;
        } else {
            fs::copy(&path, &copy).map_err(failed)?;
        }
    }
    Ok(())
}

fn apply(root: &Path, name: &str, how: &[&str]) -> Result<(), String> {
    let patch = root.join(PATCHES).join(format!("{name}.patch"));
    let output = Command::new("git").arg("apply").args(how).arg(&patch).current_dir(root).output();
    let output = output.map_err(|error| format!("git apply: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if output.status.success() { Ok(()) } else { Err(said) }
}

/// Builds the simulator as it is in the copy, and runs it.
fn simulate(dir: &Path, tree: &Path) -> Result<Output, String> {
    let build = Command::new("cargo")
        .args(["build", "--quiet", "--offline", "--package", "fanfare-sim", "--bin", "fanfare-seeds"])
        .env("CARGO_TARGET_DIR", dir.join("build"))
        .env("RUSTFLAGS", "--cap-lints allow")
        .current_dir(tree)
        .output()
        .map_err(|error| format!("cargo: {error}"))?;
    if !build.status.success() {
        return Err(format!("it does not build: {}", last_lines(&build)));
    }
    Command::new("timeout")
        .arg(SECONDS_MAX)
        .arg(dir.join("build/debug/fanfare-seeds"))
        .args(["--seeds", SEEDS])
        .output()
        .map_err(|error| format!("timeout: {error}"))
}

/// What too few seeds meet, the tests of its own crate find.
fn test(root: &Path, name: &str, dir: &Path, tree: &Path) -> Result<Output, String> {
    let patch = root.join(PATCHES).join(format!("{name}.patch"));
    let text = fs::read_to_string(&patch).map_err(|error| format!("{}: {error}", patch.display()))?;
    let path = text.lines().find_map(|line| line.strip_prefix("+++ b/crates/"));
    let package = path.and_then(|path| path.split('/').next()).ok_or("it changes no crate")?;
    let test = ["test", "--quiet", "--offline", "--no-fail-fast", "--lib", "--package", package];
    let tested = Command::new("cargo")
        .args(test)
        .args(["--", "--format", "pretty"])
        .env("CARGO_TARGET_DIR", dir.join("build"))
        .env("RUSTFLAGS", "--cap-lints allow")
        .env("RUST_BACKTRACE", "0")
        .current_dir(tree)
        .output();
    tested.map_err(|error| format!("cargo: {error}"))
}

/// What it said last, and what it said of tests.
fn last_lines(output: &Output) -> String {
    let (said, tests) = (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
    let lines: Vec<&str> = said.lines().collect();
    let failed = tests.lines().filter(|line| line.contains("... FAILED"));
    failed.chain(lines[lines.len().saturating_sub(4)..].iter().copied()).collect::<Vec<_>>().join("\n")
}
