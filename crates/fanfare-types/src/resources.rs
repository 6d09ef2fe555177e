//! Amounts of a machine.

use std::ops::{Add, AddAssign, Sub, SubAssign};

/// CPU and memory, as requested by sandboxes and offered by nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Resources {
    /// Thousandths of one CPU.
    pub cpu_milli: u64,
    /// Bytes of memory.
    pub memory_bytes: u64,
}

impl Resources {
    /// Nothing of anything.
    pub const ZERO: Resources = Resources { cpu_milli: 0, memory_bytes: 0 };

    /// So much of each.
    #[must_use]
    pub const fn new(cpu_milli: u64, memory_bytes: u64) -> Self {
        Resources { cpu_milli, memory_bytes }
    }

    /// Whether `self` leaves room for `other` in each dimension.
    #[must_use]
    pub const fn fits(self, other: Resources) -> bool {
        other.cpu_milli <= self.cpu_milli && other.memory_bytes <= self.memory_bytes
    }

    /// `self` less `other`, zero where that would be negative.
    #[must_use]
    pub const fn saturating_sub(self, other: Resources) -> Resources {
        Resources {
            cpu_milli: self.cpu_milli.saturating_sub(other.cpu_milli),
            memory_bytes: self.memory_bytes.saturating_sub(other.memory_bytes),
        }
    }

    /// `self` and `other`, at most what can be counted: for sums over what others state.
    #[must_use]
    pub const fn saturating_add(self, other: Resources) -> Resources {
        Resources {
            cpu_milli: self.cpu_milli.saturating_add(other.cpu_milli),
            memory_bytes: self.memory_bytes.saturating_add(other.memory_bytes),
        }
    }

    /// `n` times `self`, at most what can be counted.
    #[must_use]
    pub const fn saturating_mul(self, n: u32) -> Resources {
        Resources {
            cpu_milli: self.cpu_milli.saturating_mul(n as u64),
            memory_bytes: self.memory_bytes.saturating_mul(n as u64),
        }
    }

    /// How many times `each` fits in `self`; `u64::MAX` when `each` is zero.
    #[must_use]
    pub fn times(self, each: Resources) -> u64 {
        let by = |have: u64, want: u64| have.checked_div(want).unwrap_or(u64::MAX);
        by(self.cpu_milli, each.cpu_milli).min(by(self.memory_bytes, each.memory_bytes))
    }
}

impl Add for Resources {
    type Output = Resources;
    fn add(self, rhs: Resources) -> Resources {
        Resources {
            cpu_milli: self.cpu_milli + rhs.cpu_milli,
            memory_bytes: self.memory_bytes + rhs.memory_bytes,
        }
    }
}

impl AddAssign for Resources {
    fn add_assign(&mut self, rhs: Resources) {
        *self = *self + rhs;
    }
}

impl Sub for Resources {
    type Output = Resources;
    /// Panics in debug builds when `rhs` is larger: a ledger that goes below zero is a bug, not a state.
    fn sub(self, rhs: Resources) -> Resources {
        Resources {
            cpu_milli: self.cpu_milli - rhs.cpu_milli,
            memory_bytes: self.memory_bytes - rhs.memory_bytes,
        }
    }
}

impl SubAssign for Resources {
    fn sub_assign(&mut self, rhs: Resources) {
        *self = *self - rhs;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_is_the_scarcer_dimension() {
        let node = Resources::new(2_000, 1 << 30);
        assert_eq!(node.times(Resources::new(10, 16 << 20)), 64);
        assert_eq!(node.times(Resources::new(500, 1)), 4);
        assert_eq!(node.times(Resources::ZERO), u64::MAX);
        assert!(!node.fits(Resources::new(2_001, 0)));
    }
}
