//! Starting and stopping.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::thread;

use fanfare_link::Dialer;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, LocalOptions, LocalRuntime, Runtime};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::asynchronous::{Door, Keeper, LogError, Opening};
use crate::control::{Control, Ends};
use crate::core::Core;
use crate::handover::{self, Inheritance, Predecessor};
use crate::listener;
use crate::metrics_server;
use crate::options::Options;
use crate::shared::Shared;
use crate::stats::Stats;
use crate::tls::{Tls, TlsError};
use crate::trace::{self, Tracer};

/// Why a data plane did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Its address cannot be listened on.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        error: io::Error,
    },
    /// The log of asynchronous invocations cannot be used. It was left as it is.
    #[error(transparent)]
    Log(#[from] LogError),
    /// Its certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A thread or its event loop could not be made.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

/// A data plane: accepts requests, queues them, sends them to sandboxes, and tells the control plane about it.
#[derive(Debug)]
pub struct DataPlane;

impl DataPlane {
    /// Starts one. It listens when this returns, and drains and stops when `shutdown` is cancelled.
    ///
    /// # Errors
    /// [`StartError`]; nothing is left running then.
    pub fn start(
        options: Options,
        dialer: Dialer,
        shutdown: CancellationToken,
    ) -> Result<Handle, StartError> {
        DataPlane::start_on(Sockets::Own, options, dialer, shutdown)
    }

    /// The same with sockets that are there already. Where they are a predecessor's, connections are accepted as soon
    /// as everything has been heard from the control plane; if the predecessor does not give way then, it stops.
    ///
    /// # Errors
    /// [`StartError`]; nothing is left running then.
    pub fn start_on(
        sockets: Sockets,
        options: Options,
        dialer: Dialer,
        shutdown: CancellationToken,
    ) -> Result<Handle, StartError> {
        let tls = options.tls.clone().map(Tls::load).transpose()?.map(Arc::new);
        let threads = options.thread_count();
        let listen = options.listen;
        let failed = |error| StartError::Listen { address: listen, error };
        let (listeners, predecessor) = match sockets {
            Sockets::Own => (listener::bind(listen, threads).map_err(failed)?, None),
            Sockets::Given(listeners) => (listener::share(listeners, threads).map_err(failed)?, None),
            Sockets::Inherited(inheritance) => {
                let (listeners, predecessor) = inheritance.into_parts();
                (listener::share(listeners, threads).map_err(failed)?, Some(predecessor))
            }
        };
        let address = listeners[0].local_addr().map_err(failed)?;
        let turn = CancellationToken::new();
        if predecessor.is_none() {
            turn.cancel();
        }
        let offered = match &options.handover {
            Some(_) => listeners.iter().map(std::net::TcpListener::try_clone).collect::<Result<_, _>>(),
            None => Ok(Vec::new()),
        };
        let offered: Vec<_> = offered.map_err(failed)?;
        let end = shutdown.clone();
        let advertised = options.address.clone().unwrap_or_else(|| address.to_string().into());
        let metrics = options.metrics.map(|address| {
            metrics_server::bind(address).map_err(|error| StartError::Listen { address, error })
        });
        let metrics = metrics.transpose()?;
        let (door, keeper) = match options.asynchronous.clone() {
            Some(mut kept) => {
                let shown = metrics.as_ref().and_then(|metrics| metrics.local_addr().ok());
                kept.own_addresses.extend([address].into_iter().chain(shown));
                let (door, asks) = Door::new(kept.clone());
                // The predecessor's log is its own until it has ended.
                let opening = match predecessor {
                    None => Opening::Now(Keeper::open(kept, asks)?),
                    Some(_) => Opening::WhenFree(kept, asks),
                };
                (Some(door), Some(opening))
            }
            None => (None, None),
        };
        let traced = options.tracing.clone();
        let mut shared = Shared::new(options, door);
        let exporter = traced.map(|traced| {
            let (tracer, spans) = Tracer::new(&traced);
            shared.tracer = Some(tracer);
            (traced.endpoint, spans)
        });
        shared.tls = tls.clone();
        let shared = Arc::new(shared);
        // Whatever fails from here on ends what has begun.
        let abort = CancellationToken::new();
        let stop = shutdown.child_token();
        let guard = stop.clone().drop_guard();
        let ends = Ends { drain: shutdown, drained: CancellationToken::new() };
        let last = Arc::new(LastCore { _drained: ends.drained.clone().drop_guard() });
        for (index, listener) in listeners.into_iter().enumerate() {
            let (shared, stop, last, turn) = (shared.clone(), stop.clone(), last.clone(), turn.clone());
            spawn_local(format!("dataplane-{index}"), move |runtime| {
                serve(runtime, index, shared, listener, turn, stop);
                drop(last);
            })?;
        }
        if let Some(keeper) = keeper {
            let (shared, last) = (shared.clone(), last.clone());
            spawn_local("dataplane-async".to_owned(), move |runtime| {
                keep(runtime, threads, shared, keeper, stop);
                drop(last);
            })?;
        }
        drop(last);
        let runtime = runtime().map_err(StartError::Thread)?;
        let control = Control::new(shared.clone(), dialer, advertised);
        let stopped = abort.clone().drop_guard();
        let watched = shared.clone();
        let succession = Succession { shared: shared.clone(), predecessor, offered, turn, end };
        spawn("dataplane-link".to_owned(), move || {
            runtime.spawn(succession.run());
            if let Some(listener) = metrics {
                runtime.spawn(metrics_server::serve(watched.clone(), listener));
            }
            if let Some(tls) = tls {
                runtime.spawn(tls.watch());
            }
            if let Some((endpoint, spans)) = exporter {
                runtime.spawn(trace::run(watched, endpoint, spans));
            }
            runtime.block_on(control.run(ends));
            drop(stopped);
        })?;
        guard.disarm();
        Ok(Handle { address, shared, stopped: abort })
    }
}

/// Where a data plane accepts connections.
#[derive(Debug)]
pub enum Sockets {
    /// On sockets that it makes itself, at [`Options::listen`].
    Own,
    /// On sockets that someone made for it: a service manager.
    Given(Vec<std::net::TcpListener>),
    /// On those of the data plane that it replaces.
    Inherited(Inheritance),
}

/// Who accepted before, and who may after.
struct Succession {
    shared: Arc<Shared>,
    predecessor: Option<Predecessor>,
    offered: Vec<std::net::TcpListener>,
    turn: CancellationToken,
    end: CancellationToken,
}

impl Succession {
    async fn run(self) {
        let Succession { shared, predecessor, offered, turn, end } = self;
        if let Some(predecessor) = predecessor {
            let mut synced = shared.synced.subscribe();
            tokio::select! {
                _ = synced.wait_for(|synced| *synced) => {}
                () = end.cancelled() => return,
            }
            if let Err(error) = predecessor.turn().await {
                tracing::error!(%error, "the data plane that is to be replaced does not give way; stopping");
                return end.cancel();
            }
            tracing::info!("took over from the data plane that was here");
            turn.cancel();
        }
        if let Some(path) = &shared.options.handover
            && let Err(error) = handover::offer(&shared, path, &offered, &end).await
        {
            tracing::warn!(%error, path = %path.display(), "no successor can take over the listening sockets");
        }
    }
}

/// Cancels its token when the last core has finished, in whatever way.
struct LastCore {
    _drained: DropGuard,
}

fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

fn spawn(name: String, body: impl FnOnce() + Send + 'static) -> Result<(), StartError> {
    thread::Builder::new().name(name).spawn(body).map(drop).map_err(StartError::Thread)
}

/// The same for tasks that stay on their thread, which their runtime must be made on.
fn spawn_local(name: String, body: impl FnOnce(LocalRuntime) + Send + 'static) -> Result<(), StartError> {
    let (made, whether_made) = mpsc::sync_channel(1);
    spawn(name, move || {
        match Builder::new_current_thread().enable_all().build_local(LocalOptions::default()) {
            Ok(runtime) => {
                // Whoever started this thread waits for it.
                let _ = made.send(Ok(()));
                body(runtime);
            }
            Err(error) => {
                let _ = made.send(Err(error));
            }
        }
    })?;
    let ended = |_| io::Error::other("the thread ended at once");
    whether_made.recv().map_err(ended).flatten().map_err(StartError::Thread)
}

fn serve(
    runtime: LocalRuntime,
    index: usize,
    shared: Arc<Shared>,
    listener: std::net::TcpListener,
    turn: CancellationToken,
    shutdown: CancellationToken,
) {
    let core = Rc::new(Core::enter(index, shared));
    runtime.block_on(async move {
        match TcpListener::from_std(listener) {
            Ok(listener) => listener::run(core, listener, turn, shutdown).await,
            Err(error) => tracing::error!(%error, index, "a core cannot listen"),
        }
    });
    // What is still there is dropped: its slots end as abandoned, while the control stream is still up.
    drop(runtime);
}

fn keep(
    runtime: LocalRuntime,
    index: usize,
    shared: Arc<Shared>,
    opening: Opening,
    shutdown: CancellationToken,
) {
    let core = Rc::new(Core::enter(index, shared));
    runtime.block_on(async move {
        tokio::task::spawn_local(core.deadlines.clone().enforce());
        let keeper = match opening {
            Opening::Now(keeper) => Some(keeper),
            Opening::WhenFree(options, asks) => Keeper::open_when_free(options, asks, &shutdown).await,
        };
        if let Some(keeper) = keeper {
            keeper.run(core, shutdown).await;
        }
    });
    // What is still there is dropped: its slots end as abandoned, while the control stream is still up.
    drop(runtime);
}

/// A running data plane. Dropping it changes nothing; it stops with the token it was started with.
#[derive(Clone)]
pub struct Handle {
    address: SocketAddr,
    shared: Arc<Shared>,
    stopped: CancellationToken,
}

impl Handle {
    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Counters and gauges, merged over all cores.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared.stats()
    }

    /// Everything that is counted, in Prometheus' text format 0.0.4.
    #[must_use]
    pub fn metrics(&self) -> String {
        metrics_server::exposition(&self.shared)
    }

    /// Resolves when everything has been heard from the control plane once.
    pub async fn synced(&self) {
        let mut synced = self.shared.synced.subscribe();
        // The sender lives as long as this handle.
        let _ = synced.wait_for(|synced| *synced).await;
    }

    /// Shows clients from now on the certificate that is in the files now. Without TLS there is nothing to do.
    ///
    /// # Errors
    /// It cannot be used, and the old one stays.
    pub fn reload_certificate(&self) -> Result<(), TlsError> {
        self.shared.tls.as_ref().map_or(Ok(()), |tls| tls.reload())
    }

    /// Whether a successor has taken over.
    #[must_use]
    pub fn handed_over(&self) -> bool {
        self.shared.handed_over.load(Ordering::Relaxed)
    }

    /// Resolves when it has drained, has given back what it held, and its threads end.
    pub async fn stopped(&self) {
        self.stopped.cancelled().await;
    }
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handle").field("address", &self.address).finish_non_exhaustive()
    }
}
