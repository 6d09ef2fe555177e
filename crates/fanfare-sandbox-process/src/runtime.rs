//! The runtime: the interface's methods, each a thin step to the part that does the work.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use fanfare_sandbox::{LogStream, Orphan, Outlets, Runtime, Started};
use fanfare_types::{
    RevisionId, RevisionSpec, SandboxId, SandboxRecord, SandboxUsage, SecretName, SecretValue, StartFailure,
    StopMode,
};
use futures_util::future::{BoxFuture, FutureExt, join_all};
use parking_lot::Mutex;
use tokio::sync::OnceCell;

use crate::broker::{self, Broker};
use crate::cgroup::Cgroups;
use crate::deps::Store;
use crate::isolation::Isolation;
use crate::launcher::protocol::Config;
use crate::link::{LinkOptions, Links};
use crate::logs::Log;
use crate::options::ProcessOptions;
use crate::recover;
use crate::revision::{Revision, node_failure};
use crate::run_dir;
use crate::sandbox::{self, Purpose};
use crate::shared::Shared;
use crate::shims::Shims;

/// Makes sandboxes from namespaces, cgroups and seccomp.
#[derive(Debug)]
pub struct ProcessRuntime {
    shared: Arc<Shared>,
    isolation: Isolation,
    broker: Arc<Mutex<Option<Broker>>>,
    proofs: AtomicU64,
    ended: Arc<OnceCell<()>>,
}

impl ProcessRuntime {
    /// Takes the run directory over, removes what an earlier incarnation left in it, and starts the launcher.
    /// Call from within a tokio runtime.
    ///
    /// # Errors
    /// The run directory is in use by another runtime or cannot be written, or the launcher cannot work here.
    pub async fn start(options: ProcessOptions, outlets: Outlets) -> io::Result<Arc<Self>> {
        options.check()?;
        let run_dir = options.run_dir.clone();
        let lock = run_dir::lock(&run_dir).await?;
        let (data_dir, swept) = (options.data_dir.clone(), run_dir.clone());
        let root = rustix::process::geteuid().is_root();
        let prepared = tokio::task::spawn_blocking(move || {
            run_dir::note_a_disk(&swept);
            recover::sweep(&swept);
            Store::sweep(&data_dir.join("deps"), &recover::instance(&swept));
            run_dir::make(&swept)?;
            Ok::<_, io::Error>((Shims::install(&data_dir)?, Cgroups::detect(&recover::instance(&swept))))
        });
        let (shims, cgroups) = prepared.await.map_err(io::Error::other)??;
        let config = Config {
            run_dir: run_dir.to_string_lossy().into_owned(),
            user_namespace: !root,
            // An ordinary user's process could not go back to the host's network namespace after making one.
            netns_pool: if root { options.netns_pool } else { 0 },
        };
        let held = lock.try_clone()?;
        let link = LinkOptions { command: options.launcher.clone(), config, lock };
        let (links, powers) = match Links::start(link).await {
            Ok(started) => started,
            Err(error) => {
                // What a launcher would have removed at its end.
                let _ = tokio::task::spawn_blocking(move || recover::sweep(&run_dir)).await;
                drop(held);
                return Err(error);
            }
        };
        let isolation = Isolation::new(root, &cgroups, &powers);
        let shared = Arc::new(Shared::new(options, outlets, root, cgroups, links, shims));
        let sandboxes = Arc::downgrade(&shared);
        let lookup: broker::Lookup = Arc::new(move |id| {
            sandboxes.upgrade().and_then(|s| s.sandboxes.lock().get(&id).map(|handle| handle.sockets.clone()))
        });
        let broker = Arc::new(Mutex::new(Some(Broker::start(&shared.broker_path(), lookup.clone())?)));
        tokio::spawn(broker::keep(
            Arc::downgrade(&broker),
            shared.broker_path(),
            lookup,
            shared.links.watch(),
        ));
        Ok(Arc::new(ProcessRuntime {
            shared,
            isolation,
            broker,
            proofs: AtomicU64::new(0),
            ended: Arc::default(),
        }))
    }

