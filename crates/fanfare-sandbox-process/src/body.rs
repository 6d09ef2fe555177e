//! What runs in a sandbox: a process of its own, or a child of its revision's zygote.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::cgroup::Cgroup;
use crate::logs::Outputs;
use crate::process::{Event, Process};
use crate::procfs;
use crate::sys::{self, SignalTo};
use crate::zygote::Zygote;

/// How long a zygote's word on a child's status is waited for after the child has ended.
const STATUS_TIMEOUT: Duration = Duration::from_secs(1);

/// The running part of a sandbox.
#[derive(Debug)]
pub(crate) enum Body {
    /// A process with namespaces of its own.
    Own(Process),
    /// A child of a zygote.
    Forked(Forked),
}

/// A child of a zygote, from before it exists.
#[derive(Debug)]
pub(crate) struct Forked {
    zygote: Arc<Zygote>,
    child: Option<Child>,
}

#[derive(Debug)]
struct Child {
    pid: i32,
    pidfd: AsyncFd<OwnedFd>,
    status: Option<oneshot::Receiver<i32>>,
    /// When its end was seen first.
    ended: Option<Instant>,
}

impl Forked {
    /// One that is about to be made.
    pub(crate) fn new(zygote: Arc<Zygote>) -> Self {
        Forked { zygote, child: None }
    }

    /// It exists. `status` gets its wait status from the zygote.
    pub(crate) fn born(
        &mut self,
        pid: i32,
        pidfd: OwnedFd,
        status: oneshot::Receiver<i32>,
    ) -> std::io::Result<()> {
        let pidfd = sys::async_fd(pidfd, Interest::READABLE)?;
        self.child = Some(Child { pid, pidfd, status: Some(status), ended: None });
        Ok(())
    }
}

impl Child {
    /// Ends it and its process group. It is reaped by its zygote whenever that likes, and then its number may be
    /// anybody's.
    fn kill(&self) {
        let group = sys::pidfd_signal(self.pidfd.get_ref(), Some(Signal::KILL), SignalTo::Group);
        let by_number = matches!(group, Err(e) if e.raw_os_error() == Some(libc::EINVAL));
        if let Some(group) = Pid::from_raw(self.pid)
            && by_number
            && procfs::is_there(self.pidfd.get_ref())
        {
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
        }
        self.signal(Signal::KILL);
    }

    fn signal(&self, signal: Signal) {
        let _ = rustix::process::pidfd_send_signal(self.pidfd.get_ref().as_fd(), signal);
    }

    async fn event(&mut self) -> Event {
        let _ = self.pidfd.readable().await;
        if let Some(status) = &mut self.status {
            // From the first time on: whoever waits does other things between, and begins again.
            let ended = *self.ended.get_or_insert_with(Instant::now);
            let known = tokio::time::timeout_at(ended + STATUS_TIMEOUT, status).await;
            self.status = None;
            if let Ok(Ok(status)) = known {
                return Event::Exited(status);
            }
        }
        Event::Ended
    }
}

impl Body {
    /// The zygote that it was forked from.
    pub(crate) fn zygote(&self) -> Option<Arc<Zygote>> {
        match self {
            Body::Own(_) => None,
            Body::Forked(forked) => Some(forked.zygote.clone()),
        }
    }

    /// Waits for the next event. Loses nothing when dropped.
    pub(crate) async fn event(&mut self) -> Event {
        match self {
            Body::Own(process) => process.event().await,
            Body::Forked(Forked { child: Some(child), .. }) => child.event().await,
            Body::Forked(Forked { child: None, .. }) => std::future::pending().await,
        }
    }

    /// Asks it to end.
    pub(crate) fn terminate(&self) {
        match self {
            Body::Own(process) => process.terminate(),
            Body::Forked(Forked { child: Some(child), .. }) => child.signal(Signal::TERM),
            Body::Forked(Forked { child: None, .. }) => {}
        }
    }

    /// Ends it and everything it started.
    pub(crate) fn kill(&self, cgroup: Option<&Cgroup>) {
        match self {
            // The kernel ends the rest of its process namespace.
            Body::Own(process) => process.kill(),
            Body::Forked(Forked { child, .. }) => {
                if let Some(child) = child {
                    child.kill();
                }
                if let Some(cgroup) = cgroup {
                    cgroup.kill();
                }
            }
        }
    }

    /// Asks for a TCP socket of the sandbox's network namespace.
    pub(crate) fn ask_socket(&self, family: i32) {
        if let Body::Own(process) = self {
            process.ask_socket(family);
        }
    }

    /// Kills everything, waits for the end, reads the rest of the output, and releases what it held.
    pub(crate) async fn end(self, cgroup: Option<&Cgroup>, outputs: &mut Outputs) {
        self.kill(cgroup);
        match self {
            Body::Own(process) => process.end(outputs).await,
            Body::Forked(Forked { child, .. }) => {
                if let Some(mut child) = child {
                    child.status = None;
                    child.event().await;
                }
                outputs.drain().await;
            }
        }
    }
}
