//! Who gives way when nodes are full and nothing on them is idle.
//!
//! A function whose slots go from one of its requests to the next never has an idle sandbox, so that eviction finds
//! nothing, and whoever has none waits for as long as that load lasts. Room is then shared by max-min fairness
//! (Bertsekas and Gallager, *Data Networks*, 6.5.2): nobody has less than its share while another has more than its
//! own, and nobody's share is more than it wants.
//!
//! Sandboxes are counted, not weighed: the share is of turns, and whether one's room holds another is the caller's
//! answer, for it is a matter of nodes.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;

use fanfare_types::{FunctionId, Timestamp};

/// So many more than the other one would have then must a function have that gives one away. With 1 two functions
/// could hand one sandbox to and fro.
pub const MORE_THAN_THE_OTHER: u32 = 2;

/// One function and what it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Party {
    /// The function.
    pub function: FunctionId,
    /// Sandboxes that serve or will, what is coming to it included and what is leaving it not.
    pub have: u32,
    /// Sandboxes that its requests, running and waiting, would fill, or that it is to have at least.
    pub wants: u32,
    /// So many of those that it has could go without making it fall below its minimum.
    pub can_give: u32,
    /// Its requests have waited since then for sandboxes that nothing is coming for.
    pub starved_since: Option<Timestamp>,
}

/// What a function keeps whatever others lack, and what it wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Sandboxes that it cannot give.
    pub keeps: u32,
    /// Sandboxes that it could use.
    pub wants: u32,
}

impl Claim {
    /// Its share, where the fair level is this.
    #[must_use]
    pub fn share(self, level: u32) -> u32 {
        self.keeps.max(self.wants.min(level))
    }
}

impl Party {
    fn claim(&self) -> Claim {
        Claim { keeps: self.have.saturating_sub(self.can_give), wants: self.wants }
    }
}

/// One sandbox that is to go for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gift {
    /// The function that loses it.
    pub from: FunctionId,
    /// The function that its room is for.
    pub to: FunctionId,
    /// What that one has without it.
    pub has: u32,
}

/// What `from` is told. Its `Display` ends a sentence that begins with the other's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Has(pub u32);

impl fmt::Display for Has {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("which has none"),
            has => write!(f, "which has {has}"),
        }
    }
}

/// The max-min fair level of `room` sandboxes, the largest at which all shares have room: each is the smaller of what
/// is wanted and this, and at least what is kept. What is left over is nobody's.
#[must_use]
pub fn fair_level(claims: &[Claim], room: u32) -> u32 {
    let fits = |level: u32| claims.iter().map(|c| u64::from(c.share(level))).sum::<u64>() <= u64::from(room);
    if fits(u32::MAX) {
        return u32::MAX;
    }
    // Shares grow with the level: all below some level fit, and none above.
    let (mut fitting, mut too_high) = (0, claims.iter().map(|c| c.wants).max().unwrap_or(0));
    while too_high - fitting > 1 {
        let middle = fitting + (too_high - fitting) / 2;
        if fits(middle) {
            fitting = middle;
        } else {
            too_high = middle;
        }
    }
    fitting
}

/// Chooses up to `max` sandboxes that go, for the poorest first, among equals for who has waited longest, each from
/// the function with the most beyond its share whose room `suits`: its arguments are who gives and who gets.
///
/// Only who has none or less than its share gets one; only who has more than its share gives one, keeps one and its
/// minimum, and has two more than the other would have. So nobody gives what it was given while wants stay the same.
#[must_use]
pub fn give_way(parties: &[Party], max: usize, suits: &dyn Fn(FunctionId, FunctionId) -> bool) -> Vec<Gift> {
    let room = parties.iter().fold(0_u32, |sum, p| sum.saturating_add(p.have));
    let level = fair_level(&parties.iter().map(Party::claim).collect::<Vec<_>>(), room);
    let share = |p: &Party| p.claim().share(level);
    let lacks = |p: &Party| p.wants > p.have && (p.have == 0 || p.have < share(p));
    // The poorest first, and of those who has waited longest.
    let mut poor: BTreeMap<(u32, Option<Timestamp>, FunctionId), Party> = BTreeMap::new();
    let mut rich = Vec::new();
    for party in parties {
        if party.starved_since.is_some() && lacks(party) {
            poor.insert((party.have, party.starved_since, party.function), *party);
        }
        if party.can_give > 0 && party.have > share(party).max(1) {
            rich.push(*party);
        }
    }
    let mut gifts = Vec::new();
    while gifts.len() < max {
        let Some((_, mut to)) = poor.pop_first() else { break };
        let can_help = |r: &Party| r.have > to.have.saturating_add(MORE_THAN_THE_OTHER);
        rich.retain(|r| r.can_give > 0 && r.have > share(r).max(1) && can_help(r));
        if rich.is_empty() {
            // Nobody helps the others either, who have as many or more.
            break;
        }
        let gives = |r: &&mut Party| r.function != to.function && suits(r.function, to.function);
        let richest = rich.iter_mut().filter(gives).max_by_key(|r| (r.have - share(r), Reverse(r.function)));
        let Some(from) = richest else { continue };
        from.have -= 1;
        from.can_give -= 1;
        gifts.push(Gift { from: from.function, to: to.function, has: to.have });
        to.have += 1;
        if lacks(&to) {
            poor.insert((to.have, to.starved_since, to.function), to);
        }
    }
    gifts
}

#[cfg(test)]
mod tests;
