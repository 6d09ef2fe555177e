//! `fanfare describe`.

use fanfare_api::{
    DecisionDocument, FailedName, FunctionDocument, FunctionStatusDocument, PolicyName, Quantity,
    RevisionDocument, ScalingDocument, SecretPlaceName,
};

use crate::args::DescribeArgs;
use crate::changes;
use crate::commands::list::state_word;
use crate::commands::{Context, data_plane_url, function_url, revisions};
use crate::exit::{Exit, Failure};
use crate::printer::{Output, Printer, counted, human_bytes, human_duration};

/// Broken revisions that are shown with their last log lines; the others are with `fanfare revisions NAME -o wide`.
const LOGS_SHOWN: usize = 3;
/// Settings with a place of their own; others are shown where they are not the default.
const ABOVE: [&str; 11] = [
    "limits.memory_request",
    "limits.memory_limit",
    "limits.cpu_request",
    "limits.cpu_limit",
    "concurrency",
    "timeouts.request",
    "timeouts.start",
    "scaling.policy",
    "scaling.count",
    "scaling.min",
    "scaling.max",
];
/// Most decisions that are recognised as one pattern when they repeat: a start is ordered, fails, and is ordered again.
const DECISION_PERIOD_MAX: usize = 3;

pub(crate) async fn run(context: &Context, args: &DescribeArgs) -> Result<Exit, Failure> {
    let printer = &context.printer;
    let status = context.client.function(&args.name).await?;
    match args.output.output {
        Output::Json | Output::Yaml => printer.document(args.output.output, &status)?,
        Output::Name => printer.out(&status.function.name)?,
        Output::Url => {
            printer.out(function_url(&data_plane_url(&context.client.status().await?)?, &args.name))?;
        }
        Output::Text | Output::Wide => {
            let url = match context.client.status().await.and_then(|cluster| data_plane_url(&cluster)) {
                Ok(data_plane) => function_url(&data_plane, &args.name),
                Err(failure) => format!("({failure})"),
            };
            print(printer, &status, &url)?;
            if args.output.output == Output::Wide {
                scaling_in_full(printer, &status.function.scaling)?;
            }
        }
    }
    Ok(Exit::Ok)
}

fn print(printer: &Printer, status: &FunctionStatusDocument, url: &str) -> Result<(), Failure> {
    let function = &status.function;
    let row = |name: &str, value: String| printer.out(format_args!("{name:<12} {value}"));
    row("name", format!("{} ({} revision {})", function.name, status.id, status.revision))?;
    row("url", url.to_owned())?;
    let serving = match status.serving_revision {
        serving if serving == status.revision => String::new(),
        serving => format!(": revision {} cannot start, revision {serving} serves", status.revision),
    };
    row("state", format!("{}{serving}", state_word(status.state)))?;
    let counts = status.sandboxes;
    let old = match counts.old {
        0 => String::new(),
        old => format!(" ({old} of an earlier revision)"),
    };
    row(
        "sandboxes",
        format!(
            "{} ready{}, {} starting, {} stopping, {} wanted{}",
            counts.ready,
            old,
            counts.starting,
            counts.stopping,
            counts.wanted,
            if status.lacks_room { ", for which there is no room" } else { "" },
        ),
    )?;
    row(
        "requests",
        format!("{} in sandboxes, {} waiting (within the last second)", status.in_flight, status.queued),
    )?;
    if let Some(ms) = status.execution_ms {
        row("execution", human_duration(ms / 1e3))?;
    }
    settings(printer, function)?;
    revision_table(printer, status)?;
    if !status.decisions.is_empty() {
        printer.out("\ndecisions, newest first")?;
        decisions(printer, &status.decisions)?;
    }
    if let Some(failure) = &status.last_failure {
        let node = failure.node.as_ref().map(|node| format!(" on {node}")).unwrap_or_default();
        let ago = human_duration(failure.age_s);
        printer.out(format_args!("\nlast failure, {ago} ago{node}, revision {}", failure.revision))?;
        printer.out(format_args!("  {}", indented(&format!("{}: {}", failure.reason, failure.detail), 2)))?;
        failure.log_tail.lines().try_for_each(|line| printer.out(format_args!("    | {line}")))?;
    }
    failures(printer, status)
}

