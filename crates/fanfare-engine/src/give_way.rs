//! Where every sandbox is busy and a function with waiting requests has none, or less than its share: which function
//! gives one up for it (policy: `fanfare_policy::give_way`), and how its room gets there.
//!
//! Where any of the giver's sandboxes would do, its data planes are asked for one more retirement: they choose an idle
//! one, and otherwise the first that a request ends in, so that nobody waits for a long execution while a short one is
//! under way beside it. Where only those on some nodes would do, one of them is revoked, and drains. An order that has
//! become needless is taken back as other retirements are.
//!
//! The room is somebody's from then on: in the step in which it is released its heir is served before everybody else,
//! the giver included. If it needs nothing any more, the room is everybody's.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fanfare_policy::{Gift, Has, MORE_THAN_THE_OTHER, Party, give_way};
use fanfare_types::limits::REPORT_INTERVAL;
use fanfare_types::{FunctionId, NodeId, Resources, SandboxId, Timestamp};

use crate::Command;
use crate::engine::{Engine, Timer};
use crate::function::{Active, Function};
use crate::sandbox::Phase;

/// Gifts that data planes have been asked for and have not made yet, at most.
const GIFTS_MAX: usize = 64;
/// Of all sandboxes one in so many gives way in a second, at most, but always one: what is given is idle for about a
/// second before it goes on to somebody else, and so much of the room does nothing then.
const SANDBOXES_FOR_A_GIFT: usize = 16;
/// Givers are looked for at most this often: it takes a look at every active function.
const GIVE_WAY_INTERVAL: Duration = Duration::from_millis(50);
/// Room that is coming back anyway is waited for; in vain for this long, and it must have gone to others.
const COMING_TRUSTED: Duration = Duration::from_secs(2);

/// Where a giver's sandboxes are.
type Whereabouts = BTreeMap<FunctionId, BTreeSet<NodeId>>;

impl Engine {
    /// Sandboxes that the function's data planes are to give up for others.
    pub(crate) fn giving(&self, now: Timestamp, id: FunctionId) -> u32 {
        let gifts = self.gifts.iter().filter(|gift| gift.from == id).count();
        let Some(function) = self.functions.get(&id).filter(|_| gifts > 0) else { return 0 };
        let can_give = function.active.as_ref().map_or(0, |active| can_give(now, id, function, active));
        u32::try_from(gifts).unwrap_or(u32::MAX).min(can_give)
    }

    /// Asks for what the starved lack and nobody idle gives; `coming` is on its way back already.
    pub(crate) fn give_way(&mut self, now: Timestamp, coming: Resources, out: &mut Vec<Command>) {
        if now < self.give_way_at {
            self.arm(self.give_way_at, Timer::MakeRoom);
            return;
        }
        self.give_way_at = now + GIVE_WAY_INTERVAL;
        self.drop_needless_gifts();
        let parties = self.parties(now, coming);
        let starving = parties.iter().filter(|p| p.starved_since.is_some() && p.wants > p.have);
        let Some(poorest) = starving.map(|p| p.have).min() else { return };
        let max = self.gifts_left(now).min(GIFTS_MAX - self.gifts.len().min(GIFTS_MAX));
        if max == 0 {
            self.arm(self.gifts_since + REPORT_INTERVAL, Timer::MakeRoom);
            return;
        }
        let enough = poorest.saturating_add(MORE_THAN_THE_OTHER);
        let whereabouts = self
            .whereabouts(parties.iter().filter(|p| p.can_give > 0 && p.have > enough).map(|p| p.function));
        let suits = |from, to| self.suiting_nodes(&whereabouts, from, to).next().is_some();
        let gifts = give_way(&parties, max, &suits);
        for gift in gifts {
            self.gifts_lately += 1;
            if self.any_will_do(&whereabouts, gift) {
                self.gifts.push(gift);
                self.ask_for_gifts(now, gift.from, out);
            } else if let Some(sandbox) = self.suiting_sandbox(&whereabouts, gift) {
                self.hand_over(now, gift, sandbox);
                self.retire(now, sandbox, out);
            }
        }
    }

    /// How many more there may be in this second.
    fn gifts_left(&mut self, now: Timestamp) -> usize {
        if now >= self.gifts_since + REPORT_INTERVAL {
            (self.gifts_since, self.gifts_lately) = (now, 0);
        }
        (self.sandboxes.len() / SANDBOXES_FOR_A_GIFT).max(1).saturating_sub(self.gifts_lately)
    }

