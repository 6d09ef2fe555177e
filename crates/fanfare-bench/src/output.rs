//! Where reports go: the terminal, JSON files, BENCHMARKS.md.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::args::Args;
use crate::error::{Context, Error, Result};
use crate::machine::Machine;
use crate::report::Report;

const INTRODUCTION: &str = "\
# Benchmarks

Each section is written by the command under its title (with `--write`), which measures everything in it, peers included, \
in one run.
What is compared takes turns in random order; ratios are of the same round.
A budget that was not met says so.
";

/// The directory of JSON files: `bench` in the target directory that this program was built into.
pub(crate) fn directory(args: &Args) -> Result<PathBuf> {
    let directory = match &args.out {
        Some(directory) => directory.clone(),
        None => {
            let program = std::env::current_exe().context("find this program")?;
            let target =
                program.ancestors().nth(2).ok_or_else(|| Error::new("this program has no directory"))?;
            target.join("bench")
        }
    };
    fs::create_dir_all(&directory).context(directory.display())?;
    directory.canonicalize().context(directory.display())
}

#[derive(Serialize)]
struct Document<'a> {
    machine: &'a Machine,
    seed: u64,
    rounds: u32,
    quick: bool,
    #[serde(flatten)]
    report: &'a Report,
}

/// Writes one report as JSON, its plots beside it, and says where.
pub(crate) fn json(directory: &Path, args: &Args, machine: &Machine, report: &Report) -> Result<PathBuf> {
    let document = Document { machine, seed: args.seed, rounds: args.rounds, quick: args.quick, report };
    let kind = if args.compare_with.is_some() { "compare-" } else { "" };
    let path = directory.join(format!("{kind}{}.json", report.name));
    let mut text = serde_json::to_string_pretty(&document).context("write JSON")?;
    text.push('\n');
    fs::write(&path, text).context(path.display())?;
    for plot in &report.plots {
        let path = directory.join(format!("{}-{}.svg", report.name, plot.name));
        fs::write(&path, plot.svg()).context(path.display())?;
    }
    Ok(path)
}

/// Replaces the report's section of BENCHMARKS.md, or adds it, and draws its plots.
pub(crate) fn write(machine: &Machine, report: &Report) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for plot in &report.plots {
        let path = root.join(report.path_of(plot));
        let directory = path.parent().unwrap_or(&root);
        fs::create_dir_all(directory).context(directory.display())?;
        fs::write(&path, plot.svg()).context(path.display())?;
    }
    let path = root.join("BENCHMARKS.md");
    let page = match fs::read_to_string(&path) {
        Ok(page) => page,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => INTRODUCTION.to_owned(),
        Err(error) => return Err(error).context(path.display()),
    };
    let section = format!("{}\nMachine: {}.\n", report.markdown(), machine.describe());
    let page = with_section(&page, report.name, &section).context(path.display())?;
    fs::write(&path, page).context(path.display())
}

/// The page with this section between its marks.
fn with_section(page: &str, name: &str, section: &str) -> Result<String> {
    let (begin, end) = (format!("<!-- bench: {name} -->\n"), format!("<!-- end: {name} -->\n"));
    let marked = format!("{begin}{section}{end}");
    match (page.find(&begin), page.find(&end)) {
        (None, None) => Ok(format!("{}\n\n{marked}", page.trim_end())),
        (Some(from), Some(to)) if from < to => {
            Ok(format!("{}{marked}{}", &page[..from], &page[to + end.len()..]))
        }
        _ => Err(Error::new(format!("the marks of the section {name:?} are broken"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_are_added_replaced_and_kept_apart() {
        let one = with_section("# B\n", "a", "old\n").unwrap();
        let two = with_section(&one, "b", "other\n").unwrap();
        let three = with_section(&two, "a", "new\n").unwrap();
        let expected =
            "# B\n\n<!-- bench: a -->\nnew\n<!-- end: a -->\n\n<!-- bench: b -->\nother\n<!-- end: b -->\n";
        assert_eq!(three, expected);
        assert_eq!(with_section(&three, "b", "other\n").unwrap(), three);
        assert!(with_section("<!-- bench: a -->\n", "a", "x").is_err());
    }
}
