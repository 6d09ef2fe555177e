//! Where links arrive: one task each, which learns who it is and passes on what it says.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fanfare_engine::liveness::Pulse;
use fanfare_link::{BlobError, BlobReader, Hub, Link, LogRecord, Message, Receiver};
use fanfare_types::limits::PEER_NAME_BYTES_MAX;
use fanfare_types::{
    CodeDigest, DataPlaneHello, DataPlaneId, Epoch, FromDataPlane, FromNode, NodeHello, NodeId, ToDataPlane,
    ToNode, is_peer_name,
};
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use tokio::sync::mpsc;

use crate::blobs::Blobs;
use crate::clock::Clock;
use crate::input::Input;
use crate::limits::{HELLO_TIMEOUT, PEER_ADDRESS_BYTES_MAX, RUNTIME_NAME_BYTES_MAX, RUNTIMES_MAX};
use crate::registry::{PeerKind, Registry};
use crate::transfers::Transfers;

/// What every link needs.
#[derive(Debug)]
pub(crate) struct ControlHub {
    pub(crate) epoch: Epoch,
    pub(crate) registry: Registry,
    pub(crate) engine: mpsc::Sender<Input>,
    pub(crate) blobs: Blobs,
    pub(crate) transfers: Transfers,
    pub(crate) clock: Clock,
    /// Links may be handed over from another runtime of this process.
    pub(crate) runtime: tokio::runtime::Handle,
    pub(crate) streams: AtomicU64,
}

/// Shares the hub with the tasks of its links.
#[derive(Clone, Debug)]
pub(crate) struct SharedHub(pub(crate) Arc<ControlHub>);

impl Hub for SharedHub {
    fn node(&self, link: Link<ToNode, FromNode>) {
        let hub = self.0.clone();
        self.0.runtime.spawn(async move { hub.serve_node(link).await });
    }

    fn data_plane(&self, link: Link<ToDataPlane, FromDataPlane>) {
        let hub = self.0.clone();
        self.0.runtime.spawn(async move { hub.serve_data_plane(link).await });
    }

    fn blob(&self, digest: CodeDigest) -> BoxFuture<'static, Result<BlobReader, BlobError>> {
        let hub = self.0.clone();
        Box::pin(async move { hub.blobs.read(digest).await })
    }

    fn logs(&self, transfer: u64, lines: BoxStream<'static, LogRecord>) -> BoxFuture<'static, ()> {
        let hub = self.0.clone();
        Box::pin(async move { hub.transfers.take(transfer, lines).await })
    }
}

impl ControlHub {
    async fn serve_node(&self, link: Link<ToNode, FromNode>) {
        let Link { tx, mut rx } = link;
        let Some((first, rest)) = first_batch(&mut rx).await else { return };
        let FromNode::Hello(hello) = first else {
            return tracing::warn!("refused a node: its stream does not begin with a hello");
        };
        let NodeHello { name, epoch_seen, runtimes, .. } = &hello;
        if runtimes.len() > RUNTIMES_MAX || runtimes.iter().any(|r| r.len() > RUNTIME_NAME_BYTES_MAX) {
            let (count, limit) = (runtimes.len(), RUNTIMES_MAX);
            return tracing::warn!(
                ?name,
                count,
                limit,
                RUNTIME_NAME_BYTES_MAX,
                "refused a node: its runtimes"
            );
        }
        let Some(id) = self.admit(PeerKind::Node, name, *epoch_seen).await else { return };
        let (node, stream) = (NodeId(id), self.streams.fetch_add(1, Ordering::Relaxed));
        tx.set_epoch(self.epoch);
        let pulse = Arc::new(Pulse::new(rx.is_in_process()));
        let connected = Input::NodeConnected { node, hello, stream, tx, pulse: pulse.clone() };
        let mut open = self.pass(connected, &pulse).await;
        let mut next = Some(rest);
        while let Some(messages) = next.filter(|_| open) {
            if messages.iter().any(|message| matches!(message, FromNode::Hello(_))) {
                tracing::warn!(%node, "a second hello on one stream; closing it");
                break;
            }
            let mut messages = messages;
            messages.retain(|message| *message != FromNode::Heartbeat);
            open = match messages.is_empty() {
                true => self.heard(&pulse),
                false => self.pass(Input::FromNode { node, stream, messages }, &pulse).await,
            };
            next = rx.recv().await.map(|batch| batch.messages);
        }
        drop(rx);
        pulse.end(self.clock.now());
        // An error means that the control plane is stopping.
        let _ = self.engine.send(Input::NodeClosed { node, stream }).await;
    }

