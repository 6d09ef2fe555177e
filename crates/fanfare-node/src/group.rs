//! Many node daemons in one process, each with a link of its own, for nodes that are emulated.
//!
//! What one machine has once, the group has once: the lock on its directories, the log and its writer thread. Its
//! first daemon speaks for all of them where each would say the same. The group opens few links at a time, so that a
//! control plane that comes (back) is not met by thousands at once, and says less often that it lives.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fanfare_link::Dialer;
use fanfare_sandbox::{CodeStore, Outlets};
use fanfare_types::limits::LIVENESS_TIMEOUT;
use fanfare_types::{CodeDigest, StartFailure, StartFailureKind};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::{Semaphore, mpsc, watch};

use crate::daemon::{Company, Daemon, Event, Parts};
use crate::node::{Kept, Runtimes, blocking, lock};
use crate::{GroupOptions, Handle, Node, StartError, failure};

/// Links that a group opens at once, and log transfers without a line.
const DIALS_MAX: usize = 32;
/// Longest silence of an idle daemon of a group. It leaves a word most of what would be its loss to be late, and comes
/// before the control plane's ping would ask.
const HEARTBEAT_INTERVAL: Duration =
    LIVENESS_TIMEOUT.checked_div(8).expect("8 is not zero").saturating_mul(3);
/// Silence of the control plane after which a daemon of a group asks whether it lives.
const PING_AFTER: Duration = Duration::from_secs(5);

impl Node {
    /// Starts a group of daemons that serve until `shutdown`, and then end every sandbox.
    ///
    /// # Errors
    /// [`StartError`], and then none of them runs. That the control plane cannot be reached is none: they go on trying.
    pub async fn start_group(
        options: GroupOptions,
        dialer: Dialer,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> Result<Handle, StartError> {
        let lock = lock(&options.run_dir)?;
        let (data_dir, log_limits) = (options.data_dir.clone(), options.logs);
        let kept = blocking(&options.data_dir, move || Kept::open(&data_dir, log_limits)).await?;
        let Kept { logs, marks, mut marked } = kept;
        let (welcomed_tx, welcomed) = watch::channel(0);
        let dialer = dialer.ping_after(PING_AFTER);
        let dials = Arc::new(Semaphore::new(DIALS_MAX));
        let mut daemons = Vec::with_capacity(options.count);
        let mut all_runtimes = Vec::with_capacity(options.count);
        for index in 0..options.count {
            let (events, events_rx) = mpsc::unbounded_channel();
            let exits = events.clone();
            let outlets = Outlets {
                // Nobody listens any more only after the daemon has ended.
                exits: Arc::new(move |exit| drop(exits.send(Event::Exit(exit)))),
                logs: logs.sink(),
                code: Arc::new(NoCode),
            };
            let runtimes = Runtimes((options.runtimes)(outlets).await.map_err(StartError::Runtimes)?);
            let recovered = runtimes.recover().await;
            all_runtimes.extend(runtimes.0.iter().cloned());
            let mut daemon = Daemon::new(Parts {
                name: format!("{}-{index}", options.name).into(),
                capacity: options.capacity,
                creations_max: options.creations_max,
                heartbeat_interval: HEARTBEAT_INTERVAL,
                runtimes,
                dialer: dialer.clone(),
                logs: logs.clone(),
                marks: marks.clone(),
                events,
                company: Company {
                    speaks: index == 0,
                    dials: dials.clone(),
                    welcomed: welcomed_tx.clone(),
                    phase: index as f64 / options.count as f64,
                },
            });
            daemon.adopt(recovered, std::mem::take(&mut marked));
            daemons.push((daemon, events_rx));
        }
        let shutdown = shutdown.boxed().shared();
        let run = |(daemon, events): (Daemon, _)| tokio::spawn(daemon.run(events, shutdown.clone()));
        let tasks = daemons.into_iter().map(run).collect();
        Ok(Handle { tasks, logs, runtimes: Runtimes(all_runtimes), welcomed, _lock: lock })
    }
}

/// Runtimes of a group run no code.
struct NoCode;

impl CodeStore for NoCode {
    fn directory(&self, code: CodeDigest) -> BoxFuture<'static, Result<PathBuf, StartFailure>> {
        let detail = format!("an emulated node keeps no code, and was asked for {code}");
        std::future::ready(Err(failure(StartFailureKind::Code, detail))).boxed()
    }
}
