//! Keys and values in the store.

use std::sync::Arc;

use bytes::Bytes;
use fanfare_api::{decode_stored, encode_stored};
use fanfare_store::{Entry, Op, Precondition};
use fanfare_types::{FunctionId, FunctionName, FunctionSpec, RevisionId, StartFailure};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::failure::StoredFailure;
use super::{Function, PeerKind};
use crate::ControlPlaneError;

/// Functions' keys begin so.
pub(super) const FUNCTIONS: &str = "functions/";
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

pub(super) fn peer_key(kind: PeerKind, name: &str) -> String {
    format!("{}{name}", peers_prefix(kind))
}

#[derive(Serialize, Deserialize)]
struct StoredFunction<'a> {
    id: u32,
    revision: u32,
    #[serde(borrow)]
    stored: &'a RawValue,
    /// What was registered before this revision, to go back to.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    previous: Option<&'a RawValue>,
    /// Why this revision cannot start, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    failed: Option<StoredFailure>,
}

#[derive(Serialize, Deserialize)]
struct StoredNumber {
    id: u32,
}

/// The write that keeps a function.
pub(super) fn put_function(
    id: RevisionId,
    spec: &FunctionSpec,
    previous: Option<&FunctionSpec>,
    failed: Option<&StartFailure>,
) -> Result<Op, serde_json::Error> {
    let raw =
        |spec: &FunctionSpec| serde_json::from_slice(&encode_stored(spec)).map(|raw: Box<RawValue>| raw);
    let (stored, previous) = (raw(spec)?, previous.map(raw).transpose()?);
    let value = StoredFunction {
        id: id.function.0,
        revision: id.number,
        stored: &stored,
        previous: previous.as_deref(),
        failed: failed.and_then(StoredFailure::of),
    };
    Ok(Op::Put(function_key(&spec.name), Bytes::from(serde_json::to_vec(&value)?)))
}

/// The function that [`put_function`] kept.
pub(super) fn read_function(key: &str, entry: &Entry) -> Result<Function, ControlPlaneError> {
    let unreadable = |detail: String| ControlPlaneError::Entry { key: key.to_owned(), detail };
    let value: StoredFunction<'_> =
        serde_json::from_slice(&entry.value).map_err(|e| unreadable(e.to_string()))?;
    let decoded = |raw: &RawValue| {
        decode_stored(raw.get().as_bytes()).map(Arc::new).map_err(|e| ControlPlaneError::stored(key, &e))
    };
    let (spec, previous) = (decoded(value.stored)?, value.previous.map(decoded).transpose()?);
    if function_key(&spec.name) != key {
        return Err(unreadable(format!("it is about {}", spec.name)));
    }
    let failed = value.failed.map(|failed| Arc::new(failed.into()));
    let id = RevisionId { function: FunctionId(value.id), number: value.revision };
    Ok(Function { id, spec, previous, failed, stored: entry.revision })
}

/// The write that keeps a number.
pub(super) fn put_number(key: String, id: u32) -> Op {
    Op::Put(key, Bytes::from(format!("{{\"id\":{id}}}")))
}

/// The number that [`put_number`] kept.
pub(super) fn read_number(key: &str, entry: &Entry) -> Result<u32, ControlPlaneError> {
    let value: StoredNumber = serde_json::from_slice(&entry.value)
        .map_err(|e| ControlPlaneError::Entry { key: key.to_owned(), detail: e.to_string() })?;
    Ok(value.id)
}

/// What must hold for a key that was read as `before`.
pub(super) fn unchanged(key: String, before: Option<fanfare_store::Revision>) -> Precondition {
    match before {
        Some(revision) => Precondition::Unchanged(key, revision),
        None => Precondition::Absent(key),
    }
}
