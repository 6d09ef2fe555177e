mod cases;
mod leases;
mod model;

use std::time::Duration;

use fanfare_types::{Balance, FunctionId, FunctionName, FunctionRoute, SandboxId, Timestamp};

use crate::{Command, Event, FunctionQueue, Handle, Outcome};

pub(crate) fn route(revision: u32, concurrency: u32, queue_limit: u32, balance: Balance) -> FunctionRoute {
    FunctionRoute {
        id: FunctionId(1),
        revision,
        name: FunctionName::new("f").unwrap(),
        concurrency,
        idle_timeout: None,
        request_timeout: Duration::from_secs(60),
        queue_limit,
        balance,
        reach: Default::default(),
    }
}

pub(crate) fn ms(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

/// A queue driven by hand.
pub(crate) struct Hand {
    pub(crate) queue: FunctionQueue,
    pub(crate) now: Timestamp,
}

impl Hand {
    pub(crate) fn new(concurrency: u32) -> Self {
        Hand {
            queue: FunctionQueue::new(&route(1, concurrency, 3, Balance::Knative), 7),
            now: Timestamp::ZERO,
        }
    }

    /// The commands of one event, without `Activate`, which the load tests look at.
    pub(crate) fn step(&mut self, event: Event) -> Vec<Command> {
        let mut out = Vec::new();
        self.queue.step(self.now, event, &mut out);
        out.retain(|c| *c != Command::Activate);
        out
    }

    pub(crate) fn arrive(&mut self) -> Vec<Command> {
        let waiter = self.queue.next_waiter();
        self.step(Event::Arrive { waiter, deadline: self.now + Duration::from_secs(10), key: 0, lane: 0 })
    }

    pub(crate) fn grant(&mut self, sandbox: u64, slots: u32) -> Vec<Command> {
        self.step(Event::Grant { sandbox: SandboxId(sandbox), revision: 1, slots, fresh: true })
    }

    pub(crate) fn finish(&mut self, sandbox: u64, outcome: Outcome) -> Vec<Command> {
        let handle = self.handle(sandbox);
        self.step(Event::Finish { sandbox: handle, outcome, started: self.now })
    }

    pub(crate) fn handle(&self, sandbox: u64) -> Handle {
        self.queue.handle(SandboxId(sandbox)).expect("held")
    }
}

/// `(waiter, sandbox)` of each assignment.
pub(crate) fn assigned(commands: &[Command]) -> Vec<(u64, u64)> {
    commands
        .iter()
        .filter_map(|c| match c {
            Command::Assign { waiter, sandbox, .. } => Some((*waiter, sandbox.sandbox.0)),
            _ => None,
        })
        .collect()
}

/// `(sandbox, slots, retired)` of each release.
pub(crate) fn released(commands: &[Command]) -> Vec<(u64, u32, bool)> {
    commands
        .iter()
        .filter_map(|c| match c {
            Command::Release { sandbox, slots, retired } => Some((sandbox.0, *slots, *retired)),
            _ => None,
        })
        .collect()
}
