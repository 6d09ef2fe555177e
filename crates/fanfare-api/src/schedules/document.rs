//! A schedule as a user writes it.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;

use fanfare_schedule::{Calendar, CalendarError, Missed, ScheduleSpec, Wall, When};
use fanfare_types::{FunctionName, limits};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::function::read_json;
use crate::quantity::show_duration;
use crate::{FieldError, Quantity, whole};

/// Methods that a schedule may call with.
pub(crate) const SCHEDULE_METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
/// Header fields that say how a request is sent, which is the platform's; as are all that begin with `x-fanfare-`.
pub(crate) const SCHEDULE_HEADERS_RESERVED: [&str; 8] = [
    "connection",
    "content-length",
    "expect",
    "keep-alive",
    "proxy-connection",
    "te",
    "transfer-encoding",
    "upgrade",
];
const DEFAULT_ZONE: &str = "UTC";

/// A schedule: what is registered, and what is answered. Give `name`, `function`, and one of `cron` and `at`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ScheduleDocument {
    /// 1 to 63 characters of `a-z 0-9 - _ .`, a letter or a digit at both ends.
    pub name: String,
    /// The function that is called.
    pub function: String,
    /// When, as a cron expression: minute, hour, day of month, month, day of week; or six fields with the second first.
    /// `@daily` and its kin, `L`, `W` and `#` are understood.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// Whose clock the expression's fields are of: a time zone of the IANA database, e.g. `Europe/Zurich`. Default `UTC`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// When, once: RFC 3339 with its offset, e.g. `2030-01-31T12:00:00+01:00`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// The HTTP method. Default `POST`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// Path and query as the function sees them. Default `/`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Header fields.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// The body. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// What a crash means for a call that has begun. Default `at-least-once`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery: Option<DeliveryName>,
    /// Attempts that may fail. Default 3; 1 to 100.
    #[serde(default, deserialize_with = "whole::optional", skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// How long an attempt may still begin: seconds, or text such as `"30s"`. Default 6 h; 1 ms to 7 days.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_age: Option<Quantity>,
    /// What becomes of occurrences that could not happen in time. Default `skip`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missed: Option<MissedName>,
}

/// What a crash means for a call that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DeliveryName {
    /// It is repeated.
    AtLeastOnce,
    /// It is not.
    AtMostOnce,
}

/// What becomes of occurrences that could not happen in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MissedName {
    /// They are left out.
    Skip,
    /// The last of them happens late, once.
    Once,
}

impl ScheduleDocument {
    /// Reads one from JSON. The caller bounds `json`.
    ///
    /// # Errors
    /// [`FieldError`] names the field that has the wrong shape.
    pub fn from_json(json: &[u8]) -> Result<Self, FieldError> {
        read_json(json)
    }
}

impl TryFrom<ScheduleDocument> for ScheduleSpec {
    type Error = FieldError;

    /// Checks every field and fills in the defaults.
    ///
    /// # Errors
    /// The first field that is wrong, with what is allowed and what was given.
    fn try_from(document: ScheduleDocument) -> Result<Self, FieldError> {
        let at_most_once = document.delivery == Some(DeliveryName::AtMostOnce);
        Ok(ScheduleSpec {
            name: name("name", &document.name)?,
            function: name("function", &document.function)?,
            when: when(&document)?,
            method: method(document.method.as_deref())?,
            path: path(document.path.as_deref().unwrap_or("/"))?,
            headers: headers(&document.headers)?,
            body: body(document.body.unwrap_or_default())?,
            at_most_once,
            attempts_max: attempts(document.max_attempts, at_most_once)?,
            age_max: document.max_age.as_ref().map(age).transpose()?,
            missed: match document.missed {
                None | Some(MissedName::Skip) => Missed::Skip,
                Some(MissedName::Once) => Missed::Once,
            },
        })
    }
}

fn name(field: &str, given: &str) -> Result<FunctionName, FieldError> {
    FunctionName::new(given).map_err(|e| FieldError {
        message: format!("{field} {e}"),
        ..FieldError::new(field, format!("{given:?}"), e.to_string())
    })
}

fn when(document: &ScheduleDocument) -> Result<When, FieldError> {
    match (&document.cron, &document.at) {
        (Some(expression), None) => {
            let zone = document.zone.as_deref().unwrap_or(DEFAULT_ZONE);
            Calendar::cron(expression, zone, Wall(0)).map_err(|error| match error {
                CalendarError::Zone { .. } | CalendarError::TooLong { what: "a time zone", .. } => {
                    calendar_error("zone", zone, &error)
                }
                error => calendar_error("cron", expression, &error),
            })?;
            Ok(When::Cron { expression: expression.as_str().into(), zone: zone.into() })
        }
        (None, Some(time)) => {
            if let Some(zone) = &document.zone {
                let limit = "no zone, for `at` has its offset in itself";
                return Err(FieldError::disagreeing("zone", format!("{zone:?}"), limit));
            }
            match Calendar::at(time) {
                Ok(Calendar::At(at)) => Ok(When::At(at)),
                Ok(Calendar::Cron { .. }) => Err(FieldError::new("at", format!("{time:?}"), "one instant")),
                Err(error) => Err(calendar_error("at", time, &error)),
            }
        }
        (Some(_), Some(_)) => Err(FieldError::disagreeing("at", "given beside cron", "one of the two")),
        (None, None) => {
            Err(FieldError { disagrees: true, ..FieldError::missing("cron", "one of cron and at") })
        }
    }
}

