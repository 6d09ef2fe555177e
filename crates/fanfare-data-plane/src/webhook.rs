//! Webhooks: requests to `/webhook/NAME` from senders that show that they know a secret.
//!
//! What can be refused without the body is; then it is read whole before anything is believed. What is verified is accepted as an asynchronous call, once under
//! the sender's own id of the delivery, or passed on at once, as the webhook says.

mod known;
mod receive;
mod verify;

pub(crate) use known::Webhooks;
pub(crate) use receive::{Received, receive};
pub(crate) use verify::{Sent, verify};

use crate::names::{Rest, name_and_rest};

const PREFIX: &str = "/webhook/";

/// The webhook that a path names, and the path that its function sees. Taken only on hosts that name no function.
pub(crate) fn route(path_and_query: &str) -> Option<(&str, Rest<'_>)> {
    name_and_rest(path_and_query.strip_prefix(PREFIX)?)
}
