//! What a bench found: printed, as JSON, and as Markdown.

use std::fmt::Write as _;

use serde::Serialize;

use crate::error::{Error, Result};
use crate::plot::Plot;
use crate::stats::{Summary, paired_ratios};

/// The findings of one bench.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// The command that makes these numbers.
    pub(crate) command: String,
    /// What exactly was measured and compared, a sentence each.
    pub(crate) method: Vec<String>,
    pub(crate) measures: Vec<Measure>,
    pub(crate) budgets: Vec<Budget>,
    pub(crate) plots: Vec<Plot>,
}

/// Many measurements of one thing.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Measure {
    /// Measures of one group share a table.
    pub(crate) group: String,
    pub(crate) name: String,
    pub(crate) unit: &'static str,
    #[serde(flatten)]
    pub(crate) summary: Summary,
}

/// A number that was promised, beside the one that was found.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Budget {
    pub(crate) what: String,
    pub(crate) measured: f64,
    pub(crate) unit: &'static str,
    pub(crate) limit: Limit,
    pub(crate) met: bool,
}

/// Which side of a number is the good one.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Limit {
    AtMost(f64),
    AtLeast(f64),
}

impl Report {
    pub(crate) fn new(name: &'static str, title: &'static str, command: String) -> Self {
        let (method, measures, budgets) = (Vec::new(), Vec::new(), Vec::new());
        Report { name, title, command, method, measures, budgets, plots: Vec::new() }
    }

    pub(crate) fn say(&mut self, sentence: impl Into<String>) {
        self.method.push(sentence.into());
    }

    /// Adds a measure.
    ///
    /// # Errors
    /// Nothing was measured: a bench must not pass over that.
    pub(crate) fn measure(
        &mut self,
        group: impl Into<String>,
        name: impl Into<String>,
        unit: &'static str,
        samples: &[f64],
    ) -> Result<Summary> {
        let (group, name) = (group.into(), name.into());
        let summary = Summary::of(samples)
            .ok_or_else(|| Error::new(format!("{}: nothing was measured for {group}, {name}", self.name)))?;
        self.measures.push(Measure { group, name, unit, summary });
        Ok(summary)
    }

    /// Adds the ratio of ours to a peer's, round by round.
    pub(crate) fn ratio(
        &mut self,
        group: impl Into<String>,
        name: impl Into<String>,
        ours: &[f64],
        peer: &[f64],
    ) -> Result<Summary> {
        self.measure(group, name, "×", &paired_ratios(ours, peer))
    }

    /// Holds a number against what was promised.
    pub(crate) fn budget(
        &mut self,
        what: impl Into<String>,
        measured: f64,
        unit: &'static str,
        limit: Limit,
    ) {
        let met = match limit {
            Limit::AtMost(most) => measured <= most,
            Limit::AtLeast(least) => measured >= least,
        };
        self.budgets.push(Budget { what: what.into(), measured, unit, limit, met });
    }

    /// Fails when nothing was measured.
    pub(crate) fn finish(self) -> Result<Report> {
        match self.measures.is_empty() {
            true => Err(Error::new(format!("{}: nothing was measured", self.name))),
            false => Ok(self),
        }
    }

    fn groups(&self) -> Vec<(&str, Vec<&Measure>)> {
        let mut groups: Vec<(&str, Vec<&Measure>)> = Vec::new();
        for measure in &self.measures {
            match groups.iter_mut().find(|(group, _)| *group == measure.group) {
                Some((_, of_group)) => of_group.push(measure),
                None => groups.push((&measure.group, vec![measure])),
            }
        }
        groups
    }

    /// As text with aligned columns.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("\n{}: {}\n$ {}\n", self.name, self.title, self.command);
        for sentence in &self.method {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "  {sentence}");
        }
        for (group, measures) in self.groups() {
            let width = measures.iter().map(|m| m.name.chars().count()).chain([group.chars().count()]).max();
            let width = width.unwrap_or(0);
            let _ = writeln!(text, "\n  {group:width$}  {}", columns(&HEADS.map(str::to_owned)));
            for measure in measures {
                let _ = writeln!(text, "  {:width$}  {}", measure.name, columns(&measure.cells()));
            }
        }
        if !self.budgets.is_empty() {
            text.push('\n');
        }
        for budget in &self.budgets {
            let _ = writeln!(text, "  {:6}  {}", budget.verdict(), budget.text());
        }
        text
    }

    /// As a section of a page.
    pub(crate) fn markdown(&self) -> String {
        let mut text = format!("## {}\n\n`{}`\n\n", self.title, self.command);
        for sentence in &self.method {
            let _ = writeln!(text, "{sentence}");
        }
        for (group, measures) in self.groups() {
            let _ = writeln!(text, "\n| {group} | {} |", HEADS.join(" | "));
            let _ = writeln!(text, "|---|{}", "---:|".repeat(HEADS.len()));
            for measure in measures {
                let _ = writeln!(text, "| {} | {} |", measure.name, measure.cells().join(" | "));
            }
        }
        if !self.budgets.is_empty() {
            text.push('\n');
        }
        for budget in &self.budgets {
            let _ = writeln!(text, "- {}: {}", budget.verdict(), budget.text());
        }
        for plot in &self.plots {
            let _ = writeln!(text, "\n![{}]({})", plot.title, self.path_of(plot));
        }
        text
    }

    /// Where a plot is, from the root of the repository.
    pub(crate) fn path_of(&self, plot: &Plot) -> String {
        format!("docs/plots/{}-{}.svg", self.name, plot.name)
    }
}

