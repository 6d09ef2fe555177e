//! Ending: the first signal asks, the second one insists.

use std::future::Future;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::{Exit, Failure};

/// SIGHUP, where it asks for something. Elsewhere it ends the process, as it does unless told otherwise.
#[derive(Debug)]
pub(crate) struct Hangup(Option<Signal>);

impl Hangup {
    pub(crate) fn listen(wanted: bool) -> Result<Self, Failure> {
        let hangup = wanted.then(|| signal(SignalKind::hangup())).transpose();
        hangup.map(Hangup).map_err(|e| Failure::platform(format!("cannot listen for signals: {e}")))
    }

    /// Resolves with the next one.
    pub(crate) async fn next(&mut self) {
        match &mut self.0 {
            Some(hangup) => drop(hangup.recv().await),
            None => std::future::pending().await,
        }
    }
}

/// SIGINT and SIGTERM of this process, from now on.
#[derive(Debug)]
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    pub(crate) fn listen() -> Result<Self, Failure> {
        let listen =
            |kind| signal(kind).map_err(|e| Failure::platform(format!("cannot listen for signals: {e}")));
        Ok(Signals {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    /// Resolves with the next one.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    /// Runs `work` to its end, unless another signal comes first.
    pub(crate) async fn or_at_once<T>(
        &mut self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        tokio::select! {
            result = work => result,
            () = self.next() => Err(Failure::said(Exit::Platform)),
        }
    }
}
