//! Runs the binary.

use std::path::Path;
use std::process::{Output, Stdio};

use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// What a run came to.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// The binary, with nothing of the environment that could change its output.
pub(crate) fn command(api: &str, args: &[&str]) -> Command {
    // Whoever runs the tests may ignore hangups (`nohup`), which processes inherit.
    let mut command = Command::new("env");
    command
        .args(["--default-signal=HUP", env!("CARGO_BIN_EXE_fanfare")])
        .args(args)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("FANFARE_API", api)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

pub(crate) async fn fanfare(api: &str, args: &[&str]) -> Run {
    run(command(api, args).output().await.unwrap())
}

pub(crate) async fn fanfare_in(directory: &Path, api: &str, args: &[&str]) -> Run {
    run(command(api, args).current_dir(directory).output().await.unwrap())
}

pub(crate) async fn fanfare_with_input(api: &str, args: &[&str], input: &[u8]) -> Run {
    let mut child = command(api, args).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).await.unwrap();
    run(child.wait_with_output().await.unwrap())
}

pub(crate) fn run(output: Output) -> Run {
    Run {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// The text with every elapsed time replaced by `T`.
pub(crate) fn without_times(text: &str) -> String {
    let line = |line: &str| match line.trim_start().split_once("s ") {
        Some((time, rest)) if time.parse::<f64>().is_ok() => format!("T {rest}"),
        _ => line.to_owned(),
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}