const HEADS: [&str; 7] = ["unit", "n", "min", "p25", "median", "p75", "p99"];

fn columns(cells: &[String; 7]) -> String {
    let [unit, n, rest @ ..] = cells;
    let mut text = format!("{unit:>8} {n:>6}");
    for cell in rest {
        let _ = write!(text, " {cell:>10}");
    }
    text
}

impl Measure {
    fn cells(&self) -> [String; 7] {
        let s = &self.summary;
        let [min, p25, p50, p75, p99] = [s.min, s.p25, s.p50, s.p75, s.p99].map(number);
        [self.unit.to_owned(), s.n.to_string(), min, p25, p50, p75, p99]
    }
}

impl Budget {
    fn verdict(&self) -> &'static str {
        if self.met { "met" } else { "missed" }
    }

    fn text(&self) -> String {
        let (word, limit) = match self.limit {
            Limit::AtMost(limit) => ("at most", limit),
            Limit::AtLeast(limit) => ("at least", limit),
        };
        format!(
            "{}: {} {} (budget: {word} {} {})",
            self.what,
            number(self.measured),
            self.unit,
            number(limit),
            self.unit
        )
    }
}

/// Three significant digits, whole numbers in full.
fn number(value: f64) -> String {
    let size = value.abs();
    match size {
        0.0 => "0".to_owned(),
        _ if size >= 100.0 => format!("{value:.0}"),
        _ if size >= 10.0 => format!("{value:.1}"),
        _ if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::{Axis, Line};

    fn sample() -> Report {
        let mut report = Report::new("warm", "Warm requests", "cargo xtask bench warm".to_owned());
        report.say("Both answer 12 bytes.");
        report.measure("1 connection", "ours, p50", "us", &[1.0, 2.0, 3.0]).unwrap();
        report.ratio("1 connection", "ours / nginx", &[1.0, 2.0, 9.0], &[2.0, 2.0, 3.0]).unwrap();
        report.measure("32 connections", "ours, p50", "us", &[10.0]).unwrap();
        report.budget("CPU per request", 1.2, "×", Limit::AtMost(1.0));
        report.budget("throughput", 1.2, "×", Limit::AtLeast(1.0));
        report.plots.push(Plot {
            name: "cdf",
            title: "All of them".to_owned(),
            x: Axis::log("us"),
            y: Axis::linear("share"),
            lines: vec![Line::cdf("ours", &[1.0, 2.0, 3.0])],
        });
        report.finish().unwrap()
    }

    #[test]
    fn a_bench_that_measures_nothing_fails() {
        let mut report = Report::new("x", "X", String::new());
        assert!(report.measure("g", "n", "us", &[]).is_err());
        assert!(report.ratio("g", "n", &[1.0], &[0.0]).is_err());
        assert!(report.finish().is_err());
    }

    #[test]
    fn text_and_markdown_hold_every_number() {
        let report = sample();
        for text in [report.text(), report.markdown()] {
            for part in
                ["cargo xtask bench warm", "12 bytes", "ours, p50", "ours / nginx", "2.00", "32 connections"]
            {
                assert!(text.contains(part), "{part} is not in\n{text}");
            }
            assert_eq!(text.matches("missed").count(), 1);
        }
        assert!(report.markdown().contains("![All of them](docs/plots/warm-cdf.svg)"));
        let rows: Vec<_> = report
            .markdown()
            .lines()
            .filter(|l| l.starts_with('|'))
            .map(|l| l.matches('|').count())
            .collect();
        assert_eq!(rows, [9; 7], "every row has as many cells as its head");
    }

    #[test]
    fn json_is_flat_and_names_units() {
        let json = serde_json::to_value(sample()).unwrap();
        assert_eq!(json["measures"][0]["p50"], 2.0);
        assert_eq!(json["measures"][0]["unit"], "us");
        assert_eq!(json["budgets"][0]["met"], false);
        assert_eq!(json["budgets"][0]["limit"]["at_most"], 1.0);
    }

    #[test]
    fn three_digits() {
        let cases = [
            (0.0, "0"),
            (0.0123, "0.012"),
            (1.234, "1.23"),
            (12.34, "12.3"),
            (123.4, "123"),
            (54_321.0, "54321"),
        ];
        for (value, text) in cases {
            assert_eq!(number(value), text);
        }
    }
}
