//! A record as it is written: JSON, so that a later version can add to it and people can read it.

use std::str::FromStr;
use std::time::Duration;

use fanfare_async::{
    Callback, Finished, IdempotencyKey, InvocationId, LastEnd, Payload, Record, Settings, State,
};
use fanfare_types::{FunctionId, FunctionName, Reason, Timestamp};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Stored {
    id: String,
    function: u32,
    name: String,
    delivery: String,
    attempts_max: u32,
    age_max_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    callback: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    request_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<StoredKey>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    payload: Option<StoredPayload>,
    state: String,
    /// `retrying`: when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    retry_ms: Option<u64>,
    /// `dead`: why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cause: Option<String>,
    accepted_ms: u64,
    accepted_shown_ms: u64,
    attempts: u32,
    failures: u32,
    interruptions: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last: Option<StoredEnd>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    result_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    finished: Option<StoredFinish>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    called_back: Option<StoredCallback>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    replay_of: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    replayed_as: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct StoredKey {
    key: String,
    fingerprint: String,
}

#[derive(Serialize, Deserialize)]
struct StoredPayload {
    key: u64,
    bytes: u64,
}

#[derive(Serialize, Deserialize)]
struct StoredEnd {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    detail: String,
}

#[derive(Serialize, Deserialize)]
struct StoredFinish {
    at_ms: u64,
    shown_ms: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum StoredCallback {
    Waiting { tries: u32, at_ms: u64 },
    Delivered,
    GivenUp,
}

/// Why bytes are no record.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unreadable {
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    #[error("its {0} is {1:?}")]
    Field(&'static str, String),
}

pub(crate) fn encode(record: &Record) -> Vec<u8> {
    let stored = Stored {
        id: record.id.to_string(),
        function: record.function.0,
        name: record.name.to_string(),
        delivery: record.settings.delivery.to_string(),
        attempts_max: record.settings.attempts_max,
        age_max_ms: u64::try_from(record.settings.age_max.as_millis()).unwrap_or(u64::MAX),
        callback: record.settings.callback.as_deref().map(str::to_owned),
        request_id: record.settings.request_id.as_deref().map(str::to_owned),
        key: record.key.as_ref().map(|key| StoredKey {
            key: key.key.to_string(),
            fingerprint: format!("{:032x}", key.fingerprint),
        }),
        payload: record.payload.map(|payload| StoredPayload { key: payload.key, bytes: payload.bytes }),
        state: record.state.kind().to_string(),
        retry_ms: if let State::Retrying(at) = record.state { Some(ms(at)) } else { None },
        cause: if let State::Dead(cause) = record.state { Some(cause.to_string()) } else { None },
        accepted_ms: ms(record.accepted),
        accepted_shown_ms: record.accepted_shown_ms,
        attempts: record.attempts,
        failures: record.failures,
        interruptions: record.interruptions,
        last: record.last.as_ref().map(|last| StoredEnd {
            status: last.status,
            reason: last.reason.map(|reason| reason.code().to_owned()),
            detail: last.detail.to_string(),
        }),
        result_bytes: record.result_bytes,
        finished: record
            .finished
            .map(|finished| StoredFinish { at_ms: ms(finished.at), shown_ms: finished.shown_ms }),
        called_back: match record.callback {
            Callback::None => None,
            Callback::Waiting { tries, at } => Some(StoredCallback::Waiting { tries, at_ms: ms(at) }),
            Callback::Delivered => Some(StoredCallback::Delivered),
            Callback::GivenUp => Some(StoredCallback::GivenUp),
        },
        replay_of: record.replay_of.map(|id| id.to_string()),
        replayed_as: record.replayed_as.map(|id| id.to_string()),
    };
    // Numbers and texts always have a JSON form.
    serde_json::to_vec(&stored).unwrap_or_default()
}

pub(crate) fn decode(bytes: &[u8]) -> Result<Record, Unreadable> {
    let stored: Stored = serde_json::from_slice(bytes)?;
    let other = |field, value: &str| Unreadable::Field(field, value.to_owned());
    let at = Timestamp::from_millis;
    let state = match stored.state.as_str() {
        "queued" => State::Queued,
        "running" => State::Running,
        "retrying" => State::Retrying(at(stored.retry_ms.ok_or_else(|| other("retry_ms", ""))?)),
        "succeeded" => State::Succeeded,
        "failed" => State::Failed,
        "cancelled" => State::Cancelled,
        "dead" => State::Dead(parsed("cause", &stored.cause.unwrap_or_default())?),
        state => return Err(other("state", state)),
    };
    let id = |field, text: Option<String>| text.map(|text| parsed::<InvocationId>(field, &text)).transpose();
    Ok(Record {
        id: parsed("id", &stored.id)?,
        function: FunctionId(stored.function),
        name: FunctionName::new(&stored.name).map_err(|_| other("name", &stored.name))?,
        settings: Settings {
            delivery: parsed("delivery", &stored.delivery)?,
            attempts_max: stored.attempts_max,
            age_max: Duration::from_millis(stored.age_max_ms),
            callback: stored.callback.map(Into::into),
            request_id: stored.request_id.map(Into::into),
        },
        key: match stored.key {
            Some(key) => Some(IdempotencyKey {
                fingerprint: u128::from_str_radix(&key.fingerprint, 16)
                    .map_err(|_| other("fingerprint", &key.fingerprint))?,
                key: key.key.into(),
            }),
            None => None,
        },
        payload: stored.payload.map(|payload| Payload { key: payload.key, bytes: payload.bytes }),
        state,
        accepted: at(stored.accepted_ms),
        accepted_shown_ms: stored.accepted_shown_ms,
        attempts: stored.attempts,
        failures: stored.failures,
        interruptions: stored.interruptions,
        last: stored.last.map(|last| LastEnd {
            status: last.status,
            // One that this version does not know is left out; the sentence is there.
            reason: last.reason.and_then(|code| Reason::ALL.iter().copied().find(|r| r.code() == code)),
            detail: last.detail.into(),
        }),
        result_bytes: stored.result_bytes,
        finished: stored
            .finished
            .map(|finished| Finished { at: at(finished.at_ms), shown_ms: finished.shown_ms }),
        callback: match stored.called_back {
            None => Callback::None,
            Some(StoredCallback::Waiting { tries, at_ms }) => Callback::Waiting { tries, at: at(at_ms) },
            Some(StoredCallback::Delivered) => Callback::Delivered,
            Some(StoredCallback::GivenUp) => Callback::GivenUp,
        },
        replay_of: id("replay_of", stored.replay_of)?,
        replayed_as: id("replayed_as", stored.replayed_as)?,
    })
}

fn parsed<T: FromStr>(field: &'static str, text: &str) -> Result<T, Unreadable> {
    text.parse().map_err(|_| Unreadable::Field(field, text.to_owned()))
}

fn ms(at: Timestamp) -> u64 {
    at.as_nanos() / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;
    use fanfare_async::{Cause, Delivery};

    #[test]
    fn records_come_back_as_they_were() {
        let id = |sequence| InvocationId { data_plane: fanfare_types::DataPlaneId(3), sequence, nonce: 9 };
        let full = Record {
            id: id(7),
            function: FunctionId(2),
            name: FunctionName::new("f").unwrap(),
            settings: Settings {
                delivery: Delivery::AtMostOnce,
                attempts_max: 4,
                age_max: Duration::from_millis(1_500),
                callback: Some("https://h/?token=\"x\"".into()),
                request_id: Some("r \"7\"".into()),
            },
            key: Some(IdempotencyKey { key: "k \"".into(), fingerprint: u128::MAX - 5 }),
            payload: Some(Payload { key: 6, bytes: 11 }),
            state: State::Dead(Cause::Lost),
            accepted: Timestamp::from_millis(12),
            accepted_shown_ms: 1_700_000_000_000,
            attempts: 2,
            failures: 1,
            interruptions: 3,
            last: Some(LastEnd { status: Some(503), reason: Some(Reason::NodeLost), detail: "so".into() }),
            result_bytes: Some(5),
            finished: Some(Finished { at: Timestamp::from_millis(99), shown_ms: 1 }),
            callback: Callback::Waiting { tries: 2, at: Timestamp::from_millis(100) },
            replay_of: Some(id(5)),
            replayed_as: Some(id(8)),
        };
        let bare = Record {
            key: None,
            payload: None,
            last: None,
            result_bytes: None,
            finished: None,
            callback: Callback::None,
            replay_of: None,
            replayed_as: None,
            ..full.clone()
        };
        let states = [
            State::Queued,
            State::Running,
            State::Retrying(Timestamp::from_millis(77)),
            State::Succeeded,
            State::Failed,
            State::Cancelled,
            State::Dead(Cause::FunctionRemoved),
        ];
        let callbacks = [Callback::Delivered, Callback::GivenUp];
        let with_states = states.map(|state| Record { state, ..bare.clone() });
        let with_callbacks = callbacks.map(|callback| Record { callback, ..bare.clone() });
        for record in [full].into_iter().chain(with_states).chain(with_callbacks) {
            assert_eq!(decode(&encode(&record)).unwrap(), record);
        }
        let text = String::from_utf8(encode(&bare)).unwrap();
        for (from, to) in [("\"dead\"", "\"undead\""), ("\"lost\"", "\"gone\""), ("d3-7-", "d3-7"), ("{", "")]
        {
            assert!(decode(text.replace(from, to).as_bytes()).is_err(), "{from}");
        }
    }
}
