//! What is remembered of requests that have ended, for whoever asks why one went as it did.
//!
//! Each core keeps its own two rings under a lock that only a question ever contends for: one for the requests worth
//! asking about, one for the many that got a slot at once. Nothing is kept of what client or function said.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use fanfare_dispatch::Why;
use fanfare_types::limits::{
    FAILURE_DETAIL_BYTES_MAX, REQUEST_SLOW, REQUESTS_EXPLAINED_MAX, REQUESTS_REMEMBERED_MAX,
    REQUESTS_REMEMBERED_WARM_MAX,
};
use fanfare_types::{
    Balance, FunctionId, NodeId, Reason, RequestEnd, RequestRecord, SandboxId, SlotRecord, Stages, Timestamp,
};
use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::metrics::Meter;
use crate::trace::Trace;

/// Characters of an id that need no memory of their own: a UUID's.
const ID_INLINE: usize = 36;

/// One request, while it is under way and after.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) id: SmallVec<[u8; ID_INLINE]>,
    /// The asynchronous invocation that it is an attempt of.
    pub(crate) invocation: Option<Box<[u8]>>,
    pub(crate) accepted: Timestamp,
    pub(crate) function: Option<FunctionId>,
    /// Requests that waited, and that were in sandboxes, as it arrived.
    pub(crate) ahead: u32,
    pub(crate) in_flight: u32,
    pub(crate) balance: Balance,
    pub(crate) attempts: u32,
    pub(crate) slot: Option<Given>,
    /// The head of its answer was there.
    pub(crate) answered: Option<Timestamp>,
    pub(crate) ended: Timestamp,
    pub(crate) end: RequestEnd,
    pub(crate) status: u16,
    pub(crate) reason: Option<Reason>,
    pub(crate) detail: Option<Box<str>>,
    /// Its place in a trace that is exported.
    pub(crate) trace: Option<Box<Trace>>,
}

/// The slot that a request was given.
#[derive(Clone, Debug)]
pub(crate) struct Given {
    pub(crate) sandbox: SandboxId,
    pub(crate) node: NodeId,
    pub(crate) revision: u32,
    pub(crate) why: Why,
    pub(crate) at: Timestamp,
    pub(crate) stages: Option<Box<Stages>>,
}

impl Entry {
    /// A request that has just arrived.
    pub(crate) fn new(id: &[u8], accepted: Timestamp) -> Self {
        Entry {
            id: SmallVec::from_slice(id),
            invocation: None,
            accepted,
            function: None,
            ahead: 0,
            in_flight: 0,
            balance: Balance::default(),
            attempts: 0,
            slot: None,
            answered: None,
            ended: accepted,
            end: RequestEnd::ClientLeft,
            status: 0,
            reason: None,
            detail: None,
            trace: None,
        }
    }

    /// Why it did not end well.
    pub(crate) fn blame(&mut self, reason: Reason, detail: &str) {
        self.reason = Some(reason);
        self.detail = Some(detail[..detail.floor_char_boundary(FAILURE_DETAIL_BYTES_MAX)].into());
    }

    /// It got a slot at once and its answer soon: there are many like it.
    fn is_ordinary(&self) -> bool {
        self.end == RequestEnd::Answered
            && self.reason.is_none()
            && self.slot.as_ref().is_some_and(|slot| slot.why == Why::Warm)
            && self.attempts <= 1
            && self.ended.since(self.accepted) < REQUEST_SLOW
    }

    fn record(&self, now: Timestamp, name: impl Fn(FunctionId) -> Option<Arc<str>>) -> RequestRecord {
        let after = |at: Timestamp| at.since(self.accepted);
        RequestRecord {
            request_id: String::from_utf8_lossy(&self.id).into(),
            age: now.since(self.accepted),
            function: self.function,
            name: self.function.and_then(name).unwrap_or_else(|| Arc::from("")),
            ahead: self.ahead,
            in_flight: self.in_flight,
            balance: self.balance,
            attempts: self.attempts,
            slot: self.slot.as_ref().map(|given| SlotRecord {
                sandbox: given.sandbox,
                node: given.node,
                revision: given.revision,
                why: given.why,
                after: after(given.at),
                stages: given.stages.as_deref().copied(),
            }),
            answered_after: self.answered.map(after),
            ended_after: after(self.ended),
            end: self.end,
            status: self.status,
            reason: self.reason,
            detail: self.detail.as_deref().unwrap_or_default().into(),
        }
    }
}

