//! Parts that several messages share.

use std::sync::Arc;
use std::time::Duration;

use fanfare_types::{
    CodeDigest, ExitCause, FunctionId, FunctionName, GoneCause, Reason, Resources, RevisionId, SandboxId,
    SecretName, Stages, StartFailure, StartFailureKind,
};

use super::pack::{Packer, Unpacker};
use super::{Malformed, TEXT_BYTES_MAX, proto};

/// Refuses a text that is longer than any of ours.
pub(super) fn checked(what: &'static str, text: String) -> Result<String, Malformed> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(Malformed::TooMany { what, len: text.len(), limit: TEXT_BYTES_MAX });
    }
    Ok(text)
}

/// The same, for a text that will be shared.
pub(super) fn shared(what: &'static str, text: String) -> Result<Arc<str>, Malformed> {
    checked(what, text).map(Arc::from)
}

pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

pub(super) fn present<T>(what: &'static str, value: Option<T>) -> Result<T, Malformed> {
    value.ok_or(Malformed::Missing(what))
}

pub(super) fn name(text: &str) -> Result<FunctionName, Malformed> {
    FunctionName::new(text).map_err(|_| Malformed::Invalid("a function's name"))
}

pub(super) fn secret_name(text: &str) -> Result<SecretName, Malformed> {
    SecretName::new(text).map_err(|_| Malformed::Invalid("a secret's name"))
}

pub(super) fn reason(code: &str) -> Result<Reason, Malformed> {
    let known = Reason::ALL.iter().find(|reason| reason.code() == code);
    known.copied().ok_or(Malformed::Invalid("a reason's code"))
}

pub(crate) fn digest(bytes: &[u8]) -> Result<CodeDigest, Malformed> {
    bytes.try_into().map(CodeDigest).map_err(|_| Malformed::Invalid("a digest"))
}

pub(super) fn revision_id(id: RevisionId) -> proto::RevisionId {
    proto::RevisionId { function: id.function.0, number: id.number }
}

pub(super) fn revision_id_from(id: Option<proto::RevisionId>) -> Result<RevisionId, Malformed> {
    let id = present("a revision", id)?;
    Ok(RevisionId { function: FunctionId(id.function), number: id.number })
}

pub(super) fn resources(of: Resources) -> proto::Resources {
    proto::Resources { cpu_milli: of.cpu_milli, memory_bytes: of.memory_bytes }
}

pub(super) fn resources_from(of: Option<proto::Resources>) -> Result<Resources, Malformed> {
    let of = present("an amount of resources", of)?;
    Ok(Resources::new(of.cpu_milli, of.memory_bytes))
}

pub(super) fn exit_parts(cause: ExitCause) -> (u8, i32) {
    match cause {
        ExitCause::Status(status) => (0, status),
        ExitCause::Signal(signal) => (1, signal),
        ExitCause::OutOfMemory => (2, 0),
        ExitCause::Stopped => (3, 0),
        ExitCause::NodeLost => (4, 0),
    }
}

pub(super) fn exit_from(kind: u32, value: i32) -> Result<ExitCause, Malformed> {
    match kind {
        0 => Ok(ExitCause::Status(value)),
        1 => Ok(ExitCause::Signal(value)),
        2 => Ok(ExitCause::OutOfMemory),
        3 => Ok(ExitCause::Stopped),
        4 => Ok(ExitCause::NodeLost),
        _ => Err(Malformed::Value { what: "the kind of an exit", value: kind.into() }),
    }
}

pub(super) fn pack_gone(packer: &mut Packer, sandbox: SandboxId, cause: &GoneCause) {
    let (kind, value) = exit_parts(cause.exit);
    packer.u64(sandbox.0).u8(kind).signed(value).text(&cause.log_tail);
}

pub(super) fn unpack_gone(unpacker: &mut Unpacker<'_>) -> Result<(SandboxId, GoneCause), Malformed> {
    let sandbox = SandboxId(unpacker.u64()?);
    let kind = unpacker.u8()?;
    let exit = exit_from(kind.into(), unpacker.signed("an exit's value")?)?;
    Ok((sandbox, GoneCause { exit, log_tail: unpacker.text("a log tail")?.into() }))
}

pub(super) fn pack_stages(packer: &mut Packer, stages: &Stages) {
    let Stages { decide, place, transfer, create, start, ready } = *stages;
    for stage in [decide, place, transfer, create, start, ready] {
        packer.duration(stage);
    }
}

pub(super) fn unpack_stages(unpacker: &mut Unpacker<'_>) -> Result<Stages, Malformed> {
    Ok(Stages {
        decide: unpacker.duration()?,
        place: unpacker.duration()?,
        transfer: unpacker.duration()?,
        create: unpacker.duration()?,
        start: unpacker.duration()?,
        ready: unpacker.duration()?,
    })
}

pub(super) fn failure(failure: StartFailure) -> proto::StartFailure {
    let kind = match failure.kind {
        StartFailureKind::Code => 0,
        StartFailureKind::HandlerNotFound => 1,
        StartFailureKind::ImportFailed => 2,
        StartFailureKind::InterpreterMissing => 3,
        StartFailureKind::DependenciesFailed => 4,
        StartFailureKind::Exited(_) => 5,
        StartFailureKind::Timeout => 6,
        StartFailureKind::Node => 7,
        StartFailureKind::NoNode => 8,
        StartFailureKind::RuntimeMissing => 9,
        StartFailureKind::NoRoom => 10,
        StartFailureKind::SecretMissing => 11,
        StartFailureKind::NotListening => 12,
        StartFailureKind::Unprepared => 13,
    };
    let exit = match failure.kind {
        StartFailureKind::Exited(cause) => {
            let (kind, value) = exit_parts(cause);
            Some(proto::ExitCause { kind: kind.into(), value })
        }
        _ => None,
    };
    proto::StartFailure { kind, exit, detail: failure.detail, log_tail: failure.log_tail }
}

pub(super) fn failure_from(failure: proto::StartFailure) -> Result<StartFailure, Malformed> {
    let kind = match failure.kind {
        0 => StartFailureKind::Code,
        1 => StartFailureKind::HandlerNotFound,
        2 => StartFailureKind::ImportFailed,
        3 => StartFailureKind::InterpreterMissing,
        4 => StartFailureKind::DependenciesFailed,
        5 => {
            let exit = present("how it exited", failure.exit)?;
            StartFailureKind::Exited(exit_from(exit.kind, exit.value)?)
        }
        6 => StartFailureKind::Timeout,
        7 => StartFailureKind::Node,
        8 => StartFailureKind::NoNode,
        9 => StartFailureKind::RuntimeMissing,
        10 => StartFailureKind::NoRoom,
        11 => StartFailureKind::SecretMissing,
        12 => StartFailureKind::NotListening,
        13 => StartFailureKind::Unprepared,
        kind => return Err(Malformed::Value { what: "the kind of a failure", value: kind.into() }),
    };
    Ok(StartFailure {
        kind,
        detail: checked("a detail", failure.detail)?,
        log_tail: checked("a log tail", failure.log_tail)?,
    })
}
