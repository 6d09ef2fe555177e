//! A hub before the control plane's: what goes between it and nodes passes through here, and may be written down on its way.
//!
//! For an ablation only: the platform keeps nothing of its sandboxes, because nodes state them anew.

use std::fmt::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use fanfare_link::{BlobError, BlobReader, Hub, Link, LogRecord, Message, Receiver, Sender, pair};
use fanfare_store::{Op, Store, StoreError, TXN_OPS_MAX, Txn};
use fanfare_types::{CodeDigest, EpochGate, FromDataPlane, FromNode, SandboxId, ToDataPlane, ToNode};
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;

/// What is done with what passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Relay {
    /// There is no such hub.
    Off,
    /// Nothing: what passing costs.
    Pass,
    /// Each change of a sandbox's state is durable before whoever it concerns hears of it.
    Persist,
}

impl Relay {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Relay::Off => "off",
            Relay::Pass => "pass",
            Relay::Persist => "persist",
        }
    }

    pub(crate) fn of(word: &str) -> Option<Relay> {
        [Relay::Off, Relay::Pass, Relay::Persist].into_iter().find(|relay| relay.word() == word)
    }

    /// The hub that nodes and data planes are to dial.
    pub(crate) fn before(self, hub: Arc<dyn Hub>, store: &Arc<dyn Store>) -> Arc<dyn Hub> {
        let store = match self {
            Relay::Off => return hub,
            Relay::Pass => None,
            Relay::Persist => Some(store.clone()),
        };
        Arc::new(Before { hub, store, runtime: tokio::runtime::Handle::current() })
    }
}

struct Before {
    hub: Arc<dyn Hub>,
    /// Where states are kept.
    store: Option<Arc<dyn Store>>,
    /// That of the control plane, whose work this would be.
    runtime: tokio::runtime::Handle,
}

impl Hub for Before {
    fn node(&self, node: Link<ToNode, FromNode>) {
        let (ours, theirs) = pair::<FromNode, ToNode>(EpochGate::default());
        self.hub.node(theirs);
        self.runtime.spawn(pump(ours.rx, node.tx, self.store.clone(), ordered));
        self.runtime.spawn(pump(node.rx, ours.tx, self.store.clone(), told));
    }

    fn data_plane(&self, link: Link<ToDataPlane, FromDataPlane>) {
        self.hub.data_plane(link);
    }

    fn blob(&self, digest: CodeDigest) -> BoxFuture<'static, Result<BlobReader, BlobError>> {
        self.hub.blob(digest)
    }

    fn logs(&self, transfer: u64, lines: BoxStream<'static, LogRecord>) -> BoxFuture<'static, ()> {
        self.hub.logs(transfer, lines)
    }
}

/// Passes batches on until either side has closed, each after its changes are durable: as few transactions as its limits
/// allow, which those of other nodes share an fsync with.
async fn pump<M: Message>(
    mut from: Receiver<M>,
    to: Sender<M>,
    store: Option<Arc<dyn Store>>,
    change: fn(&M) -> Option<Op>,
) {
    while let Some(batch) = from.recv().await {
        if let Some(store) = &store
            && let Err(error) = keep(&**store, batch.messages.iter().filter_map(change).collect()).await
        {
            // The platform is ending, or its disk is full: a peer that hears nothing finds out.
            let _ = std::io::Write::write_all(&mut std::io::stderr(), format!("relay: {error}\n").as_bytes());
            return;
        }
        to.set_epoch(batch.epoch);
        if batch.messages.into_iter().any(|message| to.send(message).is_err()) {
            return;
        }
    }
}

async fn keep(store: &dyn Store, mut changes: Vec<Op>) -> Result<(), StoreError> {
    while !changes.is_empty() {
        let rest = changes.split_off(changes.len().min(TXN_OPS_MAX));
        store.commit(Txn { ops: changes, ..Txn::default() }).await?;
        changes = rest;
    }
    Ok(())
}

/// What an order of the control plane changes.
fn ordered(message: &ToNode) -> Option<Op> {
    match message {
        ToNode::Create { sandbox, revision, .. } => {
            let mut value = "starting ".to_owned();
            // Writing to a string cannot fail.
            let _ = write!(value, "{} {}", revision.function.0, revision.number);
            Some(Op::Put(key(*sandbox), Bytes::from(value)))
        }
        ToNode::Stop { sandbox, .. } => Some(Op::Put(key(*sandbox), Bytes::from_static(b"stopping"))),
        _ => None,
    }
}

