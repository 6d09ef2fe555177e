//! What the queue orders, done.

use std::collections::HashMap;
use std::sync::Arc;

use fanfare_dispatch::{Command, Event, FunctionQueue, Handle, Outcome, Why};
use fanfare_types::{FromDataPlane, FunctionRoute, SandboxId, Timestamp};
use parking_lot::MappedMutexGuard;

use super::{About, Answer, Counters, DEMAND_INTERVAL, Effects, Function, Inner, Slot, WAITING_KEPT};
use crate::clock;
use crate::outlet::Outlet;
use crate::shared::Shared;
use crate::stats::FunctionStats;
use crate::upstream::Upstream;

thread_local! {
    /// Room for commands, so that a step on the warm path allocates nothing.
    static COMMANDS: std::cell::Cell<Vec<Command>> = const { std::cell::Cell::new(Vec::new()) };
}

impl Function {
    pub(super) fn step_alone(
        self: &Arc<Self>,
        shared: &Shared,
        mut inner: MappedMutexGuard<'_, Inner>,
        now: Timestamp,
        event: Event,
    ) {
        let mut effects = Effects::default();
        self.step(shared, &mut inner, now, event, &About::default(), &mut effects);
        drop(inner);
        self.deliver(shared, effects);
    }

    pub(super) fn step(
        self: &Arc<Self>,
        shared: &Shared,
        inner: &mut Inner,
        now: Timestamp,
        event: Event,
        about: &About<'_>,
        effects: &mut Effects,
    ) {
        let mut commands = COMMANDS.take();
        let granted = if let Event::Grant { slots, .. } = event { slots } else { 0 };
        inner.queue.step(now, event, &mut commands);
        if let Some((upstream, _)) = about.granted {
            inner.admit(upstream, granted);
        }
        for command in commands.drain(..) {
            self.obey(shared, inner, now, command, about, effects);
        }
        COMMANDS.set(commands);
    }

    fn obey(
        self: &Arc<Self>,
        shared: &Shared,
        inner: &mut Inner,
        now: Timestamp,
        command: Command,
        about: &About<'_>,
        effects: &mut Effects,
    ) {
        match command {
            Command::Assign { waiter, sandbox, why } => {
                let Some(upstream) = inner.upstreams.get(sandbox.index as usize).cloned().flatten() else {
                    unreachable!("a sandbox is admitted with its grant and stays until it is forgotten");
                };
                inner.counters.assigned(why);
                let stages = about.granted.and_then(|(_, stages)| stages).filter(|_| why == Why::Cold);
                let stages = stages.map(|stages| Box::new(*stages));
                let slot = Slot { upstream, handle: sandbox, why, stages, at: now };
                inner.answer(waiter, Answer::Slot(slot), about, effects);
            }
            Command::Refuse { waiter, why } => inner.answer(waiter, Answer::Refused(why), about, effects),
            Command::Release { sandbox, slots, retired } => {
                if let Some(upstream) = inner.upstream(sandbox) {
                    upstream.released(slots);
                }
                inner.outlet.send(FromDataPlane::Released { sandbox, slots, retired });
            }
            Command::Condemn { sandbox, why } => {
                inner.counters.condemned += 1;
                if let Some(Some(upstream)) = inner.upstreams.get(sandbox.index as usize) {
                    upstream.close();
                }
                tracing::info!(function = %self.name, sandbox = %sandbox.sandbox, ?why, "condemned a sandbox");
                inner.outlet.send(FromDataPlane::Condemned { sandbox: sandbox.sandbox, why });
            }
            Command::Demand => {
                if now.since(inner.demanded) >= DEMAND_INTERVAL {
                    inner.demand(now);
                } else if !std::mem::replace(&mut inner.demand_due, true) {
                    shared.directory.demand_later(self.clone());
                }
            }
            Command::Forget { sandbox } => {
                inner.forget(sandbox);
                shared.directory.forget_sandbox(sandbox.sandbox);
            }
            Command::Activate => shared.directory.activate(self.clone()),
        }
    }

