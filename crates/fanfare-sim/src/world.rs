//! Everything there is, and the loop that lets it happen.

use std::collections::BTreeMap;
use std::time::Duration;

use fanfare_policy::{Rng, RngExt, seeded};
use fanfare_types::{Epoch, NodeId, SandboxId, Timestamp};

use crate::clock::Clock;
use crate::control::Control;
use crate::event::{ControlTimer, Event, FaultEvent, NodeTimer, PlaneTimer, Wire};
use crate::invariants;
use crate::log::{Log, Sink};
use crate::net::{End, Net, Parcel, Peer, Site, StreamId};
use crate::node::Node;
use crate::plane::Plane;
use crate::queue::Queue;
use crate::report::{Report, RequestReport, Violation};
use crate::request::Request;
use crate::scenario::Scenario;
use crate::store::Store;
use crate::users::User;

/// Events between two looks at everything.
const AUDIT_EVENTS: u64 = 97;
/// Where clocks start, at most.
const CLOCK_BASE_MAX_S: u64 = 1_000;

/// The simulated world.
#[derive(Debug)]
pub(crate) struct World<'a> {
    pub(crate) scenario: &'a Scenario,
    pub(crate) now: Timestamp,
    pub(crate) rng: Rng,
    pub(crate) queue: Queue<Event>,
    pub(crate) net: Net,
    pub(crate) store: Store,
    pub(crate) controls: Vec<Control>,
    pub(crate) planes: Vec<Plane>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) users: User,
    pub(crate) requests: Vec<Request>,
    /// What stands still, and until when.
    pub(crate) stalled: BTreeMap<Site, Timestamp>,
    /// Words between data planes and sandboxes that cannot get through.
    pub(crate) held: Vec<Wire>,
    /// Whether things go wrong.
    pub(crate) faulty: bool,
    pub(crate) faults: u64,
    pub(crate) created: u64,
    /// What the event being handled did, for the invariants.
    pub(crate) did: Did,
    /// The newest epoch that reached each process, kept apart from what it keeps itself.
    pub(crate) newest: BTreeMap<(Site, u64), Epoch>,
    pub(crate) log: Log<'a>,
    pub(crate) violation: Option<Violation>,
}

/// What an event did.
#[derive(Debug, Default)]
pub(crate) struct Did {
    /// Requests whose client had an answer, or that user code began with.
    pub(crate) requests: Vec<usize>,
    /// Sandboxes that took a request, by node.
    pub(crate) sandboxes: Vec<(NodeId, SandboxId)>,
    /// Commands that were obeyed: by whom, of which epoch, and the newest that it had seen.
    pub(crate) obeyed: Vec<(Site, Epoch, Epoch)>,
    /// Answers of queues for requests that do not wait there.
    pub(crate) strays: Vec<String>,
    /// Requests that got a slot before others that had waited longer.
    pub(crate) overtaken: Vec<String>,
    /// Sandboxes that were stopped in good order while user code ran in them.
    pub(crate) disturbed: Vec<String>,
}

