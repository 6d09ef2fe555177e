//! What fake sandboxes answer.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fanfare_types::{ExitCause, SandboxId};
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use super::listener::Hall;
use super::sandbox::Sandbox;
use crate::{LogLine, LogStream};

/// Longest `x-fake-sleep-ms`.
pub const SLEEP_MAX: Duration = Duration::from_secs(24 * 3600);
/// Largest `x-fake-body-bytes`.
pub const BODY_BYTES_MAX: u64 = 64 << 20;
/// Largest head of a request; beyond it hyper answers 431.
const HEAD_BYTES_MAX: usize = 128 * 1024;

const SANDBOX: HeaderName = HeaderName::from_static("x-fanfare-sandbox");
const SLEEP_MS: HeaderName = HeaderName::from_static("x-fake-sleep-ms");
const STATUS: HeaderName = HeaderName::from_static("x-fake-status");
const ANSWER_BYTES: HeaderName = HeaderName::from_static("x-fake-body-bytes");
const EXIT: HeaderName = HeaderName::from_static("x-fake-exit");
const LOG: HeaderName = HeaderName::from_static("x-fake-log");

/// The sandbox has ended, or the client has left: there is no answer, and the connection is closed.
#[derive(Debug)]
struct Cut;

impl std::fmt::Display for Cut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the sandbox has ended")
    }
}

impl std::error::Error for Cut {}

/// Serves a connection that was made to one sandbox, for as long as that lives.
pub(super) async fn serve_one<S>(stream: S, sandbox: Arc<Sandbox>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let service = service_fn(|request| answer_in(sandbox.clone(), request));
    let connection = builder().serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        biased;
        _ = sandbox.gone() => {}
        end = connection => log_end(end),
    }
}

/// Serves a connection whose requests name their sandboxes.
pub(super) async fn serve_all<S>(stream: S, hall: Arc<Hall>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let service = service_fn(|request: Request<Incoming>| {
        let hall = hall.clone();
        async move {
            let Some(name) = request.headers().get(SANDBOX) else {
                return answer("", request, Plan::default()).await;
            };
            let id = name.to_str().ok().and_then(|name| name.parse::<SandboxId>().ok());
            match id.and_then(|id| hall.by_id(id)) {
                Some(sandbox) => answer_in(sandbox, request).await,
                None => Err(Cut),
            }
        }
    });
    log_end(builder().serve_connection(TokioIo::new(stream), service).await);
}

fn builder() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder.max_buf_size(HEAD_BYTES_MAX).pipeline_flush(true);
    builder
}

fn log_end(end: hyper::Result<()>) {
    if let Err(error) = end {
        tracing::debug!(%error, "a connection to a fake sandbox ended early");
    }
}

/// One request in one sandbox.
async fn answer_in(sandbox: Arc<Sandbox>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Cut> {
    let in_flight = sandbox.enter().ok_or(Cut)?;
    let plan = match Plan::read(request.headers()) {
        Ok(plan) => plan,
        Err(name) => return Ok(misunderstood(&name)),
    };
    if let (Some(text), Some(runtime)) = (&plan.log, sandbox.runtime.upgrade()) {
        runtime.log(LogLine {
            function: sandbox.function(),
            sandbox: Some(sandbox.id),
            stream: LogStream::Stdout,
            text: text.clone(),
        });
    }
    let name = sandbox.id.to_string();
    let exit = plan.exit;
    let answered = tokio::select! {
        biased;
        _ = sandbox.gone() => return Err(Cut),
        answered = answer(&name, request, plan) => answered,
    };
    if let Some(status) = exit {
        drop(in_flight);
        if let Some(runtime) = sandbox.runtime.upgrade() {
            runtime.end(&sandbox, ExitCause::Status(status));
        }
        return Err(Cut);
    }
    answered
}

/// What a request asks for.
#[derive(Default)]
struct Plan {
    sleep: Duration,
    status: Option<StatusCode>,
    answer_bytes: Option<usize>,
    exit: Option<i32>,
    log: Option<String>,
}

impl Plan {
    /// Reads the header fields of the fake; gives the name of one that cannot be read.
    fn read(headers: &HeaderMap) -> Result<Plan, HeaderName> {
        let number = |name: HeaderName, max: u64| match headers.get(&name) {
            None => Ok(None),
            Some(value) => {
                let number = value.to_str().ok().and_then(|text| text.parse::<u64>().ok());
                number.filter(|number| *number <= max).map(Some).ok_or(name)
            }
        };
        let sleep_ms = number(SLEEP_MS, SLEEP_MAX.as_millis() as u64)?;
        let status = number(STATUS, 599)?.map(|n| StatusCode::from_u16(n as u16));
        let answer_bytes = number(ANSWER_BYTES, BODY_BYTES_MAX)?;
        let exit = number(EXIT, 255)?;
        Ok(Plan {
            sleep: Duration::from_millis(sleep_ms.unwrap_or(0)),
            status: match status {
                Some(Ok(status)) if status.as_u16() >= 200 => Some(status),
                None => None,
                Some(_) => return Err(STATUS),
            },
            answer_bytes: answer_bytes.map(|n| n as usize),
            exit: exit.map(|n| n as i32),
            log: headers.get(LOG).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()),
        })
    }
}

