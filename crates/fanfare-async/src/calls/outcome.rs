//! What the end of an attempt, or of a callback, means.

use std::sync::Arc;
use std::time::Duration;

use fanfare_types::{Reason, Timestamp};

use super::{Calls, Timer};
use crate::backoff::{doubled, spread};
use crate::event::{End, Now};
use crate::limits::{
    BACKOFF_MAX, BACKOFF_MIN, CALLBACK_ATTEMPTS_MAX, CALLBACK_BACKOFF_MAX, CALLBACK_BACKOFF_MIN,
    INTERRUPTIONS_MAX, REFUSAL_BACKOFF_MAX, REFUSAL_BACKOFF_MIN, RETRY_AFTER_MAX,
};
use crate::record::{Callback, Cause, Delivery, LastEnd, Record, State};

/// Whether an answer may be another one next time: the server failed, or asked to be tried again.
fn is_worth_another(status: u16) -> bool {
    matches!(status, 408 | 425 | 429) || status >= 500
}

impl Calls {
    pub(super) fn ended(&mut self, now: Now, sequence: u64, end: End) {
        match end {
            End::Answered { status, reason, retry_after, bytes } => {
                let detail = match bytes {
                    Some(_) => format!("the function answered {status}"),
                    None => format!("the function answered {status} with more than is kept"),
                };
                let last = LastEnd { status: Some(status), reason, detail: detail.into() };
                self.change(now, sequence, |record| {
                    record.last = Some(last);
                    record.state = if is_worth_another(status) {
                        after_failure(record, now.at, retry_after)
                    } else if status >= 400 {
                        State::Failed
                    } else {
                        State::Succeeded
                    };
                    if record.state.is_final() {
                        record.result_bytes = bytes;
                    }
                });
            }
            End::Refused { reason, detail, retry_after } => {
                self.refused(now, sequence, reason, detail, retry_after);
            }
            End::Broken { reason, detail, by_platform } => {
                self.change(now, sequence, |record| {
                    record.last = Some(LastEnd { status: None, reason: Some(reason), detail });
                    record.state = if by_platform {
                        after_interruption(record, now.at)
                    } else {
                        after_failure(record, now.at, None)
                    };
                });
            }
        }
    }

    /// Nothing of it reached user code: it counts as no attempt, and the function's calls pause.
    fn refused(
        &mut self,
        now: Now,
        sequence: u64,
        reason: Reason,
        detail: Arc<str>,
        retry_after: Option<Duration>,
    ) {
        let Some(function) = self.calls.get(&sequence).map(|record| record.function) else { return };
        let state = match reason {
            Reason::FunctionNotFound => State::Dead(Cause::FunctionRemoved),
            Reason::BadRequest | Reason::TooLarge => State::Failed,
            _ if self.draining => State::Retrying(now.at),
            _ => {
                let until = self.feed.pause(function, now.at, retry_after.unwrap_or_default());
                self.timers.insert((until, Timer::Lane(function)));
                State::Retrying(until)
            }
        };
        self.change(now, sequence, |record| {
            record.attempts -= 1;
            record.last = Some(LastEnd { status: None, reason: Some(reason), detail });
            record.state = within_age(record, state);
        });
    }

    /// The one that ran an attempt is gone, and its word about it with it.
    pub(super) fn interrupted(&mut self, now: Now, sequence: u64) {
        self.change(now, sequence, |record| {
            let detail = "the data plane ended while the attempt was under way".into();
            record.last = Some(LastEnd { status: None, reason: None, detail });
            record.state = after_interruption(record, now.at);
        });
    }

    pub(super) fn called_back(&mut self, now: Now, sequence: u64, taken: bool) {
        self.callbacks.ended(sequence);
        self.change(now, sequence, |record| {
            let Callback::Waiting { tries, .. } = record.callback else { return };
            let tries = tries + 1;
            record.callback = if taken {
                Callback::Delivered
            } else if tries >= CALLBACK_ATTEMPTS_MAX {
                Callback::GivenUp
            } else {
                let pause = doubled(CALLBACK_BACKOFF_MIN, CALLBACK_BACKOFF_MAX, tries);
                Callback::Waiting { tries, at: now.at + spread(pause, bits(record)) }
            };
        });
    }
}

fn after_failure(record: &mut Record, now: Timestamp, retry_after: Option<Duration>) -> State {
    record.failures += 1;
    if record.settings.delivery == Delivery::AtMostOnce || record.failures >= record.settings.attempts_max {
        return State::Dead(Cause::AttemptsExhausted);
    }
    let pause = spread(doubled(BACKOFF_MIN, BACKOFF_MAX, record.failures), bits(record));
    let asked = retry_after.unwrap_or_default().min(RETRY_AFTER_MAX);
    within_age(record, State::Retrying(now + pause.max(asked)))
}

fn after_interruption(record: &mut Record, now: Timestamp) -> State {
    record.interruptions += 1;
    if record.settings.delivery == Delivery::AtMostOnce {
        return State::Dead(Cause::Lost);
    }
    if record.interruptions > INTERRUPTIONS_MAX {
        return State::Dead(Cause::Interrupted);
    }
    let pause = doubled(REFUSAL_BACKOFF_MIN, REFUSAL_BACKOFF_MAX, record.interruptions);
    within_age(record, State::Retrying(now + spread(pause, bits(record))))
}

/// An attempt that could only begin when the call is too old will not.
fn within_age(record: &Record, state: State) -> State {
    match state {
        State::Retrying(at) if at > record.expires() => State::Dead(Cause::MaxAge),
        state => state,
    }
}

/// What spreads a call's pauses.
fn bits(record: &Record) -> u64 {
    record.id.nonce.wrapping_add(u64::from(record.attempts) << 32).wrapping_add(record.id.sequence)
}