impl<'a> World<'a> {
    pub(crate) fn new(scenario: &'a Scenario, seed: u64, sink: Option<Sink<'a>>) -> Self {
        let mut rng = seeded(seed);
        let drift = scenario.faults.as_ref().map_or(0, |f| f.drift_ppm);
        let mut clock = || {
            let base = Timestamp::from_nanos(rng.random_range(0..CLOCK_BASE_MAX_S * 1_000_000_000));
            let ppm = if drift > 0 { rng.random_range(-drift..=drift) } else { 0 };
            Clock::new(Timestamp::ZERO, base, ppm)
        };
        let controls = (0..scenario.control_planes).map(|_| Control::new(clock())).collect();
        let planes = (0..scenario.data_planes).map(|_| Plane::new(clock())).collect();
        let nodes = scenario.nodes.iter().map(|plan| Node::new(*plan, clock())).collect();
        let mut world = World {
            scenario,
            now: Timestamp::ZERO,
            rng,
            queue: Queue::new(),
            net: Net::default(),
            store: Store::default(),
            controls,
            planes,
            nodes,
            users: User::new(scenario),
            requests: Vec::with_capacity(scenario.arrivals.len()),
            stalled: BTreeMap::new(),
            held: Vec::new(),
            faulty: false,
            faults: 0,
            created: 0,
            did: Did::default(),
            newest: BTreeMap::new(),
            log: Log::new(sink),
            violation: None,
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
        for index in 0..self.controls.len() {
            self.queue.schedule(Timestamp::ZERO, Event::Control(index, 0, ControlTimer::Start));
        }
        for index in 0..self.nodes.len() {
            self.queue.schedule(Timestamp::from_millis(1), Event::Node(index, 0, NodeTimer::Start));
        }
        for index in 0..self.planes.len() {
            self.queue.schedule(Timestamp::from_millis(1), Event::Plane(index, 0, PlaneTimer::Start));
        }
        for (index, change) in self.users.changes().enumerate().collect::<Vec<_>>() {
            self.queue.schedule(change, Event::Change(index));
        }
        if let Some(first) = self.scenario.arrivals.first() {
            self.queue.schedule(first.at, Event::Arrival);
        }
        if let Some(faults) = &self.scenario.faults {
            self.queue.schedule(faults.from, Event::Fault(FaultEvent::Next));
            self.queue.schedule(faults.until, Event::Fault(FaultEvent::Mend));
        }
    }

    /// Lets everything happen until the scenario's end, or until an invariant is broken.
    pub(crate) fn run(mut self, seed: u64) -> Report {
        let watched = self.scenario.faults.is_some();
        while self.queue.next_at().is_some_and(|at| at <= self.scenario.end) {
            let Some((at, event)) = self.queue.pop() else { break };
            self.now = at;
            let (net, stalled) = (&self.net, &self.stalled);
            let site = event.site(|stream, end| net.streams.get(&stream).map(|s| s.site(end)));
            if let Some(until) = site.and_then(|site| stalled.get(&site)).filter(|until| at < **until) {
                self.queue.schedule(*until, event);
                continue;
            }
            self.log.event(at, event.kind());
            self.handle(event);
            let audit = watched && self.log.events().is_multiple_of(AUDIT_EVENTS);
            if let Some(violation) = invariants::after_event(&self, audit) {
                self.violation = Some(violation);
                return self.report(seed);
            }
            self.did.clear();
        }
        self.now = self.scenario.end;
        if watched {
            self.violation = invariants::at_rest(&self);
        }
        self.report(seed)
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Arrival => self.arrival(),
            Event::Leave(request) => self.leave(request),
            Event::Change(index) => self.change(index),
            Event::Lane(stream, end) => self.lane(stream, end),
            Event::Broken(stream, end) => self.broken(stream, end),
            Event::Dialled { peer, life, attempt, control } => self.dialled(peer, life, attempt, control),
            Event::Control(index, life, timer) if self.controls[index].life == life => {
                self.control_timer(index, timer);
            }
            Event::Plane(index, life, timer) if self.planes[index].life == life => {
                self.plane_timer(index, timer);
            }
            Event::Node(index, life, timer) if self.nodes[index].life == life => {
                self.node_timer(index, timer);
            }
            Event::Machine(index, life, timer) if self.nodes[index].machine.life == life => {
                self.machine_timer(index, timer);
            }
            Event::Control(..) | Event::Plane(..) | Event::Node(..) | Event::Machine(..) => {}
            Event::Wire(wire) => self.wire(wire),
            Event::Fault(event) => self.fault(event),
        }
    }

