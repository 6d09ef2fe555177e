//! `fanfare demo`: everything in one process, called cold, warm and all at once, and what that took.

use std::path::Path;
use std::time::{Duration, Instant};

use fanfare_api::{FunctionDocument, HandlerDocument, Quantity};
use fanfare_types::FunctionName;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http::{HeaderMap, Request};
use http_body_util::BodyExt;
use serde::Serialize;

use crate::args::{DemoArgs, WaitArgs};
use crate::client::Client;
use crate::commands::invoke::server_timing;
use crate::commands::{Context, deploy};
use crate::exit::{Exit, Failure};
use crate::http::full_body;
use crate::local::{Local, LocalOptions};
use crate::printer::{Output, Printer, counted, human_duration};
use crate::signals::Signals;
use crate::{logging, roles};

/// The handler that is called.
const HANDLER: &str = include_str!("demo/hello.py");
/// Warm calls of each function.
const WARM_CALLS: usize = 500;
/// How long each request of the surge works.
const SURGE_WORK: Duration = Duration::from_secs(1);
/// Longest call.
const CALL_TIMEOUT: Duration = Duration::from_secs(20);
/// Longest demo.
const DEMO_TIMEOUT: Duration = Duration::from_secs(60);
/// Reserved for each sandbox of the surge, so that many fit on a small machine.
const SURGE_MEMORY_REQUEST_BYTES: u64 = 1 << 20;

/// What was measured: the schema of `-o json`.
#[derive(Debug, Serialize)]
struct Report {
    up_ms: f64,
    functions: Vec<Measured>,
    surge: Surge,
    shutdown_ms: f64,
    orphans: usize,
}

#[derive(Debug, Serialize)]
struct Measured {
    name: String,
    what: &'static str,
    deploy_ms: f64,
    cold_ms: f64,
    cold_stages_ms: Vec<(String, f64)>,
    warm_calls: usize,
    warm_p50_ms: f64,
    warm_p99_ms: f64,
}

#[derive(Debug, Serialize)]
struct Surge {
    requests: u32,
    work_ms: f64,
    makespan_ms: f64,
    sandboxes: u32,
    failed: u32,
}

pub(crate) async fn run(args: &DemoArgs, printer: Printer) -> Result<Exit, Failure> {
    logging::start("error");
    let mut signals = Signals::listen()?;
    let directory = tempfile::Builder::new()
        .prefix("fanfare-demo-")
        .tempdir()
        .map_err(|e| Failure::platform(format!("cannot make a temporary directory: {e}")))?;
    let begin = Instant::now();
    let options = LocalOptions::temporary(directory.path(), roles::machine());
    let run_dir = options.run_dir.clone();
    let mut local = Local::start(options).await?;
    let up_ms = ms(begin.elapsed());
    printer.stage("Started control plane, data plane and node in one process");

    let api = local.api_url();
    let measuring = tokio::time::timeout(DEMO_TIMEOUT, measure(&api, directory.path(), args.surge, printer));
    let measured = tokio::select! {
        biased;
        () = signals.next() => Err(Failure::said(Exit::Interrupted)),
        failed = local.failed() => Err(failed),
        measured = measuring => {
            let measured = measured.unwrap_or_else(|_| {
                Err(Failure::new(Exit::Timeout, format!("the demo took over {DEMO_TIMEOUT:?}")))
            });
            // What is measured has ended by the same signal, which must not be taken for a second one.
            if measured.as_ref().is_err_and(|failure| failure.exit == Exit::Interrupted) {
                signals.next().await;
            }
            measured
        }
    };
    let begin = Instant::now();
    let stopped = signals.or_at_once(local.stop(printer.quieter())).await;
    let shutdown_ms = ms(begin.elapsed());
    let orphans = fanfare_sandbox_process::audit(&run_dir)
        .map_err(|e| Failure::platform(format!("cannot look for orphans: {e}")));
    let path = directory.path().to_owned();
    let removed = directory.close();
    let measured = match measured {
        Err(failure) if failure.exit == Exit::Interrupted => None,
        measured => Some(measured?),
    };
    stopped?;
    removed.map_err(|e| Failure::platform(format!("cannot remove {}: {e}", path.display())))?;
    let orphans = orphans?.len();
    let Some((functions, surge)) = measured else { return Err(ended_early(orphans)) };
    let report = Report { up_ms, functions, surge, shutdown_ms, orphans };
    match args.output.output {
        Output::Json | Output::Yaml => printer.document(args.output.output, &report)?,
        Output::Text | Output::Wide | Output::Name | Output::Url => print(printer, &report)?,
    }
    let failed = report.surge.failed > 0 || report.orphans > 0;
    Ok(if failed { Exit::Platform } else { Exit::Ok })
}

