//! Load that does not wait for its answers.
//!
//! A generator that sends the next request when the last one was answered slows down with the system that it measures,
//! and so hides what a user would have waited (coordinated omission). This one sends each invocation of a
//! [`Plan`](fanfare_trace::Plan) when it is due: one thread keeps the times ([`pace`]), others send and read. What is late
//! is sent and counted as late, never left out; and every latency is told from when the request was due as well as from
//! when it was sent.
//!
//! [`run()`] replays a plan; [`summary`] says what came of it. Modules that the benches need, too, are public.

mod clock;
mod connection;
pub mod cpu_clock;
pub mod error;
mod names;
pub mod pace;
mod pacing;
pub mod processes;
pub mod procfs;
mod realtime;
mod record;
mod request;
pub mod results;
mod run;
mod sender;
pub mod server_timing;
pub mod stats;
pub mod summary;
pub mod wire;

pub use record::{Outcome, Record};
pub use request::{Requests, Target};
pub use run::{ColdStages, Progress, Run, Settings, run};
