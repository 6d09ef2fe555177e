//! What tells a callback from every other request.

/// The field that every callback of an asynchronous invocation has, and its repetitions under the same value.
///
/// A callback goes where its caller says, with what its function says: the platform's own ports refuse what carries it.
pub const CALLBACK_ID_FIELD: &str = "x-fanfare-callback-id";
