//! Taking in a call that the control plane has made: a schedule's.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use fanfare_async::{Accepted, Delivery, IdempotencyKey, InvocationId, Offer, Settings, limits};
use fanfare_types::limits::FAILURE_DETAIL_BYTES_MAX;
use fanfare_types::{EntrustRefusal, EntrustedCall, Reason};
use http::header::{EXPECT, HOST, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Uri};

use super::accept::{fingerprint, refused};
use super::door::Ask;
use super::message;
use crate::find;
use crate::function::Function;
use crate::headers;
use crate::problem::Problem;
use crate::request_id::random_u64;
use crate::shared::Shared;

/// Begins the platform's own idempotency keys: a client's is the value of a field, in which this cannot be.
pub(crate) const OWN_KEYS: char = '\u{1}';

/// Accepts the call: its id, once it is durable. One that came before under its key is the same call. One that is asked
/// for only if it is known is not accepted now.
pub(crate) async fn entrust(shared: &Shared, call: &EntrustedCall) -> Result<InvocationId, EntrustRefusal> {
    accept(shared, call).await.map_err(|problem| {
        let detail = problem.detail();
        let end = detail.floor_char_boundary(FAILURE_DETAIL_BYTES_MAX);
        EntrustRefusal { reason: problem.reason, detail: Arc::from(&detail[..end]) }
    })
}

async fn accept(shared: &Shared, call: &EntrustedCall) -> Result<InvocationId, Problem> {
    let Some(door) = &shared.door else {
        let detail = "this data plane has no directory to keep asynchronous invocations in";
        return Err(Problem::new(Reason::AsyncOff, detail));
    };
    if shared.draining.load(Ordering::Relaxed) {
        return Err(Problem::new(Reason::ShuttingDown, "this data plane is shutting down"));
    }
    let function = find::by_name(shared, call.function.as_str()).await?;
    let key = Arc::from(format!("{OWN_KEYS}{}", call.key));
    if call.only_if_known {
        let known = door.ask(|tell| Ask::Known { function: function.id, key, tell }).await?;
        let gone = || Problem::new(Reason::InvocationNotFound, "the call is not kept on this data plane");
        return known.ok_or_else(gone);
    }
    let data_plane = shared.me().ok_or_else(|| {
        Problem::new(Reason::NotSynced, "the control plane has not said yet which data plane this is")
    })?;
    let request = as_the_function_sees_it(call, &function)?;
    let bytes = request.body.len() as u64;
    if bytes > door.options.payload_bytes_max {
        let limit = door.options.payload_bytes_max;
        let detail = format!("the call's body has {bytes} bytes; the limit is {limit}");
        return Err(Problem::new(Reason::TooLarge, detail));
    }
    let room = door.room_of_known(bytes)?;
    let key = IdempotencyKey { key, fingerprint: fingerprint(&request) };
    let payload = request.encode();
    let offer = Offer {
        data_plane,
        nonce: random_u64(),
        function: function.id,
        name: function.name.clone(),
        settings: settings(call),
        key: Some(key),
        payload_bytes: payload.len() as u64,
    };
    let answer = door.ask(|tell| Ask::Offer { offer, payload, room, tell }).await?;
    match answer {
        Ok(Accepted::New(id) | Accepted::Known(id)) => Ok(id),
        // Made before with what was to be said then. It is the same call all the same: its key says so.
        Err(fanfare_async::Refusal::KeyReused(id)) => Ok(id),
        Err(refusal) => Err(refused(refusal)),
    }
}

fn settings(call: &EntrustedCall) -> Settings {
    let attempts_max = match call.at_most_once {
        true => 1,
        false => call.attempts_max.unwrap_or(limits::ATTEMPTS_DEFAULT).clamp(1, limits::ATTEMPTS_MAX),
    };
    Settings {
        delivery: if call.at_most_once { Delivery::AtMostOnce } else { Delivery::AtLeastOnce },
        attempts_max,
        age_max: call.age_max.unwrap_or(limits::AGE_DEFAULT).min(limits::AGE_MAX),
        callback: None,
        request_id: None,
    }
}

fn as_the_function_sees_it(call: &EntrustedCall, function: &Function) -> Result<message::Request, Problem> {
    let bad = |what: &str| Problem::new(Reason::BadRequest, format!("the call's {what} cannot be sent"));
    let method = Method::from_bytes(call.method.as_bytes()).map_err(|_| bad("method"))?;
    let target = call.target.parse::<Uri>();
    // As it is sent: what would be read in another way is not.
    let whole = target.as_ref().ok().and_then(|target| target.path_and_query());
    if !call.target.starts_with('/') || whole.is_none_or(|whole| *whole.as_str() != *call.target) {
        return Err(bad("path"));
    }
    let mut headers = HeaderMap::new();
    for (name, value) in &call.headers {
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| bad("header fields"))?;
        headers.append(name, HeaderValue::from_str(value).map_err(|_| bad("header fields"))?);
    }
    headers::strip_hop_by_hop(&mut headers);
    headers.remove(EXPECT);
    if !headers.contains_key(HOST) {
        let host = HeaderValue::from_str(function.name.as_str()).map_err(|_| bad("host"))?;
        headers.insert(HOST, host);
    }
    let body = Bytes::copy_from_slice(&call.body);
    Ok(message::Request {
        method,
        target: call.target.to_string(),
        headers,
        counted: true,
        trailers: false,
        body,
    })
}
