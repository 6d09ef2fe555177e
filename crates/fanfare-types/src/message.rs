//! What the three roles say to each other.
//!
//! Each pair of roles shares one long-lived stream; messages travel in batches that carry the sender's sequence
//! number and, from the control plane, its epoch. Order within a stream is kept; a broken stream loses its tail,
//! and the next one begins with a hello that states everything its sender holds, so no message is needed twice.
//!
//! **Leases.** Slots of a sandbox are leased to data planes in *deltas*: [`ToDataPlane::Grant`] adds,
//! [`FromDataPlane::Released`] subtracts. Because only the data plane takes slots out of its own hand and only the
//! control plane puts them in, `held by data planes + in flight on streams + free <= concurrency` at every moment.

use std::sync::Arc;
use std::time::Duration;

use crate::{
    DataPlaneId, EntrustRefusal, EntrustedCall, Epoch, ExitCause, FunctionId, FunctionName, FunctionRoute,
    NodeId, Reason, RequestRecord, Resources, RevisionId, RevisionSpec, SandboxId, SecretName, SecretValue,
    Stages, StartFailure, WebhookRoute,
};

/// Control plane to data plane.
#[derive(Clone, Debug, PartialEq)]
pub enum ToDataPlane {
    /// First on every stream: who you are, in which term. State follows, up to [`ToDataPlane::Synced`].
    Welcome {
        /// The data plane's number.
        you: DataPlaneId,
        /// The leader's term.
        epoch: Epoch,
    },
    /// These functions exist, as given. On a new stream: all of them, before `Synced`.
    Functions(Vec<FunctionRoute>),
    /// This function is gone. Its waiting requests are answered 404.
    FunctionRemoved(FunctionId),
    /// Everything has been said once: what is unknown now does not exist, and a lease not held is not yours.
    Synced,
    /// These data planes live, you included; a function's owner is chosen among them.
    Peers(Vec<(DataPlaneId, Arc<str>)>),
    /// Functions that another data plane owns: forward their requests once to it. `None`: it is yours.
    Owners(Vec<(FunctionId, Option<DataPlaneId>)>),
    /// `slots` more slots of this sandbox are yours.
    Grant {
        /// The function whose requests it serves.
        function: FunctionId,
        /// The revision it runs.
        revision: u32,
        /// The sandbox.
        sandbox: SandboxId,
        /// Its node.
        node: NodeId,
        /// Its address: `unix:PATH`, `tcp:HOST:PORT`, or `broker:PATH#SANDBOX` (see `fanfare-sandbox`), with what is
        /// spoken there ([`crate::Protocol::at`]).
        endpoint: Arc<str>,
        /// How many slots are added to what you hold.
        slots: u32,
        /// For a sandbox just started: where the time went.
        stages: Option<Stages>,
    },
    /// Give back `slots` slots of this sandbox as soon as they are free; `u32::MAX` for all of them.
    Revoke {
        /// The sandbox.
        sandbox: SandboxId,
        /// How many.
        slots: u32,
    },
    /// Give back `slots` slots of this function, whichever they are: free ones at once, others as they become free,
    /// before a waiting request of yours gets them. For the data plane that needs them more. An absolute number that
    /// replaces the previous one; 0 cancels.
    Yield {
        /// The function.
        function: FunctionId,
        /// How many slots.
        slots: u32,
    },
    /// Give back *all* slots of `sandboxes` sandboxes of this function that you choose: idle ones first, the longest
    /// idle first; then busy ones as they become free. An absolute number that replaces the previous one; 0 cancels.
    Retire {
        /// The function.
        function: FunctionId,
        /// How many sandboxes.
        sandboxes: u32,
    },
    /// The sandbox has ended. Its slots are void; requests that it held are answered with the cause.
    Gone {
        /// The sandbox.
        sandbox: SandboxId,
        /// How it ended.
        cause: GoneCause,
    },
    /// Requests that wait for this function cannot be served: answer them now with this. New ones still queue, and bring
    /// the next attempt.
    Unavailable {
        /// The function.
        function: FunctionId,
        /// What callers are told.
        reason: Reason,
        /// One sentence.
        detail: Arc<str>,
        /// Last lines of the failed sandbox's log.
        log_tail: Arc<str>,
    },
    /// Answer with [`FromDataPlane::Reached`] once everything before this on the stream has been taken in.
    Mark(u64),
    /// Answer with [`FromDataPlane::Explained`] of the same number.
    Explain {
        /// Names the question.
        number: u64,
        /// The request's id.
        request_id: Arc<str>,
    },
    /// Accept an asynchronous invocation, and answer with [`FromDataPlane::Entrusted`] of the same number once it is
    /// durable or refused. Asked again after a broken stream; the call's key makes that harmless.
    Entrust {
        /// Names the question.
        number: u64,
        /// The call.
        call: Arc<EntrustedCall>,
    },
    /// This webhook exists, as given. On a new stream: all of them, before `WebhooksSynced`.
    Webhook(Arc<WebhookRoute>),
    /// This webhook is gone.
    WebhookRemoved(FunctionName),
    /// All webhooks have been said once: one that was not named on this stream does not exist.
    WebhooksSynced,
}

