//! Webhooks: what is registered, and what is answered.

use std::time::Duration;

use fanfare_types::{FunctionName, SecretName, WebhookScheme, WebhookSpec, limits};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::function::read_json;
use crate::quantity::show_duration;
use crate::{FieldError, Quantity};

/// A webhook: what is registered, and what is answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WebhookDocument {
    /// 1 to 63 characters of `a-z 0-9 - _ .`, a letter or a digit at both ends.
    pub name: String,
    /// The function that is called.
    pub function: String,
    /// How a sender shows that it knows the secret.
    pub verify: VerifyName,
    /// The name of that secret.
    pub secret: String,
    /// Whether the sender waits for the function's answer. Default false: it is answered 202 as soon as the call is
    /// durable.
    #[serde(default)]
    pub wait: bool,
    /// How far the time of a signature may be from now, where it has one: seconds, or text such as `"5m"`. Default 5 min;
    /// 1 s to 1 day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tolerance: Option<Quantity>,
}

/// How a sender shows that it knows the secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum VerifyName {
    /// `X-Hub-Signature-256`: HMAC-SHA256 of the body, as GitHub sends it.
    Github,
    /// `Stripe-Signature`: HMAC-SHA256 of time and body, with the time.
    Stripe,
    /// `webhook-id`, `webhook-timestamp` and `webhook-signature`, as Standard Webhooks has them.
    Standard,
    /// The secret itself, as `Authorization: Bearer` or as the parameter `token` of the URL.
    Token,
}

impl From<VerifyName> for WebhookScheme {
    fn from(name: VerifyName) -> Self {
        match name {
            VerifyName::Github => WebhookScheme::Github,
            VerifyName::Stripe => WebhookScheme::Stripe,
            VerifyName::Standard => WebhookScheme::Standard,
            VerifyName::Token => WebhookScheme::Token,
        }
    }
}

impl From<WebhookScheme> for VerifyName {
    fn from(scheme: WebhookScheme) -> Self {
        match scheme {
            WebhookScheme::Github => VerifyName::Github,
            WebhookScheme::Stripe => VerifyName::Stripe,
            WebhookScheme::Standard => VerifyName::Standard,
            WebhookScheme::Token => VerifyName::Token,
        }
    }
}

impl WebhookDocument {
    /// Reads one from JSON. The caller bounds `json`.
    ///
    /// # Errors
    /// [`FieldError`] names the field that has the wrong shape.
    pub fn from_json(json: &[u8]) -> Result<Self, FieldError> {
        read_json(json)
    }
}

impl TryFrom<WebhookDocument> for WebhookSpec {
    type Error = FieldError;

    /// Checks every field and fills in the defaults.
    ///
    /// # Errors
    /// The first field that is wrong, with what is allowed and what was given.
    fn try_from(document: WebhookDocument) -> Result<Self, FieldError> {
        let bad = |field: &str, given: &str, error: String| FieldError {
            message: format!("{field} {error}"),
            ..FieldError::new(field, format!("{given:?}"), error)
        };
        let name =
            |field, given: &str| FunctionName::new(given).map_err(|e| bad(field, given, e.to_string()));
        let secret = &document.secret;
        Ok(WebhookSpec {
            name: name("name", &document.name)?,
            function: name("function", &document.function)?,
            scheme: document.verify.into(),
            secret: SecretName::new(secret).map_err(|e| bad("secret", secret, e.to_string()))?,
            wait: document.wait,
            tolerance: match &document.tolerance {
                None => limits::WEBHOOK_TOLERANCE_DEFAULT,
                Some(tolerance) => check_tolerance(tolerance)?,
            },
        })
    }
}

fn check_tolerance(tolerance: &Quantity) -> Result<Duration, FieldError> {
    let (min, max) = (limits::WEBHOOK_TOLERANCE_MIN, limits::WEBHOOK_TOLERANCE_MAX);
    tolerance.duration().filter(|given| (min..=max).contains(given)).ok_or_else(|| {
        FieldError::new("tolerance", tolerance, format!("{} to {}", show_duration(min), show_duration(max)))
    })
}

impl From<&WebhookSpec> for WebhookDocument {
    fn from(spec: &WebhookSpec) -> Self {
        WebhookDocument {
            name: spec.name.to_string(),
            function: spec.function.to_string(),
            verify: spec.scheme.into(),
            secret: spec.secret.to_string(),
            wait: spec.wait,
            tolerance: Some(Quantity::from_duration(spec.tolerance)),
        }
    }
}

/// One webhook in full.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WebhookStatusDocument {
    /// As registered.
    pub webhook: WebhookDocument,
    /// Its path on every data plane.
    pub path: String,
    /// When it was set first, in milliseconds since 1970, by the control plane's wall clock. For display.
    pub created_unix_ms: u64,
    /// Whether there is the function that it calls.
    pub function_exists: bool,
    /// Whether there is the secret by which its senders are known.
    pub secret_exists: bool,
}

/// Answer to a webhook that was set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WebhookResult {
    /// Its name.
    pub name: String,
    /// Its path on every data plane.
    pub path: String,
    /// What was done.
    pub outcome: crate::DeployOutcome,
}

/// A page of webhooks in the order of their names.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WebhookListDocument {
    /// The page.
    pub webhooks: Vec<WebhookStatusDocument>,
    /// Give this as `after` for the next page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_webhook_is_checked_field_by_field_and_comes_back() {
        let json = |fields: &str| format!(r#"{{"name":"w","function":"f","secret":"s"{fields}}}"#);
        let spec = |fields: &str| {
            WebhookDocument::from_json(json(fields).as_bytes()).and_then(WebhookSpec::try_from)
        };
        for fields in [r#","verify":"github""#, r#","verify":"standard","wait":true,"tolerance":"90s""#] {
            let spec = spec(fields).unwrap();
            assert_eq!(WebhookSpec::try_from(WebhookDocument::from(&spec)), Ok(spec));
        }
        let cases = [
            ("", "verify", "is missing"),
            (r#","verify":"md5""#, "verify", "github"),
            (r#","verify":"token","tolerance":"2d""#, "tolerance", "1 s"),
            (r#","verify":"token","tolerance":0"#, "tolerance", "1 s"),
            (r#","verify":"token","wait":"yes""#, "wait", "boolean"),
            (r#","verify":"token","key":"x""#, "key", "secret"),
        ];
        for (fields, field, mentions) in cases {
            let error = spec(fields).unwrap_err();
            assert!(error.field == field && error.message.contains(mentions), "{fields}: {error:?}");
        }
        let bad = r#"{"name":"w","function":"f","secret":"S!","verify":"token"}"#;
        let error = WebhookDocument::from_json(bad.as_bytes()).and_then(WebhookSpec::try_from).unwrap_err();
        assert_eq!(error.field, "secret");
    }
}
