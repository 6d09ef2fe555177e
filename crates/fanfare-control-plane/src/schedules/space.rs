//! The room that schedules have.

/// Bytes of schedules, as they are stored.
#[derive(Debug)]
pub(super) struct Space {
    limit: usize,
    /// Of those that are kept.
    kept: usize,
    /// What they take more once the changes are made that are being written.
    pub(super) growing: usize,
}

impl Space {
    pub(super) fn new(kept: usize, limit: usize) -> Self {
        Space { limit, kept, growing: 0 }
    }

    /// Whether schedules may take so many bytes more. One that does not grow can always be changed.
    pub(super) fn has(&self, growth: usize) -> bool {
        growth == 0 || self.kept.saturating_add(self.growing).saturating_add(growth) <= self.limit
    }

    /// One that took `before` bytes takes `after`.
    pub(super) fn replace(&mut self, before: usize, after: usize) {
        self.kept = self.kept.saturating_sub(before) + after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_is_replaced_takes_what_it_grows_by() {
        let mut space = Space::new(90, 100);
        assert!(space.has(10) && !space.has(11));
        // Of 80 bytes one of 90 is made: what it takes already is not counted again.
        space.growing += 10;
        assert!(!space.has(1) && space.has(0), "what is being written has its room");
        space.growing -= 10;
        space.replace(80, 90);
        assert!(!space.has(1) && space.has(0), "full, and what does not grow is taken");
        space.replace(90, 0);
        assert!(space.has(90) && !space.has(91));
        let over = Space::new(200, 100);
        assert!(over.has(0) && !over.has(1), "of an earlier limit");
    }
}