/// All cores' rings.
pub(crate) struct Records(Box<[Rings]>);

/// One core's. On cache lines of its own: other cores write theirs all the time.
#[repr(align(128))]
struct Rings(Mutex<Kept>);

struct Kept {
    meter: Meter,
    notable: Ring,
    ordinary: Ring,
}

struct Ring {
    entries: VecDeque<Entry>,
    limit: usize,
}

impl Ring {
    fn new(limit: usize) -> Self {
        Ring { entries: VecDeque::new(), limit: limit.max(1) }
    }

    fn push(&mut self, entry: Entry) {
        if self.entries.len() >= self.limit {
            self.entries.pop_front();
        }
        self.entries.push_back(entry);
    }
}

impl Records {
    /// For so many cores, which share what may be remembered.
    pub(crate) fn new(cores: usize) -> Self {
        let cores = cores.max(1);
        let rings = || {
            Rings(Mutex::new(Kept {
                meter: Meter::default(),
                notable: Ring::new(REQUESTS_REMEMBERED_MAX / cores),
                ordinary: Ring::new(REQUESTS_REMEMBERED_WARM_MAX / cores),
            }))
        };
        Records(std::iter::repeat_with(rings).take(cores).collect())
    }

    /// Remembers a request that has ended.
    pub(crate) fn push(&self, core: usize, entry: Entry) {
        let Some(rings) = self.0.get(core) else { return };
        let mut kept = rings.0.lock();
        kept.meter.count(&entry);
        match entry.is_ordinary() {
            true => kept.ordinary.push(entry),
            false => kept.notable.push(entry),
        }
    }

    /// What is remembered of requests with this id, or of attempts of the invocation with this id, the latest first.
    pub(crate) fn find(
        &self,
        id: &str,
        now: Timestamp,
        name: impl Fn(FunctionId) -> Option<Arc<str>>,
    ) -> Vec<RequestRecord> {
        let mut found: Vec<Entry> = Vec::new();
        for rings in &self.0 {
            let kept = rings.0.lock();
            for ring in [&kept.notable, &kept.ordinary] {
                let is = |entry: &&Entry| {
                    entry.id[..] == *id.as_bytes() || entry.invocation.as_deref() == Some(id.as_bytes())
                };
                let same = ring.entries.iter().rev().filter(is);
                found.extend(same.take(REQUESTS_EXPLAINED_MAX).cloned());
            }
        }
        found.sort_by_key(|entry| std::cmp::Reverse(entry.accepted));
        found.truncate(REQUESTS_EXPLAINED_MAX);
        found.iter().map(|entry| entry.record(now, &name)).collect()
    }

    /// What all cores have counted.
    pub(crate) fn meter(&self) -> Meter {
        let mut sum = Meter::default();
        self.0.iter().for_each(|rings| sum.add(&rings.0.lock().meter));
        sum
    }

