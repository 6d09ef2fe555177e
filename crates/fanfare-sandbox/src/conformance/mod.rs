//! One suite that every runtime passes.
//!
//! A backend implements [`Subject`] in its tests and calls [`suite`]:
//!
//! ```ignore
//! #[tokio::test(flavor = "multi_thread")]
//! async fn conformance() {
//!     fanfare_sandbox::conformance::suite(|| async { Arc::new(MySubject::new()) as Arc<dyn Subject> }).await;
//! }
//! ```
//!
//! Each case gets a subject of its own, has [`CASE_TIMEOUT`], and runs after the one before it, so that a case sees
//! only its own processes. Cases wait for events (an exit, a line of a log), never for time to pass.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "this module is a test that other crates run")]

mod client;
mod lab;
mod starting;
mod stopping;
mod whole;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use fanfare_types::{RevisionSpec, SandboxId};
use futures_util::future::BoxFuture;
use tokio::time::Instant;

use crate::{ExitSink, LogSink, Runtime};

pub use client::{Reply, request};

/// Longest time of one case.
pub const CASE_TIMEOUT: Duration = Duration::from_secs(60);

/// The line that a [`Behaviour::NeverReady`] writes to its standard output once it runs.
pub const WAITING_LINE: &str = "conformance: waiting";
/// The line that [`Ask::Slow`] makes a function write to its standard output before it goes on.
pub const SLOW_LINE: &str = "conformance: slow";
/// The line that a [`Behaviour::FailsToStart`] writes before it ends.
pub const FAILING_LINE: &str = "conformance: failing";
/// The status that a [`Behaviour::FailsToStart`] ends with.
pub const FAILING_STATUS: i32 = 3;

/// A runtime under test, with what it takes to exercise it.
pub trait Subject: Send + Sync + 'static {
    /// A new incarnation of the runtime, over the same state (directories, cgroups, names) as this subject's earlier
    /// ones. The suite calls its `recover` before anything else.
    fn start(&self, exits: ExitSink, logs: LogSink) -> BoxFuture<'static, Arc<dyn Runtime>>;

    /// A revision that behaves so. Equal behaviours give the same revision id, different ones different ids.
    fn revision(&self, behaviour: Behaviour) -> Arc<RevisionSpec>;

    /// Sends one request to a sandbox and gives the status of its answer, or why there was none.
    fn ask(
        &self,
        sandbox: SandboxId,
        endpoint: Arc<str>,
        ask: Ask,
    ) -> BoxFuture<'static, Result<u16, String>>;

    /// Ends an incarnation as `kill -9` of its process would: no cleaning up, no exits. `false`, and nothing done, when
    /// the subject cannot; the case that needs it then says that it was skipped.
    fn abandon(&self, runtime: Arc<dyn Runtime>) -> BoxFuture<'static, bool>;

    /// What can be seen of this subject's sandboxes from outside the runtime (processes, cgroups, mounts, files), for a
    /// runtime whose own audit might be blind. Checked to be empty wherever the audit is.
    fn leftovers(&self) -> Vec<String>;

    /// How many times [`CASE_TIMEOUT`] a case has; more than once where a processor is emulated.
    fn patience(&self) -> u32 {
        1
    }
}

/// How sandboxes of a revision behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Behaviour {
    /// They become ready, and do what [`Ask`] says. They end at SIGTERM once their request is answered.
    Serves,
    /// As `Serves`, but SIGTERM is ignored.
    Stubborn,
    /// They write [`FAILING_LINE`] and end with [`FAILING_STATUS`] before they are ready.
    FailsToStart,
    /// They write [`WAITING_LINE`] and never become ready; `Timeouts::start` is as given.
    NeverReady {
        /// The revision's time to start.
        start_timeout: Duration,
    },
}

/// What a request asks of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// To answer 200 at once.
    Answer,
    /// To write [`SLOW_LINE`], wait so long, and answer 200.
    Slow(Duration),
    /// To end with this status without an answer.
    Exit(i32),
}

/// One rule.
#[derive(Clone, Copy)]
pub struct Case {
    /// What must hold, as a name.
    pub name: &'static str,
    run: fn(Arc<dyn Subject>) -> BoxFuture<'static, ()>,
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl Case {
    /// Runs this case alone. Panics where the rule is broken or the time is over.
    pub async fn run(&self, subject: Arc<dyn Subject>) {
        let limit = CASE_TIMEOUT * subject.patience();
        let run = tokio::time::timeout(limit, (self.run)(subject)).await;
        assert!(run.is_ok(), "{}: not over after {limit:?}", self.name);
    }
}

macro_rules! cases {
    ($($module:ident :: $name:ident),* $(,)?) => {
        /// Every rule, in the order in which [`suite`] checks them.
        pub const CASES: &[Case] = &[
            $(Case { name: stringify!($name), run: |subject| Box::pin($module::$name(subject)) },)*
        ];
    };
}

cases![
    starting::ready_means_a_request_is_answered,
    starting::failure_tells_why_and_leaves_nothing,
    starting::not_ready_in_time_is_a_failure_that_leaves_nothing,
    starting::an_id_in_use_is_refused,
    starting::prepare_proves_a_start_and_leaves_no_sandbox,
    starting::a_dropped_create_leaves_nothing_once_stopped,
    starting::fifty_at_once,
    starting::failures_do_not_disturb_their_neighbours,
    stopping::an_exit_by_itself_is_reported_once,
    stopping::stop_before_ready_fails_the_create,
    stopping::stop_at_first_sight_fails_the_create,
    stopping::stop_of_an_unknown_sandbox_resolves_at_once,
    stopping::if_not_begun_spares_what_has_begun,
    stopping::stopping_twice_ends_once,
    stopping::graceful_lets_the_request_finish,
    stopping::kill_does_not_wait,
    stopping::grace_ends,
    whole::usage_names_only_what_lives,
    whole::forget_spares_the_living_and_can_be_undone,
    whole::what_an_earlier_incarnation_left_is_adopted_or_removed,
    whole::shutdown_ends_everything_once,
    whole::shutdown_ends_what_is_starting,
    whole::nothing_is_created_after_shutdown,
];

/// Runs every case, each with a new subject, and panics with the list of those that failed.
pub async fn suite<F, Fut>(factory: F)
where
    F: Fn() -> Fut,
    Fut: Future<Output = Arc<dyn Subject>>,
{
    let mut failed = Vec::new();
    for case in CASES {
        let subject = factory().await;
        let begun = Instant::now();
        // A task of its own: a broken rule must not hide the state of the others.
        let outcome = tokio::spawn(async move { case.run(subject).await }).await;
        let word = if outcome.is_ok() { "ok" } else { "FAILED" };
        eprintln!("conformance {word:>6} {:>7.1} ms  {}", begun.elapsed().as_secs_f64() * 1e3, case.name);
        if outcome.is_err() {
            failed.push(case.name);
        }
    }
    assert!(failed.is_empty(), "{} of {} rules are broken: {failed:?}", failed.len(), CASES.len());
}
