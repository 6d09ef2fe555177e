//! The stream to the control plane.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fanfare_dispatch::Event;
use fanfare_link::{Dialer, EpochGate, Link, worth_saying};
use fanfare_types::limits::{ENTRUSTED_MAX, FAILURES_PER_REPORT_MAX, HEARTBEAT_INTERVAL, REPORT_INTERVAL};
use fanfare_types::{
    Condemned, DataPlaneHello, EntrustRefusal, EntrustedCall, FromDataPlane, FunctionId, FunctionRoute,
    Protocol, Reach, Reason, ToDataPlane,
};
use tokio::sync::Semaphore;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::asynchronous::entrust::entrust;
use crate::clock;
use crate::endpoint::Endpoint;
use crate::function::{DEMAND_INTERVAL, Function, Split};
use crate::outlet::Outlet;
use crate::request_id::random_u64;
use crate::shared::Shared;
use crate::upstream::Upstream;

const BACKOFF_MIN: Duration = Duration::from_millis(10);
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// How long the control plane may take to answer the dialler.
const DIAL_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the last messages may take to leave when the data plane has drained.
const FINISH_TIMEOUT: Duration = Duration::from_secs(1);

/// Keeps a stream to the control plane up, and its side of the state.
pub(crate) struct Control {
    shared: Arc<Shared>,
    dialer: Dialer,
    gate: EpochGate,
    address: Arc<str>,
    incarnation: u64,
    known: HashMap<FunctionId, Known>,
    /// Removed functions that still hold something.
    leaving: Vec<Arc<Function>>,
    /// Counts the streams.
    stream: u64,
    outlet: Arc<Outlet>,
    /// Places for calls that are being accepted.
    entrusting: Arc<Semaphore>,
    /// It was said that there is no stream: that there is one again is said as loudly.
    complained: bool,
    /// It was said that the control plane ends streams at once.
    shut_out: bool,
}

struct Known {
    function: Arc<Function>,
    /// The last stream that named it.
    stream: u64,
}

/// When to stop.
#[derive(Clone)]
pub(crate) struct Ends {
    /// Give back what is not needed.
    pub(crate) drain: CancellationToken,
    /// The cores have finished: say the last words and stop.
    pub(crate) drained: CancellationToken,
}

impl Control {
    pub(crate) fn new(shared: Arc<Shared>, dialer: Dialer, address: Arc<str>) -> Self {
        Control {
            shared,
            dialer,
            gate: EpochGate::default(),
            address,
            incarnation: random_u64(),
            known: HashMap::new(),
            leaving: Vec::new(),
            stream: 0,
            outlet: Arc::new(Outlet::nowhere()),
            entrusting: Arc::new(Semaphore::new(ENTRUSTED_MAX)),
            complained: false,
            shut_out: false,
        }
    }

    /// Runs until the cores have finished. Warm traffic does not need a stream; while there is none, the next is
    /// tried for, at growing distances.
    pub(crate) async fn run(mut self, ends: Ends) {
        let mut backoff = BACKOFF_MIN;
        let mut attempts = 0;
        while !ends.drained.is_cancelled() {
            let dialled = tokio::select! {
                dialled = timeout(DIAL_TIMEOUT, self.dialer.data_plane(self.gate.clone())) => dialled,
                () = ends.drained.cancelled() => return,
            };
            match dialled {
                Ok(Ok(link)) => {
                    if self.session(link, &ends).await {
                        (backoff, attempts) = (BACKOFF_MIN, 0);
                    }
                    self.shared.connected.store(false, Ordering::Relaxed);
                }
                Ok(Err(error)) => {
                    self.complained = true;
                    if worth_saying(attempts) {
                        tracing::warn!(%error, attempts, "no stream to the control plane; trying on");
                    }
                    attempts = attempts.saturating_add(1);
                }
                Err(_) => {
                    self.complained = true;
                    if worth_saying(attempts) {
                        tracing::warn!(attempts, "the control plane does not answer; trying on");
                    }
                    attempts = attempts.saturating_add(1);
                }
            }
            let draining = self.shared.draining.load(Ordering::Relaxed);
            tokio::select! {
                () = ends.drained.cancelled() => {}
                () = ends.drain.cancelled(), if !draining => self.drain(),
                () = tokio::time::sleep(backoff) => backoff = (backoff * 2).min(BACKOFF_MAX),
            }
        }
    }

