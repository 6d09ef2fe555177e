//! Spans of requests, exported over OTLP (HTTP with JSON, as OpenTelemetry's protocol 1.x has it).
//!
//! A request that has a W3C trace context keeps its trace; the function is given the platform's span as its parent. What
//! is sampled is the parent's decision, and without a parent a share of all. Where nothing is exported the context passes
//! as it is.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use fanfare_types::{RequestEnd, Timestamp};
use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::clock;
use crate::records::Entry;

mod exporter;

pub(crate) use exporter::run;

pub(crate) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// Requests whose spans wait to be exported; further ones are dropped and counted.
const WAITING_MAX: usize = 4_096;

/// How requests are traced.
#[derive(Clone, Debug)]
pub struct TraceOptions {
    /// Where spans go: `http://HOST:PORT`, to whose path `/v1/traces` is appended, as for `OTEL_EXPORTER_OTLP_ENDPOINT`.
    pub endpoint: String,
    /// Which share of the requests without a trace context begins one: 0 to 1.
    pub ratio: f64,
}

/// A request's place in its trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trace {
    trace: u128,
    parent: Option<u64>,
    span: u64,
}

/// What a `traceparent` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Context {
    trace: u128,
    span: u64,
    sampled: bool,
}

impl Context {
    /// Version 00 of the W3C's recommendation, and what later versions have in common with it.
    fn parse(value: &HeaderValue) -> Option<Self> {
        let text = value.to_str().ok()?;
        let lower = |part: &str| part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let mut parts = text.split('-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let lengths = (version.len(), trace.len(), span.len(), flags.len()) == (2, 32, 16, 2);
        let only = version != "00" || parts.next().is_none();
        if !lengths || version == "ff" || !only || ![version, trace, span, flags].into_iter().all(lower) {
            return None;
        }
        let (trace, span) = (u128::from_str_radix(trace, 16).ok()?, u64::from_str_radix(span, 16).ok()?);
        let sampled = u8::from_str_radix(flags, 16).ok()? & 1 == 1;
        (trace != 0 && span != 0).then_some(Context { trace, span, sampled })
    }

    fn header(self) -> HeaderValue {
        let text = format!("00-{:032x}-{:016x}-{:02x}", self.trace, self.span, u8::from(self.sampled));
        HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(""))
    }
}

/// Gives requests their places in traces, and their spans to the exporter.
pub(crate) struct Tracer {
    ratio: f64,
    spans: mpsc::Sender<Value>,
    dropped: AtomicU64,
}

impl Tracer {
    /// With the exporter's end.
    pub(crate) fn new(options: &TraceOptions) -> (Self, mpsc::Receiver<Value>) {
        let (spans, waiting) = mpsc::channel(WAITING_MAX);
        (Tracer { ratio: options.ratio, spans, dropped: AtomicU64::new(0) }, waiting)
    }

    /// The request's place, if it is sampled; the function is told of it. `random` are three random numbers.
    pub(crate) fn begin(&self, headers: &mut HeaderMap, random: [u64; 3]) -> Option<Box<Trace>> {
        let [high, low, span] = random;
        let span = span.max(1);
        let mut given = headers.get_all(TRACEPARENT).iter();
        let context = given.next().filter(|_| given.next().is_none()).and_then(Context::parse);
        let trace = match context {
            // Whoever began it has decided.
            Some(Context { sampled: false, .. }) => return None,
            Some(parent) => Trace { trace: parent.trace, parent: Some(parent.span), span },
            None => {
                let drawn = (low >> 11) as f64 / (1_u64 << 53) as f64;
                if drawn >= self.ratio {
                    return None;
                }
                let trace = (u128::from(high) << 64 | u128::from(low)).max(1);
                Trace { trace, parent: None, span }
            }
        };
        let ours = Context { trace: trace.trace, span: trace.span, sampled: true };
        headers.insert(TRACEPARENT, ours.header());
        Some(Box::new(trace))
    }

    /// Hands the spans of a request that has ended to the exporter.
    pub(crate) fn export(&self, entry: &Entry, trace: &Trace) {
        if self.spans.try_send(spans(entry, trace, clock::now(), SystemTime::now())).is_err() {
            self.lost(1);
        }
    }

