//! Schedules: what is registered, and what fires.
//!
//! Reads come from memory. Everything else goes through one task, the [`keeper`], which owns the desk
//! (`fanfare_schedule::Desk`): it makes durable what that orders to be written, has data planes asked whom that orders to
//! be asked, and takes in changes.

mod entry;
mod keeper;
mod space;
mod write;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use fanfare_schedule::{Outcome, Rules, ScheduleSpec, State, Wall};
use fanfare_store::{Revision, Store};
use fanfare_types::{DataPlaneId, Epoch, FunctionName, Reason};
use parking_lot::RwLock;
use tokio::sync::{mpsc, oneshot, watch};

pub(crate) use keeper::Keeper;
pub(crate) use write::write;

use crate::ControlPlaneError;
use crate::clock::Clock;
use crate::input::Input;
use crate::leader::Term;
use crate::limits::SCHEDULES_QUEUE_MAX;
use crate::registry::{Registry, for_each};

/// A schedule that is registered.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Schedule {
    /// Unique for ever: it names the schedule's firings to data planes.
    pub(crate) id: Arc<str>,
    /// When it was set first, by the wall clock of that time. For display.
    pub(crate) created_unix_ms: u64,
    pub(crate) spec: Arc<ScheduleSpec>,
    pub(crate) rules: Rules,
    /// What is durable.
    pub(crate) state: State,
    /// Why the firing that is under way is not accepted yet.
    pub(crate) trouble: Option<(Reason, Arc<str>)>,
    /// Its size in the store.
    bytes: usize,
    stored: Revision,
}

impl Schedule {
    /// The next occurrences after `now`, at most `count`.
    pub(crate) fn upcoming(&self, now: Wall, count: usize) -> Vec<Wall> {
        match self.state.paused {
            true => Vec::new(),
            // What has come already does not come again, even if the clock was set back.
            false => self.rules.calendar.upcoming(self.state.after.max(now), count),
        }
    }
}

/// What a caller wants changed.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// Register it, or replace the one of that name.
    Set(Arc<ScheduleSpec>),
    /// Delete it.
    Delete,
    /// Let nothing be due.
    Pause,
    /// Let occurrences from now on be due.
    Resume,
    /// Fire it now.
    Run,
}

/// What a change did.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Done {
    Created(Arc<Schedule>),
    Updated(Arc<Schedule>),
    /// It was so already.
    Unchanged(Arc<Schedule>),
    Deleted,
    /// A firing that is for this instant has begun.
    Fired(Wall),
}

/// Why nothing was changed (or, for `Unavailable`, may have been).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ScheduleError {
    #[error("there is no such schedule")]
    NotFound,
    #[error("there is no function {0:?} for it to call")]
    NoFunction(String),
    #[error("its time is over")]
    Over,
    #[error("an occurrence of it is under way")]
    Busy,
    #[error("there are {limit} {what} already")]
    Full { what: &'static str, limit: usize },
    #[error("{0}")]
    Unavailable(String),
}

#[derive(Debug)]
struct Request {
    name: FunctionName,
    change: Change,
    answer: oneshot::Sender<Result<Done, ScheduleError>>,
}

type Known = BTreeMap<FunctionName, Arc<Schedule>>;

/// The handle; clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Book {
    known: Arc<RwLock<Known>>,
    requests: mpsc::Sender<Request>,
    /// Counts what became durable.
    changed: watch::Receiver<u64>,
}

/// What the keeper needs of the rest.
#[derive(Debug)]
pub(crate) struct Surroundings {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) term: Term,
    pub(crate) registry: Registry,
    pub(crate) engine: mpsc::Sender<Input>,
    pub(crate) data_planes: watch::Receiver<Vec<DataPlaneId>>,
    pub(crate) clock: Clock,
}

impl Book {
    /// Reads everything there is. Nothing fires before the keeper runs.
    pub(crate) async fn open(surroundings: Surroundings) -> Result<(Book, Keeper), ControlPlaneError> {
        let mut known = Known::new();
        for_each(&*surroundings.store, entry::SCHEDULES, |key, entry| {
            let schedule = entry::decode(key, entry)?;
            known.insert(schedule.spec.name.clone(), Arc::new(schedule));
            Ok(())
        })
        .await?;
        let known = Arc::new(RwLock::new(known));
        let (requests, queue) = mpsc::channel(SCHEDULES_QUEUE_MAX);
        let (changes, changed) = watch::channel(0);
        let keeper = Keeper::new(surroundings, known.clone(), queue, changes);
        Ok((Book { known, requests, changed }, keeper))
    }

    /// Makes a change; resolves when it is durable and visible.
    pub(crate) async fn change(&self, name: FunctionName, change: Change) -> Result<Done, ScheduleError> {
        let (answer, answered) = oneshot::channel();
        let stopped = || ScheduleError::Unavailable("the control plane is stopping".to_owned());
        self.requests.send(Request { name, change, answer }).await.map_err(|_| stopped())?;
        answered.await.unwrap_or_else(|_| Err(stopped()))
    }

    pub(crate) fn get(&self, name: &str) -> Option<Arc<Schedule>> {
        self.known.read().get(name).cloned()
    }

    pub(crate) fn len(&self) -> usize {
        self.known.read().len()
    }

    /// Schedules in the order of their names, and whether more follow.
    pub(crate) fn page(&self, after: Option<&str>, limit: usize) -> (Vec<Arc<Schedule>>, bool) {
        let known = self.known.read();
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut found = known.range::<str, _>((start, Bound::Unbounded)).map(|(_, schedule)| schedule);
        let page: Vec<_> = found.by_ref().take(limit).cloned().collect();
        (page, found.next().is_some())
    }

    /// Waits until the firing by hand for this instant has ended; `None` when the schedule is gone.
    pub(crate) async fn fired(&self, name: &str, instant: Wall) -> Option<Outcome> {
        let mut changed = self.changed.clone();
        loop {
            changed.borrow_and_update();
            let schedule = self.get(name)?;
            let fired = schedule.state.fired.iter().find(|fired| fired.by_hand && fired.instant == instant);
            if let Some(fired) = fired {
                return Some(fired.outcome.clone());
            }
            changed.changed().await.ok()?;
        }
    }
}

/// Ids of new schedules: no epoch is used twice.
#[derive(Debug)]
struct Ids {
    epoch: Epoch,
    last: u64,
}

impl Ids {
    fn next(&mut self) -> Arc<str> {
        self.last += 1;
        format!("s{}-{}", self.epoch.0, self.last).into()
    }
}