/// Why a sandbox is gone, and what its last words were.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GoneCause {
    /// How it ended.
    pub exit: ExitCause,
    /// Last lines of its log.
    pub log_tail: Arc<str>,
}

/// Data plane to control plane.
#[derive(Clone, Debug, PartialEq)]
pub enum FromDataPlane {
    /// First on every stream.
    Hello(DataPlaneHello),
    /// The load of one function, now: sent at once when a request begins to wait, and when a queue has drained.
    Demand(FunctionLoad),
    /// The load of every active function over the last interval; functions left out are idle.
    Report(Vec<FunctionLoad>),
    /// `slots` slots of this sandbox are no longer mine. Never used again without a new grant.
    Released {
        /// The sandbox.
        sandbox: SandboxId,
        /// How many.
        slots: u32,
        /// It was chosen for [`ToDataPlane::Retire`]: take it out of service.
        retired: bool,
    },
    /// User code in this sandbox runs on though its request is over, or it broke the protocol: its slots must not be
    /// used again. The data plane has already stopped using it, and gives its slots back: those without another request
    /// in them at once, the others as their requests end. The control plane takes back what others hold of it, and has it
    /// killed when all slots are back.
    Condemned {
        /// The sandbox.
        sandbox: SandboxId,
        /// Why.
        why: Condemned,
    },
    /// Requests of this function failed here since the last such word: at most once for each reason and report interval.
    Failed(RequestFailures),
    /// Everything up to [`ToDataPlane::Mark`] of this number holds here.
    Reached(u64),
    /// Answer to [`ToDataPlane::Explain`]: what is remembered of requests with that id, the latest first, within
    /// [`crate::limits::REQUESTS_EXPLAINED_MAX`].
    Explained {
        /// The question's number.
        number: u64,
        /// The requests.
        records: Vec<RequestRecord>,
        /// For how long requests are remembered here at present; `None` when none has been forgotten yet.
        kept: Option<Duration>,
    },
    /// Answer to [`ToDataPlane::Entrust`]: the id of the call, which is durable; or why it is not kept.
    Entrusted {
        /// The question's number.
        number: u64,
        /// What became of it.
        outcome: Result<Arc<str>, EntrustRefusal>,
    },
    /// I am shutting down: grant me only what my waiting requests need, and let others own my functions. Said again on
    /// every new stream.
    Draining,
    /// My last word: everything here has ended as it should, and the stream ends.
    Left,
    /// I live.
    Heartbeat,
}

/// Why a data plane has a sandbox killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condemned {
    /// The request's time ran out while user code held it.
    Timeout,
    /// The client left while user code held its request.
    Abandoned,
    /// It cannot be reached, or answers with something other than HTTP.
    Broken,
}

/// What a data plane states when it connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataPlaneHello {
    /// Stable across restarts.
    pub name: Arc<str>,
    /// Where peers and clients reach it.
    pub address: Arc<str>,
    /// Differs after each restart of the process.
    pub incarnation: u64,
    /// The newest epoch it has seen.
    pub epoch_seen: Epoch,
    /// Every lease it holds; of a sandbox that it condemned, the slots that still have a request in them.
    pub leases: Vec<HeldLease>,
    /// Sandboxes that it condemned and has not heard to be gone: their slots must not be granted.
    pub condemned: Vec<SandboxId>,
}

/// One lease, as its holder states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldLease {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// How many of its slots.
    pub slots: u32,
}

/// Load of one function on one data plane.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FunctionLoad {
    /// The function.
    pub function: FunctionId,
    /// Requests in sandboxes now.
    pub in_flight: u32,
    /// Requests waiting now.
    pub queued: u32,
    /// Sandboxes held without a request in them.
    pub idle_sandboxes: u32,
    /// Mean of `in_flight + queued` over the time since the last report.
    pub concurrency_avg: f64,
    /// Requests that arrived since the last report.
    pub arrivals: u32,
    /// The time since the last report, in seconds.
    pub interval_s: f64,
    /// Smoothed execution time of the function, in seconds; `None` until one has been seen.
    pub execution_s: Option<f64>,
}

/// Requests of one function that failed on one data plane for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestFailures {
    /// The function.
    pub function: FunctionId,
    /// Why, in a word.
    pub reason: Reason,
    /// How many since the last such word.
    pub count: u32,
    /// One of them in one sentence, within [`crate::limits::FAILURE_DETAIL_BYTES_MAX`].
    pub detail: Arc<str>,
    /// Its id.
    pub request_id: Arc<str>,
    /// What its handler or sandbox wrote last, within [`crate::limits::LOG_TAIL_BYTES`].
    pub log_tail: Arc<str>,
}

