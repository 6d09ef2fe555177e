//! Builds what is measured and what measures, and runs the benches.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{packages, root};

const HELP: &str = "\
Beside what follows, `cargo xtask bench` takes:

  --profile NAME   build with this profile [default: release]
  --compare REV    build this revision, too, run the benches of both builds in turn, and print ratios
";

/// What is for this task and not for `fanfare-bench`.
#[derive(Debug, PartialEq, Eq)]
struct Given {
    profile: String,
    compare: Option<String>,
    rest: Vec<String>,
}

/// Takes the arguments after `bench`: `--profile NAME` and `--compare REV` are for the builds, the rest for
/// `fanfare-bench`.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let mut given = split(args)?;
    if given.rest.iter().any(|arg| arg == "--help" || arg == "-h") {
        eprint!("{HELP}");
    }
    packages::install_for_benches()?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), Into::into);
    if let Some(revision) = &given.compare {
        let (commit, tree) = checkout(revision, &target)?;
        let base = build(&tree, &tree.join("target"), &given.profile)?;
        given.rest.extend(["--compare-with".to_owned(), base.to_string_lossy().into_owned()]);
        given.rest.extend(["--compare-commit".to_owned(), commit]);
    }
    let program = build(&root(), &target, &given.profile)?;
    let rest: Vec<&str> = given.rest.iter().map(String::as_str).collect();
    crate::run(&program.to_string_lossy(), &rest)
}

/// Builds the tree at `tree` and gives its `fanfare-bench`, which is beside its `fanfare`.
fn build(tree: &Path, target: &Path, profile: &str) -> Result<PathBuf, String> {
    eprintln!("building {} with the profile {profile}", tree.display());
    let status = Command::new("cargo")
        .args(["build", "--profile", profile, "--package", "fanfare", "--package", "fanfare-bench"])
        .env("CARGO_TARGET_DIR", target)
        .current_dir(tree)
        .status()
        .map_err(|error| format!("cargo could not be started: {error}"))?;
    if !status.success() {
        return Err(format!("building {} ended with {status}", tree.display()));
    }
    // Cargo's own names: the profile `dev` is built into `debug`.
    let directory = if profile == "dev" { "debug" } else { profile };
    Ok(target.join(directory).join("fanfare-bench"))
}

/// Checks a revision out below the target directory, in place of the one that was compared with before. Its build stays
/// there, so that the next comparison with it is quick.
fn checkout(revision: &str, target: &Path) -> Result<(String, PathBuf), String> {
    let commit = git(&["rev-parse", "--verify", "--short=12", &format!("{revision}^{{commit}}")])?;
    let trees = target.join("compare");
    let tree = trees.join(&commit);
    git(&["worktree", "prune"])?;
    for entry in std::fs::read_dir(&trees).into_iter().flatten().flatten() {
        if entry.path() != tree {
            git(&["worktree", "remove", "--force", &entry.path().to_string_lossy()])?;
        }
    }
    if !tree.join("Cargo.toml").exists() {
        git(&["worktree", "add", "--detach", &tree.to_string_lossy(), &commit])?;
    }
    Ok((commit, tree))
}

/// What git answers.
fn git(args: &[&str]) -> Result<String, String> {
    let output = Command::new("git").args(args).current_dir(root()).output();
    let output = output.map_err(|error| format!("git could not be started: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => {
            Err(format!("git {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim_end()))
        }
    }
}

fn split(args: &[String]) -> Result<Given, String> {
    let mut given = Given { profile: "release".to_owned(), compare: None, rest: Vec::new() };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let (name, value) = arg.split_once('=').map_or((arg.as_str(), None), |(name, v)| (name, Some(v)));
        if !matches!(name, "--profile" | "--compare") {
            given.rest.push(arg.clone());
            continue;
        }
        let value = match value {
            Some(value) => value.to_owned(),
            None => args.next().ok_or_else(|| format!("{name} needs a value"))?.clone(),
        };
        match name {
            "--profile" => given.profile = value,
            _ => given.compare = Some(value),
        }
    }
    Ok(given)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_for_the_builds_is_taken_out() {
        let of = |line: &str| split(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        let given = |profile: &str, compare: Option<&str>, rest: &[&str]| {
            let rest = rest.iter().map(|s| (*s).to_owned()).collect();
            Ok(Given { profile: profile.to_owned(), compare: compare.map(str::to_owned), rest })
        };
        assert_eq!(of("warm --quick"), given("release", None, &["warm", "--quick"]));
        assert_eq!(of("warm --profile dist --seed 2"), given("dist", None, &["warm", "--seed", "2"]));
        assert_eq!(of("--profile=dist --out=x"), given("dist", None, &["--out=x"]));
        assert_eq!(of("--compare main cold"), given("release", Some("main"), &["cold"]));
        assert_eq!(of("cold --compare=HEAD~1"), given("release", Some("HEAD~1"), &["cold"]));
        for line in ["warm --profile", "--compare"] {
            assert!(of(line).is_err(), "{line}");
        }
    }
}
