//! Control plane to data plane.

use std::iter::Peekable;
use std::sync::Arc;

use bytes::Bytes;
use fanfare_types::limits::{SHARES_MAX, TAGS_MAX};
use fanfare_types::{
    Balance, DataPlaneId, Epoch, FunctionId, FunctionRoute, NodeId, Reach, SandboxId, Share, Tag,
    ToDataPlane, Traffic,
};

use super::common::{name, pack_gone, pack_stages, present, reason, shared, unpack_gone, unpack_stages};
use super::entrusted::{call_from_wire, call_to_wire};
use super::pack::{Packer, Unpacker};
use super::proto::to_data_plane_run::Run;
use super::webhook::{webhook_from_wire, webhook_to_wire};
use super::{Malformed, Messages, Wire, proto};
use crate::Batch;

impl Wire for ToDataPlane {
    type Frame = proto::ToDataPlaneFrame;

    fn encode(batch: Batch<Self>) -> Self::Frame {
        let mut runs = Vec::new();
        let mut messages = batch.messages.into_iter().peekable();
        let mut packer = Packer::default();
        while let Some(run) = next_run(&mut messages, &mut packer) {
            debug_assert!(packer.is_empty(), "a run is taken before the next begins");
            runs.push(proto::ToDataPlaneRun { run: Some(run) });
        }
        proto::ToDataPlaneFrame { epoch: batch.epoch.0, seq: batch.seq, runs }
    }

    fn decode(frame: Self::Frame) -> Result<Batch<Self>, Malformed> {
        let mut messages = Messages::new();
        for run in frame.runs {
            decode_run(present("a message", run.run)?, &mut messages)?;
        }
        messages.batch(frame.epoch, frame.seq)
    }
}

type Outgoing = Peekable<std::vec::IntoIter<ToDataPlane>>;

/// The next message, with those of its kind that follow it where the kind is packed.
fn next_run(messages: &mut Outgoing, packer: &mut Packer) -> Option<Run> {
    let same = |messages: &mut Outgoing, kind: fn(&ToDataPlane) -> bool| messages.peek().is_some_and(kind);
    loop {
        let run = match messages.next()? {
            ToDataPlane::Grant { function, revision, sandbox, node, endpoint, slots, stages } => {
                packer.u64(sandbox.0).u32(function.0).u32(revision).u32(node.0).varint(slots).text(&endpoint);
                packer.u8(stages.is_some().into());
                if let Some(stages) = &stages {
                    pack_stages(packer, stages);
                }
                if same(messages, |next| matches!(next, ToDataPlane::Grant { .. })) {
                    continue;
                }
                Run::Grant(packer.take())
            }
            ToDataPlane::Revoke { sandbox, slots } => {
                packer.u64(sandbox.0).u32(slots);
                if same(messages, |next| matches!(next, ToDataPlane::Revoke { .. })) {
                    continue;
                }
                Run::Revoke(packer.take())
            }
            ToDataPlane::Yield { function, slots } => {
                packer.u32(function.0).varint(slots);
                if same(messages, |next| matches!(next, ToDataPlane::Yield { .. })) {
                    continue;
                }
                Run::Yield(packer.take())
            }
            ToDataPlane::Retire { function, sandboxes } => {
                packer.u32(function.0).varint(sandboxes);
                if same(messages, |next| matches!(next, ToDataPlane::Retire { .. })) {
                    continue;
                }
                Run::Retire(packer.take())
            }
            ToDataPlane::Gone { sandbox, cause } => {
                pack_gone(packer, sandbox, &cause);
                if same(messages, |next| matches!(next, ToDataPlane::Gone { .. })) {
                    continue;
                }
                Run::Gone(packer.take())
            }
            alone => encode_alone(alone, packer),
        };
        return Some(run);
    }
}

