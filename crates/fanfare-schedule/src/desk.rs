//! All firings, from due to accepted: what is written, who is asked.
//!
//! **Write ahead.** That a schedule's occurrence has come, and which data plane is asked to accept it, is durable before
//! that one is asked ([`Command::Write`], then [`Event::Written`], then [`Command::Ask`]). So after a crash at any point
//! the same data plane is asked again, under the same key, and each occurrence is accepted once. When an occurrence's
//! time is over it is asked only whether it has the call: what it does not have is not begun late.
//!
//! At most one firing of a schedule is under way; occurrences that come meanwhile are missed ones.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use fanfare_types::{DataPlaneId, Reason, Timestamp};

use crate::handover::{Handover, Move};
use crate::{Calendar, Missed, Plan, Schedules, Wall};

/// Past firings that are kept of each schedule.
pub const FIRED_KEPT: usize = 10;
/// Questions to data planes that are open at once.
pub const ASKS_MAX: usize = 128;
/// Occurrences that are taken up in one step.
const DUE_MAX: usize = 256;

/// The moment of a step.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// On the process's own time line: pauses and patience.
    pub at: Timestamp,
    /// By the wall clock: what is due.
    pub wall: Wall,
}

/// What a schedule asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// When.
    pub calendar: Calendar,
    /// What becomes of missed occurrences.
    pub missed: Missed,
    /// The function runs once or not at all.
    pub at_most_once: bool,
}

/// What is kept of a schedule, durably.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Occurrences count that come after this.
    pub after: Wall,
    /// Nothing is due.
    pub paused: bool,
    /// The firing that is under way.
    pub firing: Option<Firing>,
    /// Firings that have ended, the latest first, at most [`FIRED_KEPT`].
    pub fired: Vec<Fired>,
}

/// A firing that is under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Firing {
    /// For which it was planned.
    pub instant: Wall,
    /// Asked for by hand, whatever the calendar says.
    pub by_hand: bool,
    /// Earlier occurrences that were left out.
    pub left_out: u32,
    /// When it was taken up, by the wall clock: later than planned where it was missed.
    pub begun: Wall,
    /// The data plane that is asked.
    pub asked: Option<DataPlaneId>,
}

/// A firing that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fired {
    /// For which it was planned.
    pub instant: Wall,
    /// Asked for by hand.
    pub by_hand: bool,
    /// Earlier occurrences that were left out.
    pub left_out: u32,
    /// When it ended, by the wall clock. To be shown.
    pub at: Wall,
    /// How.
    pub outcome: Outcome,
}

/// How a firing ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A data plane has accepted the call, durably.
    Accepted {
        /// The call's id.
        id: Arc<str>,
    },
    /// It was missed, and missed ones are skipped.
    Skipped,
    /// No data plane has accepted it in time, nor may have: the function is not called.
    GivenUp {
        /// Why, in a word.
        reason: Reason,
        /// One sentence.
        detail: Arc<str>,
    },
    /// Whether it was accepted is not known.
    Unknown {
        /// One sentence.
        detail: Arc<str>,
    },
}

/// What a data plane says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It has the call, durably, under this id.
    Accepted(Arc<str>),
    /// It has not.
    Refused {
        /// Why, in a word.
        reason: Reason,
        /// One sentence.
        detail: Arc<str>,
        /// No other would, either.
        for_good: bool,
    },
    /// It was not asked: provably nothing was sent.
    NotAsked,
    /// Nothing, or nothing that says whether it has the call.
    None(Arc<str>),
}

/// Something happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// Time has passed.
    Tick,
    /// These data planes are connected, and no others.
    DataPlanes(Vec<DataPlaneId>),
    /// What [`Command::Write`] ordered is durable.
    Written(String),
    /// The answer to [`Command::Ask`].
    Answered {
        /// The question's number.
        number: u64,
        /// What it is.
        answer: Answer,
    },
}

