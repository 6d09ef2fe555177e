//! Users: they call functions, change them, and try again until a leader has taken a change.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fanfare_engine::Event as EngineEvent;
use fanfare_policy::RngExt;
use fanfare_types::{Epoch, FunctionId, FunctionSpec, RevisionId, Timestamp};

use crate::event::{Event, PlaneTimer};
use crate::net::Site;
use crate::report::Outcome;
use crate::request::Request;
use crate::scenario::{Change, PlannedChange, Scenario};
use crate::world::World;

/// Between two attempts to have a change taken.
const PATIENCE: Duration = Duration::from_millis(150);

/// What users want, and what they have been told.
#[derive(Debug)]
pub(crate) struct User {
    /// In order; the first ones register the scenario's functions.
    changes: Vec<PlannedChange>,
    /// The last change before each that concerns the same function.
    before: Vec<Option<usize>>,
    done: Vec<bool>,
    /// The id under which each function of the scenario was registered last.
    pub(crate) functions: Vec<Option<FunctionId>>,
    /// Revisions that somebody waits to hear about, and of which leader.
    pub(crate) asked: BTreeMap<RevisionId, (Epoch, Timestamp)>,
}

impl User {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let register = |(index, spec): (usize, &FunctionSpec)| PlannedChange {
            at: Timestamp::from_millis(5),
            function: index,
            change: Change::Register(Box::new(spec.clone())),
        };
        let mut changes: Vec<PlannedChange> = scenario.functions.iter().enumerate().map(register).collect();
        changes.extend(scenario.changes.iter().cloned());
        let mut latest = vec![None; scenario.functions.len()];
        let in_order = changes.iter().enumerate();
        let before = in_order.map(|(index, change)| latest[change.function].replace(index)).collect();
        let done = vec![false; changes.len()];
        let functions = vec![None; scenario.functions.len()];
        User { changes, before, done, functions, asked: BTreeMap::new() }
    }

    pub(crate) fn changes(&self) -> impl Iterator<Item = Timestamp> + '_ {
        self.changes.iter().map(|change| change.at)
    }

    /// A change that no leader has taken yet.
    pub(crate) fn waiting(&self) -> Option<&PlannedChange> {
        self.changes.iter().zip(&self.done).find(|(_, done)| !**done).map(|(change, _)| change)
    }
}

impl World<'_> {
    /// The next request comes, at a data plane that takes connections.
    pub(crate) fn arrival(&mut self) {
        let request = self.requests.len();
        let arrival = self.scenario.arrivals[request];
        if let Some(next) = self.scenario.arrivals.get(request + 1) {
            self.queue.schedule(next.at.max(self.now), Event::Arrival);
        }
        let up: Vec<usize> =
            self.planes.iter().enumerate().filter(|(_, p)| p.accepts()).map(|(index, _)| index).collect();
        let entry = match up.len() {
            0 => self.rng.random_range(0..self.planes.len()),
            1 => up[0],
            n => up[self.rng.random_range(0..n)],
        };
        self.requests.push(Request::new(arrival, (entry, self.planes[entry].life)));
        self.say(format_args!("request {request} for function {} comes to plane {entry}", arrival.function));
        if up.is_empty() {
            // Nobody accepts its connection.
            self.end_request(request, Outcome::Cut);
            return;
        }
        self.request_comes(request, entry);
        if let Some(patience) = arrival.leaves_after {
            self.queue.schedule(self.now + patience, Event::Leave(request));
        }
    }

    /// The client of a request leaves, unless it has its answer.
    pub(crate) fn leave(&mut self, request: usize) {
        if self.requests[request].outcome.is_some() {
            return;
        }
        self.say(format_args!("the client of request {request} leaves"));
        self.end_request(request, Outcome::Left);
        if let Some(plane) = self.requests[request].place.plane() {
            let delay = self.delay(Site::Plane(plane), Site::Plane(plane));
            let life = self.planes[plane].life;
            self.queue.schedule(self.now + delay, Event::Plane(plane, life, PlaneTimer::Left(request)));
        }
    }

    /// The client of a request has what it will ever get.
    pub(crate) fn end_request(&mut self, request: usize, outcome: Outcome) {
        let (now, record) = (self.now, &mut self.requests[request]);
        if record.outcome.is_some() && matches!(outcome, Outcome::Left | Outcome::Cut) {
            return;
        }
        if matches!(outcome, Outcome::Answered | Outcome::Refused(_)) {
            if record.outcome == Some(Outcome::Left) || record.outcome == Some(Outcome::Cut) {
                // Nobody is there to have it.
                return;
            }
            record.answers += 1;
            self.did.requests.push(request);
        }
        record.outcome = Some(outcome);
        record.ended = Some(now);
        self.say(format_args!("request {request} ends: {outcome:?}"));
    }

    /// A user tries to make a change.
    pub(crate) fn change(&mut self, index: usize) {
        if self.users.done[index] {
            return;
        }
        // One user per function: what was wanted before comes before, and what came before that was done before it.
        let waits = self.users.before[index].is_some_and(|before| !self.users.done[before]);
        if !waits && self.try_change(index) {
            self.users.done[index] = true;
        } else {
            self.queue.schedule(self.now + PATIENCE, Event::Change(index));
        }
    }

    /// Asks whoever believes to lead, any of those.
    fn try_change(&mut self, index: usize) -> bool {
        let leads = |(index, c): (usize, &crate::control::Control)| c.term.as_ref().map(|_| index);
        let leaders: Vec<usize> = self.controls.iter().enumerate().filter_map(leads).collect();
        if leaders.is_empty() {
            return false;
        }
        let leader = leaders[self.rng.random_range(0..leaders.len())];
        let site = Site::Control(leader);
        if self.stalled.get(&site).is_some_and(|until| self.now < *until)
            || !self.net.both_reach(site, Site::Store)
        {
            return false;
        }
        let Some(epoch) = self.controls[leader].term.as_ref().map(|term| term.epoch) else { return false };
        if epoch != self.store.epoch {
            // Its write is refused, and so it learns that it was deposed.
            self.depose(leader);
            return false;
        }
        let PlannedChange { function, change, .. } = self.users.changes[index].clone();
        self.say(format_args!("control {leader} takes a change of function {function}: {}", name(&change)));
        let known = self.users.functions[function];
        let event = match (change, known) {
            (Change::Register(spec), None) => {
                let spec: Arc<FunctionSpec> = Arc::from(*spec);
                let id = self.store.register(spec.clone());
                self.users.functions[function] = Some(id.function);
                EngineEvent::FunctionSet { id, spec }
            }
            (Change::Update(spec), Some(known)) => {
                let spec: Arc<FunctionSpec> = Arc::from(*spec);
                let Some(id) = self.store.update(known, spec.clone()) else { return true };
                EngineEvent::FunctionSet { id, spec }
            }
            (Change::Remove, Some(known)) => {
                self.store.functions.remove(&known);
                self.users.functions[function] = None;
                EngineEvent::FunctionRemoved(known)
            }
            (Change::Prepare, Some(known)) => {
                let Some((id, spec)) = self.store.functions.get(&known).cloned() else { return true };
                self.users.asked.insert(id, (epoch, self.now));
                EngineEvent::PrepareRequested { id, spec }
            }
            // What it is for is not there, or is there already.
            _ => return true,
        };
        self.control_event(leader, event);
        true
    }
}

fn name(change: &Change) -> &'static str {
    match change {
        Change::Update(_) => "update",
        Change::Prepare => "prepare",
        Change::Remove => "remove",
        Change::Register(_) => "register",
    }
}
