//! One function: its queue under a short lock, and those that wait for it.

mod split;
mod step;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fanfare_dispatch::{Event, FunctionQueue, Handle, Outcome, Refusal, Why};
use fanfare_types::{
    Balance, DataPlaneHello, DataPlaneId, FunctionId, FunctionLoad, FunctionName, FunctionRoute, Reason,
    SandboxId, Stages, Timestamp,
};
use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};
use smallvec::SmallVec;
use tokio::sync::oneshot;

pub(crate) use split::Split;

use split::Splitting;

use crate::clock;
use crate::outlet::Outlet;
use crate::shared::Shared;
use crate::stats::{FunctionStats, count};
use crate::upstream::Upstream;

/// No other data plane owns the function.
const OWNED_HERE: u64 = u64::MAX;

/// The first change of a function's demand is told at once, further ones at most this often: a surge of thousands
/// is two messages, and a queue that flickers is not one per request.
pub(crate) const DEMAND_INTERVAL: Duration = Duration::from_millis(1);
/// Room kept for the next surge when nobody waits, in requests.
const WAITING_KEPT: usize = 256;

/// A function that clients may call.
pub(crate) struct Function {
    pub(crate) id: FunctionId,
    pub(crate) name: FunctionName,
    owner: AtomicU64,
    splitting: Splitting,
    state: Mutex<State>,
}

/// What is behind the lock: little until the function's first request, for most wait for theirs.
struct State {
    route: FunctionRoute,
    seed: u64,
    outlet: Arc<Outlet>,
    /// There from the first thing that happened to it.
    inner: Option<Box<Inner>>,
}

struct Inner {
    queue: FunctionQueue,
    /// By the place of the handle.
    upstreams: Vec<Option<Arc<Upstream>>>,
    waiting: HashMap<u64, oneshot::Sender<Answer>>,
    request_timeout: Duration,
    idle_timeout: Option<Duration>,
    concurrency: u32,
    balance: Balance,
    outlet: Arc<Outlet>,
    /// When the demand was last told.
    demanded: Timestamp,
    /// It has changed since, and will be told.
    demand_due: bool,
    counters: Counters,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) arrivals: u64,
    pub(crate) warm: u64,
    pub(crate) handed_over: u64,
    pub(crate) moved: u64,
    pub(crate) cold: u64,
    pub(crate) answered: u64,
    pub(crate) cut: u64,
    pub(crate) condemned: u64,
    pub(crate) problems: Vec<(Reason, u64)>,
}

/// What a request gets in the end.
#[derive(Debug)]
pub(crate) enum Answer {
    Slot(Slot),
    Refused(Refusal),
}

/// A slot that a request was given; [`Function::finish`] takes it back.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) upstream: Arc<Upstream>,
    pub(crate) handle: Handle,
    pub(crate) why: Why,
    pub(crate) stages: Option<Box<Stages>>,
    pub(crate) at: Timestamp,
}

/// What a request gets at once.
pub(crate) enum Taken {
    Now(Answer),
    Later(oneshot::Receiver<Answer>),
}

/// A request's place in the order, and until when it may wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) waiter: u64,
    pub(crate) deadline: Timestamp,
    pub(crate) key: u64,
    /// The core that serves it.
    pub(crate) lane: u32,
    /// Sandboxes have several slots: there may be others' requests beside it.
    pub(crate) shared: bool,
    /// The longest that no byte of it may move in a sandbox, if that is limited.
    pub(crate) idle: Option<Duration>,
    /// Requests that waited, and that were in sandboxes, as it arrived.
    pub(crate) ahead: u32,
    pub(crate) in_flight: u32,
    /// How slots are chosen.
    pub(crate) balance: Balance,
}

/// What a step is about, beyond its event.
#[derive(Default)]
struct About<'a> {
    /// The request that the caller handles itself.
    own: Option<u64>,
    /// For a grant: the sandbox, and how it came up if it has just been started.
    granted: Option<(&'a Arc<Upstream>, Option<&'a Stages>)>,
}

/// Answers to send once the lock is released.
#[derive(Default)]
struct Effects {
    own: Option<Answer>,
    wakes: SmallVec<[(oneshot::Sender<Answer>, Answer); 1]>,
}

impl Function {
    pub(crate) fn new(route: &FunctionRoute, seed: u64, outlet: Arc<Outlet>) -> Self {
        Function {
            id: route.id,
            name: route.name.clone(),
            owner: AtomicU64::new(OWNED_HERE),
            splitting: Splitting::default(),
            state: Mutex::new(State { route: route.clone(), seed, outlet, inner: None }),
        }
    }

