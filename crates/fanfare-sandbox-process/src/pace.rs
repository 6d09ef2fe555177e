//! How fast a sandbox may make the daemon work for it.

use std::time::{Duration, Instant};

/// A limit on work over time that lets bursts through: the generic cell rate algorithm (ITU-T I.371), in which each
/// piece of work moves a theoretical time on by what it may cost, and waits once that is `burst` ahead.
#[derive(Debug)]
pub(crate) struct Pace {
    burst: Duration,
    theoretical: Instant,
}

impl Pace {
    /// Work that may take up this much of its time at once.
    pub(crate) fn new(burst: Duration, now: Instant) -> Self {
        Pace { burst, theoretical: now }
    }

    /// Accounts for work that is worth `cost` of its time; when to go on, if not at once.
    pub(crate) fn spend(&mut self, cost: Duration, now: Instant) -> Option<Instant> {
        self.theoretical = self.theoretical.max(now) + cost;
        let resume = self.theoretical.checked_sub(self.burst)?;
        (resume > now).then_some(resume)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_pass_and_a_flood_waits() {
        let begun = Instant::now() + Duration::from_secs(100);
        let at = |ms| begun + Duration::from_millis(ms);
        let cost = Duration::from_millis(10);
        let mut pace = Pace::new(Duration::from_millis(30), at(0));
        let three = [(); 3].map(|()| pace.spend(cost, at(0)));
        assert_eq!(three, [None; 3]);
        assert_eq!(pace.spend(cost, at(0)), Some(at(10)));
        assert_eq!(pace.spend(cost, at(10)), Some(at(20)));
        assert_eq!(pace.spend(cost, at(100)), None, "what was not used is not kept beyond the burst");
        let more = [(); 3].map(|()| pace.spend(cost, at(100)));
        assert_eq!(more, [None, None, Some(at(110))]);
    }
}
