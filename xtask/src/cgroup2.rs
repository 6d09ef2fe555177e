//! Runs the `process` runtime where all controllers are cgroup v2's: on a Debian kernel in QEMU.

mod image;
mod kernel;
mod machine;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::{packages, root};

/// Seconds for everything inside the guest.
const LIMIT_S: u64 = 3_600;
/// How much longer a guest whose processor is emulated is waited for than this machine.
const PATIENCE: u32 = 10;

pub(crate) const HELP: &str = "\
Usage: cargo xtask cgroup2 [--suite NAME] [--accel tcg|kvm] [--seconds N] [--append WORDS] [FILTER…]

  Boots Debian's cloud kernel in QEMU with cgroup v2 alone and runs in it the tests of the `process` runtime (those
  whose names contain a FILTER, if any are given), and without a FILTER also, as root, as an ordinary user without a
  cgroup, and as one with a delegated cgroup: `fanfare doctor`, and a platform with a function that allocates, forks,
  fills /tmp and exits, killed with `kill -9` and started again. At the end no cgroup and no mount may be left.
  Installs the Debian packages that it needs (as root). It takes minutes: the processor is emulated, unless `--accel kvm`.

  --suite NAME    the kernel of another suite of Debian's: bookworm-backports
  --accel kvm     where /dev/kvm runs any kernel
  --seconds N     after which all of it hangs; 3600
  --append WORDS  for the kernel's command line: cgroup_disable=memory
";

/// What was asked for.
#[derive(Debug)]
struct Options {
    suite: Option<String>,
    accel: String,
    limit: Duration,
    append: String,
    filters: Vec<String>,
}

impl Options {
    fn parse(args: &[String]) -> Result<Self, String> {
        let mut options = Options {
            suite: None,
            accel: "tcg".to_owned(),
            limit: Duration::from_secs(LIMIT_S),
            append: String::new(),
            filters: Vec::new(),
        };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            if !arg.starts_with("--") {
                options.filters.push(arg.clone());
                continue;
            }
            let value = args.next().ok_or_else(|| format!("{arg} takes a value\n\n{HELP}"))?;
            match (arg.as_str(), value.as_str()) {
                ("--suite", _) => options.suite = Some(value.clone()),
                ("--accel", "tcg" | "kvm") => options.accel.clone_from(value),
                ("--append", _) => options.append.clone_from(value),
                ("--seconds", _) => {
                    let seconds = value.parse().map_err(|_| format!("--seconds {value}\n\n{HELP}"))?;
                    options.limit = Duration::from_secs(seconds);
                }
                _ => return Err(format!("unknown option {arg} {value}\n\n{HELP}")),
            }
        }
        Ok(options)
    }
}

/// Builds, boots, runs; fails with what failed inside.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let options = Options::parse(args)?;
    packages::install()?;
    packages::install_for_guests()?;
    let dir = root().join("target/cgroup2");
    fs::create_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let begun = Instant::now();
    let kernel = kernel::fetch(&dir, options.suite.as_deref())?;
    let scratch = Scratch::new(&dir)?;
    let work = scratch.0.join("work");
    put_work(&work, &options)?;
    let disk = image::disk(&scratch.0)?;
    let initrd = image::initrd(&scratch.0, &kernel)?;
    eprintln!("prepared in {:.0} s; booting {}", begun.elapsed().as_secs_f64(), kernel.image.display());
    let guest = machine::Guest { kernel: &kernel.image, initrd: &initrd, disk: &disk };
    let status = machine::boot(&guest, &options.accel, &options.append, options.limit)?;
    eprintln!("{:.0} s in all", begun.elapsed().as_secs_f64());
    match status {
        0 => Ok(()),
        failed => Err(format!("{failed} of the guest's steps failed; each says so above")),
    }
}

/// Makes the directory that the guest has as /work.
fn put_work(work: &Path, options: &Options) -> Result<(), String> {
    fs::create_dir_all(work).map_err(|e| format!("{}: {e}", work.display()))?;
    let put = |from: &Path, name: &str| {
        fs::copy(from, work.join(name)).map(drop).map_err(|e| format!("{}: {e}", from.display()))
    };
    for (target, name) in built()? {
        put(&target, name)?;
    }
    let scripts = root().join("xtask/cgroup2");
    put(&scripts.join("guest.sh"), "guest.sh")?;
    put(&scripts.join("session.sh"), "session.sh")?;
    let text = format!("FILTERS='{}'\nPATIENCE={PATIENCE}\n", options.filters.join(" ").replace('\'', ""));
    fs::write(work.join("settings"), text).map_err(|e| e.to_string())
}

/// Has cargo build all that is run; gives the paths and what the guest calls them.
fn built() -> Result<Vec<(PathBuf, &'static str)>, String> {
    // One command: others would build dependencies with other features.
    let args =
        ["test", "--package", "fanfare-sandbox-process", "--package", "fanfare", "--no-run", "--locked"];
    eprintln!("$ cargo {}", args.join(" "));
    let output = Command::new("cargo")
        .args(args)
        .args(["--message-format", "json-render-diagnostics"])
        .current_dir(root())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cargo: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo {} ended with {}", args.join(" "), output.status));
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    let tests = [
        ("crates/fanfare-sandbox-process/src/lib.rs", "unit"),
        ("crates/fanfare-sandbox-process/tests/it/main.rs", "it"),
    ];
    let mut found = vec![(root().join("target/debug/fanfare"), "fanfare")];
    for (source, name) in tests {
        let path = executable(&messages, source);
        found.push((path.ok_or_else(|| format!("cargo names no executable of {source}"))?, name));
    }
    Ok(found)
}

/// Among cargo's messages, one JSON document a line, the executable that was made of this source.
fn executable(messages: &str, source: &str) -> Option<PathBuf> {
    let end = format!("/{source}\"");
    let made = messages.lines().filter(|line| line.contains("\"compiler-artifact\"") && line.contains(&end));
    made.filter_map(|line| Some(line.split_once("\"executable\":\"")?.1.split_once('"')?.0))
        .next_back()
        .map(PathBuf::from)
}

/// A directory that goes when this is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(dir: &Path) -> Result<Self, String> {
        let path = dir.join(format!("run-{}", std::process::id()));
        fs::create_dir_all(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::{Options, executable};

    #[test]
    fn the_executable_of_a_source_is_found_among_messages() {
        let messages = r#"{"reason":"compiler-artifact","target":{"src_path":"/w/a/lib.rs"},"executable":null}
{"reason":"compiler-artifact","target":{"src_path":"/w/a/lib.rs"},"executable":"/t/debug/deps/a-1"}
{"reason":"compiler-artifact","target":{"src_path":"/w/b/lib.rs"},"executable":"/t/debug/deps/b-1"}
{"reason":"build-finished","success":true}"#;
        assert_eq!(executable(messages, "a/lib.rs").unwrap().to_str(), Some("/t/debug/deps/a-1"));
        assert_eq!(executable(messages, "c/lib.rs"), None);
    }

    #[test]
    fn what_is_asked_for_is_read_or_refused() {
        let parse = |text: &str| Options::parse(&text.split(' ').map(str::to_owned).collect::<Vec<_>>());
        let options = parse("--seconds 60 limits:: --accel kvm deaths::").unwrap();
        assert_eq!((options.limit.as_secs(), options.accel.as_str()), (60, "kvm"));
        assert_eq!(options.filters, ["limits::", "deaths::"]);
        for wrong in ["--accel xen", "--seconds x", "--suite", "--what 1"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
