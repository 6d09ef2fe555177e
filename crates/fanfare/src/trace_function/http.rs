//! Requests over HTTP, of which those of gRPC are some.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use fanfare_types::Reason;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use serde::Serialize;

use super::work::Work;
use super::{Function, grpc};

/// Characters of a field that an answer repeats.
const SHOWN_CHARS_MAX: usize = 80;

pub(super) type Body = BoxBody<Bytes, Infallible>;

/// The answer's document, with the field names that InVitro reads.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Answer<'a> {
    status: &'a str,
    function: &'a str,
    machine_name: &'a str,
    /// Microseconds.
    execution_time: u64,
}

/// Answers one request.
pub(super) async fn answer(
    function: Arc<Function>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    if grpc::is_call(request.headers()) {
        return Ok(grpc::answer(&function, request).await);
    }
    if request.uri().path() == "/health" {
        return Ok(text(StatusCode::OK, "ok\n"));
    }
    let (parts, mut body) = request.into_parts();
    // What is sent for nothing is read all the same: an answer before its end could cut the connection.
    while let Some(Ok(_)) = body.frame().await {}
    let asked = match asked(&function, &parts.headers) {
        Ok(asked) => asked,
        Err(wrong) => return Ok(refusal(StatusCode::BAD_REQUEST, Reason::BadRequest, &wrong)),
    };
    let name = parts.headers.get("function").and_then(|name| name.to_str().ok()).unwrap_or(&function.name);
    let (status, took) = match asked {
        None => ("OK - EMPTY", 0),
        Some(work) => match tokio::task::spawn_blocking(move || work.run()).await {
            Ok(done) if done.had_memory => ("OK", micros(done.took)),
            // InVitro knows it by how the body begins.
            Ok(_) => return Ok(text(StatusCode::OK, &format!("FAILURE - mem_alloc - {name}\n"))),
            Err(_) => {
                return Ok(refusal(StatusCode::BAD_GATEWAY, Reason::HandlerError, "the work broke off"));
            }
        },
    };
    let answer = Answer { status, function: name, machine_name: &function.machine, execution_time: took };
    // A document of texts and a number has a JSON form.
    let json = serde_json::to_vec(&answer).unwrap_or_default();
    Ok(response(StatusCode::OK, "application/json", json))
}

/// What the fields ask for: `None` if nothing at all; what is wrong with one.
fn asked(function: &Function, headers: &HeaderMap) -> Result<Option<Work>, String> {
    let number = |name: &str| {
        let Some(value) = headers.get(name) else { return Ok(None) };
        let number = value.to_str().ok().and_then(|text| text.trim().parse::<u32>().ok());
        number.map(Some).ok_or_else(|| {
            let value: String =
                String::from_utf8_lossy(value.as_bytes()).chars().take(SHOWN_CHARS_MAX).collect();
            format!("{name} is {value:?}; allowed: a whole number, 0 to {}", u32::MAX)
        })
    };
    let workload = headers.get("workload").and_then(|value| value.to_str().ok()).unwrap_or_default();
    // The names of images, with or without what is around these words.
    let empty = workload.contains("empty") || (function.empty && !workload.contains("trace"));
    let (runtime_ms, memory_mib) = (number("requested_cpu")?, number("requested_memory")?);
    let (turns, io_percentage) = (number("multiplier")?, number("io_percentage")?);
    // The multiplier says how often a loop turns in a millisecond on the machine it was measured on. Of that only none
    // at all means the same on this one.
    if empty || turns == Some(0) {
        return Ok(None);
    }
    Ok(Some(Work::new(runtime_ms.unwrap_or(0), io_percentage.unwrap_or(0), memory_mib.unwrap_or(0))))
}

pub(super) fn micros(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// What the platform lets a function say of a request or of itself, with the code for it.
fn refusal(status: StatusCode, reason: Reason, detail: &str) -> Response<Body> {
    let mut response = text(status, &format!("{detail}\n"));
    response.headers_mut().insert("x-fanfare-reason", HeaderValue::from_static(reason.code()));
    response
}

fn text(status: StatusCode, text: &str) -> Response<Body> {
    response(status, "text/plain", text.as_bytes().to_vec())
}

fn response(status: StatusCode, media_type: &'static str, body: Vec<u8>) -> Response<Body> {
    let mut response = Response::new(Full::new(Bytes::from(body)).boxed());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_say_what_to_do() {
        let trace = || Function { name: "f".into(), sandbox: "s1".into(), machine: "m".into(), empty: false };
        let none = || Function { empty: true, ..trace() };
        let of = |function: &Function, fields: &[(&'static str, &str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in fields {
                headers.insert(*name, HeaderValue::from_str(value).unwrap());
            }
            asked(function, &headers)
        };
        let invitro = |workload| {
            [
                ("workload", workload),
                ("requested_cpu", "10"),
                ("requested_memory", "2048"),
                ("multiplier", "102"),
            ]
        };
        let all = Work { cpu_ms: 10, io_ms: 0, memory_mib: 2_048 };
        let image = "docker.io/cvetkovic/dirigent_trace_function:latest";
        assert_eq!(of(&trace(), &invitro(image)), Ok(Some(all)));
        assert_eq!(of(&none(), &invitro(image)), Ok(Some(all)));
        assert_eq!(of(&trace(), &invitro("own")), Ok(Some(all)));
        assert_eq!(of(&none(), &invitro("own")), Ok(None));
        assert_eq!(of(&trace(), &invitro("empty")), Ok(None));
        assert_eq!(of(&trace(), &[("requested_cpu", "10"), ("multiplier", "0")]), Ok(None));
        assert_eq!(of(&trace(), &[]), Ok(Some(Work::default())));
        let half = [("requested_cpu", "10"), ("io_percentage", "50")];
        assert_eq!(of(&trace(), &half), Ok(Some(Work { cpu_ms: 5, io_ms: 5, memory_mib: 0 })));
        let wrong = "requested_cpu is \"-1\"; allowed: a whole number, 0 to 4294967295";
        assert_eq!(of(&trace(), &[("requested_cpu", "-1")]), Err(wrong.to_owned()));
        assert!(of(&trace(), &[("multiplier", "many")]).unwrap_err().starts_with("multiplier is \"many\""));
        let refused = refusal(StatusCode::BAD_REQUEST, Reason::BadRequest, wrong);
        assert_eq!(refused.headers()["x-fanfare-reason"], "bad-request");
    }
}
