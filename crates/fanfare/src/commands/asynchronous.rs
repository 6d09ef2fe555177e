//! `fanfare async`, and what `fanfare invoke --async` prints.

use std::time::{Duration, Instant};

use fanfare_api::{AsyncAcceptedDocument, AsyncInvocationDocument, AsyncListDocument, PROBLEM_CONTENT_TYPE};
use fanfare_async::{InvocationId, limits};
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;

use crate::args::{AsyncArgs, AsyncCommand, AsyncDeadArgs, AsyncOneArgs, AsyncResultArgs, AsyncWaitArgs};
use crate::client::{REASON_HEADER, answer, problem};
use crate::commands::invoke::{copy, known};
use crate::commands::{Context, data_plane};
use crate::exit::{Exit, Failure};
use crate::http::{Base, header_text, no_body};
use crate::printer::{Output, Printer, human_bytes, human_duration};

/// How long a data plane may take, beyond what it is asked to wait.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest that it is asked to wait at once.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// Names a call's state on what is the function's answer.
const STATE_HEADER: &str = "x-fanfare-state";

pub(crate) async fn run(context: &Context, args: &AsyncArgs) -> Result<Exit, Failure> {
    let base = data_plane(context, args.data_plane.as_deref()).await?;
    match &args.command {
        AsyncCommand::Status(args) => status(context, &base, args).await,
        AsyncCommand::Result(args) => result(context, &base, args).await,
        AsyncCommand::Cancel(args) => {
            let path = format!("/async/{}", args.id);
            one(context, &base, Method::DELETE, &path, args).await
        }
        AsyncCommand::Replay(args) => replay(context, &base, args).await,
        AsyncCommand::List(args) => {
            let state = args.state.map(|state| format!("&state={state}")).unwrap_or_default();
            list(context, &base, "/async", &state, &args.dead).await
        }
        AsyncCommand::Dead(args) => list(context, &base, "/async/dead", "", args).await,
    }
}

/// Prints the id of a call that was taken in.
pub(crate) async fn accepted(
    printer: &Printer,
    response: Response<Incoming>,
    output: Option<Output>,
) -> Result<Exit, Failure> {
    let accepted: AsyncAcceptedDocument = answer(response).await?;
    match output {
        Some(output @ (Output::Json | Output::Yaml)) => printer.document(output, &accepted)?,
        _ => printer.out(&accepted.id)?,
    }
    if accepted.known {
        printer.note("it came before, under the same idempotency key");
    }
    Ok(Exit::Ok)
}

async fn send(
    context: &Context,
    base: &Base,
    method: Method,
    path: &str,
    wait: Duration,
) -> Result<Response<Incoming>, Failure> {
    let url = base.join(path);
    let request = Request::builder().method(method).uri(&url).body(no_body());
    let request = request.map_err(|e| Failure::usage(format!("{url:?} is no URL: {e}")))?;
    context.client.http().send(request, Some(ANSWER_TIMEOUT + wait), None).await
}

/// Asks until the call has ended or the time is over; the last answer.
async fn look(
    context: &Context,
    base: &Base,
    id: InvocationId,
    wait: Option<Duration>,
) -> Result<AsyncInvocationDocument, Failure> {
    let begin = Instant::now();
    loop {
        let left = wait.unwrap_or_default().saturating_sub(begin.elapsed()).min(WAIT_MAX);
        let path = format!("/async/{id}?wait={}ms", left.as_millis());
        let document: AsyncInvocationDocument =
            answer(send(context, base, Method::GET, &path, left).await?).await?;
        if document.finished_unix_ms.is_some() || begin.elapsed() >= wait.unwrap_or_default() {
            return Ok(document);
        }
    }
}

/// How a call stands now.
pub(super) async fn now(
    context: &Context,
    base: &Base,
    id: InvocationId,
) -> Result<AsyncInvocationDocument, Failure> {
    look(context, base, id, None).await
}

async fn status(context: &Context, base: &Base, args: &AsyncWaitArgs) -> Result<Exit, Failure> {
    let document = look(context, base, args.id, args.wait).await?;
    show(&context.printer, base, &document, args.output.output)?;
    Ok(Exit::Ok)
}

