//! A node: the daemon around the real roster, and its machine, which runs sandboxes.
//!
//! The daemon does with streams what the real one does (`daemon.rs`, `uplink.rs` of `fanfare-node`). The machine is a
//! model: a sandbox takes a while to start, runs requests until they are done or it ends, and ends when it is told to.
//! It keeps the rules of `fanfare_sandbox::Runtime`, as the conformance suite holds every runtime to them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use fanfare_policy::RngExt;
use fanfare_roster::{Order, Roster};
use fanfare_types::limits::HEARTBEAT_INTERVAL;
use fanfare_types::{
    Epoch, EpochGate, ExitCause, FromNode, NodeHello, Resources, RevisionId, SandboxId, SandboxRecord,
    SandboxUsage, Stages, StartFailure, StartFailureKind, StopMode, Timestamp, ToNode,
};

use crate::clock::Clock;
use crate::event::{Event, MachineTimer, NodeTimer};
use crate::log::Short;
use crate::net::{End, Parcel, Peer, Site, StreamId};
use crate::scenario::NodePlan;
use crate::uplink::Uplink;
use crate::world::World;

/// How long a kill takes.
const KILL: (Duration, Duration) = (Duration::from_micros(200), Duration::from_millis(8));
/// How long a stop in good order takes; within the grace.
const STOP: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(500));

/// A node daemon's process, and the machine under it.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) life: u64,
    pub(crate) up: bool,
    pub(crate) clock: Clock,
    pub(crate) uplink: Uplink,
    pub(crate) roster: Roster,
    pub(crate) machine: Machine,
    plan: NodePlan,
    gate: EpochGate,
    welcomed: bool,
    spoke_at: Timestamp,
}

/// What runs on a machine.
#[derive(Debug, Default)]
pub(crate) struct Machine {
    pub(crate) life: u64,
    /// It is lost, and not back yet: it says nothing at all.
    pub(crate) down: bool,
    pub(crate) bodies: BTreeMap<SandboxId, Body>,
    /// The most there were at once.
    pub(crate) peak: u32,
}

/// A sandbox.
#[derive(Debug)]
pub(crate) struct Body {
    pub(crate) revision: RevisionId,
    pub(crate) concurrency: u32,
    /// What it reserves.
    pub(crate) request: Resources,
    /// It accepts requests.
    pub(crate) ready: bool,
    /// It was told to end.
    pub(crate) ending: bool,
    /// Which end of its creation counts: one that is called off ends sooner.
    creation: u32,
    /// Requests that user code works on.
    pub(crate) running: BTreeSet<usize>,
    /// What it has used.
    pub(crate) meter: Meter,
}

/// How long requests were worked on in a sandbox, each by itself.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Meter {
    worked: Duration,
    /// Up to when that is known.
    until: Timestamp,
    /// The last reading.
    read: Option<Timestamp>,
}

impl Meter {
    /// So many requests were worked on until now.
    pub(crate) fn count(&mut self, now: Timestamp, running: usize) {
        self.worked += now.since(self.until) * u32::try_from(running).unwrap_or(u32::MAX);
        self.until = now;
    }

    /// How many were worked on at once since the last reading, on average; nothing at the first one.
    fn read(&mut self, now: Timestamp, running: usize) -> Option<f64> {
        self.count(now, running);
        let worked = std::mem::take(&mut self.worked).as_secs_f64();
        let elapsed = now.since(self.read.replace(now)?).as_secs_f64();
        (elapsed > 0.0).then(|| worked / elapsed)
    }
}

impl Node {
    pub(crate) fn new(plan: NodePlan, clock: Clock) -> Self {
        Node {
            life: 0,
            up: false,
            clock,
            uplink: Uplink::default(),
            roster: roster(plan),
            machine: Machine::default(),
            plan,
            gate: EpochGate::default(),
            welcomed: false,
            spoke_at: Timestamp::ZERO,
        }
    }

    /// The stream on which a control plane has made itself known.
    pub(crate) fn welcomed_on(&self) -> Option<StreamId> {
        self.uplink.stream.filter(|_| self.welcomed)
    }
}

fn roster(plan: NodePlan) -> Roster {
    Roster::new(vec![Arc::from("fake")], plan.creations_max, plan.creations_max.div_ceil(2))
}

