//! A runtime that isolates nothing and is real in everything else.
//!
//! Its sandboxes are records of a few hundred bytes that come up after a settable delay, fail at a settable rate,
//! answer HTTP on an endpoint of their own, and end when told to. It drives scale experiments (thousands of sandboxes
//! on one machine) and tests of everything above a runtime.
//!
//! **What sandboxes answer.** `200` with `{"sandbox":"s1","method":"POST","path":"/x?y","body_bytes":12}`, unless the
//! request says otherwise:
//!
//! | request header | effect |
//! |---|---|
//! | `x-fake-sleep-ms: N` | answers after N milliseconds (at most [`SLEEP_MAX`]) |
//! | `x-fake-status: N` | answers with this status (200 to 599) |
//! | `x-fake-body-bytes: N` | answers with so many bytes instead (at most [`BODY_BYTES_MAX`]) |
//! | `x-fake-exit: N` | ends the sandbox with status N instead of answering, after the sleep |
//! | `x-fake-log: TEXT` | writes a line to the sandbox's standard output before the sleep |
//!
//! **How sandboxes of one revision differ** from [`FakeOptions`] is said in the function's environment:
//!
//! | variable | effect |
//! |---|---|
//! | `FAKE_CREATE_DELAY_MS` | the delay of creation, without jitter |
//! | `FAKE_FAILURE_RATE` | share of creations that fail, 0 to 1 |
//! | `FAKE_START` | `never`: never ready; `exit:N`: ends with status N instead of becoming ready |
//! | `FAKE_SAY` | a line written to standard output when it starts |
//! | `FAKE_STUBBORN` | any value: an idle sandbox, too, uses up the grace of a graceful stop |

mod answer;
mod draw;
mod listener;
mod runtime;
mod sandbox;
mod script;

pub use answer::{BODY_BYTES_MAX, SLEEP_MAX};
pub use listener::{CONNECTIONS_MAX, FakeListener};
pub use runtime::{FakeOptions, FakeRuntime, FakeTotals};
pub use sandbox::SandboxStats;
