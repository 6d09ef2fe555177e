//! Keys and values in the store.

use std::sync::Arc;

use bytes::Bytes;
use fanfare_api::{decode_stored, encode_stored};
use fanfare_store::{Entry, Op, Precondition};
use fanfare_types::{FunctionId, FunctionName, FunctionSpec, RevisionId};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::failure::StoredFailure;
use super::history::{Past, digest};
use super::traffic::{Routing, StoredRouting};
use super::{Function, PeerKind};
use crate::ControlPlaneError;

/// Functions' keys begin so.
pub(super) const FUNCTIONS: &str = "functions/";
/// Keys of revisions that were replaced begin so.
pub(super) const REVISIONS: &str = "revisions/";
/// Where the first id that was never given out is kept.
pub(super) const NEXT_ID: &str = "ids/next";

/// What keys of this kind begin with.
pub(super) const fn peers_prefix(kind: PeerKind) -> &'static str {
    match kind {
        PeerKind::Node => "nodes/",
        PeerKind::DataPlane => "data-planes/",
    }
}

pub(super) fn function_key(name: &FunctionName) -> String {
    format!("{FUNCTIONS}{name}")
}

/// What keys of the function's earlier revisions begin with.
pub(super) fn revisions_prefix(name: &FunctionName) -> String {
    format!("{REVISIONS}{name}/")
}

pub(super) fn revision_key(name: &FunctionName, number: u32) -> String {
    format!("{REVISIONS}{name}/{number}")
}

pub(super) fn peer_key(kind: PeerKind, name: &str) -> String {
    format!("{}{name}", peers_prefix(kind))
}

/// A revision: the current one below the function's key, earlier ones below keys of their own.
#[derive(Serialize, Deserialize)]
struct StoredRevision<'a> {
    id: u32,
    revision: u32,
    #[serde(default)]
    created_unix_ms: u64,
    #[serde(borrow)]
    stored: &'a RawValue,
    /// Why this revision cannot start, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    failed: Option<StoredFailure>,
    /// It has been proved to start at some time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    has_started: bool,
    /// Where requests go that are not all for the current revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    routing: Option<StoredRouting>,
}

#[derive(Serialize, Deserialize)]
struct StoredNumber {
    id: u32,
}

/// The write that keeps a function with its current revision.
pub(super) fn put_function(function: &Function) -> Result<Op, serde_json::Error> {
    put(
        function_key(&function.spec.name),
        function,
        function.routing.as_ref().map(|routing| routing.stored()),
    )
}

/// The write that keeps the function's current revision as one that is replaced.
pub(super) fn put_past(function: &Function) -> Result<Op, serde_json::Error> {
    put(revision_key(&function.spec.name, function.id.number), function, None)
}

fn put(key: String, function: &Function, routing: Option<StoredRouting>) -> Result<Op, serde_json::Error> {
    let stored: Box<RawValue> = serde_json::from_slice(&encode_stored(&function.spec))?;
    let value = StoredRevision {
        id: function.id.function.0,
        revision: function.id.number,
        created_unix_ms: function.created_unix_ms,
        stored: &stored,
        failed: function.failed.as_deref().and_then(StoredFailure::of),
        has_started: function.has_started,
        routing,
    };
    Ok(Op::Put(key, Bytes::from(serde_json::to_vec(&value)?)))
}

/// The function that [`put_function`] kept, without its earlier revisions.
pub(super) fn read_function(key: &str, entry: &Entry) -> Result<Function, ControlPlaneError> {
    let value = parse(key, entry)?;
    let spec = spec_of(key, &value)?;
    if function_key(&spec.name) != key {
        return Err(unreadable(key, format!("it is about {}", spec.name)));
    }
    let routing = value.routing.as_ref().map(|stored| Routing::read(stored, &spec)).transpose();
    let routing = routing.map_err(|detail| unreadable(key, detail))?.map(Arc::new);
    Ok(Function {
        id: RevisionId { function: FunctionId(value.id), number: value.revision },
        spec,
        created_unix_ms: value.created_unix_ms,
        failed: value.failed.map(|failed| Arc::new(failed.into())),
        has_started: value.has_started,
        past: Vec::new(),
        stand_in: None,
        routing,
        stored: entry.revision,
    })
}

/// The revision that [`put_past`] kept: its function's name and id, what is known of it, and what it was.
pub(super) fn read_past(
    key: &str,
    entry: &Entry,
) -> Result<(FunctionId, Past, Arc<FunctionSpec>), ControlPlaneError> {
    let value = parse(key, entry)?;
    let spec = spec_of(key, &value)?;
    if revision_key(&spec.name, value.revision) != key {
        return Err(unreadable(key, format!("it is about revision {} of {}", value.revision, spec.name)));
    }
    let past = Past {
        number: value.revision,
        created_unix_ms: value.created_unix_ms,
        digest: digest(&spec),
        code: spec.code,
        secrets: spec.given.secret_names().into(),
        failed: value.failed.map(|failed| Arc::new(failed.into())),
        has_started: value.has_started,
    };
    Ok((FunctionId(value.id), past, spec))
}

/// The write that keeps, of a revision that was replaced, why it cannot start, or that it can.
pub(super) fn note_past(key: &str, entry: &Entry, past: &Past) -> Result<Op, ControlPlaneError> {
    let (failed, has_started) = (past.failed.as_deref().and_then(StoredFailure::of), past.has_started);
    let value = StoredRevision { failed, has_started, ..parse(key, entry)? };
    let value = serde_json::to_vec(&value).map_err(|e| unreadable(key, e.to_string()))?;
    Ok(Op::Put(key.to_owned(), Bytes::from(value)))
}

fn parse<'a>(key: &str, entry: &'a Entry) -> Result<StoredRevision<'a>, ControlPlaneError> {
    serde_json::from_slice(&entry.value).map_err(|e| unreadable(key, e.to_string()))
}

fn spec_of(key: &str, value: &StoredRevision<'_>) -> Result<Arc<FunctionSpec>, ControlPlaneError> {
    let spec = decode_stored(value.stored.get().as_bytes());
    spec.map(Arc::new).map_err(|e| ControlPlaneError::stored(key, &e))
}

fn unreadable(key: &str, detail: String) -> ControlPlaneError {
    ControlPlaneError::Entry { key: key.to_owned(), detail }
}

/// The write that keeps a number.
pub(super) fn put_number(key: String, id: u32) -> Op {
    Op::Put(key, Bytes::from(format!("{{\"id\":{id}}}")))
}

/// The number that [`put_number`] kept.
pub(super) fn read_number(key: &str, entry: &Entry) -> Result<u32, ControlPlaneError> {
    let value: StoredNumber =
        serde_json::from_slice(&entry.value).map_err(|e| unreadable(key, e.to_string()))?;
    Ok(value.id)
}

/// What must hold for a key that was read as `before`.
pub(super) fn unchanged(key: String, before: Option<fanfare_store::Revision>) -> Precondition {
    match before {
        Some(revision) => Precondition::Unchanged(key, revision),
        None => Precondition::Absent(key),
    }
}
