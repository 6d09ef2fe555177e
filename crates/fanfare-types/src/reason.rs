//! Why something was refused or failed: one table of stable codes.

use std::fmt;

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $status:literal, $hint:literal;)*) => {
        /// Why a request was refused or failed by the platform. The code is stable; clients may match on it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Reason { $($(#[$doc])* $name,)* }

        impl Reason {
            /// Every reason there is.
            pub const ALL: &'static [Reason] = &[$(Reason::$name,)*];

            /// The stable code, as in the `X-Fanfare-Reason` header and in problem documents.
            #[must_use]
            pub const fn code(self) -> &'static str { match self { $(Reason::$name => $code,)* } }

            /// The HTTP status it is answered with.
            #[must_use]
            pub const fn status(self) -> u16 { match self { $(Reason::$name => $status,)* } }

            /// What to do next.
            #[must_use]
            pub const fn hint(self) -> &'static str { match self { $(Reason::$name => $hint,)* } }

            /// The same for the function `name`: commands in it are ready to be copied.
            #[must_use]
            pub fn hint_for(self, name: &str) -> String {
                match self {
                    // `NAME` is part of a path there, or a secret's.
                    Reason::RouteNotFound | Reason::SecretUnknown => self.hint().to_owned(),
                    _ => self.hint().replace("NAME", name),
                }
            }
        }
    };
}

