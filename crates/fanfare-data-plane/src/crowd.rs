//! How many connections clients may have, and which one makes way for a new one.
//!
//! A connection takes a descriptor, and the process has so many: whoever opens connections and says nothing must not
//! keep out those who do, nor the control API, the streams to nodes and the sockets to sandboxes.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use rustix::process::{Resource, getrlimit};
use tokio::sync::Notify;

use crate::activity::Activity;

/// Descriptors that connections of clients leave to everything else: at least so many, and a quarter of those that the
/// process may have; but never more than half of them.
const RESERVE: u64 = 1_024;
/// Connections that are looked at for one that makes way.
const LOOKS_MAX: usize = 64;

/// How many there may be where the process may have so many `descriptors`, and its options say `most`.
fn room(descriptors: Option<u64>, most: usize) -> usize {
    let Some(descriptors) = descriptors else { return most };
    let reserve = (descriptors / 4).max(RESERVE.min(descriptors / 2));
    usize::try_from(descriptors - reserve).map_or(most, |room| room.min(most))
}

/// How many there may be in this process.
pub(crate) fn connections_max(most: usize) -> usize {
    room(getrlimit(Resource::Nofile).current, most)
}

/// The connections of one core, those first that were looked at longest ago.
#[derive(Default)]
pub(crate) struct Crowd {
    members: RefCell<BTreeMap<u64, Rc<Seat>>>,
    next: Cell<u64>,
}

/// What is known of a connection.
struct Seat {
    place: Cell<u64>,
    activity: Rc<Activity>,
    /// What it had done when it was looked at.
    seen: Cell<u64>,
    leave: Notify,
}

/// A connection's place in the crowd, until it is dropped.
pub(crate) struct Member {
    crowd: Rc<Crowd>,
    seat: Rc<Seat>,
}

impl Crowd {
    pub(crate) fn join(self: &Rc<Self>, activity: Rc<Activity>) -> Member {
        let seat = Rc::new(Seat { place: Cell::new(0), seen: Cell::new(0), activity, leave: Notify::new() });
        self.seat(seat.clone());
        Member { crowd: self.clone(), seat }
    }

    fn seat(&self, seat: Rc<Seat>) {
        let place = self.next.get();
        self.next.set(place + 1);
        seat.place.set(place);
        self.members.borrow_mut().insert(place, seat);
    }

    /// Has one leave that has been of no use for long, if there is one: the next that has no request and has had none
    /// since it was looked at last (the clock algorithm; the exact order would cost every request).
    pub(crate) fn make_room(&self) -> bool {
        // None is looked at twice: what has just had a request may not have its answer yet.
        let looks = self.members.borrow().len().min(LOOKS_MAX);
        for _ in 0..looks {
            let Some((_, seat)) = self.members.borrow_mut().pop_first() else { return false };
            let done = seat.activity.done();
            if seat.activity.is_at_rest() && seat.seen.replace(done) == done {
                seat.leave.notify_one();
                return true;
            }
            self.seat(seat);
        }
        false
    }
}

impl Member {
    /// Resolves when the connection should make way.
    pub(crate) async fn asked_to_leave(&self) {
        self.seat.leave.notified().await;
    }

    /// Whether it has had no request since it was looked at last. One may have come between the word that it should
    /// make way and the moment it heard that.
    pub(crate) fn is_of_no_use(&self) -> bool {
        self.seat.activity.done() == self.seat.seen.get()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.crowd.members.borrow_mut().remove(&self.seat.place.get());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_the_descriptors_is_left_to_others() {
        let cases = [
            (Some(300), 65_536, 150),
            (Some(1_024), 65_536, 512),
            (Some(4_096), 65_536, 3_072),
            (Some(20_000), 65_536, 15_000),
            (Some(1 << 20), 65_536, 65_536),
            (Some(1 << 20), 10, 10),
            (None, 65_536, 65_536),
        ];
        for (descriptors, most, expected) in cases {
            assert_eq!(room(descriptors, most), expected, "{descriptors:?} {most}");
        }
    }

    #[tokio::test]
    async fn the_one_that_has_rested_longest_makes_way() {
        let crowd = Rc::new(Crowd::default());
        assert!(!crowd.make_room(), "there is none");
        let activities: Vec<Rc<Activity>> = (0..4).map(|_| Rc::default()).collect();
        let members: Vec<Member> = activities.iter().map(|activity| crowd.join(activity.clone())).collect();
        // The first works, and the second has had a request.
        let under_way = activities[0].begin();
        drop(activities[1].begin());
        for leaves in [2, 3, 1] {
            assert!(crowd.make_room());
            members[leaves].asked_to_leave().await;
            assert!(members[leaves].is_of_no_use());
        }
        assert!(!crowd.make_room(), "one that works stays");
        drop(under_way);
        assert_eq!([crowd.make_room(), crowd.make_room()], [false, true], "it has just had a request");
        members[0].asked_to_leave().await;
        drop(members);
        assert!(crowd.members.borrow().is_empty());
    }

    #[tokio::test]
    async fn a_request_that_comes_before_its_connection_makes_way_is_seen() {
        for is_over in [false, true] {
            let crowd = Rc::new(Crowd::default());
            let activity = Rc::new(Activity::default());
            let member = crowd.join(activity.clone());
            assert!(crowd.make_room());
            let request = Some(activity.begin()).filter(|_| !is_over);
            member.asked_to_leave().await;
            assert!(!member.is_of_no_use(), "over: {is_over}");
            drop(request);
            assert!(!member.is_of_no_use(), "its answer may not be sent yet");
        }
    }
}