/// Control plane to node daemon.
#[derive(Clone, Debug, PartialEq)]
pub enum ToNode {
    /// First on every stream.
    Welcome {
        /// The node's number.
        you: NodeId,
        /// The leader's term.
        epoch: Epoch,
    },
    /// What follows refers to this revision. Sent once per stream before its first use.
    Revision(Arc<RevisionSpec>),
    /// What the secrets hold that this revision uses: all that exist, in place of what was said before. Sent after the
    /// revision and before anything is to be done with it; again whenever one changes, and at the beginning of a stream
    /// for the revisions of the sandboxes that the hello states.
    Secrets {
        /// The revision.
        revision: RevisionId,
        /// The values.
        values: Vec<(SecretName, SecretValue)>,
    },
    /// Forget the revision and its template once its last sandbox has ended.
    RevisionRemoved(RevisionId),
    /// Make code, dependencies and template ready, and prove that one sandbox starts.
    Prepare(RevisionId),
    /// Start a sandbox.
    Create {
        /// Its id.
        sandbox: SandboxId,
        /// What it runs.
        revision: RevisionId,
        /// A request waits for it: where creations wait, it comes before those that nobody waits for.
        waited: bool,
    },
    /// A request waits by now for a sandbox that was ordered without one. Nothing where it has begun, or is unknown.
    Hasten(SandboxId),
    /// Stop a sandbox (or do not begin with it). Answered by [`FromNode::Exited`], also when it is unknown.
    Stop {
        /// Which.
        sandbox: SandboxId,
        /// How.
        mode: StopMode,
    },
    /// Send log lines to the control plane under this number.
    Logs {
        /// Names the transfer.
        transfer: u64,
        /// Of which function.
        function: FunctionId,
        /// At most so many of the last lines first.
        tail_lines: u32,
        /// Then go on until the receiver closes.
        follow: bool,
        /// Which lines.
        select: LogSelect,
    },
}

/// Which lines of a function's log are wanted. [`LogSelect::default`] is all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogSelect {
    /// Only those with a greater number, and all of them: how many of the last lines are wanted does not matter then.
    pub after: Option<u64>,
    /// Only those of this sandbox, and the platform's own.
    pub sandbox: Option<SandboxId>,
    /// Only those that are not older.
    pub age_max: Option<Duration>,
    /// Only those that are not younger.
    pub age_min: Option<Duration>,
}

impl LogSelect {
    /// Whether lines may be left out though they are there: what is missing between two numbers means nothing then.
    #[must_use]
    pub fn has_gaps(&self) -> bool {
        self.sandbox.is_some() || self.age_max.is_some() || self.age_min.is_some()
    }
}

/// How to stop a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopMode {
    /// SIGTERM, a grace, SIGKILL: for idle sandboxes.
    Graceful,
    /// SIGKILL: for condemned ones.
    Kill,
    /// Only if its creation has not begun; otherwise it goes on and is reported as usual.
    IfNotBegun,
}

/// Node daemon to control plane.
#[derive(Clone, Debug, PartialEq)]
pub enum FromNode {
    /// First on every stream.
    Hello(NodeHello),
    /// The sandbox accepts requests.
    Ready {
        /// Which.
        sandbox: SandboxId,
        /// Where.
        endpoint: Arc<str>,
        /// Where the time went, on the node.
        stages: Stages,
    },
    /// The sandbox did not come up; nothing of it is left.
    Failed {
        /// Which.
        sandbox: SandboxId,
        /// Why.
        failure: StartFailure,
    },
    /// The sandbox has ended, by itself or as ordered; nothing of it is left.
    Exited {
        /// Which.
        sandbox: SandboxId,
        /// How, with its last words.
        cause: GoneCause,
    },
    /// Answer to [`ToNode::Prepare`].
    Prepared {
        /// Which.
        revision: RevisionId,
        /// `None` when all is well.
        failure: Option<StartFailure>,
    },
    /// CPU use of sandboxes since the last such message.
    Usage(Vec<SandboxUsage>),
    /// My last word: every sandbox here has ended, as this process does, and the stream ends.
    Left,
    /// I live.
    Heartbeat,
}

/// What a node states when it connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeHello {
    /// Stable across restarts.
    pub name: Arc<str>,
    /// Differs after each restart of the process.
    pub incarnation: u64,
    /// The newest epoch it has seen.
    pub epoch_seen: Epoch,
    /// What it offers.
    pub capacity: Resources,
    /// The runtimes it has.
    pub runtimes: Vec<Arc<str>>,
    /// Every sandbox it has, ready or starting.
    pub sandboxes: Vec<SandboxRecord>,
    /// Differs when the numbers of its log lines have begun anew.
    pub logs: u64,
}

/// One sandbox, as its node states it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxRecord {
    /// Which.
    pub sandbox: SandboxId,
    /// What it runs.
    pub revision: RevisionId,
    /// Where it listens; `None` while it starts.
    pub endpoint: Option<Arc<str>>,
}

/// CPU use of one sandbox.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SandboxUsage {
    /// Which.
    pub sandbox: SandboxId,
    /// Mean use over the interval, in thousandths of a CPU.
    pub cpu_milli: f64,
}
