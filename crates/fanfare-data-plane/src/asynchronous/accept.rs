//! Taking a call in.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::{Bytes, BytesMut};
use fanfare_api::{AsyncAcceptedDocument, parse_duration};
use fanfare_async::{Accepted, Delivery, IdempotencyKey, InvocationId, Offer, Refusal, Settings, limits};
use fanfare_types::{Reason, Timestamp};
use http::header::{EXPECT, HeaderMap, HeaderName, HeaderValue, LOCATION};
use http::{Response, StatusCode, Version, request};
use http_body::Body as _;
use sha2::{Digest, Sha256};

use super::INVOCATION_ID;
use super::api::{Refused, json};
use super::door::{Ask, Door, Room};
use super::intake::Full;
use super::message;
use crate::body::Body;
use crate::clock;
use crate::core::Core;
use crate::find;
use crate::function::Function;
use crate::headers::{self, Client};
use crate::names::Rest;
use crate::payload::ClientBody;
use crate::problem::{Problem, quoted};
use crate::request_id::{REQUEST_ID, random_u64};

/// `at-least-once` or `at-most-once`.
const DELIVERY: HeaderName = HeaderName::from_static("x-fanfare-delivery");
const CALLBACK: HeaderName = HeaderName::from_static("x-fanfare-callback");
const MAX_ATTEMPTS: HeaderName = HeaderName::from_static("x-fanfare-max-attempts");
const MAX_AGE: HeaderName = HeaderName::from_static("x-fanfare-max-age");
/// Passed on to the function as well: it may be its own, too.
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Bytes that are made ready for a body before it comes, whatever length was told.
const FIRST_CAPACITY: usize = 64 << 10;
/// Characters of a URL that an error repeats.
const URL_CHARS_SHOWN: usize = 120;

/// A request that is for a function, later.
pub(crate) struct Arrived<'a> {
    pub(crate) client: &'a Client,
    pub(crate) parts: request::Parts,
    pub(crate) body: ClientBody,
    pub(crate) accepted: Timestamp,
}

/// Takes a call of `name` in: 202 once it is durable.
pub(crate) async fn accept(
    core: &Core,
    door: &Door,
    name: &str,
    rest: Rest<'_>,
    arrived: Arrived<'_>,
) -> Result<Response<Body>, Refused> {
    let shared = &core.shared;
    if shared.draining.load(Ordering::Relaxed) {
        return Err(Problem::new(Reason::ShuttingDown, "this data plane is shutting down").into());
    }
    let function = find::by_name(shared, name).await?;
    let of = |problem: Problem| Refused { problem, function: Some(function.clone()) };
    let data_plane = shared.me().ok_or_else(|| {
        of(Problem::new(Reason::NotSynced, "the control plane has not said yet which data plane this is"))
    })?;
    let settings = settings(&arrived.parts.headers, door).map_err(of)?;
    let key = key(&arrived.parts.headers).map_err(of)?;
    let Arrived { client, parts, body, accepted } = arrived;
    let counted = body.size_hint().exact().is_some();
    let deadline = accepted + function.request_timeout();
    let whole = collect(door, body, client, Sender::Stranger, deadline);
    let (body, room) = Box::pin(whole).await.map_err(of)?;
    let request = as_the_function_sees_it(parts, rest.target(), counted, body, client, &function);
    let key = key.map(|key| IdempotencyKey { key, fingerprint: fingerprint(&request) });
    let payload = request.encode();
    let offer = Offer {
        data_plane,
        nonce: random_u64(),
        function: function.id,
        name: function.name.clone(),
        settings,
        key,
        payload_bytes: payload.len() as u64,
    };
    let answer = door.ask(|tell| Ask::Offer { offer, payload, room, tell }).await.map_err(of)?;
    match answer {
        Ok(Accepted::New(id)) => Ok(accepted_as(id, &function, false)),
        Ok(Accepted::Known(id)) => Ok(accepted_as(id, &function, true)),
        Err(refusal) => Err(of(refused(refusal))),
    }
}