    /// One stream, until it breaks or the cores have finished. Whether the control plane said anything on it.
    async fn session(&mut self, mut link: Link<FromDataPlane, ToDataPlane>, ends: &Ends) -> bool {
        self.begin(&link);
        let mut reports = ticks(REPORT_INTERVAL);
        let mut heartbeats = ticks(HEARTBEAT_INTERVAL);
        let mut beaten = Instant::now();
        let mut draining = self.shared.draining.load(Ordering::Relaxed);
        let mut heard = false;
        // Demand that came while there was no stream is in the hello's wake.
        let mut demand_at = Some(Instant::now());
        // The first failure is told at once, further ones once in a report interval.
        let (mut failures_at, mut failures_not_before) = (Some(Instant::now()), Instant::now());
        loop {
            tokio::select! {
                biased;
                _ = heartbeats.tick() => beaten = self.beat(),
                batch = link.rx.recv() => {
                    let Some(batch) = batch else {
                        self.broken(heard);
                        return heard;
                    };
                    heard = true;
                    self.shut_out = false;
                    self.shared.connected.store(true, Ordering::Relaxed);
                    for message in batch.messages {
                        self.apply(message);
                        // A sync of a million functions takes longer than silence is borne.
                        if beaten.elapsed() >= HEARTBEAT_INTERVAL {
                            beaten = self.beat();
                        }
                    }
                }
                () = ends.drain.cancelled(), if !draining => {
                    draining = true;
                    self.drain();
                }
                () = ends.drained.cancelled() => {
                    self.outlet.send(FromDataPlane::Left);
                    // Whatever is not through by then is found out by the control plane: the stream ends.
                    let _ = timeout(FINISH_TIMEOUT, link.finish()).await;
                    return heard;
                }
                () = self.shared.directory.demand.notified(), if demand_at.is_none() => {
                    demand_at = Some(Instant::now() + DEMAND_INTERVAL);
                }
                () = sleep_until(demand_at.unwrap_or_else(Instant::now)), if demand_at.is_some() => {
                    demand_at = None;
                    self.shared.directory.take_demanding().iter().for_each(|function| function.demand());
                }
                () = self.shared.failures.first.notified(), if failures_at.is_none() => {
                    failures_at = Some(Instant::now().max(failures_not_before));
                }
                () = sleep_until(failures_at.unwrap_or_else(Instant::now)), if failures_at.is_some() => {
                    failures_at = self.tell_failures();
                    failures_not_before = Instant::now() + REPORT_INTERVAL;
                }
                _ = reports.tick() => self.report(),
            }
        }
    }

    /// Says so, and what it may mean. That it was shut out it says once.
    fn broken(&mut self, heard: bool) {
        self.complained = true;
        if heard {
            tracing::warn!("the stream to the control plane is broken");
        } else if !std::mem::replace(&mut self.shut_out, true) {
            tracing::warn!(
                name = %self.shared.options.name,
                "the control plane ends every stream before it says anything, as it does where a living data plane has \
                 this name. Give one of them another with --name; the control plane's log says more"
            );
        }
    }

    fn beat(&self) -> Instant {
        self.outlet.send(FromDataPlane::Heartbeat);
        Instant::now()
    }

    /// States everything held.
    fn begin(&mut self, link: &Link<FromDataPlane, ToDataPlane>) {
        self.stream += 1;
        self.outlet = Arc::new(Outlet::before_hello(link.tx.clone()));
        let mut hello = DataPlaneHello {
            name: self.shared.options.name.clone(),
            address: self.address.clone(),
            incarnation: self.incarnation,
            epoch_seen: self.gate.newest(),
            leases: Vec::new(),
            condemned: Vec::new(),
        };
        for function in self.known.values().map(|known| &known.function).chain(&self.leaving) {
            function.resync(&self.shared, &self.outlet, &mut hello);
        }
        self.outlet.open(FromDataPlane::Hello(hello));
        if self.shared.draining.load(Ordering::Relaxed) {
            self.outlet.send(FromDataPlane::Draining);
        }
    }