    /// One of the function's sandboxes goes: it goes for whom the function is to make way. False: for nobody.
    pub(crate) fn given(&mut self, now: Timestamp, id: FunctionId, sandbox: SandboxId) -> bool {
        self.drop_needless_gifts();
        let Some(position) = self.gifts.iter().position(|gift| gift.from == id) else { return false };
        let keeps_enough = self.giving(now, id) > 0;
        let gift = self.gifts.remove(position);
        if keeps_enough {
            self.hand_over(now, gift, sandbox);
        }
        keeps_enough
    }

    /// Asks the function's data planes for as many retirements as it owes; what they were asked for otherwise stays.
    pub(crate) fn ask_for_gifts(&mut self, now: Timestamp, id: FunctionId, out: &mut Vec<Command>) {
        let Some(active) = self.functions.get(&id).and_then(|f| f.active.as_ref()) else { return };
        let asked: u32 = active.planes.iter().map(|p| p.retire_asked).sum();
        let total = asked.max(self.giving(now, id));
        self.ask_retire(now, id, total, out);
    }

    /// Room was released for them: before anybody else takes it.
    pub(crate) fn serve_heirs(&mut self, now: Timestamp, out: &mut Vec<Command>) {
        for heir in std::mem::take(&mut self.heirs) {
            self.pursue(now, heir, Duration::ZERO, out);
        }
    }

    /// What is promised and still drains, which takes as long as the requests in it: no idle sandbox is spared for it.
    pub(crate) fn draining(&self) -> Resources {
        let promised = self.promised.keys().filter_map(|id| self.sandboxes.get(id));
        let drains = promised.filter(|s| s.phase == Phase::Retiring && !s.condemned);
        drains.fold(Resources::ZERO, |sum, s| sum.saturating_add(s.request))
    }

    fn hand_over(&mut self, now: Timestamp, gift: Gift, sandbox: SandboxId) {
        let Some(to) = self.functions.get(&gift.to).map(|f| f.spec.name.clone()) else { return };
        self.promised.insert(sandbox, gift.to);
        if let Some(active) = self.functions.get_mut(&gift.from).and_then(|f| f.active.as_mut()) {
            let left = active.coming_or_ready().saturating_sub(1);
            active.record(now, left, format!("gave way to {to}, {}", Has(gift.has)));
        }
    }

    /// Those that their heir lacks no more, and those whose giver is leaving.
    fn drop_needless_gifts(&mut self) {
        if self.gifts.is_empty() {
            return;
        }
        let functions = &self.functions;
        let mut given: BTreeMap<FunctionId, u32> = BTreeMap::new();
        self.promised.values().for_each(|heir| *given.entry(*heir).or_default() += 1);
        self.gifts.retain(|gift| {
            let heir = functions.get(&gift.to).and_then(|f| f.active.as_ref());
            let given = given.entry(gift.to).or_default();
            *given += 1;
            heir.is_some_and(|heir| *given <= heir.missing)
                && functions.get(&gift.from).is_some_and(|giver| !giver.removed)
        });
    }

    /// Everybody who has or wants sandboxes. What is on its way to somebody is had.
    fn parties(&self, now: Timestamp, coming: Resources) -> Vec<Party> {
        let mut promised: BTreeMap<FunctionId, u32> = BTreeMap::new();
        let heirs = self.gifts.iter().map(|gift| gift.to).chain(self.promised.values().copied());
        heirs.for_each(|id| *promised.entry(id).or_default() += 1);
        let covered = self.covered(now, coming);
        let party = |id: &FunctionId| {
            let function = self.functions.get(id).filter(|f| !f.removed)?;
            let active = function.active.as_ref()?;
            let totals = active.totals();
            let asked: u32 = active.planes.iter().map(|p| p.retire_asked).sum();
            let leaving = asked.max(self.giving(now, *id));
            let coming = promised.get(id).copied().unwrap_or(0);
            let there = active.coming_or_ready().saturating_sub(leaving);
            let busy = totals.in_flight.saturating_add(totals.queued);
            let wants = match active.starved_since {
                Some(_) => active.coming_or_ready().saturating_add(active.missing),
                None => busy.div_ceil(function.spec.sizing.concurrency.max(1)).max(function.minimum(*id)),
            };
            let helpless = !covered.contains(id) && self.could_ever_fit(&function.spec);
            Some(Party {
                function: *id,
                have: there.saturating_add(coming),
                wants,
                can_give: can_give(now, *id, function, active).saturating_sub(leaving),
                starved_since: active.starved_since.filter(|_| helpless),
            })
        };
        self.awake.iter().filter_map(party).collect()
    }