    /// How long ago the oldest of them arrived that are certainly all remembered; `None` when nothing has made way yet.
    pub(crate) fn reach(&self, now: Timestamp) -> Option<Duration> {
        let oldest = |ring: &Ring| {
            let full = ring.entries.len() >= ring.limit;
            ring.entries.front().filter(|_| full).map(|entry| now.since(entry.ended))
        };
        let of = |rings: &Rings| {
            let kept = rings.0.lock();
            [oldest(&kept.notable), oldest(&kept.ordinary)].into_iter().flatten().min()
        };
        self.0.iter().filter_map(of).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn warm(id: &str, accepted: u64) -> Entry {
        let given = Given {
            sandbox: SandboxId(1),
            node: NodeId(1),
            revision: 1,
            why: Why::Warm,
            at: at(accepted),
            stages: None,
        };
        Entry {
            slot: Some(given),
            attempts: 1,
            end: RequestEnd::Answered,
            status: 200,
            ended: at(accepted + 1),
            ..Entry::new(id.as_bytes(), at(accepted))
        }
    }

    fn refused(id: &str, accepted: u64) -> Entry {
        let mut entry = Entry { end: RequestEnd::Refused, ..Entry::new(id.as_bytes(), at(accepted)) };
        entry.blame(Reason::QueueFull, "full");
        entry
    }

    #[test]
    fn many_ordinary_requests_push_out_no_notable_one_and_both_rings_are_bounded() {
        let records = Records::new(2);
        records.push(0, refused("bad", 1));
        for n in 0..2 * REQUESTS_REMEMBERED_WARM_MAX as u64 {
            records.push((n % 2) as usize, warm(&format!("r{n}"), n));
        }
        let find = |id: &str| records.find(id, at(1_000_000), |_| None).len();
        assert_eq!((find("bad"), find("r0"), find("r16383"), find("nobody")), (1, 0, 1, 0));
        let kept: usize = records.0.iter().map(|r| r.0.lock().ordinary.entries.len()).sum();
        assert_eq!(kept, REQUESTS_REMEMBERED_WARM_MAX);
        assert!(records.reach(at(1_000_000)).is_some());
        for n in 0..3 * REQUESTS_REMEMBERED_MAX as u64 {
            records.push(0, refused(&format!("b{n}"), n));
        }
        assert_eq!(records.0[0].0.lock().notable.entries.len(), REQUESTS_REMEMBERED_MAX / 2);
        assert_eq!(find("bad"), 0);
    }

    #[test]
    fn requests_of_one_id_are_told_latest_first_and_within_their_limit() {
        let records = Records::new(3);
        for n in 0..40 {
            records.push((n % 3) as usize, if n % 2 == 0 { warm("same", n) } else { refused("same", n) });
        }
        let found = records.find("same", at(100), |_| None);
        assert_eq!(found.len(), REQUESTS_EXPLAINED_MAX);
        let ages: Vec<_> = found.iter().map(|record| record.age.as_millis()).collect();
        assert_eq!(ages, (61..77).collect::<Vec<_>>());
        assert_eq!(found[0].reason, Some(Reason::QueueFull));
    }

    #[test]
    fn an_attempt_is_found_by_its_invocation_too() {
        let records = Records::new(1);
        for (id, invocation) in
            [("r1", Some("d1-1")), ("r1", Some("d1-2")), ("d1-3", Some("d1-3")), ("r2", None)]
        {
            let invocation = invocation.map(|id: &str| id.as_bytes().into());
            records.push(0, Entry { invocation, ..warm(id, 1) });
        }
        let find = |id: &str| records.find(id, at(9), |_| None).len();
        assert_eq!(["r1", "d1-1", "d1-2", "d1-3", "r2", "d1"].map(find), [2, 1, 1, 1, 1, 0]);
    }

    #[test]
    fn what_is_slow_waited_or_was_tried_twice_is_notable() {
        let ordinary = warm("a", 0);
        assert!(ordinary.is_ordinary());
        let slow = Entry { ended: at(5_000), ..ordinary.clone() };
        let twice = Entry { attempts: 2, ..ordinary.clone() };
        let left = Entry { end: RequestEnd::ClientLeft, ..ordinary.clone() };
        let mut cold = ordinary;
        cold.slot.as_mut().unwrap().why = Why::Cold;
        assert!([slow, twice, left, cold].iter().all(|entry| !entry.is_ordinary()));
    }

    #[test]
    fn an_entry_is_small() {
        // 16,384 of them are a few MiB.
        assert!(size_of::<Entry>() <= 256, "{}", size_of::<Entry>());
    }
}
