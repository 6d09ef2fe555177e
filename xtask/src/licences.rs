//! Licences and origins of everything that is built, as `deny.toml` says.
//!
//! `cargo deny check` does more (advisories, duplicates); this is the part that needs nothing installed.

use std::path::Path;
use std::process::Command;

/// Fails when a dependency has no allowed licence or does not come from crates.io or this tree.
pub(crate) fn run(root: &Path) -> Result<(), String> {
    let config =
        std::fs::read_to_string(root.join("deny.toml")).map_err(|error| format!("deny.toml: {error}"))?;
    let allowed = allowed(&config)?;
    let output = Command::new("cargo")
        .args([
            "tree",
            "--workspace",
            "--locked",
            "--edges",
            "normal,build,dev",
            "--prefix",
            "none",
            "--format",
            "{p}|{l}",
        ])
        .current_dir(root)
        .output()
        .map_err(|error| format!("cargo tree: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo tree: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let mut refused: Vec<String> = text.lines().filter_map(|line| refusal(line, &allowed)).collect();
    refused.sort();
    refused.dedup();
    if refused.is_empty() {
        return Ok(());
    }
    Err(format!("dependencies that deny.toml does not allow:\n  {}", refused.join("\n  ")))
}

/// The list `allow = [...]` of `deny.toml`.
fn allowed(config: &str) -> Result<Vec<&str>, String> {
    let line =
        config.lines().find(|line| line.starts_with("allow = [")).ok_or("deny.toml has no `allow` list")?;
    Ok(line.split('"').skip(1).step_by(2).collect())
}

fn refusal(line: &str, allowed: &[&str]) -> Option<String> {
    let (package, licence) = line.split_once('|')?;
    if package.contains("(http") || package.contains("(git") || package.contains("(registry") {
        return Some(format!("{package}: not from crates.io"));
    }
    let licence = licence.trim_end_matches(" (*)").trim();
    (!is_allowed(licence, allowed)).then(|| format!("{package}: {licence:?}"))
}

/// Evaluates an SPDX expression: any side of `OR` (or the old `/`), every side of `AND`.
fn is_allowed(expression: &str, allowed: &[&str]) -> bool {
    let expression = strip_parentheses(expression.trim());
    if let Some((left, right)) = split_outside(expression, " AND ") {
        return is_allowed(left, allowed) && is_allowed(right, allowed);
    }
    if let Some((left, right)) = split_outside(expression, " OR ").or_else(|| split_outside(expression, "/"))
    {
        return is_allowed(left, allowed) || is_allowed(right, allowed);
    }
    allowed.contains(&expression)
}

fn strip_parentheses(expression: &str) -> &str {
    match expression.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')) {
        Some(inner) if !inner.contains(['(', ')']) => inner,
        _ => expression,
    }
}

/// Splits at the first separator that is in no parenthesis.
fn split_outside<'a>(expression: &'a str, separator: &str) -> Option<(&'a str, &'a str)> {
    let mut depth = 0_i32;
    for (at, character) in expression.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ if depth == 0 && expression[at..].starts_with(separator) => {
                return Some((&expression[..at], &expression[at + separator.len()..]));
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::is_allowed;

    #[test]
    fn expressions() {
        let allowed = ["MIT", "Apache-2.0", "Unicode-3.0"];
        let cases = [
            ("MIT", true),
            ("MIT OR Apache-2.0", true),
            ("MIT/GPL-3.0", true),
            ("GPL-3.0 OR AGPL-3.0", false),
            ("(MIT OR GPL-3.0) AND Unicode-3.0", true),
            ("(MIT OR Apache-2.0) AND GPL-3.0", false),
            ("", false),
        ];
        for (expression, expected) in cases {
            assert_eq!(is_allowed(expression, &allowed), expected, "{expression}");
        }
    }
}
