//! What the engine believes, for whoever can compare it with the truth: simulators and tests. Decides nothing.

use std::collections::BTreeMap;

use fanfare_types::{DataPlaneId, NodeId, Resources, RevisionId, SandboxId};

use crate::Engine;
use crate::function::{Active, Counts, Function};
use crate::sandbox::{Phase, Sandbox};

/// One sandbox, as the engine believes it to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Belief {
    /// Which.
    pub sandbox: SandboxId,
    /// What it runs.
    pub revision: RevisionId,
    /// Where.
    pub node: NodeId,
    /// Whether it accepts requests and its slots may be leased.
    pub serves: bool,
    /// How many slots it has; after a change of leader those that were claimed in time.
    pub concurrency: u32,
    /// Slots by data plane, none of them 0.
    pub leases: Vec<(DataPlaneId, u32)>,
}

impl Engine {
    /// Every sandbox that the engine knows, in the order of ids.
    pub fn beliefs(&self) -> impl Iterator<Item = Belief> + '_ {
        self.sandboxes.iter().map(|(id, sandbox)| Belief {
            sandbox: *id,
            revision: sandbox.revision,
            node: sandbox.node,
            serves: sandbox.phase == Phase::Ready,
            concurrency: sandbox.concurrency,
            leases: sandbox.leases.iter().copied().filter(|(_, slots)| *slots > 0).collect(),
        })
    }

    /// Something that the engine derives from its sandboxes and that is not what they say; `None` when all is well.
    /// Looks at everything.
    #[must_use]
    pub fn inconsistency(&self) -> Option<String> {
        let found = self.wrong_sandbox().or_else(|| self.wrong_reservation());
        let found = found.or_else(|| self.wrong_function()).or_else(|| self.wrong_node());
        found.or_else(|| self.wrong_gift())
    }

    fn wrong_sandbox(&self) -> Option<String> {
        self.sandboxes.iter().find_map(|(id, sandbox)| {
            let function = self.functions.get(&sandbox.revision.function);
            let listed = function.and_then(|f| f.active.as_ref()).is_some_and(|a| a.sandboxes.contains(id));
            if sandbox.leased() > sandbox.concurrency {
                return Some(format!("{id} has more leases than slots: {sandbox:?}"));
            }
            (!listed).then(|| format!("{id} is not listed by its function: {sandbox:?}"))
        })
    }

    fn wrong_reservation(&self) -> Option<String> {
        let mut reserved: BTreeMap<NodeId, Resources> = BTreeMap::new();
        for sandbox in self.sandboxes.values() {
            let sum = reserved.entry(sandbox.node).or_default();
            *sum = sum.saturating_add(sandbox.request);
        }
        self.ledger.nodes().find_map(|entry| {
            let sum = reserved.get(&entry.id).copied().unwrap_or_default();
            (entry.reserved != sum).then(|| format!("{entry:?} has sandboxes that reserve {sum:?}"))
        })
    }

    fn wrong_gift(&self) -> Option<String> {
        let stays =
            |id: &&SandboxId| self.sandboxes.get(id).is_none_or(|sandbox| sandbox.phase < Phase::Retiring);
        let staying = self.promised.keys().find(stays).map(|id| format!("{id} is promised and stays"));
        staying.or_else(|| (!self.heirs.is_empty()).then(|| format!("{:?} were not served", self.heirs)))
    }

    fn wrong_function(&self) -> Option<String> {
        for (id, function) in &self.functions {
            let Some(active) = &function.active else { continue };
            let starved = active.starved_since.is_some_and(|since| self.starved.contains(&(since, *id)));
            if active.starved_since.is_some() != starved {
                return Some(format!(
                    "{id} starves since {:?} and is listed: {starved}",
                    active.starved_since
                ));
            }
            if !function.removed && self.awake.contains(id) != active.timer_at.is_some() {
                return Some(format!("{id} is awake with a timer at {:?}", active.timer_at));
            }
            if let Some(wrong) = self.wrong_counts(function, active) {
                return Some(format!("{id}: {wrong}"));
            }
        }
        let unknown = self.starved.iter().map(|(_, id)| id).chain(&self.wishing);
        let mut unknown = unknown.filter(|id| !self.functions.contains_key(id));
        unknown.next().map(|id| format!("{id} lacks room and is unknown"))
    }

    fn wrong_counts(&self, function: &Function, active: &Active) -> Option<String> {
        let (mut counts, mut old_ready) = (Counts::default(), 0);
        let mut held: BTreeMap<DataPlaneId, u32> = BTreeMap::new();
        for id in &active.sandboxes {
            let Some(sandbox) = self.sandboxes.get(id) else { return Some(format!("{id} is unknown")) };
            let current = sandbox.revision.number == function.revision;
            if current {
                tally(sandbox, &mut counts, &mut held);
            } else {
                old_ready += u32::from(sandbox.phase == Phase::Ready);
            }
            let free = sandbox.unleased() > 0 && !function.removed;
            let listed = (active.free.contains(id), active.old_free.contains(id));
            if listed != (free && current, free && !current) {
                return Some(format!("{id} is listed as free {listed:?}: {sandbox:?}"));
            }
        }
        if (active.counts, active.old_ready) != (counts, old_ready) {
            let known = (active.counts, active.old_ready);
            return Some(format!("counts {known:?}, and there are {counts:?} and {old_ready}"));
        }
        if let Some(strange) = active.free.union(&active.old_free).find(|id| !active.sandboxes.contains(id)) {
            return Some(format!("{strange} is free and not its own"));
        }
        for plane in &active.planes {
            let holds = held.remove(&plane.data_plane).unwrap_or(0);
            if plane.held != holds {
                return Some(format!("{plane:?} holds {holds}"));
            }
        }
        held.retain(|_, slots| *slots > 0);
        (!held.is_empty()).then(|| format!("{held:?} is held by nobody listed"))
    }

    fn wrong_node(&self) -> Option<String> {
        self.nodes.iter().find_map(|(id, node)| {
            let mut running: BTreeMap<RevisionId, u32> = BTreeMap::new();
            let there = self.sandboxes.values().filter(|sandbox| sandbox.node == *id);
            there.for_each(|sandbox| *running.entry(sandbox.revision).or_default() += 1);
            if node.running != running {
                return Some(format!("{id} runs {running:?}, and counts {:?}", node.running));
            }
            let knows = |function: &Function| function.told.contains(id);
            // One that is being prepared outlives its function.
            let known = |r: &RevisionId| self.functions.get(&r.function).is_some_and(|f| knows(f));
            let forgotten = |r: &&RevisionId| !known(r) && self.preparing.get(r) != Some(id);
            node.told.iter().find(forgotten).map(|r| format!("{id} was told of {r}, and that is forgotten"))
        })
    }
}

fn tally(sandbox: &Sandbox, counts: &mut Counts, held: &mut BTreeMap<DataPlaneId, u32>) {
    *counts.of(sandbox.phase) += 1;
    counts.called_back += u32::from(sandbox.phase == Phase::Starting && sandbox.called_back);
    counts.waited += u32::from(sandbox.phase == Phase::Starting && sandbox.waited);
    counts.condemned += u32::from(sandbox.phase == Phase::Retiring && sandbox.condemned);
    if sandbox.phase == Phase::Ready {
        sandbox.leases.iter().for_each(|(holder, slots)| *held.entry(*holder).or_default() += slots);
    }
}
