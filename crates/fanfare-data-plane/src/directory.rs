//! All functions, and who holds which sandbox.

use std::collections::HashMap;
use std::sync::Arc;

use fanfare_types::{FunctionId, FunctionName, SandboxId};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::function::Function;

/// What requests look functions up in, from every core, without a lock.
#[derive(Default)]
pub(crate) struct Directory {
    by_name: papaya::HashMap<FunctionName, Arc<Function>>,
    /// Those that are reached only through another.
    units: Mutex<HashMap<FunctionId, Arc<Function>>>,
    /// Whose sandbox it is, from its first grant until nothing is held of it.
    sandboxes: Mutex<HashMap<SandboxId, Arc<Function>>>,
    /// Functions with load to report.
    active: Mutex<Vec<Arc<Function>>>,
    /// Functions whose demand is to be told soon.
    demanding: Mutex<Vec<Arc<Function>>>,
    /// The first of those is there.
    pub(crate) demand: Notify,
}

impl Directory {
    pub(crate) fn find(&self, name: &str) -> Option<Arc<Function>> {
        self.by_name.pin().get(name).cloned()
    }

    pub(crate) fn insert(&self, function: Arc<Function>) {
        self.by_name.pin().insert(function.name.clone(), function);
    }

    /// Keeps one that is reached only through another.
    pub(crate) fn insert_unit(&self, unit: Arc<Function>) {
        self.units.lock().insert(unit.id, unit);
    }

    /// Takes a function out, unless its name is another's by now.
    pub(crate) fn remove(&self, function: &Function) {
        self.units.lock().remove(&function.id);
        let _ = self.by_name.pin().remove_if(&function.name, |_, found| found.id == function.id);
    }

    /// Every function, and every unit of one.
    pub(crate) fn functions(&self) -> Vec<Arc<Function>> {
        let mut functions: Vec<_> = self.by_name.pin().values().cloned().collect();
        functions.extend(self.units.lock().values().cloned());
        functions
    }

    pub(crate) fn sandbox_of(&self, sandbox: SandboxId) -> Option<Arc<Function>> {
        self.sandboxes.lock().get(&sandbox).cloned()
    }

    pub(crate) fn add_sandbox(&self, sandbox: SandboxId, function: &Arc<Function>) {
        self.sandboxes.lock().insert(sandbox, function.clone());
    }

    pub(crate) fn forget_sandbox(&self, sandbox: SandboxId) {
        self.sandboxes.lock().remove(&sandbox);
    }

    /// The function has load to report from now on.
    pub(crate) fn activate(&self, function: Arc<Function>) {
        self.active.lock().push(function);
    }

    pub(crate) fn take_active(&self) -> Vec<Arc<Function>> {
        std::mem::take(&mut *self.active.lock())
    }

    /// The function's demand is to be told soon.
    pub(crate) fn demand_later(&self, function: Arc<Function>) {
        let mut demanding = self.demanding.lock();
        demanding.push(function);
        if demanding.len() == 1 {
            self.demand.notify_one();
        }
    }

    pub(crate) fn take_demanding(&self) -> Vec<Arc<Function>> {
        std::mem::take(&mut *self.demanding.lock())
    }

    /// Puts back those that stay active.
    pub(crate) fn keep_active(&self, functions: Vec<Arc<Function>>) {
        self.active.lock().extend(functions);
    }
}