reasons! {
    /// No function of that name.
    FunctionNotFound = "function-not-found", 404, "list what there is with `fanfare list`";
    /// Neither a function's host nor a function's path.
    RouteNotFound = "route-not-found", 404, "call /function/NAME/… or set the Host header to the function's name";
    /// Malformed, or over a limit of the protocol.
    BadRequest = "bad-request", 400, "change what the detail names, and send it again; nothing was run";
    /// Nothing is remembered of a request of that id.
    RequestNotFound = "request-not-found", 404, "records are kept for a while only; ask soon after the request, with the id in its X-Request-Id";
    /// The path exists, but not for this method.
    MethodNotAllowed = "method-not-allowed", 405, "use a method that the Allow header names";
    /// The body's media type is not the expected one.
    UnsupportedMediaType = "unsupported-media-type", 415, "send the content type that the detail names";
    /// A web page of another site may not call this.
    Forbidden = "forbidden", 403, "call it from the command line, or from a page of the same host";
    /// A callback of an asynchronous invocation was to call the platform itself.
    CallbackForbidden = "callback-forbidden", 403, "send callbacks to a service of your own; the platform's own ports take none";
    /// A field of a registration is wrong.
    InvalidField = "invalid-field", 422, "give the field a value that is allowed, and send it again; nothing was changed";
    /// A field is right by itself, and another one forbids it.
    FieldsDisagree = "fields-disagree", 422, "change one of the fields that the detail names";
    /// A function of that name exists already.
    FunctionExists = "function-exists", 409, "update it with `fanfare update`, or delete it first";
    /// A function and a tag of another one would be called by the same host.
    HostTaken = "host-taken", 409, "choose another name or another tag; the detail says which of the two is there";
    /// The function has no such revision any more, or never had.
    RevisionNotFound = "revision-not-found", 404, "`fanfare revisions NAME` lists those that are kept";
    /// The revision is known not to start.
    RevisionFailed = "revision-failed", 409, "`fanfare revisions NAME` says why it does not start; `fanfare rollback NAME@N` registers it anew and tries it again";
    /// The function has no such tag.
    TagNotFound = "tag-not-found", 404, "`fanfare describe NAME` lists its tags; set one with `fanfare tag NAME TAG=REVISION`";
    /// No other revision of the function that works is kept.
    NoEarlierRevision = "no-earlier-revision", 409, "deploy what should run: `fanfare deploy PATH`";
    /// There are as many functions as one control plane keeps.
    RegistryFull = "registry-full", 507, "delete functions that are no longer needed";
    /// No secret of that name.
    SecretNotFound = "secret-not-found", 404, "list what there is with `fanfare secret list`";
    /// A function names a secret that does not exist.
    SecretUnknown = "secret-unknown", 422, "set it first: `fanfare secret set NAME < FILE`; `fanfare secret list` lists what there is";
    /// A function uses the secret.
    SecretInUse = "secret-in-use", 409, "delete the functions that use it, or deploy them without it (`fanfare update NAME --unset-secret PLACE`)";
    /// A secret of the revision does not exist any more.
    SecretMissing = "secret-missing", 503, "set it anew with `fanfare secret set`, or deploy the function without it";
    /// The named code was never uploaded.
    CodeNotFound = "code-not-found", 422, "upload the code first: PUT /v1/blobs/DIGEST";
    /// The uploaded bytes are not what the digest says.
    CodeMismatch = "code-mismatch", 422, "upload it again";
    /// Larger than the limit.
    TooLarge = "too-large", 413, "send less; the limit is in the detail";
    /// The function's queue is full.
    QueueFull = "queue-full", 429, "try again later, or let more wait with `fanfare update NAME --queue-limit N`, or raise its --max";
    /// The data plane has as many requests as it may hold.
    DataPlaneFull = "data-plane-full", 503, "try again later, or add a data plane";
    /// The request's time ran out while it waited for a slot.
    QueueTimeout = "queue-timeout", 504, "`fanfare describe NAME` says what it waits for; raise its --max or --timeout with `fanfare update NAME`, or add a node";
    /// The request's time ran out while the function was working on it.
    RequestTimeout = "request-timeout", 504, "give it longer with `fanfare update NAME --timeout DURATION`, or make it faster";
    /// For too long no byte of the request or of its answer moved.
    IdleTimeout = "idle-timeout", 504, "let it be silent longer with `fanfare update NAME --idle-timeout DURATION`, or have it say something meanwhile";
    /// The handler raised an error.
    HandlerError = "handler-error", 502, "see the message; `fanfare logs NAME` has the rest";
    /// The handler could start no more processes or threads.
    ProcessLimit = "process-limit", 502, "start fewer processes and threads, or allow more with `fanfare update NAME --pids N`";
    /// The handler could write no more to its files.
    NoSpace = "no-space", 502, "write less, or give its /tmp more with `fanfare update NAME --tmp SIZE`";
    /// The sandbox ended while it worked on the request.
    SandboxExited = "sandbox-exited", 502, "see the detail; `fanfare logs NAME` has the rest";
    /// The sandbox was killed for using more memory than its limit.
    OutOfMemory = "out-of-memory", 502, "give it more with `fanfare update NAME --memory SIZE`";
    /// The connection to the sandbox ended without an answer, and nothing was heard of the sandbox's own end.
    ConnectionClosed = "connection-closed", 502, "the function closed its socket before it answered, or its node was lost a moment ago; `fanfare logs NAME` has what it wrote";
    /// The sandbox's answer is not HTTP.
    BadResponse = "bad-response", 502, "have it answer in HTTP; the detail says what is wrong with its answer, `fanfare logs NAME` what it wrote";
    /// The node that ran the sandbox was lost.
    NodeLost = "node-lost", 502, "try again; the request may have been executed";
    /// No sandbox of the function can be started.
    StartFailed = "start-failed", 503, "mend it and deploy it again; `fanfare logs NAME` has all that it wrote";
    /// The node could not start a sandbox, whatever the function does.
    NodeFailed = "node-failed", 503, "try again in a moment; the detail says what its node lacked, and `fanfare doctor` there looks for more";
    /// The handler's file, its handler or its program is missing.
    HandlerNotFound = "handler-not-found", 503, "check the file and the handler's name: `fanfare describe NAME` shows both";
    /// The interpreter that the function needs is not on the node.
    InterpreterMissing = "interpreter-missing", 503, "install it on every node where sandboxes see it (`fanfare doctor` checks those of handlers), or name one that is there";
    /// The function's dependencies could not be installed.
    DependenciesFailed = "dependencies-failed", 503, "see the log lines; `fanfare logs NAME` has the rest";
    /// Its program runs and does not listen on the port that it is given.
    NotListening = "not-listening", 503, "have it listen on $PORT; where it does and only needs longer, `fanfare update NAME --start-timeout DURATION`";
    /// The function did not become ready in time.
    StartTimeout = "start-timeout", 503, "give it longer with `fanfare update NAME --start-timeout DURATION`, or make start-up faster";
    /// No node is connected.
    NoNode = "no-node", 503, "start one with `fanfare node` (`fanfare up` has one), and see `fanfare status`";
    /// No connected node makes sandboxes of the kind that the function needs.
    RuntimeMissing = "runtime-missing", 503, "start a node that offers it: `process` is on every node without --emulate, `fake` on those with --fake or --emulate N";
    /// No node could hold another sandbox.
    NoCapacity = "no-capacity", 503, "add a node, free room, or reserve less with `fanfare update NAME --memory-request SIZE --cpu-request CPUS`";
    /// The data plane is shutting down.
    ShuttingDown = "shutting-down", 503, "try again: another data plane will answer";
    /// The data plane does not yet know the functions.
    NotSynced = "not-synced", 503, "try again in a moment";
    /// The control plane that was asked is not the leader, or cannot reach its store.
    Unavailable = "unavailable", 503, "try again in a moment";
    /// No asynchronous invocation of that id is kept.
    InvocationNotFound = "invocation-not-found", 404, "list what is kept with `fanfare async list`; results are dropped after a day, dead letters after a week";
    /// The asynchronous invocation has ended, so it cannot be cancelled.
    InvocationEnded = "invocation-ended", 409, "`fanfare async status` says how it ended";
    /// The asynchronous invocation has no letter that could be replayed.
    NotReplayable = "not-replayable", 409, "only failed and dead invocations can be replayed, each once";
    /// The asynchronous invocation was cancelled.
    InvocationCancelled = "invocation-cancelled", 410, "its caller did not want it any more";
    /// The asynchronous invocation was cut short by a crash and may not be repeated.
    InvocationLost = "invocation-lost", 502, "it may have been executed; `fanfare async replay` calls it again";
    /// The asynchronous invocation became too old before it succeeded.
    MaxAgeExceeded = "max-age-exceeded", 504, "`fanfare async status` has the last failure; `fanfare async replay` calls it again";
    /// The idempotency key came before, with another request.
    IdempotencyKeyReused = "idempotency-key-reused", 422, "use another key for another request";
    /// As many asynchronous invocations are kept open as may be.
    AsyncQueueFull = "async-queue-full", 429, "try again later, or add a data plane";
    /// The data plane keeps no asynchronous invocations.
    AsyncOff = "async-off", 503, "start the data plane with a directory for them: `fanfare data-plane --help` says how";
    /// No schedule of that name.
    ScheduleNotFound = "schedule-not-found", 404, "list what there is with `fanfare schedule list`";
    /// A firing of the schedule is under way.
    ScheduleBusy = "schedule-busy", 409, "`fanfare schedule describe` says how it stands; try again when it has ended";
    /// No webhook of that name.
    WebhookNotFound = "webhook-not-found", 404, "list what there is with `fanfare webhook list`";
    /// The sender of a webhook's request has not shown that it knows the secret.
    WebhookUnverified = "webhook-unverified", 401, "see the detail; `fanfare webhook describe` prints a command that signs";
    /// Something that should never happen.
    Internal = "internal", 500, "please report it with the request id";
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

/// Why no sandbox came up, as the node saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartFailure {
    /// What went wrong.
    pub kind: StartFailureKind,
    /// One sentence of at most 300 characters: what, and with which value.
    pub detail: String,
    /// The last lines that the sandbox wrote, within [`crate::limits::LOG_TAIL_LINES`] and `LOG_TAIL_BYTES`.
    pub log_tail: String,
}

