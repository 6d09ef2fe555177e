//! Memory that ended children have left in what they share with their template: System V segments, files, and
//! descriptors that others still hold. It is charged to the cgroup of the child that made it, which may be removed
//! meanwhile, and then counts against nothing. So such a cgroup is kept, and a template whose ended children have left
//! too much is ended, which frees all of it.

use std::sync::Arc;

use fanfare_sandbox::LogStream;
use parking_lot::Mutex;

use crate::cgroup::Cgroup;
use crate::logs::Log;
use crate::shared::{Owner, Shared};
use crate::zygote::Zygote;

/// What a cgroup may have left without being kept. The kernel's own caches alone are some of this.
const KEPT_MIN_BYTES: u64 = 4 << 20;
/// Cgroups that are kept.
const KEPT_MAX: usize = 64;

/// Cgroups of ended children; `None` once the template has ended.
#[derive(Debug)]
pub(super) struct Leftovers(Mutex<Option<Vec<Leftover>>>);

#[derive(Debug)]
struct Leftover {
    owner: Owner,
    cgroup: Arc<Cgroup>,
    bytes: u64,
}

impl Default for Leftovers {
    fn default() -> Self {
        Leftovers(Mutex::new(Some(Vec::new())))
    }
}

impl Leftovers {
    /// Adds cgroups; gives their number and bytes, or, when the template has ended, the cgroups back.
    fn add(&self, more: Vec<Leftover>) -> Result<(usize, u64), Vec<Leftover>> {
        let mut kept = self.0.lock();
        let Some(kept) = kept.as_mut() else { return Err(more) };
        kept.extend(more);
        Ok((kept.len(), kept.iter().map(|left| left.bytes).sum()))
    }

    /// All of them, to be looked at again.
    fn take(&self) -> Vec<Leftover> {
        self.0.lock().as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Removes everything; the template has ended.
    pub(super) async fn end(&self, shared: &Shared) {
        let left = self.0.lock().take();
        remove(shared, left.unwrap_or_default()).await;
    }
}

async fn remove(shared: &Shared, left: Vec<Leftover>) {
    for left in left {
        shared.unmake(left.owner.name(), &left.cgroup).await;
    }
}

impl Zygote {
    /// Removes the cgroup of a child that has ended, or keeps it while others hold what is charged to it.
    pub(crate) async fn bury(&self, shared: &Arc<Shared>, name: &str, cgroup: Arc<Cgroup>, log: &Log) {
        let mut all = self.leftovers.take();
        all.push(Leftover { owner: shared.own(name), cgroup, bytes: 0 });
        let measured = shared.blocking(move || {
            all.iter_mut().for_each(|left| left.bytes = left.cgroup.pinned_bytes());
            all
        });
        // An error would mean that measuring panicked.
        let all = measured.await.unwrap_or_default();
        let (pinned, free): (Vec<_>, Vec<_>) = all.into_iter().partition(|left| left.bytes >= KEPT_MIN_BYTES);
        match self.leftovers.add(pinned) {
            Ok((count, bytes)) if count > KEPT_MAX || bytes > self.leftover_bytes_max => {
                let text = format!(
                    "the template is ended, and its sandboxes with it: ended ones have {} MiB kept in memory",
                    bytes >> 20
                );
                log.line(LogStream::Platform, text);
                self.stop.notify_one();
            }
            Ok(_) => {}
            Err(pinned) => remove(shared, pinned).await,
        }
        remove(shared, free).await;
    }
}
