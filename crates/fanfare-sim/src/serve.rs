//! The way of a request through a data plane: find its function, send it on to the owner or queue it, put it in a slot,
//! and see how it ends.

use std::time::Duration;

use fanfare_dispatch::{Command, Event as QueueEvent, Outcome as SlotOutcome, Refusal, Why};
use fanfare_types::limits::ABANDONED_WAIT_DEFAULT;
use fanfare_types::{FromDataPlane, Reason, SandboxId, Timestamp};

use crate::event::{Event, PlaneTimer, Visit, Wire, Word};
use crate::net::Site;
use crate::plane::Function;
use crate::report::Outcome;
use crate::request::Place;
use crate::world::World;

/// Sandboxes that a request is offered to, where each one provably got nothing of it.
const ATTEMPTS_MAX: u32 = 5;
/// How long a request waits for the first word of a control plane.
const SYNC_WAIT: Duration = Duration::from_secs(1);
/// An owner that does not accept a connection within this is passed over.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// The owner's answer to a deadline, and not that of whoever forwarded, is to reach the client.
const DEADLINE_GRACE: Duration = Duration::from_secs(1);
/// How long what a sandbox said before its end may take to arrive after the news of its end, and how long the control
/// plane may take to say how a sandbox ended that hung up.
const LAST_WORDS_WAIT: Duration = Duration::from_millis(100);
/// The first change of a function's demand is told at once, further ones at most this often.
const DEMAND_INTERVAL: Duration = Duration::from_millis(1);

