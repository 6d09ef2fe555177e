//! Runs README.md as a reader would: every fenced block marked `sh` is one shell script, in order, in one shell, with
//! the release binary on the path, in a temporary directory. Blocks of any other kind are illustrations.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Extracts the blocks and runs them; fails when any command does.
pub(crate) fn run(root: &Path) -> Result<(), String> {
    let text = fs::read_to_string(root.join("README.md")).map_err(|error| format!("README.md: {error}"))?;
    let blocks = blocks(&text);
    if blocks.is_empty() {
        return Err("README.md has no block marked `sh`".to_owned());
    }
    let dir = std::env::temp_dir().join(format!("fanfare-readme-{}", std::process::id()));
    fs::create_dir_all(&dir).map_err(|error| error.to_string())?;
    let bin = root.join("target/release");
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
    let script =
        format!("set -euo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null; wait' EXIT\n{}", blocks.join("\n"));
    let status = Command::new("bash")
        .args(["-x", "-c", &script])
        .current_dir(&dir)
        .env("PATH", path)
        .env("FANFARE_SOURCE", root)
        .status()
        .map_err(|error| error.to_string());
    let _ = fs::remove_dir_all(&dir);
    match status? {
        status if status.success() => Ok(()),
        status => Err(format!("a command of README.md failed: {status}")),
    }
}

fn blocks(text: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut current: Option<Vec<&str>> = None;
    for line in text.lines() {
        match &mut current {
            None if line.trim() == "```sh" => current = Some(Vec::new()),
            None => {}
            Some(lines) if line.trim() == "```" => {
                blocks.push(lines.join("\n"));
                current = None;
            }
            Some(lines) => lines.push(line),
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::blocks;

    #[test]
    fn only_blocks_marked_sh_are_run() {
        let text = "a\n```sh\nx\ny\n```\n```console\n$ z\n```\n```sh\nw\n```\n";
        assert_eq!(blocks(text), vec!["x\ny".to_owned(), "w".to_owned()]);
    }
}
