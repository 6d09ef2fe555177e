//! Node daemon to control plane.

use fanfare_types::{Epoch, FromNode, NodeHello, SandboxId, SandboxRecord, SandboxUsage};

use super::common::{
    failure, failure_from, pack_gone, pack_stages, present, resources, resources_from, revision_id,
    revision_id_from, shared, unpack_gone, unpack_stages,
};
use super::pack::{Packer, Unpacker};
use super::proto::node_run::Run;
use super::{Malformed, Messages, Wire, proto};
use crate::Batch;

impl Wire for FromNode {
    type Frame = proto::NodeFrame;

    fn encode(batch: Batch<Self>) -> Self::Frame {
        let mut runs = Vec::new();
        let mut messages = batch.messages.into_iter().peekable();
        let mut packer = Packer::default();
        while let Some(message) = messages.next() {
            let run = match message {
                FromNode::Ready { sandbox, endpoint, stages } => {
                    packer.u64(sandbox.0);
                    pack_stages(&mut packer, &stages);
                    packer.text(&endpoint);
                    if matches!(messages.peek(), Some(FromNode::Ready { .. })) {
                        continue;
                    }
                    Run::Ready(packer.take())
                }
                FromNode::Exited { sandbox, cause } => {
                    pack_gone(&mut packer, sandbox, &cause);
                    if matches!(messages.peek(), Some(FromNode::Exited { .. })) {
                        continue;
                    }
                    Run::Exited(packer.take())
                }
                FromNode::Usage(list) => {
                    for usage in list {
                        packer.u64(usage.sandbox.0).f64(usage.cpu_milli);
                    }
                    Run::Usage(packer.take())
                }
                FromNode::Hello(hello) => Run::Hello(hello_to_wire(hello)),
                FromNode::Failed { sandbox, failure: why } => {
                    Run::Failed(proto::Failed { sandbox: sandbox.0, failure: Some(failure(why)) })
                }
                FromNode::Prepared { revision, failure: why } => Run::Prepared(proto::Prepared {
                    revision: Some(revision_id(revision)),
                    failure: why.map(failure),
                }),
                FromNode::Left => Run::Left(proto::Unit {}),
                FromNode::Heartbeat => Run::Heartbeat(proto::Unit {}),
            };
            debug_assert!(packer.is_empty(), "a run is taken before the next begins");
            runs.push(proto::NodeRun { run: Some(run) });
        }
        proto::NodeFrame { epoch: batch.epoch.0, seq: batch.seq, runs }
    }

    fn decode(frame: Self::Frame) -> Result<Batch<Self>, Malformed> {
        let mut messages = Messages::new();
        for run in frame.runs {
            match present("a message", run.run)? {
                Run::Ready(bytes) => messages.unpack(&bytes, |record| {
                    Ok(FromNode::Ready {
                        sandbox: SandboxId(record.u64()?),
                        stages: unpack_stages(record)?,
                        endpoint: record.text("an endpoint")?.into(),
                    })
                })?,
                Run::Exited(bytes) => messages.unpack(&bytes, |record| {
                    let (sandbox, cause) = unpack_gone(record)?;
                    Ok(FromNode::Exited { sandbox, cause })
                })?,
                Run::Usage(bytes) => {
                    let list = Unpacker::new(&bytes).list(|record| {
                        let sandbox = SandboxId(record.u64()?);
                        Ok(SandboxUsage { sandbox, cpu_milli: record.amount("CPU use")? })
                    })?;
                    messages.push(FromNode::Usage(list))?;
                }
                Run::Hello(hello) => messages.push(FromNode::Hello(hello_from_wire(hello)?))?,
                Run::Failed(failed) => messages.push(FromNode::Failed {
                    sandbox: SandboxId(failed.sandbox),
                    failure: failure_from(present("a failure", failed.failure)?)?,
                })?,
                Run::Prepared(prepared) => messages.push(FromNode::Prepared {
                    revision: revision_id_from(prepared.revision)?,
                    failure: prepared.failure.map(failure_from).transpose()?,
                })?,
                Run::Left(proto::Unit {}) => messages.push(FromNode::Left)?,
                Run::Heartbeat(proto::Unit {}) => messages.push(FromNode::Heartbeat)?,
            }
        }
        messages.batch(frame.epoch, frame.seq)
    }
}

fn hello_to_wire(hello: NodeHello) -> proto::NodeHello {
    let sandboxes = hello.sandboxes.into_iter().map(|record| proto::SandboxRecord {
        sandbox: record.sandbox.0,
        revision: Some(revision_id(record.revision)),
        endpoint: record.endpoint.map(|endpoint| endpoint.as_ref().to_owned()),
    });
    proto::NodeHello {
        name: hello.name.as_ref().to_owned(),
        incarnation: hello.incarnation,
        epoch_seen: hello.epoch_seen.0,
        capacity: Some(resources(hello.capacity)),
        runtimes: hello.runtimes.iter().map(|runtime| runtime.as_ref().to_owned()).collect(),
        sandboxes: sandboxes.collect(),
        logs: hello.logs,
    }
}

fn hello_from_wire(hello: proto::NodeHello) -> Result<NodeHello, Malformed> {
    let sandboxes = hello.sandboxes.into_iter().map(|record| {
        Ok(SandboxRecord {
            sandbox: SandboxId(record.sandbox),
            revision: revision_id_from(record.revision)?,
            endpoint: record.endpoint.map(|endpoint| shared("an endpoint", endpoint)).transpose()?,
        })
    });
    let runtimes = hello.runtimes.into_iter().map(|runtime| shared("a runtime's name", runtime));
    Ok(NodeHello {
        name: shared("a node's name", hello.name)?,
        incarnation: hello.incarnation,
        epoch_seen: Epoch(hello.epoch_seen),
        capacity: resources_from(hello.capacity)?,
        runtimes: runtimes.collect::<Result<_, _>>()?,
        sandboxes: sandboxes.collect::<Result<_, Malformed>>()?,
        logs: hello.logs,
    })
}
