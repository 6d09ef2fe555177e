//! From a request to the function it is for.

use std::sync::Arc;
use std::time::Duration;

use fanfare_types::Reason;
use http::header::HOST;
use http::{HeaderValue, request};

use crate::function::Function;
use crate::names::{self, Host};
use crate::problem::Problem;
use crate::shared::Shared;

/// How long a request waits for the first word of the control plane before it is refused.
const SYNC_WAIT: Duration = Duration::from_secs(1);

/// Characters of a client's words that are repeated to it.
const SHOWN_MAX: usize = 80;

/// What a request is for.
pub(crate) struct Found {
    /// The function that it names.
    pub(crate) function: Arc<Function>,
    /// The unit that it names by a tag.
    pub(crate) tagged: Option<Arc<Function>>,
    /// The request target as the function sees it; `None`: as the client sent it.
    pub(crate) target: Option<String>,
}

/// Finds the function by host (the whole name, then its first label), then by path. Before the control plane has
/// said what there is, an unknown one may become known.
pub(crate) async fn find(shared: &Shared, parts: &request::Parts) -> Result<Found, Problem> {
    let host = host(parts);
    if let Some(found) = look_up(shared, host, parts) {
        return found;
    }
    let known = synced(shared).await;
    match look_up(shared, host, parts) {
        Some(found) => found,
        None => Err(known.err().unwrap_or_else(|| unknown(host, parts))),
    }
}

/// The function of a name, as [`find`] finds it.
pub(crate) async fn by_name(shared: &Shared, name: &str) -> Result<Arc<Function>, Problem> {
    if let Some(function) = shared.directory.find(name) {
        return Ok(function);
    }
    synced(shared).await?;
    shared.directory.find(name).ok_or_else(|| unknown_name(name))
}

/// The function that the host names, not by a tag.
pub(crate) async fn by_host(
    shared: &Shared,
    parts: &request::Parts,
) -> Result<Option<Arc<Function>>, Problem> {
    let Some(host) = Host::parse(host(parts)) else { return Ok(None) };
    let known = || host.names().find_map(|name| shared.directory.find(name));
    if let Some(function) = known() {
        return Ok(Some(function));
    }
    synced(shared).await?;
    Ok(known())
}

/// Whether the host names a function, so that every path is that function's.
pub(crate) async fn host_is_a_functions(shared: &Shared, parts: &request::Parts) -> Result<bool, Problem> {
    let Some(host) = Host::parse(host(parts)) else { return Ok(false) };
    let tagged = || host.tagged().map(|(_, name)| name);
    let known = || host.names().chain(tagged()).any(|name| shared.directory.find(name).is_some());
    if known() {
        return Ok(true);
    }
    synced(shared).await?;
    Ok(known())
}

/// Waits for the first word of the control plane, within bounds.
async fn synced(shared: &Shared) -> Result<(), Problem> {
    let mut synced = shared.synced.subscribe();
    // Whether it came to that or not is seen below.
    let _ = tokio::time::timeout(SYNC_WAIT, synced.wait_for(|synced| *synced)).await;
    if *shared.synced.borrow() {
        return Ok(());
    }
    let detail = "this data plane has not heard from the control plane yet which functions there are";
    Err(Problem::new(Reason::NotSynced, detail))
}

fn unknown_name(name: &str) -> Problem {
    let name: String = name.chars().take(SHOWN_MAX).collect();
    Problem::new(Reason::FunctionNotFound, format!("there is no function {name:?}"))
}

/// Whether the host is an address or `localhost`: no page of the web can make a browser say that for its own.
pub(crate) fn host_is_an_address(parts: &request::Parts) -> bool {
    Host::parse(host(parts)).is_none()
}

/// The host that the request names, be it in its target or in its `Host` field.
fn host(parts: &request::Parts) -> &str {
    match parts.uri.authority() {
        Some(authority) => authority.as_str(),
        None => parts.headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default(),
    }
}

fn path(parts: &request::Parts) -> &str {
    parts.uri.path_and_query().map_or("", |target| target.as_str())
}

/// By the host, by the host with a tag, by the path with or without one: the first that names a function.
fn look_up(shared: &Shared, host: &str, parts: &request::Parts) -> Option<Result<Found, Problem>> {
    if let Some(host) = Host::parse(host) {
        if let Some(function) = host.names().find_map(|name| shared.directory.find(name)) {
            return Some(Ok(Found { function, tagged: None, target: None }));
        }
        let found = |(tag, name)| shared.directory.find(name).map(|function| (tag, function));
        if let Some((tag, function)) = host.tagged().find_map(found) {
            return Some(tagged(function, tag, None));
        }
    }
    let (name, rest) = names::by_path(path(parts))?;
    match name.split_once('@') {
        None => {
            let function = shared.directory.find(name)?;
            Some(Ok(Found { function, tagged: None, target: Some(rest.target()) }))
        }
        Some((name, tag)) => Some(tagged(shared.directory.find(name)?, tag, Some(rest.target()))),
    }
}

fn tagged(function: Arc<Function>, tag: &str, target: Option<String>) -> Result<Found, Problem> {
    match function.tagged(tag) {
        Some(unit) => Ok(Found { function, tagged: Some(unit), target }),
        None => {
            let tag: String = tag.chars().take(SHOWN_MAX).collect();
            let detail = format!("the function {} has no tag {tag:?}", function.name);
            Err(Problem::new(Reason::TagNotFound, detail))
        }
    }
}

fn unknown(host: &str, parts: &request::Parts) -> Problem {
    if let Some((name, _)) = names::by_path(path(parts)) {
        return unknown_name(name);
    }
    match Host::parse(host) {
        Some(host) => {
            let names: Vec<_> =
                host.names().map(|n| format!("{:?}", n.get(..SHOWN_MAX).unwrap_or(n))).collect();
            let detail = format!("the host names no function: there is none called {}", names.join(" or "));
            Problem::new(Reason::FunctionNotFound, detail)
        }
        None => Problem::new(Reason::RouteNotFound, "neither the host nor the path names a function"),
    }
}

/// Makes sure that there is one `Host` field, as the sandbox's HTTP/1.1 demands: the target's authority, the client's
/// field, or the function's name for clients that predate the field.
pub(crate) fn settle_host(parts: &mut request::Parts, function: &Function) {
    let authority = parts.uri.authority().and_then(|a| HeaderValue::from_str(a.as_str()).ok());
    match authority {
        Some(authority) => {
            parts.headers.insert(HOST, authority);
        }
        None if !parts.headers.contains_key(HOST) => {
            let name = HeaderValue::from_str(function.name.as_str());
            // A function's name is a valid field value.
            parts.headers.insert(HOST, name.unwrap_or(HeaderValue::from_static("function")));
        }
        None => {}
    }
}