/// A message whose kind is not packed with its neighbours.
fn encode_alone(message: ToDataPlane, packer: &mut Packer) -> Run {
    match message {
        ToDataPlane::Welcome { you, epoch } => Run::Welcome(proto::Welcome { you: you.0, epoch: epoch.0 }),
        ToDataPlane::Functions(routes) => {
            for route in &routes {
                pack_route(packer, route);
            }
            Run::Functions(packer.take())
        }
        ToDataPlane::FunctionRemoved(function) => Run::FunctionRemoved(function.0),
        ToDataPlane::Synced => Run::Synced(proto::Unit {}),
        ToDataPlane::Mark(number) => Run::Mark(number),
        ToDataPlane::Explain { number, request_id } => {
            Run::Explain(proto::Explain { number, request_id: request_id.as_ref().to_owned() })
        }
        ToDataPlane::Entrust { number, call } => {
            Run::Entrust(proto::Entrust { number, call: Some(call_to_wire(&call)) })
        }
        ToDataPlane::Webhook(route) => Run::Webhook(webhook_to_wire(&route)),
        ToDataPlane::WebhookRemoved(name) => Run::WebhookRemoved(name.to_string()),
        ToDataPlane::WebhooksSynced => Run::WebhooksSynced(proto::Unit {}),
        ToDataPlane::Peers(peers) => {
            for (id, address) in &peers {
                packer.u32(id.0).text(address);
            }
            Run::Peers(packer.take())
        }
        ToDataPlane::Owners(owners) => {
            for (function, owner) in &owners {
                packer.u32(function.0).u8(owner.is_some().into());
                if let Some(owner) = owner {
                    packer.u32(owner.0);
                }
            }
            Run::Owners(packer.take())
        }
        ToDataPlane::Unavailable { function, reason, detail, log_tail } => {
            Run::Unavailable(proto::Unavailable {
                function: function.0,
                reason: reason.code().to_owned(),
                detail: detail.as_ref().to_owned(),
                log_tail: log_tail.as_ref().to_owned(),
            })
        }
        ToDataPlane::Grant { .. }
        | ToDataPlane::Revoke { .. }
        | ToDataPlane::Yield { .. }
        | ToDataPlane::Retire { .. }
        | ToDataPlane::Gone { .. } => unreachable!("`next_run` packs these kinds itself"),
    }
}

fn decode_run(run: Run, messages: &mut Messages<ToDataPlane>) -> Result<(), Malformed> {
    match run {
        Run::Grant(bytes) => decode_grants(&bytes, messages),
        Run::Revoke(bytes) => messages.unpack(&bytes, |record| {
            Ok(ToDataPlane::Revoke { sandbox: SandboxId(record.u64()?), slots: record.u32()? })
        }),
        Run::Yield(bytes) => messages.unpack(&bytes, |record| {
            let function = FunctionId(record.u32()?);
            Ok(ToDataPlane::Yield { function, slots: record.varint_u32("slots")? })
        }),
        Run::Retire(bytes) => messages.unpack(&bytes, |record| {
            let function = FunctionId(record.u32()?);
            Ok(ToDataPlane::Retire { function, sandboxes: record.varint_u32("sandboxes")? })
        }),
        Run::Gone(bytes) => messages.unpack(&bytes, |record| {
            let (sandbox, cause) = unpack_gone(record)?;
            Ok(ToDataPlane::Gone { sandbox, cause })
        }),
        Run::Welcome(welcome) => {
            messages.push(ToDataPlane::Welcome { you: DataPlaneId(welcome.you), epoch: Epoch(welcome.epoch) })
        }
        Run::Functions(bytes) => {
            messages.push(ToDataPlane::Functions(Unpacker::new(&bytes).list(unpack_route)?))
        }
        Run::FunctionRemoved(function) => messages.push(ToDataPlane::FunctionRemoved(FunctionId(function))),
        Run::Synced(proto::Unit {}) => messages.push(ToDataPlane::Synced),
        Run::Mark(number) => messages.push(ToDataPlane::Mark(number)),
        Run::Explain(explain) => messages.push(ToDataPlane::Explain {
            number: explain.number,
            request_id: shared("a request's id", explain.request_id)?,
        }),
        Run::Entrust(entrust) => messages.push(ToDataPlane::Entrust {
            number: entrust.number,
            call: Arc::new(call_from_wire(present("a call", entrust.call)?)?),
        }),
        Run::Webhook(webhook) => messages.push(ToDataPlane::Webhook(Arc::new(webhook_from_wire(webhook)?))),
        Run::WebhookRemoved(removed) => messages.push(ToDataPlane::WebhookRemoved(name(&removed)?)),
        Run::WebhooksSynced(proto::Unit {}) => messages.push(ToDataPlane::WebhooksSynced),
        Run::Peers(bytes) => messages.push(ToDataPlane::Peers(Unpacker::new(&bytes).list(|record| {
            let id = DataPlaneId(record.u32()?);
            Ok((id, Arc::from(record.text("a data plane's address")?)))
        })?)),
        Run::Owners(bytes) => messages.push(ToDataPlane::Owners(Unpacker::new(&bytes).list(|record| {
            let function = FunctionId(record.u32()?);
            let owned = record.flag("whether another owns it")?;
            Ok((function, if owned { Some(DataPlaneId(record.u32()?)) } else { None }))
        })?)),
        Run::Unavailable(unavailable) => messages.push(ToDataPlane::Unavailable {
            function: FunctionId(unavailable.function),
            reason: reason(&unavailable.reason)?,
            detail: shared("a detail", unavailable.detail)?,
            log_tail: shared("a log tail", unavailable.log_tail)?,
        }),
    }
}

