//! The one task that owns the engine: feeds it events, carries its commands out, keeps its time.
//!
//! It runs on a thread of its own and never waits for anything but its queue and the next deadline: sending on a link
//! only queues.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use fanfare_engine::liveness::{Gone, Peers, Pulse, was_stopped};
use fanfare_engine::{Command, Engine, EngineConfig, Event};
use fanfare_link::Sender;
use fanfare_types::{
    DataPlaneHello, DataPlaneId, FromDataPlane, FromNode, FunctionId, FunctionName, FunctionSpec, NodeHello,
    NodeId, RevisionId, StartFailure, Timestamp, ToDataPlane, ToNode, Traffic, WebhookSpec, limits,
};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::ControlPlaneError;
use crate::barrier::Barriers;
use crate::changes;
use crate::clock::Clock;
use crate::deliveries::Deliveries;
use crate::entrusting::Entrusting;
use crate::input::Input;
use crate::limits::ENGINE_BATCH_MAX;
use crate::proofs::Proofs;
use crate::questions::Questions;
use crate::registry::{SecretReader, Visible};
use crate::view::{Counters, NodeRef};

mod asking;
mod preparing;
mod views;

use preparing::Preparing;

pub(crate) struct EngineLoop {
    engine: Engine,
    deliveries: Deliveries,
    clock: Clock,
    nodes: Peers<NodeId, Sender<ToNode>>,
    data_planes: Peers<DataPlaneId, Sender<ToDataPlane>>,
    /// Requests in sandboxes and waiting, as each data plane last reported.
    loads: BTreeMap<DataPlaneId, (u64, u64)>,
    /// Which numbers the lines of each node's log have.
    logs: BTreeMap<NodeId, u64>,
    /// Peers that were said to be lost: that they are back is said as loudly.
    lost: Lost,
    preparing: BTreeMap<RevisionId, Preparing>,
    preparing_count: usize,
    /// Who waits for a change of a function's traffic to take effect.
    switching: Vec<(FunctionId, oneshot::Sender<()>)>,
    barriers: Barriers,
    proofs: Proofs,
    questions: Questions,
    entrusting: Entrusting,
    webhooks: BTreeMap<FunctionName, Arc<WebhookSpec>>,
    secrets: SecretReader,
    counters: Counters,
    commands: Vec<Command>,
}

/// Peers that were lost and have not come back; no more than there are registered ones.
#[derive(Debug, Default)]
struct Lost {
    nodes: BTreeSet<NodeId>,
    data_planes: BTreeSet<DataPlaneId>,
}

/// What earlier terms left of functions.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) functions: Vec<(RevisionId, Arc<FunctionSpec>)>,
    /// Earlier revisions that get requests.
    pub(crate) units: Vec<(RevisionId, Arc<FunctionSpec>)>,
    /// Where requests go that are not all for the latest revision.
    pub(crate) traffic: Vec<(FunctionId, Arc<Traffic>)>,
    /// Those that are known not to start.
    pub(crate) failed: Vec<(RevisionId, StartFailure)>,
    pub(crate) webhooks: Vec<Arc<WebhookSpec>>,
    /// Where the secrets are by which webhooks know their senders.
    pub(crate) secrets: SecretReader,
}

/// Starts the loop on its own thread with the functions that are kept. The receiver resolves when it has ended.
pub(crate) fn start(
    config: EngineConfig,
    kept: Kept,
    clock: Clock,
    shells: (Deliveries, Entrusting, Proofs),
    inputs: mpsc::Receiver<Input>,
    shutdown: CancellationToken,
) -> Result<oneshot::Receiver<()>, ControlPlaneError> {
    let (ended_tx, ended) = oneshot::channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.map_err(ControlPlaneError::Thread)?;
    let run = move || {
        let mut engine_loop = EngineLoop::new(config, clock, shells, kept.secrets);
        for (id, spec) in kept.functions {
            engine_loop.step(Event::FunctionKept { id, spec });
        }
        for (id, spec) in kept.units {
            engine_loop.step(Event::UnitKept { id, spec });
        }
        for (function, traffic) in kept.traffic {
            engine_loop.step(Event::TrafficKept { function, traffic });
        }
        engine_loop.webhooks = kept.webhooks.into_iter().map(|w| (w.name.clone(), w)).collect();
        for (id, failure) in kept.failed {
            engine_loop.step(Event::FailureKept { id, failure });
        }
        runtime.block_on(engine_loop.run(inputs, shutdown));
        // Nobody waits when the control plane's handle is gone.
        let _ = ended_tx.send(());
    };
    std::thread::Builder::new().name("engine".to_owned()).spawn(run).map_err(ControlPlaneError::Thread)?;
    Ok(ended)
}