/// Kinds of failed starts, told apart because the remedy differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StartFailureKind {
    /// The code blob could not be fetched or unpacked.
    Code,
    /// The handler's file, its handler or its program is missing.
    HandlerNotFound,
    /// The handler's module raised an error when imported.
    ImportFailed,
    /// No interpreter for it on the node.
    InterpreterMissing,
    /// `requirements.txt` (or `package.json`) could not be satisfied.
    DependenciesFailed,
    /// It ended before it was ready.
    Exited(ExitCause),
    /// It was not ready in time.
    Timeout,
    /// Neither were its code and dependencies, before anything of it was started.
    Unprepared,
    /// It was not ready in time: its program runs, and does not listen where it is to.
    NotListening,
    /// The node refused: its own limits, or an operating system error.
    Node,
    /// No node is connected.
    NoNode,
    /// No connected node has its runtime.
    RuntimeMissing,
    /// No connected node could hold it, were it empty.
    NoRoom,
    /// A secret that it uses does not exist, or does not fit.
    SecretMissing,
}

impl StartFailureKind {
    /// What a waiting caller is told.
    #[must_use]
    pub const fn reason(self) -> Reason {
        match self {
            StartFailureKind::HandlerNotFound => Reason::HandlerNotFound,
            StartFailureKind::InterpreterMissing => Reason::InterpreterMissing,
            StartFailureKind::DependenciesFailed => Reason::DependenciesFailed,
            StartFailureKind::Timeout | StartFailureKind::Unprepared => Reason::StartTimeout,
            StartFailureKind::NotListening => Reason::NotListening,
            StartFailureKind::Exited(ExitCause::OutOfMemory) => Reason::OutOfMemory,
            StartFailureKind::NoNode => Reason::NoNode,
            StartFailureKind::RuntimeMissing => Reason::RuntimeMissing,
            StartFailureKind::NoRoom => Reason::NoCapacity,
            StartFailureKind::SecretMissing => Reason::SecretMissing,
            StartFailureKind::Code | StartFailureKind::ImportFailed | StartFailureKind::Exited(_) => {
                Reason::StartFailed
            }
            StartFailureKind::Node => Reason::NodeFailed,
        }
    }

