//! The suite itself: a runtime that breaks one rule is caught by the case of that rule.

use std::sync::Arc;

use fanfare_sandbox::conformance::{Ask, Behaviour, CASES, Subject};
use fanfare_sandbox::{ExitSink, LogSink, Orphan, Runtime, SandboxExit, Started};
use fanfare_types::{
    ExitCause, RevisionId, RevisionSpec, SandboxId, SandboxRecord, SandboxUsage, SecretName, SecretValue,
    Stages, StartFailure, StopMode,
};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use crate::subject::FakeSubject;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    ExitTwice,
    ExitOfWhatNeverStarted,
    NoLastWords,
    WrongCause,
    ReadyTooEarly,
    StopsWhatHasBegun,
    DoesNotStop,
    Orphan,
    UsageOfTheDead,
    AdoptsTheDead,
    CreatesAfterShutdown,
}

/// Each fault, and a case that must find it.
const FOUND_BY: &[(Fault, &str)] = &[
    (Fault::ExitTwice, "an_exit_by_itself_is_reported_once"),
    (Fault::ExitTwice, "stopping_twice_ends_once"),
    (Fault::ExitTwice, "shutdown_ends_everything_once"),
    (Fault::ExitOfWhatNeverStarted, "failure_tells_why_and_leaves_nothing"),
    (Fault::ExitOfWhatNeverStarted, "stop_before_ready_fails_the_create"),
    (Fault::NoLastWords, "failure_tells_why_and_leaves_nothing"),
    (Fault::NoLastWords, "prepare_proves_a_start_and_leaves_no_sandbox"),
    (Fault::WrongCause, "an_exit_by_itself_is_reported_once"),
    (Fault::WrongCause, "fifty_at_once"),
    (Fault::ReadyTooEarly, "ready_means_a_request_is_answered"),
    (Fault::StopsWhatHasBegun, "if_not_begun_spares_what_has_begun"),
    (Fault::DoesNotStop, "graceful_lets_the_request_finish"),
    (Fault::Orphan, "stop_of_an_unknown_sandbox_resolves_at_once"),
    (Fault::UsageOfTheDead, "usage_names_only_what_lives"),
    (Fault::AdoptsTheDead, "what_an_earlier_incarnation_left_is_adopted_or_removed"),
    (Fault::CreatesAfterShutdown, "nothing_is_created_after_shutdown"),
];

struct Broken {
    fault: Fault,
    inner: FakeSubject,
}

struct BrokenRuntime {
    fault: Fault,
    inner: Arc<dyn Runtime>,
    exits: ExitSink,
}

impl Subject for Broken {
    fn start(&self, exits: ExitSink, logs: LogSink) -> BoxFuture<'static, Arc<dyn Runtime>> {
        let fault = self.fault;
        let (sink, direct) = (exits.clone(), exits);
        let exits: ExitSink = Arc::new(move |mut exit: SandboxExit| {
            if fault == Fault::WrongCause {
                exit.cause = ExitCause::Status(99);
            }
            if fault == Fault::ExitTwice {
                sink(exit.clone());
            }
            sink(exit);
        });
        let starting = self.inner.start(exits, logs);
        async move { Arc::new(BrokenRuntime { fault, inner: starting.await, exits: direct }) as Arc<dyn Runtime> }.boxed()
    }

    fn revision(&self, behaviour: Behaviour) -> Arc<RevisionSpec> {
        self.inner.revision(behaviour)
    }

    fn ask(
        &self,
        sandbox: SandboxId,
        endpoint: Arc<str>,
        ask: Ask,
    ) -> BoxFuture<'static, Result<u16, String>> {
        self.inner.ask(sandbox, endpoint, ask)
    }

    fn abandon(&self, runtime: Arc<dyn Runtime>) -> BoxFuture<'static, bool> {
        self.inner.abandon(runtime)
    }

    fn leftovers(&self) -> Vec<String> {
        self.inner.leftovers()
    }
}

