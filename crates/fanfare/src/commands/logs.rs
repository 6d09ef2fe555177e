//! `fanfare logs`.

use std::collections::BTreeMap;
use std::time::Duration;

use fanfare_api::{LogLineDocument, LogStreamName};
use fanfare_types::FunctionName;

use crate::args::LogsArgs;
use crate::commands::{Context, data_plane_url, function_url};
use crate::exit::{Exit, Failure};
use crate::printer::{Output, Printer};

/// Attempts to take a broken stream up again, the pauses between them doubling from `RETRY_PAUSE`.
const RETRIES_MAX: u32 = 8;
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// Lines asked for again after a break; those shown already are left out.
const CATCH_UP_LINES: u32 = 1_000;

pub(crate) async fn run(context: &Context, args: &LogsArgs) -> Result<Exit, Failure> {
    let name = match &args.name {
        Some(name) => name.clone(),
        None => function_of(context, args.which.request.as_deref().unwrap_or_default()).await?,
    };
    match args.output.output {
        Output::Text | Output::Wide | Output::Json | Output::Yaml => {}
        Output::Name => {
            context.client.function(&name).await?;
            context.printer.out(&name)?;
            return Ok(Exit::Ok);
        }
        Output::Url => {
            let url = function_url(&data_plane_url(&context.client.status().await?)?, &name);
            context.printer.out(url)?;
            return Ok(Exit::Ok);
        }
    }
    tokio::select! {
        result = copy(context, &name, args) => result,
        // An interrupted follow is a finished one.
        _ = tokio::signal::ctrl_c(), if args.follow => Ok(Exit::Ok),
    }
}

/// The function that a request was for.
async fn function_of(context: &Context, request: &str) -> Result<FunctionName, Failure> {
    let explanation = context.client.explain(request).await?;
    let name = explanation.requests.iter().find_map(|request| request.function.as_deref());
    name.and_then(|name| FunctionName::new(name).ok()).ok_or_else(|| {
        Failure::new(Exit::NotFound, format!("the request {request} was for no function that is there"))
            .next(format!("`fanfare explain {request}` says what became of it"))
    })
}

pub(crate) async fn copy(context: &Context, name: &FunctionName, args: &LogsArgs) -> Result<Exit, Failure> {
    let followed = if args.follow { Some(context.client.function(name).await?.id) } else { None };
    let mut lines = context.client.logs(name, args.tail, args.follow, &args.which).await?;
    let mut shown = Shown::default();
    let (mut failures, mut written) = (0, false);
    loop {
        let broken = match lines.next().await {
            Ok(Some(line)) => {
                (failures, written) = (0, true);
                if let Some(missed) = shown.take(&line) {
                    if missed > 0 && !args.which.has_gaps() {
                        context
                            .printer
                            .warning(format_args!("{missed} lines were dropped or have rotated away"));
                    }
                    print(&context.printer, &line, args.output.output)?;
                }
                continue;
            }
            Ok(None) if !args.follow => {
                if !written && args.tail > 0 {
                    context.printer.note(match args.which.has_gaps() {
                        true => format!("no such lines of {name} are kept"),
                        false => format!("{name} has written nothing yet"),
                    });
                }
                return Ok(Exit::Ok);
            }
            // The last line has said so.
            Ok(None) if is_deleted(context, name, followed.as_deref()).await => return Ok(Exit::Ok),
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
            let tail = if shown.0.is_empty() { args.tail } else { CATCH_UP_LINES };
            match context.client.logs(name, tail, true, &args.which).await {
                Ok(lines) => break lines,
                Err(failure) if failure.is_not_found() => return Err(failure),
                Err(_) => {}
            }
        };
    }
}

/// Whether the function that was followed is no more, though another one may have its name by now. What cannot be found
/// out is not so.
async fn is_deleted(context: &Context, name: &FunctionName, followed: Option<&str>) -> bool {
    match context.client.function(name).await {
        Ok(function) => followed != Some(function.id.as_str()),
        Err(failure) => failure.is_not_found(),
    }
}

/// The last line shown of each node, so that a stream taken up again neither repeats nor silently skips.
#[derive(Debug, Default)]
struct Shown(BTreeMap<String, u64>);

impl Shown {
    /// How many lines are missing before this one; `None` when it was shown already.
    fn take(&mut self, line: &LogLineDocument) -> Option<u64> {
        let (Some(node), Some(seq)) = (&line.node, line.seq) else { return Some(0) };
        let last = self.0.insert(node.clone(), seq);
        match last {
            None => Some(0),
            Some(last) if seq > last => Some(seq - last - 1),
            Some(last) => {
                self.0.insert(node.clone(), last);
                None
            }
        }
    }
}

fn print(printer: &Printer, line: &LogLineDocument, output: Output) -> Result<(), Failure> {
    match (output, line.stream) {
        (Output::Json, _) => {
            let json =
                serde_json::to_string(line).map_err(|e| Failure::platform(format!("log line: {e}")))?;
            printer.out(json)?;
        }
        (Output::Yaml, _) => printer.document(output, line)?,
        (Output::Wide, stream) => {
            let stream = match stream {
                LogStreamName::Stdout => "stdout",
                LogStreamName::Stderr => "stderr",
                LogStreamName::Platform => "fanfare",
            };
            let (node, sandbox) =
                (line.node.as_deref().unwrap_or("-"), line.sandbox.as_deref().unwrap_or("-"));
            let time = line.time_unix_ms.and_then(rfc3339).unwrap_or_else(|| "-".to_owned());
            printer.out(format_args!("{time} {node} {sandbox} {stream} {}", line.text))?;
        }
        (_, LogStreamName::Platform) => printer.out(format_args!("[fanfare] {}", line.text))?,
        (_, LogStreamName::Stdout | LogStreamName::Stderr) => printer.out(&line.text)?,
    }
    Ok(())
}

/// A time in UTC, to the millisecond.
fn rfc3339(unix_ms: u64) -> Option<String> {
    let time = chrono::DateTime::from_timestamp_millis(i64::try_from(unix_ms).ok()?)?;
    Some(time.to_rfc3339_opts(chrono::SecondsFormat::Millis, true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_utc_to_the_millisecond() {
        let cases = [
            (0, Some("1970-01-01T00:00:00.000Z")),
            (1_700_000_000_123, Some("2023-11-14T22:13:20.123Z")),
            (u64::MAX, None),
        ];
        for (unix_ms, expected) in cases {
            assert_eq!(rfc3339(unix_ms).as_deref(), expected);
        }
    }

    #[test]
    fn nothing_is_shown_twice_and_gaps_are_counted_per_node() {
        let line = |node: &str, seq| LogLineDocument {
            seq: Some(seq),
            time_unix_ms: None,
            node: Some(node.to_owned()),
            sandbox: None,
            stream: LogStreamName::Stdout,
            text: String::new(),
        };
        let mut shown = Shown::default();
        let cases = [
            ("a", 7, Some(0)),
            ("a", 8, Some(0)),
            ("b", 1, Some(0)),
            ("a", 8, None),
            ("a", 7, None),
            ("a", 9, Some(0)),
            ("a", 12, Some(2)),
        ];
        for (node, seq, missed) in cases {
            assert_eq!(shown.take(&line(node, seq)), missed, "{node} {seq}");
        }
    }
}