    fn apply(&mut self, message: ToDataPlane) {
        match message {
            ToDataPlane::Welcome { you, epoch } => {
                match std::mem::take(&mut self.complained) {
                    true => tracing::warn!(%you, %epoch, "connected to the control plane again"),
                    false => tracing::info!(%you, %epoch, "connected to the control plane"),
                }
                self.shared.set_me(you);
                self.shared.webhooks.begin();
            }
            ToDataPlane::Functions(routes) => routes.iter().for_each(|route| self.function(route)),
            ToDataPlane::FunctionRemoved(id) => self.removed(id),
            ToDataPlane::Synced => self.synced(),
            ToDataPlane::Mark(number) => self.outlet.send(FromDataPlane::Reached(number)),
            ToDataPlane::Peers(peers) => self.shared.set_peers(peers),
            ToDataPlane::Owners(owners) => {
                for (id, owner) in owners {
                    if let Some(known) = self.known.get(&id) {
                        known.function.set_owner(owner);
                    }
                }
            }
            ToDataPlane::Grant { function, revision, sandbox, node, endpoint, slots, stages } => {
                let (protocol, address) = Protocol::of(&endpoint);
                match Endpoint::parse(address) {
                    Some(address) => {
                        let upstream = Upstream::new(sandbox, node, revision, address, protocol);
                        let upstream = Arc::new(upstream);
                        self.grant(function, &upstream, slots, stages.as_ref());
                    }
                    None => {
                        tracing::error!(%sandbox, endpoint = &*endpoint, "not an endpoint");
                        self.outlet.send(FromDataPlane::Condemned { sandbox, why: Condemned::Broken });
                        self.outlet.send(FromDataPlane::Released { sandbox, slots, retired: false });
                    }
                }
            }
            ToDataPlane::Explain { number, request_id } => {
                let name = |id| self.known.get(&id).map(|known| known.function.name.as_str().into());
                let records = self.shared.records.find(&request_id, clock::now(), name);
                let kept = self.shared.records.reach(clock::now());
                self.outlet.send(FromDataPlane::Explained { number, records, kept });
            }
            ToDataPlane::Entrust { number, call } => self.entrust(number, call),
            ToDataPlane::Webhook(route) => self.shared.webhooks.set(route),
            ToDataPlane::WebhookRemoved(name) => self.shared.webhooks.remove(&name),
            ToDataPlane::WebhooksSynced => self.shared.webhooks.synced(),
            ToDataPlane::Revoke { sandbox, slots } => {
                if let Some(function) = self.shared.directory.sandbox_of(sandbox) {
                    function.apply(&self.shared, Event::Revoke { sandbox, slots });
                }
            }
            ToDataPlane::Yield { function, slots } => self.tell(function, Event::Yield { slots }),
            ToDataPlane::Retire { function, sandboxes } => self.tell(function, Event::Retire { sandboxes }),
            ToDataPlane::Gone { sandbox, cause } => {
                if let Some(function) = self.shared.directory.sandbox_of(sandbox) {
                    // The queue first: whoever learns the cause must not condemn what is gone already.
                    let upstream = function.upstream(sandbox);
                    function.apply(&self.shared, Event::Gone { sandbox });
                    if let Some(upstream) = upstream {
                        upstream.end(cause);
                    }
                }
            }
            ToDataPlane::Unavailable { function, reason, detail, log_tail } => {
                self.tell(function, Event::Unavailable { reason, detail, log_tail });
            }
        }
    }

    /// Has a call accepted, and says what became of that on the stream on which it was asked for.
    fn entrust(&self, number: u64, call: Arc<EntrustedCall>) {
        let outlet = self.outlet.clone();
        let Ok(place) = self.entrusting.clone().try_acquire_owned() else {
            let detail =
                format!("{ENTRUSTED_MAX} calls of the control plane are being accepted; no more may be");
            let refusal = EntrustRefusal { reason: Reason::DataPlaneFull, detail: detail.into() };
            return outlet.send(FromDataPlane::Entrusted { number, outcome: Err(refusal) });
        };
        let shared = self.shared.clone();
        tokio::spawn(async move {
            let outcome = entrust(&shared, &call).await;
            // Only now: whoever is told may have the next one accepted.
            drop(place);
            outlet
                .send(FromDataPlane::Entrusted { number, outcome: outcome.map(|id| id.to_string().into()) });
        });
    }