    fn inner(&self) -> MappedMutexGuard<'_, Inner> {
        MutexGuard::map(self.state.lock(), |state| {
            let State { route, seed, outlet, inner } = state;
            &mut **inner.get_or_insert_with(|| Box::new(Inner::new(route, *seed, outlet.clone())))
        })
    }

    /// The data plane that owns it, if it is another one.
    pub(crate) fn owner(&self) -> Option<DataPlaneId> {
        u32::try_from(self.owner.load(Ordering::Relaxed)).ok().map(DataPlaneId)
    }

    pub(crate) fn set_owner(&self, owner: Option<DataPlaneId>) {
        self.owner.store(owner.map_or(OWNED_HERE, |id| u64::from(id.0)), Ordering::Relaxed);
    }

    /// How long a request may take.
    pub(crate) fn longest_request(&self) -> Duration {
        self.state.lock().route.request_timeout
    }

    /// A request arrived at `now`: a slot, a refusal, or a place in the queue. The deadline is the function's timeout
    /// from `accepted` on. Of one whose body is not here to its end it says whose it is.
    pub(crate) fn arrive(
        self: &Arc<Self>,
        shared: &Shared,
        accepted: Timestamp,
        (key, lane): (u64, u32),
        uploader: Option<u128>,
    ) -> (Place, Taken) {
        let mut inner = self.inner();
        inner.counters.arrivals += 1;
        let deadline = accepted + inner.request_timeout;
        let shared_sandbox = inner.concurrency > 1;
        let place = Place {
            waiter: inner.queue.next_waiter(),
            deadline,
            key,
            lane,
            shared: shared_sandbox,
            idle: inner.idle_timeout,
            ahead: inner.queue.queued(),
            in_flight: inner.queue.in_flight(),
            balance: inner.balance,
        };
        let event = Event::Arrive { waiter: place.waiter, deadline, key, lane };
        let taken = self.take(shared, inner, accepted, place, event, uploader);
        (place, taken)
    }

    /// A request that never reached user code takes its place again.
    pub(crate) fn requeue(self: &Arc<Self>, shared: &Shared, place: Place) -> Taken {
        let Place { waiter, deadline, key, lane, .. } = place;
        let event = Event::Requeue { waiter, deadline, key, lane };
        self.take(shared, self.inner(), clock::now(), place, event, None)
    }

    fn take(
        self: &Arc<Self>,
        shared: &Shared,
        mut inner: MappedMutexGuard<'_, Inner>,
        now: Timestamp,
        place: Place,
        event: Event,
        uploader: Option<u128>,
    ) -> Taken {
        let mut effects = Effects::default();
        let about = About { own: Some(place.waiter), granted: None };
        self.step(shared, &mut inner, now, event, &about, &mut effects);
        if let Some(client) = uploader.filter(|_| effects.own.is_none()) {
            let event = Event::Uploading { waiter: place.waiter, client };
            self.step(shared, &mut inner, now, event, &about, &mut effects);
        }
        let taken = match effects.own.take() {
            Some(answer) => Taken::Now(answer),
            None => {
                let (tell, answer) = oneshot::channel();
                inner.waiting.insert(place.waiter, tell);
                Taken::Later(answer)
            }
        };
        drop(inner);
        self.deliver(shared, effects);
        taken
    }

    /// A request left its slot.
    pub(crate) fn finish(self: &Arc<Self>, shared: &Shared, slot: &Slot, outcome: Outcome, now: Timestamp) {
        let event = Event::Finish { sandbox: slot.handle, outcome, started: slot.at };
        let mut inner = self.inner();
        match outcome {
            Outcome::Clean | Outcome::KeepAliveBroken => inner.counters.answered += 1,
            Outcome::TimedOut | Outcome::Abandoned | Outcome::Broken | Outcome::Proven => {
                inner.counters.cut += 1;
            }
            Outcome::NeverSent => {}
        }
        self.step_alone(shared, inner, now, event);
    }

    /// Anything else that happens.
    pub(crate) fn apply(self: &Arc<Self>, shared: &Shared, event: Event) {
        self.step_alone(shared, self.inner(), clock::now(), event);
    }

    /// A request that waited has left.
    pub(crate) fn leave(self: &Arc<Self>, shared: &Shared, waiter: u64) {
        let mut inner = self.inner();
        inner.waiting.remove(&waiter);
        self.step_alone(shared, inner, clock::now(), Event::Left { waiter });
    }

    /// Slots of a sandbox were granted; with `stages` when it has just been started.
    pub(crate) fn grant(
        self: &Arc<Self>,
        shared: &Shared,
        upstream: &Arc<Upstream>,
        slots: u32,
        stages: Option<&Stages>,
    ) {
        let (sandbox, revision) = (upstream.sandbox, upstream.revision);
        let event = Event::Grant { sandbox, revision, slots, fresh: stages.is_some() };
        let mut effects = Effects::default();
        let mut inner = self.inner();
        let about = About { own: None, granted: Some((upstream, stages)) };
        self.step(shared, &mut inner, clock::now(), event, &about, &mut effects);
        drop(inner);
        self.deliver(shared, effects);
    }

    /// New settings.
    pub(crate) fn update(self: &Arc<Self>, shared: &Shared, route: &FunctionRoute) {
        let mut state = self.state.lock();
        state.route = route.clone();
        let Ok(mut inner) = MutexGuard::try_map(state, |state| state.inner.as_deref_mut()) else { return };
        inner.request_timeout = route.request_timeout;
        inner.idle_timeout = route.idle_timeout;
        inner.concurrency = route.concurrency;
        inner.balance = route.balance;
        self.step_alone(shared, inner, clock::now(), Event::Route(route.clone()));
    }

    /// A new stream to the control plane begins: adds what is held to its hello and speaks through its outlet from
    /// here on.
    pub(crate) fn resync(
        self: &Arc<Self>,
        shared: &Shared,
        outlet: &Arc<Outlet>,
        hello: &mut DataPlaneHello,
    ) {
        let mut state = self.state.lock();
        state.outlet = outlet.clone();
        let Ok(mut inner) = MutexGuard::try_map(state, |state| state.inner.as_deref_mut()) else { return };
        inner.outlet = outlet.clone();
        hello.leases.extend(inner.queue.leases());
        hello.condemned.extend(inner.queue.condemned());
        self.step_alone(shared, inner, clock::now(), Event::Resync);
    }

    /// Tells the control plane the demand as it is by now.
    pub(crate) fn demand(&self) {
        self.inner().demand(clock::now());
    }

    pub(crate) fn request_timeout(&self) -> Duration {
        self.state.lock().route.request_timeout
    }

    pub(crate) fn report(&self, now: Timestamp) -> Option<FunctionLoad> {
        self.state.lock().inner.as_mut()?.queue.report(now)
    }

    /// The sandbox's upstream, while slots of it are held.
    pub(crate) fn upstream(&self, sandbox: SandboxId) -> Option<Arc<Upstream>> {
        self.state.lock().inner.as_ref()?.upstream(sandbox).cloned()
    }

    /// A request was answered by the platform.
    pub(crate) fn count_problem(&self, reason: Reason) {
        count(&mut self.inner().counters.problems, reason);
    }

    pub(crate) fn stats(&self) -> FunctionStats {
        let stats = FunctionStats::new(self.id, self.name.clone());
        match self.state.lock().inner.as_deref() {
            Some(inner) => inner.stats(stats),
            None => stats,
        }
    }

    /// Nothing is held, waits or is in a sandbox.
    pub(crate) fn is_idle(&self) -> bool {
        self.state.lock().inner.as_ref().is_none_or(|inner| inner.queue.is_idle())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use fanfare_types::NodeId;

    use crate::endpoint::Endpoint;
    use crate::options::Options;

    #[test]
    fn a_slot_for_a_request_that_has_just_left_goes_to_the_next() {
        let shared = Shared::new(Options::default(), None);
        let route = FunctionRoute {
            id: FunctionId(1),
            revision: 1,
            name: FunctionName::new("f").unwrap(),
            concurrency: 1,
            idle_timeout: None,
            request_timeout: Duration::from_secs(60),
            queue_limit: 9,
            balance: Balance::Knative,
            reach: Default::default(),
        };
        let function = Arc::new(Function::new(&route, 1, Arc::new(Outlet::nowhere())));
        let wait = || match function.arrive(&shared, clock::now(), (0, 0), None).1 {
            Taken::Later(answer) => answer,
            Taken::Now(answer) => panic!("{answer:?}"),
        };
        // Its end of the channel is gone, and its word about it is still on the way.
        drop((wait(), wait()));
        let mut third = wait();
        let endpoint = Endpoint::Unix("/s".into());
        let upstream = Arc::new(Upstream::new(SandboxId(1), NodeId(1), 1, endpoint, Default::default()));
        function.grant(&shared, &upstream, 1, None);
        let Ok(Answer::Slot(slot)) = third.try_recv() else { panic!("the slot is lost") };
        function.finish(&shared, &slot, Outcome::Clean, clock::now());
        let stats = function.stats();
        assert_eq!((stats.in_flight, stats.queued, stats.answered, stats.condemned), (0, 0, 1, 0));
    }

    #[test]
    fn a_function_that_was_never_called_is_small() {
        let bytes = size_of::<Function>();
        // With the counts of its `Arc`, of the allocator's class of 192.
        assert!(bytes <= 176, "{bytes} bytes");
    }
}