    /// What is enforced here, and what is not and why.
    #[must_use]
    pub fn isolation(&self) -> &Isolation {
        &self.isolation
    }
}

impl Runtime for ProcessRuntime {
    fn name(&self) -> &'static str {
        "process"
    }

    fn prepare(&self, revision: Arc<RevisionSpec>) -> BoxFuture<'static, Result<(), StartFailure>> {
        // Counted down from the top, where no epoch reaches.
        let id = SandboxId(u64::MAX - self.proofs.fetch_add(1, Ordering::Relaxed));
        let shared = self.shared.clone();
        Box::pin(async move {
            shared.open()?;
            let revision = shared.revision(revision)?;
            // Apart from the proof, whose time does not include installing dependencies.
            crate::prepare::prepared(&shared, &revision, Instant::now()).await?;
            say_what_is_not_limited(&shared, &revision);
            let answer = sandbox::begin(&shared, id, revision, Purpose::Prove)?;
            let result = answer.await.map_err(|e| node_failure("supervisor", e))?;
            stop(&shared, id, StopMode::Kill).await;
            result.map(|_| ())
        })
    }

    fn secrets(&self, revision: RevisionId, values: Vec<(SecretName, SecretValue)>) {
        self.shared.take_secrets(revision, values);
    }

    fn create(
        &self,
        sandbox: SandboxId,
        revision: Arc<RevisionSpec>,
    ) -> BoxFuture<'static, Result<Started, StartFailure>> {
        let shared = self.shared.clone();
        Box::pin(async move {
            shared.open()?;
            let revision = shared.revision(revision)?;
            let answer = sandbox::begin(&shared, sandbox, revision, Purpose::Serve)?;
            answer.await.map_err(|e| node_failure("supervisor", e))?
        })
    }

    fn stop(&self, sandbox: SandboxId, mode: StopMode) -> BoxFuture<'static, ()> {
        let shared = self.shared.clone();
        Box::pin(async move { stop(&shared, sandbox, mode).await })
    }

    fn forget(&self, revision: RevisionId) -> BoxFuture<'static, ()> {
        let shared = self.shared.clone();
        Box::pin(async move {
            let Some(taken) = shared.take_revision(revision) else { return };
            let living: Vec<_> = {
                let sandboxes = shared.sandboxes.lock();
                sandboxes.values().filter(|h| h.revision == revision).map(|h| h.gone.clone()).collect()
            };
            // A task of its own: what was taken out of the table must be released even if nobody waits for it.
            let released = tokio::spawn(async move {
                join_all(living.into_iter().map(gone)).await;
                release(&shared, &taken).await;
            });
            let _ = released.await;
        })
    }

    fn recover(&self) -> BoxFuture<'static, Vec<SandboxRecord>> {
        // `start` has removed everything before the launcher was there; nothing is adopted.
        Box::pin(async { Vec::new() })
    }

    fn audit(&self) -> BoxFuture<'static, Vec<Orphan>> {
        let shared = self.shared.clone();
        Box::pin(async move {
            let look = move || {
                let run_dir = &shared.options.run_dir;
                let first = recover::orphans(run_dir, &shared.owners())?;
                if first.is_empty() {
                    return Ok(first);
                }
                // What was being made or removed during the first look is not there, or owned, in the second.
                let second: BTreeSet<_> =
                    recover::orphans(run_dir, &shared.owners())?.into_iter().map(|o| o.what).collect();
                Ok::<_, io::Error>(first.into_iter().filter(|o| second.contains(&o.what)).collect())
            };
            match tokio::task::spawn_blocking(look).await {
                Ok(Ok(orphans)) => orphans,
                Ok(Err(error)) => {
                    vec![Orphan { kind: "file", what: format!("the run directory cannot be read: {error}") }]
                }
                Err(error) => vec![Orphan { kind: "file", what: format!("the audit failed: {error}") }],
            }
        })
    }

    fn usage(&self) -> Vec<SandboxUsage> {
        let meters: Vec<_> = {
            let sandboxes = self.shared.sandboxes.lock();
            sandboxes.iter().map(|(id, handle)| (*id, handle.usage.clone())).collect()
        };
        let read = |(sandbox, meter): (SandboxId, Arc<Mutex<crate::shared::UsageMeter>>)| {
            let cgroup = meter.lock().cgroup.clone()?;
            let (now, used) = (Instant::now(), cgroup.cpu_time()?);
            let (before, used_before) = meter.lock().last.replace((now, used))?;
            let elapsed = now.duration_since(before).as_secs_f64();
            let cpu_s = used.saturating_sub(used_before).as_secs_f64();
            (elapsed > 0.0).then(|| SandboxUsage { sandbox, cpu_milli: cpu_s / elapsed * 1_000.0 })
        };
        meters.into_iter().filter_map(read).collect()
    }

    fn shutdown(&self) -> BoxFuture<'static, ()> {
        let (shared, ended, broker) = (self.shared.clone(), self.ended.clone(), self.broker.lock().take());
        Box::pin(async move {
            shared.closing.store(true, Ordering::Release);
            let all: Vec<_> = shared.sandboxes.lock().keys().copied().collect();
            join_all(all.into_iter().map(|id| stop(&shared, id, StopMode::Graceful))).await;
            ended
                .get_or_init(|| async {
                    for revision in shared.take_revisions() {
                        release(&shared, &revision).await;
                    }
                    shared.links.close().await;
                    // Its launcher has done so, but cannot take this process out of a delegated cgroup's leaf.
                    let instance = recover::instance(&shared.options.run_dir);
                    let _ = tokio::task::spawn_blocking(move || Cgroups::close(&instance)).await;
                })
                .await;
            drop(broker);
            let _ = std::fs::remove_file(shared.broker_path());
        })
    }
}