    /// The starved for whom room is on its way that nobody gives them, in order of waiting.
    fn covered(&self, now: Timestamp, coming: Resources) -> BTreeSet<FunctionId> {
        let request = |id| self.functions.get(&id).map_or(Resources::ZERO, |f| f.spec.sizing.request);
        let given = self.gifts.iter().map(|gift| request(gift.from));
        let promised = self.promised.keys().filter_map(|id| self.sandboxes.get(id));
        let leaving = promised.filter(|s| s.phase == Phase::Stopping).map(|s| s.request);
        let given = given.chain(leaving).fold(Resources::ZERO, Resources::saturating_add);
        let mut left = coming.saturating_sub(given);
        let mut covered = BTreeSet::new();
        for (since, id) in &self.starved {
            let missing = self.functions.get(id).and_then(|f| f.active.as_ref()).map_or(0, |a| a.missing);
            let fitting = u32::try_from(left.times(request(*id))).unwrap_or(u32::MAX).min(missing);
            left = left.saturating_sub(request(*id).saturating_mul(fitting));
            if fitting > 0 && now.since(*since) < COMING_TRUSTED {
                covered.insert(*id);
            }
        }
        covered
    }

    /// Where those that could give have ready sandboxes.
    fn whereabouts(&self, givers: impl Iterator<Item = FunctionId>) -> Whereabouts {
        let mut whereabouts = Whereabouts::new();
        for id in givers {
            let Some(function) = self.functions.get(&id) else { continue };
            let members = function.active.iter().flat_map(|active| &active.sandboxes);
            let serving = members.filter_map(|id| self.sandboxes.get(id)).filter(|s| s.phase == Phase::Ready);
            whereabouts.insert(id, serving.map(|sandbox| sandbox.node).collect());
        }
        whereabouts
    }

    /// The nodes on which a sandbox of `to` finds room when one of `from` has gone.
    fn suiting_nodes<'a>(
        &'a self,
        whereabouts: &'a Whereabouts,
        from: FunctionId,
        to: FunctionId,
    ) -> impl Iterator<Item = NodeId> + 'a {
        let specs = self.functions.get(&from).zip(self.functions.get(&to));
        specs.zip(whereabouts.get(&from)).into_iter().flat_map(move |((from, to), nodes)| {
            let (frees, needs) = (from.spec.sizing.request, to.spec.sizing.request);
            nodes.iter().copied().filter(move |node| {
                let able = self.nodes.get(node).is_some_and(|n| n.has_runtime(&to.spec.runtime));
                let entry = self.ledger.get(*node).filter(|entry| entry.schedulable);
                let fits = entry.is_some_and(|entry| {
                    // A node that has less than it had before may have no room even then.
                    let room = entry.capacity.saturating_sub(entry.reserved.saturating_sub(frees));
                    room.fits(needs)
                });
                // What is free beside it is counted on once.
                able && fits && (frees.fits(needs) || !self.is_promised_room_on(*node))
            })
        })
    }

    fn is_promised_room_on(&self, node: NodeId) -> bool {
        self.promised.keys().any(|id| self.sandboxes.get(id).is_some_and(|sandbox| sandbox.node == node))
    }

    /// Whether the room of any sandbox of the giver suffices, by itself and wherever it is.
    fn any_will_do(&self, whereabouts: &Whereabouts, gift: Gift) -> bool {
        let specs = self.functions.get(&gift.from).zip(self.functions.get(&gift.to));
        let suffices = specs.is_some_and(|(from, to)| from.spec.sizing.request.fits(to.spec.sizing.request));
        let suiting = self.suiting_nodes(whereabouts, gift.from, gift.to).count();
        suffices && whereabouts.get(&gift.from).is_some_and(|nodes| nodes.len() == suiting)
    }

    /// One of the giver's there: the fewest slots in use, and the first of those.
    fn suiting_sandbox(&self, whereabouts: &Whereabouts, gift: Gift) -> Option<SandboxId> {
        let nodes: BTreeSet<NodeId> = self.suiting_nodes(whereabouts, gift.from, gift.to).collect();
        let active = self.functions.get(&gift.from)?.active.as_ref()?;
        let serves = |id: &&SandboxId| {
            self.sandboxes.get(id).is_some_and(|s| s.phase == Phase::Ready && nodes.contains(&s.node))
        };
        let leased = |id: &&SandboxId| self.sandboxes.get(id).map(|s| s.leased());
        active.sandboxes.iter().filter(serves).min_by_key(leased).copied()
    }
}

/// So many of a function's ready sandboxes can go: not its last one, nor those of its minimum or its fixed number, nor
/// any while a new leader does not know yet what they are needed for.
fn can_give(now: Timestamp, id: FunctionId, function: &Function, active: &Active) -> u32 {
    if now < active.hold_until || function.removed {
        return 0;
    }
    active.counts.ready.saturating_sub(function.never_fewer(id).max(1))
}
