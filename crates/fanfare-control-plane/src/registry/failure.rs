//! A failed start, as the store keeps it.

use fanfare_types::{ExitCause, StartFailure, StartFailureKind};
use serde::{Deserialize, Serialize};

use super::history::Unstartable;

/// Why a revision cannot start, whatever is tried.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct StoredFailure {
    #[serde(default)]
    at_unix_ms: u64,
    kind: Kind,
    detail: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    log_tail: String,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    HandlerNotFound,
    ImportFailed,
    InterpreterMissing,
    DependenciesFailed,
    ExitedWith(i32),
    EndedBySignal(i32),
    OutOfMemory,
    Timeout,
    NotListening,
}

impl StoredFailure {
    /// `None` where another try may pass: then it is no property of the revision.
    pub(super) fn of(unstartable: &Unstartable) -> Option<Self> {
        let Unstartable { at_unix_ms, failure } = unstartable;
        let kind = match failure.kind {
            StartFailureKind::HandlerNotFound => Kind::HandlerNotFound,
            StartFailureKind::ImportFailed => Kind::ImportFailed,
            StartFailureKind::InterpreterMissing => Kind::InterpreterMissing,
            StartFailureKind::DependenciesFailed => Kind::DependenciesFailed,
            StartFailureKind::Exited(ExitCause::Status(status)) => Kind::ExitedWith(status),
            StartFailureKind::Exited(ExitCause::Signal(signal)) => Kind::EndedBySignal(signal),
            StartFailureKind::Exited(ExitCause::OutOfMemory) => Kind::OutOfMemory,
            StartFailureKind::Exited(ExitCause::Stopped | ExitCause::NodeLost)
            | StartFailureKind::Code
            | StartFailureKind::Unprepared
            | StartFailureKind::Node
            | StartFailureKind::NoNode
            | StartFailureKind::RuntimeMissing
            | StartFailureKind::NoRoom
            | StartFailureKind::SecretMissing => return None,
            StartFailureKind::Timeout => Kind::Timeout,
            StartFailureKind::NotListening => Kind::NotListening,
        };
        let (detail, log_tail) = (failure.detail.clone(), failure.log_tail.clone());
        Some(StoredFailure { at_unix_ms: *at_unix_ms, kind, detail, log_tail })
    }
}

impl From<StoredFailure> for Unstartable {
    fn from(stored: StoredFailure) -> Self {
        let kind = match stored.kind {
            Kind::HandlerNotFound => StartFailureKind::HandlerNotFound,
            Kind::ImportFailed => StartFailureKind::ImportFailed,
            Kind::InterpreterMissing => StartFailureKind::InterpreterMissing,
            Kind::DependenciesFailed => StartFailureKind::DependenciesFailed,
            Kind::ExitedWith(status) => StartFailureKind::Exited(ExitCause::Status(status)),
            Kind::EndedBySignal(signal) => StartFailureKind::Exited(ExitCause::Signal(signal)),
            Kind::OutOfMemory => StartFailureKind::Exited(ExitCause::OutOfMemory),
            Kind::Timeout => StartFailureKind::Timeout,
            Kind::NotListening => StartFailureKind::NotListening,
        };
        let failure = StartFailure { kind, detail: stored.detail, log_tail: stored.log_tail };
        Unstartable { at_unix_ms: stored.at_unix_ms, failure }
    }
}