async fn answer(name: &str, request: Request<Incoming>, plan: Plan) -> Result<Response<Full<Bytes>>, Cut> {
    let (head, mut body) = request.into_parts();
    let mut body_bytes = 0u64;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Cut)?;
        body_bytes += frame.data_ref().map_or(0, |data| data.len() as u64);
    }
    if !plan.sleep.is_zero() {
        tokio::time::sleep(plan.sleep).await;
    }
    let answer = match plan.answer_bytes {
        Some(count) => Bytes::from(vec![b'x'; count]),
        None => {
            let path = escape(head.uri.path_and_query().map_or("", |path| path.as_str()));
            let method = escape(head.method.as_str());
            let text = format!(
                r#"{{"sandbox":"{name}","method":"{method}","path":"{path}","body_bytes":{body_bytes}}}"#
            );
            Bytes::from(text)
        }
    };
    let mut response = Response::new(Full::new(answer));
    *response.status_mut() = plan.status.unwrap_or(StatusCode::OK);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Ok(name) = HeaderValue::from_str(name)
        && !name.is_empty()
    {
        response.headers_mut().insert(SANDBOX, name);
    }
    Ok(response)
}

fn misunderstood(name: &HeaderName) -> Response<Full<Bytes>> {
    let mut response =
        Response::new(Full::new(Bytes::from(format!("the fake runtime does not understand {name}\n"))));
    *response.status_mut() = StatusCode::BAD_REQUEST;
    response.headers_mut().insert("x-fanfare-reason", HeaderValue::from_static("bad-request"));
    response
}

/// Text as the inside of a JSON string.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' | '\\' => escaped.extend(['\\', c]),
            c if c.is_control() => escaped.push_str(&format!("\\u{:04x}", c as u32)),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_strings() {
        assert_eq!(escape(r#"/a?b="c"\d"#), r#"/a?b=\"c\"\\d"#);
        assert_eq!(escape("a\nb\u{7f}é"), "a\\u000ab\\u007fé");
    }

    #[test]
    fn plans() {
        let read = |name: &'static str, value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_static(value));
            Plan::read(&headers)
        };
        assert_eq!(read("x-fake-sleep-ms", "15").unwrap().sleep, Duration::from_millis(15));
        assert_eq!(read("x-fake-status", "503").unwrap().status, Some(StatusCode::SERVICE_UNAVAILABLE));
        assert_eq!(read("x-fake-exit", "0").unwrap().exit, Some(0));
        assert_eq!(read("x-fake-body-bytes", "9").unwrap().answer_bytes, Some(9));
        for (name, value) in [
            ("x-fake-sleep-ms", "-1"),
            ("x-fake-sleep-ms", "99999999999"),
            ("x-fake-status", "199"),
            ("x-fake-status", "600"),
            ("x-fake-exit", "256"),
            ("x-fake-body-bytes", "67108865"),
        ] {
            assert_eq!(read(name, value).err().unwrap(), name, "{name}: {value}");
        }
    }
}
