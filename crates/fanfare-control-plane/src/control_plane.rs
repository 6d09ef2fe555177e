//! Putting the parts together, and taking them apart.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use fanfare_engine::EngineConfig;
use fanfare_link::Hub;
use fanfare_store::Store;
use fanfare_types::{Epoch, limits};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::api::{self, App};
use crate::blobs::Blobs;
use crate::clock::Clock;
use crate::deliveries::Deliveries;
use crate::engine_loop;
use crate::entrusting::Entrusting;
use crate::hub::{ControlHub, SharedHub};
use crate::images::Images;
use crate::limits::{API_BACKLOG, ENGINE_QUEUE_MAX};
use crate::proofs::{self, Proofs};
use crate::registry::Registry;
use crate::schedules::{Book, Surroundings};
use crate::transfers::Transfers;
use crate::vault::Vault;
use crate::webhooks::Webhooks;
use crate::{ControlPlaneError, Options, leader};

/// The control plane.
#[derive(Debug)]
pub struct ControlPlane;

/// A control plane that runs, until its token is cancelled or this is dropped.
#[derive(Debug)]
pub struct Handle {
    api_address: SocketAddr,
    link_address: Option<SocketAddr>,
    epoch: Epoch,
    hub: SharedHub,
    store: Arc<dyn Store>,
    shutdown: CancellationToken,
    engine_ended: oneshot::Receiver<()>,
    deposed: oneshot::Receiver<ControlPlaneError>,
    tasks: JoinSet<Result<(), ControlPlaneError>>,
}

impl ControlPlane {
    /// Becomes the leader, reads what is kept, and begins to serve. Everything ends when `shutdown` is cancelled.
    ///
    /// # Errors
    /// [`ControlPlaneError`]: nothing runs then.
    pub async fn start(
        options: Options,
        store: Arc<dyn Store>,
        shutdown: CancellationToken,
    ) -> Result<Handle, ControlPlaneError> {
        let api_listener = listen_with_backlog(options.api_address)?;
        let link_listener = match options.link_address {
            Some(address) => Some(listen(address).await?),
            None => None,
        };
        let api_address = local_address(&api_listener, options.api_address)?;
        let link_address = match (&link_listener, options.link_address) {
            (Some(listener), Some(address)) => Some(local_address(listener, address)?),
            _ => None,
        };
        let blob_directory = options.data_dir.join("blobs");
        let blobs = Blobs::open(&blob_directory, limits::CODE_BYTES_MAX)
            .map_err(|source| ControlPlaneError::DataDirectory { path: blob_directory, source })?;

        let images = match &options.dirigent {
            Some(images) => Some(Arc::new(Images::load(images, &blobs).await?)),
            None => None,
        };

        let shutdown = shutdown.child_token();
        let clock = Clock::start();
        // Before anything is written: a store whose secrets cannot be opened stays as it is.
        let vault = Vault::open(options.secrets_key.clone(), &*store).await?;
        let term = leader::take(&*store, &options.name).await?;
        let epoch = term.epoch;
        let (engine, inputs) = mpsc::channel(ENGINE_QUEUE_MAX);
        let (deposed_tx, deposed) = oneshot::channel();
        let registry =
            Registry::start(store.clone(), term.clone(), vault, engine.clone(), deposed_tx).await?;
        let (connected, data_planes) = watch::channel(Vec::new());
        let opened = Webhooks::open(store.clone(), term.clone(), registry.clone(), engine.clone()).await?;
        let (webhooks, webhooks_keeper, webhooks_kept) = opened;
        let surroundings = Surroundings {
            store: store.clone(),
            term,
            registry: registry.clone(),
            engine: engine.clone(),
            data_planes,
            clock,
        };
        let (schedules, keeper) = Book::open(surroundings).await?;
        let config = EngineConfig {
            placement: options.placement,
            known_data_planes: registry.data_planes(),
            known_nodes: registry.nodes().into_iter().map(|(_, id)| id).collect(),
            ..EngineConfig::new(epoch)
        };
        let kept = engine_loop::Kept {
            functions: registry.all(),
            units: registry.units(),
            traffic: registry.traffic(),
            failed: registry.failed(),
            webhooks: webhooks_kept,
            secrets: registry.secret_reader(),
        };
        let deliveries = Deliveries::new(registry.secret_reader(), registry.given());
        let (proofs, found) = Proofs::new();
        let shells = (deliveries, Entrusting::new(connected), proofs);
        let engine_ended = engine_loop::start(config, kept, clock, shells, inputs, shutdown.clone())?;
        let hub = SharedHub(Arc::new(ControlHub {
            epoch,
            registry: registry.clone(),
            engine: engine.clone(),
            blobs: blobs.clone(),
            transfers: Transfers::default(),
            clock,
            runtime: tokio::runtime::Handle::current(),
            streams: AtomicU64::new(1),
        }));

        let mut tasks = JoinSet::new();
        if let Some(listener) = link_listener {
            let (hub, stop) = (Arc::new(hub.clone()), shutdown.clone());
            tasks.spawn(async move {
                let served = fanfare_link::serve(listener, hub, stop.cancelled_owned()).await;
                served.map_err(|error| ControlPlaneError::Link(error.to_string()))
            });
        }
        tasks.spawn(keeper.run(shutdown.clone()));
        tasks.spawn(webhooks_keeper.run(shutdown.clone()));
        tasks.spawn(proofs::run(found, registry.clone(), shutdown.clone()));
        let used = (registry.clone(), images.clone());
        tasks.spawn(collect_blobs(blobs, used, options.clone(), shutdown.clone()));
        if !api_address.ip().is_loopback() {
            tracing::warn!(%api_address, "the control API is open to the network: anyone there may do anything");
        }
        if let Some(link_address) = link_address.filter(|address| !address.ip().is_loopback()) {
            tracing::warn!(%link_address, "any machine that reaches this address may join as a node");
        }
        let app = App::new(
            &options,
            &hub,
            (schedules, webhooks),
            (api_address, link_address),
            images,
            shutdown.clone(),
        );
        tasks.spawn(api::serve(api_listener, app, shutdown.clone()));
        tracing::info!(%epoch, functions = registry.len(), %api_address, ?link_address, "control plane leads");
        Ok(Handle { api_address, link_address, epoch, hub, store, shutdown, engine_ended, deposed, tasks })
    }
}

