//! Schedules in the store.

use std::sync::Arc;

use bytes::Bytes;
use fanfare_api::ScheduleDocument;
use fanfare_schedule::{Fired, Firing, Outcome, ScheduleSpec, State, Wall};
use fanfare_store::Entry;
use fanfare_types::{DataPlaneId, Reason};
use serde::{Deserialize, Serialize};

use super::Schedule;
use crate::ControlPlaneError;

/// Keys begin so.
pub(super) const SCHEDULES: &str = "schedules/";
/// Raised when an older release could not read what this one writes.
const VERSION: u32 = 1;

pub(super) fn key(name: &str) -> String {
    format!("{SCHEDULES}{name}")
}

#[derive(Serialize, Deserialize)]
struct Stored {
    v: u32,
    id: String,
    #[serde(default)]
    created_unix_ms: u64,
    schedule: ScheduleDocument,
    after_ms: u64,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    paused: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    firing: Option<StoredFiring>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    fired: Vec<StoredFired>,
}

#[derive(Serialize, Deserialize)]
struct StoredFiring {
    instant_ms: u64,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    by_hand: bool,
    #[serde(default)]
    left_out: u32,
    begun_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    asked: Option<u32>,
}

#[derive(Serialize, Deserialize)]
struct StoredFired {
    instant_ms: u64,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    by_hand: bool,
    #[serde(default)]
    left_out: u32,
    at_ms: u64,
    outcome: StoredOutcome,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum StoredOutcome {
    Accepted(String),
    Skipped,
    GivenUp { reason: String, detail: String },
    Unknown(String),
}

/// The bytes to store.
pub(super) fn encode(schedule: &Schedule) -> Bytes {
    let stored = Stored {
        v: VERSION,
        id: schedule.id.to_string(),
        created_unix_ms: schedule.created_unix_ms,
        schedule: ScheduleDocument::from(&*schedule.spec),
        after_ms: schedule.state.after.0,
        paused: schedule.state.paused,
        firing: schedule.state.firing.as_ref().map(|firing| StoredFiring {
            instant_ms: firing.instant.0,
            by_hand: firing.by_hand,
            left_out: firing.left_out,
            begun_ms: firing.begun.0,
            asked: firing.asked.map(|asked| asked.0),
        }),
        fired: schedule.state.fired.iter().map(fired_to_store).collect(),
    };
    // Texts and whole numbers always have a JSON form.
    serde_json::to_vec(&stored).unwrap_or_default().into()
}

/// The schedule that [`encode`] wrote.
pub(super) fn decode(key: &str, entry: &Entry) -> Result<Schedule, ControlPlaneError> {
    let unreadable = |detail: String| ControlPlaneError::Entry { key: key.to_owned(), detail };
    let stored: Stored = serde_json::from_slice(&entry.value).map_err(|e| unreadable(e.to_string()))?;
    if stored.v > VERSION {
        let detail = format!("it has version {}; this release reads up to {VERSION}", stored.v);
        return Err(unreadable(detail));
    }
    let spec = ScheduleSpec::try_from(stored.schedule).map_err(|e| unreadable(e.to_string()))?;
    let rules = spec.rules().map_err(|e| unreadable(e.to_string()))?;
    Ok(Schedule {
        id: stored.id.into(),
        created_unix_ms: stored.created_unix_ms,
        spec: Arc::new(spec),
        rules,
        state: State {
            after: Wall(stored.after_ms),
            paused: stored.paused,
            firing: stored.firing.map(|firing| Firing {
                instant: Wall(firing.instant_ms),
                by_hand: firing.by_hand,
                left_out: firing.left_out,
                begun: Wall(firing.begun_ms),
                asked: firing.asked.map(DataPlaneId),
            }),
            fired: stored.fired.into_iter().map(fired_from_store).collect(),
        },
        trouble: None,
        bytes: entry.value.len(),
        stored: entry.revision,
    })
}

fn fired_to_store(fired: &Fired) -> StoredFired {
    StoredFired {
        instant_ms: fired.instant.0,
        by_hand: fired.by_hand,
        left_out: fired.left_out,
        at_ms: fired.at.0,
        outcome: match &fired.outcome {
            Outcome::Accepted { id } => StoredOutcome::Accepted(id.to_string()),
            Outcome::Skipped => StoredOutcome::Skipped,
            Outcome::GivenUp { reason, detail } => {
                StoredOutcome::GivenUp { reason: reason.code().to_owned(), detail: detail.to_string() }
            }
            Outcome::Unknown { detail } => StoredOutcome::Unknown(detail.to_string()),
        },
    }
}

fn fired_from_store(fired: StoredFired) -> Fired {
    let reason = |code: &str| Reason::ALL.iter().copied().find(|reason| reason.code() == code);
    Fired {
        instant: Wall(fired.instant_ms),
        by_hand: fired.by_hand,
        left_out: fired.left_out,
        at: Wall(fired.at_ms),
        outcome: match fired.outcome {
            StoredOutcome::Accepted(id) => Outcome::Accepted { id: id.into() },
            StoredOutcome::Skipped => Outcome::Skipped,
            // A reason that this version does not know is shown as an unknown one; the sentence is there.
            StoredOutcome::GivenUp { reason: code, detail } => {
                Outcome::GivenUp { reason: reason(&code).unwrap_or(Reason::Internal), detail: detail.into() }
            }
            StoredOutcome::Unknown(detail) => Outcome::Unknown { detail: detail.into() },
        },
    }
}

#[cfg(test)]
mod tests {
    use fanfare_store::Revision;

