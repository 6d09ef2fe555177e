//! How one firing gets to a data plane.

use std::sync::Arc;
use std::time::Duration;

use fanfare_types::{DataPlaneId, Reason, Timestamp};

use crate::desk::{Answer, Outcome};
use crate::{Missed, ON_TIME};

/// Under [`Missed::Once`] a firing is handed over for so long after it was taken up.
pub const LATE_MAX: Duration = Duration::from_secs(3_600);
/// A data plane that was asked to accept a firing, and has not answered for this long, is given up.
pub const LOST_AFTER: Duration = Duration::from_secs(120);
/// First pause after a data plane that did not accept a firing; doubles to the maximum.
pub const PAUSE_MIN: Duration = Duration::from_millis(100);
/// Longest such pause.
pub const PAUSE_MAX: Duration = Duration::from_secs(5);

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Move {
    Ask(DataPlaneId),
    Wait(Timestamp),
    End(Outcome),
}

/// One firing on its way.
///
/// A data plane that has been asked and has not answered may have accepted the call: no other is asked then, until that
/// one is given up. The same one is asked again: in time to accept it, for the call has a key there; afterwards only
/// whether it has it, for it may have forgotten the key or may never have been asked, and would begin it then.
#[derive(Clone, Debug)]
pub(crate) struct Handover {
    /// No data plane is asked to begin it from then on.
    deadline: Timestamp,
    /// Another data plane may be asked though one that is given up may have it.
    twice: bool,
    /// Who may have accepted it, and since when.
    maybe: Option<(DataPlaneId, Timestamp)>,
    /// The same, as it was before the question that is open.
    before: Option<(DataPlaneId, Timestamp)>,
    /// One was given up that may have accepted it.
    given_up: bool,
    tries: u32,
    /// Which data plane comes first.
    turn: usize,
    not_before: Timestamp,
    /// Why it is not accepted yet.
    pub(crate) trouble: Option<(Reason, Arc<str>)>,
}

impl Handover {
    /// A firing of whose time so much has passed already (`late`), of which `asked` may know; `turn` says which data plane comes first.
    pub(crate) fn begin(
        now: Timestamp,
        late: Duration,
        missed: Missed,
        at_most_once: bool,
        asked: Option<DataPlaneId>,
        turn: usize,
    ) -> Self {
        let patience = match missed {
            Missed::Skip => ON_TIME,
            Missed::Once => LATE_MAX,
        };
        let maybe = asked.map(|asked| (asked, now));
        Handover {
            deadline: now + patience.saturating_sub(late),
            twice: missed == Missed::Once && !at_most_once,
            maybe,
            before: maybe,
            given_up: false,
            tries: 0,
            turn,
            not_before: now,
            trouble: None,
        }
    }

    /// What to do at `now`, while these data planes are connected.
    pub(crate) fn next(&mut self, now: Timestamp, connected: &[DataPlaneId]) -> Move {
        let turn = self.turn.wrapping_add(self.tries as usize);
        let Some((asked, since)) = self.maybe else { return self.next_unasked(now, connected, turn) };
        let lost = since + LOST_AFTER;
        if now >= lost {
            let others: Vec<_> = connected.iter().copied().filter(|other| *other != asked).collect();
            return match others.get(turn % others.len().max(1)) {
                Some(other) if self.twice && now < self.deadline => {
                    self.maybe = None;
                    self.before = None;
                    self.given_up = true;
                    Move::Ask(*other)
                }
                None if self.twice && now < self.deadline => Move::Wait((now + PAUSE_MAX).min(self.deadline)),
                _ => {
                    let detail = format!("the data plane {asked} was asked and has not answered");
                    Move::End(Outcome::Unknown { detail: detail.into() })
                }
            };
        }
        if now < self.not_before {
            return Move::Wait(self.not_before.min(lost));
        }
        match connected.contains(&asked) {
            true => Move::Ask(asked),
            false => Move::Wait(lost),
        }
    }

    fn next_unasked(&mut self, now: Timestamp, connected: &[DataPlaneId], turn: usize) -> Move {
        if now >= self.deadline {
            let (reason, detail) = self.trouble.clone().unwrap_or_else(no_data_plane);
            return Move::End(self.ended_without(reason, detail));
        }
        if now < self.not_before {
            return Move::Wait(self.not_before.min(self.deadline));
        }
        match connected.get(turn % connected.len().max(1)) {
            Some(data_plane) => Move::Ask(*data_plane),
            None => {
                self.trouble = Some(no_data_plane());
                Move::Wait(self.deadline)
            }
        }
    }

    /// Its time has passed before anybody was asked who may still answer: nobody is asked any more.
    pub(crate) fn is_over(&self, now: Timestamp) -> bool {
        self.maybe.is_none() && now >= self.deadline
    }

    /// The data plane is being asked: `true` for whether it has the call, and not to accept it.
    pub(crate) fn asked(&mut self, now: Timestamp, data_plane: DataPlaneId) -> bool {
        self.before = self.maybe.filter(|(asked, _)| *asked == data_plane);
        self.maybe = Some(self.before.unwrap_or((data_plane, now)));
        now >= self.deadline
    }

    /// It has answered, or not; the end of the firing, if this is it.
    pub(crate) fn answered(&mut self, now: Timestamp, answer: Answer) -> Option<Outcome> {
        match answer {
            Answer::Accepted(id) => return Some(Outcome::Accepted { id }),
            Answer::Refused { reason, detail, for_good: true } => {
                return Some(self.ended_without(reason, detail));
            }
            Answer::Refused { reason, detail, for_good: false } => {
                // What was asked before this question and never answered may have been accepted all the same.
                self.maybe = self.before;
                self.trouble = Some((reason, detail));
            }
            Answer::NotAsked => self.maybe = self.before,
            Answer::None(detail) => self.trouble = Some((Reason::Unavailable, detail)),
        }
        let pause = PAUSE_MIN.saturating_mul(1 << self.tries.min(10)).min(PAUSE_MAX);
        self.tries = self.tries.saturating_add(1);
        self.not_before = now + pause;
        None
    }

    /// Nobody has said that it is accepted, and nobody is asked any more.
    fn ended_without(&self, reason: Reason, detail: Arc<str>) -> Outcome {
        match self.before.is_some() || self.given_up {
            true => {
                let detail = format!("a data plane was asked earlier and has not answered; now: {detail}");
                Outcome::Unknown { detail: detail.into() }
            }
            false => Outcome::GivenUp { reason, detail },
        }
    }
}

fn no_data_plane() -> (Reason, Arc<str>) {
    (Reason::Unavailable, "no data plane is connected".into())
}
