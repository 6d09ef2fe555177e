//! Taking one request of a webhook in.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fanfare_async::{Accepted, Delivery, IdempotencyKey, Offer, Settings, limits};
use fanfare_types::{DataPlaneId, Reason, Timestamp, WebhookScheme};
use http::header::{HeaderName, HeaderValue};
use http::{Method, Response, request};

use super::Sent;
use super::verify::{self, may_be_known, verify, without_token};
use crate::asynchronous::accept::{self, Sender};
use crate::asynchronous::api::{Refused, not_allowed};
use crate::asynchronous::door::{Ask, Door, Room};
use crate::asynchronous::entrust::OWN_KEYS;
use crate::asynchronous::message;
use crate::body::Body;
use crate::core::Core;
use crate::find;
use crate::function::Function;
use crate::headers::Client;
use crate::names::Rest;
use crate::payload::{ClientBody, Payload};
use crate::problem::Problem;
use crate::request_id::random_u64;

/// Tells the function which webhook calls it.
const WEBHOOK: HeaderName = HeaderName::from_static("x-fanfare-webhook");
/// The longest that a body may take to arrive, if its function may take no less.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// What becomes of a request whose sender is known.
pub(crate) enum Received {
    /// It is durable, and the sender is told so.
    Accepted(Response<Body>),
    /// Its function is to be called now.
    /// Its body has room until `room` is dropped.
    Now { function: Arc<Function>, parts: request::Parts, target: String, payload: Payload, room: Room },
}

/// Reads the request, and believes it if its sender knows the webhook's secret.
pub(crate) async fn receive(
    core: &Core,
    client: &Client,
    (name, rest): (&str, Rest<'_>),
    parts: request::Parts,
    body: ClientBody,
    accepted: Timestamp,
) -> Result<Received, Refused> {
    let shared = &core.shared;
    if shared.draining.load(Ordering::Relaxed) {
        return Err(Problem::new(Reason::ShuttingDown, "this data plane is shutting down").into());
    }
    let Some(door) = &shared.door else {
        let detail = "this data plane has no directory to keep asynchronous invocations in";
        return Err(Problem::new(Reason::AsyncOff, detail).into());
    };
    let webhook = shared.webhooks.find(name).await?;
    let spec = &webhook.spec;
    if parts.method != Method::POST {
        return Ok(Received::Accepted(not_allowed(core, &parts, &["POST"])));
    }
    let Some(key) = &webhook.key else {
        // Strangers read the answer, and may ask as often as they like.
        tracing::debug!(webhook = %spec.name, secret = %spec.secret, "the secret by which its senders are known is not set");
        let detail = "this webhook cannot know its senders at present; `fanfare webhook describe` says why";
        return Err(Problem::new(Reason::Unavailable, detail).into());
    };
    let unverified = |why: verify::Unverified| Problem::new(Reason::WebhookUnverified, why.to_string());
    let query = parts.uri.query().unwrap_or_default();
    may_be_known(spec.scheme, key.expose(), &parts.headers, query, now_s(), spec.tolerance)
        .map_err(unverified)?;
    let data_plane = shared.me().ok_or_else(|| {
        Problem::new(Reason::NotSynced, "the control plane has not said yet which data plane this is")
    })?;
    // Whether there is one is said only to those who are known.
    let function = find::by_name(shared, spec.function.as_str()).await;
    let counted = http_body::Body::size_hint(&body).exact().is_some();
    let timeout = function.as_ref().map_or(BODY_TIMEOUT, |f| f.request_timeout().min(BODY_TIMEOUT));
    // A token was compared already; a signature can be only when what it signs is here.
    let sender = match spec.scheme {
        WebhookScheme::Token => Sender::Believed,
        WebhookScheme::Github | WebhookScheme::Stripe | WebhookScheme::Standard => Sender::Stranger,
    };
    let collected = accept::collect(door, body, client, sender, accepted + timeout);
    let (body, room) = Box::pin(collected).await?;
    let sent = Sent { headers: &parts.headers, query, body: &body };
    let delivery = verify(spec.scheme, key.expose(), sent, now_s(), spec.tolerance).map_err(unverified)?;
    let function = function?;
    let of = |problem: Problem| Refused { problem, function: Some(function.clone()) };
    let (mut parts, mut target) = (parts, rest.target());
    if spec.scheme == WebhookScheme::Token {
        target = without_token(key.expose(), &mut parts.headers, &target);
    }
    let mut request = accept::as_the_function_sees_it(parts, target, counted, body, client, &function);
    if let Ok(name) = HeaderValue::from_str(spec.name.as_str()) {
        request.headers.insert(WEBHOOK, name);
    }
    if spec.wait {
        let target = request.target;
        let built = http::Request::builder().method(request.method).uri(&target).body(());
        let built = built.map_err(|error| of(Problem::new(Reason::BadRequest, error.to_string())))?;
        let (mut parts, ()) = built.into_parts();
        parts.headers = request.headers;
        let payload = Payload::kept(request.body, request.counted);
        return Ok(Received::Now { function, parts, target, payload, room });
    }
    let key = delivery.map(|id| IdempotencyKey {
        key: format!("{OWN_KEYS}webhook {} {id}", spec.name).into(),
        fingerprint: accept::fingerprint(&request),
    });
    keep(door, data_plane, &function, key, (request, room)).await.map_err(of)
}

/// Has the call kept, to be made later.
async fn keep(
    door: &Door,
    data_plane: DataPlaneId,
    function: &Function,
    key: Option<IdempotencyKey>,
    (request, room): (message::Request, Room),
) -> Result<Received, Problem> {
    let payload = request.encode();
    let offer = Offer {
        data_plane,
        nonce: random_u64(),
        function: function.id,
        name: function.name.clone(),
        settings: Settings {
            delivery: Delivery::AtLeastOnce,
            attempts_max: limits::ATTEMPTS_DEFAULT,
            age_max: limits::AGE_DEFAULT,
            callback: None,
            request_id: accept::request_id(&request.headers),
        },
        key,
        payload_bytes: payload.len() as u64,
    };
    let answer = door.ask(|tell| Ask::Offer { offer, payload, room, tell }).await?;
    match answer {
        Ok(Accepted::New(id)) => Ok(Received::Accepted(accept::accepted_as(id, function, false))),
        Ok(Accepted::Known(id)) => Ok(Received::Accepted(accept::accepted_as(id, function, true))),
        Err(refusal) => Err(accept::refused(refusal)),
    }
}

/// The wall clock, by which senders sign.
fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
