//! The runtime itself.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use fanfare_types::{
    ExitCause, RevisionId, RevisionSpec, SandboxId, SandboxRecord, SandboxUsage, SecretName, SecretValue,
    Stages, StartFailure, StartFailureKind, StopMode, limits,
};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::listener::FakeListener;
use super::sandbox::{Phase, Sandbox, SandboxStats};
use super::script::{Fate, Script};
use crate::{LogLine, LogStream, Orphan, Outlets, Runtime, SandboxExit, Started};

/// How the fake runtime behaves where a revision does not say otherwise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FakeOptions {
    /// Ordered to ready. Zero is at once, without a timer.
    pub create_delay: Duration,
    /// Up to so much more, uniformly.
    pub jitter: Duration,
    /// Share of creations that fail after their delay, 0 to 1.
    pub failure_rate: f64,
    /// What chance is drawn from, together with the sandbox's id: the same seed and ids give the same run.
    pub seed: u64,
    /// CPU that a sandbox is said to use for each request in it, in thousandths of a CPU.
    pub busy_cpu_milli: u32,
}

impl Default for FakeOptions {
    fn default() -> Self {
        FakeOptions {
            create_delay: Duration::ZERO,
            jitter: Duration::ZERO,
            failure_rate: 0.0,
            seed: 0,
            busy_cpu_milli: 1_000,
        }
    }
}

/// Counts over a fake runtime's life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FakeTotals {
    /// Sandboxes that became ready.
    pub started: u64,
    /// Creations that failed, those that were stopped included.
    pub failed: u64,
    /// Sandboxes that became ready and have ended.
    pub exited: u64,
    /// The most requests that were at once in any one sandbox.
    pub in_flight_max: u32,
    /// Requests that were in sandboxes that have ended.
    pub served_by_exited: u64,
}

/// See the [module](crate::fake). Dropping it without `shutdown` is its `kill -9`: its sandboxes vanish without exits.
pub struct FakeRuntime {
    inner: Arc<Inner>,
}

pub(super) struct Inner {
    options: Mutex<FakeOptions>,
    listener: Arc<FakeListener>,
    outlets: Outlets,
    state: Mutex<State>,
}

struct State {
    sandboxes: HashMap<SandboxId, Arc<Sandbox>>,
    totals: FakeTotals,
    closed: bool,
    usage_read: Instant,
}

impl std::fmt::Debug for FakeRuntime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.inner.state.lock();
        f.debug_struct("FakeRuntime")
            .field("sandboxes", &state.sandboxes.len())
            .field("totals", &state.totals)
            .finish()
    }
}

impl FakeRuntime {
    /// A runtime whose sandboxes answer on `listener`. Of the outlets it needs no code.
    #[must_use]
    pub fn new(options: FakeOptions, listener: Arc<FakeListener>, outlets: Outlets) -> Self {
        let state = State {
            sandboxes: HashMap::new(),
            totals: FakeTotals::default(),
            closed: false,
            usage_read: Instant::now(),
        };
        let inner = Inner { options: Mutex::new(options), listener, outlets, state: Mutex::new(state) };
        FakeRuntime { inner: Arc::new(inner) }
    }

    /// Behaves so from now on; creations under way keep their fate.
    pub fn set_options(&self, options: FakeOptions) {
        *self.inner.options.lock() = options;
    }

    /// Ends a sandbox as if by itself; `false` when there is none. One that is starting fails to start.
    pub fn crash(&self, sandbox: SandboxId, cause: ExitCause) -> bool {
        match self.inner.get(sandbox) {
            Some(sandbox) => self.inner.end(&sandbox, cause),
            None => false,
        }
    }

    /// What a living sandbox has done.
    #[must_use]
    pub fn stats(&self, sandbox: SandboxId) -> Option<SandboxStats> {
        self.inner.get(sandbox).map(|sandbox| sandbox.stats())
    }

    /// Counts so far.
    #[must_use]
    pub fn totals(&self) -> FakeTotals {
        let state = self.inner.state.lock();
        let living = state.sandboxes.values().map(|sandbox| sandbox.stats().in_flight_max).max().unwrap_or(0);
        FakeTotals { in_flight_max: state.totals.in_flight_max.max(living), ..state.totals }
    }

    /// Ids of the sandboxes that exist, starting ones included.
    #[must_use]
    pub fn sandboxes(&self) -> Vec<SandboxId> {
        self.inner.state.lock().sandboxes.keys().copied().collect()
    }
}

impl Drop for FakeRuntime {
    fn drop(&mut self) {
        let all = {
            let mut state = self.inner.state.lock();
            state.closed = true;
            std::mem::take(&mut state.sandboxes)
        };
        for sandbox in all.into_values() {
            sandbox.advance(Phase::Gone(ExitCause::NodeLost));
            self.inner.listener.unregister(sandbox.id);
            sandbox.ring();
        }
    }
}

