//! Ending: the first signal asks, the second one insists.

use std::future::Future;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::{Exit, Failure};

/// SIGHUP, where it asks for something else than the end.
#[derive(Debug)]
pub(crate) struct Hangup(Option<Signal>);

impl Hangup {
    pub(crate) fn listen(wanted: bool) -> Result<Self, Failure> {
        wanted.then(|| listen(SignalKind::hangup())).transpose().map(Hangup)
    }

    /// Resolves with the next one.
    pub(crate) async fn next(&mut self) {
        next_of(self.0.as_mut()).await;
    }
}

/// SIGINT, SIGTERM and SIGHUP of this process, from now on.
#[derive(Debug)]
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// A terminal that is closed. Not where SIGHUP asks for something else, nor where it is ignored, as under `nohup`:
    /// there the process is to outlive its terminal.
    hangup: Option<Signal>,
}

impl Signals {
    pub(crate) fn listen() -> Result<Self, Failure> {
        let hangup = (!hangup_is_ignored()).then(|| listen(SignalKind::hangup())).transpose()?;
        Ok(Signals { hangup, ..Signals::but_hangup()? })
    }

    /// Without SIGHUP, which asks for something else.
    pub(crate) fn but_hangup() -> Result<Self, Failure> {
        let (interrupt, terminate) = (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
        Ok(Signals { interrupt, terminate, hangup: None })
    }

    /// Resolves with the next one.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            () = next_of(self.hangup.as_mut()) => {}
        }
    }

    /// Runs `work` to its end, unless another signal comes first. A shell and the kernel may each say that a terminal
    /// is closed: a second SIGHUP does not insist.
    pub(crate) async fn or_at_once<T>(
        &mut self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        tokio::select! {
            result = work => result,
            _ = self.interrupt.recv() => Err(Failure::said(Exit::Platform)),
            _ = self.terminate.recv() => Err(Failure::said(Exit::Platform)),
        }
    }
}

fn listen(kind: SignalKind) -> Result<Signal, Failure> {
    signal(kind).map_err(|e| Failure::platform(format!("cannot listen for signals: {e}")))
}

async fn next_of(signal: Option<&mut Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// Whether whoever started this process had it ignore SIGHUP, as far as the kernel tells.
fn hangup_is_ignored() -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| ignores_hangup(&status))
}

/// `SigIgn` is a mask of ignored signals, of which the lowest bit is signal 1, SIGHUP.
fn ignores_hangup(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nohup_does_is_seen() {
        let cases = [
            ("SigBlk:\t0000000000000001\nSigIgn:\t0000000000001001\n", true),
            ("SigBlk:\t0000000000000001\nSigIgn:\t0000000000001000\n", false),
            ("SigCgt:\t0000000000000001\n", false),
        ];
        for (status, ignored) in cases {
            assert_eq!(ignores_hangup(status), ignored, "{status}");
        }
    }
}
