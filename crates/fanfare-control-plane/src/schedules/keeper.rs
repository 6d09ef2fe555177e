//! The one task that owns the desk: makes durable, has asked, takes in changes.
//!
//! Of one schedule there is one write at a time, be it the desk's or a caller's; what comes meanwhile waits for it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use fanfare_schedule::{Answer, Command, Desk, Event, Now, Outcome, State, Wall, When};
use fanfare_store::{Revision, StoreError};
use fanfare_types::{EntrustedCall, FunctionName, Reason, limits};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use parking_lot::RwLock;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::entry::{encode, key};
use super::space::Space;
use super::write::write;
use super::{Change, Done, Ids, Known, Request, Schedule, ScheduleError, Surroundings};
use crate::ControlPlaneError;
use crate::entrusting::Entrusted;
use crate::input::Input;
use crate::limits::{ENTRUST_TIMEOUT, SCHEDULE_CHANGES_MAX};
use crate::registry::unix_ms;

/// Tells the function which schedule calls it.
const SCHEDULE_HEADER: &str = "x-fanfare-schedule";
/// And for which instant, in UTC.
const SCHEDULED_HEADER: &str = "x-fanfare-scheduled";

/// See [`super`].
#[derive(Debug)]
pub(crate) struct Keeper {
    with: Surroundings,
    known: Arc<RwLock<Known>>,
    requests: mpsc::Receiver<Request>,
    changed: watch::Sender<u64>,
    ids: Ids,
    desk: Desk,
    commands: Vec<Command>,
    /// Schedules that are being written.
    busy: HashSet<String>,
    /// What waits for those.
    waiting: HashMap<String, VecDeque<Request>>,
    under_way: FuturesUnordered<BoxFuture<'static, Finished>>,
    space: Space,
    adding: usize,
}

/// Something that was waited for.
#[derive(Debug)]
enum Finished {
    /// The desk's state of a schedule.
    Written {
        name: String,
        schedule: Schedule,
        result: Result<Revision, StoreError>,
    },
    /// A caller's change of it.
    Changed {
        change: Box<Changed>,
        result: Result<Revision, StoreError>,
    },
    Answered {
        name: String,
        number: u64,
        answer: Answer,
    },
}

#[derive(Debug)]
struct Changed {
    name: FunctionName,
    /// `None`: it is deleted.
    after: Option<Schedule>,
    creates: bool,
    /// Bytes that it takes more than before.
    growth: usize,
    done: Done,
    answer: oneshot::Sender<Result<Done, ScheduleError>>,
}

impl Keeper {
    pub(super) fn new(
        with: Surroundings,
        known: Arc<RwLock<Known>>,
        requests: mpsc::Receiver<Request>,
        changed: watch::Sender<u64>,
    ) -> Self {
        let kept = known.read().values().map(|schedule| schedule.bytes).sum();
        let ids = Ids { epoch: with.term.epoch, last: 0 };
        Keeper {
            with,
            known,
            requests,
            changed,
            ids,
            desk: Desk::default(),
            commands: Vec::new(),
            busy: HashSet::new(),
            waiting: HashMap::new(),
            under_way: FuturesUnordered::new(),
            space: Space::new(kept, limits::SCHEDULES_BYTES_MAX),
            adding: 0,
        }
    }

