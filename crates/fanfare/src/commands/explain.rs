//! `fanfare explain`.

use fanfare_api::{OrderDocument, RequestDocument, RequestExplanationDocument};

use crate::args::ExplainArgs;
use crate::commands::Context;
use crate::exit::{Exit, Failure};
use crate::printer::{Output, Printer, human_duration};

/// Columns of the longest stage's bar.
const BAR: f64 = 30.0;

pub(crate) async fn run(context: &Context, args: &ExplainArgs) -> Result<Exit, Failure> {
    let printer = &context.printer;
    let explanation = context.client.explain(&args.id).await?;
    match args.output.output {
        Output::Json | Output::Yaml => printer.document(args.output.output, &explanation)?,
        Output::Name => {
            let names = explanation.requests.iter().filter_map(|request| request.function.as_deref());
            names.take(1).try_for_each(|name| printer.out(name))?;
        }
        Output::Url => {
            let url = format!("{}/v1/requests/{}", context.client.base(), args.id);
            printer.out(url)?;
        }
        Output::Text | Output::Wide => print(printer, &explanation)?,
    }
    Ok(Exit::Ok)
}

fn print(printer: &Printer, explanation: &RequestExplanationDocument) -> Result<(), Failure> {
    for (n, request) in explanation.requests.iter().enumerate() {
        if n > 0 {
            printer.out("")?;
        }
        one(printer, request)?;
    }
    if !explanation.silent.is_empty() {
        let silent = explanation.silent.join(", ");
        printer.warning(format_args!("no answer came from {silent}: there may be more to it"));
    }
    Ok(())
}

fn one(printer: &Printer, request: &RequestDocument) -> Result<(), Failure> {
    let id = &request.request_id;
    let row = |name: &str, value: String| printer.out(format_args!("{name:<10} {value}"));
    row(
        "request",
        format!("{id}, {} ago, at data plane {}", human_duration(request.age_s), request.data_plane),
    )?;
    if let Some(function) = request.function.as_ref().or(request.function_id.as_ref()) {
        let revision = request.slot.as_ref().map(|slot| format!(" revision {}", slot.revision));
        row("function", format!("{function}{}", revision.unwrap_or_default()))?;
    }
    let status = request.status.map_or_else(|| "no status".to_owned(), |status| status.to_string());
    let reason = request.reason.as_ref().map(|reason| format!(" {reason}")).unwrap_or_default();
    row("outcome", format!("{}: {status}{reason}", word(request)))?;
    row("why", request.summary.clone())?;
    if !request.hint.is_empty() {
        row("hint", request.hint.clone())?;
    }
    if let Some(slot) = &request.slot {
        row(
            "sandbox",
            format!("{} on {} ({} after {:.3} ms)", slot.sandbox, slot.node, slot.why, slot.after_ms),
        )?;
    }
    timeline(printer, request)?;
    if let Some(order) = &request.order {
        ordered(printer, order)?;
    }
    if !request.decisions.is_empty() {
        printer.out("\ndecisions for the function then, newest first")?;
        for decision in &request.decisions {
            // Against the request's own arrival: before it where negative.
            let at_ms = (request.age_s - decision.age_s) * 1e3;
            let (from, to, reason) = (decision.from, decision.to, &decision.reason);
            printer.out(format_args!("  {at_ms:>+11.1} ms  {from} -> {to}  {reason}"))?;
        }
    }
    Ok(())
}

fn word(request: &RequestDocument) -> &'static str {
    use fanfare_api::RequestOutcome;
    match request.outcome {
        RequestOutcome::Answered => "answered",
        RequestOutcome::Refused => "refused",
        RequestOutcome::TimedOut => "timed out in the function",
        RequestOutcome::Crashed => "crashed in the function",
        RequestOutcome::Failed => "failed in the function",
        RequestOutcome::Cut => "cut",
        RequestOutcome::ClientLeft => "its client left",
    }
}

fn timeline(printer: &Printer, request: &RequestDocument) -> Result<(), Failure> {
    printer.out(format_args!("\nwhere its {:.3} ms went", request.total_ms))?;
    let longest = request.stages.iter().map(|stage| stage.took_ms).fold(f64::MIN_POSITIVE, f64::max);
    for stage in &request.stages {
        let bar = "#".repeat((stage.took_ms / longest * BAR).round() as usize);
        printer.out(format_args!(
            "  {:>+11.3} ms  {:<9} {:>11.3} ms  {bar:<30}  {}",
            stage.from_ms, stage.stage, stage.took_ms, stage.what
        ))?;
    }
    Ok(())
}

fn ordered(printer: &Printer, order: &OrderDocument) -> Result<(), Failure> {
    printer.out("\nwhy its sandbox was there")?;
    let ago = human_duration(order.age_s);
    let (sandboxes, for_demand) = (order.sandboxes, order.for_demand);
    printer.out(format_args!(
        "  ordered   {ago} ago, {sandboxes} at once, {for_demand} for requests that waited"
    ))?;
    printer.out(format_args!("  because   {}", order.reason))?;
    printer.out(format_args!("  placed    {} ({})", order.placed, order.placement))?;
    Ok(())
}