impl Runtime for BrokenRuntime {
    fn name(&self) -> &'static str {
        "broken"
    }

    fn prepare(&self, revision: Arc<RevisionSpec>) -> BoxFuture<'static, Result<(), StartFailure>> {
        let fault = self.fault;
        self.inner
            .prepare(revision)
            .map(move |outcome| outcome.map_err(|failure| alter(fault, failure)))
            .boxed()
    }

    fn secrets(&self, revision: RevisionId, values: Vec<(SecretName, SecretValue)>) {
        self.inner.secrets(revision, values);
    }

    fn create(
        &self,
        sandbox: SandboxId,
        revision: Arc<RevisionSpec>,
    ) -> BoxFuture<'static, Result<Started, StartFailure>> {
        let (fault, exits) = (self.fault, self.exits.clone());
        let creating = self.inner.create(sandbox, revision);
        async move {
            let outcome = creating.await;
            match (fault, outcome) {
                (Fault::ReadyTooEarly, Ok(started)) => {
                    Ok(Started { endpoint: "tcp:127.0.0.1:1".into(), ..started })
                }
                (Fault::CreatesAfterShutdown, Err(_)) => {
                    Ok(Started { endpoint: "tcp:127.0.0.1:1".into(), stages: Stages::default() })
                }
                (Fault::ExitOfWhatNeverStarted, Err(failure)) => {
                    exits(SandboxExit { sandbox, cause: ExitCause::Stopped, log_tail: String::new() });
                    Err(failure)
                }
                (fault, outcome) => outcome.map_err(|failure| alter(fault, failure)),
            }
        }
        .boxed()
    }

    fn stop(&self, sandbox: SandboxId, mode: StopMode) -> BoxFuture<'static, ()> {
        match (self.fault, mode) {
            (Fault::DoesNotStop, StopMode::Graceful) => {
                (self.exits)(SandboxExit { sandbox, cause: ExitCause::Stopped, log_tail: String::new() });
                std::future::ready(()).boxed()
            }
            (Fault::StopsWhatHasBegun, StopMode::IfNotBegun) => self.inner.stop(sandbox, StopMode::Kill),
            _ => self.inner.stop(sandbox, mode),
        }
    }

    fn forget(&self, revision: RevisionId) -> BoxFuture<'static, ()> {
        self.inner.forget(revision)
    }

    fn recover(&self) -> BoxFuture<'static, Vec<SandboxRecord>> {
        let adopts = self.fault == Fault::AdoptsTheDead;
        let found = self.inner.recover();
        async move {
            let mut found = found.await;
            if adopts {
                let (sandbox, endpoint) = (SandboxId::default(), Some("tcp:127.0.0.1:1".into()));
                found.push(SandboxRecord { sandbox, revision: RevisionId::default(), endpoint });
            }
            found
        }
        .boxed()
    }

    fn audit(&self) -> BoxFuture<'static, Vec<Orphan>> {
        if self.fault == Fault::Orphan {
            return std::future::ready(vec![Orphan { kind: "process", what: "1".into() }]).boxed();
        }
        self.inner.audit()
    }

    fn usage(&self) -> Vec<SandboxUsage> {
        let mut usage = self.inner.usage();
        if self.fault == Fault::UsageOfTheDead {
            usage.push(SandboxUsage { sandbox: SandboxId::default(), cpu_milli: 1.0 });
        }
        usage
    }

    fn shutdown(&self) -> BoxFuture<'static, ()> {
        self.inner.shutdown()
    }
}

fn alter(fault: Fault, failure: StartFailure) -> StartFailure {
    if fault == Fault::NoLastWords { StartFailure { log_tail: String::new(), ..failure } } else { failure }
}

/// Whether a case passes with this fault.
async fn passes(fault: Fault, name: &str) -> bool {
    let case = CASES.iter().find(|case| case.name == name).expect("a case of that name");
    let subject = Arc::new(Broken { fault, inner: FakeSubject::tcp() });
    tokio::spawn(async move { case.run(subject).await }).await.is_ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_are_found() {
    for (fault, name) in FOUND_BY {
        assert!(passes(Fault::None, name).await, "{name} fails without a fault");
        assert!(!passes(*fault, name).await, "{fault:?} passes {name}");
    }
}
