//! What one data plane's log of asynchronous calls is bounded by.

use std::time::Duration;

/// Bytes of one request with its head, unless the data plane says otherwise.
pub const PAYLOAD_BYTES_DEFAULT: u64 = 16 << 20;
/// Bytes of one request that a data plane may be told to take.
pub const PAYLOAD_BYTES_MAX: u64 = 32 << 20;
/// Attempts that may fail, unless the call says otherwise.
pub const ATTEMPTS_DEFAULT: u32 = 3;
/// Attempts that a call may ask for.
pub const ATTEMPTS_MAX: u32 = fanfare_types::limits::ATTEMPTS_MAX;
/// First pause after an attempt that failed; doubles to the maximum.
pub const BACKOFF_MIN: Duration = Duration::from_secs(1);
/// Longest pause after an attempt that failed, unless the function asks for more.
pub const BACKOFF_MAX: Duration = Duration::from_secs(300);
/// Longest pause that a function may ask for with `Retry-After`.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(3_600);
/// First pause of a function's calls after the platform refused one; doubles to the maximum.
pub const REFUSAL_BACKOFF_MIN: Duration = Duration::from_millis(100);
/// Longest pause of a function's calls after the platform refused one.
pub const REFUSAL_BACKOFF_MAX: Duration = Duration::from_secs(30);
/// Attempts of one call that may be cut short by a data plane or a node that is lost.
pub const INTERRUPTIONS_MAX: u32 = 32;
/// How long after it was accepted an attempt may still begin, unless the call says otherwise.
pub const AGE_DEFAULT: Duration = Duration::from_secs(6 * 3_600);
/// The longest that a call may ask for.
pub const AGE_MAX: Duration = fanfare_types::limits::CALL_AGE_MAX;
/// Attempts of one function that may always wait for a slot.
pub const FEED_MIN: u32 = 2;
/// Attempts of one function that are written ahead of its queue, while its executions are short.
pub const AHEAD_MAX: u32 = 64;
/// The same for calls that may run once only: a crash loses those that were written.
pub const AHEAD_ONCE_MAX: u32 = 8;
/// Characters of an idempotency key.
pub const KEY_LEN_MAX: usize = 255;
/// How long an idempotency key stands for the call that it came with, if that is kept so long.
pub const KEY_WINDOW: Duration = Duration::from_secs(24 * 3_600);
/// Attempts to deliver one callback.
pub const CALLBACK_ATTEMPTS_MAX: u32 = 8;
/// First pause after a callback that was not taken; doubles to the maximum.
pub const CALLBACK_BACKOFF_MIN: Duration = Duration::from_secs(1);
/// Longest pause after a callback that was not taken.
pub const CALLBACK_BACKOFF_MAX: Duration = Duration::from_secs(300);
/// Callbacks under way at once.
pub const CALLBACKS_MAX: usize = 64;
/// Those of them that were tried before.
pub const CALLBACKS_AGAIN_MAX: usize = 32;
/// Those of them that go to one receiver (a host and its port).
pub const CALLBACKS_PER_RECEIVER_MAX: usize = 8;
/// Characters of a callback's URL.
pub const CALLBACK_URL_LEN_MAX: usize = 2_048;
/// Calls on one page of a list, unless it is asked for otherwise.
pub const PAGE_DEFAULT: usize = 100;
/// Calls on one page of a list.
pub const PAGE_MAX: usize = 1_000;

/// The limits that a data plane may set.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Calls that have not ended, or whose callback is not settled.
    pub open_max: usize,
    /// Bytes of their requests.
    pub open_bytes_max: u64,
    /// Attempts under way at once, those that wait for a slot included.
    pub running_max: usize,
    /// Bytes of their requests; one is always allowed.
    pub running_bytes_max: u64,
    /// Calls that have succeeded or were cancelled; the oldest are dropped.
    pub results_max: usize,
    /// Bytes of their results.
    pub results_bytes_max: u64,
    /// How long they are kept.
    pub results_keep: Duration,
    /// Calls that have failed or are dead; the oldest are dropped.
    pub letters_max: usize,
    /// Bytes of their requests and results.
    pub letters_bytes_max: u64,
    /// How long they are kept.
    pub letters_keep: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            open_max: 100_000,
            open_bytes_max: 1 << 30,
            running_max: 4_096,
            running_bytes_max: 256 << 20,
            results_max: 100_000,
            results_bytes_max: 1 << 30,
            results_keep: Duration::from_secs(24 * 3_600),
            letters_max: 10_000,
            letters_bytes_max: 1 << 30,
            letters_keep: Duration::from_secs(7 * 24 * 3_600),
        }
    }
}