impl Inner {
    fn get(&self, sandbox: SandboxId) -> Option<Arc<Sandbox>> {
        self.state.lock().sandboxes.get(&sandbox).cloned()
    }

    pub(super) fn log(&self, line: LogLine) {
        (self.outlets.logs)(line);
    }

    fn fate(&self, sandbox: Option<SandboxId>, script: &Script) -> Fate {
        script.fate(&self.options.lock(), sandbox)
    }

    fn admit(
        self: &Arc<Self>,
        id: SandboxId,
        revision: RevisionId,
        script: &Script,
    ) -> Result<Starting, StartFailure> {
        let sandbox = Sandbox::new(id, revision, script.stubborn, Arc::downgrade(self));
        let mut state = self.state.lock();
        if state.closed {
            return Err(failure(StartFailureKind::Node, "the runtime is shut down", script));
        }
        if state.sandboxes.contains_key(&id) {
            return Err(failure(StartFailureKind::Node, &format!("sandbox {id} exists already"), script));
        }
        state.sandboxes.insert(id, sandbox.clone());
        Ok(Starting { runtime: self.clone(), sandbox })
    }

    async fn create(
        self: Arc<Self>,
        id: SandboxId,
        revision: Arc<RevisionSpec>,
    ) -> Result<Started, StartFailure> {
        let begun = Instant::now();
        let script = Script::read(&revision)?;
        let starting = self.admit(id, revision.id, &script)?;
        if let Some(text) = &script.say {
            let (function, text) = (revision.id.function, text.clone());
            self.log(LogLine { function, sandbox: Some(id), stream: LogStream::Stdout, text });
        }
        let fate = self.fate(Some(id), &script);
        tokio::select! {
            biased;
            cause = starting.sandbox.gone() => return Err(exited(cause, &script)),
            outcome = pass(&fate, revision.timeouts.start, &script) => outcome?,
        }
        let endpoint = starting.finish(&script)?;
        let stages = Stages { create: begun.elapsed(), ..Stages::default() };
        Ok(Started { endpoint, stages })
    }

    async fn prepare(self: Arc<Self>, revision: Arc<RevisionSpec>) -> Result<(), StartFailure> {
        let script = Script::read(&revision)?;
        if self.state.lock().closed {
            return Err(failure(StartFailureKind::Node, "the runtime is shut down", &script));
        }
        pass(&self.fate(None, &script), revision.timeouts.start, &script).await
    }

    /// Ends a sandbox; `false` when it has ended before.
    pub(super) fn end(&self, sandbox: &Sandbox, cause: ExitCause) -> bool {
        let was = sandbox.advance(Phase::Gone(cause));
        if matches!(was, Phase::Gone(_)) {
            return false;
        }
        self.listener.unregister(sandbox.id);
        {
            let stats = sandbox.stats();
            let mut state = self.state.lock();
            state.sandboxes.remove(&sandbox.id);
            if was == Phase::Starting {
                state.totals.failed += 1;
            } else {
                state.totals.exited += 1;
                state.totals.served_by_exited += stats.served;
                state.totals.in_flight_max = state.totals.in_flight_max.max(stats.in_flight_max);
            }
        }
        if was != Phase::Starting {
            (self.outlets.exits)(SandboxExit { sandbox: sandbox.id, cause, log_tail: String::new() });
        }
        sandbox.ring();
        true
    }

    /// Has a sandbox ended, at once or after its grace, whether or not the caller waits.
    fn begin_to_stop(self: &Arc<Self>, sandbox: &Arc<Sandbox>, mode: StopMode) {
        let was = match mode {
            StopMode::IfNotBegun => return,
            StopMode::Kill => Phase::Starting,
            StopMode::Graceful if sandbox.phase() == Phase::Starting => Phase::Starting,
            StopMode::Graceful => sandbox.advance(Phase::Ending),
        };
        match was {
            Phase::Ending | Phase::Gone(_) => {}
            Phase::Ready if sandbox.stubborn || sandbox.stats().in_flight > 0 => {
                let (runtime, sandbox) = (self.clone(), sandbox.clone());
                tokio::spawn(async move {
                    let idle = async {
                        if sandbox.stubborn {
                            sandbox.gone().await;
                        } else {
                            sandbox.idle().await;
                        }
                    };
                    let _within_grace = tokio::time::timeout(limits::STOP_GRACE, idle).await;
                    runtime.end(&sandbox, ExitCause::Stopped);
                });
            }
            Phase::Starting | Phase::Ready => {
                self.end(sandbox, ExitCause::Stopped);
            }
        }
    }

    async fn stop(self: Arc<Self>, id: SandboxId, mode: StopMode) {
        if mode == StopMode::IfNotBegun {
            return; // a creation begins with its call
        }
        if let Some(sandbox) = self.get(id) {
            self.begin_to_stop(&sandbox, mode);
            sandbox.gone().await;
        }
    }

