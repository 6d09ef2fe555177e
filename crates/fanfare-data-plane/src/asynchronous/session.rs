//! Between the state machine, the log, and what is under way.

mod questions;

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use fanfare_async::{Calls, Command, End, Event, Now, Record, State};
use fanfare_store::{Store, StoreError};
use fanfare_types::{Reason, Timestamp};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::attempt::{Attempt, LARGE_RESULTS_MAX};
use super::callback::Caller;
use super::door::{Ask, Seen};
use super::log::{self, Clock, Kind, Loaded, Log, Unit};
use super::message::Response;
use super::options::AsyncOptions;
use super::targets::Reach;
use crate::activity::Activity;
use crate::clock;
use crate::core::Core;

/// How far the log's time line may be behind when the process is killed, while a call is open.
const CLOCK_INTERVAL: Duration = Duration::from_secs(10);
/// Bytes that wait to be written; beyond it no question is taken.
const BACKLOG_BYTES_MAX: usize = 64 << 20;
/// Clients that wait for calls to end.
const WATCHERS_MAX: usize = 10_000;

/// What is done once everything ordered before is durable.
enum Then {
    Do(Command),
    Tell(Box<dyn FnOnce()>),
}

/// What attempts and callbacks report.
pub(super) enum Happened {
    Assigned { sequence: u64, attempt: u32 },
    Ended { sequence: u64, attempt: u32, end: End, answer: Option<Answer> },
    CalledBack { sequence: u64, taken: bool },
}

/// An answer as it is kept, and the room that it takes meanwhile.
pub(super) struct Answer {
    pub(super) bytes: Bytes,
    pub(super) room: Option<OwnedSemaphorePermit>,
}

/// Reports that have not been heard yet: at most two for each attempt and one for each callback under way.
#[derive(Default)]
pub(super) struct Inbox {
    happened: RefCell<VecDeque<Happened>>,
    filled: Notify,
}

impl Inbox {
    pub(super) fn push(&self, happened: Happened) {
        self.happened.borrow_mut().push_back(happened);
        self.filled.notify_one();
    }
}

type Commit = Pin<Box<dyn Future<Output = Result<(), StoreError>>>>;

/// From one reading of the log to its failure or the data plane's end.
pub(super) struct Session {
    core: Rc<Core>,
    options: AsyncOptions,
    store: Arc<dyn Store>,
    log: Log,
    calls: Calls,
    /// The log's time when the session began, and the process's.
    origin: (Timestamp, Timestamp),
    units: Vec<Unit>,
    unit_bytes: usize,
    then: Vec<Then>,
    written: Instant,
    /// Requests that were just accepted and whose attempt begins when they are written.
    fresh: HashMap<u64, Bytes>,
    attempts: HashMap<u64, (u32, JoinHandle<()>)>,
    callbacks: HashMap<u64, JoinHandle<()>>,
    watchers: HashMap<u64, Vec<oneshot::Sender<()>>>,
    inbox: Rc<Inbox>,
    activity: Rc<Activity>,
    large: Arc<Semaphore>,
    caller: Rc<Caller>,
}

impl Session {
    pub(super) fn begin(
        core: &Rc<Core>,
        options: &AsyncOptions,
        store: &Arc<dyn Store>,
        log: Log,
        loaded: Loaded,
    ) -> Self {
        let mut session = Session {
            core: core.clone(),
            options: options.clone(),
            store: store.clone(),
            log,
            calls: Calls::new(options.limits.clone()),
            origin: (loaded.clock.at, clock::now()),
            units: Vec::new(),
            unit_bytes: 0,
            then: Vec::new(),
            written: Instant::now(),
            fresh: HashMap::new(),
            attempts: HashMap::new(),
            callbacks: HashMap::new(),
            watchers: HashMap::new(),
            inbox: Rc::default(),
            activity: Rc::default(),
            large: Arc::new(Semaphore::new(LARGE_RESULTS_MAX)),
            caller: Rc::new(Caller::new(Reach::of(options))),
        };
        let kept = loaded.records.len();
        let mut commands = Vec::new();
        let (limits, sequence) = (options.limits.clone(), loaded.clock.sequence);
        session.calls = Calls::restore(limits, loaded.records, sequence, session.now(), &mut commands);
        session.obey(commands, None);
        if kept > 0 {
            tracing::info!(
                kept,
                open = session.calls.open(),
                "asynchronous invocations are there from before"
            );
        }
        session
    }

