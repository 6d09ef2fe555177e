//! When scheduled calls are due.
//!
//! A [`Calendar`] says at which instants something is to happen: by a cron expression in a time zone, or once.
//! [`Schedules`] is the state machine of all of them: told the time, it says what is due, and how long to wait.
//! [`Desk`] takes each occurrence from there to a data plane that has accepted the call, over crashes and broken streams.
//!
//! This is the one place where a wall clock decides something, because that is what was asked for: "at half past two
//! in Zurich". It decides *when*, never in which order: an occurrence is named by the instant for which it was
//! planned, and each happens at most once however the clock is set.

mod calendar;
mod desk;
mod handover;
mod schedules;
mod spec;

pub use calendar::{Calendar, CalendarError, Wall};
pub use desk::{
    ASKS_MAX, Answer, Command, Desk, Event, FIRED_KEPT, Fired, Firing, Now, Outcome, Rules, State,
};
pub use handover::{LATE_MAX, LOST_AFTER, PAUSE_MAX, PAUSE_MIN};
pub use schedules::{Due, LEFT_OUT_MAX, LOOK_AGAIN, Missed, ON_TIME, Plan, Schedules};
pub use spec::{ScheduleSpec, When};

/// Bytes of a cron expression.
pub const EXPRESSION_BYTES_MAX: usize = 256;
/// Bytes of a time zone's name.
pub const ZONE_BYTES_MAX: usize = 64;