    fn tell(&self, function: FunctionId, event: Event) {
        if let Some(known) = self.known.get(&function) {
            known.function.apply(&self.shared, event);
        }
    }

    fn function(&mut self, route: &FunctionRoute) {
        let split = self.split(route);
        if let Some(known) = self.known.get_mut(&route.id) {
            known.stream = self.stream;
            known.function.update(&self.shared, route);
            known.function.set_split(split);
            return;
        }
        let function = Arc::new(Function::new(route, random_u64(), self.outlet.clone()));
        if self.shared.draining.load(Ordering::Relaxed) {
            function.apply(&self.shared, Event::Drain);
        }
        function.set_split(split);
        if route.reach == Reach::Unit {
            self.shared.directory.insert_unit(function.clone());
        } else {
            self.shared.directory.insert(function.clone());
        }
        self.known.insert(route.id, Known { function, stream: self.stream });
    }

    /// Where the function's requests go. Units are told of before the function that names them.
    fn split(&self, route: &FunctionRoute) -> Option<Split> {
        let Reach::Shared(traffic) = &route.reach else { return None };
        let unit = |id: FunctionId| match self.known.get(&id) {
            Some(known) if id != route.id => Some(known.function.clone()),
            Some(_) => None,
            None => {
                if id != route.id {
                    tracing::error!(function = %route.name, unit = %id, "not a unit that is known here");
                }
                None
            }
        };
        let shares = traffic.shares.iter().map(|share| (unit(share.unit), share.percent)).collect();
        let tags = traffic.tags.iter().map(|(tag, id)| (tag.clone(), unit(*id))).collect();
        Some(Split { shares, tags })
    }

    fn removed(&mut self, id: FunctionId) {
        if let Some(known) = self.known.remove(&id) {
            self.shared.directory.remove(&known.function);
            // What it names would keep it, and it what names it.
            known.function.set_split(None);
            known.function.apply(&self.shared, Event::Removed);
            if !known.function.is_idle() {
                self.leaving.push(known.function);
            }
        }
    }

    /// What this stream did not name does not exist.
    fn synced(&mut self) {
        let stream = self.stream;
        let unnamed = self.known.iter().filter(|(_, known)| known.stream != stream).map(|(id, _)| *id);
        for id in unnamed.collect::<Vec<_>>() {
            self.removed(id);
        }
        tracing::info!(functions = self.known.len(), "synced with the control plane");
        self.shared.synced.send_replace(true);
    }

    fn grant(
        &self,
        function: FunctionId,
        upstream: &Arc<Upstream>,
        slots: u32,
        stages: Option<&fanfare_types::Stages>,
    ) {
        let sandbox = upstream.sandbox;
        let Some(known) = self.known.get(&function) else {
            self.outlet.send(FromDataPlane::Released { sandbox, slots, retired: true });
            return;
        };
        // First, so that a grant that is given back at once takes the entry out again.
        self.shared.directory.add_sandbox(sandbox, &known.function);
        known.function.grant(&self.shared, upstream, slots, stages);
    }

    /// Tells of requests that failed; when to do so again if more than one message's worth have.
    fn tell_failures(&self) -> Option<Instant> {
        let failures = self.shared.failures.take();
        let more = failures.len() >= FAILURES_PER_REPORT_MAX;
        failures.into_iter().for_each(|failures| self.outlet.send(FromDataPlane::Failed(failures)));
        more.then(|| Instant::now() + REPORT_INTERVAL)
    }

    fn report(&mut self) {
        let now = clock::now();
        let mut loads = Vec::new();
        let mut active = self.shared.directory.take_active();
        active.retain(|function| {
            let load = function.report(now);
            loads.extend(load);
            load.is_some()
        });
        self.shared.directory.keep_active(active);
        self.leaving.retain(|function| !function.is_idle());
        self.outlet.send(FromDataPlane::Report(loads));
    }

    fn drain(&self) {
        self.shared.draining.store(true, Ordering::Relaxed);
        self.outlet.send(FromDataPlane::Draining);
        for known in self.known.values() {
            known.function.apply(&self.shared, Event::Drain);
        }
    }
}

fn ticks(period: Duration) -> tokio::time::Interval {
    let mut interval = interval_at(Instant::now() + period, period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}
