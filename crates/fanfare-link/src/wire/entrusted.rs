//! Calls that a data plane is to accept.

use std::sync::Arc;
use std::time::Duration;

use fanfare_types::limits::{ENTRUSTED_BODY_BYTES_MAX, HEADERS_MAX};
use fanfare_types::{EntrustRefusal, EntrustedCall, FromDataPlane};

use super::common::{name, nanos, present, reason, shared};
use super::proto::entrusted::Outcome;
use super::{Malformed, proto};

pub(super) fn call_to_wire(call: &EntrustedCall) -> proto::EntrustedCall {
    let field = |(name, value): &(Arc<str>, Arc<str>)| proto::HeaderField {
        name: name.to_string(),
        value: value.to_string(),
    };
    proto::EntrustedCall {
        function: call.function.to_string(),
        method: call.method.to_string(),
        target: call.target.to_string(),
        headers: call.headers.iter().map(field).collect(),
        body: call.body.to_vec().into(),
        at_most_once: call.at_most_once,
        attempts_max: call.attempts_max,
        age_max_ns: call.age_max.map(nanos),
        key: call.key.to_string(),
        only_if_known: call.only_if_known,
    }
}

pub(super) fn call_from_wire(call: proto::EntrustedCall) -> Result<EntrustedCall, Malformed> {
    let too_many = |what, len, limit| Err(Malformed::TooMany { what, len, limit });
    if call.headers.len() > HEADERS_MAX {
        return too_many("a call's header fields", call.headers.len(), HEADERS_MAX);
    }
    if call.body.len() > ENTRUSTED_BODY_BYTES_MAX {
        return too_many("a call's body", call.body.len(), ENTRUSTED_BODY_BYTES_MAX);
    }
    let field = |field: proto::HeaderField| {
        Ok((shared("a field's name", field.name)?, shared("a field's value", field.value)?))
    };
    Ok(EntrustedCall {
        function: name(&call.function)?,
        method: shared("a method", call.method)?,
        target: shared("a target", call.target)?,
        headers: call.headers.into_iter().map(field).collect::<Result<_, Malformed>>()?,
        body: call.body[..].into(),
        at_most_once: call.at_most_once,
        attempts_max: call.attempts_max,
        age_max: call.age_max_ns.map(Duration::from_nanos),
        key: shared("a call's key", call.key)?,
        only_if_known: call.only_if_known,
    })
}

pub(super) fn outcome_to_wire(number: u64, outcome: &Result<Arc<str>, EntrustRefusal>) -> proto::Entrusted {
    let outcome = match outcome {
        Ok(id) => Outcome::Accepted(id.to_string()),
        Err(refusal) => Outcome::Refused(proto::EntrustRefusal {
            reason: refusal.reason.code().to_owned(),
            detail: refusal.detail.to_string(),
        }),
    };
    proto::Entrusted { number, outcome: Some(outcome) }
}

pub(super) fn outcome_from_wire(entrusted: proto::Entrusted) -> Result<FromDataPlane, Malformed> {
    let outcome = match present("an outcome", entrusted.outcome)? {
        Outcome::Accepted(id) => Ok(shared("an invocation's id", id)?),
        Outcome::Refused(refusal) => Err(EntrustRefusal {
            reason: reason(&refusal.reason)?,
            detail: shared("a detail", refusal.detail)?,
        }),
    };
    Ok(FromDataPlane::Entrusted { number: entrusted.number, outcome })
}
