//! A control plane: the shell around an engine, as a leader and as a standby.
//!
//! What it does with streams, hellos and silence is what the real shell does (`hub.rs`, `engine_loop.rs` of
//! `fanfare-control-plane`), with the same [`Peers`]. How long a leader may be silent before a standby takes over, and how
//! soon a deposed one finds out, is the store's business and chosen here.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fanfare_engine::liveness::{Gone, Peers, Pulse, was_stopped};
use fanfare_engine::{Command, Engine, EngineConfig, Event as EngineEvent};
use fanfare_types::limits::LIVENESS_TIMEOUT;
use fanfare_types::{
    DataPlaneHello, DataPlaneId, Epoch, FromDataPlane, FromNode, NodeHello, NodeId, Timestamp,
};

use crate::clock::Clock;
use crate::event::{ControlTimer, Event};
use crate::net::{End, Parcel, Peer, Site, StreamId};
use crate::world::World;

/// How often a leader shows that it lives, and a standby looks.
const BEAT: Duration = Duration::from_millis(100);
/// Looks in a row without a sign of the leader after which a standby takes over.
const MISSED_MAX: u32 = 4;

/// A control plane's process.
#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) life: u64,
    pub(crate) up: bool,
    pub(crate) clock: Clock,
    /// While it leads, or believes to.
    pub(crate) term: Option<Term>,
    /// What a standby saw of the leader, and how often that has not changed.
    seen: (u64, u32),
}

/// A leader's term.
#[derive(Debug)]
pub(crate) struct Term {
    pub(crate) epoch: Epoch,
    pub(crate) engine: Engine,
    nodes: Peers<NodeId, StreamId>,
    planes: Peers<DataPlaneId, StreamId>,
    /// Who speaks on each stream, since its hello.
    streams: BTreeMap<StreamId, (Who, Arc<Pulse>)>,
    /// The deadline that is set: its true time and its number.
    wake: Option<(Timestamp, u64)>,
    wakes: u64,
    /// By when the loop should have turned, on its own clock.
    expected: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Node(NodeId),
    Plane(DataPlaneId),
}

impl Control {
    pub(crate) fn new(clock: Clock) -> Self {
        Control { life: 0, up: false, clock, term: None, seen: (0, 0) }
    }
}

impl Term {
    /// The stream of a node, while it is up.
    pub(crate) fn node_stream(&self, node: NodeId) -> Option<StreamId> {
        self.nodes.get(node).and_then(|peer| peer.tx)
    }

    /// The stream of a data plane, while it is up.
    pub(crate) fn plane_stream(&self, plane: DataPlaneId) -> Option<StreamId> {
        self.planes.get(plane).and_then(|peer| peer.tx)
    }

    fn next_deadline(&self, watched: bool) -> Timestamp {
        let peers = [self.nodes.next_deadline(), self.planes.next_deadline()];
        let peers = peers.into_iter().flatten().filter(|_| watched);
        peers.chain(self.engine.next_deadline()).min().unwrap_or(Timestamp::MAX)
    }
}

