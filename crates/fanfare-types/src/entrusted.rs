//! Asynchronous invocations that the control plane has a data plane accept.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::{FunctionName, Reason};

/// A call that is to be accepted as if a client had sent it to `/async-function/NAME/…`.
#[derive(Clone, PartialEq, Eq)]
pub struct EntrustedCall {
    /// The function.
    pub function: FunctionName,
    /// The HTTP method.
    pub method: Arc<str>,
    /// Path and query, from the slash on.
    pub target: Arc<str>,
    /// Header fields, in order; those of the platform included.
    pub headers: Vec<(Arc<str>, Arc<str>)>,
    /// The body.
    pub body: Arc<[u8]>,
    /// User code runs once or not at all, instead of once or more often.
    pub at_most_once: bool,
    /// Attempts that may fail; `None` for the default.
    pub attempts_max: Option<u32>,
    /// How long an attempt may still begin; `None` for the default.
    pub age_max: Option<Duration>,
    /// Names the call: a data plane that has accepted it under this key for this function accepts it no second time.
    /// Unlike any key that a client can send.
    pub key: Arc<str>,
    /// It is not to be accepted, only its id to be said if it was before; [`Reason::InvocationNotFound`] if it is not
    /// kept.
    pub only_if_known: bool,
}

/// Nothing of what the call says: its fields, path and body are its owner's.
impl fmt::Debug for EntrustedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EntrustedCall")
            .field("function", &self.function)
            .field("key", &self.key)
            .field("body_bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}

/// Why a data plane did not accept a call: nothing of it is kept there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntrustRefusal {
    /// Why, in a word.
    pub reason: Reason,
    /// One sentence.
    pub detail: Arc<str>,
}