    /// So many requests' spans were not exported.
    pub(crate) fn lost(&self, requests: u64) {
        self.dropped.fetch_add(requests, Ordering::Relaxed);
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// The request's span and those of its stages, in OTLP's JSON.
fn spans(entry: &Entry, trace: &Trace, now: Timestamp, wall: SystemTime) -> Value {
    let unix = wall.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let at = |moment: Timestamp| unix.saturating_sub(now.since(moment)).as_nanos().to_string();
    let text = |key: &str, value: &str| json!({"key": key, "value": {"stringValue": value}});
    let mut attributes = vec![
        text("fanfare.request.id", &String::from_utf8_lossy(&entry.id)),
        text("fanfare.request.end", entry.end.name()),
        json!({"key": "http.response.status_code", "value": {"intValue": entry.status.to_string()}}),
    ];
    attributes.extend(entry.function.map(|id| text("fanfare.function.id", &id.to_string())));
    attributes.extend(entry.reason.map(|reason| text("error.type", reason.code())));
    let mut children = Vec::new();
    let mut child = |number: u64, name: &str, from: Timestamp, to: Timestamp| {
        children.push(json!({
            "traceId": format!("{:032x}", trace.trace),
            // Derived: nobody else refers to them.
            "spanId": format!("{:016x}", trace.span.wrapping_add(number).max(1)),
            "parentSpanId": format!("{:016x}", trace.span),
            "name": name,
            "kind": 1,
            "startTimeUnixNano": at(from),
            "endTimeUnixNano": at(to),
        }));
    };
    match &entry.slot {
        None => child(1, "queue", entry.accepted, entry.ended),
        Some(slot) => {
            attributes.push(text("fanfare.sandbox", &slot.sandbox.to_string()));
            attributes.push(text("fanfare.node", &slot.node.to_string()));
            attributes.push(text("fanfare.slot", slot.why.name()));
            attributes.push(json!({"key": "faas.coldstart", "value": {"boolValue": slot.stages.is_some()}}));
            child(1, "queue", entry.accepted, slot.at);
            if let Some(stages) = slot.stages.as_deref() {
                let propagate = slot.at.since(entry.accepted).saturating_sub(stages.total());
                let mut from = slot.at - (stages.total() + propagate);
                let named: [(&str, Duration); 7] = [
                    ("decide", stages.decide),
                    ("place", stages.place),
                    ("transfer", stages.transfer),
                    ("create", stages.create),
                    ("start", stages.start),
                    ("ready", stages.ready),
                    ("propagate", propagate),
                ];
                for (number, (name, took)) in (4..).zip(named) {
                    child(number, name, from, from + took);
                    from = from + took;
                }
            }
            let answered = entry.answered.unwrap_or(entry.ended);
            child(2, "execute", slot.at, answered);
            child(3, "answer", answered, entry.ended);
        }
    }
    let failed = entry.end != RequestEnd::Answered || entry.status >= 500;
    let mut request = json!({
        "traceId": format!("{:032x}", trace.trace),
        "spanId": format!("{:016x}", trace.span),
        "name": "invocation",
        "kind": 2,
        "startTimeUnixNano": at(entry.accepted),
        "endTimeUnixNano": at(entry.ended),
        "attributes": attributes,
        "status": {"code": if failed { 2 } else { 0 }},
    });
    if let Some(parent) = trace.parent {
        request["parentSpanId"] = format!("{parent:016x}").into();
    }
    children.insert(0, request);
    Value::Array(children)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIVEN: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn begun(ratio: f64, given: Option<&str>, random: [u64; 3]) -> (Option<Box<Trace>>, Option<String>) {
        let options = TraceOptions { endpoint: String::new(), ratio };
        let (tracer, _spans) = Tracer::new(&options);
        let mut headers = HeaderMap::new();
        if let Some(given) = given {
            headers.insert(TRACEPARENT, HeaderValue::from_str(given).unwrap());
        }
        let trace = tracer.begin(&mut headers, random);
        (trace, headers.get(TRACEPARENT).map(|value| value.to_str().unwrap().to_owned()))
    }

    #[test]
    fn a_sampled_parent_is_followed_and_an_unsampled_one_left_as_it_is() {
        let (trace, told) = begun(0.0, Some(GIVEN), [1, 2, 3]);
        assert_eq!(trace.unwrap().parent, Some(0xb7ad_6b71_6920_3331));
        assert_eq!(told.unwrap(), "00-0af7651916cd43dd8448eb211c80319c-0000000000000003-01");
        let unsampled = GIVEN.replace("-01", "-00");
        assert_eq!(begun(1.0, Some(&unsampled), [1, 2, 3]), (None, Some(unsampled.clone())));
    }

    #[test]
    fn without_a_parent_a_share_begins_a_trace() {
        assert_eq!(begun(0.0, None, [1, 0, 3]), (None, None));
        let (trace, told) = begun(1.0, None, [1, u64::MAX, 3]);
        assert!(trace.is_some() && told.is_some());
        let half = (0..1_000_u64).filter(|n| begun(0.5, None, [1, n << 54, 3]).0.is_some()).count();
        assert_eq!(half, 512, "each number below the half of 1024");
    }

    #[test]
    fn what_is_no_context_begins_anew() {
        let later = format!("cc{}-what-the-future-brings", &GIVEN[2..]);
        for (given, follows) in [
            (GIVEN, true),
            (&later, true),
            (&GIVEN[..54], false),
            (&format!("{GIVEN}-00"), false),
            (&GIVEN.to_uppercase(), false),
            (&GIVEN.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)), false),
            (&GIVEN.replace("b7ad6b7169203331", &"0".repeat(16)), false),
            (&GIVEN.replacen("00", "ff", 1), false),
            ("", false),
        ] {
            let trace = begun(1.0, Some(given), [1, 2, 3]).0.unwrap();
            assert_eq!(trace.parent.is_some(), follows, "{given}");
        }
    }
}
