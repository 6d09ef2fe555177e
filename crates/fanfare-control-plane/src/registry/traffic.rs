//! How a function's requests are shared among its revisions, as it is registered.

use std::collections::BTreeMap;
use std::sync::Arc;

use fanfare_api::{ShareDocument, TargetDocument};
use fanfare_types::{FunctionId, FunctionSpec, RevisionId, Share, Tag, Target, Traffic};
use serde::{Deserialize, Serialize};

/// Who gets a function's requests where not all of them are for its latest revision, or tags are set.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Routing {
    /// Per cent of the requests that name no tag, 100 together.
    pub(crate) shares: Vec<(Target, u32)>,
    /// Where those go that do.
    pub(crate) tags: Vec<(Tag, Target)>,
    /// What runs the revisions that are named by their numbers.
    pub(super) units: Vec<Unit>,
}

/// A revision that is run beside the latest one: by an id of its own, also while it is itself the latest, so that it
/// stays what it is when that is updated.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Unit {
    pub(super) id: RevisionId,
    pub(super) spec: Arc<FunctionSpec>,
}

/// As the store keeps it, below the function's key.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StoredRouting {
    shares: Vec<ShareDocument>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    tags: BTreeMap<String, TargetDocument>,
    /// Ids by revisions' numbers.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    units: BTreeMap<u32, u32>,
}

impl Routing {
    /// All for the latest revision, and no tags: what holds where there is none.
    pub(super) fn plain() -> Self {
        Routing { shares: vec![(Target::Latest, 100)], tags: Vec::new(), units: Vec::new() }
    }

    pub(super) fn is_plain(&self) -> bool {
        self.shares == [(Target::Latest, 100)] && self.tags.is_empty()
    }

    /// Everything that is named, each once.
    pub(super) fn targets(&self) -> Vec<Target> {
        let shares = self.shares.iter().map(|(target, _)| *target);
        let mut targets: Vec<Target> = shares.chain(self.tags.iter().map(|(_, target)| *target)).collect();
        targets.sort_unstable();
        targets.dedup();
        targets
    }

    pub(super) fn names(&self, number: u32) -> bool {
        self.units.iter().any(|unit| unit.id.number == number)
    }

    /// What data planes are told, of the function of this id.
    pub(super) fn traffic(&self, function: FunctionId) -> Traffic {
        let of = |target: Target| match target {
            Target::Latest => function,
            // Whatever is named has a unit.
            Target::Revision(number) => {
                let unit = self.units.iter().find(|unit| unit.id.number == number);
                unit.map_or(function, |unit| unit.id.function)
            }
        };
        let share = |(target, percent): &(Target, u32)| Share { unit: of(*target), percent: *percent };
        Traffic {
            shares: self.shares.iter().map(share).collect(),
            tags: self.tags.iter().map(|(tag, target)| (tag.clone(), of(*target))).collect(),
        }
    }

    pub(super) fn stored(&self) -> StoredRouting {
        let document = |(target, weight): &(Target, u32)| ShareDocument {
            revision: TargetDocument(*target),
            weight: *weight,
        };
        StoredRouting {
            shares: self.shares.iter().map(document).collect(),
            tags: self.tags.iter().map(|(tag, target)| (tag.to_string(), TargetDocument(*target))).collect(),
            units: self.units.iter().map(|unit| (unit.id.number, unit.id.function.0)).collect(),
        }
    }

    /// What was stored. Units are not yet what they should be: `latest` stands for all of them.
    pub(super) fn read(stored: &StoredRouting, latest: &Arc<FunctionSpec>) -> Result<Self, String> {
        let tag = |(tag, target): (&String, &TargetDocument)| match Tag::new(tag) {
            Ok(tag) => Ok((tag, target.0)),
            Err(error) => Err(format!("{tag:?} is no tag: {error}")),
        };
        let unit = |(number, id): (&u32, &u32)| Unit {
            id: RevisionId { function: FunctionId(*id), number: *number },
            spec: latest.clone(),
        };
        let routing = Routing {
            shares: stored.shares.iter().map(|share| (share.revision.0, share.weight)).collect(),
            tags: stored.tags.iter().map(tag).collect::<Result<_, _>>()?,
            units: stored.units.iter().map(unit).collect(),
        };
        let without = routing.targets().into_iter().find(|target| match target {
            Target::Latest => false,
            Target::Revision(number) => !routing.names(*number),
        });
        match without {
            Some(target) => Err(format!("nothing runs revision {target}, which gets requests")),
            None => Ok(routing),
        }
    }
}
