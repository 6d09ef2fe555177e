//! The binary: against a double of the control API and the data plane (output, exit codes, errors), and as a whole.

#![allow(clippy::unwrap_used, reason = "a test ends where it cannot go on")]
#![allow(clippy::print_stderr, reason = "a skipped test says so")]

mod crowd;
mod deploy;
mod double;
mod emulate;
mod errors;
mod invoke;
mod load;
mod reads;
mod real;
mod run;
mod schedules;
mod secrets;
mod sim;
mod tls;
mod webhooks;