/// What Ctrl-C leaves of a demonstration that has been ended: nothing, whatever was under way.
fn ended_early(orphans: usize) -> Failure {
    Failure::new(
        Exit::Interrupted,
        match orphans {
            0 => "interrupted; nothing of the demonstration is left".to_owned(),
            left => {
                format!("interrupted; {} left: `fanfare doctor` finds them", counted(left as u64, "orphan"))
            }
        },
    )
}

async fn measure(
    api: &str,
    directory: &Path,
    surge: u32,
    printer: Printer,
) -> Result<(Vec<Measured>, Surge), Failure> {
    let client = Client::new(api, printer)?;
    let context = Context { client, printer: printer.quieter() };
    let source = directory.join("hello.py");
    std::fs::write(&source, HANDLER)
        .map_err(|e| Failure::platform(format!("cannot write {}: {e}", source.display())))?;
    let python = || HandlerDocument::Python { file: "hello.py".to_owned(), handler: "handler".to_owned() };

    let hello = FunctionDocument::new("hello", python());
    let hello = call_both(&context, hello, &source, "a Python handler").await?;
    printer.stage("Called hello, cold and warm");

    let program =
        std::env::current_exe().map_err(|e| Failure::platform(format!("cannot find this program: {e}")))?;
    let name = program.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let command = vec![name, "__sample-server".to_owned()];
    let server = FunctionDocument::new(
        "server",
        HandlerDocument::Http { command, inherits_listener: false, protocol: Default::default() },
    );
    let server = call_both(&context, server, &program, "a compiled HTTP server on $PORT").await?;
    printer.stage("Called server, cold and warm");

    let mut document = FunctionDocument::new("surge", python());
    document.limits.memory_request = Some(Quantity::Integer(SURGE_MEMORY_REQUEST_BYTES));
    document.limits.cpu_request = Some(Quantity::Integer(0));
    let document = deploy::upload(&context, &source, document).await?;
    let deployed = deploy::register(&context, &document, None, WaitArgs::default()).await?;
    let surge = run_surge(&context, &deployed.url, surge).await?;
    printer.stage("Called surge, all at once");
    Ok((vec![hello, server], surge))
}

/// Deploys a function, and calls it cold once and warm many times.
async fn call_both(
    context: &Context,
    document: FunctionDocument,
    code: &Path,
    what: &'static str,
) -> Result<Measured, Failure> {
    let begin = Instant::now();
    let document = deploy::upload(context, code, document).await?;
    let deployed = deploy::register(context, &document, None, WaitArgs::default()).await?;
    let deploy_ms = ms(begin.elapsed());
    let begin = Instant::now();
    let headers = call(context, &deployed.url, "{\"name\": \"cold\"}").await?;
    let cold_ms = ms(begin.elapsed());
    let mut warm = Vec::with_capacity(WARM_CALLS);
    for _ in 0..WARM_CALLS {
        let begin = Instant::now();
        call(context, &deployed.url, "{\"name\": \"warm\"}").await?;
        warm.push(ms(begin.elapsed()));
    }
    warm.sort_by(f64::total_cmp);
    Ok(Measured {
        name: document.name,
        what,
        deploy_ms,
        cold_ms,
        cold_stages_ms: server_timing(&headers),
        warm_calls: WARM_CALLS,
        warm_p50_ms: percentile(&warm, 50),
        warm_p99_ms: percentile(&warm, 99),
    })
}

