//! The only place that prints: data on standard output, everything else on standard error.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::time::Instant;

use clap::ValueEnum;
use serde::Serialize;

use crate::error_document::{ErrorDocument, is_document};
use crate::exit::Failure;

/// How results are printed. The schemas are those of the control API and do not change within a major version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For people.
    #[default]
    Text,
    /// For people, with more columns.
    Wide,
    /// One JSON document (`logs`: one per line).
    Json,
    /// The same document as YAML.
    Yaml,
    /// Names only, one per line.
    Name,
    /// URLs only, one per line.
    Url,
}

/// Prints for one command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Printer {
    quiet: bool,
    debug: bool,
    color: bool,
    /// Failures are documents.
    documents: bool,
    start: Instant,
}

impl Printer {
    pub(crate) fn new(quiet: bool, debug: bool, output: Output) -> Self {
        let plain = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
        Printer {
            quiet,
            debug,
            color: !plain && io::stderr().is_terminal(),
            documents: is_document(output),
            start: Instant::now(),
        }
    }

    /// The same, without stages and notes.
    pub(crate) fn quieter(self) -> Self {
        Printer { quiet: true, ..self }
    }

    /// One line of the result.
    pub(crate) fn out(&self, line: impl Display) -> io::Result<()> {
        writeln!(io::stdout().lock(), "{line}")
    }

    /// Bytes of the result, at once.
    pub(crate) fn bytes(&self, bytes: &[u8]) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(bytes)?;
        out.flush()
    }

    /// The result as one JSON document.
    pub(crate) fn json<T: Serialize>(&self, document: &T) -> io::Result<()> {
        let mut out = io::stdout().lock();
        serde_json::to_writer_pretty(&mut out, document)?;
        writeln!(out)
    }

    /// The result as the document that `output` names: JSON or YAML.
    pub(crate) fn document<T: Serialize>(&self, output: Output, document: &T) -> Result<(), Failure> {
        match output {
            Output::Yaml => {
                let text = serde_saphyr::to_string(document)
                    .map_err(|e| Failure::platform(format!("cannot write the result as YAML: {e}")))?;
                self.out(format_args!("---\n{}", text.trim_end()))?;
            }
            _ => self.json(document)?,
        }
        Ok(())
    }

    /// The result as columns, each as wide as its widest cell; the last one is not padded.
    pub(crate) fn table(&self, header: &[&str], rows: &[Vec<String>]) -> io::Result<()> {
        let mut widths: Vec<usize> = header.iter().map(|h| h.chars().count()).collect();
        for row in rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let mut out = io::stdout().lock();
        let header: Vec<String> = header.iter().map(|h| (*h).to_owned()).collect();
        for row in std::iter::once(&header).chain(rows) {
            let cells: Vec<String> =
                row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}")).collect();
            writeln!(out, "{}", cells.join("  ").trim_end())?;
        }
        Ok(())
    }

    /// A stage that is done, with the time since the command began.
    pub(crate) fn stage(&self, what: impl Display) {
        if !self.quiet {
            self.err(format_args!("{:8.3}s {what}", self.start.elapsed().as_secs_f64()));
        }
    }

    /// A word on the side, unless `--quiet`.
    pub(crate) fn note(&self, what: impl Display) {
        if !self.quiet {
            self.err(what);
        }
    }

    /// What `--debug` adds.
    pub(crate) fn debug(&self, what: impl FnOnce() -> String) {
        if self.debug {
            self.err(format_args!("debug: {}", what()));
        }
    }

    /// What is wrong although the command goes on.
    pub(crate) fn warning(&self, what: impl Display) {
        self.err(format_args!("{} {what}", self.paint("warning:", "1;33")));
    }

    /// Why the command fails: what, why, the last log lines, the next command.
    pub(crate) fn failure(&self, failure: &Failure) {
        if failure.silent {
            return;
        }
        if self.documents {
            return self.err(ErrorDocument::from(failure).line());
        }
        self.err(format_args!("{} {}", self.paint("error:", "1;31"), failure.what));
        if let Some(stated) = &failure.stated {
            self.err(format_args!("  reason: {}", stated.reason));
            if let Some(id) = &stated.request_id {
                self.err(format_args!("  request: {id}"));
            }
            if let Some(log) = &stated.log_tail {
                self.err("  log:");
                log.lines().for_each(|line| self.err(format_args!("    | {line}")));
            }
        }
        if let Some(before) = &failure.still {
            self.err(format_args!("{} {before}", self.paint("note:", "1;36")));
        }
        let hints: Vec<_> = failure.next.iter().chain(&failure.undo).map(String::as_str).collect();
        if !hints.is_empty() {
            self.err(format_args!("{} {}", self.paint("hint:", "1;36"), hints.join("; ")));
        }
    }

    fn paint(&self, word: &str, color: &str) -> String {
        if self.color { format!("\x1b[{color}m{word}\x1b[0m") } else { word.to_owned() }
    }

    /// Standard error may be closed; nobody is left to be told.
    fn err(&self, line: impl Display) {
        let _ = writeln!(io::stderr().lock(), "{line}");
    }
}

/// A count with its word: `1 sandbox`, `2 sandboxes`.
pub(crate) fn counted(count: u64, word: &str) -> String {
    match (count, word.ends_with('x')) {
        (1, _) => format!("1 {word}"),
        (_, true) => format!("{count} {word}es"),
        (_, false) => format!("{count} {word}s"),
    }
}

/// A duration for people.
pub(crate) fn human_duration(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.0} µs", s * 1e6),
        s if s < 1.0 => format!("{:.1} ms", s * 1e3),
        s if s < 120.0 => format!("{s:.1} s"),
        s if s < 7_200.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.0} h", s / 3_600.0),
    }
}

/// An amount of memory for people.
pub(crate) fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = (0..UNITS.len()).rev().find(|&u| bytes >> (10 * u) > 0).unwrap_or(0);
    let amount = bytes as f64 / (1u64 << (10 * unit)) as f64;
    if amount.fract() < 0.05 {
        format!("{amount:.0} {}", UNITS[unit])
    } else {
        format!("{amount:.1} {}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_for_people() {
        let bytes =
            [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (128 << 20, "128 MiB")];
        for (amount, text) in bytes {
            assert_eq!(human_bytes(amount), text);
        }
        let durations = [(0.000_4, "400 µs"), (0.0123, "12.3 ms"), (59.0, "59.0 s"), (600.0, "10 min")];
        for (seconds, text) in durations {
            assert_eq!(human_duration(seconds), text);
        }
    }
}