pub(crate) fn accepted_as(id: InvocationId, function: &Function, known: bool) -> Response<Body> {
    let document = AsyncAcceptedDocument {
        id: id.to_string(),
        function: function.name.to_string(),
        known,
        status_path: format!("/async/{id}"),
        result_path: format!("/async/{id}/result"),
    };
    let mut response = json(StatusCode::ACCEPTED, &document);
    for (name, value) in [(INVOCATION_ID, document.id), (LOCATION, document.status_path)] {
        if let Ok(value) = HeaderValue::try_from(value) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

pub(crate) fn refused(refusal: Refusal) -> Problem {
    match refusal {
        Refusal::TooMany { limit } => {
            let detail =
                format!("{limit} asynchronous invocations are open on this data plane; no more may be");
            Problem::new(Reason::AsyncQueueFull, detail)
        }
        Refusal::TooManyBytes { limit } => {
            let detail = format!(
                "the requests of the open asynchronous invocations on this data plane have {} MiB; no more may be",
                limit >> 20
            );
            Problem::new(Reason::AsyncQueueFull, detail)
        }
        Refusal::KeyReused(id) => {
            let detail = format!("the idempotency key came before with another request, which is {id}");
            Problem::new(Reason::IdempotencyKeyReused, detail)
        }
        Refusal::Unknown | Refusal::Ended(_) | Refusal::NoLetter(_) | Refusal::Replayed(_) => {
            Problem::new(Reason::Internal, "a new call was taken for another")
        }
    }
}

/// The same request that a synchronous call would bring to the sandbox.
pub(crate) fn as_the_function_sees_it(
    mut parts: request::Parts,
    target: String,
    counted: bool,
    body: Bytes,
    client: &Client,
    function: &Function,
) -> message::Request {
    let trailers = headers::accepts_trailers(&parts.headers);
    headers::strip_hop_by_hop(&mut parts.headers);
    headers::strip_platform(&mut parts.headers);
    parts.headers.remove(EXPECT);
    if parts.version == Version::HTTP_2 {
        headers::join_cookies(&mut parts.headers);
    }
    find::settle_host(&mut parts, function);
    client.append(&mut parts.headers);
    message::Request { method: parts.method, target, headers: parts.headers, counted, trailers, body }
}

/// Who sends a body, as far as that is known before it is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sender {
    Stranger,
    /// It has shown that it knows a webhook's secret.
    Believed,
}

/// The whole body, within the limit, the deadline and the room there is.
pub(crate) async fn collect(
    door: &Door,
    mut body: ClientBody,
    client: &Client,
    sender: Sender,
    deadline: Timestamp,
) -> Result<(Bytes, Room), Problem> {
    let limit = door.options.payload_bytes_max;
    let told = body.size_hint().exact();
    if let Some(told) = told.filter(|told| *told > limit) {
        return Err(too_large(limit, &format!("has {told} bytes")));
    }
    // Of unknown length: as much as there may be.
    let set_aside = match sender {
        Sender::Stranger => None,
        Sender::Believed => door.room_of_known(told.unwrap_or(limit)).ok(),
    };
    let full = |full: Full| Problem::new(Reason::DataPlaneFull, full.to_string());
    let taken = door.intake.begin(client.ip(), clock::now());
    client.state.interim.give_leave();
    let told = told.and_then(|told| usize::try_from(told).ok()).unwrap_or(0);
    let mut whole = BytesMut::with_capacity(told.min(FIRST_CAPACITY));
    let read = async {
        loop {
            let frame = poll_fn(|cx| match Pin::new(&mut body).poll_frame(cx) {
                std::task::Poll::Pending if client.state.has_ended() => {
                    std::task::Poll::Ready(Some(Err(None)))
                }
                poll => poll.map(|frame| frame.map(|frame| frame.map_err(Some))),
            });
            match frame.await {
                None => return Ok(()),
                Some(Err(error)) => {
                    let why =
                        error.map_or("the client said nothing more".to_owned(), |error| error.to_string());
                    let detail = format!("the request's body broke off: {why}");
                    return Err(Problem::new(Reason::BadRequest, detail));
                }
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) if (whole.len() + data.len()) as u64 > limit => {
                        return Err(too_large(limit, &format!("has more than {limit} bytes")));
                    }
                    Ok(data) => {
                        if set_aside.is_none() {
                            taken.grow(data.len() as u64, clock::now()).map_err(full)?;
                        }
                        whole.extend_from_slice(&data);
                    }
                    Err(_) => {
                        let detail = "trailers are not kept for an asynchronous invocation; send none";
                        return Err(Problem::new(Reason::BadRequest, detail));
                    }
                },
            }
        }
    };
    let read = async {
        tokio::select! {
            biased;
            read = read => read,
            () = taken.made_way() => Err(full(Full::MadeWay)),
        }
    };
    match tokio::time::timeout_at(clock::instant(deadline), read).await {
        Ok(read) => {
            read?;
            taken.complete().map_err(full)?;
            Ok((whole.freeze(), set_aside.unwrap_or_else(|| taken.into())))
        }
        Err(_) => {
            let detail = "the request's body did not come within the function's timeout";
            Err(Problem::new(Reason::BadRequest, detail).with_status(StatusCode::REQUEST_TIMEOUT))
        }
    }
}

fn too_large(limit: u64, what: &str) -> Problem {
    let detail = format!("the request's body {what}; the limit for an asynchronous invocation is {limit}");
    Problem::new(Reason::TooLarge, detail)
}

