//! The `process` runtime used as a library: what its creates cost without a platform around them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fanfare_sandbox::{CodeStore, Outlets, Runtime};
use fanfare_sandbox_process::{ProcessOptions, ProcessRuntime};
use fanfare_types::{CodeDigest, RevisionSpec, SandboxId, StartFailure, StopMode};
use futures_util::future::BoxFuture;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::error::{Context, Error, Result};
use crate::wire;

/// Longest wait for one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// A runtime with one revision.
#[derive(Debug)]
pub(crate) struct Direct {
    tokio: tokio::runtime::Runtime,
    runtime: Arc<ProcessRuntime>,
    revision: Arc<RevisionSpec>,
    next: u64,
}

/// What a surge took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Surge {
    /// First order to last sandbox ready.
    pub(crate) ready: Duration,
    /// First order to last answer.
    pub(crate) makespan: Duration,
}

impl Direct {
    /// Starts a runtime with its state in `dir`, and has it prepare `revision`, whose code is in `code`.
    pub(crate) fn start(dir: &Path, code: PathBuf, revision: RevisionSpec) -> Result<Direct> {
        Direct::start_as(ProcessOptions::new(dir.join("r"), dir.join("d")), code, revision)
    }

    /// As [`Direct::start`], with so many network namespaces kept ready.
    pub(crate) fn start_with(
        dir: &Path,
        code: PathBuf,
        revision: RevisionSpec,
        netns_pool: usize,
    ) -> Result<Direct> {
        let options = ProcessOptions { netns_pool, ..ProcessOptions::new(dir.join("r"), dir.join("d")) };
        Direct::start_as(options, code, revision)
    }

    fn start_as(options: ProcessOptions, code: PathBuf, revision: RevisionSpec) -> Result<Direct> {
        let tokio =
            tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start tokio")?;
        let outlets = Outlets { exits: Arc::new(|_| {}), logs: Arc::new(|_| {}), code: Arc::new(Code(code)) };
        let revision = Arc::new(revision);
        let runtime = tokio.block_on(async {
            let runtime =
                ProcessRuntime::start(options, outlets).await.context("start the process runtime")?;
            runtime.recover().await;
            runtime.prepare(revision.clone()).await.map_err(|failure| failed(&failure))?;
            Ok::<_, Error>(runtime)
        })?;
        Ok(Direct { tokio, runtime, revision, next: 0 })
    }

    /// Orders `count` sandboxes, of which at most `creations_max` are being created at once, sends `request` to each as
    /// soon as it is ready, and removes them.
    pub(crate) fn surge(&mut self, count: u64, creations_max: usize, request: &[u8]) -> Result<Surge> {
        let ids: Vec<SandboxId> = (self.next..self.next + count).map(SandboxId).collect();
        self.next += count;
        let request: Arc<[u8]> = request.into();
        self.tokio.block_on(async {
            let begun = Instant::now();
            let mut calls = JoinSet::new();
            let creations = Arc::new(Semaphore::new(creations_max));
            for id in &ids {
                let creations = creations.clone();
                let created = self.runtime.create(*id, self.revision.clone());
                let request = request.clone();
                calls.spawn(async move {
                    let turn = creations.acquire().await.context("a turn")?;
                    let started = created.await.map_err(|failure| failed(&failure))?;
                    drop(turn);
                    let ready = begun.elapsed();
                    let answer = tokio::time::timeout(ANSWER_TIMEOUT, ask(&started.endpoint, &request)).await;
                    answer.context("a sandbox's answer")??;
                    Ok::<_, Error>(ready)
                });
            }
            let mut ready = Duration::ZERO;
            while let Some(joined) = calls.join_next().await {
                ready = ready.max(joined.context("a call")??);
            }
            let makespan = begun.elapsed();
            let mut stops = JoinSet::new();
            for id in ids {
                stops.spawn(self.runtime.stop(id, StopMode::Kill));
            }
            while stops.join_next().await.is_some() {}
            Ok(Surge { ready, makespan })
        })
    }

    /// Ends it.
    pub(crate) fn stop(self) {
        self.tokio.block_on(self.runtime.shutdown());
    }
}

fn failed(failure: &StartFailure) -> Error {
    Error::new(format!("a sandbox did not start: {}\n{}", failure.detail, failure.log_tail))
}

async fn ask(endpoint: &str, request: &[u8]) -> Result<()> {
    let path =
        endpoint.strip_prefix("unix:").ok_or_else(|| Error::new(format!("{endpoint} is no unix socket")))?;
    let mut stream = UnixStream::connect(path).await.context(endpoint)?;
    stream.write_all(request).await.context(endpoint)?;
    let mut buffer = Vec::with_capacity(4096);
    while buffer.len() < ANSWER_BYTES_MAX && stream.read_buf(&mut buffer).await.context(endpoint)? > 0 {
        match wire::parse(&buffer)? {
            Some(frame) if frame.status == 200 => return Ok(()),
            Some(frame) => return Err(Error::new(format!("a sandbox answered {}", frame.status))),
            None => {}
        }
    }
    Err(Error::new(format!("{endpoint} gave no complete answer")))
}

/// Code that is in a directory already.
struct Code(PathBuf);

impl CodeStore for Code {
    fn directory(&self, _: CodeDigest) -> BoxFuture<'static, std::result::Result<PathBuf, StartFailure>> {
        let path = self.0.clone();
        Box::pin(async { Ok(path) })
    }
}