    /// Runs until `shutdown`, or the term is over. What is not written then is as after a crash.
    pub(crate) async fn run(mut self, shutdown: CancellationToken) -> Result<(), ControlPlaneError> {
        let now = self.now();
        for (name, schedule) in self.known.read().iter() {
            self.desk.set(now, name.as_str(), schedule.rules.clone(), schedule.state.clone());
        }
        let connected = self.with.data_planes.borrow_and_update().clone();
        self.step(Event::DataPlanes(connected));
        loop {
            self.carry_out();
            let wait = self.desk.wait(self.now());
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return Ok(()),
                Some(finished) = self.under_way.next(), if !self.under_way.is_empty() => self.finish(finished)?,
                Ok(()) = self.with.data_planes.changed() => {
                    let connected = self.with.data_planes.borrow_and_update().clone();
                    self.step(Event::DataPlanes(connected));
                }
                () = tokio::time::sleep(wait) => self.step(Event::Tick),
                Some(request) = self.requests.recv() => self.begin(request),
            }
        }
    }

    fn now(&self) -> Now {
        Now { at: self.with.clock.now(), wall: Wall(unix_ms()) }
    }

    fn step(&mut self, event: Event) {
        let now = self.now();
        self.desk.step(now, event, &mut self.commands);
    }

    /// Does what the desk has ordered.
    fn carry_out(&mut self) {
        for command in std::mem::take(&mut self.commands) {
            match command {
                Command::Write(name) => self.write(name),
                Command::Ask { number, schedule, data_plane, only_if_known } => {
                    let asked = self.call(&schedule, only_if_known).map(|call| {
                        let (answer, answered) = oneshot::channel();
                        (Input::Entrust { data_plane, call: Arc::new(call), answer }, answered)
                    });
                    let engine = self.with.engine.clone();
                    self.under_way.push(Box::pin(async move {
                        let name = schedule;
                        let answer = match asked {
                            Ok((input, answered)) => match engine.send(input).await {
                                Ok(()) => said(tokio::time::timeout(ENTRUST_TIMEOUT, answered).await),
                                // The engine's end is the end of the control plane, which its handle reports.
                                Err(_) => Answer::NotAsked,
                            },
                            Err(answer) => answer,
                        };
                        Finished::Answered { name, number, answer }
                    }));
                }
            }
        }
    }

    fn write(&mut self, name: String) {
        let found = self.known.read().get(name.as_str()).cloned();
        let (Some(found), Some(state)) = (found, self.desk.state(&name)) else { return };
        let mut schedule = Schedule { state: state.clone(), trouble: None, ..(*found).clone() };
        let value = encode(&schedule);
        schedule.bytes = value.len();
        self.busy.insert(name.clone());
        let (store, fence) = (self.with.store.clone(), self.with.term.fence.clone());
        self.under_way.push(Box::pin(async move {
            let result = write(store, fence, key(&name), Some(found.stored), Some(value)).await;
            Finished::Written { name, schedule, result }
        }));
    }

    /// The call that a schedule's firing is; or why there is none.
    fn call(&self, name: &str, only_if_known: bool) -> Result<EntrustedCall, Answer> {
        let found = self.known.read().get(name).cloned();
        let Some((schedule, firing)) = found.and_then(|s| s.state.firing.clone().map(|firing| (s, firing)))
        else {
            return Err(Answer::NotAsked);
        };
        let spec = &schedule.spec;
        if self.with.registry.function(spec.function.as_str()).is_none() {
            let detail = format!("there is no function {:?}", spec.function.as_str()).into();
            return Err(Answer::Refused { reason: Reason::FunctionNotFound, detail, for_good: true });
        }
        let own = [(SCHEDULE_HEADER, spec.name.to_string()), (SCHEDULED_HEADER, firing.instant.to_string())];
        let own = own.into_iter().map(|(name, value)| (Arc::from(name), Arc::from(value)));
        let by_hand = if firing.by_hand { " by hand" } else { "" };
        Ok(EntrustedCall {
            function: spec.function.clone(),
            method: spec.method.clone(),
            target: spec.path.clone(),
            headers: spec.headers.iter().cloned().chain(own).collect(),
            body: spec.body.as_bytes().into(),
            at_most_once: spec.at_most_once,
            attempts_max: spec.attempts_max,
            age_max: spec.age_max,
            key: format!("schedule {} {}{by_hand}", schedule.id, firing.instant.0).into(),
            only_if_known,
        })
    }

    fn finish(&mut self, finished: Finished) -> Result<(), ControlPlaneError> {
        match finished {
            Finished::Written { name, mut schedule, result } => {
                match result {
                    Ok(revision) => schedule.stored = revision,
                    Err(StoreError::Deposed) => return Err(ControlPlaneError::Deposed),
                    // The store is closed: the end.
                    Err(error) => return Err(error.into()),
                }
                tell(&schedule);
                self.publish(schedule);
                self.step(Event::Written(name.clone()));
                self.free(&name);
            }
            Finished::Changed { change, result } => self.changed(*change, result)?,
            Finished::Answered { name, number, answer } => {
                self.step(Event::Answered { number, answer });
                // Why it is not accepted yet is not kept, but shown.
                if let Some(schedule) = self.known.write().get_mut(name.as_str()) {
                    Arc::make_mut(schedule).trouble = self.desk.trouble(&name);
                }
            }
        }
        Ok(())
    }

    /// The schedule is as it is written from now on.
    fn publish(&mut self, mut schedule: Schedule) {
        schedule.trouble = self.desk.trouble(schedule.spec.name.as_str());
        let bytes = schedule.bytes;
        let before = self.known.write().insert(schedule.spec.name.clone(), Arc::new(schedule));
        self.space.replace(before.map_or(0, |before| before.bytes), bytes);
        self.changed.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// The schedule is not being written any more: the next change of it begins.
    fn free(&mut self, name: &str) {
        self.busy.remove(name);
        self.carry_out();
        while !self.busy.contains(name) {
            let Some(queue) = self.waiting.get_mut(name) else { return };
            match queue.pop_front() {
                Some(request) => self.begin(request),
                None => drop(self.waiting.remove(name)),
            }
        }
    }

    /// Sends a change to the store, or has it wait for the write before it.
    fn begin(&mut self, request: Request) {
        let name = request.name.to_string();
        if self.busy.contains(&name) {
            let queue = self.waiting.entry(name).or_default();
            match queue.len() {
                waiting if waiting < SCHEDULE_CHANGES_MAX => queue.push_back(request),
                waiting => {
                    let why = format!("{waiting} changes of this schedule wait for the store");
                    answer(request.answer, Err(ScheduleError::Unavailable(why)));
                }
            }
            return;
        }
        let before = self.known.read().get(&request.name).cloned();
        let planned = self.plan(&request.change, before.as_deref());
        let (after, done) = match planned {
            Ok(Some(planned)) => planned,
            Ok(None) => {
                let unchanged = before.map(Done::Unchanged).ok_or(ScheduleError::NotFound);
                return answer(request.answer, unchanged);
            }
            Err(error) => return answer(request.answer, Err(error)),
        };
        let creates = matches!(done, Done::Created(_));
        let value = after.as_ref().map(encode);
        let bytes = value.as_ref().map_or(0, bytes::Bytes::len);
        let growth = bytes.saturating_sub(before.as_ref().map_or(0, |before| before.bytes));
        // What the state of one takes more has room: only what somebody writes is refused.
        if matches!(request.change, Change::Set(_)) && !self.space.has(growth) {
            let (what, limit) = ("bytes of schedules", limits::SCHEDULES_BYTES_MAX);
            return answer(request.answer, Err(ScheduleError::Full { what, limit }));
        }
        // Frozen: what is planned rests on how it stands.
        let _ = self.desk.freeze(&name);
        let after = after.map(|after| Schedule { bytes, ..after });
        self.space.growing += growth;
        self.adding += usize::from(creates);
        self.busy.insert(name.clone());
        let (store, fence) = (self.with.store.clone(), self.with.term.fence.clone());
        let change = Changed { name: request.name, after, creates, growth, done, answer: request.answer };
        let before = before.map(|before| before.stored);
        self.under_way.push(Box::pin(async move {
            let result = write(store, fence, key(&name), before, value).await;
            Finished::Changed { change: Box::new(change), result }
        }));
    }

    /// What a change comes down to: the schedule as it will be (`None`: gone); or nothing, where it is so already.
    fn plan(
        &mut self,
        change: &Change,
        before: Option<&Schedule>,
    ) -> Result<Option<(Option<Schedule>, Done)>, ScheduleError> {
        let wall = self.now().wall;
        if let Change::Set(spec) = change {
            return self.plan_set(spec, before, wall);
        }
        let before = before.ok_or(ScheduleError::NotFound)?;
        let mut state = before.state.clone();
        let done = match change {
            Change::Delete => return Ok(Some((None, Done::Deleted))),
            Change::Pause | Change::Resume if state.paused == matches!(change, Change::Pause) => {
                return Ok(None);
            }
            Change::Run => {
                if !state.fire(wall) {
                    return Err(ScheduleError::Busy);
                }
                state.firing.as_ref().map(|firing| Done::Fired(firing.instant))
            }
            Change::Pause | Change::Resume | Change::Set(_) => {
                state.paused = matches!(change, Change::Pause);
                // What came while it was paused is not missed. What has come before does not come again.
                state.after = state.after.max(wall);
                None
            }
        };
        let after = Schedule { state, trouble: None, ..before.clone() };
        let done = done.unwrap_or_else(|| Done::Updated(Arc::new(after.clone())));
        Ok(Some((Some(after), done)))
    }

    fn plan_set(
        &mut self,
        spec: &Arc<fanfare_schedule::ScheduleSpec>,
        before: Option<&Schedule>,
        wall: Wall,
    ) -> Result<Option<(Option<Schedule>, Done)>, ScheduleError> {
        if before.is_some_and(|before| before.spec == *spec) {
            return Ok(None);
        }
        if self.with.registry.function(spec.function.as_str()).is_none() {
            return Err(ScheduleError::NoFunction(spec.function.to_string()));
        }
        // A call that is under way is known to a data plane as one of the function that it was made for.
        if before.is_some_and(|b| b.state.firing.is_some() && b.spec.function != spec.function) {
            return Err(ScheduleError::Busy);
        }
        let same_time = before.is_some_and(|before| before.spec.when == spec.when);
        if !same_time && matches!(spec.when, When::At(at) if at <= wall) {
            return Err(ScheduleError::Over);
        }
        let rules = spec.rules().map_err(|error| ScheduleError::Unavailable(error.to_string()))?;
        let (known, limit) = (self.known.read().len() + self.adding, limits::SCHEDULES_MAX);
        if before.is_none() && known >= limit {
            return Err(ScheduleError::Full { what: "schedules", limit });
        }
        let after = match before {
            Some(before) => {
                let mut state = before.state.clone();
                if !same_time {
                    // Another calendar begins now.
                    state.after = wall;
                }
                Schedule { spec: spec.clone(), rules, state, trouble: None, ..before.clone() }
            }
            None => Schedule {
                id: self.ids.next(),
                created_unix_ms: wall.0,
                spec: spec.clone(),
                rules,
                state: State { after: wall, ..State::default() },
                trouble: None,
                bytes: 0,
                stored: Revision::default(),
            },
        };
        let done = match before {
            Some(_) => Done::Updated(Arc::new(after.clone())),
            None => Done::Created(Arc::new(after.clone())),
        };
        Ok(Some((Some(after), done)))
    }

    fn changed(
        &mut self,
        change: Changed,
        result: Result<Revision, StoreError>,
    ) -> Result<(), ControlPlaneError> {
        let Changed { name, after, creates, growth, done, answer: told } = change;
        self.adding -= usize::from(creates);
        self.space.growing -= growth;
        let now = self.now();
        match result {
            Ok(revision) => {
                tracing::info!(schedule = %name, what = word(&done), "schedule changed");
                match after {
                    Some(mut schedule) => {
                        schedule.stored = revision;
                        let (rules, state) = (schedule.rules.clone(), schedule.state.clone());
                        self.desk.set(now, name.as_str(), rules, state);
                        self.publish(schedule);
                    }
                    None => {
                        self.desk.remove(name.as_str());
                        let gone = self.known.write().remove(&name);
                        self.space.replace(gone.map_or(0, |gone| gone.bytes), 0);
                        self.changed.send_modify(|count| *count = count.wrapping_add(1));
                    }
                }
                answer(told, Ok(done));
            }
            Err(StoreError::Deposed) => {
                answer(told, Err(ScheduleError::Unavailable(StoreError::Deposed.to_string())));
                return Err(ControlPlaneError::Deposed);
            }
            Err(error) => {
                self.desk.thaw(now, name.as_str(), &mut self.commands);
                answer(told, Err(ScheduleError::Unavailable(error.to_string())));
            }
        }
        self.free(name.as_str());
        Ok(())
    }
}

