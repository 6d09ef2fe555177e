//! `fanfare invoke`: the function's answer to standard output, everything else to standard error.

use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use fanfare_api::{PROBLEM_CONTENT_TYPE, Problem};
use fanfare_types::{Reason, limits};
use futures_util::StreamExt;
use http::header::{HeaderName, HeaderValue};
use http::{HeaderMap, Method, Request, Response, header};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use tokio::io::AsyncRead;
use tokio_util::io::ReaderStream;

use crate::args::InvokeArgs;
use crate::client::{REASON_HEADER, collect};
use crate::commands::{Context, asynchronous, data_plane, function_url};
use crate::exit::{Exit, Failure};
use crate::http::{Base, Body, full_body, header_text, no_body, root_cause, shown_value};
use crate::printer::{Printer, human_duration};
use crate::signals::Signals;

const REQUEST_ID: &str = "x-request-id";
/// Characters of a request's id.
const REQUEST_ID_LEN_MAX: usize = 128;
/// Bytes read from a file or standard input at once.
const CHUNK_BYTES: usize = 64 << 10;

pub(crate) async fn run(context: &Context, args: &InvokeArgs) -> Result<Exit, Failure> {
    args.later.check()?;
    let base = data_plane(context, args.data_plane.as_deref()).await?;
    let mut signals = Signals::listen()?;
    let request = request(args, &base).await?;
    let id = header_text(request.headers(), REQUEST_ID).unwrap_or_default().to_owned();
    let call = call(context, args, request);
    let call = async {
        let Some(limit) = args.timeout else { return call.await };
        tokio::time::timeout(limit, call).await.unwrap_or_else(|_| {
            let what = format!("{} did not answer within {limit:?}", args.name());
            Err(Failure::new(Exit::Timeout, what).unanswered().next("give it longer with --timeout DURATION, which is this call's; the function's own is set with `fanfare update`"))
        })
    };
    let result = tokio::select! {
        result = call => result,
        () = signals.next() => Err(Failure::new(Exit::Interrupted, "interrupted before the answer's end").unanswered()),
    };
    match result {
        Err(failure) if failure.unanswered => {
            let failure =
                if failure.exit == Exit::Platform { blame(context, &id, failure).await } else { failure };
            Err(asking_for(&id, args, failure))
        }
        result => result,
    }
}

/// Whose fault it was that an answer broke off, as far as the platform knows.
async fn blame(context: &Context, id: &str, failure: Failure) -> Failure {
    let Ok(explanation) = context.client.explain(id).await else { return failure };
    let reason = explanation.requests.iter().find_map(|request| request.reason.as_deref());
    match reason.and_then(known) {
        Some(reason) => Failure { exit: Exit::of(reason), ..failure.because(reason.code()) },
        None => failure,
    }
}

/// How to ask what became of a request that nobody waits for any more.
fn asking_for(id: &str, args: &InvokeArgs, failure: Failure) -> Failure {
    let ask = match args.later.later {
        true => format!("whether the call is kept: `fanfare async list --function {}`", args.name()),
        false => format!("what became of the request: `fanfare explain {id}`"),
    };
    let next = failure.next.as_ref().map_or(ask.clone(), |next| format!("{ask}; {next}"));
    Failure { what: format!("{} (request {id})", failure.what), ..failure }.next(next)
}

async fn call(context: &Context, args: &InvokeArgs, request: Request<Body>) -> Result<Exit, Failure> {
    let printer = &context.printer;
    if args.verbose {
        printer.note(format_args!("> {} {}", request.method(), request.uri()));
        headers(printer, ">", request.headers());
    }
    let begin = Instant::now();
    let shown = args.data.as_ref().map(|data| if data == "-" { "@-" } else { data.as_str() });
    let response = context.client.http().send(request, None, shown).await.map_err(|failure| {
        if failure.exit != Exit::Platform || failure.unanswered {
            return failure;
        }
        failure.next(
            "no data plane takes connections there: it has ended, or drains; `fanfare status` shows those there are",
        )
    })?;
    let first = begin.elapsed();
    if args.verbose {
        printer.note(format_args!("< {}", response.status()));
        headers(printer, "<", response.headers());
        breakdown(printer, response.headers());
    }
    let status = response.status();
    let reason = header_text(response.headers(), REASON_HEADER).map(ToOwned::to_owned);
    let stated =
        header_text(response.headers(), "content-type").is_some_and(|t| t.starts_with(PROBLEM_CONTENT_TYPE));
    if let (Some(reason), true) = (&reason, stated) {
        let failure = refused(response, reason).await?.about(args.name().as_str());
        return context.client.suggesting(args.name(), Err(failure)).await;
    }
    if args.later.later {
        return asynchronous::accepted(printer, response, args.later.output).await;
    }
    let bytes = copy(printer, response.into_body()).await?;
    let took = begin.elapsed();
    printer.note(summary(status, bytes, first, took));
    Ok(match reason.and_then(|code| known(&code)) {
        Some(reason) => Exit::of(reason),
        None if status.is_success() || status.is_redirection() => Exit::Ok,
        None => Exit::Function,
    })
}

