//! Decisions as pure functions: autoscaling, demand, placement, balancing, eviction, sharing, routing.
//!
//! Each policy takes its inputs and the time as arguments and answers with a decision and the reason for it. Nothing
//! here knows a clock, a socket, a thread or a source of randomness: the generator ([`Rng`]) is an argument, too, so
//! a decision can be replayed, simulated and tested as a plain function.

mod autoscale;
mod balance;
mod demand;
mod evict;
mod hash;
mod place;
mod random;
mod route;
mod share;
mod traffic;

pub use autoscale::{
    Autoscaler, CpuFigures, KpaFigures, LoadSample, STABLE_WINDOW_MAX, ScaleDecision, ScaleInput, ScaleReason,
};
pub use balance::{Balancer, Candidate, Choice, ChoiceReason};
pub use demand::{DemandInput, DemandOrder, DemandReason, demand_order};
pub use evict::{IdleFunction, Score, Victim, VictimReason, choose_victims, evictable};
pub use place::{Ledger, NoRoom, NodeEntry, PlaceReason, Placed, Placement, Placer, UnknownPlacement};
pub use rand::RngExt;
pub use random::{Rng, seeded};
pub use route::{Move, Owners, owners};
pub use share::{Claim, Gift, Has, MORE_THAN_THE_OTHER, Party, fair_level, give_way};
pub use traffic::choose_share;
