//! A schedule as it was asked for.

use std::sync::Arc;
use std::time::Duration;

use fanfare_types::FunctionName;

use crate::{Calendar, CalendarError, Missed, Rules, Wall};

/// A schedule: when a function is called, and with what. Right by construction: `fanfare-api` checks each field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleSpec {
    /// Its name: as a function's.
    pub name: FunctionName,
    /// The function that is called.
    pub function: FunctionName,
    /// When.
    pub when: When,
    /// The HTTP method.
    pub method: Arc<str>,
    /// Path and query, from the slash on.
    pub path: Arc<str>,
    /// Header fields.
    pub headers: Vec<(Arc<str>, Arc<str>)>,
    /// The body.
    pub body: Arc<str>,
    /// The function runs once or not at all, instead of once or more often.
    pub at_most_once: bool,
    /// Attempts that may fail; `None` for the default of asynchronous invocations.
    pub attempts_max: Option<u32>,
    /// How long an attempt may still begin; `None` for their default.
    pub age_max: Option<Duration>,
    /// What becomes of missed occurrences.
    pub missed: Missed,
}

/// When something is to happen, as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum When {
    /// By a cron expression.
    Cron {
        /// The expression.
        expression: Arc<str>,
        /// The time zone, by its name in the IANA database.
        zone: Arc<str>,
    },
    /// Once.
    At(Wall),
}

impl When {
    /// The instants.
    ///
    /// # Errors
    /// [`CalendarError`].
    pub fn calendar(&self) -> Result<Calendar, CalendarError> {
        match self {
            // Whatever the time: one that is kept must be readable again.
            When::Cron { expression, zone } => Calendar::cron(expression, zone, Wall(0)),
            When::At(at) => Ok(Calendar::At(*at)),
        }
    }
}

impl ScheduleSpec {
    /// What the desk must know of it.
    ///
    /// # Errors
    /// [`CalendarError`].
    pub fn rules(&self) -> Result<Rules, CalendarError> {
        let calendar = self.when.calendar()?;
        Ok(Rules { calendar, missed: self.missed, at_most_once: self.at_most_once })
    }
}
