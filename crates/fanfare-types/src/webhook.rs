//! Webhooks: calls that other services make, and how it is known that it is they.

use std::sync::Arc;
use std::time::Duration;

use crate::{FunctionName, SecretName, SecretValue};

/// How a sender shows that it knows the secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WebhookScheme {
    /// `X-Hub-Signature-256`: HMAC-SHA256 of the body, in hexadecimal digits, as GitHub sends it.
    Github,
    /// `Stripe-Signature`: the same of time and body, with the time.
    Stripe,
    /// `webhook-id`, `webhook-timestamp`, `webhook-signature`, as Standard Webhooks has them.
    Standard,
    /// The secret itself, as `Authorization: Bearer` or as the parameter `token` of the URL.
    Token,
}

impl WebhookScheme {
    /// All of them.
    pub const ALL: [WebhookScheme; 4] =
        [WebhookScheme::Github, WebhookScheme::Stripe, WebhookScheme::Standard, WebhookScheme::Token];

    /// Its word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            WebhookScheme::Github => "github",
            WebhookScheme::Stripe => "stripe",
            WebhookScheme::Standard => "standard",
            WebhookScheme::Token => "token",
        }
    }
}

/// A webhook as it is registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookSpec {
    /// Its name: it is called at `/webhook/NAME`.
    pub name: FunctionName,
    /// The function that is called.
    pub function: FunctionName,
    /// How its senders are known.
    pub scheme: WebhookScheme,
    /// The secret that they know.
    pub secret: SecretName,
    /// Whether the sender waits for the function's answer, instead of only for the call to be durable.
    pub wait: bool,
    /// How far the time of a signature may be from now, where it has one.
    pub tolerance: Duration,
}

/// A webhook as data planes know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookRoute {
    /// What is registered.
    pub spec: Arc<WebhookSpec>,
    /// What the secret holds; `None` while there is no such secret: nobody can be known then.
    pub key: Option<SecretValue>,
}