    /// Whether a start that failed so, where it was to be proved that the revision starts, says that it cannot. What
    /// another try or another node could pass says nothing of it; nor does one timeout where a sandbox of the revision
    /// has been ready before (`has_started`): that may be a slow machine.
    #[must_use]
    pub const fn condemns(self, has_started: bool) -> bool {
        match self {
            StartFailureKind::HandlerNotFound
            | StartFailureKind::ImportFailed
            | StartFailureKind::InterpreterMissing
            | StartFailureKind::DependenciesFailed
            | StartFailureKind::Exited(_) => true,
            StartFailureKind::Timeout | StartFailureKind::NotListening => !has_started,
            StartFailureKind::Code
            | StartFailureKind::Unprepared
            | StartFailureKind::Node
            | StartFailureKind::NoNode
            | StartFailureKind::RuntimeMissing
            | StartFailureKind::NoRoom
            | StartFailureKind::SecretMissing => false,
        }
    }

    /// Whether it was never tried, because no connected node could.
    #[must_use]
    pub const fn is_for_want_of_a_node(self) -> bool {
        matches!(self, StartFailureKind::NoNode | StartFailureKind::RuntimeMissing | StartFailureKind::NoRoom)
    }
}

/// How a sandbox ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ExitCause {
    /// It ended by itself with this status.
    Status(i32),
    /// A signal that the platform did not send.
    Signal(i32),
    /// The kernel killed it for exceeding its memory limit.
    OutOfMemory,
    /// The platform stopped it as ordered.
    Stopped,
    /// The node was lost or restarted and could not adopt it.
    NodeLost,
}

impl ExitCause {
    /// What a caller whose request it held is told.
    #[must_use]
    pub const fn reason(self) -> Reason {
        match self {
            ExitCause::OutOfMemory => Reason::OutOfMemory,
            ExitCause::NodeLost => Reason::NodeLost,
            ExitCause::Status(_) | ExitCause::Signal(_) | ExitCause::Stopped => Reason::SandboxExited,
        }
    }
}

impl fmt::Display for ExitCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExitCause::Status(status) => write!(f, "exited with status {status}"),
            ExitCause::Signal(signal) => write!(f, "ended by signal {signal}"),
            ExitCause::OutOfMemory => f.write_str("was killed: out of memory"),
            ExitCause::Stopped => f.write_str("stopped as ordered"),
            ExitCause::NodeLost => f.write_str("lost with its node"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_timeout_condemns_a_revision_that_has_never_started_and_no_other() {
        use StartFailureKind as Kind;
        let cases = [
            (Kind::HandlerNotFound, true, true),
            (Kind::ImportFailed, true, true),
            (Kind::InterpreterMissing, true, true),
            (Kind::DependenciesFailed, true, true),
            (Kind::Exited(ExitCause::Status(1)), true, true),
            (Kind::Exited(ExitCause::OutOfMemory), true, true),
            (Kind::Timeout, true, false),
            (Kind::NotListening, true, false),
            // A registry of packages that is slow, say.
            (Kind::Unprepared, false, false),
            (Kind::Code, false, false),
            (Kind::Node, false, false),
            (Kind::NoNode, false, false),
            (Kind::RuntimeMissing, false, false),
            (Kind::NoRoom, false, false),
            (Kind::SecretMissing, false, false),
        ];
        for (kind, never_started, has_started) in cases {
            assert_eq!((kind.condemns(false), kind.condemns(true)), (never_started, has_started), "{kind:?}");
        }
    }

    #[test]
    fn a_function_is_not_told_to_be_mended_for_its_nodes_fault() {
        for kind in [StartFailureKind::Node, StartFailureKind::NoNode, StartFailureKind::NoRoom] {
            let reason = kind.reason();
            assert!(!reason.hint_for("hello").contains("mend"), "{kind:?}: {}", reason.hint());
        }
        assert_eq!(StartFailureKind::Node.reason(), Reason::NodeFailed);
        assert!(StartFailureKind::ImportFailed.reason().hint().contains("mend it"));
    }

    #[test]
    fn codes_are_unique_and_statuses_are_errors() {
        let codes: BTreeSet<_> = Reason::ALL.iter().map(|r| r.code()).collect();
        assert_eq!(codes.len(), Reason::ALL.len());
        for reason in Reason::ALL {
            assert!((400..600).contains(&reason.status()), "{reason}");
            assert!(!reason.hint().is_empty(), "{reason}");
            assert!(reason.code().chars().all(|c| c.is_ascii_lowercase() || c == '-'), "{reason}");
        }
    }
}
