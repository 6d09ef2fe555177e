//! Scripted nodes and data planes.

use std::sync::Arc;

use fanfare_link::{Dialer, EpochGate, Link, LogRecord, Sender};
use fanfare_types::{
    DataPlaneHello, FromDataPlane, FromNode, FunctionId, FunctionLoad, NodeHello, Resources, SandboxRecord,
    Stages, ToDataPlane, ToNode, limits,
};
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use crate::world::soon;

/// Messages of one stream in order, with its heartbeats going out until it is dropped.
pub(crate) struct Peer<Tx: fanfare_link::Message, Rx: fanfare_link::Message> {
    pub(crate) tx: Sender<Tx>,
    rx: mpsc::UnboundedReceiver<Vec<Rx>>,
    received: std::collections::VecDeque<Rx>,
    heart: AbortOnDropHandle<()>,
    _reader: AbortOnDropHandle<()>,
}

pub(crate) type Node = Peer<FromNode, ToNode>;
pub(crate) type DataPlane = Peer<FromDataPlane, ToDataPlane>;

impl<Tx: fanfare_link::Message, Rx: fanfare_link::Message> Peer<Tx, Rx> {
    /// `reply` is given at once, whether or not the test reads what it replies to.
    fn new(link: Link<Tx, Rx>, heartbeat: fn() -> Tx, reply: fn(&Rx) -> Option<Tx>) -> Self {
        let Link { tx, rx: mut stream } = link;
        let (read, rx) = mpsc::unbounded_channel();
        let replies = tx.clone();
        let reader = AbortOnDropHandle::new(tokio::spawn(async move {
            while let Some(batch) = stream.recv().await {
                for reply in batch.messages.iter().filter_map(reply) {
                    let _ = replies.send(reply);
                }
                if read.send(batch.messages).is_err() {
                    return;
                }
            }
        }));
        let beats = tx.clone();
        let heart = AbortOnDropHandle::new(tokio::spawn(async move {
            let mut every = tokio::time::interval(limits::HEARTBEAT_INTERVAL);
            loop {
                every.tick().await;
                if beats.send(heartbeat()).is_err() {
                    return;
                }
            }
        }));
        Peer { tx, rx, received: std::collections::VecDeque::new(), heart, _reader: reader }
    }

    /// The next message; `None` when the stream is closed.
    pub(crate) async fn next(&mut self) -> Option<Rx> {
        while self.received.is_empty() {
            self.received.extend(soon(self.rx.recv()).await?);
        }
        self.received.pop_front()
    }

    /// The first message that `wanted` takes; those before it are dropped.
    pub(crate) async fn until<T>(&mut self, mut wanted: impl FnMut(&Rx) -> Option<T>) -> T {
        loop {
            let message = self.next().await.expect("the stream was closed");
            if let Some(found) = wanted(&message) {
                return found;
            }
        }
    }

    /// Goes silent without closing the stream.
    pub(crate) fn hang(&self) {
        self.heart.abort();
    }
}

pub(crate) fn node_hello(name: &str, incarnation: u64, sandboxes: Vec<SandboxRecord>) -> NodeHello {
    NodeHello {
        name: Arc::from(name),
        incarnation,
        epoch_seen: Default::default(),
        capacity: Resources::new(64_000, 64 << 30),
        runtimes: vec![Arc::from("fake"), Arc::from("process")],
        sandboxes,
        logs: 7,
    }
}

pub(crate) async fn node(dialer: &Dialer, hello: NodeHello) -> Node {
    let gate = EpochGate::new(hello.epoch_seen);
    let link = soon(dialer.node(gate)).await.unwrap();
    link.tx.send(FromNode::Hello(hello)).unwrap();
    Peer::new(link, || FromNode::Heartbeat, |_| None)
}

/// A data plane that confirms what it is told.
pub(crate) async fn data_plane(dialer: &Dialer, name: &str, incarnation: u64) -> DataPlane {
    let confirm = |message: &ToDataPlane| match message {
        ToDataPlane::Mark(number) => Some(FromDataPlane::Reached(*number)),
        _ => None,
    };
    data_plane_replying(dialer, name, incarnation, confirm).await
}

pub(crate) async fn data_plane_replying(
    dialer: &Dialer,
    name: &str,
    incarnation: u64,
    reply: fn(&ToDataPlane) -> Option<FromDataPlane>,
) -> DataPlane {
    let link = soon(dialer.data_plane(EpochGate::default())).await.unwrap();
    let hello = DataPlaneHello {
        name: Arc::from(name),
        address: Arc::from("127.0.0.1:8080"),
        incarnation,
        epoch_seen: Default::default(),
        leases: Vec::new(),
        condemned: Vec::new(),
    };
    link.tx.send(FromDataPlane::Hello(hello)).unwrap();
    Peer::new(link, || FromDataPlane::Heartbeat, reply)
}

/// Requests that wait.
pub(crate) fn demand(function: FunctionId, queued: u32) -> FromDataPlane {
    let load = FunctionLoad {
        function,
        queued,
        concurrency_avg: f64::from(queued),
        arrivals: queued,
        interval_s: 0.1,
        ..FunctionLoad::default()
    };
    FromDataPlane::Demand(load)
}

/// A node that does everything it is told, at once.
pub(crate) async fn obedient(mut node: Node, dialer: Dialer, lines: fn() -> BoxStream<'static, LogRecord>) {
    while let Some(message) = node.next().await {
        let answer = match message {
            ToNode::Create { sandbox, .. } => {
                let endpoint = Arc::from(format!("unix:/run/{sandbox}"));
                FromNode::Ready { sandbox, endpoint, stages: Stages::default() }
            }
            ToNode::Stop { sandbox, .. } => {
                let exit = fanfare_types::ExitCause::Stopped;
                FromNode::Exited {
                    sandbox,
                    cause: fanfare_types::GoneCause { exit, log_tail: Arc::from("") },
                }
            }
            ToNode::Prepare(revision) => FromNode::Prepared { revision, failure: None },
            ToNode::Logs { transfer, tail_lines, follow, .. } => {
                let dialer = dialer.clone();
                tokio::spawn(async move {
                    let kept = usize::try_from(tail_lines).unwrap();
                    let all: Vec<_> = lines().collect().await;
                    let last = all[all.len().saturating_sub(kept)..].to_vec();
                    let tail = futures_util::stream::iter(last);
                    let stream = if follow {
                        tail.chain(futures_util::stream::pending()).boxed()
                    } else {
                        tail.boxed()
                    };
                    dialer.push_logs(transfer, stream).await.unwrap();
                });
                continue;
            }
            _ => continue,
        };
        if node.tx.send(answer).is_err() {
            return;
        }
    }
}
