//! The thread that keeps the calls: one session after another, each from what the log holds.

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use fanfare_store::{Store, StoreError};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::door::Ask;
use super::log::{self, Loaded, Log, LogError};
use super::options::AsyncOptions;
use super::session::Session;
use crate::core::Core;

/// Pauses before a log that failed is read again; doubles to the maximum.
const RELOAD_MIN: Duration = Duration::from_millis(100);
const RELOAD_MAX: Duration = Duration::from_secs(10);

/// Keeps the calls of one data plane.
///
/// If the log fails, what was decided and is not written is forgotten: attempts are ended, questions are answered
/// `unavailable`, and everything goes on from the log, as after a crash.
pub(crate) struct Keeper {
    options: AsyncOptions,
    asks: mpsc::Receiver<Ask>,
    store: Arc<dyn Store>,
    opened: Option<(Log, Loaded)>,
}

impl Keeper {
    /// Opens the log. Blocks while it is verified and read.
    ///
    /// # Errors
    /// [`LogError`]; the log is as it was then.
    pub(crate) fn open(options: AsyncOptions, asks: mpsc::Receiver<Ask>) -> Result<Self, LogError> {
        let directory = options.directory.clone();
        // A thread of its own: the caller's may be one that runs an event loop.
        let opening = std::thread::spawn(move || open_log(&directory));
        let broke_off = |_| Err(LogError::Corrupt("reading it broke off".to_owned()));
        let (store, opened) = opening.join().unwrap_or_else(broke_off)?;
        Ok(Keeper { options, asks, store, opened: Some(opened) })
    }

    /// The same when the process that has the log open lets go of it; whoever asks meanwhile is told that there is no
    /// answer. `None`: told to stop before.
    pub(crate) async fn open_when_free(
        options: AsyncOptions,
        mut asks: mpsc::Receiver<Ask>,
        shutdown: &CancellationToken,
    ) -> Option<Self> {
        let mut pause = RELOAD_MIN;
        loop {
            let directory = options.directory.clone();
            let opened = tokio::task::spawn_blocking(move || open_log(&directory)).await;
            match opened {
                Ok(Ok((store, opened))) => {
                    return Some(Keeper { options, asks, store, opened: Some(opened) });
                }
                Ok(Err(LogError::Store(StoreError::InUse { .. }))) => {}
                Ok(Err(error)) => {
                    tracing::error!(%error, "the log of asynchronous invocations cannot be opened");
                    pause = (pause * 2).min(RELOAD_MAX);
                }
                Err(error) => tracing::error!(%error, "opening the log broke off"),
            }
            if refuse_for(&mut asks, pause, shutdown).await {
                return None;
            }
        }
    }

    /// Runs until `shutdown`, and then until what is under way has ended or its time is over.
    pub(crate) async fn run(mut self, core: Rc<Core>, shutdown: CancellationToken) {
        let mut pause = RELOAD_MIN;
        loop {
            let opened = match self.opened.take() {
                Some(opened) => Ok(opened),
                None => Log::load(self.store.clone()).await,
            };
            let failed = match opened {
                Ok((log, loaded)) => {
                    pause = RELOAD_MIN;
                    let session = Session::begin(&core, &self.options, &self.store, log, loaded);
                    match session.run(&mut self.asks, &shutdown).await {
                        Ok(()) => break,
                        Err(error) => LogError::from(error),
                    }
                }
                Err(error) => error,
            };
            tracing::error!(error = %failed, ?pause, "the log of asynchronous invocations failed; reading it again");
            if refuse_for(&mut self.asks, pause, &shutdown).await {
                break;
            }
            pause = (pause * 2).min(RELOAD_MAX);
        }
        self.asks.close();
        self.store.close().await;
    }
}

/// Lets a time pass; whoever asks meanwhile is told that there is no answer. Whether it is to stop.
async fn refuse_for(asks: &mut mpsc::Receiver<Ask>, pause: Duration, shutdown: &CancellationToken) -> bool {
    let over = tokio::time::sleep(pause);
    tokio::pin!(over);
    loop {
        tokio::select! {
            () = &mut over => return false,
            () = shutdown.cancelled() => return true,
            ask = asks.recv() => drop(ask),
        }
    }
}

/// A store, and the log in it.
type Opened = (Arc<dyn Store>, (Log, Loaded));

