//! Which sandbox a request goes to, among those this data plane holds slots of.
//!
//! Every policy chooses only among free slots, and answers `None` only if there is none: a request that finds no free
//! slot waits in the function's queue and is handed the slot that frees first, whatever the policy.
//!
//! The loads are this data plane's own: slots are leased, so what others send elsewhere does not touch them.

mod ch_rlu;
mod hermod;
mod knative;
mod least_loaded;
mod random;
mod round_robin;

use std::fmt;

use fanfare_types::{Balance, SandboxId};

use crate::Rng;

/// A sandbox that could take the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Slots of it that this data plane holds.
    pub slots: u32,
    /// Requests of this data plane that it is serving.
    pub in_flight: u32,
    /// The sandbox.
    pub id: SandboxId,
}

impl Candidate {
    /// Whether it has a free slot.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.in_flight < self.slots
    }

    /// Whether it serves a smaller share of its slots than `other`.
    fn less_loaded_than(&self, other: &Candidate) -> bool {
        let cross = |a: &Candidate, b: &Candidate| u64::from(a.in_flight) * u64::from(b.slots);
        cross(self, other) < cross(other, self)
    }
}

/// The choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Position among the candidates.
    pub index: usize,
    /// Why this one.
    pub reason: ChoiceReason,
}

/// Why a sandbox was chosen. Its `Display` is one sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChoiceReason {
    /// The first free one, which was used most recently.
    FirstFree,
    /// The less loaded of two that were drawn.
    BetterOfTwo,
    /// It serves the fewest requests.
    FewestInFlight,
    /// The next in turn.
    NextInTurn,
    /// Drawn.
    Drawn,
    /// The key's home.
    Home,
    /// The key's home is loaded beyond its bound, so the next on its chain.
    Forwarded,
    /// The load is low: onto a sandbox that is busy already.
    Packed,
    /// The load is high: where the share of busy slots is smallest.
    Spread,
    /// No other has a free slot.
    OnlyFree,
}

impl fmt::Display for ChoiceReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ChoiceReason::FirstFree => "the first free sandbox, used most recently",
            ChoiceReason::BetterOfTwo => "the less loaded of two drawn",
            ChoiceReason::FewestInFlight => "the fewest requests in flight",
            ChoiceReason::NextInTurn => "the next in turn",
            ChoiceReason::Drawn => "drawn among the free ones",
            ChoiceReason::Home => "the home of the request's key",
            ChoiceReason::Forwarded => "next on the key's chain, as its home is loaded beyond the bound",
            ChoiceReason::Packed => "busy already, as the load is low",
            ChoiceReason::Spread => "the smallest share of busy slots, as the load is high",
            ChoiceReason::OnlyFree => "the only one with a free slot",
        })
    }
}

/// Chooses sandboxes by one policy.
#[derive(Clone, Debug)]
pub struct Balancer {
    policy: Policy,
}

#[derive(Clone, Copy, Debug)]
enum Policy {
    Knative,
    LeastLoaded,
    RoundRobin(round_robin::Cursor),
    Random,
    ChRlu,
    Hermod,
}

impl Balancer {
    /// A balancer that begins anew.
    #[must_use]
    pub fn new(balance: Balance) -> Self {
        let policy = match balance {
            Balance::Knative => Policy::Knative,
            Balance::LeastLoaded => Policy::LeastLoaded,
            Balance::RoundRobin => Policy::RoundRobin(round_robin::Cursor::default()),
            Balance::Random => Policy::Random,
            Balance::ChRlu => Policy::ChRlu,
            Balance::Hermod => Policy::Hermod,
        };
        Balancer { policy }
    }

    /// The policy.
    #[must_use]
    pub fn balance(&self) -> Balance {
        match self.policy {
            Policy::Knative => Balance::Knative,
            Policy::LeastLoaded => Balance::LeastLoaded,
            Policy::RoundRobin(_) => Balance::RoundRobin,
            Policy::Random => Balance::Random,
            Policy::ChRlu => Balance::ChRlu,
            Policy::Hermod => Balance::Hermod,
        }
    }

    /// Chooses among `candidates`, given most recently used first. `key` is what should find the same sandbox again
    /// (a hash of it; only [`Balance::ChRlu`] looks at it). `None` if no slot is free.
    pub fn choose(&mut self, candidates: &[Candidate], key: u64, rng: &mut Rng) -> Option<Choice> {
        let (index, reason) = match &mut self.policy {
            Policy::Knative => knative::choose(candidates, rng),
            Policy::LeastLoaded => least_loaded::choose(candidates),
            Policy::RoundRobin(cursor) => round_robin::choose(cursor, candidates),
            Policy::Random => random::choose(candidates, rng),
            Policy::ChRlu => ch_rlu::choose(candidates, key, rng),
            Policy::Hermod => hermod::choose(candidates),
        }?;
        Some(Choice { index, reason })
    }
}

/// The free candidates and their positions, in the order given.
fn free(candidates: &[Candidate]) -> impl Iterator<Item = (usize, &Candidate)> {
    candidates.iter().enumerate().filter(|(_, candidate)| candidate.is_free())
}

#[cfg(test)]
mod tests;