/// Revisions, and why some of them do not start; of the latest that is the last failure.
fn revision_table(printer: &Printer, status: &FunctionStatusDocument) -> Result<(), Failure> {
    if status.revisions.is_empty() {
        return Ok(());
    }
    printer.out("")?;
    if status.traffic_pending {
        printer.out("requests are shared as before until a revision that is to get some has come up:")?;
    }
    printer.table(&revisions::HEADER, &status.revisions.iter().map(revisions::row).collect::<Vec<_>>())?;
    let told = |r: &&RevisionDocument| !(r.latest && status.last_failure.is_some());
    let others: Vec<_> = status.revisions.iter().filter(told).cloned().collect();
    revisions::failures(printer, &others, LOGS_SHOWN)
}

/// Text of several lines, whose further ones begin below the first.
fn indented(text: &str, columns: usize) -> String {
    text.trim_end().lines().collect::<Vec<_>>().join(&format!("\n{}", " ".repeat(columns)))
}

/// Decisions, newest first. What comes again and again, such as a start that fails, is one line: the newest of it.
fn decisions(printer: &Printer, decisions: &[DecisionDocument]) -> Result<(), Failure> {
    let mut rest = decisions;
    while let Some(newest) = rest.first() {
        let period = (1..=DECISION_PERIOD_MAX).find(|period| repeats(rest, *period) > 1).unwrap_or(1);
        let times = repeats(rest, period);
        for decision in &rest[..period] {
            let ago = human_duration(decision.age_s);
            let reason = indented(&decision.reason, 4);
            printer.out(format_args!("  {ago:>8} ago  {} -> {}  {reason}", decision.from, decision.to))?;
        }
        let oldest = &rest[period * times - 1];
        if times > 1 {
            let since = human_duration(oldest.age_s - newest.age_s);
            let which = if period == 1 { "the same".to_owned() } else { format!("these {period}") };
            printer.out(format_args!("{:>14}{which}, {times} times within {since}", ""))?;
        }
        rest = &rest[period * times..];
    }
    Ok(())
}

/// How often the first `period` decisions are there, one after the other.
fn repeats(decisions: &[DecisionDocument], period: usize) -> usize {
    let what = |decision: &DecisionDocument| (decision.to, decision.reason.clone());
    let first = decisions.iter().take(period).map(what);
    let same = |chunk: &&[DecisionDocument]| chunk.iter().map(what).eq(first.clone());
    decisions.chunks_exact(period).take_while(same).count()
}

/// Failed requests and sandboxes by reason, each with the last one's words.
fn failures(printer: &Printer, status: &FunctionStatusDocument) -> Result<(), Failure> {
    if status.failures.is_empty() {
        return Ok(());
    }
    let since = format!("since revision {} was registered, or the control plane began", status.revision);
    printer.out(format_args!("\nfailures {since}"))?;
    for failure in &status.failures {
        let what = match failure.failed {
            FailedName::Requests => counted(failure.count, "request"),
            FailedName::Sandboxes => counted(failure.count, "sandbox"),
        };
        let ago = human_duration(failure.age_s);
        let request = match failure.request_id.as_str() {
            "" => String::new(),
            id => format!("  request {id}"),
        };
        printer.out(format_args!("  {:<16} {what:<14} last {ago} ago{request}", failure.reason))?;
        if !failure.detail.is_empty() {
            printer.out(format_args!("    {}", indented(&failure.detail, 4)))?;
        }
        failure.log_tail.lines().try_for_each(|line| printer.out(format_args!("      | {line}")))?;
    }
    Ok(())
}