fn calendar_error(field: &str, given: &str, error: &CalendarError) -> FieldError {
    FieldError {
        message: format!("{field}: {error}"),
        ..FieldError::new(field, format!("{given:?}"), error.to_string())
    }
}

fn method(method: Option<&str>) -> Result<Arc<str>, FieldError> {
    let method = method.unwrap_or("POST");
    match SCHEDULE_METHODS.contains(&method) {
        true => Ok(method.into()),
        false => Err(FieldError::new("method", format!("{method:?}"), SCHEDULE_METHODS.join(", "))),
    }
}

fn path(path: &str) -> Result<Arc<str>, FieldError> {
    let of_path = |b: u8| b.is_ascii_alphanumeric() || b"._~!$&'()*+,;=:@%/-".contains(&b);
    let (before, query) = path.split_once('?').unwrap_or((path, ""));
    let good = path.len() <= limits::SCHEDULE_PATH_LEN_MAX
        && before.starts_with('/')
        && before.bytes().all(of_path)
        && query.bytes().all(|b| of_path(b) || b == b'?');
    if good {
        return Ok(path.into());
    }
    let limit = format!(
        "a path from the slash on, with its query, percent-encoded, of at most {} characters",
        limits::SCHEDULE_PATH_LEN_MAX
    );
    Err(FieldError::new("path", format!("{path:?}"), limit))
}

/// A header field.
type Field = (Arc<str>, Arc<str>);

fn headers(headers: &BTreeMap<String, String>) -> Result<Vec<Field>, FieldError> {
    let count = headers.len();
    if count > limits::SCHEDULE_HEADERS_MAX {
        let limit = format!("at most {}", limits::SCHEDULE_HEADERS_MAX);
        return Err(FieldError::new("headers", format!("{count} fields"), limit));
    }
    let bytes: usize = headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    if bytes > limits::SCHEDULE_HEADERS_BYTES_MAX {
        let limit = format!("at most {} bytes", limits::SCHEDULE_HEADERS_BYTES_MAX);
        return Err(FieldError::new("headers", format!("{bytes} bytes"), limit));
    }
    headers.iter().map(|(name, value)| header(name, value)).collect()
}