async fn one(
    context: &Context,
    base: &Base,
    method: Method,
    path: &str,
    args: &AsyncOneArgs,
) -> Result<Exit, Failure> {
    let document = answer(send(context, base, method, path, Duration::ZERO).await?).await?;
    show(&context.printer, base, &document, args.output.output)?;
    Ok(Exit::Ok)
}

async fn replay(context: &Context, base: &Base, args: &AsyncOneArgs) -> Result<Exit, Failure> {
    let path = format!("/async/{}/replay", args.id);
    let response = send(context, base, Method::POST, &path, Duration::ZERO).await?;
    let document: AsyncInvocationDocument = answer(response).await?;
    match args.output.output {
        Output::Text => context.printer.out(&document.id)?,
        output => show(&context.printer, base, &document, output)?,
    }
    Ok(Exit::Ok)
}

/// Prints the function's answer; the exit code is as for a call that was waited for.
async fn result(context: &Context, base: &Base, args: &AsyncResultArgs) -> Result<Exit, Failure> {
    let looked = match args.wait {
        Some(_) => Some(look(context, base, args.id, args.wait).await?),
        None => None,
    };
    let path = format!("/async/{}/result", args.id);
    let response = send(context, base, Method::GET, &path, Duration::ZERO).await?;
    let status = response.status();
    let state = header_text(response.headers(), STATE_HEADER).map(ToOwned::to_owned);
    let reason = header_text(response.headers(), REASON_HEADER).and_then(known);
    let stated =
        header_text(response.headers(), "content-type").is_some_and(|t| t.starts_with(PROBLEM_CONTENT_TYPE));
    match state.as_deref() {
        Some("queued" | "running" | "retrying") if status == StatusCode::ACCEPTED => {
            let state = state.unwrap_or_default();
            Err(no_result_yet(args, &state, looked.and_then(|document| document.next_attempt_in_ms)))
        }
        // The platform's own word, or a handler's error in the same form.
        None => Err(problem(response).await),
        Some(_) if stated => Err(problem(response).await),
        Some(_) => {
            let bytes = copy(&context.printer, response.into_body()).await?;
            context.printer.note(format!("{status}, {bytes} bytes"));
            Ok(match reason {
                Some(reason) => Exit::of(reason),
                None if status.is_success() || status.is_redirection() => Exit::Ok,
                None => Exit::Function,
            })
        }
    }
}

fn no_result_yet(args: &AsyncResultArgs, state: &str, next_attempt_in_ms: Option<u64>) -> Failure {
    let next = next_attempt_in_ms.map(|ms| {
        format!(
            ", and its next attempt begins in {}",
            human_duration(Duration::from_millis(ms).as_secs_f64())
        )
    });
    let next = next.unwrap_or_default();
    let id = args.id;
    match args.wait {
        None => Failure::new(Exit::Timeout, format!("{id} has no result yet: it is {state}"))
            .next("wait for it with --wait DURATION"),
        Some(wait) => {
            let waited = human_duration(wait.as_secs_f64());
            Failure::new(
                Exit::Timeout,
                format!("{id} has no result after {waited} of waiting: it is {state}{next}"),
            )
            .next(format!("wait longer, or see what became of its attempts with `fanfare async status {id}`"))
        }
    }
}

/// Page after page.
async fn list(
    context: &Context,
    base: &Base,
    path: &str,
    more: &str,
    args: &AsyncDeadArgs,
) -> Result<Exit, Failure> {
    let function = args.function.as_ref().map(|name| format!("&function={name}")).unwrap_or_default();
    let most = args.limit as usize;
    let mut all = AsyncListDocument::default();
    loop {
        let limit = (most - all.invocations.len()).min(limits::PAGE_MAX);
        let after = all.next.take().map(|id| format!("&after={id}")).unwrap_or_default();
        let path = format!("{path}?limit={limit}{function}{more}{after}");
        let page: AsyncListDocument =
            answer(send(context, base, Method::GET, &path, Duration::ZERO).await?).await?;
        let empty = page.invocations.is_empty();
        all.invocations.extend(page.invocations);
        all.next = page.next;
        all.unreachable = page.unreachable;
        if all.next.is_none() || empty || all.invocations.len() >= most {
            break;
        }
    }
    print(&context.printer, base, &all, args.output.output)?;
    Ok(Exit::Ok)
}

