//! Where a request's time went, as `Server-Timing`.

use std::time::Duration;

use fanfare_dispatch::Why;
use fanfare_types::{Stages, Timestamp};
use http::HeaderValue;

/// The moments of one request on its way to a slot.
#[derive(Clone, Debug)]
pub(crate) struct Timing {
    /// It arrived.
    pub(crate) accepted: Timestamp,
    /// It got its slot.
    pub(crate) assigned: Timestamp,
    /// Why it got that one then.
    pub(crate) why: Why,
    /// For a cold start: the stages of its sandbox.
    pub(crate) stages: Option<Box<Stages>>,
}

impl Timing {
    /// The header's value when the answer's head is there at `answered`. Milliseconds; cold starts have their stages,
    /// and in `propagate` what the wait holds beyond them.
    pub(crate) fn header(&self, answered: Timestamp) -> HeaderValue {
        let mut text = Vec::with_capacity(64);
        let queue = self.assigned.since(self.accepted);
        put(&mut text, "queue", queue);
        text.extend_from_slice(b";desc=");
        text.extend_from_slice(self.why.name().as_bytes());
        if let Some(stages) = &self.stages {
            let named = [
                ("decide", stages.decide),
                ("place", stages.place),
                ("transfer", stages.transfer),
                ("create", stages.create),
                ("start", stages.start),
                ("ready", stages.ready),
                ("propagate", queue.saturating_sub(stages.total())),
            ];
            for (name, duration) in named {
                put(&mut text, name, duration);
            }
        }
        put(&mut text, "execute", answered.since(self.assigned));
        HeaderValue::from_bytes(&text).unwrap_or(HeaderValue::from_static(""))
    }
}

/// The header's value for a request that got no slot.
pub(crate) fn queue_only(accepted: Timestamp, answered: Timestamp) -> HeaderValue {
    let mut text = Vec::with_capacity(24);
    put(&mut text, "queue", answered.since(accepted));
    HeaderValue::from_bytes(&text).unwrap_or(HeaderValue::from_static(""))
}

/// On every answer, so without the machinery of `format!`: that was 4 % of a warm request's instructions.
fn put(text: &mut Vec<u8>, name: &str, duration: Duration) {
    if !text.is_empty() {
        text.extend_from_slice(b", ");
    }
    text.extend_from_slice(name.as_bytes());
    text.extend_from_slice(b";dur=");
    let mut rest = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    // 20 digits and the point before the last three.
    let mut digits = [0; 21];
    let mut start = digits.len();
    while rest > 0 || start > digits.len() - 5 {
        start -= 1;
        if start == digits.len() - 4 {
            digits[start] = b'.';
            continue;
        }
        // A digit.
        digits[start] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    text.extend_from_slice(&digits[start..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warm_requests_have_two_stages_and_cold_ones_all_that_explain_the_wait() {
        let at = |micros: u64| Timestamp::from_nanos(micros * 1_000);
        let mut timing = Timing { accepted: at(100), assigned: at(112), why: Why::Warm, stages: None };
        assert_eq!(timing.header(at(1_357)), "queue;dur=0.012;desc=warm, execute;dur=1.245");
        let us = Duration::from_micros;
        timing.assigned = at(2_100);
        timing.why = Why::Cold;
        timing.stages = Some(Box::new(Stages {
            decide: us(100),
            place: us(20),
            transfer: us(300),
            create: us(700),
            start: us(400),
            ready: us(80),
        }));
        assert_eq!(
            timing.header(at(1_002_100)),
            "queue;dur=2.000;desc=cold, decide;dur=0.100, place;dur=0.020, transfer;dur=0.300, create;dur=0.700, \
             start;dur=0.400, ready;dur=0.080, propagate;dur=0.400, execute;dur=1000.000"
        );
        assert_eq!(queue_only(at(5), at(5)), "queue;dur=0.000");
        for (micros, written) in
            [(1, "0.001"), (10, "0.010"), (999, "0.999"), (1_000, "1.000"), (61_000_105, "61000.105")]
        {
            assert_eq!(queue_only(at(0), at(micros)), format!("queue;dur={written}"));
        }
        let mut text = Vec::new();
        put(&mut text, "x", Duration::MAX);
        assert_eq!(text, b"x;dur=18446744073709551.615");
    }
}
