//! `fanfare schedule describe`.

use std::time::Duration;

use fanfare_api::{FiredDocument, ScheduleDocument, ScheduleStatusDocument};

use super::list::became;
use super::{state_word, url};
use crate::args::ScheduleDescribeArgs;
use crate::commands::{Context, asynchronous, data_plane};
use crate::exit::{Exit, Failure};
use crate::http::Base;
use crate::printer::{Output, Printer, human_bytes};

/// The longest that the states of invocations are waited for, together.
const STATES_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) async fn run(context: &Context, args: &ScheduleDescribeArgs) -> Result<Exit, Failure> {
    let printer = &context.printer;
    let status = context.client.schedule(&args.name).await?;
    match args.output.output {
        output @ (Output::Json | Output::Yaml) => printer.document(output, &status)?,
        Output::Name => printer.out(&status.schedule.name)?,
        Output::Url => printer.out(url(context, &status.schedule.name))?,
        Output::Text | Output::Wide => {
            let asked = status.fired.iter().any(|fired| fired.invocation.is_some());
            let base = match asked {
                true => data_plane(context, args.data_plane.as_deref()).await.ok(),
                false => None,
            };
            let states = states(context, base.as_ref(), &status.fired).await;
            print(printer, &status, &states)?;
        }
    }
    Ok(Exit::Ok)
}

/// How the invocations stand, as far as a data plane says.
async fn states(context: &Context, base: Option<&Base>, fired: &[FiredDocument]) -> Vec<String> {
    let mut states = vec!["-".to_owned(); fired.len()];
    let Some(base) = base else { return states };
    let ask = async {
        for (fired, state) in fired.iter().zip(&mut states) {
            if let Some(id) = fired.invocation.as_ref().and_then(|id| id.parse().ok()) {
                *state = match asynchronous::now(context, base, id).await {
                    Ok(document) => asynchronous::state(&document),
                    Err(failure) => failure.stated.map_or_else(|| "?".to_owned(), |stated| stated.reason),
                };
            }
        }
    };
    // Those that were not asked about by then stay as they are.
    let _ = tokio::time::timeout(STATES_TIMEOUT, ask).await;
    states
}

fn print(printer: &Printer, status: &ScheduleStatusDocument, states: &[String]) -> Result<(), Failure> {
    let schedule = &status.schedule;
    let row = |name: &str, value: String| printer.out(format_args!("{name:<10} {value}"));
    row("name", format!("{} ({})", schedule.name, status.id))?;
    row("function", schedule.function.clone())?;
    row("when", when(schedule))?;
    row("state", state_word(status.state).to_owned())?;
    row("call", call(schedule))?;
    for (name, value) in &schedule.headers {
        row("header", format!("{name}: {value}"))?;
    }
    row("delivery", delivery(schedule))?;
    if let Some(firing) = &status.firing {
        let whom = firing.data_plane.as_ref().map(|whom| format!(" to {whom}")).unwrap_or_default();
        let why = firing.detail.as_ref().map(|detail| format!(": {detail}")).unwrap_or_default();
        row("under way", format!("{}{whom}{why}", firing.scheduled))?;
    }
    if !status.next.is_empty() {
        printer.out("")?;
        let zone = schedule.zone.as_deref().unwrap_or("UTC").to_uppercase();
        let rows: Vec<_> =
            status.next.iter().map(|next| vec![next.local.clone(), next.utc.clone()]).collect();
        printer.table(&[&format!("NEXT ({zone})"), "UTC"], &rows)?;
    }
    if !status.fired.is_empty() {
        printer.out("")?;
        let row = |(fired, state): (&FiredDocument, &String)| {
            let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
            vec![
                fired.scheduled.clone(),
                if fired.by_hand { "by hand" } else { "by time" }.to_owned(),
                became(fired),
                fired.left_out.to_string(),
                text(&fired.invocation),
                state.clone(),
                text(&fired.detail),
            ]
        };
        let rows: Vec<_> = status.fired.iter().zip(states).map(row).collect();
        let header = ["LAST (UTC)", "FIRED", "OUTCOME", "LEFT OUT", "INVOCATION", "STATE", "DETAIL"];
        printer.table(&header, &rows)?;
    }
    Ok(())
}

fn when(schedule: &ScheduleDocument) -> String {
    match (&schedule.cron, &schedule.at) {
        (Some(cron), _) => format!("{cron}  ({})", schedule.zone.as_deref().unwrap_or("UTC")),
        (None, at) => format!("once, at {}", at.as_deref().unwrap_or("-")),
    }
}

fn call(schedule: &ScheduleDocument) -> String {
    let (method, path) = (schedule.method.as_deref(), schedule.path.as_deref());
    let body = schedule.body.as_ref().map_or(0, String::len) as u64;
    let body = if body == 0 { "no body".to_owned() } else { format!("a body of {}", human_bytes(body)) };
    format!("{} {}, {body}", method.unwrap_or("POST"), path.unwrap_or("/"))
}

fn delivery(schedule: &ScheduleDocument) -> String {
    let word = |at_most_once| if at_most_once { "at-most-once" } else { "at-least-once" };
    let delivery = word(schedule.delivery == Some(fanfare_api::DeliveryName::AtMostOnce));
    match schedule.missed {
        Some(fanfare_api::MissedName::Once) => {
            format!("{delivery}; of missed occurrences the last happens late")
        }
        _ => format!("{delivery}; missed occurrences are left out"),
    }
}