/// What tells requests under one idempotency key apart: method, target and body.
pub(crate) fn fingerprint(request: &message::Request) -> u128 {
    let mut hash = Sha256::new();
    for part in [request.method.as_str().as_bytes(), request.target.as_bytes(), &request.body] {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    let digest: [u8; 32] = hash.finalize().into();
    let (first, _) = digest.split_at(16);
    first.iter().fold(0, |number, byte| number << 8 | u128::from(*byte))
}

/// The one value of a field, as text.
fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Problem> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let bad = |detail: String| Err(Problem::new(Reason::BadRequest, detail));
    if values.next().is_some() {
        let first = quoted(value);
        return bad(format!("{name} is given more than once, first as {first}; give it once"));
    }
    match value.to_str() {
        Ok(text) => Ok(Some(text.trim())),
        Err(_) => bad(format!("{name} is {}; give it in visible characters of ASCII", quoted(value))),
    }
}

fn settings(headers: &HeaderMap, door: &Door) -> Result<Settings, Problem> {
    let bad = |detail: String| Problem::new(Reason::BadRequest, detail);
    let delivery = match single(headers, &DELIVERY)? {
        None => Delivery::default(),
        Some(text) => {
            text.parse().map_err(|allowed| bad(format!("{DELIVERY} is {}; {allowed}", quoted(text))))?
        }
    };
    let attempts = match single(headers, &MAX_ATTEMPTS)? {
        None => None,
        Some(text) => {
            let attempts = text.parse().ok().filter(|attempts| (1..=limits::ATTEMPTS_MAX).contains(attempts));
            let allowed = limits::ATTEMPTS_MAX;
            Some(attempts.ok_or_else(|| {
                bad(format!("{MAX_ATTEMPTS} is {}; give a number from 1 to {allowed}", quoted(text)))
            })?)
        }
    };
    let attempts_max = match (delivery, attempts) {
        (Delivery::AtMostOnce, None | Some(1)) => 1,
        (Delivery::AtMostOnce, Some(attempts)) => {
            let detail = format!(
                "{MAX_ATTEMPTS} is {attempts}; give 1 where {DELIVERY} is {delivery}, or leave it out"
            );
            return Err(bad(detail));
        }
        (Delivery::AtLeastOnce, attempts) => attempts.unwrap_or(limits::ATTEMPTS_DEFAULT),
    };
    let age_max = match single(headers, &MAX_AGE)? {
        None => limits::AGE_DEFAULT,
        Some(text) => {
            let age = parse_duration(text).filter(|age| !age.is_zero() && *age <= limits::AGE_MAX);
            let days = limits::AGE_MAX.as_secs() / 86_400;
            age.ok_or_else(|| {
                let given = quoted(text);
                bad(format!("{MAX_AGE} is {given}; give a duration such as 30s or 2h, at most {days} days"))
            })?
        }
    };
    let callback = single(headers, &CALLBACK)?;
    if let Some(url) = callback {
        door.reach.check(url).map_err(|why| bad(format!("{CALLBACK} is {:?}: {why}", shown(url))))?;
    }
    let request_id = request_id(headers);
    Ok(Settings { delivery, attempts_max, age_max, callback: callback.map(Arc::from), request_id })
}

/// The id that the request was given as it came.
pub(crate) fn request_id(headers: &HeaderMap) -> Option<Arc<str>> {
    headers.get(REQUEST_ID).and_then(|id| id.to_str().ok()).map(Arc::from)
}

/// A URL as an error repeats it: without what may be a secret, and not at any length.
fn shown(url: &str) -> String {
    let open = url.split(['?', '#']).next().unwrap_or_default();
    let end = if open.contains('@') { 0 } else { open.len() };
    let end = open.char_indices().nth(URL_CHARS_SHOWN).map_or(end, |(at, _)| at.min(end));
    if end == url.len() { url.to_owned() } else { format!("{}…", &open[..end]) }
}

fn key(headers: &HeaderMap) -> Result<Option<Arc<str>>, Problem> {
    let Some(key) = single(headers, &IDEMPOTENCY_KEY)? else { return Ok(None) };
    if key.is_empty() || key.len() > limits::KEY_LEN_MAX {
        let detail =
            format!("{IDEMPOTENCY_KEY} has {} characters; give 1 to {}", key.len(), limits::KEY_LEN_MAX);
        return Err(Problem::new(Reason::BadRequest, detail));
    }
    Ok(Some(key.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_repeated_without_secrets() {
        let long = format!("http://h/{}", "x".repeat(300));
        let cut = format!("{}…", &long[..URL_CHARS_SHOWN]);
        let cases = [
            ("ftp://x", "ftp://x"),
            ("ftp://x/a?token=canary", "ftp://x/a…"),
            ("ftp://x/#canary", "ftp://x/…"),
            ("http://user:canary@x/", "…"),
            (&long, &cut),
        ];
        for (url, expected) in cases {
            assert_eq!(shown(url), expected);
        }
    }
}