impl EngineLoop {
    fn new(
        config: EngineConfig,
        clock: Clock,
        (deliveries, entrusting, proofs): (Deliveries, Entrusting, Proofs),
        secrets: SecretReader,
    ) -> Self {
        EngineLoop {
            engine: Engine::new(config),
            deliveries,
            clock,
            nodes: Peers::new(limits::LIVENESS_TIMEOUT),
            data_planes: Peers::new(limits::LIVENESS_TIMEOUT),
            loads: BTreeMap::new(),
            logs: BTreeMap::new(),
            lost: Lost::default(),
            preparing: BTreeMap::new(),
            preparing_count: 0,
            switching: Vec::new(),
            barriers: Barriers::default(),
            proofs,
            questions: Questions::default(),
            entrusting,
            webhooks: BTreeMap::new(),
            secrets,
            counters: Counters::default(),
            commands: Vec::new(),
        }
    }

    async fn run(mut self, mut inputs: mpsc::Receiver<Input>, shutdown: CancellationToken) {
        let mut batch = Vec::with_capacity(ENGINE_BATCH_MAX);
        loop {
            let deadline = self.next_deadline();
            // A deadline that passed while the engine was busy is late for that reason.
            let expected = deadline.max(self.clock.now());
            let timer = tokio::time::sleep_until(self.clock.instant(deadline).into());
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                taken = inputs.recv_many(&mut batch, ENGINE_BATCH_MAX) => {
                    if taken == 0 {
                        return;
                    }
                }
                () = timer => {}
            }
            let now = self.clock.now();
            if was_stopped(expected, now) {
                tracing::warn!(late = ?now.since(expected), "this process was stopped for a while");
                self.nodes.forgive(now);
                self.data_planes.forgive(now);
            }
            self.counters.inputs += batch.len() as u64;
            for input in batch.drain(..) {
                self.take(input);
            }
            self.raise_barrier();
            self.pass_time();
        }
    }

    fn next_deadline(&self) -> Timestamp {
        let deadlines =
            [self.engine.next_deadline(), self.nodes.next_deadline(), self.data_planes.next_deadline()];
        deadlines.into_iter().flatten().min().unwrap_or(Timestamp::MAX)
    }

    fn pass_time(&mut self) {
        let now = self.clock.now();
        for Gone { id: node, tx, left } in self.nodes.expire(now) {
            if left {
                tracing::info!(%node, "node left");
            } else {
                tracing::warn!(%node, timeout = ?limits::LIVENESS_TIMEOUT, "node lost: nothing heard from it");
                self.lost.nodes.insert(node);
            }
            if let Some(tx) = tx {
                tx.close();
            }
            self.deliveries.forget_node(node);
            self.step(Event::NodeLost(node));
        }
        for Gone { id: data_plane, tx, left } in self.data_planes.expire(now) {
            if left {
                tracing::info!(%data_plane, "data plane left");
            } else {
                let timeout = limits::LIVENESS_TIMEOUT;
                tracing::warn!(%data_plane, ?timeout, "data plane lost: nothing heard from it");
                self.lost.data_planes.insert(data_plane);
            }
            if let Some(tx) = tx {
                tx.close();
            }
            self.loads.remove(&data_plane);
            self.data_plane_left(data_plane);
            self.step(Event::DataPlaneLost(data_plane));
        }
        if self.engine.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.step(Event::Tick);
        }
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Function(Visible::Set { id, spec }) => {
                self.deliveries.learn(id, &spec);
                self.step(Event::FunctionSet { id, spec });
            }
            Input::Function(Visible::Unit { id, spec }) => {
                self.deliveries.learn(id, &spec);
                self.step(Event::UnitSet { id, spec });
            }
            Input::Function(Visible::Secret(name)) => {
                for (node, message) in self.deliveries.changed(&name) {
                    self.send_node(node, message);
                }
                self.webhook_secret_changed(&name);
            }
            Input::Function(Visible::SecretRemoved(name)) => self.webhook_secret_changed(&name),
            Input::Function(Visible::Traffic { function, traffic }) => {
                self.step(Event::TrafficSet { function, traffic });
            }
            Input::Function(Visible::Removed(id)) => {
                self.deliveries.forget(id);
                self.step(Event::FunctionRemoved(id));
            }
            Input::NodeConnected { node, hello, stream, tx, pulse } => {
                self.node_connected(node, hello, stream, (tx, pulse));
            }
            Input::FromNode { node, stream, messages } => {
                if self.nodes.heard(self.clock.now(), node, stream) {
                    for message in messages {
                        if message == FromNode::Left {
                            self.nodes.leaves(node, stream);
                        }
                        self.step(Event::FromNode { node, message });
                    }
                }
            }
            Input::NodeClosed { node, stream } => {
                self.nodes.closed(node, stream);
            }
            Input::DataPlaneConnected { data_plane, hello, stream, tx, pulse } => {
                self.data_plane_connected(data_plane, hello, stream, (tx, pulse));
            }
            Input::FromDataPlane { data_plane, stream, messages, received } => {
                if self.data_planes.heard(self.clock.now(), data_plane, stream) {
                    for message in messages {
                        if message == FromDataPlane::Left {
                            self.data_planes.leaves(data_plane, stream);
                        }
                        if let Some(message) = self.for_who_asked(data_plane, message, received) {
                            self.note_load(data_plane, &message);
                            self.step(Event::FromDataPlane { data_plane, message, received });
                        }
                    }
                }
            }
            Input::DataPlaneClosed { data_plane, stream } => {
                if self.data_planes.closed(data_plane, stream) {
                    self.data_plane_left(data_plane);
                }
            }
            Input::Barrier { answer } => self.barriers.ask(answer),
            Input::Switched { function, answer } => {
                if self.engine.traffic_pending(function) {
                    self.switching.push((function, answer));
                    // Those who asked and left make room; there are no more than open requests to the API.
                    self.switching.retain(|(_, answer)| !answer.is_closed());
                } else {
                    // Nobody waits any more: no loss.
                    let _ = answer.send(());
                }
            }
            Input::Prepare { revision, spec, answer } => self.prepare(revision, spec, answer),
            Input::TellNodes(messages) => self.tell_nodes(messages),
            // An answer that nobody waits for any more is no loss.
            Input::Functions { in_full, ids, answer } => {
                let engine = &self.engine;
                let of = |id| if in_full { engine.function_status(id) } else { engine.function_overview(id) };
                let statuses = ids.into_iter().map(of).collect();
                let _ = answer.send((self.clock.now(), statuses));
            }
            Input::Webhook(news) => self.webhook_news(news),
            Input::Entrust { data_plane, call, answer } => self.entrust(data_plane, call, answer),
            Input::Explain { request_id, answer } => self.ask_about(&request_id, answer),
            Input::Orders { sandboxes, answer } => {
                let orders = sandboxes.into_iter().map(|sandbox| self.engine.order_of(sandbox).cloned());
                let _ = answer.send(orders.collect());
            }
            Input::Cluster { answer } => drop(answer.send(self.cluster())),
            Input::Nodes { answer } => drop(answer.send(self.connected_nodes())),
            Input::DataPlanes { answer } => drop(answer.send(self.engine.taking_data_planes())),
        }
    }

    fn node_connected(
        &mut self,
        node: NodeId,
        hello: NodeHello,
        stream: u64,
        tx: (Sender<ToNode>, Arc<Pulse>),
    ) {
        let who = (hello.name.clone(), hello.incarnation);
        match self.nodes.connect(self.clock.now(), node, who, stream, tx) {
            Ok(replaced) => {
                let sandboxes = hello.sandboxes.len();
                match self.lost.nodes.remove(&node) {
                    true => tracing::warn!(%node, name = %hello.name, sandboxes, "node is back"),
                    false => tracing::info!(%node, name = %hello.name, sandboxes, "node connected"),
                }
                if let Some(old) = replaced {
                    old.close();
                }
                self.logs.insert(node, hello.logs);
                self.deliveries.forget_node(node);
                let stated: Vec<_> = hello.sandboxes.iter().map(|record| record.sandbox).collect();
                self.step(Event::NodeConnected { node, hello });
                // After the welcome, and of what the engine agrees to: a node may state what it likes.
                let here = stated.into_iter().filter_map(|sandbox| self.engine.revision_on(node, sandbox));
                let here = here.collect();
                for message in self.deliveries.found(node, &here) {
                    self.send_node(node, message);
                }
            }
            Err(refused) => {
                if refused.is_news {
                    tracing::warn!(
                        %node,
                        name = %hello.name,
                        incarnation = hello.incarnation,
                        "refused: a living node has this name. Give one of them another with --name"
                    );
                }
                refused.tx.close();
            }
        }
    }

    fn data_plane_connected(
        &mut self,
        data_plane: DataPlaneId,
        hello: DataPlaneHello,
        stream: u64,
        tx: (Sender<ToDataPlane>, Arc<Pulse>),
    ) {
        let who = (hello.name.clone(), hello.incarnation);
        match self.data_planes.connect(self.clock.now(), data_plane, who, stream, tx) {
            Ok(replaced) => {
                let (name, address) = (&hello.name, &hello.address);
                match self.lost.data_planes.remove(&data_plane) {
                    true => tracing::warn!(%data_plane, %name, %address, "data plane is back"),
                    false => tracing::info!(%data_plane, %name, %address, "data plane connected"),
                }
                if let Some(old) = replaced {
                    old.close();
                }
                self.data_plane_left(data_plane);
                self.step(Event::DataPlaneConnected { data_plane, hello });
                self.tell_webhooks(data_plane);
            }
            Err(refused) => {
                if refused.is_news {
                    tracing::warn!(
                        %data_plane,
                        name = %hello.name,
                        address = %hello.address,
                        "refused: a living data plane has this name. Give one of them another with --name"
                    );
                }
                refused.tx.close();
            }
        }
    }

    /// Marks the streams behind what callers wait for.
    fn raise_barrier(&mut self) {
        let connected = self.data_planes.iter().filter_map(|(id, peer)| Some((id, peer.tx.as_ref()?)));
        if let Some(number) = self.barriers.raise(connected.clone().map(|(id, _)| id)) {
            for (_, tx) in connected {
                // After an overflow the link is closed, which ends the wait, too.
                let _ = tx.send(ToDataPlane::Mark(number));
            }
        }
    }

    fn note_load(&mut self, data_plane: DataPlaneId, message: &FromDataPlane) {
        if let FromDataPlane::Report(loads) = message {
            let sum = |of: fn(&fanfare_types::FunctionLoad) -> u32| {
                loads.iter().map(|load| u64::from(of(load))).sum()
            };
            self.loads.insert(data_plane, (sum(|load| load.in_flight), sum(|load| load.queued)));
        }
    }

    fn tell_nodes(&mut self, messages: Vec<(NodeRef, ToNode)>) {
        for (node, message) in messages {
            let peer = self.nodes.get(node.id).filter(|peer| peer.stream == node.stream);
            if let Some(tx) = peer.and_then(|peer| peer.tx.as_ref()) {
                // A full or closed link: the node connects anew, and whoever waits for lines sees that none come.
                let _ = tx.send(message);
            }
        }
    }

    /// One step of the engine, and its commands.
    fn step(&mut self, event: Event) {
        let prepared_by = match &event {
            Event::FromNode { node, message: FromNode::Prepared { .. } } => Some(*node),
            _ => None,
        };
        let mut commands = std::mem::take(&mut self.commands);
        let began = self.clock.now();
        changes::told(&event);
        self.engine.step(began, event, &mut commands);
        commands.iter().for_each(changes::ordered);
        self.counters.events += 1;
        self.counters.commands += commands.len() as u64;
        self.note_placed(began, &commands);
        for command in commands.drain(..) {
            match command {
                Command::Node { node, message } => {
                    let following = self.deliveries.passing(node, &message);
                    self.send_node(node, message);
                    if let Some(following) = following {
                        self.send_node(node, following);
                    }
                }
                Command::DataPlane { data_plane, message } => {
                    if let Some(tx) = self.data_planes.get(data_plane).and_then(|peer| peer.tx.as_ref()) {
                        // As above.
                        let _ = tx.send(message);
                    }
                }
                Command::Prepared { revision, result, has_started } => {
                    self.prepared(prepared_by, revision, result, has_started);
                }
                Command::Recovered { name, revision } => self.recovered(name, revision),
                Command::TrafficSwitched(function) => {
                    tracing::info!(%function, "its requests are shared as was asked");
                    let told = |(of, _): &mut (FunctionId, oneshot::Sender<()>)| *of == function;
                    for (_, answer) in self.switching.extract_if(.., told) {
                        let _ = answer.send(());
                    }
                }
                Command::FunctionDrained(function) => {
                    tracing::info!(%function, "deleted, and nothing of it is left");
                }
            }
        }
        self.commands = commands;
    }

    fn send_node(&self, node: NodeId, message: ToNode) {
        if let Some(tx) = self.nodes.get(node).and_then(|peer| peer.tx.as_ref()) {
            // After an overflow the link is closed, and the node connects anew and is told everything.
            let _ = tx.send(message);
        }
    }

    fn note_placed(&mut self, began: Timestamp, commands: &[Command]) {
        let mut took: Option<Duration> = None;
        for command in commands {
            if let Command::Node { message: ToNode::Create { sandbox, .. }, .. } = command {
                let took = *took.get_or_insert_with(|| self.clock.now().since(began));
                self.engine.note_placed(*sandbox, took);
                self.counters.sandboxes += 1;
            }
        }
    }
}
