//! Runs README.md and the pages in docs/ as a reader would.
//!
//! Of each page, fenced blocks marked `sh` are one shell script, in order, in one shell, with the release binary on the path, in a
//! temporary directory. One marked `sh background` is what the reader runs in a second terminal: it is started, and the
//! script goes on when it has said that it is ready. Blocks of any other kind are illustrations.

use std::fs;
use std::path::Path;
use std::process::Command;

/// How long a background block has to say that it is ready, in tenths of a second.
const READY_TRIES: u32 = 100;

/// Extracts the blocks of each page and runs them; fails when any command does.
pub(crate) fn run(root: &Path) -> Result<(), String> {
    let read = |page: &Path| {
        let text = fs::read_to_string(page).map_err(|error| format!("{}: {error}", page.display()))?;
        Ok::<_, String>((page.display().to_string(), blocks(&text)))
    };
    let readme = read(&root.join("README.md"))?;
    if readme.1.is_empty() {
        return Err("README.md has no block marked `sh`".to_owned());
    }
    let docs = fs::read_dir(root.join("docs")).map_err(|error| format!("docs: {error}"))?;
    let mut pages: Vec<_> = docs.filter_map(|entry| Some(entry.ok()?.path())).collect();
    pages.retain(|page| page.extension().is_some_and(|extension| extension == "md"));
    pages.sort();
    run_page(root, &readme)?;
    for page in pages {
        let page = read(&page)?;
        if !page.1.is_empty() {
            run_page(root, &page)?;
        }
    }
    Ok(())
}

fn run_page(root: &Path, (page, blocks): &(String, Vec<Block>)) -> Result<(), String> {
    println!("{page}");
    let dir = std::env::temp_dir().join(format!("fanfare-readme-{}", std::process::id()));
    fs::create_dir_all(&dir).map_err(|error| error.to_string())?;
    let path =
        format!("{}:{}", root.join("target/release").display(), std::env::var("PATH").unwrap_or_default());
    // What was started in the background ends with the script, whatever becomes of it, and must end well.
    let end = r#"status=$?; [ -z "${background:-}" ] || { kill $background; wait $background || status=1; }; exit $status"#;
    let script = format!(
        "set -euo pipefail\ntrap '{end}' EXIT\n{}",
        blocks.iter().map(shell).collect::<Vec<_>>().join("\n")
    );
    let status = Command::new("bash")
        .args(["-x", "-c", &script])
        .current_dir(&dir)
        .env("PATH", path)
        .env("FANFARE_DATA_DIR", dir.join("data"))
        .env("FANFARE_RUN_DIR", dir.join("run"))
        .status()
        .map_err(|error| error.to_string());
    let _ = fs::remove_dir_all(&dir);
    match status? {
        status if status.success() => Ok(()),
        status => Err(format!("a command of {page} failed: {status}")),
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Block {
    background: bool,
    text: String,
}

fn shell(block: &Block) -> String {
    if !block.background {
        return block.text.clone();
    }
    format!(
        "{} > background.out &\nbackground=$!\n\
         for _ in $(seq {READY_TRIES}); do [ -s background.out ] && break; sleep 0.1; done; cat background.out",
        block.text
    )
}

fn blocks(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut current: Option<(bool, Vec<&str>)> = None;
    for line in text.lines() {
        match &mut current {
            None => match line.trim() {
                "```sh" => current = Some((false, Vec::new())),
                "```sh background" => current = Some((true, Vec::new())),
                _ => {}
            },
            Some((background, lines)) if line.trim() == "```" => {
                blocks.push(Block { background: *background, text: lines.join("\n") });
                current = None;
            }
            Some((_, lines)) => lines.push(line),
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::{Block, blocks};

    #[test]
    fn only_blocks_marked_sh_are_run() {
        let text = "a\n```sh\nx\ny\n```\n```console\n$ z\n```\n```sh background\nw\n```\n";
        let expected = [(false, "x\ny"), (true, "w")];
        let expected: Vec<Block> = expected
            .into_iter()
            .map(|(background, text)| Block { background, text: text.to_owned() })
            .collect();
        assert_eq!(blocks(text), expected);
    }
}