fn settings(printer: &Printer, function: &FunctionDocument) -> Result<(), Failure> {
    let row = |name: &str, value: String| printer.out(format_args!("{name:<12} {value}"));
    let shown = |quantity: &Option<Quantity>| quantity.as_ref().map(ToString::to_string).unwrap_or_default();
    let memory = |quantity: &Option<Quantity>| match quantity {
        Some(Quantity::Integer(bytes)) => human_bytes(*bytes),
        _ => shown(quantity),
    };
    row("handler", changes::handler_words(&function.handler))?;
    row("runtime", function.runtime.clone().unwrap_or_default())?;
    if let Some(code) = &function.code {
        row("code", code.clone())?;
    }
    let limits = &function.limits;
    row(
        "memory",
        format!("{} reserved, {} at most", memory(&limits.memory_request), memory(&limits.memory_limit)),
    )?;
    let cpu_limit = match &limits.cpu_limit {
        Some(Quantity::Integer(0)) | None => "no limit".to_owned(),
        Some(limit) => format!("{limit} at most"),
    };
    row("cpu", format!("{} reserved, {cpu_limit}", shown(&limits.cpu_request)))?;
    row("concurrency", function.concurrency.map(|n| n.to_string()).unwrap_or_default())?;
    let timeouts = &function.timeouts;
    row("timeouts", format!("request {} s, start {} s", shown(&timeouts.request), shown(&timeouts.start)))?;
    let scaling = &function.scaling;
    let policy = scaling.policy.map(|policy| match policy {
        PolicyName::Kpa => "kpa, Knative's autoscaler",
        PolicyName::Hpa => "hpa, by CPU use",
        PolicyName::Fixed => "fixed",
    });
    let number = |n: Option<u32>| n.map(|n| n.to_string()).unwrap_or_default();
    let bounds = match scaling.count {
        Some(count) => format!("always {count}"),
        None => format!("{} to {} sandboxes", number(scaling.min), number(scaling.max)),
    };
    row("scaling", format!("{bounds} ({})", policy.unwrap_or_default()))?;
    // What is shown above is not said again.
    let named = |field: &str| changes::NAMED.iter().any(|(table, _)| field.starts_with(table));
    let shown = |field: &str| ABOVE.contains(&field) || named(field);
    for change in changes::chosen(function).iter().filter(|change| !shown(&change.field)) {
        row("", change.now())?;
    }
    if !function.env.is_empty() {
        let names: Vec<_> = function.env.0.iter().map(|(name, _)| name.as_str()).collect();
        row("env", names.join(" "))?;
    }
    for (place, used) in &function.secrets {
        let place = match used.place {
            SecretPlaceName::Env => format!("variable {place}"),
            SecretPlaceName::File => format!("/run/secrets/{place}"),
        };
        row("secret", format!("{} as {place}", used.secret))?;
    }
    for path in function.files.keys() {
        row("file", format!("/run/config/{path}"))?;
    }
    Ok(())
}

/// Every scaling setting, one in a line.
fn scaling_in_full(printer: &Printer, scaling: &ScalingDocument) -> Result<(), Failure> {
    printer.out("\nscaling")?;
    let settings = scaling_settings(scaling);
    settings.iter().try_for_each(|setting| printer.out(format_args!("  {setting}")))?;
    Ok(())
}

/// The settings as `name=value`, in the order of the document.
fn scaling_settings(scaling: &ScalingDocument) -> Vec<String> {
    match serde_json::to_value(scaling) {
        Ok(serde_json::Value::Object(fields)) => {
            let shown = |(name, value): (&String, &serde_json::Value)| match value.as_str() {
                Some(text) => format!("{name}={text}"),
                None => format!("{name}={value}"),
            };
            fields.iter().map(shown).collect()
        }
        _ => Vec::new(),
    }
}
