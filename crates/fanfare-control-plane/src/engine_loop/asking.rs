//! What data planes are asked for others than the engine, and their answers.

use std::sync::Arc;

use fanfare_types::{
    DataPlaneId, EntrustedCall, FromDataPlane, SecretName, Timestamp, ToDataPlane, WebhookRoute, WebhookSpec,
};
use tokio::sync::oneshot;

use super::EngineLoop;
use crate::entrusting::Entrusted;
use crate::input::WebhookNews;
use crate::questions::{Asked, Remembered};

impl EngineLoop {
    /// Passes on what answers a question; what does not is the engine's.
    pub(super) fn for_who_asked(
        &mut self,
        data_plane: DataPlaneId,
        message: FromDataPlane,
        received: Timestamp,
    ) -> Option<FromDataPlane> {
        match message {
            FromDataPlane::Reached(number) => self.barriers.reached(data_plane, number),
            FromDataPlane::Explained { number, records, kept } => {
                self.questions.answered(number, Remembered { data_plane, at: received, records, kept });
            }
            FromDataPlane::Entrusted { number, outcome } => {
                self.entrusting.answered(data_plane, number, outcome);
            }
            other => return Some(other),
        }
        None
    }

    /// Its stream is gone, or another has taken its place: nobody waits for what was to come on it.
    pub(super) fn data_plane_left(&mut self, data_plane: DataPlaneId) {
        self.barriers.left(data_plane);
        self.entrusting.left(data_plane);
        let connected = self.data_planes.iter().filter(|(_, peer)| peer.tx.is_some());
        self.entrusting.connected(connected.map(|(id, _)| id).collect());
    }

    /// Tells a data plane that has just connected of all webhooks.
    pub(super) fn tell_webhooks(&self, data_plane: DataPlaneId) {
        let Some(tx) = self.data_planes.get(data_plane).and_then(|peer| peer.tx.as_ref()) else { return };
        let all = self.webhooks.values().map(|spec| self.with_key(spec));
        for message in all.chain([ToDataPlane::WebhooksSynced]) {
            // After an overflow the link is closed, and the data plane connects anew and is told everything.
            let _ = tx.send(message);
        }
    }

    /// Tells all of a webhook that was changed.
    pub(super) fn webhook_news(&mut self, news: WebhookNews) {
        let message = match news {
            WebhookNews::Set(spec) => {
                self.webhooks.insert(spec.name.clone(), spec.clone());
                self.with_key(&spec)
            }
            WebhookNews::Removed(name) => {
                self.webhooks.remove(&name);
                ToDataPlane::WebhookRemoved(name)
            }
        };
        self.tell_data_planes(&message);
    }

    /// A secret has another value, or none: tells all of the webhooks whose senders are known by it.
    pub(super) fn webhook_secret_changed(&self, name: &SecretName) {
        for spec in self.webhooks.values().filter(|spec| spec.secret == *name) {
            self.tell_data_planes(&self.with_key(spec));
        }
    }

    /// What data planes are to know of a webhook. The key is read each time, so that none outlives its change.
    fn with_key(&self, spec: &Arc<WebhookSpec>) -> ToDataPlane {
        let key = self.secrets.value(&spec.secret);
        ToDataPlane::Webhook(Arc::new(WebhookRoute { spec: spec.clone(), key }))
    }

    fn tell_data_planes(&self, message: &ToDataPlane) {
        for tx in self.data_planes.iter().filter_map(|(_, peer)| peer.tx.as_ref()) {
            // As above.
            let _ = tx.send(message.clone());
        }
    }

    /// Has a data plane accept a call.
    pub(super) fn entrust(
        &mut self,
        data_plane: DataPlaneId,
        call: Arc<EntrustedCall>,
        answer: oneshot::Sender<Entrusted>,
    ) {
        match self.data_planes.get(data_plane).and_then(|peer| peer.tx.as_ref()) {
            Some(tx) => {
                let number = self.entrusting.open(data_plane, answer);
                // After an overflow the link is closed, which ends the wait, too.
                let _ = tx.send(ToDataPlane::Entrust { number, call });
            }
            // Nobody waits any more: no loss.
            None => drop(answer.send(Entrusted::NotAsked)),
        }
    }

    /// Asks every connected data plane what it remembers of a request.
    pub(super) fn ask_about(&mut self, request_id: &Arc<str>, answer: oneshot::Sender<Asked>) {
        let connected = self.data_planes.iter().filter_map(|(id, peer)| Some((id, peer, peer.tx.as_ref()?)));
        let connected: Vec<_> = connected.map(|(id, peer, tx)| (id, peer.name.clone(), tx.clone())).collect();
        // Dropping the answer says that too many ask.
        let Some((number, answers)) = self.questions.open(connected.len()) else { return };
        let mut data_planes = Vec::with_capacity(connected.len());
        for (id, name, tx) in connected {
            // After an overflow the link is closed, and the data plane counts as silent.
            let _ = tx.send(ToDataPlane::Explain { number, request_id: request_id.clone() });
            data_planes.push((id, name));
        }
        let _ = answer.send(Asked { data_planes, answers });
    }
}
