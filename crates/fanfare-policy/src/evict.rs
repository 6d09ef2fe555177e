//! Which idle sandboxes make room when a node is full.
//!
//! Idle sandboxes are a cache: they cost memory and save cold starts. When something needs their room, those go whose
//! loss is the smallest. The order is the field order of [`Score`]; there is no weighing.
//!
//! Room is per node: ask with the idle sandboxes of one node and what is missing there.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use fanfare_types::{FunctionId, HumanDuration, Resources, Timestamp};

/// Idle sandboxes of one function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleFunction {
    /// The function.
    pub function: FunctionId,
    /// Of its sandboxes, those that are idle and could go.
    pub idle_sandboxes: u32,
    /// All that are ready, idle and busy, wherever they are.
    pub ready: u32,
    /// Its minimum: never fewer ready ones than this.
    pub min: u32,
    /// Since when the longest idle of them is idle.
    pub idle_since: Timestamp,
    /// What each of them reserves.
    pub request: Resources,
}

/// Sandboxes that go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim {
    /// The function that loses them.
    pub function: FunctionId,
    /// How many; the longest idle first.
    pub sandboxes: u32,
    /// Why these.
    pub reason: VictimReason,
}

/// Why sandboxes go. Its `Display` is one sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VictimReason {
    /// How long the longest idle of them has been idle.
    pub idle_for: Duration,
    /// Whether the function keeps a ready one, so that its next request is no cold start.
    pub stays_warm: bool,
}

impl fmt::Display for VictimReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.stays_warm { "spare" } else { "the last ready ones" };
        write!(f, "{what}, idle for {}, and their room was needed", HumanDuration(self.idle_for))
    }
}

/// What orders victims: lower goes first. The order of the fields is the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Score {
    /// A function's last ready sandbox goes after every spare one.
    pub last_ready: bool,
    /// The longest idle goes first.
    pub idle_for: Reverse<Duration>,
    /// The larger goes first: fewer have to go.
    pub memory_bytes: Reverse<u64>,
    /// The same as the one before, by CPU.
    pub cpu_milli: Reverse<u64>,
    /// Settles ties, so that the choice is the same everywhere.
    pub function: FunctionId,
}

/// What [`choose_victims`] could free at most.
#[must_use]
pub fn evictable(idle: &[IdleFunction], now: Timestamp, keep_alive_min: Duration) -> Resources {
    let offers = idle.iter().flat_map(|function| Offer::of(function, now, keep_alive_min)).flatten();
    offers.fold(Resources::ZERO, |sum, o| sum.saturating_add(o.request.saturating_mul(o.sandboxes)))
}

/// Chooses idle sandboxes whose removal frees at least `need`: enough, or nothing. Those idle for less than
/// `keep_alive_min` are not touched, and no function falls below its minimum. None of the victims could stay: without
/// any one of them `need` would not be covered.
#[must_use]
pub fn choose_victims(
    idle: &[IdleFunction],
    need: Resources,
    now: Timestamp,
    keep_alive_min: Duration,
) -> Vec<Victim> {
    let mut offers: Vec<Offer> =
        idle.iter().flat_map(|function| Offer::of(function, now, keep_alive_min)).flatten().collect();
    offers.sort_by_key(|offer| offer.score);

    let mut missing = need;
    for offer in &mut offers {
        offer.taken = offer.sandboxes.min(sandboxes_for(missing, offer.request));
        missing = missing.saturating_sub(offer.request.saturating_mul(offer.taken));
    }
    if missing != Resources::ZERO {
        return Vec::new();
    }
    spare_the_unneeded(&mut offers, need);
    victims(&offers)
}

/// Sandboxes of one function that would be missed equally.
#[derive(Clone, Copy, Debug)]
struct Offer {
    score: Score,
    request: Resources,
    sandboxes: u32,
    taken: u32,
}

impl Offer {
    /// At most two: the spare ones, and the last ready one.
    fn of(function: &IdleFunction, now: Timestamp, keep_alive_min: Duration) -> [Option<Offer>; 2] {
        let idle_for = now.since(function.idle_since);
        if idle_for < keep_alive_min {
            return [None, None];
        }
        let removable = function.idle_sandboxes.min(function.ready.saturating_sub(function.min));
        let last = u32::from(removable > 0 && removable == function.ready);
        let offer = |last_ready: bool, sandboxes: u32| {
            let score = Score {
                last_ready,
                idle_for: Reverse(idle_for),
                memory_bytes: Reverse(function.request.memory_bytes),
                cpu_milli: Reverse(function.request.cpu_milli),
                function: function.function,
            };
            (sandboxes > 0).then_some(Offer { score, request: function.request, sandboxes, taken: 0 })
        };
        [offer(false, removable - last), offer(true, last)]
    }
}

/// The fewest sandboxes that free as much of `missing` as their kind can: zero if they free nothing of it.
fn sandboxes_for(missing: Resources, each: Resources) -> u32 {
    // What a sandbox does not reserve it cannot free.
    let for_one = |missing: u64, each: u64| if each == 0 { 0 } else { missing.div_ceil(each) };
    let sandboxes =
        for_one(missing.cpu_milli, each.cpu_milli).max(for_one(missing.memory_bytes, each.memory_bytes));
    u32::try_from(sandboxes).unwrap_or(u32::MAX)
}

/// Later victims may have made earlier ones unnecessary. The most valuable are spared first.
fn spare_the_unneeded(offers: &mut [Offer], need: Resources) {
    let mut freed = offers.iter().fold(Resources::ZERO, |sum, o| sum + o.request.saturating_mul(o.taken));
    for offer in offers.iter_mut().rev() {
        let surplus = freed.saturating_sub(need);
        let spared = u32::try_from(surplus.times(offer.request)).unwrap_or(u32::MAX).min(offer.taken);
        offer.taken -= spared;
        freed -= offer.request.saturating_mul(spared);
    }
}

fn victims(offers: &[Offer]) -> Vec<Victim> {
    let mut victims: Vec<Victim> = Vec::new();
    let mut positions = BTreeMap::new();
    for offer in offers.iter().filter(|offer| offer.taken > 0) {
        let Score { function, last_ready, idle_for, .. } = offer.score;
        let position = *positions.entry(function).or_insert(victims.len());
        if let Some(victim) = victims.get_mut(position) {
            victim.sandboxes += offer.taken;
            victim.reason.stays_warm &= !last_ready;
        } else {
            let reason = VictimReason { idle_for: idle_for.0, stays_warm: !last_ready };
            victims.push(Victim { function, sandboxes: offer.taken, reason });
        }
    }
    victims
}

#[cfg(test)]
mod tests;
