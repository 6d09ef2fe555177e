//! What a data plane remembers of requests.

use std::time::Duration;

use fanfare_types::limits::REQUESTS_EXPLAINED_MAX;
use fanfare_types::{
    FromDataPlane, FunctionId, NodeId, RequestEnd, RequestRecord, SandboxId, SlotRecord, SlotWhy, Stages,
};

use super::common::{nanos, reason, shared};
use super::to_data_plane::{balance, balance_from};
use super::{Malformed, proto};

pub(super) fn explained_to_wire(
    number: u64,
    records: &[RequestRecord],
    kept: Option<Duration>,
) -> proto::Explained {
    let records = records.iter().map(record_to_wire).collect();
    proto::Explained { number, records, kept_ns: kept.map(nanos) }
}

fn record_to_wire(record: &RequestRecord) -> proto::RequestRecord {
    proto::RequestRecord {
        request_id: record.request_id.to_string(),
        age_ns: nanos(record.age),
        function: record.function.map(|id| id.0),
        name: record.name.to_string(),
        ahead: record.ahead,
        in_flight: record.in_flight,
        balance: balance(record.balance).into(),
        attempts: record.attempts,
        slot: record.slot.as_ref().map(slot_to_wire),
        answered_ns: record.answered_after.map(nanos),
        ended_ns: nanos(record.ended_after),
        end: number_of(&RequestEnd::ALL, &record.end),
        status: record.status.into(),
        reason: record.reason.map(|reason| reason.code().to_owned()).unwrap_or_default(),
        detail: record.detail.to_string(),
    }
}

pub(super) fn explained_from_wire(explained: proto::Explained) -> Result<FromDataPlane, Malformed> {
    let (len, limit) = (explained.records.len(), REQUESTS_EXPLAINED_MAX);
    if len > limit {
        return Err(Malformed::TooMany { what: "requests", len, limit });
    }
    let records = explained.records.into_iter().map(record_from_wire);
    Ok(FromDataPlane::Explained {
        number: explained.number,
        records: records.collect::<Result<_, _>>()?,
        kept: explained.kept_ns.map(Duration::from_nanos),
    })
}

fn record_from_wire(record: proto::RequestRecord) -> Result<RequestRecord, Malformed> {
    let status = u16::try_from(record.status);
    let policy = u8::try_from(record.balance).map_err(|_| Malformed::Invalid("a balance policy"))?;
    Ok(RequestRecord {
        request_id: shared("a request's id", record.request_id)?,
        age: Duration::from_nanos(record.age_ns),
        function: record.function.map(FunctionId),
        name: shared("a function's name", record.name)?,
        ahead: record.ahead,
        in_flight: record.in_flight,
        balance: balance_from(policy)?,
        attempts: record.attempts,
        slot: record.slot.as_ref().map(slot_from_wire).transpose()?,
        answered_after: record.answered_ns.map(Duration::from_nanos),
        ended_after: Duration::from_nanos(record.ended_ns),
        end: numbered("the end of a request", &RequestEnd::ALL, record.end)?,
        status: status.map_err(|_| Malformed::Invalid("a status"))?,
        reason: if record.reason.is_empty() { None } else { Some(reason(&record.reason)?) },
        detail: shared("a request's detail", record.detail)?,
    })
}

fn slot_to_wire(slot: &SlotRecord) -> proto::SlotRecord {
    let stages = slot.stages.map(|s| [s.decide, s.place, s.transfer, s.create, s.start, s.ready]);
    proto::SlotRecord {
        sandbox: slot.sandbox.0,
        node: slot.node.0,
        revision: slot.revision,
        why: number_of(&SlotWhy::ALL, &slot.why),
        after_ns: nanos(slot.after),
        stages_ns: stages.into_iter().flatten().map(nanos).collect(),
    }
}

fn slot_from_wire(slot: &proto::SlotRecord) -> Result<SlotRecord, Malformed> {
    let stage = Duration::from_nanos;
    Ok(SlotRecord {
        sandbox: SandboxId(slot.sandbox),
        node: NodeId(slot.node),
        revision: slot.revision,
        why: numbered("why a slot was given", &SlotWhy::ALL, slot.why)?,
        after: stage(slot.after_ns),
        stages: match *slot.stages_ns {
            [] => None,
            [decide, place, transfer, create, start, ready] => Some(Stages {
                decide: stage(decide),
                place: stage(place),
                transfer: stage(transfer),
                create: stage(create),
                start: stage(start),
                ready: stage(ready),
            }),
            _ => return Err(Malformed::Invalid("the stages of a start")),
        },
    })
}

/// The place of a value among all of its kind.
fn number_of<T: PartialEq>(all: &[T], value: &T) -> u32 {
    all.iter().position(|one| one == value).and_then(|n| u32::try_from(n).ok()).unwrap_or(u32::MAX)
}

fn numbered<T: Copy>(what: &'static str, all: &[T], number: u32) -> Result<T, Malformed> {
    let index = usize::try_from(number).unwrap_or(usize::MAX);
    all.get(index).copied().ok_or(Malformed::Value { what, value: number.into() })
}
