//! The fake runtime as a subject of the suite.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fanfare_sandbox::conformance::{
    Ask, Behaviour, FAILING_LINE, FAILING_STATUS, SLOW_LINE, Subject, WAITING_LINE, request,
};
use fanfare_sandbox::fake::{FakeListener, FakeOptions, FakeRuntime};
use fanfare_sandbox::{CodeStore, ExitSink, LogSink, Outlets, Runtime};
use fanfare_types::{
    CodeDigest, Contract, FunctionId, FunctionName, RevisionId, RevisionSpec, SandboxId, Sizing,
    StartFailure, StartFailureKind, Timeouts,
};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tempfile::TempDir;

/// There is no code, and nobody may ask for it.
struct NoCode;

impl CodeStore for NoCode {
    fn directory(&self, code: CodeDigest) -> BoxFuture<'static, Result<PathBuf, StartFailure>> {
        let failure = StartFailure {
            kind: StartFailureKind::Code,
            detail: format!("the fake runtime asked for code {code}"),
            log_tail: String::new(),
        };
        std::future::ready(Err(failure)).boxed()
    }
}

pub(crate) fn outlets(exits: ExitSink, logs: LogSink) -> Outlets {
    Outlets { exits, logs, code: Arc::new(NoCode) }
}

/// A revision with this environment.
pub(crate) fn revision(function: u32, env: &[(&str, &str)], start: Duration) -> Arc<RevisionSpec> {
    Arc::new(RevisionSpec {
        id: RevisionId { function: FunctionId(function), number: 1 },
        name: FunctionName::new("fake").unwrap(),
        runtime: "fake".into(),
        contract: Contract::Fake,
        code: None,
        env: env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        given: fanfare_types::Given::default(),
        sizing: Sizing::default(),
        timeouts: Timeouts { start, ..Timeouts::default() },
    })
}

pub(crate) struct FakeSubject {
    listener: Arc<FakeListener>,
    directory: Option<TempDir>,
}

impl FakeSubject {
    pub(crate) fn tcp() -> Self {
        FakeSubject { listener: FakeListener::tcp().unwrap(), directory: None }
    }

    pub(crate) fn unix() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listener = FakeListener::unix(&directory.path().join("fake.sock")).unwrap();
        FakeSubject { listener, directory: Some(directory) }
    }
}

impl Subject for FakeSubject {
    fn start(&self, exits: ExitSink, logs: LogSink) -> BoxFuture<'static, Arc<dyn Runtime>> {
        let options = FakeOptions {
            create_delay: Duration::from_millis(1),
            jitter: Duration::from_millis(3),
            ..FakeOptions::default()
        };
        let runtime = FakeRuntime::new(options, self.listener.clone(), outlets(exits, logs));
        std::future::ready(Arc::new(runtime) as Arc<dyn Runtime>).boxed()
    }

    fn revision(&self, behaviour: Behaviour) -> Arc<RevisionSpec> {
        let start = Timeouts::default().start;
        let exit = format!("exit:{FAILING_STATUS}");
        match behaviour {
            Behaviour::Serves => revision(1, &[], start),
            Behaviour::Stubborn => revision(2, &[("FAKE_STUBBORN", "1")], start),
            Behaviour::FailsToStart => {
                revision(3, &[("FAKE_START", &exit), ("FAKE_SAY", FAILING_LINE)], start)
            }
            Behaviour::NeverReady { start_timeout } => {
                let function = u32::try_from(start_timeout.as_millis()).unwrap() + 4;
                revision(function, &[("FAKE_START", "never"), ("FAKE_SAY", WAITING_LINE)], start_timeout)
            }
        }
    }

    fn ask(
        &self,
        sandbox: SandboxId,
        endpoint: Arc<str>,
        ask: Ask,
    ) -> BoxFuture<'static, Result<u16, String>> {
        async move {
            let name = sandbox.to_string();
            let (header, value) = match ask {
                Ask::Answer => ("x-fake-sleep-ms", "0".to_owned()),
                Ask::Slow(time) => ("x-fake-sleep-ms", time.as_millis().to_string()),
                Ask::Exit(status) => ("x-fake-exit", status.to_string()),
            };
            let log = if matches!(ask, Ask::Slow(_)) { SLOW_LINE } else { "asked" };
            let headers = [("x-fanfare-sandbox", name.as_str()), (header, &value), ("x-fake-log", log)];
            let reply = request(&endpoint, "/", &headers).await.map_err(|error| error.to_string())?;
            // That it was this sandbox and no other that answered is part of the answer.
            let expected = format!("\"sandbox\":\"{name}\"");
            if reply.rest.contains(&expected) {
                Ok(reply.status)
            } else {
                Err(format!("{reply:?} is not {expected}"))
            }
        }
        .boxed()
    }

    fn abandon(&self, runtime: Arc<dyn Runtime>) -> BoxFuture<'static, bool> {
        drop(runtime);
        std::future::ready(true).boxed()
    }

    fn leftovers(&self) -> Vec<String> {
        let Some(directory) = &self.directory else { return Vec::new() };
        let names = std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name != "fake.sock").map(|name| name.to_string_lossy().into_owned()).collect()
    }
}