    fn report(self, seed: u64) -> Report {
        let request = |r: &Request| RequestReport {
            function: r.arrival.function,
            arrived: r.arrival.at,
            started: r.started,
            ended: r.ended,
            outcome: r.outcome,
            cold: r.cold,
        };
        Report {
            scenario: self.scenario.name.clone(),
            seed,
            events: self.log.events(),
            digest: self.log.digest(),
            violation: self.violation,
            requests: self.requests.iter().map(request).collect(),
            sandboxes_created: self.created,
            node_peaks: self.nodes.iter().map(|node| node.machine.peak).collect(),
            faults: self.faults,
        }
    }

    /// Nothing goes wrong by chance that is not a fault: how long a message takes.
    pub(crate) fn delay(&mut self, from: Site, to: Site) -> Duration {
        let (min, max) = (self.scenario.network.min, self.scenario.network.max);
        self.between(min, max) + self.net.slowness(from, to)
    }

    /// A duration, drawn evenly.
    pub(crate) fn between(&mut self, min: Duration, max: Duration) -> Duration {
        let nanos = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        let (min, max) = (nanos(min), nanos(max));
        if min >= max {
            Duration::from_nanos(min)
        } else {
            Duration::from_nanos(self.rng.random_range(min..=max))
        }
    }

    /// Puts something on a stream.
    pub(crate) fn put(&mut self, stream: StreamId, towards: End, parcel: Parcel) {
        let Some(sites) = self.net.streams.get(&stream).map(|s| (s.site(towards.other()), s.site(towards)))
        else {
            return;
        };
        let delay = self.delay(sites.0, sites.1);
        if let Some(at) = self.net.put(self.now, stream, towards, parcel, delay) {
            self.queue.schedule(at, Event::Lane(stream, towards));
        }
    }

    /// One end closes its stream in good order: the other hears of it behind what was sent before.
    pub(crate) fn close(&mut self, stream: StreamId, end: End) {
        self.put(stream, end.other(), Parcel::Close);
        self.net.close(stream, end);
    }

    fn lane(&mut self, stream: StreamId, towards: End) {
        let Some(parcel) = self.net.take(stream, towards) else { return };
        let Some(record) = self.net.streams.get(&stream) else { return };
        let (peer, control) = (record.peer, record.control);
        match (parcel, peer) {
            (Parcel::ToNode(epoch, message), Peer::Node(index)) => {
                self.node_hears(index, stream, epoch, message);
            }
            (Parcel::ToPlane(epoch, message), Peer::Plane(index)) => {
                self.plane_hears(index, stream, epoch, message);
            }
            (Parcel::FromNode(message), Peer::Node(_)) => self.control_hears_node(control, stream, message),
            (Parcel::FromPlane(message), Peer::Plane(_)) => {
                self.control_hears_plane(control, stream, message);
            }
            (Parcel::Close, _) => self.broken(stream, towards),
            _ => {}
        }
    }

    /// An end finds its stream closed or broken.
    fn broken(&mut self, stream: StreamId, end: End) {
        let Some(record) = self.net.streams.get(&stream).filter(|s| s.is_open(end)) else { return };
        let (peer, control) = (record.peer, record.control);
        self.net.close(stream, end);
        match (end, peer) {
            (End::Control, _) => self.control_lost_stream(control, stream, peer),
            (End::Peer, Peer::Node(index)) => self.node_lost_stream(index, stream),
            (End::Peer, Peer::Plane(index)) => self.plane_lost_stream(index, stream),
        }
    }

    /// Notes that a command of an epoch reached a process, and what was newest there before; for the invariants.
    pub(crate) fn note_obeyed(&mut self, site: Site, life: u64, epoch: Epoch) {
        let newest = self.newest.entry((site, life)).or_default();
        self.did.obeyed.push((site, epoch, *newest));
        *newest = epoch.max(*newest);
    }

    pub(crate) fn say(&mut self, text: std::fmt::Arguments<'_>) {
        self.log.line(self.now, text);
    }
}

impl Did {
    fn clear(&mut self) {
        self.requests.clear();
        self.sandboxes.clear();
        self.obeyed.clear();
        self.strays.clear();
        self.overtaken.clear();
        self.disturbed.clear();
    }
}