fn summary(status: http::StatusCode, bytes: u64, first: Duration, took: Duration) -> String {
    format!(
        "{status}, {bytes} bytes in {} (first byte after {})",
        human_duration(took.as_secs_f64()),
        human_duration(first.as_secs_f64())
    )
}

async fn request(args: &InvokeArgs, base: &Base) -> Result<Request<Body>, Failure> {
    let path = if args.path.starts_with('/') { args.path.clone() } else { format!("/{}", args.path) };
    let tag = args.which.1.as_ref().map(|tag| format!("@{tag}")).unwrap_or_default();
    if args.later.later && !tag.is_empty() {
        return Err(Failure::usage(
            "a call that is kept goes to whichever revision is current, and to no tag",
        )
        .next(format!("leave out --async, or {tag}")));
    }
    let url = match args.later.later {
        true => base.join("/async-function/") + args.name().as_str(),
        false => function_url(&base.join(""), args.name()),
    } + &tag
        + &path;
    let (body, length) = body(args.data.as_deref()).await?;
    let default = if args.data.is_some() { Method::POST } else { Method::GET };
    let mut request = Request::builder()
        .method(args.method.clone().unwrap_or(default))
        .uri(&url)
        .body(body)
        .map_err(|e| {
            Failure::usage(format!("--path makes no URL of {url:?}: {e}"))
                .next("write it as in a URL: a space is %20, a letter beyond ASCII its UTF-8 bytes as %XX")
        })?;
    let fields = request.headers_mut();
    if args.data.is_some() {
        fields.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    if let Some(length) = length {
        fields.insert(header::CONTENT_LENGTH, length.into());
    }
    let mut given = HeaderMap::new();
    for text in &args.headers {
        let (name, value) = parse_header(text)?;
        given.append(name, value);
    }
    for name in given.keys() {
        fields.remove(name);
    }
    for (name, value) in &given {
        fields.append(name, value.clone());
    }
    for (name, value) in args.later.fields()? {
        fields.insert(name, value);
    }
    // Known before there is an answer, so that it can be asked for where there is none.
    let id = fields.entry(REQUEST_ID).or_insert_with(new_id).clone();
    if !(1..=REQUEST_ID_LEN_MAX).contains(&id.len()) || !id.as_bytes().iter().all(u8::is_ascii_graphic) {
        return Err(Failure::usage(format!(
            "-H 'X-Request-Id: …' has {} bytes, or others than visible ASCII",
            id.len()
        ))
        .next(format!(
            "the platform takes 1 to {REQUEST_ID_LEN_MAX} visible ASCII characters, and else another id"
        )));
    }
    Ok(request)
}

/// An id of 128 random bits, as data planes make them.
fn new_id() -> HeaderValue {
    let mut bits = [0_u8; 16];
    // Without random bits of the kernel's (before the first ones are there) it is a poor id, and no wrong one.
    let _ = rustix::rand::getrandom(&mut bits, rustix::rand::GetRandomFlags::NONBLOCK);
    let text = format!("{:032x}", u128::from_ne_bytes(bits));
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("0"))
}

fn parse_header(text: &str) -> Result<(HeaderName, HeaderValue), Failure> {
    let wrong = || Failure::usage(format!("-H {text:?} is no header")).next("give it as 'Name: value'");
    let (name, value) = text.split_once(':').ok_or_else(wrong)?;
    Ok((name.trim().parse().map_err(|_| wrong())?, value.trim().parse().map_err(|_| wrong())?))
}

/// The body and its length where that is known before it is sent.
async fn body(data: Option<&str>) -> Result<(Body, Option<u64>), Failure> {
    let Some(data) = data else { return Ok((no_body(), None)) };
    if data == "-" || data == "@-" {
        let input = io::stdin().as_fd().try_clone_to_owned();
        let input = input.map_err(|e| Failure::usage(format!("cannot read standard input: {e}")))?;
        return Ok((stream(tokio::fs::File::from_std(input.into())), None));
    }
    let Some(path) = data.strip_prefix('@') else {
        return Ok((full_body(data.to_owned()), None));
    };
    let unreadable = |e: io::Error| {
        Failure::usage(format!("cannot read {path}: {e}"))
            .next("after @ comes a file; `-d @-` reads standard input, and data that begins with @ comes through it")
    };
    let file = tokio::fs::File::open(path).await.map_err(unreadable)?;
    let metadata = file.metadata().await.map_err(unreadable)?;
    Ok((stream(file), metadata.is_file().then_some(metadata.len())))
}

