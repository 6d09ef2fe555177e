//! Whether the control API does what its OpenAPI document says: schemathesis, with every check on.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use crate::{root, run};

/// What generated requests are drawn from: the same ones each time.
const SEED: &str = "1";
/// Requests for one operation, in each way of generating them.
const EXAMPLES: &str = "20";
/// Seconds until one answer must be there.
const ANSWER_S: &str = "10";
/// Seconds after which all of it hangs.
const LIMIT_S: &str = "300";

pub(crate) const HELP: &str = "\
Usage: cargo xtask api-proof [--seed N] [--binary PATH]

  Runs schemathesis against the OpenAPI document that `fanfare up --emulate 2` serves: generated requests, right and
  wrong ones, alone and in sequence, and every check. Installs it from PyPI below target/api-proof.
";

/// Proves the program that was built last, or that of `--binary`.
pub(crate) fn run_with(args: &[String]) -> Result<(), String> {
    let (mut seed, mut binary, mut rest) = (SEED.to_owned(), None, args.iter());
    while let Some(arg) = rest.next() {
        let value = rest.next().ok_or_else(|| format!("{arg} takes a value\n\n{HELP}"))?;
        match arg.as_str() {
            "--seed" if value.parse::<u64>().is_ok() => seed.clone_from(value),
            "--binary" => binary = Some(PathBuf::from(value)),
            _ => return Err(format!("unknown option {arg} {value}\n\n{HELP}")),
        }
    }
    let root = root();
    let binary = match binary {
        Some(binary) => binary,
        None => {
            run("cargo", &["build", "--locked", "--package", "fanfare"])?;
            root.join("target/debug/fanfare")
        }
    };
    let dir = root.join("target/api-proof");
    let site = install(&root, &dir)?;
    let platform = Platform::start(&root.join(binary), &dir.join("run"))?;
    eprintln!("schemathesis: seed {seed}, {EXAMPLES} examples, {}", platform.api);
    let status = Command::new("timeout")
        .args(["--signal=KILL", LIMIT_S, "python3", "-m", "schemathesis.cli", "run"])
        .arg(format!("{}/v1/openapi.json", platform.api))
        .args(["--checks", "all", "--phases", "examples,coverage,fuzzing,stateful", "--no-color"])
        .args(["--seed", &seed, "--max-examples", EXAMPLES, "--request-timeout", ANSWER_S])
        .args(["--generation-database", "none"])
        .env("PYTHONPATH", &site)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("SCHEMATHESIS_HOOKS", root.join("xtask/api-proof/hooks.py"))
        .current_dir(&dir)
        .status()
        .map_err(|error| format!("timeout: {error}"))?;
    if status.success() {
        return Ok(());
    }
    Err(format!(
        "the control API does not do what its document says (schemathesis ended with {status}); \
         see it again with `cargo xtask api-proof --seed {seed}`"
    ))
}

/// Installs what `requirements.txt` pins, unless exactly that is there.
fn install(root: &Path, dir: &Path) -> Result<PathBuf, String> {
    let pinned = root.join("xtask/api-proof/requirements.txt");
    let wanted = fs::read_to_string(&pinned).map_err(|e| format!("{}: {e}", pinned.display()))?;
    let (site, installed) = (dir.join("site"), dir.join("installed.txt"));
    if fs::read_to_string(&installed).is_ok_and(|there| there == wanted) {
        return Ok(site);
    }
    if site.exists() {
        fs::remove_dir_all(&site).map_err(|e| format!("{}: {e}", site.display()))?;
    }
    fs::create_dir_all(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let status = Command::new("python3")
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--root-user-action=ignore"])
        .args(["--no-deps", "--only-binary=:all:", "--target"])
        .arg(&site)
        .arg("--requirement")
        .arg(&pinned)
        .status()
        .map_err(|error| format!("python3: {error}"))?;
    if !status.success() {
        return Err(format!(
            "schemathesis could not be installed ({status}), so the control API is NOT PROVED: this needs PyPI; \
             what pip says is above"
        ));
    }
    fs::write(&installed, wanted).map_err(|e| format!("{}: {e}", installed.display()))?;
    Ok(site)
}

/// A platform of emulated nodes; killed when dropped, which ends all that it runs.
struct Platform {
    process: Child,
    /// Open for as long as it may say more.
    said: Option<BufReader<ChildStdout>>,
    api: String,
}

impl Platform {
    fn start(binary: &Path, dir: &Path) -> Result<Self, String> {
        if dir.exists() {
            fs::remove_dir_all(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        }
        let mut process = Command::new(binary)
            .args(["up", "--emulate", "2", "--data-dir"])
            .arg(dir.join("data"))
            .arg("--run-dir")
            .arg(dir.join("run"))
            .args(["--listen", "127.0.0.1:0", "--api-listen", "127.0.0.1:0", "--grpc-listen", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{}: {error}", binary.display()))?;
        let said = process.stdout.take().map(BufReader::new);
        let mut platform = Platform { process, said, api: String::new() };
        for line in platform.said.iter_mut().flat_map(BufRead::lines).map_while(Result::ok) {
            if let Some(rest) = line.strip_prefix("control API") {
                rest.split_whitespace().next().unwrap_or_default().clone_into(&mut platform.api);
                return Ok(platform);
            }
        }
        Err("`fanfare up` ended without saying where its control API is".to_owned())
    }
}

impl Drop for Platform {
    fn drop(&mut self) {
        // It has ended by itself when it cannot be killed.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