fn print(printer: &Printer, base: &Base, list: &AsyncListDocument, output: Output) -> Result<(), Failure> {
    for data_plane in &list.unreachable {
        printer.warning(format_args!("the data plane {data_plane} cannot be asked; its calls are missing"));
    }
    let calls = &list.invocations;
    match output {
        Output::Json | Output::Yaml => printer.document(output, list)?,
        Output::Name => calls.iter().try_for_each(|call| printer.out(&call.id))?,
        Output::Url => calls.iter().try_for_each(|call| printer.out(url(base, call)))?,
        Output::Text | Output::Wide if calls.is_empty() => printer.note("no asynchronous invocations"),
        Output::Text | Output::Wide => {
            let row = |call: &AsyncInvocationDocument| {
                let attempts = call.attempts.to_string();
                let mut row = vec![call.id.clone(), call.function.clone(), state(call), attempts];
                if output == Output::Wide {
                    row.push(call.delivery.clone());
                    row.push(call.detail.clone().unwrap_or_default());
                }
                row
            };
            let rows: Vec<_> = calls.iter().map(row).collect();
            let columns = if output == Output::Wide { 6 } else { 4 };
            printer.table(&["ID", "FUNCTION", "STATE", "ATTEMPTS", "DELIVERY", "LAST"][..columns], &rows)?;
        }
    }
    if list.next.is_some() {
        printer.note("there are more; list them with a larger --limit");
    }
    Ok(())
}

fn url(base: &Base, call: &AsyncInvocationDocument) -> String {
    base.join(&format!("/async/{}", call.id))
}

pub(super) fn state(call: &AsyncInvocationDocument) -> String {
    match (&call.cause, call.next_attempt_in_ms) {
        (Some(cause), _) => format!("{} ({cause})", call.state),
        (None, Some(ms)) => format!("{} (in {})", call.state, human_duration(ms as f64 / 1e3)),
        (None, None) => call.state.clone(),
    }
}

fn show(
    printer: &Printer,
    base: &Base,
    call: &AsyncInvocationDocument,
    output: Output,
) -> Result<(), Failure> {
    match output {
        Output::Json | Output::Yaml => printer.document(output, call)?,
        Output::Name => printer.out(&call.id)?,
        Output::Url => printer.out(url(base, call))?,
        Output::Text | Output::Wide => {
            let mut lines = vec![
                ("id", call.id.clone()),
                ("function", call.function.clone()),
                ("state", state(call)),
                ("delivery", call.delivery.clone()),
                (
                    "attempts",
                    format!("{}, {} of {} failed", call.attempts, call.failed_attempts, call.max_attempts),
                ),
            ];
            let mut more = |name, text: Option<String>| lines.extend(text.map(|text| (name, text)));
            more("request", Some(call.request_id.clone()).filter(|id| !id.is_empty()));
            more("last", call.detail.clone());
            more("reason", call.reason.clone());
            more("result", call.result.as_ref().map(|result| human_bytes(result.bytes)));
            more("callback", call.callback.as_ref().map(|callback| callback.state.clone()));
            more("replay of", call.replay_of.clone());
            more("replayed", call.replayed_as.clone());
            for (name, text) in lines {
                printer.out(format_args!("{name:<10} {text}"))?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_result_says_how_long_was_waited_and_what_comes_next() {
        let id: InvocationId = "d1-1-0000000000000001".parse().unwrap();
        let cases = [
            (None, None, "has no result yet: it is retrying", "--wait DURATION"),
            (Some(300), None, "has no result after 300.0 ms of waiting: it is retrying", "wait longer"),
            (Some(300), Some(1500), "it is retrying, and its next attempt begins in 1.5 s", "async status"),
        ];
        for (wait_ms, next_ms, what, hint) in cases {
            let args = AsyncResultArgs { id, wait: wait_ms.map(Duration::from_millis) };
            let failure = no_result_yet(&args, "retrying", next_ms);
            assert!(failure.what.ends_with(what), "{failure}");
            assert!(failure.next.as_deref().unwrap_or_default().contains(hint), "{failure}");
        }
    }
}