/// Whoever deploys where limits cannot be enforced reads it in the function's log.
fn say_what_is_not_limited(shared: &Shared, revision: &Revision) {
    let not = [("memory", "memory"), ("pids", "processes"), ("cpu", "CPU")]
        .into_iter()
        .filter(|(controller, _)| *controller != "cpu" || revision.spec.sizing.limit.cpu_milli > 0)
        .filter_map(|(controller, what)| Some((what, shared.cgroups.why_missing(controller)?)));
    let (what, why): (Vec<_>, Vec<_>) = not.unzip();
    if let Some(why) = why.first() {
        let text = format!("warning: not enforced on this node: the limits on {} ({why})", what.join(", "));
        Log::new(shared.outlets.logs.clone(), revision.spec.id.function, None)
            .line(LogStream::Platform, text);
    }
}

async fn stop(shared: &Shared, sandbox: SandboxId, mode: StopMode) {
    // What this runtime knows has begun: it keeps no queue of creations.
    if mode == StopMode::IfNotBegun {
        return;
    }
    let Some(handle) = shared.sandboxes.lock().get(&sandbox).cloned() else { return };
    handle.stop.send_if_modified(|current| {
        // A kill is never softened.
        let stricter = match (*current, mode) {
            (None, _) | (Some(StopMode::Graceful), StopMode::Kill) => true,
            (Some(_), _) => false,
        };
        if stricter {
            *current = Some(mode);
        }
        stricter
    });
    gone(handle.gone).await;
}

async fn gone(mut gone: tokio::sync::watch::Receiver<bool>) {
    // An error means that the supervisor has ended, too.
    let _ = gone.wait_for(|gone| *gone).await;
}

/// Releases what is kept for a revision that has no sandboxes any more.
async fn release(shared: &Arc<Shared>, revision: &Revision) {
    shared.release_deps(revision.spec.id);
    revision.zygotes.close().boxed().await;
    shared.remove_given(revision).await;
    shared.release_uid(revision);
}
