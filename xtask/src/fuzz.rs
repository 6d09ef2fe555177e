//! Coverage-guided fuzzing of every parser of what comes from outside, on the stable compiler.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::root;

/// What `cargo fuzz` asks of the compiler, without the sanitizers that only the nightly one has: coverage of edges and
/// comparisons for libFuzzer. Overflow checks and debug assertions are those of the dev profile.
const FLAGS: &[&str] = &[
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];
/// Seconds for each target unless told otherwise: what CI has. Whoever has time gives more.
const SECONDS: u32 = 2;
/// Longest input, in bytes. An archive's smallest entry takes 1 KiB.
const INPUT_BYTES_MAX: u32 = 16 << 10;
/// What chance is drawn from: CI tries the same inputs each time, as far as the machine's speed lets it.
const SEED: u32 = 1;
/// An input that takes longer hangs.
const INPUT_TIMEOUT_S: u32 = 10;
const MEMORY_MIB_MAX: u32 = 1_024;

pub(crate) const HELP: &str = "\
Usage: cargo xtask fuzz [--seconds N] [TARGET…]

  Fuzzes each target (default: all of fuzz/targets) for N seconds, from fuzz/seeds/TARGET and what earlier runs
  found (target/fuzz/corpus), as many at once as there are processors. N is 2 unless given, which is what CI has; a
  change of a parser deserves `--seconds 60` and more. An input that breaks something is kept in target/fuzz/artifacts
  and is to become a seed; run a target's program with the file's name to see it again.
";

pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let (seconds, wanted) = parse(args)?;
    let root = root();
    let all = targets(&root)?;
    if let Some(unknown) = wanted.iter().find(|name| !all.contains(name)) {
        return Err(format!("there is no target {unknown:?}; there are {}", all.join(", ")));
    }
    let chosen: Vec<&String> = all.iter().filter(|name| wanted.is_empty() || wanted.contains(name)).collect();
    let host = host()?;
    let dir = root.join("target/fuzz");
    let mut build = Command::new("cargo");
    build
        .args(["build", "--locked", "--package", "fanfare-fuzz", "--target", &host, "--target-dir"])
        .arg(&dir);
    build.args(chosen.iter().flat_map(|name| ["--bin", name]));
    build.env("RUSTFLAGS", FLAGS.join(" ")).current_dir(&root);
    succeed(&mut build, "building the targets")?;
    let programs = dir.join(&host).join("debug");
    in_turn(&chosen, |name| fuzz(&root, &dir, &programs.join(name), name, seconds))
}

/// Does this with each name, with as many at once as there are processors. After the first that fails, no other begins.
fn in_turn(names: &[&String], act: impl Fn(&str) -> Result<(), String> + Sync) -> Result<(), String> {
    let waiting = Mutex::new(names.iter());
    let failed = AtomicBool::new(false);
    let worker = || {
        while !failed.load(Ordering::Relaxed) {
            let next = waiting.lock().map_err(|_| "another target has panicked".to_owned())?.next();
            let Some(name) = next else { break };
            if let Err(error) = act(name) {
                failed.store(true, Ordering::Relaxed);
                return Err(error);
            }
        }
        Ok(())
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(names.len());
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..workers).map(|_| scope.spawn(worker)).collect();
        let ended =
            running.into_iter().map(|w| w.join().unwrap_or_else(|_| Err("a target panicked".to_owned())));
        // All are waited for before any is judged.
        ended.collect::<Vec<_>>().into_iter().collect()
    })
}

fn parse(args: &[String]) -> Result<(u32, Vec<String>), String> {
    let (mut seconds, mut wanted, mut rest) = (SECONDS, Vec::new(), args.iter());
    while let Some(arg) = rest.next() {
        match arg.as_str() {
            "--seconds" => {
                let value = rest.next().and_then(|value| value.parse().ok()).filter(|value| *value > 0);
                seconds = value.ok_or(format!("--seconds takes a number above 0\n\n{HELP}"))?;
            }
            flag if flag.starts_with('-') => return Err(format!("unknown option {flag}\n\n{HELP}")),
            name => wanted.push(name.to_owned()),
        }
    }
    Ok((seconds, wanted))
}

/// The names of the files in `fuzz/targets`, sorted.
fn targets(root: &Path) -> Result<Vec<String>, String> {
    let entries = fs::read_dir(root.join("fuzz/targets")).map_err(|e| format!("fuzz/targets: {e}"))?;
    let paths = entries.flatten().map(|entry| entry.path());
    let mut names: Vec<String> =
        paths.filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned())).collect();
    names.sort();
    Ok(names)
}

/// The triple of this machine. With `--target`, build scripts and macros are built without the flags.
fn host() -> Result<String, String> {
    let output = Command::new("rustc").arg("-vV").output().map_err(|e| format!("rustc: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or("rustc does not name its host".to_owned())
}

fn fuzz(root: &Path, dir: &Path, program: &Path, name: &str, seconds: u32) -> Result<(), String> {
    let (corpus, artifacts) = (dir.join("corpus").join(name), dir.join("artifacts").join(name));
    for needed in [&corpus, &artifacts] {
        fs::create_dir_all(needed).map_err(|e| format!("{}: {e}", needed.display()))?;
    }
    let seeds: PathBuf = root.join("fuzz/seeds").join(name);
    let mut run = Command::new(program);
    run.arg(format!("-max_total_time={seconds}"))
        .arg(format!("-seed={SEED}"))
        .arg(format!("-max_len={INPUT_BYTES_MAX}"))
        .arg(format!("-timeout={INPUT_TIMEOUT_S}"))
        .arg(format!("-rss_limit_mb={MEMORY_MIB_MAX}"))
        .args(["-verbosity=0", "-print_final_stats=1"])
        .arg(format!("-artifact_prefix={}/", artifacts.display()))
        .arg(&corpus);
    if seeds.is_dir() {
        run.arg(&seeds);
    }
    let output = run.current_dir(root).output().map_err(|e| format!("{}: {e}", program.display()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        eprintln!("{said}");
        return Err(format!(
            "fuzzing {name} ended with {}; the input is in {}",
            output.status,
            artifacts.display()
        ));
    }
    let inputs = said.lines().find_map(|line| line.strip_prefix("stat::number_of_executed_units:"));
    let inputs = inputs.ok_or(format!("{name} does not say how many inputs it tried"))?.trim();
    eprintln!("{name}: {inputs} inputs in {seconds} s");
    Ok(())
}

fn succeed(command: &mut Command, what: &str) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{what} ended with {status}")),
        Err(error) => Err(format!("{what} could not be started: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_has_its_turn_once_until_one_fails() {
        let names: Vec<String> = (0..50).map(|n| format!("t{n}")).collect();
        let chosen: Vec<&String> = names.iter().collect();
        let seen = Mutex::new(Vec::new());
        let see = |name: &str| seen.lock().unwrap().push(name.to_owned());
        let all = in_turn(&chosen, |name| {
            see(name);
            Ok(())
        });
        assert_eq!(all, Ok(()));
        let mut turns = std::mem::take(&mut *seen.lock().unwrap());
        turns.sort_by_key(|name| name[1..].parse::<u32>().unwrap());
        assert_eq!(turns, names);
        let failed = in_turn(&chosen, |name| {
            see(name);
            Err(format!("{name} broke"))
        });
        assert!(failed.is_err_and(|error| error.ends_with(" broke")));
        let workers = std::thread::available_parallelism().map_or(1, usize::from);
        assert!(seen.lock().unwrap().len() <= workers, "after a failure no other begins");
    }
}
