//! `fanfare revisions`.

use std::time::{SystemTime, UNIX_EPOCH};

use fanfare_api::RevisionDocument;

use crate::args::RevisionsArgs;
use crate::commands::{Context, data_plane_url, function_url};
use crate::exit::{Exit, Failure};
use crate::printer::{Output, Printer, human_duration};

/// Characters of a digest that tell revisions apart.
const DIGEST_SHOWN: usize = 12;

pub(crate) async fn run(context: &Context, args: &RevisionsArgs) -> Result<Exit, Failure> {
    let (printer, name) = (&context.printer, &args.name);
    let list = context.client.revisions(name).await?;
    match args.output.output {
        output @ (Output::Json | Output::Yaml) => printer.document(output, &list)?,
        Output::Name => {
            list.revisions.iter().try_for_each(|r| printer.out(format_args!("{name}@{}", r.revision)))?;
        }
        Output::Url => {
            let data_plane = data_plane_url(&context.client.status().await?)?;
            printer.out(function_url(&data_plane, name))?;
            let tags = list.revisions.iter().flat_map(|r| &r.tags);
            tags.into_iter()
                .try_for_each(|tag| printer.out(function_url(&data_plane, format_args!("{name}@{tag}"))))?;
        }
        Output::Text => printer.table(&HEADER, &list.revisions.iter().map(row).collect::<Vec<_>>())?,
        Output::Wide => {
            printer.table(&HEADER, &list.revisions.iter().map(row).collect::<Vec<_>>())?;
            failures(printer, &list.revisions, usize::MAX)?;
        }
    }
    Ok(Exit::Ok)
}

pub(crate) const HEADER: [&str; 7] =
    ["REVISION", "REGISTERED", "TRAFFIC", "TAGS", "READY", "DIGEST", "STATE"];

pub(crate) fn row(revision: &RevisionDocument) -> Vec<String> {
    let latest = if revision.latest { " (latest)" } else { "" };
    let sandboxes = revision.sandboxes;
    let state = match &revision.failure {
        Some(failure) => format!("does not start: {}", failure.reason),
        None if sandboxes.ready > 0 => "ready".to_owned(),
        None if sandboxes.starting > 0 => "starting".to_owned(),
        None => "idle".to_owned(),
    };
    vec![
        format!("{}{latest}", revision.revision),
        ago(revision.created_unix_ms),
        format!("{} %", revision.weight),
        match revision.tags.as_slice() {
            [] => "-".to_owned(),
            tags => tags.join(","),
        },
        format!("{}/{}", sandboxes.ready, sandboxes.wanted),
        revision.digest.chars().take(DIGEST_SHOWN).collect(),
        state,
    ]
}

/// Why revisions do not start, the newest `logs` of them with their last lines.
pub(crate) fn failures(
    printer: &Printer,
    revisions: &[RevisionDocument],
    logs: usize,
) -> Result<(), Failure> {
    let broken = revisions.iter().filter_map(|r| r.failure.as_ref().map(|failure| (r.revision, failure)));
    for (index, (revision, failure)) in broken.enumerate() {
        let when = ago(failure.at_unix_ms);
        printer.out(format_args!("\nrevision {revision} does not start, found {when}"))?;
        printer.out(format_args!("  {}: {}", failure.reason, failure.detail))?;
        if index < logs {
            failure.log_tail.lines().try_for_each(|line| printer.out(format_args!("    | {line}")))?;
        }
    }
    Ok(())
}

/// How long ago, by this machine's clock, which need not be the control plane's.
fn ago(unix_ms: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    match unix_ms {
        0 => "-".to_owned(),
        then => format!("{} ago", human_duration((now - then as f64 / 1e3).max(0.0))),
    }
}