fn decode_grants(bytes: &Bytes, messages: &mut Messages<ToDataPlane>) -> Result<(), Malformed> {
    messages.unpack(bytes, |record| {
        Ok(ToDataPlane::Grant {
            sandbox: SandboxId(record.u64()?),
            function: FunctionId(record.u32()?),
            revision: record.u32()?,
            node: NodeId(record.u32()?),
            slots: record.varint_u32("slots")?,
            endpoint: record.text("an endpoint")?.into(),
            stages: match record.flag("whether it has stages")? {
                true => Some(unpack_stages(record)?),
                false => None,
            },
        })
    })
}

fn pack_route(packer: &mut Packer, route: &FunctionRoute) {
    packer
        .u32(route.id.0)
        .u32(route.revision)
        .text(route.name.as_str())
        .varint(route.concurrency)
        .duration(route.request_timeout)
        // Zero for none.
        .duration(route.idle_timeout.unwrap_or_default())
        .varint(route.queue_limit)
        .u8(balance(route.balance));
    pack_reach(packer, &route.reach);
}

fn pack_reach(packer: &mut Packer, reach: &Reach) {
    match reach {
        Reach::Named => drop(packer.u8(0)),
        Reach::Unit => drop(packer.u8(1)),
        Reach::Shared(traffic) => {
            packer.u8(2).varint(traffic.shares.len() as u64);
            for share in &traffic.shares {
                packer.u32(share.unit.0).varint(share.percent);
            }
            packer.varint(traffic.tags.len() as u64);
            for (tag, unit) in &traffic.tags {
                packer.text(tag.as_str()).u32(unit.0);
            }
        }
    }
}

fn unpack_reach(record: &mut Unpacker<'_>) -> Result<Reach, Malformed> {
    match record.u8()? {
        0 => Ok(Reach::Named),
        1 => Ok(Reach::Unit),
        2 => {
            let mut traffic = Traffic { shares: Vec::new(), tags: Vec::new() };
            for _ in 0..count(record, "shares", SHARES_MAX)? {
                let unit = FunctionId(record.u32()?);
                traffic.shares.push(Share { unit, percent: record.varint_u32("a share")? });
            }
            for _ in 0..count(record, "tags", TAGS_MAX)? {
                let tag = Tag::new(record.text("a tag")?).map_err(|_| Malformed::Invalid("a tag"))?;
                traffic.tags.push((tag, FunctionId(record.u32()?)));
            }
            Ok(Reach::Shared(Arc::new(traffic)))
        }
        other => Err(Malformed::Value { what: "how a function is reached", value: other.into() }),
    }
}

fn count(record: &mut Unpacker<'_>, what: &'static str, limit: usize) -> Result<usize, Malformed> {
    let len = record.varint_u32(what)? as usize;
    if len > limit { Err(Malformed::TooMany { what, len, limit }) } else { Ok(len) }
}

fn unpack_route(record: &mut Unpacker<'_>) -> Result<FunctionRoute, Malformed> {
    Ok(FunctionRoute {
        id: FunctionId(record.u32()?),
        revision: record.u32()?,
        name: name(record.text("a function's name")?)?,
        concurrency: record.varint_u32("a concurrency")?,
        request_timeout: record.duration()?,
        idle_timeout: Some(record.duration()?).filter(|idle| !idle.is_zero()),
        queue_limit: record.varint_u32("a queue limit")?,
        balance: balance_from(record.u8()?)?,
        reach: unpack_reach(record)?,
    })
}

pub(super) fn balance(balance: Balance) -> u8 {
    match balance {
        Balance::Knative => 0,
        Balance::LeastLoaded => 1,
        Balance::RoundRobin => 2,
        Balance::Random => 3,
        Balance::ChRlu => 4,
        Balance::Hermod => 5,
    }
}

pub(super) fn balance_from(balance: u8) -> Result<Balance, Malformed> {
    match balance {
        0 => Ok(Balance::Knative),
        1 => Ok(Balance::LeastLoaded),
        2 => Ok(Balance::RoundRobin),
        3 => Ok(Balance::Random),
        4 => Ok(Balance::ChRlu),
        5 => Ok(Balance::Hermod),
        _ => Err(Malformed::Value { what: "a balance policy", value: balance.into() }),
    }
}
