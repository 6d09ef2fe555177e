//! Choice among sandboxes by the function's balancing policy, where a plain free list will not do.

use fanfare_policy::{Balancer, Candidate, Rng, seeded};
use fanfare_types::Balance;

use crate::slots::{Record, State};

/// A balancer with its candidates: every serving sandbox, full ones included, kept up to date rather than collected
/// for each request.
#[derive(Debug)]
pub(crate) struct Balanced {
    balancer: Balancer,
    rng: Rng,
    candidates: Vec<Candidate>,
    /// Place in the table of each candidate.
    places: Vec<u32>,
}

impl Balanced {
    pub(crate) fn new(balance: Balance, seed: u64) -> Self {
        Balanced {
            balancer: Balancer::new(balance),
            rng: seeded(seed),
            candidates: Vec::new(),
            places: Vec::new(),
        }
    }

    /// The place of the sandbox to use, unless the policy would rather wait.
    pub(crate) fn choose(&mut self, key: u64) -> Option<u32> {
        let choice = self.balancer.choose(&self.candidates, key, &mut self.rng)?;
        self.places.get(choice.index).copied()
    }

    /// Brings the candidate of the record at `place` up to date.
    pub(crate) fn update(&mut self, place: u32, records: &mut [Record]) {
        let record = &records[place as usize];
        let at = record.candidate as usize;
        let serving = record.state == State::Serving && record.held > 0;
        let candidate = Candidate { id: record.id, slots: record.held, in_flight: record.in_flight };
        match (serving, at < self.places.len() && self.places[at] == place) {
            (true, true) => self.candidates[at] = candidate,
            (true, false) => {
                records[place as usize].candidate = u32::try_from(self.places.len()).unwrap_or(u32::MAX);
                self.places.push(place);
                self.candidates.push(candidate);
            }
            (false, true) => {
                self.places.swap_remove(at);
                self.candidates.swap_remove(at);
                if let Some(moved) = self.places.get(at) {
                    records[*moved as usize].candidate = record_index(at);
                }
                records[place as usize].candidate = u32::MAX;
            }
            (false, false) => {}
        }
    }

    #[cfg(test)]
    pub(crate) fn check(&self, records: &[Record]) {
        let serving = records.iter().filter(|r| r.state == State::Serving && r.held > 0).count();
        assert_eq!((self.candidates.len(), self.places.len()), (serving, serving));
        for (at, (candidate, place)) in self.candidates.iter().zip(&self.places).enumerate() {
            let record = &records[*place as usize];
            assert_eq!(record.candidate as usize, at);
            assert_eq!(candidate.slots, record.held);
            assert_eq!(candidate.in_flight, record.in_flight);
        }
    }
}

fn record_index(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}
