//! Where the time of cold starts went, out of their `Server-Timing`.

use fanfare_load::server_timing::{self, STAGES};

use crate::error::{Error, Result};
use crate::report::Report;
use crate::stats::Summary;
use crate::wire::Answer;

/// The stage that only a cold start has.
const COLD: &str = "create";

/// Stages of many cold starts, in milliseconds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stages {
    samples: [Vec<f64>; STAGES.len()],
}

/// Whether an answer waited for a new sandbox.
pub(crate) fn is_cold(answer: &Answer<'_>) -> bool {
    let header = answer.header("server-timing").unwrap_or_default();
    server_timing::entries(header).any(|(name, _)| name == COLD)
}

impl Stages {
    /// Takes those of one answer, which must be a 200 that waited for a new sandbox.
    pub(crate) fn take(&mut self, answer: &Answer<'_>) -> Result<()> {
        if answer.status != 200 {
            return Err(Error::new(format!("answered {}: {}", answer.status, answer.text())));
        }
        let header = answer.header("server-timing").unwrap_or_default();
        let stages: Vec<_> = server_timing::entries(header).collect();
        if !stages.iter().any(|(name, _)| *name == COLD) {
            return Err(Error::new(format!("not a cold start: {header:?}")));
        }
        for (name, millis) in stages {
            if let Some(at) = STAGES.iter().position(|stage| *stage == name) {
                self.samples[at].push(millis);
            }
        }
        Ok(())
    }

    /// Adds a measure per stage, and gives that of the wait as a whole.
    pub(crate) fn tell(&self, report: &mut Report, group: &str) -> Result<Summary> {
        let [waits, parts @ ..] = &self.samples;
        let waits = report.measure(group, STAGES[0], "ms", waits)?;
        for (name, samples) in STAGES[1..].iter().zip(parts) {
            if !samples.is_empty() {
                report.measure(group, *name, "ms", samples)?;
            }
        }
        Ok(waits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire;

    fn answer(status: u16, timing: &str) -> Vec<u8> {
        format!("HTTP/1.1 {status} X\r\nServer-Timing: {timing}\r\ncontent-length: 0\r\n\r\n").into_bytes()
    }

    fn take(stages: &mut Stages, bytes: &[u8]) -> Result<()> {
        stages.take(&Answer::new(wire::parse(bytes).unwrap().unwrap(), bytes))
    }

    #[test]
    fn stages_of_cold_starts_are_collected() {
        let mut stages = Stages::default();
        take(&mut stages, &answer(200, "queue;dur=2.5, create;dur=0.7, new;dur=1, execute;desc=x;dur=1"))
            .unwrap();
        take(&mut stages, &answer(200, "queue;dur=1.5, create;dur=0.5")).unwrap();
        let mut report = Report::new("x", "X", String::new());
        stages.tell(&mut report, "stages").unwrap();
        let told: Vec<_> =
            report.measures.iter().map(|m| (m.name.as_str(), m.summary.n, m.summary.p50)).collect();
        assert_eq!(told, [("queue", 2, 2.0), ("create", 2, 0.6), ("execute", 1, 1.0)]);
    }

    #[test]
    fn a_warm_answer_or_an_error_is_no_cold_start() {
        let mut stages = Stages::default();
        assert!(take(&mut stages, &answer(200, "queue;dur=0.1, execute;dur=1")).is_err());
        assert!(take(&mut stages, &answer(503, "queue;dur=0.1, create;dur=1")).is_err());
    }
}