/// What a node's word changes.
fn told(message: &FromNode) -> Option<Op> {
    match message {
        FromNode::Ready { sandbox, endpoint, .. } => {
            Some(Op::Put(key(*sandbox), Bytes::from(format!("ready {endpoint}"))))
        }
        FromNode::Failed { sandbox, .. } | FromNode::Exited { sandbox, .. } => {
            Some(Op::Delete(key(*sandbox)))
        }
        _ => None,
    }
}

fn key(sandbox: SandboxId) -> String {
    format!("bench/sandboxes/{sandbox}")
}

#[cfg(test)]
mod tests {
    use fanfare_store::{MemoryStore, Scan};
    use fanfare_types::{Epoch, FunctionId, RevisionId, Stages, StopMode};
    use std::sync::Mutex;

    use super::*;

    /// Keeps the control plane's end of each node's link.
    #[derive(Default)]
    struct Ends(Mutex<Vec<Link<ToNode, FromNode>>>);

    impl Hub for Ends {
        fn node(&self, link: Link<ToNode, FromNode>) {
            self.0.lock().unwrap().push(link);
        }

        fn data_plane(&self, _: Link<ToDataPlane, FromDataPlane>) {}

        fn blob(&self, digest: CodeDigest) -> BoxFuture<'static, Result<BlobReader, BlobError>> {
            Box::pin(async move { Err(BlobError::NotFound(digest)) })
        }

        fn logs(&self, _: u64, _: BoxStream<'static, LogRecord>) -> BoxFuture<'static, ()> {
            Box::pin(async {})
        }
    }

    async fn kept(store: &Arc<dyn Store>) -> Vec<String> {
        let scan = Scan { prefix: "bench/".to_owned(), after: None, limit: 10 };
        let entries = store.scan(scan).await.unwrap().entries;
        entries.iter().map(|(_, entry)| String::from_utf8_lossy(&entry.value).into_owned()).collect()
    }

    #[test]
    fn what_passes_is_durable_before_it_is_heard() {
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        tokio.block_on(async {
            for relay in [Relay::Pass, Relay::Persist] {
                let (store, ends) =
                    (Arc::new(MemoryStore::new()) as Arc<dyn Store>, Arc::new(Ends::default()));
                let before = relay.before(ends.clone(), &store);
                let (mut node, theirs) = pair::<FromNode, ToNode>(EpochGate::default());
                before.node(theirs);
                let mut control = ends.0.lock().unwrap().pop().unwrap();
                control.tx.set_epoch(Epoch(7));
                let sandbox = SandboxId(3);
                let revision = RevisionId { function: FunctionId(5), number: 2 };
                control.tx.send(ToNode::Create { sandbox, revision, waited: true }).unwrap();
                let batch = node.rx.recv().await.unwrap();
                assert_eq!((batch.epoch, batch.messages.len()), (Epoch(7), 1));
                let wanted = |state: &[&str]| -> Vec<String> {
                    let state = state.iter().map(|s| (*s).to_owned());
                    if relay == Relay::Persist { state.collect() } else { Vec::new() }
                };
                assert_eq!(kept(&store).await, wanted(&["starting 5 2"]));
                let ready =
                    FromNode::Ready { sandbox, endpoint: "unix:/x".into(), stages: Stages::default() };
                node.tx.send(ready).unwrap();
                control.rx.recv().await.unwrap();
                assert_eq!(kept(&store).await, wanted(&["ready unix:/x"]));
                control.tx.send(ToNode::Stop { sandbox, mode: StopMode::Graceful }).unwrap();
                node.rx.recv().await.unwrap();
                assert_eq!(kept(&store).await, wanted(&["stopping"]));
            }
        });
    }

    #[test]
    fn words_are_those_of_relays() {
        for relay in [Relay::Off, Relay::Pass, Relay::Persist] {
            assert_eq!(Relay::of(relay.word()), Some(relay));
        }
        assert_eq!(Relay::of("x"), None);
    }
}