impl World<'_> {
    /// A client's request is here.
    pub(crate) fn request_comes(&mut self, request: usize, index: usize) {
        let name = &self.scenario.functions[self.requests[request].arrival.function].name;
        let plane = &self.planes[index];
        match plane.by_name.get(name).copied() {
            Some(number) => self.take_in(request, index, number, false),
            None if plane.synced => self.refuse(request, Reason::FunctionNotFound),
            None => {
                self.enter(request, Place::Unsynced { plane: index });
                let visit = self.requests[request].visit(request);
                self.planes[index].early.push(request);
                self.plane_tick(index, SYNC_WAIT, PlaneTimer::Unsynced(visit));
            }
        }
    }

    /// A data plane knows (more of) what there is: requests that waited for that go on.
    pub(crate) fn early_ones(&mut self, index: usize, synced: bool) {
        let plane = &mut self.planes[index];
        let functions = &self.scenario.functions;
        let of = |request: &usize| &functions[self.requests[*request].arrival.function].name;
        let (go, stay) = std::mem::take(&mut plane.early)
            .into_iter()
            .partition(|request| synced || plane.by_name.contains_key(of(request)));
        plane.early = stay;
        let go: Vec<usize> = go;
        for request in go {
            if self.requests[request].place == (Place::Unsynced { plane: index }) {
                self.request_comes(request, index);
            }
        }
    }

    pub(crate) fn still_unsynced(&mut self, index: usize, visit: Visit) {
        if self.is_at(visit) {
            self.planes[index].early.retain(|request| *request != visit.request);
            self.refuse(visit.request, Reason::NotSynced);
        }
    }

    /// Sends a request on to its function's owner, once, or queues it.
    fn take_in(&mut self, request: usize, index: usize, number: u32, forwarded: bool) {
        let plane = &self.planes[index];
        let Some(function) = plane.functions.get(&number) else { return };
        let owner = function.owner.filter(|owner| !forwarded && plane.peers.contains(owner));
        let Some(owner) = owner.map(|owner| owner.0 as usize - 1) else {
            return self.enqueue(request, index, number);
        };
        let timeout = function.request_timeout;
        self.enter(request, Place::Elsewhere);
        let visit = self.requests[request].visit(request);
        let (from, to) = (Site::Plane(index), Site::Plane(owner));
        if !self.net.both_reach(from, to) {
            return self.plane_tick(index, CONNECT_TIMEOUT, PlaneTimer::NotForwarded(visit));
        }
        self.plane_tick(index, timeout + DEADLINE_GRACE, PlaneTimer::Deadline(Visit { number: 0, ..visit }));
        let life = self.planes[owner].life;
        self.send_word(Wire { visit, from, to, life, what: Word::Forward });
    }

    pub(crate) fn serve_here(&mut self, index: usize, visit: Visit) {
        if !self.is_at(visit) || self.requests[visit.request].outcome.is_some() {
            return;
        }
        let name = &self.scenario.functions[self.requests[visit.request].arrival.function].name;
        match self.planes[index].by_name.get(name).copied() {
            Some(number) => self.enqueue(visit.request, index, number),
            None => self.refuse(visit.request, Reason::FunctionNotFound),
        }
    }

    fn enqueue(&mut self, request: usize, index: usize, number: u32) {
        let local = self.planes[index].clock.local(self.now);
        let Some(function) = self.planes[index].functions.get_mut(&number) else { return };
        let waiter = function.queue.next_waiter();
        let timeout = function.request_timeout;
        let deadline = local + timeout;
        function.waiting.insert(waiter, request);
        self.enter(request, Place::Queued { plane: index, function: number, waiter, deadline });
        let key = self.requests[request].arrival.function as u64;
        let event = QueueEvent::Arrive { waiter, deadline, key, lane: 0 };
        self.queue_step(index, number, local, event);
        // Whatever station it is at by then: void only where it is over.
        let over = Visit { request, number: 0 };
        self.plane_tick(index, timeout, PlaneTimer::Deadline(over));
    }

    /// Anything that happens to a function's queue.
    pub(crate) fn apply(&mut self, index: usize, number: u32, event: QueueEvent) {
        let local = self.planes[index].clock.local(self.now);
        self.queue_step(index, number, local, event);
    }

    /// One step of a queue, and its commands.
    pub(crate) fn queue_step(&mut self, index: usize, number: u32, local: Timestamp, event: QueueEvent) {
        let Some(function) = self.planes[index].functions.get_mut(&number) else { return };
        let mut commands = Vec::new();
        function.queue.step(local, event, &mut commands);
        for command in commands {
            self.obey(index, number, local, command);
        }
    }

    fn obey(&mut self, index: usize, number: u32, local: Timestamp, command: Command) {
        match command {
            Command::Assign { waiter, sandbox, why } => {
                let Some(request) = self.waiter(index, number, waiter, "a slot") else { return };
                let first = self.planes[index].functions.get(&number).and_then(|f| f.waiting.keys().next());
                if let Some(first) = first.filter(|first| **first < waiter) {
                    let overtaken = format!("on plane {index} waiter {waiter} gets a slot before {first}");
                    self.did.overtaken.push(overtaken);
                }
                let Some((_, node)) = self.planes[index].sandboxes.get(&sandbox.sandbox).copied() else {
                    let stray = format!("plane {index} gives a slot of {sandbox:?}, which it does not hold");
                    return self.did.strays.push(stray);
                };
                if let Some(function) = self.planes[index].functions.get_mut(&number) {
                    function.running.insert((sandbox.sandbox, request));
                }
                let deadline = match self.requests[request].place {
                    Place::Queued { deadline, .. } => deadline,
                    _ => Timestamp::MAX,
                };
                let place = Place::Slotted {
                    plane: index,
                    function: number,
                    sandbox,
                    since: local,
                    deadline,
                    waiter,
                };
                self.enter(request, place);
                self.requests[request].cold = why == Why::Cold;
                let visit = self.requests[request].visit(request);
                let (from, to) = (Site::Plane(index), Site::Node(node.0 as usize - 1));
                let life = self.planes[index].life;
                self.send_word(Wire { visit, from, to, life, what: Word::Request(sandbox.sandbox) });
            }
            Command::Refuse { waiter, why } => {
                let Some(request) = self.waiter(index, number, waiter, "a refusal") else { return };
                self.refuse(request, why.reason());
                if let Refusal::Unavailable { detail, .. } = why {
                    self.say(format_args!("  because: {detail}"));
                }
            }
            Command::Release { sandbox, slots, retired } => {
                self.function_says(index, number, FromDataPlane::Released { sandbox, slots, retired });
            }
            Command::Condemn { sandbox, why } => {
                let message = FromDataPlane::Condemned { sandbox: sandbox.sandbox, why };
                self.function_says(index, number, message);
            }
            Command::Demand => self.demand(index, number, local),
            Command::Forget { sandbox } => {
                self.planes[index].sandboxes.remove(&sandbox.sandbox);
            }
            Command::Activate => self.planes[index].activate(number),
        }
    }

    /// The request that a queue's answer is for.
    fn waiter(&mut self, index: usize, number: u32, waiter: u64, what: &str) -> Option<usize> {
        let function = self.planes[index].functions.get_mut(&number)?;
        let request = function.waiting.remove(&waiter);
        if request.is_none() {
            self.did
                .strays
                .push(format!("plane {index} has {what} for waiter {waiter}, which does not wait"));
        }
        request
    }

    fn demand(&mut self, index: usize, number: u32, local: Timestamp) {
        let plane = &mut self.planes[index];
        let Some(function) = plane.functions.get_mut(&number) else { return };
        if local.since(function.demanded) >= DEMAND_INTERVAL {
            self.tell_demand(index, number);
        } else if !std::mem::replace(&mut function.demand_due, true) {
            plane.demanding.push(number);
            if plane.demanding.len() == 1
                && let Some(stream) = plane.uplink.stream
            {
                self.plane_tick(index, DEMAND_INTERVAL, PlaneTimer::Demand(stream));
            }
        }
    }

    pub(crate) fn tell_demand(&mut self, index: usize, number: u32) {
        let plane = &mut self.planes[index];
        let local = plane.clock.local(self.now);
        let Some(function) = plane.functions.get_mut(&number) else { return };
        function.demanded = local;
        function.demand_due = false;
        let load = function.queue.load(local);
        self.function_says(index, number, FromDataPlane::Demand(load));
    }

    /// A request is at its next station.
    fn enter(&mut self, request: usize, place: Place) {
        let record = &mut self.requests[request];
        record.place = place;
        record.visit += 1;
    }

    pub(crate) fn is_at(&self, visit: Visit) -> bool {
        self.requests[visit.request].visit == visit.number
    }

    /// Answers a request that is in no slot with a problem.
    fn refuse(&mut self, request: usize, reason: Reason) {
        self.enter(request, Place::Elsewhere);
        self.end_request(request, Outcome::Refused(reason));
    }

    /// The time of a request is over.
    pub(crate) fn deadline(&mut self, index: usize, visit: Visit) {
        let request = visit.request;
        if let Place::Queued { deadline, .. } | Place::Slotted { deadline, .. } = self.requests[request].place
        {
            let local = self.planes[index].clock.local(self.now);
            if local < deadline && self.requests[request].place.plane() == Some(index) {
                // A timer may be early where its clock has leapt.
                return self.plane_tick(index, deadline.since(local), PlaneTimer::Deadline(visit));
            }
        }
        match self.requests[request].place {
            // It was sent on, and the owner does not answer.
            Place::Elsewhere if self.requests[request].outcome.is_none() => {
                self.end_request(request, Outcome::Refused(Reason::RequestTimeout));
            }
            Place::Queued { plane, function, .. } if plane == index => {
                self.apply(index, function, QueueEvent::Tick);
            }
            // Where its client has left, what follows is decided already.
            Place::Slotted { plane, function, .. }
                if plane == index && self.requests[request].outcome.is_none() =>
            {
                self.end_request(request, Outcome::Refused(Reason::RequestTimeout));
                self.give_up(index, function, request, SlotOutcome::TimedOut);
            }
            _ => {}
        }
    }

    /// The client of a request has left.
    pub(crate) fn client_left(&mut self, index: usize, request: usize) {
        match self.requests[request].place {
            Place::Unsynced { plane } if plane == index => {
                self.planes[index].early.retain(|early| *early != request);
                self.enter(request, Place::Elsewhere);
            }
            Place::Queued { plane, function, waiter, .. } if plane == index => {
                self.enter(request, Place::Elsewhere);
                if let Some(function) = self.planes[index].functions.get_mut(&function) {
                    function.waiting.remove(&waiter);
                }
                self.apply(index, function, QueueEvent::Left { waiter });
            }
            Place::Slotted { plane, function, .. } if plane == index => {
                self.give_up(index, function, request, SlotOutcome::Abandoned);
            }
            _ => {}
        }
    }

    /// Nobody waits for what is in a slot any more. Where others may be in the sandbox, it is seen first whether user
    /// code comes to its end by itself.
    fn give_up(&mut self, index: usize, number: u32, request: usize, outcome: SlotOutcome) {
        let shared = self.planes[index].functions.get(&number).is_some_and(|f: &Function| f.concurrency > 1);
        if shared {
            let visit = self.requests[request].visit(request);
            self.plane_tick(index, ABANDONED_WAIT_DEFAULT, PlaneTimer::Unproven(visit));
        } else {
            self.leave_slot(request, outcome);
        }
    }

    pub(crate) fn unproven(&mut self, index: usize, visit: Visit) {
        let Place::Slotted { plane, deadline, .. } = self.requests[visit.request].place else { return };
        if self.is_at(visit) && plane == index {
            let late = self.planes[index].clock.local(self.now) >= deadline;
            self.leave_slot(visit.request, if late { SlotOutcome::TimedOut } else { SlotOutcome::Abandoned });
        }
    }

    /// A sandbox has ended: those in it have a moment for what it said before.
    pub(crate) fn sandbox_gone(&mut self, index: usize, number: u32, sandbox: SandboxId) {
        let Some(function) = self.planes[index].functions.get(&number) else { return };
        let in_it = function.running.range((sandbox, 0)..=(sandbox, usize::MAX));
        let visits: Vec<Visit> = in_it.map(|(_, r)| self.requests[*r].visit(*r)).collect();
        for visit in visits {
            self.plane_tick(index, LAST_WORDS_WAIT, PlaneTimer::LastWords(visit));
        }
    }

    pub(crate) fn last_words(&mut self, index: usize, visit: Visit) {
        let slotted =
            matches!(self.requests[visit.request].place, Place::Slotted { plane, .. } if plane == index);
        if self.is_at(visit) && slotted {
            if self.requests[visit.request].outcome.is_none() {
                self.end_request(visit.request, Outcome::Refused(Reason::SandboxExited));
            }
            self.leave_slot(visit.request, SlotOutcome::Broken);
        }
    }

    /// A request leaves its slot.
    fn leave_slot(&mut self, request: usize, outcome: SlotOutcome) {
        let Place::Slotted { plane, function, sandbox, since, .. } = self.requests[request].place else {
            return;
        };
        self.enter(request, Place::Elsewhere);
        if let Some(function) = self.planes[plane].functions.get_mut(&function) {
            function.running.remove(&(sandbox.sandbox, request));
        }
        self.apply(plane, function, QueueEvent::Finish { sandbox, outcome, started: since });
    }

    /// A word comes to a data plane.
    pub(crate) fn plane_word(&mut self, index: usize, wire: Wire) {
        let request = wire.visit.request;
        if let Word::Forward = wire.what {
            return self.forwarded(index, wire.visit);
        }
        if !self.is_at(wire.visit) {
            return;
        }
        let Place::Slotted { plane, function, sandbox, deadline, waiter, .. } = self.requests[request].place
        else {
            return;
        };
        if plane != index {
            return;
        }
        match wire.what {
            Word::Answer => {
                // Whoever has left, or was told that time is over, waits no more: that user code ended is what counts.
                let attended = self.requests[request].outcome.is_none();
                self.end_answered(request);
                let outcome = if attended { SlotOutcome::Clean } else { SlotOutcome::Proven };
                self.leave_slot(request, outcome);
            }
            Word::HungUp => {
                let after = self.between(Duration::ZERO, LAST_WORDS_WAIT);
                self.plane_tick(index, after, PlaneTimer::LastWords(wire.visit));
            }
            Word::Refused => {
                self.leave_slot(request, SlotOutcome::Broken);
                self.requests[request].attempts += 1;
                if self.requests[request].outcome.is_some() {
                    return;
                }
                if self.requests[request].attempts >= ATTEMPTS_MAX {
                    return self.end_request(request, Outcome::Refused(Reason::ConnectionClosed));
                }
                let local = self.planes[index].clock.local(self.now);
                let Some(record) = self.planes[index].functions.get_mut(&function) else { return };
                record.waiting.insert(waiter, request);
                self.enter(request, Place::Queued { plane, function, waiter, deadline });
                let key = self.requests[request].arrival.function as u64;
                self.say(format_args!("request {request} did not reach {}", sandbox.sandbox));
                let event = QueueEvent::Requeue { waiter, deadline, key, lane: 0 };
                self.queue_step(index, function, local, event);
            }
            Word::Forward | Word::Request(_) => {}
        }
    }

    fn end_answered(&mut self, request: usize) {
        if self.requests[request].outcome.is_none() {
            self.end_request(request, Outcome::Answered);
        }
    }

    /// Another data plane sent a request on to this one.
    fn forwarded(&mut self, index: usize, visit: Visit) {
        if !self.is_at(visit) || self.requests[visit.request].outcome.is_some() {
            return;
        }
        let name = &self.scenario.functions[self.requests[visit.request].arrival.function].name;
        match self.planes[index].by_name.get(name).copied() {
            Some(number) => self.enqueue(visit.request, index, number),
            None if self.planes[index].synced => self.refuse(visit.request, Reason::FunctionNotFound),
            None => self.refuse(visit.request, Reason::NotSynced),
        }
    }

    /// A data plane has ended: its clients' connections are cut, and those of who forwarded to it.
    pub(crate) fn cut_requests(&mut self, index: usize, life: u64) {
        for request in 0..self.requests.len() {
            let record = &self.requests[request];
            let at_entry = record.entry == (index, life);
            let here = record.place.plane() == Some(index);
            if here {
                self.enter(request, Place::Elsewhere);
                let outcome = match at_entry {
                    true => Outcome::Cut,
                    false => Outcome::Refused(Reason::ConnectionClosed),
                };
                if self.requests[request].outcome.is_none() {
                    self.end_request(request, outcome);
                }
            } else if at_entry && record.outcome.is_none() {
                // It was sent on: the owner finds its client gone.
                self.end_request(request, Outcome::Cut);
                if let Some(owner) = self.requests[request].place.plane() {
                    let at = self.now + self.delay(Site::Plane(index), Site::Plane(owner));
                    let life = self.planes[owner].life;
                    self.queue.schedule(at, Event::Plane(owner, life, PlaneTimer::Left(request)));
                }
            }
        }
    }
}
