//! Webhooks, with the secrets by which their senders are known.

use std::sync::Arc;
use std::time::Duration;

use fanfare_types::limits::SECRET_BYTES_MAX;
use fanfare_types::{SecretName, SecretValue, WebhookRoute, WebhookScheme, WebhookSpec};

use super::common::{name, nanos};
use super::{Malformed, proto};

pub(super) fn webhook_to_wire(route: &WebhookRoute) -> proto::Webhook {
    let spec = &route.spec;
    proto::Webhook {
        name: spec.name.to_string(),
        function: spec.function.to_string(),
        scheme: spec.scheme.word().to_owned(),
        secret: spec.secret.to_string(),
        wait: spec.wait,
        tolerance_ns: nanos(spec.tolerance),
        key: route.key.as_ref().map(|key| key.expose().to_vec().into()),
    }
}

pub(super) fn webhook_from_wire(webhook: proto::Webhook) -> Result<WebhookRoute, Malformed> {
    let known = WebhookScheme::ALL.into_iter().find(|scheme| scheme.word() == webhook.scheme);
    let len = webhook.key.as_ref().map_or(0, bytes::Bytes::len);
    if len > SECRET_BYTES_MAX {
        return Err(Malformed::TooMany { what: "a secret", len, limit: SECRET_BYTES_MAX });
    }
    let spec = WebhookSpec {
        name: name(&webhook.name)?,
        function: name(&webhook.function)?,
        scheme: known.ok_or(Malformed::Invalid("how a webhook's senders are known"))?,
        secret: SecretName::new(&webhook.secret).map_err(|_| Malformed::Invalid("a secret's name"))?,
        wait: webhook.wait,
        tolerance: Duration::from_nanos(webhook.tolerance_ns),
    };
    let key = webhook.key.map(|key| SecretValue::new(key.to_vec()));
    Ok(WebhookRoute { spec: Arc::new(spec), key })
}
