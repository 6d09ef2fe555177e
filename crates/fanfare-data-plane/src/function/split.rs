//! How a function's requests are shared among its revisions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fanfare_policy::{Rng, choose_share};
use fanfare_types::{FunctionId, Tag};
use parking_lot::RwLock;

use super::Function;

/// Where requests go; `None` is the function itself.
pub(crate) struct Split {
    /// Of requests that name no tag, in per cent.
    pub(crate) shares: Vec<(Option<Arc<Function>>, u32)>,
    /// Of requests that name one.
    pub(crate) tags: Vec<(Tag, Option<Arc<Function>>)>,
}

/// A function's split, if it has one. Most have none, and pay a look at a flag.
#[derive(Default)]
pub(super) struct Splitting {
    on: AtomicBool,
    split: RwLock<Option<Arc<Split>>>,
}

impl Splitting {
    fn get(&self) -> Option<Arc<Split>> {
        // The flag is set before a control plane is told that the split holds here, and nothing else depends on it.
        if self.on.load(Ordering::Relaxed) { self.split.read().clone() } else { None }
    }
}

impl Function {
    /// Requests are shared so from now on.
    pub(crate) fn set_split(&self, split: Option<Split>) {
        let on = split.is_some();
        *self.splitting.split.write() = split.map(Arc::new);
        self.splitting.on.store(on, Ordering::Relaxed);
    }

    /// The unit that serves a request which names no tag: chosen once per request.
    pub(crate) fn choose(self: &Arc<Self>, generator: &mut Rng) -> Arc<Function> {
        let Some(split) = self.splitting.get() else { return self.clone() };
        let chosen = choose_share(split.shares.iter().map(|(_, percent)| *percent), generator);
        let unit = chosen.and_then(|index| split.shares.get(index)).and_then(|(unit, _)| unit.clone());
        unit.unwrap_or_else(|| self.clone())
    }

    /// The unit of a tag.
    pub(crate) fn tagged(self: &Arc<Self>, tag: &str) -> Option<Arc<Function>> {
        let split = self.splitting.get()?;
        let (_, unit) = split.tags.iter().find(|(known, _)| known.as_str() == tag)?;
        Some(unit.clone().unwrap_or_else(|| self.clone()))
    }

    /// The unit of this id, if requests of this function may go to it.
    pub(crate) fn unit(self: &Arc<Self>, id: FunctionId) -> Option<Arc<Function>> {
        if id == self.id {
            return Some(self.clone());
        }
        let split = self.splitting.get()?;
        let shares = split.shares.iter().map(|(unit, _)| unit);
        let mut units = shares.chain(split.tags.iter().map(|(_, unit)| unit)).flatten();
        units.find(|unit| unit.id == id).cloned()
    }
}
