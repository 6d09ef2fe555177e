//! A runtime on the bench: its sinks collected, its traces checked.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use fanfare_types::{Epoch, RevisionId, SandboxId, SandboxRecord, StartFailure, StopMode};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{Ask, Behaviour, Subject};
use crate::{LogLine, LogStream, Runtime, SandboxExit, Started};

/// Longest wait for an event that must come.
const EVENT_TIMEOUT: Duration = Duration::from_secs(20);

/// What a sink has received, with a wake-up for those who wait.
struct Inbox<T> {
    items: Mutex<VecDeque<T>>,
    arrived: Notify,
}

impl<T> Inbox<T> {
    fn new() -> Arc<Self> {
        Arc::new(Inbox { items: Mutex::new(VecDeque::new()), arrived: Notify::new() })
    }

    fn push(&self, item: T) {
        self.items.lock().push_back(item);
        self.arrived.notify_waiters();
    }

    /// Takes the first item that is wanted.
    async fn take(&self, what: &str, wanted: impl Fn(&T) -> bool) -> T {
        let find = async {
            loop {
                let arrived = self.arrived.notified();
                tokio::pin!(arrived);
                arrived.as_mut().enable();
                {
                    let mut items = self.items.lock();
                    if let Some(at) = items.iter().position(&wanted) {
                        return items.remove(at).unwrap();
                    }
                }
                arrived.await;
            }
        };
        match tokio::time::timeout(EVENT_TIMEOUT, find).await {
            Ok(item) => item,
            Err(_) => panic!("{what} did not come within {EVENT_TIMEOUT:?}"),
        }
    }
}

/// One incarnation of the runtime under test.
pub(super) struct Lab {
    pub(super) subject: Arc<dyn Subject>,
    pub(super) runtime: Arc<dyn Runtime>,
    exits: Arc<Inbox<SandboxExit>>,
    logs: Arc<Inbox<LogLine>>,
}

impl Lab {
    /// Starts an incarnation that must find nothing of an earlier one.
    pub(super) async fn new(subject: Arc<dyn Subject>) -> Lab {
        let (lab, found) = Lab::over(subject).await;
        assert!(found.is_empty(), "a new subject's runtime found {found:?}");
        lab
    }

    /// Starts an incarnation, and gives what it adopted.
    pub(super) async fn over(subject: Arc<dyn Subject>) -> (Lab, Vec<SandboxRecord>) {
        let (exits, logs) = (Inbox::new(), Inbox::new());
        let (exit_inbox, log_inbox) = (exits.clone(), logs.clone());
        let runtime = subject
            .start(Arc::new(move |exit| exit_inbox.push(exit)), Arc::new(move |line| log_inbox.push(line)))
            .await;
        let found = runtime.recover().await;
        (Lab { subject, runtime, exits, logs }, found)
    }

    pub(super) async fn create(&self, n: u64, behaviour: Behaviour) -> Result<Started, StartFailure> {
        self.runtime.create(id(n), self.subject.revision(behaviour)).await
    }

    /// Creates one that must come up.
    pub(super) async fn ready(&self, n: u64, behaviour: Behaviour) -> Started {
        match self.create(n, behaviour).await {
            Ok(started) => started,
            Err(failure) => panic!("sandbox {n} ({behaviour:?}) did not start: {failure:?}"),
        }
    }

    pub(super) async fn ask(&self, n: u64, started: &Started, ask: Ask) -> Result<u16, String> {
        self.subject.ask(id(n), started.endpoint.clone(), ask).await
    }

    pub(super) async fn stop(&self, n: u64, mode: StopMode) {
        self.runtime.stop(id(n), mode).await;
    }

    /// The exit of this sandbox, taken out of the inbox.
    pub(super) async fn exit(&self, n: u64) -> SandboxExit {
        self.exits.take("an exit", |exit| exit.sandbox == id(n)).await
    }

    /// Waits until a sandbox of the revision has written this line.
    pub(super) async fn line(&self, behaviour: Behaviour, text: &str) {
        let revision: RevisionId = self.subject.revision(behaviour).id;
        let wanted = |line: &LogLine| {
            line.function == revision.function && line.stream == LogStream::Stdout && line.text.contains(text)
        };
        self.logs.take("a log line", wanted).await;
    }

    /// Nothing is left, by the runtime's word and by what can be seen, and no exit is in the inbox.
    pub(super) async fn clean(&self) {
        let orphans = self.runtime.audit().await;
        assert!(orphans.is_empty(), "orphans: {orphans:?}");
        let unexpected = self.exits.items.lock().clone();
        assert!(unexpected.is_empty(), "exits that nothing explains: {unexpected:?}");
    }

    /// Shuts the runtime down and checks that it has left no trace and reported nothing twice.
    pub(super) async fn close(self) {
        self.runtime.shutdown().await;
        self.clean().await;
        let leftovers = self.subject.leftovers();
        assert!(leftovers.is_empty(), "left over after shutdown: {leftovers:?}");
    }
}

/// The `n`-th sandbox of the suite.
pub(super) fn id(n: u64) -> SandboxId {
    SandboxId::new(Epoch(1), n)
}