fn header(name: &str, value: &str) -> Result<Field, FieldError> {
    let lower = name.to_ascii_lowercase().replace('_', "-");
    let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+.^_`|~-".contains(&b);
    if name.is_empty() || !name.bytes().all(token) {
        return Err(FieldError::new("headers", format!("{name:?}"), "names of HTTP header fields"));
    }
    if lower.starts_with("x-fanfare-") || SCHEDULE_HEADERS_RESERVED.contains(&lower.as_str()) {
        return Err(FieldError::new("headers", format!("{name:?}"), "fields that are not the platform's"));
    }
    let visible = value.bytes().all(|b| (b' '..=b'~').contains(&b)) && value.trim() == value;
    if !visible {
        let limit = "visible ASCII characters, with blanks only within";
        return Err(FieldError::new(format!("headers.{name}"), "…", limit));
    }
    Ok((name.into(), value.into()))
}

fn body(body: String) -> Result<Arc<str>, FieldError> {
    match body.len() {
        bytes if bytes > limits::SCHEDULE_BODY_BYTES_MAX => {
            let limit = format!("at most {} bytes", limits::SCHEDULE_BODY_BYTES_MAX);
            Err(FieldError::new("body", format!("{bytes} bytes"), limit))
        }
        _ => Ok(body.into()),
    }
}

fn attempts(attempts: Option<u32>, at_most_once: bool) -> Result<Option<u32>, FieldError> {
    let Some(attempts) = attempts else { return Ok(None) };
    if !(1..=limits::ATTEMPTS_MAX).contains(&attempts) {
        return Err(FieldError::new("max_attempts", attempts, format!("1 to {}", limits::ATTEMPTS_MAX)));
    }
    if at_most_once && attempts > 1 {
        return Err(FieldError::disagreeing("max_attempts", attempts, "1 where delivery is at-most-once"));
    }
    Ok(Some(attempts))
}

fn age(age: &Quantity) -> Result<std::time::Duration, FieldError> {
    let (min, max) = (limits::TIMEOUT_MIN, limits::CALL_AGE_MAX);
    age.duration().filter(|age| (min..=max).contains(age)).ok_or_else(|| {
        FieldError::new("max_age", age, format!("{} to {}", show_duration(min), show_duration(max)))
    })
}

impl From<&ScheduleSpec> for ScheduleDocument {
    /// Every field that has a meaning explicit; `ScheduleSpec::try_from` of the result is the specification again.
    fn from(spec: &ScheduleSpec) -> Self {
        let text = |text: &dyn Display| Some(text.to_string());
        let (cron, zone, at) = match &spec.when {
            When::Cron { expression, zone } => (text(expression), text(zone), None),
            When::At(at) => (None, None, text(at)),
        };
        ScheduleDocument {
            name: spec.name.to_string(),
            function: spec.function.to_string(),
            cron,
            zone,
            at,
            method: text(&spec.method),
            path: text(&spec.path),
            headers: spec.headers.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect(),
            body: Some(&spec.body).filter(|body| !body.is_empty()).map(ToString::to_string),
            delivery: Some(match spec.at_most_once {
                true => DeliveryName::AtMostOnce,
                false => DeliveryName::AtLeastOnce,
            }),
            max_attempts: spec.attempts_max,
            max_age: spec.age_max.map(Quantity::from_duration),
            missed: Some(match spec.missed {
                Missed::Skip => MissedName::Skip,
                Missed::Once => MissedName::Once,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(json: &str) -> Result<ScheduleSpec, FieldError> {
        ScheduleSpec::try_from(ScheduleDocument::from_json(json.as_bytes())?)
    }

    fn with(fields: &str) -> String {
        format!(r#"{{"name":"n","function":"f",{fields}}}"#)
    }

    #[test]
    fn a_schedule_and_its_document_are_the_same() {
        for fields in [
            r#""cron":"*/5 * * * *""#,
            r#""cron":"0 9 * * MON-FRI","zone":"Europe/Zurich","missed":"once","delivery":"at-most-once","max_attempts":1"#,
            r#""at":"2030-01-31T12:00:00.5+01:00","method":"PUT","path":"/a%2F?x=1&y","headers":{"X-A":"b c"},"body":"{\"a\": 1}","max_age":"90m","max_attempts":100"#,
        ] {
            let spec = spec(&with(fields)).unwrap();
            let document = ScheduleDocument::from(&spec);
            let json = serde_json::to_vec(&document).unwrap();
            assert_eq!(ScheduleSpec::try_from(ScheduleDocument::from_json(&json).unwrap()), Ok(spec));
        }
    }

    #[test]
    fn each_field_is_checked_and_named() {
        let long =
            format!(r#""cron":"* * * * *","body":"{}""#, "x".repeat(limits::SCHEDULE_BODY_BYTES_MAX + 1));
        let many: Vec<_> = (0..33).map(|n| format!(r#""x-{n}":"""#)).collect();
        let many = format!(r#""cron":"* * * * *","headers":{{{}}}"#, many.join(","));
        let cases = [
            (r#""zone":"UTC""#, "cron", "one of cron and at"),
            (r#""cron":"* * * * *","at":"2030-01-31T12:00:00Z""#, "at", "one of the two"),
            (r#""at":"2030-01-31T12:00:00Z","zone":"UTC""#, "zone", "offset"),
            (r#""cron":"* * * *""#, "cron", "cannot be read"),
            (r#""cron":"0 0 30 2 *""#, "cron", "never comes to pass"),
            (r#""cron":"* * * * *","zone":"Mars""#, "zone", "no time zone"),
            (r#""at":"tomorrow""#, "at", "cannot be read"),
            (r#""cron":"* * * * *","method":"get""#, "method", "GET"),
            (r#""cron":"* * * * *","path":"a""#, "path", "slash"),
            (r#""cron":"* * * * *","path":"/a b""#, "path", "percent"),
            (r#""cron":"* * * * *","path":"/a#b""#, "path", "percent"),
            (r#""cron":"* * * * *","headers":{"a b":""}"#, "headers", "names"),
            (r#""cron":"* * * * *","headers":{"X-Fanfare-Attempt":"1"}"#, "headers", "platform"),
            (r#""cron":"* * * * *","headers":{"x_fanfare_schedule":"1"}"#, "headers", "platform"),
            (r#""cron":"* * * * *","headers":{"Content-Length":"1"}"#, "headers", "platform"),
            (r#""cron":"* * * * *","headers":{"a":"b\r\nc: d"}"#, "headers.a", "visible"),
            (r#""cron":"* * * * *","headers":{"a":7}"#, "headers.a", "text"),
            (r#""cron":"* * * * *","max_attempts":0"#, "max_attempts", "1 to 100"),
            (
                r#""cron":"* * * * *","max_attempts":2,"delivery":"at-most-once""#,
                "max_attempts",
                "at-most-once",
            ),
            (r#""cron":"* * * * *","max_age":"8d""#, "max_age", "1 ms"),
            (r#""cron":"* * * * *","max_age":0"#, "max_age", "1 ms"),
            (r#""cron":"* * * * *","missed":"twice""#, "missed", "skip"),
            (r#""cron":"* * * * *","croon":"x""#, "croon", "cron"),
            (long.as_str(), "body", "65536"),
            (many.as_str(), "headers", "at most 32"),
        ];
        for (fields, field, mentions) in cases {
            let error = spec(&with(fields)).unwrap_err();
            assert!(error.field == field, "{fields:.100}: {error:?}");
            assert!(error.message.contains(mentions), "{fields:.100}: {error:?}");
        }
    }
}