fn stream(source: impl AsyncRead + Send + Sync + 'static) -> Body {
    let chunks = ReaderStream::with_capacity(source, CHUNK_BYTES).map(|chunk| chunk.map(Frame::data));
    BodyExt::boxed(StreamBody::new(chunks))
}

/// Copies the answer to standard output as it comes.
pub(super) async fn copy(printer: &Printer, mut body: Incoming) -> Result<u64, Failure> {
    let mut bytes = 0;
    let mut last = b'\n';
    let broken = loop {
        match body.frame().await {
            None => break None,
            Some(Err(e)) => break Some(e),
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    bytes += data.len() as u64;
                    last = data.last().copied().unwrap_or(last);
                    printer.bytes(&data)?;
                }
            }
        }
    };
    // For people only: what a pipe gets is the answer, byte for byte.
    if last != b'\n' {
        if io::stdout().is_terminal() {
            printer.out("")?;
        } else if runs_together() {
            printer.note("");
        }
    }
    match broken {
        None => Ok(bytes),
        Some(e) => {
            let what = format!("the answer broke off after {bytes} bytes: {}", root_cause(&e));
            Err(Failure::platform(what).unanswered())
        }
    }
}

/// Whether the answer and what is said about it come out in one place: both are the same file, or the answer goes
/// through a pipe and the rest to a terminal.
fn runs_together() -> bool {
    let (Ok(out), Ok(err)) = (rustix::fs::fstat(io::stdout()), rustix::fs::fstat(io::stderr())) else {
        return false;
    };
    let piped = rustix::fs::FileType::from_raw_mode(out.st_mode) == rustix::fs::FileType::Fifo;
    (out.st_dev, out.st_ino) == (err.st_dev, err.st_ino) || (piped && io::stderr().is_terminal())
}

/// The failure that the platform states instead of an answer.
async fn refused(response: Response<Incoming>, reason: &str) -> Result<Failure, Failure> {
    let status = response.status();
    let body = collect(response, limits::API_BODY_BYTES_MAX).await?;
    Ok(match serde_json::from_slice::<Problem>(&body) {
        Ok(problem) => problem.into(),
        Err(_) => {
            let exit = known(reason).map_or(Exit::Platform, Exit::of);
            Failure::new(exit, format!("the platform answered {status}")).because(reason)
        }
    })
}

pub(super) fn known(code: &str) -> Option<Reason> {
    Reason::ALL.iter().copied().find(|reason| reason.code() == code)
}

fn headers(printer: &Printer, mark: &str, headers: &HeaderMap) {
    for (name, value) in headers {
        printer.note(format_args!("{mark} {name}: {}", shown_value(name, value)));
    }
}

/// Where the time went, one stage a line.
fn breakdown(printer: &Printer, headers: &HeaderMap) {
    let stages = server_timing(headers);
    for (stage, ms) in &stages {
        printer.note(format_args!("  {stage:<10} {:>10}", human_duration(ms / 1e3)));
    }
}

/// Stages and milliseconds of a `Server-Timing` header.
pub(crate) fn server_timing(headers: &HeaderMap) -> Vec<(String, f64)> {
    let metric = |metric: &str| {
        let mut parts = metric.split(';').map(str::trim);
        let name = parts.next()?.to_owned();
        let ms = parts.find_map(|part| part.strip_prefix("dur="))?.parse().ok()?;
        Some((name, ms))
    };
    let values = headers.get_all("server-timing").iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).filter_map(metric).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_of_server_timing() {
        let mut headers = HeaderMap::new();
        headers.append("server-timing", "queue;dur=0.5, create;desc=\"x\";dur=12".parse().unwrap());
        headers.append("server-timing", "execute;dur=3, cold, bad;dur=x".parse().unwrap());
        let expected = [("queue", 0.5), ("create", 12.0), ("execute", 3.0)].map(|(n, ms)| (n.to_owned(), ms));
        assert_eq!(server_timing(&headers), expected);
    }

    #[test]
    fn headers_on_the_command_line() {
        let (name, value) = parse_header("X-Token:  a: b ").unwrap();
        assert_eq!((name.as_str(), value.to_str().unwrap()), ("x-token", "a: b"));
        for bad in ["no colon", ": x", "a b: c"] {
            assert_eq!(parse_header(bad).unwrap_err().exit, Exit::Usage, "{bad}");
        }
    }
}