impl World<'_> {
    pub(crate) fn node_timer(&mut self, index: usize, timer: NodeTimer) {
        let mut orders = Vec::new();
        match timer {
            NodeTimer::Start if self.nodes[index].up => return,
            NodeTimer::Start => return self.start_daemon(index),
            NodeTimer::Dial(attempt) => return self.dial_now(Peer::Node(index), attempt),
            NodeTimer::Beat => return self.node_beat(index),
            NodeTimer::Usage => return self.report_usage(index),
            NodeTimer::Created(sandbox, creation, starts) => {
                self.created(index, (sandbox, creation), starts, &mut orders);
            }
            NodeTimer::Exited(sandbox, cause) => {
                self.nodes[index].roster.exited(sandbox, cause, String::new(), &mut orders);
            }
            NodeTimer::Stopped(sandbox) => self.nodes[index].roster.stopped(sandbox, &mut orders),
            NodeTimer::Prepared(revision, starts) => {
                let result = if starts { Ok(()) } else { Err(failed()) };
                self.nodes[index].roster.prepared(revision, result, &mut orders);
            }
            NodeTimer::Forgotten(revision) => self.nodes[index].roster.forgotten(revision, &mut orders),
        }
        self.carry_out(index, orders);
    }

    fn start_daemon(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        node.up = true;
        node.machine.down = false;
        node.roster = roster(node.plan);
        node.gate = EpochGate::default();
        node.uplink = Uplink::default();
        node.welcomed = false;
        // What was starting has ended with the daemon that started it; what serves is taken over.
        node.machine.bodies.retain(|_, body| body.ready);
        for (sandbox, body) in node.machine.bodies.iter().filter(|(_, body)| !body.ending) {
            let endpoint = Some(Arc::from("fake"));
            let record = SandboxRecord { sandbox: *sandbox, revision: body.revision, endpoint };
            node.roster.adopt(0, record, None);
        }
        self.dial(Peer::Node(index), true);
        if self.scenario.faults.is_some() {
            self.schedule_node_beat(index);
        }
        self.schedule_usage(index);
    }

    fn schedule_usage(&mut self, index: usize) {
        if let Some(usage) = self.scenario.usage {
            let at = self.peer_time(Peer::Node(index), usage.interval);
            self.queue.schedule(at, Event::Node(index, self.nodes[index].life, NodeTimer::Usage));
        }
    }

    fn report_usage(&mut self, index: usize) {
        let Some(usage) = self.scenario.usage else { return };
        let now = self.now;
        let bodies = self.nodes[index].machine.bodies.iter_mut().filter(|(_, body)| body.ready);
        let read = |(sandbox, body): (&SandboxId, &mut Body)| {
            let at_once = body.meter.read(now, body.running.len())?;
            Some(SandboxUsage { sandbox: *sandbox, cpu_milli: at_once * usage.cpu_milli as f64 })
        };
        let usages: Vec<SandboxUsage> = bodies.filter_map(read).collect();
        if !usages.is_empty() {
            self.node_says(index, FromNode::Usage(usages));
        }
        self.schedule_usage(index);
    }

    fn schedule_node_beat(&mut self, index: usize) {
        let at = self.peer_time(Peer::Node(index), HEARTBEAT_INTERVAL);
        self.queue.schedule(at, Event::Node(index, self.nodes[index].life, NodeTimer::Beat));
    }

    fn node_beat(&mut self, index: usize) {
        let node = &self.nodes[index];
        if node.clock.local(self.now).since(node.spoke_at) >= HEARTBEAT_INTERVAL / 2 {
            self.node_says(index, FromNode::Heartbeat);
        }
        self.schedule_node_beat(index);
    }

    pub(crate) fn node_connected(&mut self, index: usize, _stream: StreamId) {
        let node = &mut self.nodes[index];
        node.welcomed = false;
        node.roster.begin_stream();
        let hello = NodeHello {
            name: format!("node-{index}").into(),
            incarnation: node.life,
            epoch_seen: node.gate.newest(),
            capacity: node.plan.capacity,
            runtimes: vec![Arc::from("fake")],
            sandboxes: node.roster.sandboxes().collect(),
            logs: 0,
        };
        self.say(format_args!("node {index} states {} sandboxes", hello.sandboxes.len()));
        self.node_says(index, FromNode::Hello(hello));
    }

    pub(crate) fn node_lost_stream(&mut self, index: usize, stream: StreamId) {
        if self.nodes[index].uplink.stream == Some(stream) {
            self.say(format_args!("node {index} has lost stream {}", stream.0));
            self.dial(Peer::Node(index), false);
        }
    }

    fn node_says(&mut self, index: usize, message: FromNode) {
        let node = &mut self.nodes[index];
        node.spoke_at = node.clock.local(self.now);
        let Some(stream) = node.uplink.stream else { return };
        if message != FromNode::Heartbeat {
            self.say(format_args!("node {index} says {}", Short(&message)));
        }
        self.put(stream, End::Control, Parcel::FromNode(message));
    }

    pub(crate) fn node_hears(&mut self, index: usize, stream: StreamId, epoch: Epoch, message: ToNode) {
        let node = &mut self.nodes[index];
        if node.uplink.stream != Some(stream) {
            return;
        }
        if !node.gate.admit(epoch) {
            self.say(format_args!("node {index} refuses {epoch}"));
            self.close(stream, End::Peer);
            return self.dial(Peer::Node(index), false);
        }
        self.note_obeyed(Site::Node(index), self.nodes[index].life, epoch);
        self.say(format_args!("node {index} hears {}", Short(&message)));
        let node = &mut self.nodes[index];
        if let ToNode::Welcome { .. } = message {
            node.welcomed = true;
            node.uplink.failures = 0;
            return;
        }
        if !node.welcomed {
            self.close(stream, End::Peer);
            return self.dial(Peer::Node(index), false);
        }
        let mut orders = Vec::new();
        node.roster.hear(message, &mut orders);
        self.carry_out(index, orders);
    }

    fn carry_out(&mut self, index: usize, orders: Vec<Order>) {
        for order in orders {
            let life = self.nodes[index].life;
            match order {
                Order::Say(message) => self.node_says(index, message),
                Order::Create { sandbox, spec, .. } => {
                    self.created += 1;
                    let machine = &mut self.nodes[index].machine;
                    let running = BTreeSet::new();
                    let body = Body {
                        revision: spec.id,
                        concurrency: spec.sizing.concurrency,
                        request: spec.sizing.request,
                        ready: false,
                        ending: false,
                        creation: 0,
                        running,
                        meter: Meter::default(),
                    };
                    machine.bodies.insert(sandbox, body);
                    machine.peak = machine.peak.max(u32::try_from(machine.bodies.len()).unwrap_or(u32::MAX));
                    let at = self.now + self.between(self.scenario.creation.min, self.scenario.creation.max);
                    let starts = !self.fails();
                    self.queue.schedule(at, Event::Node(index, life, NodeTimer::Created(sandbox, 0, starts)));
                }
                Order::Stop { sandbox, mode, .. } => self.stop_body(index, sandbox, mode),
                Order::Prepare { spec, .. } => {
                    let at = self.now + self.between(self.scenario.creation.min, self.scenario.creation.max);
                    let starts = !self.fails();
                    self.queue.schedule(at, Event::Node(index, life, NodeTimer::Prepared(spec.id, starts)));
                }
                Order::Forget { revision, .. } => {
                    let at = self.now + self.between(KILL.0, KILL.1);
                    self.queue.schedule(at, Event::Node(index, life, NodeTimer::Forgotten(revision)));
                }
                Order::Deleted(_) => {}
                Order::Odd { sandbox, what } => {
                    self.did.strays.push(format!("node {index}: {sandbox} {what}"));
                }
            }
        }
    }

    fn fails(&mut self) -> bool {
        self.faulty && self.rng.random_range(0..1_000) < self.scenario.creation.failures_permille
    }

    fn created(
        &mut self,
        index: usize,
        (sandbox, creation): (SandboxId, u32),
        starts: bool,
        orders: &mut Vec<Order>,
    ) {
        let node = &mut self.nodes[index];
        let Some(body) = node.machine.bodies.get_mut(&sandbox).filter(|b| b.creation == creation) else {
            return;
        };
        body.ready = starts;
        if !starts {
            node.machine.bodies.remove(&sandbox);
        }
        let result = if starts { Ok((Arc::from("fake"), Stages::default())) } else { Err(failed()) };
        node.roster.created(sandbox, result, orders);
    }

    fn stop_body(&mut self, index: usize, sandbox: SandboxId, mode: StopMode) {
        let (min, max) = if mode == StopMode::Graceful { STOP } else { KILL };
        let at = self.now + self.between(min, max);
        let node = &mut self.nodes[index];
        let (life, machine_life) = (node.life, node.machine.life);
        if let Some(body) = node.machine.bodies.get_mut(&sandbox) {
            body.ending = true;
            if mode == StopMode::Graceful && !body.running.is_empty() {
                let running = body.running.len();
                self.did.disturbed.push(format!("{sandbox} on node {index} runs {running} requests"));
            }
            if !body.ready {
                // Its creation is called off.
                body.creation += 1;
                let failed = NodeTimer::Created(sandbox, body.creation, false);
                self.queue.schedule(at, Event::Node(index, life, failed));
            }
        }
        self.queue.schedule(at, Event::Machine(index, machine_life, MachineTimer::Kill(sandbox, life)));
    }

    pub(crate) fn machine_timer(&mut self, index: usize, timer: MachineTimer) {
        match timer {
            MachineTimer::Kill(sandbox, ordered_by) => {
                // Of one that is starting its creation says that it has ended.
                if self.nodes[index].machine.bodies.get(&sandbox).is_some_and(|body| body.ready) {
                    self.end_body(index, sandbox, ExitCause::Stopped);
                }
                let after = Duration::from_micros(100);
                let stopped = Event::Node(index, ordered_by, NodeTimer::Stopped(sandbox));
                self.queue.schedule(self.now + after, stopped);
            }
            MachineTimer::Executed(sandbox, visit) => self.executed(index, sandbox, visit),
        }
    }

    /// A sandbox ends: requests in it are cut, its daemon hears of it.
    pub(crate) fn end_body(&mut self, index: usize, sandbox: SandboxId, cause: ExitCause) {
        let Some(body) = self.nodes[index].machine.bodies.remove(&sandbox) else { return };
        self.say(format_args!("{sandbox} on node {index} {cause}, with {} requests", body.running.len()));
        let life = self.nodes[index].life;
        let after = Duration::from_micros(50);
        self.queue.schedule(self.now + after, Event::Node(index, life, NodeTimer::Exited(sandbox, cause)));
        for request in body.running {
            self.hang_up(index, sandbox, request);
        }
    }

    /// A daemon is killed; what serves lives on, and is found by the next one.
    pub(crate) fn kill_daemon(&mut self, index: usize, back_after: Duration) {
        self.reset_streams(Site::Node(index), End::Peer);
        self.end_daemon(index, back_after);
    }

    /// A machine is lost with everything on it.
    pub(crate) fn lose_machine(&mut self, index: usize, back_after: Duration) {
        self.silence_streams(Site::Node(index), End::Peer);
        let machine = &mut self.nodes[index].machine;
        machine.life += 1;
        machine.down = true;
        machine.bodies.clear();
        self.end_daemon(index, back_after);
    }

    fn end_daemon(&mut self, index: usize, back_after: Duration) {
        let node = &mut self.nodes[index];
        node.life += 1;
        node.up = false;
        node.welcomed = false;
        node.uplink = Uplink::default();
        node.machine.bodies.retain(|_, body| body.ready);
        self.stalled.remove(&Site::Node(index));
        let life = self.nodes[index].life;
        self.queue.schedule(self.now + back_after, Event::Node(index, life, NodeTimer::Start));
    }
}

fn failed() -> StartFailure {
    let detail = "it was to fail".to_owned();
    StartFailure { kind: StartFailureKind::Exited(ExitCause::Status(1)), detail, log_tail: String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use_is_the_mean_since_the_reading_before() {
        let (mut meter, at) = (Meter::default(), Timestamp::from_secs);
        meter.count(at(1), 0);
        assert_eq!(meter.read(at(5), 3), None, "there was none before");
        meter.count(at(6), 3);
        meter.count(at(8), 5);
        assert_eq!(meter.read(at(10), 0), Some((3.0 + 10.0) / 5.0));
        assert_eq!(meter.read(at(15), 2), Some(2.0));
        assert_eq!(meter.read(at(15), 2), None, "no time has passed");
    }
}
