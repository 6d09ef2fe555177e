//! Where reports go: the terminal, JSON files, BENCHMARKS.md.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde::Serialize;

use crate::args::{Args, Name};
use crate::error::{Context, Error, Result};
use crate::machine::Machine;
use crate::report::Report;

const INTRODUCTION: &str = "\
# Benchmarks

Each section is written by the command under its title (with `--write`), which measures everything in it, peers included, \
in one run; `cargo xtask bench --write` writes all of them, and `--rounds N` makes it quicker or surer.
What is compared takes turns in random order; ratios are of the same round.
A budget that was not met says so.
Loads that follow a trace are those of `fanfare load` and `fanfare sim` ([docs/load.md](docs/load.md)).
";
const CONTENTS: (&str, &str) = ("<!-- contents -->\n", "<!-- end: contents -->\n");

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
    let page = with_contents(&page).context(path.display())?;
    fs::write(&path, page).context(path.display())
}

/// The page with a list of all benches before the first section: what each is, its command, and of which build its section
/// is.
fn with_contents(page: &str) -> Result<String> {
    let (begin, end) = CONTENTS;
    let mut list = format!("{begin}| what | command | taken of |\n|---|---|---|\n");
    for name in Name::value_variants() {
        let (what, word) = (name.what(), name.word());
        let taken = section_of(page, word).and_then(build_of).unwrap_or("not taken yet");
        // Writing to a string cannot fail.
        let _ = writeln!(list, "| {what} | `cargo xtask bench {word}` | {taken} |");
    }
    list.push_str(end);
    match (page.find(begin), page.find(end)) {
        (None, None) => {
            let at = page.find("<!-- bench: ").unwrap_or(page.len());
            let (before, after) = (page[..at].trim_end(), &page[at..]);
            let gap = if after.is_empty() { "" } else { "\n" };
            Ok(format!("{before}\n\n{list}{gap}{after}"))
        }
        (Some(from), Some(to)) if from < to => {
            Ok(format!("{}{list}{}", &page[..from], &page[to + end.len()..]))
        }
        _ => Err(Error::new("the marks of the contents are broken")),
    }
}

/// What is between a section's marks.
fn section_of<'a>(page: &'a str, name: &str) -> Option<&'a str> {
    let (_, from) = page.split_once(&format!("<!-- bench: {name} -->\n"))?;
    from.split_once(&format!("<!-- end: {name} -->\n")).map(|(section, _)| section)
}

/// The build that a section names in its last line.
fn build_of(section: &str) -> Option<&str> {
    let machine = section.lines().rev().find(|line| line.starts_with("Machine: "))?;
    machine.rsplit_once(", build ").map(|(_, build)| build.trim_end_matches('.'))
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

    #[test]
    fn every_bench_is_in_the_contents_with_the_build_it_was_taken_of() {
        let section = "## Warm\n\nMachine: 2 x CPU, load 0.1, build release of 123abc.\n";
        let page = with_section("# B\n\nText.\n", "warm", section).unwrap();
        let page = with_contents(&page).unwrap();
        assert!(page.starts_with("# B\n\nText.\n\n<!-- contents -->\n| what |"), "{page}");
        assert!(page.contains("-->\n\n<!-- bench: warm -->\n## Warm\n"), "{page}");
        for name in Name::value_variants() {
            let taken = if *name == Name::Warm { "release of 123abc" } else { "not taken yet" };
            assert!(page.contains(&format!("| `cargo xtask bench {}` | {taken} |\n", name.word())), "{page}");
        }
        assert_eq!(with_contents(&page).unwrap(), page, "once is enough");
        let later = with_contents(&with_section(&page, "cold", section).unwrap()).unwrap();
        assert_eq!(later.matches("release of 123abc |").count(), 2);
        assert!(with_contents("<!-- end: contents -->\n<!-- contents -->\n").is_err());
    }

    #[test]
    fn the_page_lists_every_bench() {
        let page =
            fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../BENCHMARKS.md")).unwrap();
        assert!(with_contents(&page).unwrap() == page, "its contents are old: the next --write renews them");
    }
}
