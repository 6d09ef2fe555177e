//! The webhooks that there are.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use fanfare_types::{FunctionName, Reason, WebhookRoute};
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use crate::problem::Problem;

/// How long a request waits for the first word of the control plane before it is refused.
const SYNC_WAIT: Duration = Duration::from_secs(1);
/// Characters of a client's words that are repeated to it.
const SHOWN_MAX: usize = 80;

/// What the control plane has said of webhooks.
#[derive(Debug)]
pub(crate) struct Webhooks {
    routes: RwLock<HashMap<FunctionName, Arc<WebhookRoute>>>,
    /// Those that the present stream has named so far; `None` once it has named all.
    named: Mutex<Option<HashSet<FunctionName>>>,
    /// Whether all have been heard of once.
    synced: watch::Sender<bool>,
}

impl Default for Webhooks {
    fn default() -> Self {
        Webhooks { routes: RwLock::default(), named: Mutex::default(), synced: watch::Sender::new(false) }
    }
}

impl Webhooks {
    /// A stream begins: all that there are will be named on it.
    pub(crate) fn begin(&self) {
        *self.named.lock() = Some(HashSet::new());
    }

    pub(crate) fn set(&self, route: Arc<WebhookRoute>) {
        if let Some(named) = &mut *self.named.lock() {
            named.insert(route.spec.name.clone());
        }
        self.routes.write().insert(route.spec.name.clone(), route);
    }

    pub(crate) fn remove(&self, name: &FunctionName) {
        self.routes.write().remove(name);
    }

    /// What was not named does not exist.
    pub(crate) fn synced(&self) {
        if let Some(named) = self.named.lock().take() {
            self.routes.write().retain(|name, _| named.contains(name));
        }
        self.synced.send_replace(true);
    }

    /// The webhook of a name. Before the control plane has said what there is, an unknown one may become known.
    pub(crate) async fn find(&self, name: &str) -> Result<Arc<WebhookRoute>, Problem> {
        if let Some(found) = self.get(name) {
            return Ok(found);
        }
        let mut synced = self.synced.subscribe();
        // Whether it came to that or not is seen below.
        let _ = tokio::time::timeout(SYNC_WAIT, synced.wait_for(|synced| *synced)).await;
        if !*self.synced.borrow() {
            let detail = "this data plane has not heard from the control plane yet which webhooks there are";
            return Err(Problem::new(Reason::NotSynced, detail));
        }
        self.get(name).ok_or_else(|| {
            let name: String = name.chars().take(SHOWN_MAX).collect();
            Problem::new(Reason::WebhookNotFound, format!("there is no webhook {name:?}"))
        })
    }

    fn get(&self, name: &str) -> Option<Arc<WebhookRoute>> {
        self.routes.read().get(name).cloned()
    }
}