/// All requests at once, to a function without a sandbox.
async fn run_surge(context: &Context, url: &str, requests: u32) -> Result<Surge, Failure> {
    let body = format!("{{\"sleep_s\": {}}}", SURGE_WORK.as_secs_f64());
    let begin = Instant::now();
    let mut calls: FuturesUnordered<_> = (0..requests).map(|_| call(context, url, &body)).collect();
    let mut failed = 0;
    let mut first_failure = None;
    while let Some(result) = calls.next().await {
        if let Err(failure) = result {
            failed += 1;
            first_failure.get_or_insert(failure);
        }
    }
    let makespan_ms = ms(begin.elapsed());
    if let Some(failure) = first_failure {
        context
            .printer
            .warning(format_args!("{failed} of {requests} requests failed, the first one: {failure}"));
    }
    let name = FunctionName::new("surge").map_err(|e| Failure::platform(e.to_string()))?;
    let counts = context.client.function(&name).await?.sandboxes;
    let sandboxes = counts.ready + counts.starting + counts.stopping;
    Ok(Surge { requests, work_ms: ms(SURGE_WORK), makespan_ms, sandboxes, failed })
}

/// One call, answered in full and without an error.
async fn call(context: &Context, url: &str, body: &str) -> Result<HeaderMap, Failure> {
    let request = Request::post(format!("{url}/"))
        .body(full_body(body.to_owned()))
        .map_err(|e| Failure::platform(format!("{url}: {e}")))?;
    let response = context.client.http().send(request, Some(CALL_TIMEOUT), Some(body)).await?;
    let (head, body) = response.into_parts();
    let body =
        body.collect().await.map_err(|e| Failure::platform(format!("{url}: the answer broke off: {e}")))?;
    if !head.status.is_success() {
        let text = String::from_utf8_lossy(&body.to_bytes()).into_owned();
        return Err(Failure::new(Exit::Function, format!("{url} answered {}: {text}", head.status)));
    }
    Ok(head.headers)
}

fn print(printer: Printer, report: &Report) -> Result<(), Failure> {
    let time = |ms: f64| human_duration(ms / 1e3);
    let mut rows = vec![vec!["everything up".to_owned(), time(report.up_ms), String::new()]];
    for function in &report.functions {
        let row = |what: &str, value: f64, note: String| {
            vec![format!("{}: {what}", function.name), time(value), note]
        };
        rows.push(row("deployed", function.deploy_ms, function.what.to_owned()));
        rows.push(row("cold start", function.cold_ms, "as its caller saw it".to_owned()));
        for (stage, value) in &function.cold_stages_ms {
            // What a cold request queues for is made up of the others.
            let indent = if matches!(stage.as_str(), "queue" | "execute") { "  " } else { "    " };
            rows.push(vec![format!("{indent}{stage}"), time(*value), String::new()]);
        }
        rows.push(row("warm, median", function.warm_p50_ms, format!("{} calls", function.warm_calls)));
        rows.push(row("warm, 99 %", function.warm_p99_ms, String::new()));
    }
    let surge = &report.surge;
    let what = format!("surge: {} requests", surge.requests);
    let work = time(surge.work_ms);
    let note =
        format!("of {work} each, from zero; {} sandboxes made, {} failed", surge.sandboxes, surge.failed);
    rows.push(vec![what, time(surge.makespan_ms), note]);
    rows.push(vec!["shutdown".to_owned(), time(report.shutdown_ms), format!("{} orphans", report.orphans)]);
    printer.table(&["MEASURED", "TIME", "NOTE"], &rows)?;
    Ok(())
}

/// The value that `percent` of the sorted values do not exceed.
fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or_default()
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_seen() {
        let values: Vec<f64> = (1..=200).map(f64::from).collect();
        assert_eq!((percentile(&values, 50), percentile(&values, 99)), (100.0, 198.0));
        assert_eq!((percentile(&[7.0], 50), percentile(&[7.0], 99), percentile(&[], 50)), (7.0, 7.0, 0.0));
    }
}
