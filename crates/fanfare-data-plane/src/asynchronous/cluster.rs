//! Calls that other data planes keep.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fanfare_api::AsyncListDocument;
use fanfare_async::{Filter, InvocationId};
use fanfare_http1::{Connection, RequestBody, RequestHead};
use fanfare_types::{DataPlaneId, Reason};
use http::header::{HOST, HeaderMap, HeaderValue};
use http::{Method, Response, request};
use http_body_util::{BodyExt, Empty, Limited};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::api::{not_found, own_page};
use super::door::Door;
use crate::body::Body;
use crate::core::Core;
use crate::headers;
use crate::peers::FORWARDED;
use crate::problem::Problem;
use crate::request_id::REQUEST_ID;

/// How long another data plane may take, beyond what the client asked it to wait.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of a page of a list.
const PAGE_BYTES_MAX: u64 = 16 << 20;
/// Bytes of a head beside a result.
const HEAD_BYTES: u64 = 64 << 10;

/// Asks the data plane that the id names, once.
pub(super) async fn elsewhere(
    core: &Core,
    door: &Door,
    parts: &request::Parts,
    id: InvocationId,
    wait: Duration,
) -> Result<Response<Body>, Problem> {
    let shared = &core.shared;
    if parts.headers.contains_key(FORWARDED) || shared.me() == Some(id.data_plane) {
        return Err(not_found(id));
    }
    let Some(address) = shared.peer(id.data_plane) else {
        let detail = format!("{} keeps it, and is not connected to the control plane", id.data_plane);
        return Err(Problem::new(Reason::Unavailable, detail));
    };
    let target = parts.uri.path_and_query().map_or("/", |target| target.as_str());
    let limit = door.options.payload_bytes_max + HEAD_BYTES;
    let answer = ask(core, &address, &parts.method, target, parts.headers.get(REQUEST_ID), limit);
    let answer = timeout(ANSWER_TIMEOUT + wait, Box::pin(answer)).await;
    let why = match answer {
        Ok(Ok(response)) => return Ok(response.map(Body::full)),
        Ok(Err(why)) => why,
        Err(_) => "it does not answer".to_owned(),
    };
    Err(Problem::new(Reason::Unavailable, format!("{} keeps it, and cannot be asked: {why}", id.data_plane)))
}

/// A page of the whole cluster's calls: data plane by data plane, each in its order.
pub(super) async fn list(
    core: &Core,
    door: &Door,
    parts: &request::Parts,
    filter: &Filter,
    after: Option<InvocationId>,
    limit: usize,
) -> Result<AsyncListDocument, Problem> {
    let shared = &core.shared;
    let me = shared.me();
    let begin = |data_plane: DataPlaneId| match after {
        Some(after) if after.data_plane == data_plane => after.sequence,
        _ => 0,
    };
    if parts.headers.contains_key(FORWARDED) {
        return own_page(door, me, filter, me.map_or(0, begin), limit).await;
    }
    let mut places: BTreeMap<DataPlaneId, Option<Arc<str>>> =
        shared.peers().into_iter().map(|(id, address)| (id, Some(address))).collect();
    places.insert(me.unwrap_or_default(), None);
    let mut list = AsyncListDocument::default();
    for (data_plane, address) in places {
        if after.is_some_and(|after| data_plane < after.data_plane) {
            continue;
        }
        if list.invocations.len() >= limit {
            // There may be more: the next page begins with this one.
            list.next = Some(InvocationId { data_plane, sequence: 0, nonce: 0 }.to_string());
            break;
        }
        let left = limit - list.invocations.len();
        let page = match address {
            None => own_page(door, me, filter, begin(data_plane), left).await?,
            Some(address) => match their_page(core, &address, filter, after, data_plane, left).await {
                Ok(page) => page,
                Err(why) => {
                    tracing::warn!(%data_plane, %why, "a data plane cannot be asked for its calls");
                    list.unreachable.push(data_plane.to_string());
                    continue;
                }
            },
        };
        list.invocations.extend(page.invocations);
        if page.next.is_some() {
            list.next = page.next;
            break;
        }
    }
    Ok(list)
}

async fn their_page(
    core: &Core,
    address: &str,
    filter: &Filter,
    after: Option<InvocationId>,
    data_plane: DataPlaneId,
    limit: usize,
) -> Result<AsyncListDocument, String> {
    let mut target = format!("{}?limit={limit}", if filter.unreplayed { "/async/dead" } else { "/async" });
    if let Some(function) = &filter.function {
        target.push_str(&format!("&function={function}"));
    }
    if let Some(state) = filter.state {
        target.push_str(&format!("&state={state}"));
    }
    if let Some(after) = after.filter(|after| after.data_plane == data_plane) {
        target.push_str(&format!("&after={after}"));
    }
    let asked = Box::pin(ask(core, address, &Method::GET, &target, None, PAGE_BYTES_MAX));
    let answer = timeout(ANSWER_TIMEOUT, asked).await.map_err(|_| "it does not answer".to_owned())??;
    if !answer.status().is_success() {
        return Err(format!("it answers {}", answer.status()));
    }
    serde_json::from_slice(answer.body()).map_err(|error| error.to_string())
}

/// One request without a body, on a connection of its own.
async fn ask(
    core: &Core,
    address: &str,
    method: &Method,
    target: &str,
    request_id: Option<&HeaderValue>,
    limit: u64,
) -> Result<Response<Bytes>, String> {
    let stream = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
    let mut fields = HeaderMap::new();
    // Whoever gets it sends it no further, whatever the token.
    let token = core.shared.options.cluster_token.as_deref().unwrap_or("none");
    let mut token = HeaderValue::from_str(token).map_err(|error| error.to_string())?;
    token.set_sensitive(true);
    fields.insert(FORWARDED, token);
    fields.insert(HOST, HeaderValue::from_static("localhost"));
    if let Some(id) = request_id {
        fields.insert(REQUEST_ID, id.clone());
    }
    let head = RequestHead::new(method, target, &fields);
    let body = RequestBody::new(Empty::<Bytes>::new());
    let response =
        Connection::new(stream).send(head, body, drop).await.map_err(|failed| failed.error.to_string())?;
    let (mut parts, body) = response.into_parts();
    headers::strip_hop_by_hop(&mut parts.headers);
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let body = Limited::new(body, limit).collect().await.map_err(|error| error.to_string())?;
    Ok(Response::from_parts(parts, body.to_bytes()))
}
