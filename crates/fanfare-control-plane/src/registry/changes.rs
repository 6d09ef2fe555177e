//! What a change of a function comes down to: what is written, and what the engine is told.

use std::sync::Arc;

use fanfare_api::{DirigentPatch, FieldError, FunctionDocument};
use fanfare_store::Op;
use fanfare_types::{FunctionSpec, RevisionId};

use super::entry::{put_function, put_past, revision_key};
use super::history;
use super::secrets::Secret;
use super::traffic::Unit;
use super::{Done, Function, RegistryError, Visible};
use crate::ControlPlaneError;

/// What a transaction will have done.
#[derive(Debug)]
pub(super) enum Plan {
    /// The function is so from then on.
    Keep {
        function: Box<Function>,
        done: Done,
    },
    Remove,
    /// The secret is so from then on.
    KeepSecret {
        secret: Box<Secret>,
        done: Done,
    },
    RemoveSecret,
    Number(u32),
}

impl Plan {
    pub(super) fn creates(&self) -> bool {
        matches!(self, Plan::Keep { done: Done::Created(_), .. })
    }
}

/// What a change comes down to: writes, or an answer at once.
pub(super) enum Planned {
    Write(Plan, Vec<Op>),
    Answer(Result<Done, RegistryError>),
}

/// What the engine is told when a name was about `before` and is about `after` now.
pub(super) fn news(before: Option<&Function>, after: Option<&Function>) -> Vec<Visible> {
    let mut news = Vec::new();
    // A name that was deleted and registered anew is about another function.
    let same = before.filter(|b| after.is_some_and(|a| a.id.function == b.id.function));
    if let Some(gone) = before.filter(|_| same.is_none()) {
        news.extend(gone.parts().into_iter().map(Visible::Removed));
    }
    // What is known of a revision's start may differ alone: where the same one serves, that is nothing new.
    if let Some(function) = after.filter(|a| same.is_none_or(|b| a.serving().0 != b.serving().0)) {
        let (id, spec) = function.serving();
        news.push(Visible::Set { id, spec: spec.clone() });
    }
    let Some(after) = after else { return news };
    let has = |function: &Function, unit: &Unit| function.units().iter().any(|u| u.id == unit.id);
    for unit in after.units().iter().filter(|unit| same.is_none_or(|b| !has(b, unit))) {
        news.push(Visible::Unit { id: unit.id, spec: unit.spec.clone() });
    }
    if after.routing.as_ref() != same.and_then(|b| b.routing.as_ref()) {
        let function = after.id.function;
        let traffic = after.routing.as_ref().map(|routing| Arc::new(routing.traffic(function)));
        news.push(Visible::Traffic { function, traffic });
    }
    let gone = same.map_or(&[][..], Function::units).iter().filter(|unit| !has(after, unit));
    news.extend(gone.map(|unit| Visible::Removed(unit.id.function)));
    news
}

/// What a function is with its scaling changed so.
pub(super) fn patched(found: &Function, patch: &DirigentPatch) -> Result<FunctionSpec, FieldError> {
    let mut document = FunctionDocument::from(&*found.spec);
    patch.apply(&mut document)?;
    FunctionSpec::try_from(document)
}

/// A new revision of a function that is there.
pub(super) fn update(found: &Function, spec: Arc<FunctionSpec>) -> Result<Planned, ControlPlaneError> {
    if found.spec == spec {
        return Ok(Planned::Answer(Ok(Done::Unchanged(found.id))));
    }
    let id = RevisionId { number: found.id.number + 1, ..found.id };
    let mut past = found.past.clone();
    past.push(Arc::new(found.as_past()));
    let named = |number| found.routing.as_ref().is_some_and(|routing| routing.names(number));
    let gone = history::forget(&mut past, named);
    let function = Function { past, routing: found.routing.clone(), ..Function::new(id, spec) };
    let mut ops = vec![put_function(&function).map_err(unwritable)?, put_past(found).map_err(unwritable)?];
    ops.extend(gone.into_iter().map(|number| Op::Delete(revision_key(&found.spec.name, number))));
    Ok(Planned::Write(Plan::Keep { function: Box::new(function), done: Done::Updated(id) }, ops))
}

#[allow(clippy::needless_pass_by_value, reason = "as `map_err` gives it")]
pub(super) fn unwritable(error: serde_json::Error) -> ControlPlaneError {
    ControlPlaneError::Entry { key: "of a function".to_owned(), detail: error.to_string() }
}
