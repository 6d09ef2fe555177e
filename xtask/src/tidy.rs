//! Rules of the tree that no compiler checks.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Lines of a source file that is not a test. Most stay under 400; beyond this it holds two ideas.
const FILE_LINES_MAX: usize = 500;
/// Crates without I/O, and the crates that they may not reach.
const PURE: &[&str] = &[
    "fanfare-types",
    "fanfare-policy",
    "fanfare-engine",
    "fanfare-dispatch",
    "fanfare-roster",
    "fanfare-async",
    "fanfare-schedule",
    "fanfare-trace",
    "fanfare-sim",
];
const NOT_IN_PURE: &[&str] =
    &["tokio", "hyper", "mio", "socket2", "rustix", "getrandom", "tonic", "axum", "redb"];
/// Markers of unfinished work.
const MARKERS: &[&str] =
    &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X:"), concat!("HA", "CK:")];

/// Checks every rule and lists every breach.
pub(crate) fn run(root: &Path) -> Result<(), String> {
    let mut breaches = Vec::new();
    let files = tracked(root)?;
    for file in &files {
        let Ok(text) = fs::read_to_string(root.join(file)) else { continue };
        check_file(file, &text, &mut breaches);
    }
    check_pure_crates(root, &mut breaches)?;
    check_promises(root, &files, &mut breaches);
    check_links(root, &files, &mut breaches);
    crate::mutants::check(root, &mut breaches);
    if breaches.is_empty() {
        return Ok(());
    }
    for breach in &breaches {
        eprintln!("tidy: {breach}");
    }
    Err(format!("{} breaches", breaches.len()))
}

fn tracked(root: &Path) -> Result<Vec<PathBuf>, String> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .map_err(|error| format!("git ls-files: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().map(PathBuf::from).filter(|file| root.join(file).is_file()).collect())
}

fn check_file(file: &Path, text: &str, breaches: &mut Vec<String>) {
    let name = file.display();
    let source =
        file.extension().is_some_and(|e| matches!(e.to_str(), Some("rs" | "py" | "cjs" | "proto" | "sh")));
    if !source {
        return;
    }
    let is_test = file.components().any(|c| c.as_os_str() == "tests")
        || file.file_stem().is_some_and(|s| s.to_string_lossy().ends_with("tests"));
    let lines = text.lines().count();
    // A language shim is one file, because a cold start reads one.
    let is_shim = file.components().any(|c| c.as_os_str() == "shims");
    if !is_test && !is_shim && lines > FILE_LINES_MAX {
        breaches.push(format!("{name}: {lines} lines; split it, the limit is {FILE_LINES_MAX}"));
    }
    for (number, line) in text.lines().enumerate() {
        if MARKERS.iter().any(|marker| line.contains(marker)) {
            breaches.push(format!("{name}:{}: unfinished: {}", number + 1, line.trim()));
        }
    }
    if !text.ends_with('\n') && !text.is_empty() {
        breaches.push(format!("{name}: no newline at its end"));
    }
}

/// The pure crates reach no runtime, socket or source of randomness through any dependency.
fn check_pure_crates(root: &Path, breaches: &mut Vec<String>) -> Result<(), String> {
    for crate_name in PURE {
        let output = Command::new("cargo")
            .args([
                "tree",
                "--edges",
                "normal",
                "--prefix",
                "none",
                "--package",
                crate_name,
                "--format",
                "{p}",
            ])
            .current_dir(root)
            .output()
            .map_err(|error| format!("cargo tree: {error}"))?;
        if !output.status.success() {
            return Err(format!("cargo tree: {}", String::from_utf8_lossy(&output.stderr)));
        }
        let tree = String::from_utf8_lossy(&output.stdout);
        let reached = tree.lines().filter_map(|line| line.split_whitespace().next());
        for dependency in reached.filter(|name| NOT_IN_PURE.contains(name)) {
            breaches.push(format!("{crate_name} is pure but reaches {dependency}"));
        }
        if !root.join("crates").join(crate_name).join("clippy.toml").exists() {
            breaches.push(format!("{crate_name} is pure but has no clippy.toml of its own"));
        }
    }
    Ok(())
}

/// Every promise of SPECIFICATION.md names a test or bench that exists: `` `path::or_name` `` after "Held by". Every
/// case of docs/cases.md does in its table's last column.
fn check_promises(root: &Path, files: &[PathBuf], breaches: &mut Vec<String>) {
    let mut sources = String::new();
    for file in files.iter().filter(|f| f.extension().is_some_and(|e| e == "rs" || e == "py")) {
        sources.push_str(&fs::read_to_string(root.join(file)).unwrap_or_default());
    }
    let held_by = |line: &str| line.split_once("Held by").map(|(_, names)| names.to_owned());
    check_names(root, "SPECIFICATION.md", held_by, &sources, breaches);
    let last_column = |line: &str| {
        let row = line.strip_prefix("| ")?.strip_suffix(" |")?;
        let (_, names) = row.rsplit_once(" | ")?;
        (names != "held by").then(|| names.to_owned())
    };
    check_names(root, "docs/cases.md", last_column, &sources, breaches);
}

fn check_names(
    root: &Path,
    file: &str,
    names_in: impl Fn(&str) -> Option<String>,
    sources: &str,
    breaches: &mut Vec<String>,
) {
    let Ok(text) = fs::read_to_string(root.join(file)) else {
        breaches.push(format!("{file} is missing"));
        return;
    };
    for (number, line) in text.lines().enumerate() {
        let Some(named) = names_in(line) else { continue };
        let names: Vec<&str> = named.split('`').skip(1).step_by(2).collect();
        if names.is_empty() {
            breaches.push(format!("{file}:{}: names no test", number + 1));
        }
        for name in names {
            let test = name.rsplit("::").next().unwrap_or(name);
            if !sources.contains(&format!("fn {test}(")) && !sources.contains(&format!("def {test}(")) {
                breaches.push(format!("{file}:{}: no test named {test}", number + 1));
            }
        }
    }
}

/// Relative links in Markdown lead to files that exist.
fn check_links(root: &Path, files: &[PathBuf], breaches: &mut Vec<String>) {
    for file in files.iter().filter(|f| f.extension().is_some_and(|e| e == "md")) {
        let text = fs::read_to_string(root.join(file)).unwrap_or_default();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let path = target.split('#').next().unwrap_or_default();
            if path.is_empty() || path.contains("://") {
                continue;
            }
            let base = root.join(file);
            if !base.parent().unwrap_or(root).join(path).exists() {
                breaches.push(format!("{}: broken link {target}", file.display()));
            }
        }
    }
}