/// Opens and reads a log; blocks meanwhile, and must not run on an event loop.
fn open_log(directory: &Path) -> Result<Opened, LogError> {
    let store = log::open(directory)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| LogError::Corrupt(format!("it cannot be read: {error}")))?;
    let opened = runtime.block_on(Log::load(store.clone()));
    if opened.is_err() {
        runtime.block_on(store.close());
    }
    opened.map(|opened| (store, opened))
}

/// When a log is opened.
pub(crate) enum Opening {
    Now(Keeper),
    /// When the process that has it open lets go of it.
    WhenFree(AsyncOptions, mpsc::Receiver<Ask>),
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::sync::atomic::{AtomicBool, Ordering};

    use bytes::Bytes;
    use fanfare_async::{Accepted, Delivery, Offer, Settings};
    use fanfare_store::{Committed, Entry, MemoryStore, Page, Scan, StoreError, Txn};
    use fanfare_types::{DataPlaneId, FunctionId, FunctionName};
    use futures_util::future::BoxFuture;
    use tokio::task::LocalSet;

    use crate::asynchronous::Door;
    use crate::options::Options;
    use crate::shared::Shared;

    /// A disk that is full at times.
    #[derive(Debug)]
    struct Full {
        inner: MemoryStore,
        full: AtomicBool,
    }

    impl Store for Full {
        fn commit(&self, txn: Txn) -> BoxFuture<'static, Result<Committed, StoreError>> {
            if self.full.load(Ordering::Relaxed) {
                return Box::pin(std::future::ready(Err(StoreError::Closed)));
            }
            self.inner.commit(txn)
        }

        fn get(&self, key: String) -> BoxFuture<'static, Result<Option<Entry>, StoreError>> {
            self.inner.get(key)
        }

        fn scan(&self, scan: Scan) -> BoxFuture<'static, Result<Page, StoreError>> {
            self.inner.scan(scan)
        }

        fn close(&self) -> BoxFuture<'static, ()> {
            self.inner.close()
        }
    }

    fn offer(nonce: u64) -> Offer {
        Offer {
            data_plane: DataPlaneId(1),
            nonce,
            function: FunctionId(1),
            name: FunctionName::new("f").unwrap(),
            settings: Settings {
                delivery: Delivery::AtLeastOnce,
                attempts_max: 3,
                age_max: Duration::from_secs(60),
                callback: None,
                request_id: None,
            },
            key: None,
            payload_bytes: 3,
        }
    }

    async fn take(door: &Door, nonce: u64) -> Option<fanfare_async::InvocationId> {
        let (offer, payload, room) =
            (offer(nonce), Bytes::from_static(b"abc"), door.room_of_known(3).unwrap());
        let answer = door.ask(|tell| Ask::Offer { offer, payload, room, tell }).await.ok()?;
        match answer.unwrap() {
            Accepted::New(id) | Accepted::Known(id) => Some(id),
        }
    }

    #[tokio::test]
    async fn what_cannot_be_written_is_not_accepted_and_everything_else_goes_on() {
        let store = Arc::new(Full { inner: MemoryStore::new(), full: AtomicBool::new(false) });
        let options = AsyncOptions::new("/nowhere".into());
        let (door, asks) = Door::new(options.clone());
        let keeper = Keeper { options, asks, store: store.clone(), opened: None };
        let shutdown = CancellationToken::new();
        let stop = shutdown.clone();
        LocalSet::new()
            .run_until(async move {
                let core = Rc::new(Core::enter(0, Arc::new(Shared::new(Options::default(), None))));
                let kept = tokio::task::spawn_local(keeper.run(core, stop));
                let first = take(&door, 1).await.expect("it is durable");
                store.full.store(true, Ordering::Relaxed);
                assert!(take(&door, 2).await.is_none(), "nothing is promised that is not on disk");
                store.full.store(false, Ordering::Relaxed);
                let patience = async {
                    loop {
                        if let Some(id) = take(&door, 3).await {
                            return id;
                        }
                    }
                };
                let third =
                    tokio::time::timeout(Duration::from_secs(20), patience).await.expect("it goes on");
                assert_eq!(third.sequence, 2, "the one that was refused left nothing");
                for id in [first, third] {
                    assert!(door.ask(|tell| Ask::Look { id, tell }).await.unwrap().is_some());
                }
                shutdown.cancel();
                tokio::time::timeout(Duration::from_secs(20), kept).await.expect("it ends").unwrap();
            })
            .await;
    }
}
