//! A function as the store keeps it: compact JSON with a version number.

use std::fmt;

use fanfare_types::FunctionSpec;
use serde::{Deserialize, Serialize};

use crate::{FieldError, FunctionDocument};

/// Raised when an older release could not read what this one writes.
const VERSION: u32 = 1;

/// Why a stored function cannot be read.
#[derive(Debug)]
pub enum StoredError {
    /// Not the JSON that this release or an older one wrote.
    Malformed(serde_json::Error),
    /// Written by a newer release.
    Version(u32),
    /// A field is outside today's limits.
    Field(FieldError),
}

impl fmt::Display for StoredError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoredError::Malformed(e) => write!(f, "stored function is malformed: {e}"),
            StoredError::Version(v) => {
                write!(f, "stored function has version {v}; this release reads up to {VERSION}")
            }
            StoredError::Field(e) => write!(f, "stored function is out of limits: {e}"),
        }
    }
}

impl std::error::Error for StoredError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            StoredError::Malformed(e) => Some(e),
            StoredError::Version(_) => None,
            StoredError::Field(e) => Some(e),
        }
    }
}

#[derive(Serialize)]
struct Written {
    v: u32,
    function: FunctionDocument,
}

#[derive(Deserialize)]
struct Envelope<'a> {
    v: u32,
    #[serde(borrow)]
    function: &'a serde_json::value::RawValue,
}

/// The bytes to store.
#[must_use]
pub fn encode_stored(spec: &FunctionSpec) -> Vec<u8> {
    let written = Written { v: VERSION, function: FunctionDocument::from(spec) };
    serde_json::to_vec(&written).expect("string keys and finite numbers always encode as JSON")
}

/// The function that [`encode_stored`] wrote.
///
/// # Errors
/// [`StoredError`] when the bytes are not its, are a newer release's, or are outside today's limits.
pub fn decode_stored(bytes: &[u8]) -> Result<FunctionSpec, StoredError> {
    let envelope: Envelope<'_> = serde_json::from_slice(bytes).map_err(StoredError::Malformed)?;
    if envelope.v > VERSION {
        return Err(StoredError::Version(envelope.v));
    }
    let document: FunctionDocument =
        serde_json::from_str(envelope.function.get()).map_err(StoredError::Malformed)?;
    FunctionSpec::try_from(document).map_err(StoredError::Field)
}
