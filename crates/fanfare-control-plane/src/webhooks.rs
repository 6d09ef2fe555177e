//! Webhooks: what is registered, and what data planes are told of it.
//!
//! Reads come from memory; changes follow each other through one task: they are rare. Data planes get each webhook from
//! the engine's loop, with the secret by which its senders are known, again when that is changed.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use fanfare_api::WebhookDocument;
use fanfare_store::{Entry, Revision, Store, StoreError};
use fanfare_types::{FunctionName, WebhookSpec, limits};
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::ControlPlaneError;
use crate::input::{Input, WebhookNews};
use crate::leader::Term;
use crate::limits::WEBHOOKS_QUEUE_MAX;
use crate::registry::{self, Registry, RegistryError, for_each, unix_ms};
use crate::schedules::write;

/// Keys begin so.
const WEBHOOKS: &str = "webhooks/";
/// Raised when an older release could not read what this one writes.
const VERSION: u32 = 1;

/// A webhook that is registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Webhook {
    pub(crate) spec: Arc<WebhookSpec>,
    /// When it was set first, by the wall clock of that time. For display.
    pub(crate) created_unix_ms: u64,
    stored: Revision,
}

/// What a caller wants changed.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// Register it, or replace the one of that name.
    Set(Arc<WebhookSpec>),
    /// Delete it.
    Delete(FunctionName),
}

/// What a change did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    Created,
    Updated,
    Unchanged,
    Deleted,
}

/// Why nothing was changed (or, for `Unavailable`, may have been).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WebhookError {
    #[error("there is no such webhook")]
    NotFound,
    #[error("there is no function {0:?} for it to call")]
    NoFunction(String),
    #[error("there is no secret {0:?} by which its senders could be known")]
    NoSecret(String),
    #[error("there are {limit} webhooks already")]
    Full { limit: usize },
    #[error("{0}")]
    Unavailable(String),
}

#[derive(Debug)]
struct Request {
    change: Change,
    answer: oneshot::Sender<Result<Done, WebhookError>>,
}

type Known = BTreeMap<FunctionName, Webhook>;

/// The handle; clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Webhooks {
    known: Arc<RwLock<Known>>,
    requests: mpsc::Sender<Request>,
}

/// The task that makes changes.
#[derive(Debug)]
pub(crate) struct Keeper {
    store: Arc<dyn Store>,
    term: Term,
    registry: Registry,
    engine: mpsc::Sender<Input>,
    known: Arc<RwLock<Known>>,
    requests: mpsc::Receiver<Request>,
}

impl Webhooks {
    /// Reads everything there is; what data planes are to know of it is returned, too.
    pub(crate) async fn open(
        store: Arc<dyn Store>,
        term: Term,
        registry: Registry,
        engine: mpsc::Sender<Input>,
    ) -> Result<(Webhooks, Keeper, Vec<Arc<WebhookSpec>>), ControlPlaneError> {
        let mut known = Known::new();
        for_each(&*store, WEBHOOKS, |key, entry| {
            let webhook = decode(key, entry)?;
            registry.webhook_uses(&webhook.spec.name, Some(&webhook.spec.secret));
            known.insert(webhook.spec.name.clone(), webhook);
            Ok(())
        })
        .await?;
        let specs = known.values().map(|webhook| webhook.spec.clone()).collect();
        let known = Arc::new(RwLock::new(known));
        let (requests, queue) = mpsc::channel(WEBHOOKS_QUEUE_MAX);
        let keeper = Keeper { store, term, registry, engine, known: known.clone(), requests: queue };
        Ok((Webhooks { known, requests }, keeper, specs))
    }

    /// Makes a change; resolves when it is durable, and data planes are being told.
    pub(crate) async fn change(&self, change: Change) -> Result<Done, WebhookError> {
        let (answer, answered) = oneshot::channel();
        let stopped = || WebhookError::Unavailable("the control plane is stopping".to_owned());
        self.requests.send(Request { change, answer }).await.map_err(|_| stopped())?;
        answered.await.unwrap_or_else(|_| Err(stopped()))
    }

    pub(crate) fn get(&self, name: &str) -> Option<Webhook> {
        self.known.read().get(name).cloned()
    }

    /// Webhooks in the order of their names, and whether more follow.
    pub(crate) fn page(&self, after: Option<&str>, limit: usize) -> (Vec<Webhook>, bool) {
        let known = self.known.read();
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut found = known.range::<str, _>((start, Bound::Unbounded)).map(|(_, webhook)| webhook);
        let page: Vec<_> = found.by_ref().take(limit).cloned().collect();
        (page, found.next().is_some())
    }
}

