//! Data plane to control plane.

use fanfare_types::{
    Condemned, DataPlaneHello, Epoch, FromDataPlane, FunctionId, FunctionLoad, HeldLease, RequestFailures,
    SandboxId,
};

use super::common::{present, reason, shared};
use super::entrusted::{outcome_from_wire, outcome_to_wire};
use super::pack::{Packer, Unpacker};
use super::proto::data_plane_run::Run;
use super::request::{explained_from_wire, explained_to_wire};
use super::{Malformed, Messages, Wire, proto};
use crate::Batch;

impl Wire for FromDataPlane {
    type Frame = proto::DataPlaneFrame;

    fn encode(batch: Batch<Self>) -> Self::Frame {
        let mut runs = Vec::new();
        let mut messages = batch.messages.into_iter().peekable();
        let mut packer = Packer::default();
        while let Some(message) = messages.next() {
            let run = match message {
                FromDataPlane::Demand(load) => {
                    pack_load(&mut packer, &load);
                    if matches!(messages.peek(), Some(FromDataPlane::Demand(_))) {
                        continue;
                    }
                    Run::Demand(packer.take())
                }
                FromDataPlane::Report(loads) => {
                    for load in &loads {
                        pack_load(&mut packer, load);
                    }
                    Run::Report(packer.take())
                }
                FromDataPlane::Released { sandbox, slots, retired } => {
                    packer.u64(sandbox.0).varint(slots).u8(retired.into());
                    if matches!(messages.peek(), Some(FromDataPlane::Released { .. })) {
                        continue;
                    }
                    Run::Released(packer.take())
                }
                FromDataPlane::Condemned { sandbox, why } => {
                    packer.u64(sandbox.0).u8(condemned(why));
                    if matches!(messages.peek(), Some(FromDataPlane::Condemned { .. })) {
                        continue;
                    }
                    Run::Condemned(packer.take())
                }
                FromDataPlane::Hello(hello) => Run::Hello(hello_to_wire(&hello)),
                FromDataPlane::Failed(failures) => Run::Failed(failures_to_wire(&failures)),
                FromDataPlane::Reached(number) => Run::Reached(number),
                FromDataPlane::Explained { number, records, kept } => {
                    Run::Explained(explained_to_wire(number, &records, kept))
                }
                FromDataPlane::Entrusted { number, outcome } => {
                    Run::Entrusted(outcome_to_wire(number, &outcome))
                }
                FromDataPlane::Draining => Run::Draining(proto::Unit {}),
                FromDataPlane::Left => Run::Left(proto::Unit {}),
                FromDataPlane::Heartbeat => Run::Heartbeat(proto::Unit {}),
            };
            debug_assert!(packer.is_empty(), "a run is taken before the next begins");
            runs.push(proto::DataPlaneRun { run: Some(run) });
        }
        proto::DataPlaneFrame { epoch: batch.epoch.0, seq: batch.seq, runs }
    }

    fn decode(frame: Self::Frame) -> Result<Batch<Self>, Malformed> {
        let mut messages = Messages::new();
        for run in frame.runs {
            match present("a message", run.run)? {
                Run::Demand(bytes) => {
                    messages.unpack(&bytes, |record| unpack_load(record).map(FromDataPlane::Demand))?;
                }
                Run::Report(bytes) => {
                    messages.push(FromDataPlane::Report(Unpacker::new(&bytes).list(unpack_load)?))?;
                }
                Run::Released(bytes) => messages.unpack(&bytes, |record| {
                    Ok(FromDataPlane::Released {
                        sandbox: SandboxId(record.u64()?),
                        slots: record.varint_u32("slots")?,
                        retired: record.flag("whether it is retired")?,
                    })
                })?,
                Run::Condemned(bytes) => messages.unpack(&bytes, |record| {
                    let sandbox = SandboxId(record.u64()?);
                    Ok(FromDataPlane::Condemned { sandbox, why: condemned_from(record.u8()?)? })
                })?,
                Run::Hello(hello) => messages.push(FromDataPlane::Hello(hello_from_wire(hello)?))?,
                Run::Failed(failures) => {
                    messages.push(FromDataPlane::Failed(failures_from_wire(failures)?))?;
                }
                Run::Reached(number) => messages.push(FromDataPlane::Reached(number))?,
                Run::Explained(explained) => messages.push(explained_from_wire(explained)?)?,
                Run::Entrusted(entrusted) => messages.push(outcome_from_wire(entrusted)?)?,
                Run::Draining(proto::Unit {}) => messages.push(FromDataPlane::Draining)?,
                Run::Left(proto::Unit {}) => messages.push(FromDataPlane::Left)?,
                Run::Heartbeat(proto::Unit {}) => messages.push(FromDataPlane::Heartbeat)?,
            }
        }
        messages.batch(frame.epoch, frame.seq)
    }
}