/// What a data plane has said, or not.
fn said(
    answered: Result<Result<Entrusted, oneshot::error::RecvError>, tokio::time::error::Elapsed>,
) -> Answer {
    match answered {
        Ok(Ok(Entrusted::Said(Ok(id)))) => Answer::Accepted(id),
        Ok(Ok(Entrusted::Said(Err(refusal)))) => match refusal.reason {
            // Its log failed: what was on its way there may have been written.
            Reason::Unavailable | Reason::Internal => Answer::None(refusal.detail),
            reason => {
                let for_good =
                    matches!(reason, Reason::BadRequest | Reason::TooLarge | Reason::InvocationNotFound);
                Answer::Refused { reason, detail: refusal.detail, for_good }
            }
        },
        Ok(Ok(Entrusted::NotAsked)) => Answer::NotAsked,
        Ok(Err(_)) => Answer::None("the stream to the data plane broke before it answered".into()),
        Err(_) => {
            let wait: Duration = ENTRUST_TIMEOUT;
            Answer::None(format!("the data plane has not answered within {wait:?}").into())
        }
    }
}

/// Says in the log what became of a firing that has ended by this write.
fn tell(schedule: &Schedule) {
    let Some(fired) = schedule.state.fired.first().filter(|_| schedule.state.firing.is_none()) else {
        return;
    };
    let (name, scheduled, left_out) = (&schedule.spec.name, fired.instant, fired.left_out);
    match &fired.outcome {
        Outcome::Accepted { id } => {
            tracing::debug!(schedule = %name, %scheduled, left_out, invocation = %id, "schedule fired");
        }
        Outcome::Skipped => tracing::info!(schedule = %name, %scheduled, left_out, "missed, and left out"),
        Outcome::GivenUp { reason, detail } => {
            tracing::warn!(schedule = %name, %scheduled, left_out, reason = reason.code(), %detail, "not fired");
        }
        Outcome::Unknown { detail } => {
            tracing::warn!(schedule = %name, %scheduled, left_out, %detail, "whether it was fired is not known");
        }
    }
}

fn word(done: &Done) -> &'static str {
    match done {
        Done::Created(_) => "created",
        Done::Updated(after) if after.state.paused => "paused, or set while it is",
        Done::Updated(_) => "set or resumed",
        Done::Unchanged(_) => "unchanged",
        Done::Deleted => "deleted",
        Done::Fired(_) => "fired by hand",
    }
}

fn answer(to: oneshot::Sender<Result<Done, ScheduleError>>, result: Result<Done, ScheduleError>) {
    // Whoever asked may have left; what was done stands.
    let _ = to.send(result);
}
