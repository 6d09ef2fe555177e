//! `fanfare schedule list`.

use fanfare_api::{FiredDocument, FiredOutcome, ScheduleListDocument, ScheduleSummaryDocument};

use super::{state_word, url};
use crate::args::ScheduleListArgs;
use crate::commands::Context;
use crate::exit::{Exit, Failure};
use crate::printer::Output;

pub(crate) async fn run(context: &Context, args: &ScheduleListArgs) -> Result<Exit, Failure> {
    let printer = &context.printer;
    let schedules = context.client.schedules().await?;
    match args.output.output {
        output @ (Output::Json | Output::Yaml) => {
            printer.document(output, &ScheduleListDocument { schedules, next: None })?;
        }
        Output::Name => schedules.iter().try_for_each(|s| printer.out(&s.name))?,
        Output::Url => schedules.iter().try_for_each(|s| printer.out(url(context, &s.name)))?,
        Output::Text | Output::Wide if schedules.is_empty() => {
            printer
                .note("no schedules; make one with `fanfare schedule set NAME FUNCTION --cron EXPRESSION`");
        }
        output @ (Output::Text | Output::Wide) => {
            let columns = if output == Output::Wide { 8 } else { 5 };
            let row = |s: &ScheduleSummaryDocument| {
                let next = s.next.as_ref();
                let mut row = vec![
                    s.name.clone(),
                    s.function.clone(),
                    when(s),
                    state_word(s.state).to_owned(),
                    next.map_or_else(|| "-".to_owned(), |next| next.local.clone()),
                    next.map_or_else(|| "-".to_owned(), |next| next.utc.clone()),
                    s.last.as_ref().map_or_else(|| "-".to_owned(), |last| last.scheduled.clone()),
                    s.last.as_ref().map_or_else(|| "-".to_owned(), became),
                ];
                row.truncate(columns);
                row
            };
            let header = ["NAME", "FUNCTION", "WHEN", "STATE", "NEXT", "NEXT (UTC)", "LAST (UTC)", "LAST"];
            printer.table(&header[..columns], &schedules.iter().map(row).collect::<Vec<_>>())?;
        }
    }
    Ok(Exit::Ok)
}

fn when(schedule: &ScheduleSummaryDocument) -> String {
    match (&schedule.cron, &schedule.zone, &schedule.at) {
        (Some(cron), Some(zone), _) => format!("{cron} ({zone})"),
        (Some(cron), None, _) => cron.clone(),
        (None, _, at) => format!("once, {}", at.as_deref().unwrap_or("-")),
    }
}

/// What became of an occurrence, in a few words.
pub(super) fn became(fired: &FiredDocument) -> String {
    match fired.outcome {
        FiredOutcome::Accepted => "accepted".to_owned(),
        FiredOutcome::Skipped => "skipped".to_owned(),
        FiredOutcome::GivenUp => format!("given up ({})", fired.reason.as_deref().unwrap_or("-")),
        FiredOutcome::Unknown => "unknown".to_owned(),
    }
}
