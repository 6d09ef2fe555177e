//! Control plane to node daemon.

use std::sync::Arc;

use std::time::Duration;

use fanfare_types::limits::{SECRET_BYTES_MAX, SECRETS_PER_FUNCTION_MAX};
use fanfare_types::{
    Epoch, FunctionId, LogSelect, NodeId, RevisionId, SandboxId, SecretName, SecretValue, StopMode, ToNode,
};

use super::common::{nanos, present, revision_id, revision_id_from, secret_name};
use super::pack::{Packer, Unpacker};
use super::proto::to_node_run::Run;
use super::revision::{at_most, revision, revision_from};
use super::{Malformed, Messages, Wire, proto};
use crate::Batch;

impl Wire for ToNode {
    type Frame = proto::ToNodeFrame;

    fn encode(batch: Batch<Self>) -> Self::Frame {
        let mut runs = Vec::new();
        let mut messages = batch.messages.into_iter().peekable();
        let mut packer = Packer::default();
        while let Some(message) = messages.next() {
            let run = match message {
                ToNode::Create { sandbox, revision, waited } => {
                    packer.u64(sandbox.0).u32(revision.function.0).u32(revision.number);
                    if matches!(messages.peek(), Some(ToNode::Create { waited: next, .. }) if *next == waited)
                    {
                        continue;
                    }
                    let run = if waited { Run::CreateWaited } else { Run::Create };
                    run(packer.take())
                }
                ToNode::Hasten(sandbox) => {
                    packer.u64(sandbox.0);
                    if matches!(messages.peek(), Some(ToNode::Hasten(_))) {
                        continue;
                    }
                    Run::Hasten(packer.take())
                }
                ToNode::Stop { sandbox, mode } => {
                    packer.u64(sandbox.0).u8(stop_mode(mode));
                    if matches!(messages.peek(), Some(ToNode::Stop { .. })) {
                        continue;
                    }
                    Run::Stop(packer.take())
                }
                ToNode::Welcome { you, epoch } => Run::Welcome(proto::Welcome { you: you.0, epoch: epoch.0 }),
                ToNode::Revision(spec) => Run::Revision(revision(&spec)),
                ToNode::Secrets { revision, values } => Run::Secrets(secrets(revision, &values)),
                ToNode::RevisionRemoved(id) => Run::RevisionRemoved(revision_id(id)),
                ToNode::Prepare(id) => Run::Prepare(revision_id(id)),
                ToNode::Logs { transfer, function, tail_lines, follow, select } => Run::Logs(proto::Logs {
                    transfer,
                    function: function.0,
                    tail_lines,
                    follow,
                    after: select.after,
                    sandbox: select.sandbox.map(|id| id.0),
                    age_max_ns: select.age_max.map(nanos),
                    age_min_ns: select.age_min.map(nanos),
                }),
            };
            debug_assert!(packer.is_empty(), "a run is taken before the next begins");
            runs.push(proto::ToNodeRun { run: Some(run) });
        }
        proto::ToNodeFrame { epoch: batch.epoch.0, seq: batch.seq, runs }
    }

    fn decode(frame: Self::Frame) -> Result<Batch<Self>, Malformed> {
        let mut messages = Messages::new();
        for run in frame.runs {
            match present("a message", run.run)? {
                Run::Create(bytes) => messages.unpack(&bytes, |record| create(record, false))?,
                Run::CreateWaited(bytes) => messages.unpack(&bytes, |record| create(record, true))?,
                Run::Hasten(bytes) => {
                    messages.unpack(&bytes, |record| Ok(ToNode::Hasten(SandboxId(record.u64()?))))?;
                }
                Run::Stop(bytes) => messages.unpack(&bytes, |record| {
                    let sandbox = SandboxId(record.u64()?);
                    Ok(ToNode::Stop { sandbox, mode: stop_mode_from(record.u8()?)? })
                })?,
                Run::Welcome(welcome) => messages
                    .push(ToNode::Welcome { you: NodeId(welcome.you), epoch: Epoch(welcome.epoch) })?,
                Run::Revision(spec) => messages.push(ToNode::Revision(Arc::new(revision_from(spec)?)))?,
                Run::Secrets(secrets) => messages.push(secrets_from(secrets)?)?,
                Run::RevisionRemoved(id) => {
                    messages.push(ToNode::RevisionRemoved(revision_id_from(Some(id))?))?;
                }
                Run::Prepare(id) => messages.push(ToNode::Prepare(revision_id_from(Some(id))?))?,
                Run::Logs(logs) => messages.push(ToNode::Logs {
                    transfer: logs.transfer,
                    function: FunctionId(logs.function),
                    tail_lines: logs.tail_lines,
                    follow: logs.follow,
                    select: LogSelect {
                        after: logs.after,
                        sandbox: logs.sandbox.map(SandboxId),
                        age_max: logs.age_max_ns.map(Duration::from_nanos),
                        age_min: logs.age_min_ns.map(Duration::from_nanos),
                    },
                })?,
            }
        }
        messages.batch(frame.epoch, frame.seq)
    }
}

fn create(record: &mut Unpacker<'_>, waited: bool) -> Result<ToNode, Malformed> {
    Ok(ToNode::Create {
        sandbox: SandboxId(record.u64()?),
        revision: RevisionId { function: FunctionId(record.u32()?), number: record.u32()? },
        waited,
    })
}

fn secrets(revision: RevisionId, values: &[(SecretName, SecretValue)]) -> proto::Secrets {
    let secret = |(name, value): &(SecretName, SecretValue)| proto::Secret {
        name: name.as_str().to_owned(),
        value: value.expose().to_vec().into(),
    };
    proto::Secrets { revision: Some(revision_id(revision)), values: values.iter().map(secret).collect() }
}

fn secrets_from(secrets: proto::Secrets) -> Result<ToNode, Malformed> {
    at_most("secrets", secrets.values.len(), SECRETS_PER_FUNCTION_MAX)?;
    let value = |secret: proto::Secret| {
        at_most("a secret's value", secret.value.len(), SECRET_BYTES_MAX)?;
        Ok((secret_name(&secret.name)?, SecretValue::new(secret.value.to_vec())))
    };
    let values = secrets.values.into_iter().map(value).collect::<Result<_, Malformed>>()?;
    Ok(ToNode::Secrets { revision: revision_id_from(secrets.revision)?, values })
}

fn stop_mode(mode: StopMode) -> u8 {
    match mode {
        StopMode::Graceful => 0,
        StopMode::Kill => 1,
        StopMode::IfNotBegun => 2,
    }
}

fn stop_mode_from(mode: u8) -> Result<StopMode, Malformed> {
    match mode {
        0 => Ok(StopMode::Graceful),
        1 => Ok(StopMode::Kill),
        2 => Ok(StopMode::IfNotBegun),
        _ => Err(Malformed::Value { what: "a stop mode", value: mode.into() }),
    }
}
