//! Changes of where a function's requests go.

use std::sync::Arc;

use fanfare_api::TrafficChange;
use fanfare_types::{FunctionId, RevisionId, Target};

use super::{Writer, load};
use crate::ControlPlaneError;
use crate::registry::changes::{Plan, Planned, unwritable};
use crate::registry::entry::put_function;
use crate::registry::hosts;
use crate::registry::traffic::{Routing, Unit};
use crate::registry::{Done, Function, RegistryError};

impl Writer {
    /// Shares the function's requests otherwise.
    pub(super) async fn route(
        &mut self,
        mut function: Function,
        change: &TrafficChange,
    ) -> Result<Planned, ControlPlaneError> {
        let before = function.routing.as_deref().cloned().unwrap_or_else(Routing::plain);
        let mut after = Routing {
            shares: change.shares.clone().unwrap_or_else(|| before.shares.clone()),
            tags: change.tags.clone().unwrap_or_else(|| before.tags.clone()),
            units: Vec::new(),
        };
        let tags = after.tags.iter().map(|(tag, _)| tag);
        if let Err(refused) = hosts::check_tags(&self.known.read(), &function.spec.name, &function, tags) {
            return Ok(Planned::Answer(Err(refused)));
        }
        let known = before.targets();
        for target in after.targets() {
            let number = match target {
                Target::Latest => function.id.number,
                Target::Revision(number) => number,
            };
            let failed = match function.past.iter().find(|past| past.number == number) {
                Some(past) => &past.failed,
                None if number == function.id.number => &function.failed,
                None => return Ok(Planned::Answer(Err(function.no_such_revision(number)))),
            };
            // What gets requests already may be broken by now; it gets none anew.
            if let Some(failed) = failed.clone().filter(|_| !known.contains(&target)) {
                return Ok(Planned::Answer(Err(RegistryError::Broken { number, failed })));
            }
            if target == Target::Latest {
                continue;
            }
            let unit = match before.units.iter().find(|unit| unit.id.number == number) {
                Some(unit) => unit.clone(),
                None => {
                    let spec = match number == function.id.number {
                        true => function.spec.clone(),
                        false => load::past_spec(&*self.store, &function.spec.name, number).await?,
                    };
                    let id = FunctionId(self.ids.take(&*self.store, &self.term.fence).await?);
                    Unit { id: RevisionId { function: id, number }, spec }
                }
            };
            after.units.push(unit);
        }
        if after == before {
            return Ok(Planned::Answer(Ok(Done::Unchanged(function.id))));
        }
        function.routing = (!after.is_plain()).then(|| Arc::new(after));
        let ops = vec![put_function(&function).map_err(unwritable)?];
        Ok(Planned::Write(Plan::Keep { function: Box::new(function), done: Done::Routed }, ops))
    }
}
