//! `fanfare logs`.

use std::time::Duration;

use fanfare_api::{LogLineDocument, LogStreamName};

use crate::args::LogsArgs;
use crate::commands::{Context, data_plane_url, function_url};
use crate::exit::{Exit, Failure};
use crate::printer::{Output, Printer};

/// Attempts to take a broken stream up again, the pauses between them doubling from `RETRY_PAUSE`.
const RETRIES_MAX: u32 = 8;
const RETRY_PAUSE: Duration = Duration::from_millis(100);

pub(crate) async fn run(context: &Context, args: &LogsArgs) -> Result<Exit, Failure> {
    match args.output.output {
        Output::Text | Output::Json => {}
        Output::Name => {
            context.client.function(&args.name).await?;
            context.printer.out(&args.name)?;
            return Ok(Exit::Ok);
        }
        Output::Url => {
            let url = function_url(&data_plane_url(&context.client.status().await?)?, &args.name);
            context.printer.out(url)?;
            return Ok(Exit::Ok);
        }
    }
    tokio::select! {
        result = copy(context, args) => result,
        // An interrupted follow is a finished one.
        _ = tokio::signal::ctrl_c(), if args.follow => Ok(Exit::Ok),
    }
}

pub(crate) async fn copy(context: &Context, args: &LogsArgs) -> Result<Exit, Failure> {
    let mut lines = context.client.logs(&args.name, args.tail, args.follow).await?;
    let mut failures = 0;
    loop {
        let broken = match lines.next().await {
            Ok(Some(line)) => {
                failures = 0;
                print(&context.printer, &line, args.output.output)?;
                continue;
            }
            Ok(None) if !args.follow => return Ok(Exit::Ok),
            Ok(None) => Failure::platform("the control plane ended the log"),
            Err(failure) if !args.follow => return Err(failure),
            Err(failure) => failure,
        };
        lines = loop {
            if failures == RETRIES_MAX {
                return Err(broken);
            }
            tokio::time::sleep(RETRY_PAUSE * (1 << failures)).await;
            failures += 1;
            match context.client.logs(&args.name, 0, true).await {
                Ok(lines) => break lines,
                Err(failure) if failure.is_not_found() => return Err(failure),
                Err(_) => {}
            }
        };
        context
            .printer
            .warning(format_args!("{broken}; connected again, lines written in between are not shown"));
    }
}

fn print(printer: &Printer, line: &LogLineDocument, output: Output) -> Result<(), Failure> {
    match (output, line.stream) {
        (Output::Json, _) => {
            let json =
                serde_json::to_string(line).map_err(|e| Failure::platform(format!("log line: {e}")))?;
            printer.out(json)?;
        }
        (_, LogStreamName::Platform) => printer.out(format_args!("[fanfare] {}", line.text))?,
        (_, LogStreamName::Stdout | LogStreamName::Stderr) => printer.out(&line.text)?,
    }
    Ok(())
}
