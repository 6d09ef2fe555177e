//! A data plane: the real queues, and a model of the shell around them.
//!
//! Modelled is what `fanfare-data-plane` does with its stream (`control.rs`, `outlet.rs`), with functions (`directory.rs`,
//! `function/step.rs`) and with requests (`request.rs`, `invoke.rs`, `proof.rs`), one event at a time. There, each
//! function is under a lock of its own and requests are futures; the order in which they may happen is the same.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fanfare_dispatch::{Event as QueueEvent, FunctionQueue};
use fanfare_types::limits::{HEARTBEAT_INTERVAL, REPORT_INTERVAL};
use fanfare_types::{
    DataPlaneHello, DataPlaneId, Epoch, EpochGate, FromDataPlane, FunctionId, FunctionName, FunctionRoute,
    NodeId, SandboxId, Timestamp, ToDataPlane,
};

use crate::clock::Clock;
use crate::event::{Event, PlaneTimer};
use crate::log::Short;
use crate::net::{End, Parcel, Peer, Site, StreamId};
use crate::uplink::Uplink;
use crate::world::World;

/// A data plane's process.
#[derive(Debug)]
pub(crate) struct Plane {
    pub(crate) life: u64,
    pub(crate) up: bool,
    pub(crate) clock: Clock,
    pub(crate) uplink: Uplink,
    gate: EpochGate,
    /// It has been told once what there is.
    pub(crate) synced: bool,
    pub(crate) draining: bool,
    /// Every function that holds or is something, by a number of this process.
    pub(crate) functions: BTreeMap<u32, Function>,
    numbered: u32,
    /// Functions that exist, with the last stream that named them.
    pub(crate) known: BTreeMap<FunctionId, (u32, StreamId)>,
    pub(crate) by_name: BTreeMap<FunctionName, u32>,
    pub(crate) sandboxes: BTreeMap<SandboxId, (u32, NodeId)>,
    pub(crate) peers: Vec<DataPlaneId>,
    /// Functions with load to report.
    active: Vec<u32>,
    /// Functions whose demand is to be told soon.
    pub(crate) demanding: Vec<u32>,
    /// Requests that came before it knew anything.
    pub(crate) early: Vec<usize>,
    heard: bool,
}

/// A function as its data plane has it.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) id: FunctionId,
    pub(crate) name: FunctionName,
    pub(crate) revision: u32,
    pub(crate) queue: FunctionQueue,
    /// Requests by the numbers that the queue knows them by.
    pub(crate) waiting: BTreeMap<u64, usize>,
    /// Requests in slots, by sandbox.
    pub(crate) running: BTreeSet<(SandboxId, usize)>,
    /// The data plane that owns it, if it is another one.
    pub(crate) owner: Option<DataPlaneId>,
    pub(crate) request_timeout: Duration,
    pub(crate) concurrency: u32,
    /// The stream whose hello stated its leases: it speaks on no other.
    outlet: Option<StreamId>,
    pub(crate) demanded: Timestamp,
    pub(crate) demand_due: bool,
}

impl Plane {
    pub(crate) fn new(clock: Clock) -> Self {
        Plane {
            life: 0,
            up: false,
            clock,
            uplink: Uplink::default(),
            gate: EpochGate::default(),
            synced: false,
            draining: false,
            functions: BTreeMap::new(),
            numbered: 0,
            known: BTreeMap::new(),
            by_name: BTreeMap::new(),
            sandboxes: BTreeMap::new(),
            peers: Vec::new(),
            active: Vec::new(),
            demanding: Vec::new(),
            early: Vec::new(),
            heard: false,
        }
    }

    /// Whether clients can connect.
    pub(crate) fn accepts(&self) -> bool {
        self.up && !self.draining
    }

    pub(crate) fn activate(&mut self, number: u32) {
        self.active.push(number);
    }

    /// Nothing is held and nobody waits.
    fn is_idle(&self) -> bool {
        self.functions.values().all(|f| f.waiting.is_empty() && f.running.is_empty()) && self.early.is_empty()
    }
}

/// What a data plane is called towards the control plane.
fn name(index: usize) -> String {
    format!("plane-{index}")
}