    async fn shutdown(self: Arc<Self>) {
        let all: Vec<Arc<Sandbox>> = {
            let mut state = self.state.lock();
            state.closed = true;
            state.sandboxes.values().cloned().collect()
        };
        join_all(all.iter().map(|sandbox| {
            self.begin_to_stop(sandbox, StopMode::Graceful);
            sandbox.gone()
        }))
        .await;
    }
}

/// A sandbox that is not ready yet. Dropped before `finish`, it leaves nothing.
struct Starting {
    runtime: Arc<Inner>,
    sandbox: Arc<Sandbox>,
}

impl Starting {
    fn finish(&self, script: &Script) -> Result<Arc<str>, StartFailure> {
        let Some(endpoint) = self.runtime.listener.register(&self.sandbox) else {
            return Err(failure(
                StartFailureKind::Node,
                "every address of the fake runtime is taken",
                script,
            ));
        };
        if let Phase::Gone(cause) = self.sandbox.advance(Phase::Ready) {
            self.runtime.listener.unregister(self.sandbox.id);
            return Err(exited(cause, script));
        }
        self.runtime.state.lock().totals.started += 1;
        Ok(endpoint)
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        if self.sandbox.phase() == Phase::Starting {
            self.runtime.end(&self.sandbox, ExitCause::Stopped);
        }
    }
}

/// The time that a creation takes, and how it ends.
async fn pass(fate: &Fate, timeout: Duration, script: &Script) -> Result<(), StartFailure> {
    let over = fate.delay.is_none_or(|delay| delay > timeout);
    let wait = fate.delay.map_or(timeout, |delay| delay.min(timeout));
    if !wait.is_zero() {
        tokio::time::sleep(wait).await;
    }
    if over {
        return Err(failure(StartFailureKind::Timeout, &format!("not ready after {timeout:?}"), script));
    }
    match fate.exit {
        Some(status) => Err(exited(ExitCause::Status(status), script)),
        None => Ok(()),
    }
}

fn exited(cause: ExitCause, script: &Script) -> StartFailure {
    failure(StartFailureKind::Exited(cause), &format!("it {cause} before it was ready"), script)
}

fn failure(kind: StartFailureKind, detail: &str, script: &Script) -> StartFailure {
    StartFailure { kind, detail: detail.to_owned(), log_tail: script.say.clone().unwrap_or_default() }
}

impl Runtime for FakeRuntime {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn prepare(&self, revision: Arc<RevisionSpec>) -> BoxFuture<'static, Result<(), StartFailure>> {
        self.inner.clone().prepare(revision).boxed()
    }

    /// Nothing runs that could read them.
    fn secrets(&self, _: RevisionId, _: Vec<(SecretName, SecretValue)>) {}

    fn create(
        &self,
        sandbox: SandboxId,
        revision: Arc<RevisionSpec>,
    ) -> BoxFuture<'static, Result<Started, StartFailure>> {
        self.inner.clone().create(sandbox, revision).boxed()
    }

    fn stop(&self, sandbox: SandboxId, mode: StopMode) -> BoxFuture<'static, ()> {
        self.inner.clone().stop(sandbox, mode).boxed()
    }

    fn forget(&self, _revision: RevisionId) -> BoxFuture<'static, ()> {
        // Nothing is kept for a revision.
        std::future::ready(()).boxed()
    }

    fn recover(&self) -> BoxFuture<'static, Vec<SandboxRecord>> {
        // A record does not survive its process.
        std::future::ready(Vec::new()).boxed()
    }

    fn audit(&self) -> BoxFuture<'static, Vec<Orphan>> {
        let me = Arc::downgrade(&self.inner);
        let mine = |sandbox: &Arc<Sandbox>| Weak::ptr_eq(&sandbox.runtime, &me);
        // The listener is asked first: what it has registered was in `sandboxes` before.
        let reachable: Vec<_> = self.inner.listener.registered().into_iter().filter(mine).collect();
        let state = self.inner.state.lock();
        let ownerless = reachable.iter().filter(|sandbox| {
            !state.sandboxes.contains_key(&sandbox.id) && !matches!(sandbox.phase(), Phase::Gone(_))
        });
        let orphans =
            ownerless.map(|sandbox| Orphan { kind: "socket", what: sandbox.id.to_string() }).collect();
        std::future::ready(orphans).boxed()
    }

    fn usage(&self) -> Vec<SandboxUsage> {
        let milli = f64::from(self.inner.options.lock().busy_cpu_milli);
        let mut state = self.inner.state.lock();
        let now = Instant::now();
        let interval_s = (now - state.usage_read).as_secs_f64().max(1e-9);
        state.usage_read = now;
        let ready = state.sandboxes.values().filter(|sandbox| sandbox.phase() != Phase::Starting);
        ready
            .map(|sandbox| SandboxUsage {
                sandbox: sandbox.id,
                cpu_milli: sandbox.take_busy().as_secs_f64() / interval_s * milli,
            })
            .collect()
    }

    fn shutdown(&self) -> BoxFuture<'static, ()> {
        self.inner.clone().shutdown().boxed()
    }
}