/// Something is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Make the schedule's [`State`] durable, and say so. One at a time of each.
    Write(String),
    /// Ask a data plane to accept the firing that is under way.
    Ask {
        /// Names the question.
        number: u64,
        /// Whose firing.
        schedule: String,
        /// Whom.
        data_plane: DataPlaneId,
        /// Ask whether it has the call, and not to accept it.
        only_if_known: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    /// And then ask.
    Writing(Option<DataPlaneId>),
    Ready(DataPlaneId),
    Asking(u64),
    Pausing(Timestamp),
}

#[derive(Debug)]
struct Entry {
    missed: Missed,
    at_most_once: bool,
    state: State,
    phase: Phase,
    handover: Option<Handover>,
    frozen: bool,
    /// An answer that came while it was frozen.
    aside: Option<Answer>,
}

/// The state machine.
#[derive(Debug, Default)]
pub struct Desk {
    schedules: Schedules,
    entries: BTreeMap<String, Entry>,
    timers: BTreeSet<(Timestamp, String)>,
    /// Whose firing may be asked about as soon as fewer questions are open.
    ready: VecDeque<String>,
    asks: BTreeMap<u64, String>,
    last_ask: u64,
    data_planes: Vec<DataPlaneId>,
    turn: usize,
}

impl Desk {
    /// Adds a schedule, or replaces the one of that name; what is given is durable already. A firing that is under way
    /// goes on.
    pub fn set(&mut self, now: Now, name: &str, rules: Rules, state: State) {
        self.remove(name);
        let plan = Plan { calendar: rules.calendar, missed: rules.missed, after: state.after };
        self.schedules.set(name, plan);
        let handover = state.firing.as_ref().map(|firing| {
            let late = firing.late(rules.missed, now.wall);
            self.turn = self.turn.wrapping_add(1);
            Handover::begin(now.at, late, rules.missed, rules.at_most_once, firing.asked, self.turn)
        });
        let phase = match handover {
            Some(_) => Phase::Pausing(now.at),
            None => Phase::Idle,
        };
        if handover.is_some() {
            self.timers.insert((now.at, name.to_owned()));
        }
        let (missed, at_most_once) = (rules.missed, rules.at_most_once);
        let entry = Entry { missed, at_most_once, state, phase, handover, frozen: false, aside: None };
        self.entries.insert(name.to_owned(), entry);
        self.settle(name);
    }

    /// Takes a schedule out, whatever is under way; `false` when there is none of that name.
    pub fn remove(&mut self, name: &str) -> bool {
        self.schedules.remove(name);
        let Some(entry) = self.entries.remove(name) else { return false };
        match entry.phase {
            Phase::Pausing(at) => drop(self.timers.remove(&(at, name.to_owned()))),
            Phase::Asking(number) => drop(self.asks.remove(&number)),
            Phase::Ready(_) => self.ready.retain(|ready| ready != name),
            Phase::Idle | Phase::Writing(_) => {}
        }
        true
    }

    /// What is kept of a schedule, which stays so until [`Desk::thaw`], [`Desk::set`] or [`Desk::remove`]: for whoever
    /// wants to write something else. `None` while it is being written, or frozen, or is not there.
    pub fn freeze(&mut self, name: &str) -> Option<State> {
        let entry = self.entries.get_mut(name)?;
        if entry.frozen || matches!(entry.phase, Phase::Writing(_)) {
            return None;
        }
        entry.frozen = true;
        let state = entry.state.clone();
        self.settle(name);
        Some(state)
    }

    /// It goes on as it was.
    pub fn thaw(&mut self, now: Now, name: &str, commands: &mut Vec<Command>) {
        let Some(entry) = self.entries.get_mut(name) else { return };
        entry.frozen = false;
        match entry.aside.take() {
            Some(answer) => self.take_answer(now, name, answer, commands),
            None if matches!(entry.phase, Phase::Pausing(_)) => self.advance(now, name, commands),
            None => {}
        }
        self.settle(name);
    }

