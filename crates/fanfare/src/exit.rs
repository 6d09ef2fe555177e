//! How the program ends: a small set of exit codes, and what is told when it is not 0.

use std::fmt;
use std::io;
use std::process::ExitCode;

use fanfare_api::{FieldError, Problem};
use fanfare_types::Reason;

use crate::suggest;

/// What the exit code says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// All is well; for an invocation, the function answered without an error.
    Ok = 0,
    /// The function failed: its code, its start, or an error status of its own.
    Function = 1,
    /// The command line, or a setting on it, is wrong.
    Usage = 2,
    /// The platform failed or cannot be reached.
    Platform = 3,
    /// There is no such thing.
    NotFound = 4,
    /// Time ran out.
    Timeout = 5,
    /// It ended, and cannot be relied on: load was not made when it was due.
    Unreliable = 6,
    /// The user interrupted it, as shells have it of Ctrl-C.
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

impl Exit {
    /// What it says in a word, where the platform has given no reason.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Exit::Ok => "ok",
            Exit::Function => "function",
            Exit::Usage => "usage",
            Exit::Platform => "platform",
            Exit::NotFound => "not-found",
            Exit::Timeout => "timeout",
            Exit::Unreliable => "unreliable",
            Exit::Interrupted => "interrupted",
        }
    }

    /// The exit code for a reason that the platform gives.
    pub(crate) fn of(reason: Reason) -> Exit {
        match reason {
            Reason::FunctionNotFound
            | Reason::RouteNotFound
            | Reason::RevisionNotFound
            | Reason::TagNotFound
            | Reason::SecretNotFound
            | Reason::InvocationNotFound
            | Reason::ScheduleNotFound
            | Reason::WebhookNotFound
            | Reason::RequestNotFound => Exit::NotFound,
            Reason::QueueTimeout | Reason::RequestTimeout | Reason::StartTimeout => Exit::Timeout,
            Reason::BadRequest
            | Reason::InvalidField
            | Reason::FieldsDisagree
            | Reason::NoEarlierRevision
            | Reason::RevisionFailed
            | Reason::FunctionExists
            | Reason::HostTaken
            | Reason::TooLarge
            | Reason::SecretUnknown
            | Reason::SecretInUse
            | Reason::InvocationEnded
            | Reason::NotReplayable
            | Reason::ScheduleBusy
            | Reason::IdempotencyKeyReused => Exit::Usage,
            Reason::HandlerError
            | Reason::ProcessLimit
            | Reason::NoSpace
            | Reason::SandboxExited
            | Reason::OutOfMemory
            | Reason::ConnectionClosed
            | Reason::BadResponse
            | Reason::StartFailed
            | Reason::NotListening
            | Reason::HandlerNotFound
            | Reason::DependenciesFailed
            | Reason::SecretMissing => Exit::Function,
            _ => Exit::Platform,
        }
    }
}

/// Why the program ends with another code than 0, and what the user can do.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    /// What went wrong, in one sentence.
    pub(crate) what: String,
    /// What the platform said, when it was the platform.
    pub(crate) stated: Option<Box<Stated>>,
    /// What goes on working nevertheless.
    pub(crate) still: Option<String>,
    /// What to do next.
    pub(crate) next: Option<String>,
    /// How to have what was there before, instead.
    pub(crate) undo: Option<String>,
    /// Everything has been said already.
    pub(crate) silent: bool,
    /// A request was sent, and what became of it is not known.
    pub(crate) unanswered: bool,
}

/// What the platform said about a failure.
#[derive(Debug, Default)]
pub(crate) struct Stated {
    /// Its stable code.
    pub(crate) reason: String,
    /// Names the request in logs.
    pub(crate) request_id: Option<String>,
    /// The wrong field, where there is one.
    pub(crate) field: Option<String>,
    /// What is allowed for it.
    pub(crate) limit: Option<String>,
    /// What was given.
    pub(crate) value: Option<String>,
    /// Last lines of the failed sandbox.
    pub(crate) log_tail: Option<String>,
}

impl Failure {
    pub(crate) fn new(exit: Exit, what: impl Into<String>) -> Self {
        Failure {
            exit,
            what: what.into(),
            stated: None,
            still: None,
            next: None,
            undo: None,
            silent: false,
            unanswered: false,
        }
    }

    pub(crate) fn usage(what: impl Into<String>) -> Self {
        Failure::new(Exit::Usage, what)
    }

    pub(crate) fn platform(what: impl Into<String>) -> Self {
        Failure::new(Exit::Platform, what)
    }

    /// Ends with this code and says nothing more.
    pub(crate) fn said(exit: Exit) -> Self {
        Failure { silent: true, ..Failure::new(exit, "") }
    }

    /// The same, of a request that was sent and not answered, or not to the end.
    pub(crate) fn unanswered(self) -> Self {
        Failure { unanswered: true, ..self }
    }

    pub(crate) fn next(mut self, next: impl Into<String>) -> Self {
        self.next = Some(next.into());
        self
    }

    /// The same, of the function `name`: commands that the hints name are ready to be copied.
    pub(crate) fn about(mut self, name: &str) -> Self {
        self.next = self.next.map(|next| next.replace("NAME", name));
        self
    }

    /// The same, with the platform's code for it.
    pub(crate) fn because(mut self, reason: &str) -> Self {
        self.stated = Some(Box::new(Stated { reason: reason.to_owned(), ..Stated::default() }));
        self
    }

    pub(crate) fn is_not_found(&self) -> bool {
        self.is(Reason::FunctionNotFound)
    }

    /// Whether the platform gave this reason.
    pub(crate) fn is(&self, reason: Reason) -> bool {
        self.stated.as_ref().is_some_and(|stated| stated.reason == reason.code())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        let reason = problem.reason();
        let hint =
            if problem.hint.is_empty() { reason.map(|r| r.hint().to_owned()) } else { Some(problem.hint) };
        let stack = (!problem.stack.is_empty()).then(|| problem.stack.join("\n"));
        Failure {
            exit: reason.map_or(Exit::Platform, Exit::of),
            what: problem.detail,
            stated: Some(Box::new(Stated {
                reason: problem.reason,
                field: problem.field,
                limit: problem.limit,
                value: problem.value,
                request_id: (!problem.request_id.is_empty()).then_some(problem.request_id),
                log_tail: problem.log_tail.or(stack),
            })),
            still: None,
            next: hint,
            undo: None,
            silent: false,
            unanswered: false,
        }
    }
}

impl From<FieldError> for Failure {
    fn from(error: FieldError) -> Self {
        let reason = error.reason().code().to_owned();
        let next = meant(&error).map(|meant| format!("did you mean {meant}?"));
        let (field, limit, value) = (Some(error.field), Some(error.limit), Some(error.value));
        let stated = Stated { reason, field, limit, value, ..Stated::default() };
        Failure { stated: Some(Box::new(stated)), next, ..Failure::usage(error.message) }
    }
}

/// The word that was probably meant, where some are allowed and another one was given.
fn meant(error: &FieldError) -> Option<String> {
    let given = error.value.strip_prefix('"')?.strip_suffix('"')?;
    suggest::closest(given, error.limit.split(", ")).map(ToOwned::to_owned)
}

impl From<io::Error> for Failure {
    /// A failed write to standard output. A closed pipe is how `… | head` ends.
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::said(Exit::Ok),
            _ => Failure::platform(format!("cannot write the output: {error}")),
        }
    }
}