fn pack_load(packer: &mut Packer, load: &FunctionLoad) {
    packer
        .u32(load.function.0)
        .varint(load.in_flight)
        .varint(load.queued)
        .varint(load.idle_sandboxes)
        .varint(load.arrivals)
        .f64(load.concurrency_avg)
        .f64(load.interval_s)
        .u8(load.execution_s.is_some().into());
    if let Some(execution) = load.execution_s {
        packer.f64(execution);
    }
}

fn unpack_load(record: &mut Unpacker<'_>) -> Result<FunctionLoad, Malformed> {
    Ok(FunctionLoad {
        function: FunctionId(record.u32()?),
        in_flight: record.varint_u32("requests in flight")?,
        queued: record.varint_u32("requests queued")?,
        idle_sandboxes: record.varint_u32("idle sandboxes")?,
        arrivals: record.varint_u32("arrivals")?,
        concurrency_avg: record.amount("a mean concurrency")?,
        interval_s: record.amount("an interval")?,
        execution_s: match record.flag("whether the execution time is known")? {
            true => Some(record.amount("an execution time")?),
            false => None,
        },
    })
}

fn failures_to_wire(failures: &RequestFailures) -> proto::RequestFailures {
    proto::RequestFailures {
        function: failures.function.0,
        reason: failures.reason.code().to_owned(),
        count: failures.count,
        detail: failures.detail.to_string(),
        request_id: failures.request_id.to_string(),
        log_tail: failures.log_tail.to_string(),
    }
}

fn failures_from_wire(failures: proto::RequestFailures) -> Result<RequestFailures, Malformed> {
    Ok(RequestFailures {
        function: FunctionId(failures.function),
        reason: reason(&failures.reason)?,
        count: failures.count,
        detail: shared("a failure's detail", failures.detail)?,
        request_id: shared("a request's id", failures.request_id)?,
        log_tail: shared("a log's tail", failures.log_tail)?,
    })
}

fn condemned(why: Condemned) -> u8 {
    match why {
        Condemned::Timeout => 0,
        Condemned::Abandoned => 1,
        Condemned::Broken => 2,
    }
}

fn condemned_from(why: u8) -> Result<Condemned, Malformed> {
    match why {
        0 => Ok(Condemned::Timeout),
        1 => Ok(Condemned::Abandoned),
        2 => Ok(Condemned::Broken),
        _ => Err(Malformed::Value { what: "a condemnation", value: why.into() }),
    }
}

fn hello_to_wire(hello: &DataPlaneHello) -> proto::DataPlaneHello {
    let mut leases = Packer::default();
    for lease in &hello.leases {
        leases.u64(lease.sandbox.0).varint(lease.slots);
    }
    let mut condemned = Packer::default();
    for sandbox in &hello.condemned {
        condemned.u64(sandbox.0);
    }
    proto::DataPlaneHello {
        name: hello.name.as_ref().to_owned(),
        address: hello.address.as_ref().to_owned(),
        incarnation: hello.incarnation,
        epoch_seen: hello.epoch_seen.0,
        leases: leases.take(),
        condemned: condemned.take(),
    }
}

fn hello_from_wire(hello: proto::DataPlaneHello) -> Result<DataPlaneHello, Malformed> {
    Ok(DataPlaneHello {
        name: shared("a data plane's name", hello.name)?,
        address: shared("a data plane's address", hello.address)?,
        incarnation: hello.incarnation,
        epoch_seen: Epoch(hello.epoch_seen),
        leases: Unpacker::new(&hello.leases).list(|record| {
            Ok(HeldLease { sandbox: SandboxId(record.u64()?), slots: record.varint_u32("slots")? })
        })?,
        condemned: Unpacker::new(&hello.condemned).list(|record| Ok(SandboxId(record.u64()?)))?,
    })
}
