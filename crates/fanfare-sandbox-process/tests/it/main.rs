//! The runtime against a real kernel. Needs root; without it, says so and checks what an ordinary user has.
//!
//! This program is also the launcher that the runtimes under test start, and a daemon that tests kill.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::large_futures,
    reason = "all of this is a test, which clippy does not see without the standard harness"
)]

mod attacks;
mod conformance;
mod daemon;
mod deaths;
mod given;
mod handlers;
mod installs;
mod isolation;
mod limits;
mod races;
mod starting;
mod support;
mod user;

use libtest_mimic::{Arguments, Failed, Trial};

/// A test by name.
type Case = (&'static str, fn());

/// Names a module's functions as tests.
#[macro_export]
macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        /// This module's tests.
        pub(crate) const CASES: &[$crate::Case] = &[$((concat!(module_path!(), "::", stringify!($name)), $name)),*];
    };
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    match args.get(1).map(String::as_str) {
        Some(fanfare_sandbox_process::LAUNCHER_ARGUMENT) => fanfare_sandbox_process::launcher_main(),
        Some(daemon::ARGUMENT) => daemon::main(&args[2..]),
        Some(races::ARGUMENT) => races::main(),
        Some(user::ARGUMENT) => user::main(&args[2..]),
        Some(installs::ARGUMENT) => installs::main(&args[2..]),
        _ => {}
    }
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED: tests of isolation and limits need root");
    }
    // What an ordinary user has, root tests as another user, and an ordinary user as himself.
    let all = [
        user::CASES,
        isolation::CASES,
        attacks::CASES,
        limits::CASES,
        starting::CASES,
        handlers::CASES,
        installs::CASES,
        deaths::CASES,
        given::CASES,
        races::CASES,
        conformance::CASES,
    ]
    .concat();
    let trials = all.into_iter().map(|(name, run)| {
        Trial::test(name.trim_start_matches("it::"), move || {
            std::panic::catch_unwind(run).map_err(|panic| Failed::from(support::message(&*panic)))
        })
        .with_ignored_flag(!root && !user::CASES.iter().any(|(known, _)| *known == name))
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit();
}