impl Keeper {
    /// Runs until `shutdown`, or the term is over.
    pub(crate) async fn run(mut self, shutdown: CancellationToken) -> Result<(), ControlPlaneError> {
        loop {
            let request = tokio::select! {
                biased;
                () = shutdown.cancelled() => return Ok(()),
                request = self.requests.recv() => match request {
                    Some(request) => request,
                    None => return Ok(()),
                },
            };
            let made = tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                made = self.make(request.change) => made,
            };
            let (told, end) = match made {
                Ok(done) => (Ok(done), None),
                Err(Failed::Refused(error)) => (Err(error), None),
                Err(Failed::Store(StoreError::Deposed)) => (
                    Err(WebhookError::Unavailable(StoreError::Deposed.to_string())),
                    Some(ControlPlaneError::Deposed),
                ),
                Err(Failed::Store(error)) => (Err(WebhookError::Unavailable(error.to_string())), None),
            };
            // Whoever asked may have left; what was done stands.
            let _ = request.answer.send(told);
            if let Some(end) = end {
                return Err(end);
            }
        }
    }

    async fn make(&mut self, change: Change) -> Result<Done, Failed> {
        match change {
            Change::Set(spec) => self.set(spec).await,
            Change::Delete(name) => {
                let before = self.known.read().get(&name).cloned().ok_or(WebhookError::NotFound)?;
                self.write(&name, Some(&before), None).await?;
                self.known.write().remove(&name);
                self.registry.webhook_uses(&name, None);
                tracing::info!(webhook = %name, "webhook deleted");
                self.tell(WebhookNews::Removed(name)).await;
                Ok(Done::Deleted)
            }
        }
    }

    async fn set(&mut self, spec: Arc<WebhookSpec>) -> Result<Done, Failed> {
        let before = self.known.read().get(&spec.name).cloned();
        if before.as_ref().is_some_and(|before| before.spec == spec) {
            return Ok(Done::Unchanged);
        }
        if self.registry.function(spec.function.as_str()).is_none() {
            return Err(WebhookError::NoFunction(spec.function.to_string()).into());
        }
        let limit = limits::WEBHOOKS_MAX;
        if before.is_none() && self.known.read().len() >= limit {
            return Err(WebhookError::Full { limit }.into());
        }
        // Kept for it before it is written. Where that fails, what was written is not known, and both are kept.
        let claim = registry::Change::ClaimSecret(spec.secret.clone(), spec.name.clone());
        match self.registry.change(claim).await {
            Ok(_) => {}
            Err(RegistryError::NoSuchSecret { name, .. }) => return Err(WebhookError::NoSecret(name).into()),
            Err(error) => return Err(WebhookError::Unavailable(error.to_string()).into()),
        }
        let created_unix_ms = before.as_ref().map_or_else(unix_ms, |before| before.created_unix_ms);
        let mut webhook = Webhook { spec: spec.clone(), created_unix_ms, stored: Revision::default() };
        webhook.stored = self.write(&spec.name, before.as_ref(), Some(encode(&webhook))).await?;
        self.known.write().insert(spec.name.clone(), webhook);
        self.registry.webhook_uses(&spec.name, Some(&spec.secret));
        tracing::info!(webhook = %spec.name, function = %spec.function, "webhook set");
        self.tell(WebhookNews::Set(spec)).await;
        Ok(if before.is_some() { Done::Updated } else { Done::Created })
    }

    async fn write(
        &self,
        name: &FunctionName,
        before: Option<&Webhook>,
        value: Option<Bytes>,
    ) -> Result<Revision, Failed> {
        let (store, fence) = (self.store.clone(), self.term.fence.clone());
        let key = format!("{WEBHOOKS}{name}");
        write(store, fence, key, before.map(|before| before.stored), value).await.map_err(Failed::Store)
    }

    async fn tell(&self, news: WebhookNews) {
        // The engine's end is the end of the control plane, which its handle reports.
        let _ = self.engine.send(Input::Webhook(news)).await;
    }
}

/// Why a change was not made.
enum Failed {
    Refused(WebhookError),
    Store(StoreError),
}

impl From<WebhookError> for Failed {
    fn from(error: WebhookError) -> Self {
        Failed::Refused(error)
    }
}

#[derive(Serialize, Deserialize)]
struct Stored {
    v: u32,
    #[serde(default)]
    created_unix_ms: u64,
    webhook: WebhookDocument,
}

fn encode(webhook: &Webhook) -> Bytes {
    let created_unix_ms = webhook.created_unix_ms;
    let stored = Stored { v: VERSION, created_unix_ms, webhook: WebhookDocument::from(&*webhook.spec) };
    // Texts and numbers always have a JSON form.
    serde_json::to_vec(&stored).unwrap_or_default().into()
}

fn decode(key: &str, entry: &Entry) -> Result<Webhook, ControlPlaneError> {
    let unreadable = |detail: String| ControlPlaneError::Entry { key: key.to_owned(), detail };
    let stored: Stored = serde_json::from_slice(&entry.value).map_err(|e| unreadable(e.to_string()))?;
    if stored.v > VERSION {
        let detail = format!("it has version {}; this release reads up to {VERSION}", stored.v);
        return Err(unreadable(detail));
    }
    let spec = WebhookSpec::try_from(stored.webhook).map_err(|e| unreadable(e.to_string()))?;
    Ok(Webhook { spec: Arc::new(spec), created_unix_ms: stored.created_unix_ms, stored: entry.revision })
}
