//! Which creation begins next.
//!
//! One function's surge, or a minimum that is being filled, must not hold up another's cold start:
//!
//! - creations that a request waits for come before those that nobody waits for, but for every
//!   [`UNWAITED_TURN`]th, which goes to the latter: they are late, and never left out;
//! - within each of the two, functions take turns (round-robin, in the order of their numbers), and each function's
//!   creations begin as they were ordered;
//! - so many are under way at once as the limit says, and of those that nobody waits for no more than keep the machine
//!   busy: what is under way already is all that holds a cold start up. Beyond the limit, up to as many again, a
//!   function begins one that has none under way and a request that waits: its cold start does not wait for the slow
//!   starts of others.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use fanfare_types::{FunctionId, SandboxId};

/// Of so many creations that begin while requests wait, one is of those that nobody waits for.
const UNWAITED_TURN: u32 = 8;

/// Creations that have not begun, and those under way.
#[derive(Debug)]
pub(crate) struct Turns {
    limit: usize,
    unwaited_limit: usize,
    waited: Queue,
    unwaited: Queue,
    /// Creations in a row that a request waited for, while others were passed over.
    passed_over: u32,
    /// Whose they are, and whether they began as ones that a request waits for.
    under_way: BTreeMap<SandboxId, (FunctionId, bool)>,
    unwaited_under_way: usize,
    /// How many of them by function; none is 0.
    busy: BTreeMap<FunctionId, usize>,
}

/// By function, in the order of their numbers, which grow with every order.
#[derive(Debug, Default)]
struct Queue {
    functions: BTreeMap<FunctionId, BTreeSet<SandboxId>>,
    /// Whose turn it was.
    last: Option<FunctionId>,
    len: usize,
}

impl Turns {
    /// With so many under way at once, and so many of those that nobody waits for; at least one.
    pub(crate) fn new(limit: usize, unwaited_limit: usize) -> Self {
        Turns {
            limit: limit.max(1),
            unwaited_limit: unwaited_limit.max(1),
            waited: Queue::default(),
            unwaited: Queue::default(),
            passed_over: 0,
            under_way: BTreeMap::new(),
            unwaited_under_way: 0,
            busy: BTreeMap::new(),
        }
    }

    /// How many have not begun.
    pub(crate) fn waiting(&self) -> usize {
        self.waited.len + self.unwaited.len
    }

    /// Has a creation wait for its turn.
    pub(crate) fn push(&mut self, sandbox: SandboxId, function: FunctionId, waited: bool) {
        let queue = if waited { &mut self.waited } else { &mut self.unwaited };
        queue.push(sandbox, function);
    }

    /// A request waits by now for one that has not begun.
    pub(crate) fn hasten(&mut self, sandbox: SandboxId, function: FunctionId) {
        if self.unwaited.remove(sandbox, function) {
            self.waited.push(sandbox, function);
        }
    }

    /// One that has not begun is not wanted any more.
    pub(crate) fn cancel(&mut self, sandbox: SandboxId, function: FunctionId) {
        let _in_one_of_them =
            self.waited.remove(sandbox, function) || self.unwaited.remove(sandbox, function);
    }

    /// The creation that begins now, if one may; it is under way until [`Turns::ended`].
    pub(crate) fn next(&mut self) -> Option<SandboxId> {
        let (sandbox, function, waited) = self.choose()?;
        self.under_way.insert(sandbox, (function, waited));
        self.unwaited_under_way += usize::from(!waited);
        *self.busy.entry(function).or_default() += 1;
        Some(sandbox)
    }

    fn choose(&mut self) -> Option<(SandboxId, FunctionId, bool)> {
        let waited = |(sandbox, function)| (sandbox, function, true);
        if self.under_way.len() >= self.limit {
            let beyond = self.under_way.len() < self.limit.saturating_mul(2);
            let busy = &self.busy;
            return self.waited.pop(|function| beyond && !busy.contains_key(&function)).map(waited);
        }
        let others = self.unwaited.len > 0 && self.unwaited_under_way < self.unwaited_limit;
        let whose_turn = !others || self.passed_over + 1 < UNWAITED_TURN;
        if let Some(next) = self.waited.pop(|_| whose_turn) {
            self.passed_over += u32::from(others);
            return Some(waited(next));
        }
        if !others {
            return None;
        }
        self.passed_over = 0;
        self.unwaited.pop(|_| true).map(|(sandbox, function)| (sandbox, function, false))
    }

    /// A creation is not under way any more.
    pub(crate) fn ended(&mut self, sandbox: SandboxId) {
        let Some((function, waited)) = self.under_way.remove(&sandbox) else { return };
        self.unwaited_under_way -= usize::from(!waited);
        if let Some(count) = self.busy.get_mut(&function) {
            *count -= 1;
            if *count == 0 {
                self.busy.remove(&function);
            }
        }
    }

    /// Nothing begins any more.
    pub(crate) fn close(&mut self) {
        self.limit = 0;
    }
}

impl Queue {
    fn push(&mut self, sandbox: SandboxId, function: FunctionId) {
        self.len += usize::from(self.functions.entry(function).or_default().insert(sandbox));
    }

    fn remove(&mut self, sandbox: SandboxId, function: FunctionId) -> bool {
        let Some(sandboxes) = self.functions.get_mut(&function) else { return false };
        let was_there = sandboxes.remove(&sandbox);
        if sandboxes.is_empty() {
            self.functions.remove(&function);
        }
        self.len -= usize::from(was_there);
        was_there
    }

    /// The first of the function whose turn it is, of those that may.
    fn pop(&mut self, may: impl Fn(FunctionId) -> bool) -> Option<(SandboxId, FunctionId)> {
        let after = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let up_to = self.last.map_or(Bound::Unbounded, Bound::Included);
        let turns = self.functions.range((after, Bound::Unbounded));
        let again = self.functions.range((Bound::Unbounded, up_to));
        let function = turns.chain(again).map(|(function, _)| *function).find(|function| may(*function))?;
        let sandbox = *self.functions.get(&function)?.first()?;
        self.last = Some(function);
        self.remove(sandbox, function);
        Some((sandbox, function))
    }
}

#[cfg(test)]
mod tests;