    /// Takes in what happened.
    pub fn step(&mut self, now: Now, event: Event, commands: &mut Vec<Command>) {
        match event {
            Event::Tick => self.tick(now, commands),
            Event::DataPlanes(data_planes) => {
                self.data_planes = data_planes;
                let pausing = |entry: &Entry| matches!(entry.phase, Phase::Pausing(_));
                let names = self.entries.iter().filter(|(_, entry)| pausing(entry));
                for name in names.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
                    self.advance(now, &name, commands);
                }
            }
            Event::Written(name) => self.written(&name),
            Event::Answered { number, answer } => {
                if let Some(name) = self.asks.remove(&number) {
                    self.take_answer(now, &name, answer, commands);
                }
            }
        }
        self.ask(now, commands);
    }

    /// How long nothing is due, as far as can be known; say [`Event::Tick`] then.
    #[must_use]
    pub fn wait(&self, now: Now) -> Duration {
        let timer = self.timers.first().map_or(Duration::MAX, |(at, _)| at.since(now.at));
        self.schedules.wait(now.wall).min(timer)
    }

    /// What is kept of a schedule.
    #[must_use]
    pub fn state(&self, name: &str) -> Option<&State> {
        self.entries.get(name).map(|entry| &entry.state)
    }

    /// Why the firing that is under way is not accepted yet.
    #[must_use]
    pub fn trouble(&self, name: &str) -> Option<(Reason, Arc<str>)> {
        self.entries.get(name)?.handover.as_ref()?.trouble.clone()
    }

    fn tick(&mut self, now: Now, commands: &mut Vec<Command>) {
        for due in self.schedules.due(now.wall, DUE_MAX) {
            let Some(entry) = self.entries.get_mut(&due.schedule) else { continue };
            let (instant, left_out) = (due.instant, due.left_out);
            entry.state.after = instant;
            let mut firing = Firing { instant, by_hand: false, left_out, begun: now.wall, asked: None };
            if due.skipped {
                entry.state.firing = Some(firing);
                self.end(now, &due.schedule, Outcome::Skipped, commands);
                continue;
            }
            let late = firing.late(entry.missed, now.wall);
            self.turn = self.turn.wrapping_add(1);
            let mut handover =
                Handover::begin(now.at, late, entry.missed, entry.at_most_once, None, self.turn);
            let ask = match handover.next(now.at, &self.data_planes) {
                Move::Ask(data_plane) => Some(data_plane),
                // Looked at again when it is durable that it has begun.
                Move::Wait(_) | Move::End(_) => None,
            };
            entry.handover = Some(handover);
            firing.asked = ask;
            entry.state.firing = Some(firing);
            self.write(&due.schedule, ask, commands);
        }
        while let Some((at, name)) = self.timers.first().cloned().filter(|(at, _)| *at <= now.at) {
            self.timers.remove(&(at, name.clone()));
            match self.entries.get(&name) {
                // It is looked at again when it is thawed.
                Some(entry) if entry.frozen => {}
                Some(_) => self.advance(now, &name, commands),
                None => {}
            }
        }
    }

    fn written(&mut self, name: &str) {
        let Some(entry) = self.entries.get_mut(name) else { return };
        let Phase::Writing(ask) = entry.phase else { return };
        match ask {
            Some(data_plane) => {
                entry.phase = Phase::Ready(data_plane);
                self.ready.push_back(name.to_owned());
            }
            None => {
                entry.phase = Phase::Idle;
                if entry.state.firing.is_some() {
                    entry.phase = Phase::Pausing(Timestamp::ZERO);
                    self.timers.insert((Timestamp::ZERO, name.to_owned()));
                }
            }
        }
        self.settle(name);
    }

    /// Asks about as many as may be open.
    fn ask(&mut self, now: Now, commands: &mut Vec<Command>) {
        while self.asks.len() < ASKS_MAX
            && let Some(name) = self.ready.pop_front()
        {
            let Some(entry) = self.entries.get_mut(&name) else { continue };
            let (Phase::Ready(data_plane), Some(handover)) = (&entry.phase, &mut entry.handover) else {
                continue;
            };
            let data_plane = *data_plane;
            if handover.is_over(now.at) {
                entry.phase = Phase::Pausing(now.at);
                self.advance(now, &name, commands);
                continue;
            }
            let only_if_known = handover.asked(now.at, data_plane);
            self.last_ask += 1;
            entry.phase = Phase::Asking(self.last_ask);
            self.asks.insert(self.last_ask, name.clone());
            commands.push(Command::Ask { number: self.last_ask, schedule: name, data_plane, only_if_known });
        }
    }

    fn take_answer(&mut self, now: Now, name: &str, answer: Answer, commands: &mut Vec<Command>) {
        let Some(entry) = self.entries.get_mut(name) else { return };
        if entry.frozen {
            entry.aside = Some(answer);
            return;
        }
        let Some(handover) = &mut entry.handover else { return };
        match handover.answered(now.at, answer) {
            Some(outcome) => self.end(now, name, outcome, commands),
            None => {
                entry.phase = Phase::Pausing(now.at);
                self.advance(now, name, commands);
            }
        }
    }

    /// Goes on with a firing that pauses.
    fn advance(&mut self, now: Now, name: &str, commands: &mut Vec<Command>) {
        let Some(entry) = self.entries.get_mut(name).filter(|entry| !entry.frozen) else { return };
        let (Phase::Pausing(at), Some(handover), Some(firing)) =
            (&entry.phase, &mut entry.handover, &mut entry.state.firing)
        else {
            return;
        };
        self.timers.remove(&(*at, name.to_owned()));
        match handover.next(now.at, &self.data_planes) {
            Move::Ask(data_plane) if firing.asked == Some(data_plane) => {
                entry.phase = Phase::Ready(data_plane);
                self.ready.push_back(name.to_owned());
            }
            Move::Ask(data_plane) => {
                firing.asked = Some(data_plane);
                self.write(name, Some(data_plane), commands);
            }
            Move::Wait(until) => {
                entry.phase = Phase::Pausing(until);
                self.timers.insert((until, name.to_owned()));
            }
            Move::End(outcome) => self.end(now, name, outcome, commands),
        }
    }

    fn end(&mut self, now: Now, name: &str, outcome: Outcome, commands: &mut Vec<Command>) {
        let Some(entry) = self.entries.get_mut(name) else { return };
        entry.handover = None;
        if let Some(Firing { instant, by_hand, left_out, .. }) = entry.state.firing.take() {
            entry.state.fired.insert(0, Fired { instant, by_hand, left_out, at: now.wall, outcome });
            entry.state.fired.truncate(FIRED_KEPT);
        }
        self.write(name, None, commands);
    }

    fn write(&mut self, name: &str, then: Option<DataPlaneId>, commands: &mut Vec<Command>) {
        if let Some(entry) = self.entries.get_mut(name) {
            entry.phase = Phase::Writing(then);
            commands.push(Command::Write(name.to_owned()));
        }
        self.settle(name);
    }

    /// Nothing of a schedule is due while something of it is under way.
    fn settle(&mut self, name: &str) {
        let Some(entry) = self.entries.get(name) else { return };
        let free = entry.phase == Phase::Idle && !entry.frozen && !entry.state.paused;
        self.schedules.hold(name, !free);
    }
}

impl Firing {
    /// How much of the time in which it is handed over has passed.
    fn late(&self, missed: Missed, wall: Wall) -> Duration {
        let since = match missed {
            Missed::Skip => self.instant,
            // It may be late when it is taken up.
            Missed::Once => self.begun,
        };
        Duration::from_millis(wall.0.saturating_sub(since.0))
    }
}

impl State {
    /// Begins a firing now, whatever the calendar says; `false` while one is under way.
    pub fn fire(&mut self, wall: Wall) -> bool {
        if self.firing.is_some() {
            return false;
        }
        // Instants name firings: one that is made in the same millisecond, or after the clock was set back, is another.
        let by_hand = self.fired.iter().filter(|fired| fired.by_hand).map(|fired| fired.instant.0 + 1).max();
        let instant = Wall(wall.0.max(by_hand.unwrap_or(0)));
        self.firing = Some(Firing { instant, by_hand: true, left_out: 0, begun: instant, asked: None });
        true
    }
}

#[cfg(test)]
mod tests;