    use super::*;

    #[test]
    fn schedules_come_back_as_they_were() {
        let json =
            br#"{"name":"n","function":"f","cron":"30 2 * * *","zone":"Europe/Zurich","headers":{"a":"b"},
            "body":"\u0000 \"x\"","delivery":"at-most-once","max_age":"90s","missed":"once"}"#;
        let spec = ScheduleSpec::try_from(ScheduleDocument::from_json(json).unwrap()).unwrap();
        let outcomes = [
            Outcome::Accepted { id: "d1-2a-1".into() },
            Outcome::Skipped,
            Outcome::GivenUp { reason: Reason::FunctionNotFound, detail: "no \"f\"".into() },
            Outcome::Unknown { detail: "so".into() },
        ];
        let fired = |(n, outcome)| Fired {
            instant: Wall(n),
            by_hand: n == 1,
            left_out: n as u32,
            at: Wall(n + 9),
            outcome,
        };
        let full = Schedule {
            id: "s1-1".into(),
            created_unix_ms: 5,
            rules: spec.rules().unwrap(),
            spec: Arc::new(spec),
            state: State {
                after: Wall(1_900_000_000_000),
                paused: true,
                firing: Some(Firing {
                    instant: Wall(7),
                    by_hand: true,
                    left_out: 3,
                    begun: Wall(8),
                    asked: Some(DataPlaneId(4)),
                }),
                fired: (1..).zip(outcomes).map(fired).collect(),
            },
            trouble: None,
            bytes: 0,
            stored: Revision(8),
        };
        let bare = Schedule { state: State { after: Wall(1), ..State::default() }, ..full.clone() };
        for schedule in [full, bare] {
            let entry = Entry { value: encode(&schedule), revision: Revision(8) };
            let back = decode("schedules/n", &entry).unwrap();
            assert_eq!(Schedule { bytes: 0, ..back }, schedule);
            let text = String::from_utf8(entry.value.to_vec()).unwrap();
            for (from, to) in [("\"v\":1", "\"v\":2"), ("Europe/Zurich", "Mars"), ("{", "")] {
                let value = text.replacen(from, to, 1).into();
                let error = decode("schedules/n", &Entry { value, ..entry.clone() }).unwrap_err();
                assert!(
                    error.to_string().starts_with("the store's entry schedules/n cannot be read"),
                    "{error}"
                );
            }
        }
    }
}