impl World<'_> {
    pub(crate) fn plane_timer(&mut self, index: usize, timer: PlaneTimer) {
        match timer {
            PlaneTimer::Start if self.planes[index].up => {}
            PlaneTimer::Start => {
                self.planes[index].up = true;
                self.dial(Peer::Plane(index), true);
            }
            PlaneTimer::Dial(attempt) => self.dial_now(Peer::Plane(index), attempt),
            PlaneTimer::Report(stream) => self.report_load(index, stream),
            PlaneTimer::Beat(stream) if self.planes[index].uplink.stream == Some(stream) => {
                self.plane_says(index, stream, FromDataPlane::Heartbeat);
                self.plane_tick(index, HEARTBEAT_INTERVAL, PlaneTimer::Beat(stream));
            }
            PlaneTimer::Beat(_) => {}
            PlaneTimer::Demand(stream) => {
                if self.planes[index].uplink.stream == Some(stream) {
                    for number in std::mem::take(&mut self.planes[index].demanding) {
                        self.tell_demand(index, number);
                    }
                }
            }
            PlaneTimer::Deadline(visit) => self.deadline(index, visit),
            PlaneTimer::Unproven(visit) => self.unproven(index, visit),
            PlaneTimer::LastWords(visit) => self.last_words(index, visit),
            PlaneTimer::Unsynced(visit) => self.still_unsynced(index, visit),
            PlaneTimer::NotForwarded(visit) => self.serve_here(index, visit),
            PlaneTimer::Left(request) => self.client_left(index, request),
            PlaneTimer::Exit => self.exit_plane(index),
        }
    }

    pub(crate) fn plane_tick(&mut self, index: usize, after: Duration, timer: PlaneTimer) {
        let at = self.peer_time(Peer::Plane(index), after);
        self.queue.schedule(at, Event::Plane(index, self.planes[index].life, timer));
    }

    /// States everything held.
    pub(crate) fn plane_connected(&mut self, index: usize, stream: StreamId) {
        let local = self.planes[index].clock.local(self.now);
        let plane = &mut self.planes[index];
        plane.heard = false;
        let mut hello = DataPlaneHello {
            name: name(index).into(),
            address: name(index).into(),
            incarnation: plane.life,
            epoch_seen: plane.gate.newest(),
            leases: Vec::new(),
            condemned: Vec::new(),
        };
        for function in plane.functions.values_mut() {
            function.outlet = Some(stream);
            hello.leases.extend(function.queue.leases());
            hello.condemned.extend(function.queue.condemned());
        }
        let draining = plane.draining;
        self.plane_says(index, stream, FromDataPlane::Hello(hello));
        for number in self.planes[index].functions.keys().copied().collect::<Vec<_>>() {
            self.queue_step(index, number, local, QueueEvent::Resync);
        }
        if draining {
            self.plane_says(index, stream, FromDataPlane::Draining);
        }
        self.plane_tick(index, REPORT_INTERVAL, PlaneTimer::Report(stream));
        if self.scenario.faults.is_some() {
            self.plane_tick(index, HEARTBEAT_INTERVAL, PlaneTimer::Beat(stream));
        }
        // Demand that came while there was no stream is in the hello's wake.
        self.plane_tick(index, Duration::ZERO, PlaneTimer::Demand(stream));
    }

    pub(crate) fn plane_lost_stream(&mut self, index: usize, stream: StreamId) {
        let plane = &mut self.planes[index];
        if plane.uplink.stream == Some(stream) {
            if plane.heard {
                plane.uplink.failures = 0;
            }
            self.say(format_args!("plane {index} has lost stream {}", stream.0));
            self.dial(Peer::Plane(index), false);
        }
    }

    /// Says something on a stream, if that is the one that is up.
    fn plane_says(&mut self, index: usize, stream: StreamId, message: FromDataPlane) {
        if self.planes[index].uplink.stream != Some(stream) {
            return;
        }
        if !matches!(message, FromDataPlane::Heartbeat | FromDataPlane::Report(_)) {
            self.say(format_args!("plane {index} says {}", Short(&message)));
        }
        self.put(stream, End::Control, Parcel::FromPlane(message));
    }

    /// A function says something.
    pub(crate) fn function_says(&mut self, index: usize, number: u32, message: FromDataPlane) {
        let outlet = self.planes[index].functions.get(&number).and_then(|f| f.outlet);
        if let Some(stream) = outlet {
            self.plane_says(index, stream, message);
        }
    }

    pub(crate) fn plane_hears(&mut self, index: usize, stream: StreamId, epoch: Epoch, message: ToDataPlane) {
        let plane = &mut self.planes[index];
        if plane.uplink.stream != Some(stream) {
            return;
        }
        if !plane.gate.admit(epoch) {
            self.say(format_args!("plane {index} refuses {epoch}"));
            self.close(stream, End::Peer);
            return self.dial(Peer::Plane(index), false);
        }
        plane.heard = true;
        self.note_obeyed(Site::Plane(index), self.planes[index].life, epoch);
        self.say(format_args!("plane {index} hears {}", Short(&message)));
        match message {
            ToDataPlane::Functions(routes) => {
                routes.into_iter().for_each(|route| self.route(index, stream, route));
            }
            ToDataPlane::FunctionRemoved(id) => self.function_removed(index, id),
            ToDataPlane::Synced => self.synced(index, stream),
            ToDataPlane::Peers(peers) => {
                self.planes[index].peers = peers.into_iter().map(|(id, _)| id).collect();
            }
            ToDataPlane::Owners(owners) => {
                for (id, owner) in owners {
                    let plane = &mut self.planes[index];
                    let number = plane.known.get(&id).map(|(number, _)| *number);
                    if let Some(function) = number.and_then(|number| plane.functions.get_mut(&number)) {
                        function.owner = owner;
                    }
                }
            }
            ToDataPlane::Grant { function, revision, sandbox, node, slots, stages, .. } => {
                let Some((number, _)) = self.planes[index].known.get(&function).copied() else {
                    let back = FromDataPlane::Released { sandbox, slots, retired: true };
                    return self.plane_says(index, stream, back);
                };
                self.planes[index].sandboxes.insert(sandbox, (number, node));
                let fresh = stages.is_some();
                self.apply(index, number, QueueEvent::Grant { sandbox, revision, slots, fresh });
            }
            ToDataPlane::Revoke { sandbox, slots } => {
                self.apply_to_holder(index, sandbox, QueueEvent::Revoke { sandbox, slots });
            }
            ToDataPlane::Gone { sandbox, .. } => {
                if let Some((number, _)) = self.planes[index].sandboxes.get(&sandbox).copied() {
                    self.apply(index, number, QueueEvent::Gone { sandbox });
                    self.sandbox_gone(index, number, sandbox);
                }
            }
            ToDataPlane::Yield { function, slots } => self.tell(index, function, QueueEvent::Yield { slots }),
            ToDataPlane::Retire { function, sandboxes } => {
                self.tell(index, function, QueueEvent::Retire { sandboxes });
            }
            ToDataPlane::Unavailable { function, reason, detail, log_tail } => {
                self.tell(index, function, QueueEvent::Unavailable { reason, detail, log_tail });
            }
            ToDataPlane::Mark(number) => self.plane_says(index, stream, FromDataPlane::Reached(number)),
            ToDataPlane::Welcome { .. }
            | ToDataPlane::Explain { .. }
            | ToDataPlane::Entrust { .. }
            | ToDataPlane::Webhook(_)
            | ToDataPlane::WebhookRemoved(_)
            | ToDataPlane::WebhooksSynced => {}
        }
    }

    fn route(&mut self, index: usize, stream: StreamId, route: FunctionRoute) {
        let plane = &mut self.planes[index];
        if let Some((number, named)) = plane.known.get_mut(&route.id) {
            *named = stream;
            let number = *number;
            if let Some(function) = plane.functions.get_mut(&number) {
                function.revision = route.revision;
                function.request_timeout = route.request_timeout;
                function.concurrency = route.concurrency;
            }
            return self.apply(index, number, QueueEvent::Route(route));
        }
        plane.numbered += 1;
        let number = plane.numbered;
        let seed = u64::from(number) << 8 | index as u64;
        let function = Function {
            id: route.id,
            name: route.name.clone(),
            revision: route.revision,
            queue: FunctionQueue::new(&route, seed),
            waiting: BTreeMap::new(),
            running: BTreeSet::new(),
            owner: None,
            request_timeout: route.request_timeout,
            concurrency: route.concurrency,
            outlet: plane.uplink.stream,
            demanded: Timestamp::ZERO,
            demand_due: false,
        };
        plane.functions.insert(number, function);
        plane.known.insert(route.id, (number, stream));
        plane.by_name.insert(route.name, number);
        if plane.draining {
            self.apply(index, number, QueueEvent::Drain);
        }
        self.early_ones(index, false);
    }

    fn function_removed(&mut self, index: usize, id: FunctionId) {
        let plane = &mut self.planes[index];
        let Some((number, _)) = plane.known.remove(&id) else { return };
        plane.by_name.retain(|_, named| *named != number);
        self.apply(index, number, QueueEvent::Removed);
    }

    /// What this stream did not name does not exist.
    fn synced(&mut self, index: usize, stream: StreamId) {
        let known = self.planes[index].known.iter();
        let unnamed = known.filter(|(_, (_, named))| *named != stream).map(|(id, _)| *id);
        for id in unnamed.collect::<Vec<_>>() {
            self.function_removed(index, id);
        }
        self.planes[index].synced = true;
        self.early_ones(index, true);
    }

    fn tell(&mut self, index: usize, function: FunctionId, event: QueueEvent) {
        if let Some((number, _)) = self.planes[index].known.get(&function).copied() {
            self.apply(index, number, event);
        }
    }

    fn apply_to_holder(&mut self, index: usize, sandbox: SandboxId, event: QueueEvent) {
        if let Some((number, _)) = self.planes[index].sandboxes.get(&sandbox).copied() {
            self.apply(index, number, event);
        }
    }

    fn report_load(&mut self, index: usize, stream: StreamId) {
        let plane = &mut self.planes[index];
        if plane.uplink.stream != Some(stream) {
            return;
        }
        let local = plane.clock.local(self.now);
        let mut loads = Vec::new();
        let mut active = std::mem::take(&mut plane.active);
        active.retain(|number| {
            let load = plane.functions.get_mut(number).and_then(|f| f.queue.report(local));
            loads.extend(load);
            load.is_some()
        });
        plane.active.append(&mut active);
        let known = &plane.known;
        plane.functions.retain(|number, f| {
            known.get(&f.id).is_some_and(|(k, _)| k == number)
                || !f.queue.is_idle()
                || !f.waiting.is_empty()
                || !f.running.is_empty()
        });
        self.plane_says(index, stream, FromDataPlane::Report(loads));
        self.plane_tick(index, REPORT_INTERVAL, PlaneTimer::Report(stream));
    }

    /// It begins to shut down in good order.
    pub(crate) fn drain_plane(&mut self, index: usize) {
        let plane = &mut self.planes[index];
        plane.draining = true;
        let stream = plane.uplink.stream;
        if let Some(stream) = stream {
            self.plane_says(index, stream, FromDataPlane::Draining);
        }
        for number in self.planes[index].functions.keys().copied().collect::<Vec<_>>() {
            self.apply(index, number, QueueEvent::Drain);
        }
        self.plane_tick(index, Duration::from_millis(20), PlaneTimer::Exit);
    }

    /// It ends once its requests have.
    fn exit_plane(&mut self, index: usize) {
        if !self.planes[index].is_idle() {
            return self.plane_tick(index, Duration::from_millis(20), PlaneTimer::Exit);
        }
        self.say(format_args!("plane {index} has drained"));
        // Its last words get through before it closes.
        if let Some(stream) = self.planes[index].uplink.stream {
            self.close(stream, End::Peer);
        }
        self.end_plane(index, Duration::from_millis(100));
    }

    /// Its process ends; connections are reset.
    pub(crate) fn kill_plane(&mut self, index: usize, back_after: Duration) {
        self.reset_streams(Site::Plane(index), End::Peer);
        self.end_plane(index, back_after);
    }

    fn end_plane(&mut self, index: usize, back_after: Duration) {
        let plane = &mut self.planes[index];
        let (life, clock) = (plane.life + 1, plane.clock);
        *plane = Plane { life, ..Plane::new(clock) };
        self.stalled.remove(&Site::Plane(index));
        self.cut_requests(index, life - 1);
        self.queue.schedule(self.now + back_after, Event::Plane(index, life, PlaneTimer::Start));
    }
}
