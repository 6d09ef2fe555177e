//! The instants of one schedule.

use std::fmt;

use chrono::{DateTime, SecondsFormat, TimeZone, Utc};
use chrono_tz::Tz;
use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};

mod fields;

use crate::{EXPRESSION_BYTES_MAX, ZONE_BYTES_MAX};

/// An instant of the wall clock: milliseconds since 1970 in UTC, without leap seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Wall(pub u64);

impl Wall {
    /// The last instant of the year 9999: later ones have no common way to be written.
    pub const MAX: Wall = Wall(253_402_300_799_999);

    fn to_utc(self) -> Option<DateTime<Utc>> {
        Utc.timestamp_millis_opt(i64::try_from(self.min(Wall::MAX).0).ok()?).single()
    }

    fn from_utc(time: DateTime<Utc>) -> Option<Wall> {
        u64::try_from(time.timestamp_millis()).ok().map(Wall).filter(|wall| *wall <= Wall::MAX)
    }
}

/// As RFC 3339, in UTC, to the millisecond where there are any.
impl fmt::Display for Wall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.to_utc() {
            Some(time) => f.write_str(&time.to_rfc3339_opts(SecondsFormat::AutoSi, true)),
            None => write!(f, "{} ms after 1970", self.0),
        }
    }
}

/// When something is to happen.
#[derive(Clone, Debug, PartialEq)]
pub enum Calendar {
    /// By a cron expression, whose fields are those of a clock in a time zone.
    ///
    /// Five fields (minute to day of week), or six with seconds first, as the Open Cron Pattern Specification has
    /// them (`L`, `#`, `W` and `@daily` and its kin included). Where the clocks go forward, an expression that names
    /// hours and minutes has what falls into the gap happen right after it; where they go back, it happens once, the
    /// first time. Expressions of intervals (`*/10 * * * *`) go by real time in both cases.
    Cron {
        /// The expression, parsed.
        cron: Box<Cron>,
        /// Whose clock.
        zone: Tz,
    },
    /// Once, at this instant.
    At(Wall),
}

/// Why there is no such calendar.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CalendarError {
    /// The expression cannot be read.
    #[error("the cron expression {expression:?} cannot be read: {why}")]
    Expression {
        /// What was given.
        expression: String,
        /// What is wrong with it.
        why: String,
    },
    /// No instant, ever, fits the expression.
    #[error("the cron expression {expression:?} never comes to pass")]
    Never {
        /// What was given.
        expression: String,
    },
    /// There is no such time zone.
    #[error("there is no time zone {zone:?}; one is called like Europe/Zurich or UTC")]
    Zone {
        /// What was given.
        zone: String,
    },
    /// The time cannot be read.
    #[error(
        "the time {time:?} cannot be read; write it like 2030-01-31T12:00:00Z or 2030-01-31T12:00:00+02:00"
    )]
    Time {
        /// What was given.
        time: String,
    },
    /// What was given is longer than it can be.
    #[error("{what} has {bytes} bytes; at most {limit} are allowed")]
    TooLong {
        /// Which.
        what: &'static str,
        /// How long.
        bytes: usize,
        /// How long at most.
        limit: usize,
    },
}

impl Calendar {
    /// A cron expression in a time zone of the IANA database.
    ///
    /// # Errors
    /// [`CalendarError`], also for an expression of which no instant after `now` comes, like one for February 30.
    pub fn cron(expression: &str, zone: &str, now: Wall) -> Result<Calendar, CalendarError> {
        bounded("a cron expression", expression, EXPRESSION_BYTES_MAX)?;
        bounded("a time zone", zone, ZONE_BYTES_MAX)?;
        let zone: Tz = zone.parse().map_err(|_| CalendarError::Zone { zone: zone.to_owned() })?;
        // The parser takes a list without items for a field that nothing fits, and looks for that instant for seconds.
        let is_hollow = |field: &str| field.split(',').any(str::is_empty);
        if expression.split_whitespace().any(is_hollow) {
            let why = "a list has an empty item".to_owned();
            return Err(CalendarError::Expression { expression: expression.to_owned(), why });
        }
        if let Some(why) = fields::wrong(expression) {
            return Err(CalendarError::Expression { expression: expression.to_owned(), why });
        }
        let parser = CronParser::builder().seconds(Seconds::Optional).year(Year::Disallowed).build();
        let cron = parser.parse(expression).map_err(|error| CalendarError::Expression {
            expression: expression.to_owned(),
            why: error.to_string(),
        })?;
        let calendar = Calendar::Cron { cron: Box::new(cron), zone };
        match calendar.next_after(now) {
            Some(_) => Ok(calendar),
            None => Err(CalendarError::Never { expression: expression.to_owned() }),
        }
    }

    /// An instant as RFC 3339 writes it, with its offset.
    ///
    /// # Errors
    /// [`CalendarError::Time`].
    pub fn at(time: &str) -> Result<Calendar, CalendarError> {
        bounded("a time", time, ZONE_BYTES_MAX)?;
        let parsed = DateTime::parse_from_rfc3339(time).ok();
        let wall = parsed.and_then(|time| Wall::from_utc(time.with_timezone(&Utc)));
        wall.map(Calendar::At).ok_or_else(|| CalendarError::Time { time: time.to_owned() })
    }

    /// An instant as its own clock shows it, with its offset from UTC: RFC 3339.
    #[must_use]
    pub fn local(&self, wall: Wall) -> String {
        match (self, wall.to_utc()) {
            (Calendar::Cron { zone, .. }, Some(time)) => {
                time.with_timezone(zone).to_rfc3339_opts(SecondsFormat::AutoSi, true)
            }
            _ => wall.to_string(),
        }
    }

    /// The first instant after `wall`; `None` when there is none any more.
    #[must_use]
    pub fn next_after(&self, wall: Wall) -> Option<Wall> {
        match self {
            Calendar::At(at) => (*at > wall).then_some(*at),
            Calendar::Cron { cron, zone } => {
                let after = wall.to_utc()?.with_timezone(zone);
                let next = cron.find_next_occurrence(&after, false).ok()?;
                Wall::from_utc(next.with_timezone(&Utc)).filter(|next| *next > wall)
            }
        }
    }

    /// The last instant that is after `after` and not after `until`.
    #[must_use]
    pub fn last_within(&self, after: Wall, until: Wall) -> Option<Wall> {
        let found = match self {
            Calendar::At(at) => Some(*at),
            Calendar::Cron { cron, zone } => {
                let until = until.to_utc()?.with_timezone(zone);
                let last = cron.find_previous_occurrence(&until, true).ok()?;
                Wall::from_utc(last.with_timezone(&Utc))
            }
        };
        found.filter(|found| *found > after && *found <= until)
    }

    /// The next `count` instants after `wall`.
    #[must_use]
    pub fn upcoming(&self, wall: Wall, count: usize) -> Vec<Wall> {
        std::iter::successors(self.next_after(wall), |last| self.next_after(*last)).take(count).collect()
    }
}

fn bounded(what: &'static str, text: &str, limit: usize) -> Result<(), CalendarError> {
    match text.len() {
        bytes if bytes > limit => Err(CalendarError::TooLong { what, bytes, limit }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