impl Handle {
    /// Where the control API listens.
    #[must_use]
    pub fn api_address(&self) -> SocketAddr {
        self.api_address
    }

    /// Where nodes and data planes connect, if over the network.
    #[must_use]
    pub fn link_address(&self) -> Option<SocketAddr> {
        self.link_address
    }

    /// The term that began.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Where nodes and data planes of this process connect.
    #[must_use]
    pub fn hub(&self) -> Arc<dyn Hub> {
        Arc::new(self.hub.clone())
    }

    /// Resolves when everything has ended: after the token was cancelled, or by itself when a part failed. The store
    /// is closed then.
    ///
    /// # Errors
    /// Why it ended, unless it was asked to.
    pub async fn wait(mut self) -> Result<(), ControlPlaneError> {
        let result = tokio::select! {
            biased;
            () = self.shutdown.cancelled() => Ok(()),
            Ok(error) = &mut self.deposed => Err(error),
            _ = &mut self.engine_ended => Err(ControlPlaneError::EngineStopped),
            Some(ended) = self.tasks.join_next() => match ended {
                Ok(result) => result,
                Err(panicked) => Err(ControlPlaneError::Link(panicked.to_string())),
            },
        };
        self.shutdown.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "a task of the control plane failed");
            }
        }
        // Resolved already when the engine ended first; awaiting it again is an error that says the same.
        if !self.engine_ended.is_terminated() {
            let _ = (&mut self.engine_ended).await;
        }
        self.store.close().await;
        result
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

async fn listen(address: SocketAddr) -> Result<TcpListener, ControlPlaneError> {
    TcpListener::bind(address).await.map_err(|source| ControlPlaneError::Listen { address, source })
}

/// The same for many who come at once.
fn listen_with_backlog(address: SocketAddr) -> Result<TcpListener, ControlPlaneError> {
    let listen = || {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(API_BACKLOG)
    };
    listen().map_err(|source| ControlPlaneError::Listen { address, source })
}

fn local_address(listener: &TcpListener, address: SocketAddr) -> Result<SocketAddr, ControlPlaneError> {
    listener.local_addr().map_err(|source| ControlPlaneError::Listen { address, source })
}

async fn collect_blobs(
    blobs: Blobs,
    (registry, images): (Registry, Option<Arc<Images>>),
    options: Options,
    shutdown: CancellationToken,
) -> Result<(), ControlPlaneError> {
    let mut every = tokio::time::interval(options.blob_collect_interval);
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            _ = every.tick() => {}
        }
        let mut in_use = registry.code_in_use();
        in_use.extend(images.iter().flat_map(|images| images.code()));
        let removed = blobs.collect(in_use, options.blob_grace).await;
        if !removed.is_empty() {
            tracing::info!(blobs = removed.len(), "removed code that no function refers to");
        }
    }
}