    /// Sends answers. One whose request has left meanwhile is undone, which may lead to further answers.
    pub(super) fn deliver(self: &Arc<Self>, shared: &Shared, effects: Effects) {
        let mut wakes = effects.wakes;
        while let Some((tell, answer)) = wakes.pop() {
            let Err(Answer::Slot(slot)) = tell.send(answer) else { continue };
            let event = Event::Finish { sandbox: slot.handle, outcome: Outcome::NeverSent, started: slot.at };
            let mut more = Effects::default();
            let mut inner = self.inner();
            self.step(shared, &mut inner, clock::now(), event, &About::default(), &mut more);
            drop(inner);
            wakes.extend(more.wakes);
        }
    }
}

impl Inner {
    pub(super) fn new(route: &FunctionRoute, seed: u64, outlet: Arc<Outlet>) -> Self {
        Inner {
            queue: FunctionQueue::new(route, seed),
            upstreams: Vec::new(),
            waiting: HashMap::new(),
            request_timeout: route.request_timeout,
            idle_timeout: route.idle_timeout,
            concurrency: route.concurrency,
            balance: route.balance,
            outlet,
            demanded: Timestamp::ZERO,
            demand_due: false,
            counters: Counters::default(),
        }
    }

    pub(super) fn stats(&self, function: FunctionStats) -> FunctionStats {
        let counters = &self.counters;
        FunctionStats {
            in_flight: self.queue.in_flight(),
            queued: self.queue.queued(),
            sandboxes: self.upstreams.iter().flatten().count(),
            arrivals: counters.arrivals,
            warm: counters.warm,
            handed_over: counters.handed_over,
            moved: counters.moved,
            cold: counters.cold,
            answered: counters.answered,
            cut: counters.cut,
            condemned: counters.condemned,
            problems: counters.problems.clone(),
            ..function
        }
    }

    pub(super) fn demand(&mut self, now: Timestamp) {
        self.demanded = now;
        self.demand_due = false;
        self.outlet.send(FromDataPlane::Demand(self.queue.load(now)));
    }

    fn answer(&mut self, waiter: u64, answer: Answer, about: &About<'_>, effects: &mut Effects) {
        if about.own == Some(waiter) {
            effects.own = Some(answer);
        } else if let Some(tell) = self.waiting.remove(&waiter) {
            effects.wakes.push((tell, answer));
        }
        if self.waiting.is_empty() && self.waiting.capacity() > WAITING_KEPT {
            self.waiting = HashMap::new();
        }
    }

    /// Puts a sandbox in its place in the table, unless the queue would not have it.
    fn admit(&mut self, upstream: &Arc<Upstream>, slots: u32) {
        let Some(handle) = self.queue.handle(upstream.sandbox) else { return };
        let index = handle.index as usize;
        if self.upstreams.len() <= index {
            self.upstreams.resize(index + 1, None);
        }
        self.upstreams[index].get_or_insert_with(|| upstream.clone()).granted(slots);
    }

    pub(super) fn upstream(&self, sandbox: SandboxId) -> Option<&Arc<Upstream>> {
        let handle = self.queue.handle(sandbox)?;
        self.upstreams.get(handle.index as usize)?.as_ref()
    }

    fn forget(&mut self, sandbox: Handle) {
        let place = self.upstreams.get_mut(sandbox.index as usize);
        // The sandbox may have been refused with its grant, or its place be taken already.
        if let Some(place) = place
            && let Some(upstream) = place.take_if(|upstream| upstream.sandbox == sandbox.sandbox)
        {
            upstream.close();
        }
        if self.queue.is_idle() {
            self.upstreams = Vec::new();
        }
    }
}

impl Counters {
    fn assigned(&mut self, why: Why) {
        match why {
            Why::Warm => self.warm += 1,
            Why::HandedOver => self.handed_over += 1,
            Why::Moved => self.moved += 1,
            Why::Cold => self.cold += 1,
        }
    }
}