    /// Runs until the log fails, or, after `shutdown`, until nothing is under way or the time for that is over.
    pub(super) async fn run(
        mut self,
        asks: &mut mpsc::Receiver<Ask>,
        shutdown: &CancellationToken,
    ) -> Result<(), StoreError> {
        let mut commit: Option<(Commit, Vec<Then>)> = None;
        let mut drain_until: Option<Instant> = None;
        loop {
            if commit.is_none() {
                commit = self.next_commit();
            }
            if drain_until.is_some()
                && commit.is_none()
                && self.attempts.is_empty()
                && self.callbacks.is_empty()
            {
                return Ok(());
            }
            let wake = self.calls.next_wake().map(|at| self.instant(at));
            let clock_due =
                (self.calls.open() > 0 && commit.is_none()).then(|| self.written + CLOCK_INTERVAL);
            let inbox = self.inbox.clone();
            tokio::select! {
                biased;
                written = durable(&mut commit) => {
                    written?;
                    let then = commit.take().map(|(_, then)| then).unwrap_or_default();
                    then.into_iter().for_each(|then| self.act(then));
                }
                () = inbox.filled.notified() => self.hear(),
                () = shutdown.cancelled(), if drain_until.is_none() => {
                    drain_until = Some(Instant::now() + self.core.shared.options.drain_timeout);
                    self.drain();
                }
                () = at(drain_until) => {
                    let attempts = self.attempts.len();
                    tracing::warn!(attempts, "asynchronous invocations did not end in time; they are cut short");
                    return Ok(());
                }
                () = at(wake) => self.step(Event::Tick),
                () = at(clock_due) => self.units.push(Unit::default()),
                ask = asks.recv(), if self.unit_bytes < BACKLOG_BYTES_MAX => match ask {
                    Some(ask) => self.answer(ask),
                    None => return Ok(()),
                },
            }
        }
    }

    /// Begins to write what is there; what needs no writing is done at once.
    fn next_commit(&mut self) -> Option<(Commit, Vec<Then>)> {
        let then = std::mem::take(&mut self.then);
        if self.units.is_empty() {
            then.into_iter().for_each(|then| self.act(then));
            return None;
        }
        self.unit_bytes = 0;
        self.written = Instant::now();
        let clock = Clock { at: self.now().at, sequence: self.calls.next_sequence() };
        Some((self.log.commit(std::mem::take(&mut self.units), clock), then))
    }

    fn now(&self) -> Now {
        let (log, process) = self.origin;
        let shown = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Now {
            at: log + clock::now().since(process),
            shown_ms: u64::try_from(shown.as_millis()).unwrap_or(u64::MAX),
        }
    }

    fn instant(&self, at: Timestamp) -> Instant {
        let (log, process) = self.origin;
        clock::instant(process + at.since(log))
    }

    fn step(&mut self, event: Event) {
        let mut commands = Vec::new();
        self.calls.step(self.now(), event, &mut commands);
        self.obey(commands, None);
    }

    /// Takes orders; `body` is the request or the result that they may order to be written.
    fn obey(&mut self, commands: Vec<Command>, body: Option<&Bytes>) {
        let before = self.units.len();
        log::units(&self.calls, &commands, |_, _| body.cloned(), &mut self.units);
        self.unit_bytes += self.units[before..].iter().map(Unit::bytes).sum::<usize>();
        for command in commands.into_iter().filter(|command| !command.is_write()) {
            match command {
                // What it needs is durable already; it must not wait for what others need.
                Command::Start { sequence, attempt } => self.start(sequence, attempt),
                command => self.then.push(Then::Do(command)),
            }
        }
    }

    fn hear(&mut self) {
        loop {
            let Some(happened) = self.inbox.happened.borrow_mut().pop_front() else { return };
            match happened {
                Happened::Assigned { sequence, attempt } => self.step(Event::Assigned { sequence, attempt }),
                Happened::Ended { sequence, attempt, end, answer } => {
                    if self.attempts.get(&sequence).is_some_and(|(number, _)| *number == attempt) {
                        self.attempts.remove(&sequence);
                    }
                    let mut commands = Vec::new();
                    self.calls.step(self.now(), Event::Ended { sequence, attempt, end }, &mut commands);
                    self.obey(commands, answer.as_ref().map(|answer| &answer.bytes));
                    let room = answer.and_then(|answer| answer.room);
                    self.then.push(Then::Tell(Box::new(move || drop(room))));
                }
                Happened::CalledBack { sequence, taken } => {
                    self.callbacks.remove(&sequence);
                    self.step(Event::CalledBack { sequence, taken });
                }
            }
        }
    }

