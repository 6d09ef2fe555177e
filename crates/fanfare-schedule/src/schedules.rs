//! All schedules, and what of them is due.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::{Calendar, Wall};

/// What is later than this was missed: nothing ran that could have made it happen in time.
pub const ON_TIME: Duration = Duration::from_secs(60);
/// The clock is looked at this often even when nothing is due sooner: it may have been set.
pub const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// Missed occurrences are counted up to this.
pub const LEFT_OUT_MAX: u32 = 100;

/// What becomes of occurrences that came while nothing ran to make them happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Missed {
    /// They are left out.
    #[default]
    Skip,
    /// The last of them happens late, once.
    Once,
}

/// One schedule.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// When.
    pub calendar: Calendar,
    /// What becomes of missed occurrences.
    pub missed: Missed,
    /// The occurrence that happened (or was skipped) last, or when the schedule was made: only later ones count.
    pub after: Wall,
}

/// Something that is to happen now. Its schedule and instant name it: it never comes again, so whoever carries it out
/// keeps `instant` as the plan's [`Plan::after`], durably.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    /// Whose.
    pub schedule: String,
    /// For which it was planned.
    pub instant: Wall,
    /// It does not happen: it was missed, and missed ones are skipped.
    pub skipped: bool,
    /// How many earlier ones the same schedule missed, which do not happen: at most [`LEFT_OUT_MAX`] are counted.
    pub left_out: u32,
}

/// The state machine. Schedules whose calendar has ended stay until they are removed, and are never due.
#[derive(Debug, Default)]
pub struct Schedules {
    plans: BTreeMap<String, Plan>,
    /// When each is to be looked at: its next occurrence.
    next: BTreeSet<(Wall, String)>,
    /// Those that are not due, whatever the time.
    held: BTreeSet<String>,
}

impl Schedules {
    /// Adds a schedule, or replaces the one of that name.
    pub fn set(&mut self, name: &str, plan: Plan) {
        self.remove(name);
        if let Some(next) = plan.calendar.next_after(plan.after) {
            self.next.insert((next, name.to_owned()));
        }
        self.plans.insert(name.to_owned(), plan);
    }

    /// Has nothing of a schedule be due until it is let go. What comes meanwhile is missed.
    pub fn hold(&mut self, name: &str, hold: bool) {
        let Some(plan) = self.plans.get(name) else { return };
        let changed = if hold { self.held.insert(name.to_owned()) } else { self.held.remove(name) };
        if changed && let Some(next) = plan.calendar.next_after(plan.after) {
            match hold {
                true => drop(self.next.remove(&(next, name.to_owned()))),
                false => drop(self.next.insert((next, name.to_owned()))),
            }
        }
    }

    /// Takes a schedule out; `false` when there is none of that name.
    pub fn remove(&mut self, name: &str) -> bool {
        let Some(plan) = self.plans.remove(name) else { return false };
        self.held.remove(name);
        if let Some(next) = plan.calendar.next_after(plan.after) {
            self.next.remove(&(next, name.to_owned()));
        }
        true
    }

    /// What is due at `now`, in the order of the instants, at most `limit` of them; each once, whatever the clock does
    /// later. Of several that one schedule missed only the last is told, the others with it.
    pub fn due(&mut self, now: Wall, limit: usize) -> Vec<Due> {
        let mut due = Vec::new();
        while due.len() < limit {
            let Some((first, name)) = self.next.first().cloned().filter(|(at, _)| *at <= now) else { break };
            self.next.pop_first();
            let Some(plan) = self.plans.get_mut(&name) else { continue };
            let instant = plan.calendar.last_within(plan.after, now).unwrap_or(first).max(first);
            let left_out = left_out(&plan.calendar, first, instant);
            let is_late = now.0.saturating_sub(instant.0) > ON_TIME.as_millis() as u64;
            plan.after = instant;
            if let Some(next) = plan.calendar.next_after(instant) {
                self.next.insert((next, name.clone()));
            }
            let skipped = is_late && plan.missed == Missed::Skip;
            due.push(Due { schedule: name, instant, skipped, left_out });
        }
        due
    }

    /// How long nothing is due, as far as can be known; look again then.
    #[must_use]
    pub fn wait(&self, now: Wall) -> Duration {
        let first = self.next.first().map_or(u64::MAX, |(at, _)| at.0.saturating_sub(now.0));
        Duration::from_millis(first).min(LOOK_AGAIN)
    }

    /// The schedule of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Plan> {
        self.plans.get(name)
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.plans.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.plans.is_empty()
    }
}

/// How many instants there are from `first` on and before `last`.
fn left_out(calendar: &Calendar, first: Wall, last: Wall) -> u32 {
    let instants = std::iter::successors(Some(first), |at| calendar.next_after(*at));
    let before = instants.take_while(|at| *at < last).take(LEFT_OUT_MAX as usize);
    u32::try_from(before.count()).unwrap_or(LEFT_OUT_MAX)
}

#[cfg(test)]
mod tests;