    async fn serve_data_plane(&self, link: Link<ToDataPlane, FromDataPlane>) {
        let Link { tx, mut rx } = link;
        let Some((first, rest)) = first_batch(&mut rx).await else { return };
        let FromDataPlane::Hello(hello) = first else {
            return tracing::warn!("refused a data plane: its stream does not begin with a hello");
        };
        let DataPlaneHello { name, epoch_seen, address, .. } = &hello;
        if address.len() > PEER_ADDRESS_BYTES_MAX {
            // All data planes are told all addresses.
            let (bytes, limit) = (address.len(), PEER_ADDRESS_BYTES_MAX);
            return tracing::warn!(?name, bytes, limit, "refused a data plane: its address is too long");
        }
        let Some(id) = self.admit(PeerKind::DataPlane, name, *epoch_seen).await else { return };
        let (data_plane, stream) = (DataPlaneId(id), self.streams.fetch_add(1, Ordering::Relaxed));
        tx.set_epoch(self.epoch);
        let pulse = Arc::new(Pulse::new(rx.is_in_process()));
        let connected = Input::DataPlaneConnected { data_plane, hello, stream, tx, pulse: pulse.clone() };
        let mut open = self.pass(connected, &pulse).await;
        let mut next = Some(rest);
        while let Some(messages) = next.filter(|_| open) {
            if messages.iter().any(|message| matches!(message, FromDataPlane::Hello(_))) {
                tracing::warn!(%data_plane, "a second hello on one stream; closing it");
                break;
            }
            let received = self.clock.now();
            let mut messages = messages;
            messages.retain(|message| *message != FromDataPlane::Heartbeat);
            open = match messages.is_empty() {
                true => self.heard(&pulse),
                false => {
                    self.pass(Input::FromDataPlane { data_plane, stream, messages, received }, &pulse).await
                }
            };
            next = rx.recv().await.map(|batch| batch.messages);
        }
        drop(rx);
        pulse.end(self.clock.now());
        // An error means that the control plane is stopping.
        let _ = self.engine.send(Input::DataPlaneClosed { data_plane, stream }).await;
    }

    /// The peer's number; `None` when it may not connect, and the log says why.
    async fn admit(&self, kind: PeerKind, name: &Arc<str>, epoch_seen: Epoch) -> Option<u32> {
        if !is_peer_name(name) {
            tracing::warn!(
                ?kind,
                ?name,
                "refused: a name is 1 to {PEER_NAME_BYTES_MAX} of a-z A-Z 0-9 . _ : -"
            );
            return None;
        }
        if epoch_seen > self.epoch {
            // It would refuse everything we say. Either another control plane leads, or our store is a new one.
            tracing::error!(
                ?kind, %name, %epoch_seen, ours = %self.epoch,
                "refused: it has obeyed a newer leader. If the store was replaced, restart it"
            );
            return None;
        }
        match self.registry.peer(kind, name).await {
            Ok(id) => Some(id),
            Err(error) => {
                tracing::error!(?kind, %name, %error, "refused: it cannot be registered");
                None
            }
        }
    }

    /// Nothing but a word that the peer lives: the pulse keeps it, and the engine, whom thousands of idle peers would
    /// wake all the time, need not hear of it. The stream stays open.
    fn heard(&self, pulse: &Pulse) -> bool {
        pulse.beat(self.clock.now());
        true
    }

    /// Hands something to the engine; `false` when the control plane is stopping. While the engine is behind, the
    /// peer counts as alive: it is we who do not listen.
    async fn pass(&self, input: Input, pulse: &Pulse) -> bool {
        pulse.hold();
        let passed = self.engine.send(input).await.is_ok();
        pulse.beat(self.clock.now());
        passed
    }
}

/// The first message and what came with it, within the time that a hello has.
async fn first_batch<M: Message>(rx: &mut Receiver<M>) -> Option<(M, Vec<M>)> {
    let Ok(batch) = tokio::time::timeout(HELLO_TIMEOUT, rx.recv()).await else {
        tracing::warn!(timeout = ?HELLO_TIMEOUT, "refused a stream that did not say who it is");
        return None;
    };
    let mut messages = batch?.messages.into_iter();
    Some((messages.next()?, messages.collect()))
}