    /// Begins nothing more. What has no slot yet waits for the next data plane in the log, not here.
    fn drain(&mut self) {
        self.step(Event::Drain);
        self.fresh.clear();
        // Whoever has got a slot has said so: on this thread, before anything was sent.
        self.hear();
        let waiting = self.attempts.iter().filter(|(sequence, _)| !self.calls.is_executing(**sequence));
        for (sequence, attempt) in
            waiting.map(|(sequence, (attempt, _))| (*sequence, *attempt)).collect::<Vec<_>>()
        {
            if let Some((_, task)) = self.attempts.remove(&sequence) {
                task.abort();
            }
            let detail = "the data plane shuts down".into();
            let end = End::Refused { reason: Reason::ShuttingDown, detail, retry_after: None };
            self.step(Event::Ended { sequence, attempt, end });
        }
    }

    fn act(&mut self, then: Then) {
        match then {
            Then::Tell(tell) => tell(),
            Then::Do(Command::Prepare { sequence, attempt }) => {
                self.step(Event::Durable { sequence, attempt });
            }
            Then::Do(Command::Abort { sequence, .. }) => {
                if let Some((_, task)) = self.attempts.remove(&sequence) {
                    task.abort();
                }
            }
            Then::Do(Command::CallBack(sequence)) => {
                if let Some(record) = self.calls.at(sequence) {
                    let (caller, store) = (self.caller.clone(), self.store.clone());
                    let (inbox, seen) = (self.inbox.clone(), self.seen(record));
                    let task = tokio::task::spawn_local(async move {
                        let taken = caller.call(&store, &seen).await;
                        inbox.push(Happened::CalledBack { sequence, taken });
                    });
                    self.callbacks.insert(sequence, task);
                }
            }
            Then::Do(Command::Finished(sequence)) => {
                // Of one that ended before it was begun.
                self.fresh.remove(&sequence);
                for watcher in self.watchers.remove(&sequence).unwrap_or_default() {
                    // Whoever waited may have left.
                    let _ = watcher.send(());
                }
            }
            Then::Do(_) => {}
        }
    }

    fn start(&mut self, sequence: u64, attempt: u32) {
        let fresh = self.fresh.remove(&sequence);
        // One that was cancelled before it began.
        let under_way = |record: &&Record| record.state == State::Running && record.attempts == attempt;
        let Some(record) = self.calls.at(sequence).filter(under_way) else { return };
        let Some(payload) = record.payload else { return };
        let attempt = Attempt {
            core: self.core.clone(),
            store: self.store.clone(),
            inbox: self.inbox.clone(),
            activity: self.activity.clone(),
            large: self.large.clone(),
            result_bytes_max: self.options.payload_bytes_max,
            id: record.id,
            number: attempt,
            function: record.function,
            name: record.name.clone(),
            payload,
            fresh,
            upstream: Rc::default(),
        };
        let number = attempt.number;
        self.attempts.insert(sequence, (number, tokio::task::spawn_local(attempt.run())));
    }

    fn seen(&self, record: &Record) -> Seen {
        let next_in_ms = match record.state {
            State::Retrying(at) => {
                Some(u64::try_from(at.since(self.now().at).as_millis()).unwrap_or(u64::MAX))
            }
            _ => None,
        };
        Seen { kind: self.calls.kind(record), next_in_ms, record: record.clone() }
    }
}

impl Drop for Session {
    /// What is under way is cut short, as by a crash.
    fn drop(&mut self) {
        self.attempts.values().for_each(|(_, task)| task.abort());
        self.callbacks.values().for_each(JoinHandle::abort);
    }
}

pub(super) async fn read_result(
    store: &Arc<dyn Store>,
    record: &Record,
    bytes: u64,
) -> Result<Response, String> {
    let bytes = log::read(store, Kind::Result, record.id.sequence, bytes).await.map_err(|e| e.to_string())?;
    Response::decode(bytes).ok_or_else(|| "it is damaged".to_owned())
}

async fn durable(commit: &mut Option<(Commit, Vec<Then>)>) -> Result<(), StoreError> {
    match commit {
        Some((commit, _)) => commit.await,
        None => std::future::pending().await,
    }
}

async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
