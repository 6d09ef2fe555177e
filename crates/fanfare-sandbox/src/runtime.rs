//! The runtime interface.

use std::path::PathBuf;
use std::sync::Arc;

use fanfare_types::{
    CodeDigest, ExitCause, FunctionId, RevisionId, RevisionSpec, SandboxId, SandboxRecord, SandboxUsage,
    SecretName, SecretValue, Stages, StartFailure, StopMode,
};
use futures_util::future::BoxFuture;

/// Makes, watches and removes sandboxes on one node.
///
/// Rules that [`crate::conformance`] checks:
/// - `create` resolves only when the sandbox accepts requests, by an event; or with a failure, and then nothing of
///   the sandbox is left.
/// - A sandbox that was started ends exactly once through the [`ExitSink`], whatever ended it, and only after all it
///   owned is released.
/// - `stop` of a sandbox that is starting makes its `create` fail; of an unknown one it resolves at once.
/// - Every method may be called from any task at any time; none blocks the calling thread.
pub trait Runtime: Send + Sync + 'static {
    /// Its name in a function's `runtime` field.
    fn name(&self) -> &'static str;

    /// Makes code, dependencies and templates of a revision ready and proves that one sandbox starts.
    fn prepare(&self, revision: Arc<RevisionSpec>) -> BoxFuture<'static, Result<(), StartFailure>>;

    /// What the secrets of a revision hold from now on, in place of what was said before. Said before `prepare` and
    /// `create`; running sandboxes have it in their files within a second, later ones in their environment, too.
    /// Does not block. `forget` forgets it, and so does being told of none.
    fn secrets(&self, revision: RevisionId, values: Vec<(SecretName, SecretValue)>);

    /// Starts a sandbox and waits until it accepts requests.
    fn create(
        &self,
        sandbox: SandboxId,
        revision: Arc<RevisionSpec>,
    ) -> BoxFuture<'static, Result<Started, StartFailure>>;

    /// Ends a sandbox; resolves when nothing of it is left. Its exit also goes to the [`ExitSink`].
    fn stop(&self, sandbox: SandboxId, mode: StopMode) -> BoxFuture<'static, ()>;

    /// Releases what is kept for a revision (template, zygote) once its last sandbox has ended.
    fn forget(&self, revision: RevisionId) -> BoxFuture<'static, ()>;

    /// Called once before anything else: finds everything that an earlier incarnation of this runtime owned, and
    /// adopts it (then it is in the answer) or removes it.
    fn recover(&self) -> BoxFuture<'static, Vec<SandboxRecord>>;

    /// What exists on this machine in this runtime's name without an owner.
    fn audit(&self) -> BoxFuture<'static, Vec<Orphan>>;

    /// CPU use of each sandbox since the last call.
    fn usage(&self) -> Vec<SandboxUsage>;

    /// Ends every sandbox and template and releases everything; nothing may be created afterwards.
    fn shutdown(&self) -> BoxFuture<'static, ()>;
}

/// A sandbox that accepts requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Started {
    /// Where a data plane reaches it:
    /// - `unix:PATH`: a unix stream socket that speaks HTTP/1.1;
    /// - `tcp:HOST:PORT`: the same over TCP;
    /// - `broker:PATH#SANDBOX`: connect to the unix socket at PATH, write `SANDBOX` and a newline, and receive one
    ///   byte (`0`: granted, anything else: refused) that carries a connected socket as `SCM_RIGHTS`. For sandboxes
    ///   whose listener lives in a network namespace of its own.
    pub endpoint: Arc<str>,
    /// Where the time went (`create`, `start`, `ready`).
    pub stages: Stages,
}

/// A sandbox that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxExit {
    /// Which.
    pub sandbox: SandboxId,
    /// How.
    pub cause: ExitCause,
    /// Last lines of its log, within `limits::LOG_TAIL_LINES` and `LOG_TAIL_BYTES`.
    pub log_tail: String,
}

/// Receives each sandbox's end. Called from any thread; must not block.
pub type ExitSink = Arc<dyn Fn(SandboxExit) + Send + Sync>;

/// Which of a sandbox's outputs a line came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// The platform's own word about the sandbox (started, killed, cut).
    Platform,
}

/// One line that a sandbox wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// The function it belongs to.
    pub function: FunctionId,
    /// The sandbox; `None` for a template or a build.
    pub sandbox: Option<SandboxId>,
    /// Which output.
    pub stream: LogStream,
    /// The line without its newline; invalid UTF-8 replaced, cut where it exceeds the runtime's line limit.
    pub text: String,
}

/// Receives log lines in order per sandbox. Called from any thread; must not block.
pub type LogSink = Arc<dyn Fn(LogLine) + Send + Sync>;

/// Gives a revision's code as an unpacked directory that only root may change.
pub trait CodeStore: Send + Sync + 'static {
    /// The directory of this code, fetched and unpacked if need be; the same for the same digest.
    fn directory(&self, code: CodeDigest) -> BoxFuture<'static, Result<PathBuf, StartFailure>>;
}

/// Where a runtime's news goes, and where its code comes from.
#[derive(Clone)]
pub struct Outlets {
    /// Ends of sandboxes.
    pub exits: ExitSink,
    /// Lines of sandboxes.
    pub logs: LogSink,
    /// Code of revisions.
    pub code: Arc<dyn CodeStore>,
}

impl std::fmt::Debug for Outlets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Outlets")
    }
}

/// Something that exists in a runtime's name without an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orphan {
    /// `process`, `cgroup`, `mount`, `netns`, `socket`, `file`.
    pub kind: &'static str,
    /// Which.
    pub what: String,
}