impl World<'_> {
    pub(crate) fn control_timer(&mut self, index: usize, timer: ControlTimer) {
        match timer {
            ControlTimer::Start if self.controls[index].up => {}
            ControlTimer::Start => {
                self.controls[index].up = true;
                self.controls[index].seen = (self.store.beats, 0);
                if self.store.epoch == Epoch(0) && index == 0 {
                    self.lead(index);
                }
                self.schedule_beat(index);
            }
            ControlTimer::Beat => self.beat(index),
            ControlTimer::Wake(number) => {
                let Some(term) = self.controls[index].term.as_mut() else { return };
                if term.wake.is_some_and(|(_, set)| set == number) {
                    term.wake = None;
                    self.turn(index);
                    self.pass_time(index);
                    self.settle_control(index);
                }
            }
        }
    }

    fn schedule_beat(&mut self, index: usize) {
        if self.scenario.control_planes == 1 && self.scenario.faults.is_none() {
            return;
        }
        let control = &self.controls[index];
        let at = control.clock.when(control.clock.local(self.now) + BEAT);
        self.queue.schedule(at, Event::Control(index, control.life, ControlTimer::Beat));
    }

    fn beat(&mut self, index: usize) {
        let reaches = self.net.both_reach(Site::Control(index), Site::Store);
        let leads = self.controls[index].term.as_ref().map(|term| term.epoch);
        match leads {
            Some(epoch) if reaches && epoch != self.store.epoch => return self.depose(index),
            Some(_) if reaches => self.store.beats += 1,
            None if reaches => {
                let (beats, seen) = (self.store.beats, self.controls[index].seen);
                let missed = if seen.0 == beats { seen.1 + 1 } else { 0 };
                self.controls[index].seen = (beats, missed);
                if missed >= MISSED_MAX {
                    self.lead(index);
                }
            }
            _ => {}
        }
        self.schedule_beat(index);
    }

    /// Takes the lead: a new term, from what is kept.
    fn lead(&mut self, index: usize) {
        let epoch = self.store.take();
        self.say(format_args!("control {index} leads, {epoch}"));
        let config = EngineConfig {
            placement: self.scenario.placement,
            known_data_planes: self.store.planes.iter().copied().collect(),
            known_nodes: self.store.nodes.iter().copied().collect(),
            ..EngineConfig::new(epoch)
        };
        let local = self.controls[index].clock.local(self.now);
        self.controls[index].term = Some(Term {
            epoch,
            engine: Engine::new(config),
            nodes: Peers::new(LIVENESS_TIMEOUT),
            planes: Peers::new(LIVENESS_TIMEOUT),
            streams: BTreeMap::new(),
            wake: None,
            wakes: 0,
            expected: local,
        });
        let kept: Vec<_> = self.store.functions.values().cloned().collect();
        for (id, spec) in kept {
            self.engine_step(index, EngineEvent::FunctionKept { id, spec });
        }
        self.settle_control(index);
    }

    /// It finds that another one leads: it ends, and begins again as a standby.
    pub(crate) fn depose(&mut self, index: usize) {
        self.say(format_args!("control {index} finds that it was deposed, and ends"));
        self.kill_control(index, Duration::from_millis(50));
    }

    /// Its process ends; connections are reset.
    pub(crate) fn kill_control(&mut self, index: usize, back_after: Duration) {
        let control = &mut self.controls[index];
        control.life += 1;
        control.up = false;
        control.term = None;
        let life = control.life;
        self.stalled.remove(&Site::Control(index));
        self.queue.schedule(self.now + back_after, Event::Control(index, life, ControlTimer::Start));
        self.reset_streams(Site::Control(index), End::Control);
    }

    /// Something comes from outside: the engine takes it.
    pub(crate) fn control_event(&mut self, index: usize, event: EngineEvent) {
        self.turn(index);
        self.engine_step(index, event);
        self.pass_time(index);
        self.settle_control(index);
    }

    pub(crate) fn control_hears_node(&mut self, index: usize, stream: StreamId, message: FromNode) {
        self.turn(index);
        let local = self.controls[index].clock.local(self.now);
        let Some(term) = self.controls[index].term.as_mut() else { return };
        match (term.streams.get(&stream).cloned(), message) {
            (None, FromNode::Hello(hello)) => self.node_hello(index, stream, hello),
            (Some((Who::Node(node), pulse)), message) => {
                pulse.beat(local);
                let quiet = message == FromNode::Heartbeat;
                if !quiet && term.nodes.heard(local, node, stream.0) {
                    self.engine_step(index, EngineEvent::FromNode { node, message });
                }
            }
            _ => self.close(stream, End::Control),
        }
        self.pass_time(index);
        self.settle_control(index);
    }

    fn node_hello(&mut self, index: usize, stream: StreamId, hello: NodeHello) {
        let local = self.controls[index].clock.local(self.now);
        let node = node_of(&hello.name);
        if !self.admits(index, hello.epoch_seen, self.store.nodes.contains(&node)) {
            return self.close(stream, End::Control);
        }
        self.store.nodes.insert(node);
        let Some(term) = self.controls[index].term.as_mut() else { return };
        let (who, pulse) = ((hello.name.clone(), hello.incarnation), Arc::new(Pulse::new(false)));
        pulse.beat(local);
        match term.nodes.connect(local, node, who, stream.0, (stream, pulse.clone())) {
            Ok(replaced) => {
                term.streams.insert(stream, (Who::Node(node), pulse));
                replaced.into_iter().for_each(|old| self.close(old, End::Control));
                self.engine_step(index, EngineEvent::NodeConnected { node, hello });
            }
            Err(refused) => self.close(refused.tx, End::Control),
        }
    }

    pub(crate) fn control_hears_plane(&mut self, index: usize, stream: StreamId, message: FromDataPlane) {
        self.turn(index);
        let local = self.controls[index].clock.local(self.now);
        let Some(term) = self.controls[index].term.as_mut() else { return };
        match (term.streams.get(&stream).cloned(), message) {
            (None, FromDataPlane::Hello(hello)) => self.plane_hello(index, stream, hello),
            (Some((Who::Plane(data_plane), pulse)), message) => {
                pulse.beat(local);
                let quiet = message == FromDataPlane::Heartbeat;
                if !quiet && term.planes.heard(local, data_plane, stream.0) {
                    let event = EngineEvent::FromDataPlane { data_plane, message, received: local };
                    self.engine_step(index, event);
                }
            }
            _ => self.close(stream, End::Control),
        }
        self.pass_time(index);
        self.settle_control(index);
    }

    fn plane_hello(&mut self, index: usize, stream: StreamId, hello: DataPlaneHello) {
        let local = self.controls[index].clock.local(self.now);
        let data_plane = plane_of(&hello.name);
        if !self.admits(index, hello.epoch_seen, self.store.planes.contains(&data_plane)) {
            return self.close(stream, End::Control);
        }
        self.store.planes.insert(data_plane);
        let Some(term) = self.controls[index].term.as_mut() else { return };
        let (who, pulse) = ((hello.name.clone(), hello.incarnation), Arc::new(Pulse::new(false)));
        pulse.beat(local);
        match term.planes.connect(local, data_plane, who, stream.0, (stream, pulse.clone())) {
            Ok(replaced) => {
                term.streams.insert(stream, (Who::Plane(data_plane), pulse));
                replaced.into_iter().for_each(|old| self.close(old, End::Control));
                self.engine_step(index, EngineEvent::DataPlaneConnected { data_plane, hello });
            }
            Err(refused) => self.close(refused.tx, End::Control),
        }
    }

    /// Whether a peer may connect: not one that has obeyed a newer leader, nor an unknown one while it cannot be noted.
    fn admits(&self, index: usize, epoch_seen: Epoch, known: bool) -> bool {
        let Some(term) = &self.controls[index].term else { return false };
        let writes = self.net.both_reach(Site::Control(index), Site::Store) && term.epoch == self.store.epoch;
        epoch_seen <= term.epoch && (known || writes)
    }

    pub(crate) fn control_lost_stream(&mut self, index: usize, stream: StreamId, peer: Peer) {
        let Some(term) = self.controls[index].term.as_mut() else { return };
        match (term.streams.remove(&stream), peer) {
            (Some((Who::Node(node), _)), _) => drop(term.nodes.closed(node, stream.0)),
            (Some((Who::Plane(plane), _)), _) => drop(term.planes.closed(plane, stream.0)),
            (None, _) => {}
        }
        self.settle_control(index);
    }

    /// The loop turns: if much too late, then it is this process that was stopped.
    fn turn(&mut self, index: usize) {
        let local = self.controls[index].clock.local(self.now);
        let Some(term) = self.controls[index].term.as_mut() else { return };
        if was_stopped(term.expected, local) {
            term.nodes.forgive(local);
            term.planes.forgive(local);
        }
        // Events of one moment are one turn.
        term.expected = local;
    }

    fn pass_time(&mut self, index: usize) {
        let watched = self.scenario.faults.is_some();
        let local = self.controls[index].clock.local(self.now);
        let Some(term) = self.controls[index].term.as_mut() else { return };
        let (nodes, planes) = match watched {
            true => (term.nodes.expire(local), term.planes.expire(local)),
            false => (Vec::new(), Vec::new()),
        };
        for Gone { id: node, tx: stream, .. } in nodes {
            self.say(format_args!("control {index} has lost {node}"));
            stream.into_iter().for_each(|stream| self.close(stream, End::Control));
            self.engine_step(index, EngineEvent::NodeLost(node));
        }
        for Gone { id: plane, tx: stream, .. } in planes {
            self.say(format_args!("control {index} has lost {plane}"));
            stream.into_iter().for_each(|stream| self.close(stream, End::Control));
            self.engine_step(index, EngineEvent::DataPlaneLost(plane));
        }
        let due = |term: &Term| term.engine.next_deadline().is_some_and(|deadline| deadline <= local);
        if self.controls[index].term.as_ref().is_some_and(due) {
            self.engine_step(index, EngineEvent::Tick);
        }
    }

    /// Sets the next deadline.
    fn settle_control(&mut self, index: usize) {
        let watched = self.scenario.faults.is_some();
        let Control { clock, term, life, .. } = &mut self.controls[index];
        let Some(term) = term else { return };
        let deadline = term.next_deadline(watched);
        term.expected = deadline.max(clock.local(self.now));
        let at = clock.when(deadline).max(self.now);
        if at != Timestamp::MAX && term.wake.is_none_or(|(set, _)| at < set) {
            term.wakes += 1;
            term.wake = Some((at, term.wakes));
            self.queue.schedule(at, Event::Control(index, *life, ControlTimer::Wake(term.wakes)));
        }
    }

    /// One step of the engine, and its commands.
    fn engine_step(&mut self, index: usize, event: EngineEvent) {
        let local = self.controls[index].clock.local(self.now);
        let Some(term) = self.controls[index].term.as_mut() else { return };
        let mut commands = Vec::new();
        term.engine.step(local, event, &mut commands);
        let epoch = term.epoch;
        for command in commands {
            let Some(term) = &self.controls[index].term else { return };
            match command {
                Command::Node { node, message } => {
                    if let Some(stream) = term.node_stream(node) {
                        self.put(stream, End::Peer, Parcel::ToNode(epoch, message));
                    }
                }
                Command::DataPlane { data_plane, message } => {
                    if let Some(stream) = term.plane_stream(data_plane) {
                        self.put(stream, End::Peer, Parcel::ToPlane(epoch, message));
                    }
                }
                Command::Prepared { revision, result, .. } => {
                    self.say(format_args!(
                        "{revision} was tried: {}",
                        if result.is_ok() { "it starts" } else { "no" }
                    ));
                    self.users.asked.remove(&revision);
                }
                Command::Recovered { .. } | Command::TrafficSwitched(_) | Command::FunctionDrained(_) => {}
            }
        }
    }
}

/// Ids follow names here, as if every peer had registered in order.
fn number(name: &str) -> u32 {
    name.rsplit('-').next().and_then(|number| number.parse::<u32>().ok()).unwrap_or_default() + 1
}

fn node_of(name: &str) -> NodeId {
    NodeId(number(name))
}

fn plane_of(name: &str) -> DataPlaneId {
    DataPlaneId(number(name))
}
