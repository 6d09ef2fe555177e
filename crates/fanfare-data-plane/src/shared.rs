//! What the cores and the control stream share.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use fanfare_types::{DataPlaneId, Reason};
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use crate::asynchronous::Door;
use crate::crowd;
use crate::directory::Directory;
use crate::failures::Failures;
use crate::options::Options;
use crate::records::Records;
use crate::seldom::Seldom;
use crate::stats::{Stats, count};
use crate::tls::Tls;
use crate::trace::Tracer;
use crate::webhook::Webhooks;

pub(crate) struct Shared {
    pub(crate) options: Options,
    pub(crate) directory: Directory,
    /// Whether everything has been heard from the control plane once.
    pub(crate) synced: watch::Sender<bool>,
    pub(crate) connected: AtomicBool,
    /// Requests held.
    pub(crate) requests: AtomicUsize,
    /// Connections of clients, and how many there may be.
    pub(crate) connections: AtomicUsize,
    pub(crate) connections_max: usize,
    /// Those that were closed because there were too many.
    pub(crate) crowded_out: AtomicU64,
    pub(crate) crowding: Seldom,
    /// The system gave no connection.
    pub(crate) not_accepted: Seldom,
    pub(crate) forwarded: AtomicU64,
    pub(crate) draining: AtomicBool,
    /// A successor accepts connections in its place.
    pub(crate) handed_over: AtomicBool,
    pub(crate) failures: Failures,
    /// The way to the asynchronous invocations, where they are kept.
    pub(crate) door: Option<Door>,
    /// The webhooks that there are.
    pub(crate) webhooks: Webhooks,
    pub(crate) records: Records,
    /// Where requests are traced.
    pub(crate) tracer: Option<Tracer>,
    /// What clients that speak TLS are shown.
    pub(crate) tls: Option<Arc<Tls>>,
    peers: RwLock<Peers>,
    /// Requests answered by the platform that were for no function, by reason.
    problems: Mutex<Vec<(Reason, u64)>>,
}

#[derive(Default)]
struct Peers {
    me: Option<DataPlaneId>,
    addresses: HashMap<DataPlaneId, Arc<str>>,
}

impl Shared {
    /// Whether this data plane takes no new work for long: it drains, or another one has its sockets.
    pub(crate) fn is_leaving(&self) -> bool {
        self.draining.load(Ordering::Relaxed) || self.handed_over.load(Ordering::Relaxed)
    }

    pub(crate) fn new(options: Options, door: Option<Door>) -> Self {
        Shared {
            // One more for asynchronous invocations.
            records: Records::new(options.thread_count() + 1),
            tracer: None,
            tls: None,
            connections_max: crowd::connections_max(options.connections_max),
            options,
            directory: Directory::default(),
            synced: watch::Sender::new(false),
            connected: AtomicBool::new(false),
            requests: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
            crowded_out: AtomicU64::new(0),
            crowding: Seldom::default(),
            not_accepted: Seldom::default(),
            forwarded: AtomicU64::new(0),
            draining: AtomicBool::new(false),
            handed_over: AtomicBool::new(false),
            failures: Failures::default(),
            door,
            webhooks: Webhooks::default(),
            peers: RwLock::default(),
            problems: Mutex::default(),
        }
    }

    pub(crate) fn set_me(&self, me: DataPlaneId) {
        self.peers.write().me = Some(me);
    }

    /// This data plane's number, once it is known.
    pub(crate) fn me(&self) -> Option<DataPlaneId> {
        self.peers.read().me
    }

    /// The other data planes, and where they are.
    pub(crate) fn peers(&self) -> Vec<(DataPlaneId, Arc<str>)> {
        let peers = self.peers.read();
        let others = peers.addresses.iter().filter(|(id, _)| Some(**id) != peers.me);
        others.map(|(id, address)| (*id, address.clone())).collect()
    }

    pub(crate) fn set_peers(&self, peers: Vec<(DataPlaneId, Arc<str>)>) {
        self.peers.write().addresses = peers.into_iter().collect();
    }

    /// Where another data plane is; `None` for this one and for those that are not known to live.
    pub(crate) fn peer(&self, id: DataPlaneId) -> Option<Arc<str>> {
        let peers = self.peers.read();
        if peers.me == Some(id) { None } else { peers.addresses.get(&id).cloned() }
    }

    pub(crate) fn count_problem(&self, reason: Reason) {
        count(&mut self.problems.lock(), reason);
    }

    pub(crate) fn stats(&self) -> Stats {
        let mut functions: Vec<_> = self.directory.functions().iter().map(|f| f.stats()).collect();
        functions.sort_by(|a, b| a.name.cmp(&b.name));
        Stats {
            functions,
            requests: self.requests.load(Ordering::Relaxed),
            connections: self.connections.load(Ordering::Relaxed),
            connections_max: self.connections_max,
            crowded_out: self.crowded_out.load(Ordering::Relaxed),
            problems: self.problems.lock().clone(),
            forwarded: self.forwarded.load(Ordering::Relaxed),
            handshakes_failed: self.tls.as_ref().map_or(0, |tls| tls.failed()),
            synced: *self.synced.borrow(),
            connected: self.connected.load(Ordering::Relaxed),
        }
    }
}

/// Counts one for as long as it lives, if the limit allows.
pub(crate) struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    pub(crate) fn within(counter: &'a AtomicUsize, limit: usize) -> Option<Self> {
        let counted = Counted(counter);
        // Undone by the drop when it is over the limit.
        (counter.fetch_add(1, Ordering::Relaxed) < limit).then_some(counted)
    }

    /// Whatever the limit is: another one ends at once, or with the request that it has begun meanwhile.
    pub(crate) fn in_place_of_another(counter: &'a AtomicUsize) -> Self {
        counter.fetch_add(1, Ordering::Relaxed);
        Counted(counter)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
