//! Webhooks, as calls of the control API.

use fanfare_api::{WebhookDocument, WebhookListDocument, WebhookResult, WebhookStatusDocument};
use fanfare_types::{FunctionName, Reason, limits};
use http::Method;

use super::{Client, PAGE};
use crate::exit::Failure;
use crate::suggest;

impl Client {
    pub(crate) async fn put_webhook(&self, document: &WebhookDocument) -> Result<WebhookResult, Failure> {
        let put = self.send_json(Method::PUT, &format!("/v1/webhooks/{}", document.name), document).await;
        match FunctionName::new(&document.function) {
            Ok(function) => self.suggesting(&function, put).await,
            Err(_) => put,
        }
    }

    pub(crate) async fn webhook(&self, name: &FunctionName) -> Result<WebhookStatusDocument, Failure> {
        let got = self.get(&format!("/v1/webhooks/{name}")).await;
        self.suggesting_webhook(name, got).await
    }

    /// Every webhook, page by page.
    pub(crate) async fn webhooks(&self) -> Result<Vec<WebhookStatusDocument>, Failure> {
        let mut all = Vec::new();
        let mut path = format!("/v1/webhooks?limit={PAGE}");
        loop {
            let page: WebhookListDocument = self.get(&path).await?;
            let more = !page.webhooks.is_empty() && all.len() < limits::WEBHOOKS_MAX;
            all.extend(page.webhooks);
            match page.next {
                Some(next) if more => path = format!("/v1/webhooks?limit={PAGE}&after={next}"),
                _ => return Ok(all),
            }
        }
    }

    pub(crate) async fn delete_webhook(&self, name: &FunctionName) -> Result<(), Failure> {
        let deleted = self.delete(&format!("/v1/webhooks/{name}")).await;
        self.suggesting_webhook(name, deleted).await
    }

    /// Adds the name that was probably meant to a failure of the kind "no such webhook".
    async fn suggesting_webhook<T>(
        &self,
        name: &FunctionName,
        result: Result<T, Failure>,
    ) -> Result<T, Failure> {
        let failure = match result {
            Err(failure) if failure.is(Reason::WebhookNotFound) => failure,
            other => return other,
        };
        let page: Result<WebhookListDocument, _> = self.get(&format!("/v1/webhooks?limit={PAGE}")).await;
        let known = page.map(|page| page.webhooks).unwrap_or_default();
        Err(match suggest::closest(name.as_str(), known.iter().map(|w| w.webhook.name.as_str())) {
            Some(meant) => failure.next(format!("did you mean {meant}?")),
            None => failure,
        })
    }
}
