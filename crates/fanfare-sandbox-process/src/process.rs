//! One process that the launcher started, as the daemon sees it: a sandbox's program, a zygote, or a build.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{RecvFlags, SendFlags};
use rustix::process::Signal;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::cgroup::Cgroup;
use crate::fdmsg;
use crate::launcher::protocol::{SpawnSpec, Step, Word};
use crate::link::Link;
use crate::logs::Outputs;
use crate::sys;

/// A started process.
#[derive(Debug)]
pub(crate) struct Process {
    pid: i32,
    pidfd: AsyncFd<OwnedFd>,
    control: AsyncFd<OwnedFd>,
    control_open: bool,
}

/// What happens to a process.
#[derive(Debug)]
pub(crate) enum Event {
    /// The filter's notifications can be read here.
    Notifications(OwnedFd),
    /// The program has been executed.
    Running,
    /// Setting up failed.
    SetupFailed { step: Step, errno: i32 },
    /// The program has ended, with this wait status. [`Event::Ended`] follows.
    Exited(i32),
    /// Answer to [`Process::ask_socket`].
    Socket(io::Result<OwnedFd>),
    /// Everything in the sandbox has ended.
    Ended,
}

impl Process {
    /// Has it started. `fds` are the program's, as numbered in `spec.fds`; `spec.cgroup` is filled in here.
    pub(crate) async fn start(
        link: &Link,
        mut spec: SpawnSpec,
        outputs: (OwnedFd, OwnedFd),
        fds: Vec<OwnedFd>,
        cgroup: &Cgroup,
    ) -> io::Result<Self> {
        let (ours, theirs) = fdmsg::pair()?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        let (join, joining) = cgroup.join()?;
        spec.cgroup = join;
        let mut all = vec![theirs, outputs.0, outputs.1];
        all.extend(fds);
        all.extend(joining);
        let control = sys::async_fd(ours, Interest::READABLE)?;
        let (pid, pidfd) = link.spawn(spec, all).await?;
        Ok(Process { pid, pidfd: sys::async_fd(pidfd, Interest::READABLE)?, control, control_open: true })
    }

    /// Its number on the host.
    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// Waits for the next event. What the sandbox said comes before its end. Loses nothing when dropped.
    pub(crate) async fn event(&mut self) -> Event {
        loop {
            if !self.control_open {
                // An error here would mean that the descriptor is no pidfd.
                let _ = self.pidfd.readable().await;
                return Event::Ended;
            }
            let mut buffer = [0; 2 * Word::LEN];
            let receive = |fd: &OwnedFd| fdmsg::receive(fd, &mut buffer, RecvFlags::DONTWAIT);
            let packet = match self.control.async_io(Interest::READABLE, receive).await {
                Ok(packet) if packet.len > 0 => packet,
                _ => {
                    self.control_open = false;
                    continue;
                }
            };
            let mut fds = packet.fds.into_iter();
            match Word::decode(&buffer[..packet.len]) {
                Some(Word::Failed { step, errno }) => return Event::SetupFailed { step, errno },
                Some(Word::Notifications) => {
                    if let Some(fd) = fds.next() {
                        return Event::Notifications(fd);
                    }
                }
                Some(Word::Running) => return Event::Running,
                Some(Word::Exited { status }) => return Event::Exited(status),
                Some(Word::Socket { errno }) => {
                    let socket = fds.next().ok_or_else(|| io::Error::from_raw_os_error(errno));
                    return Event::Socket(socket);
                }
                Some(Word::Terminate | Word::MakeSocket { .. }) | None => {}
            }
        }
    }

    /// Sends SIGTERM to the program and its process group.
    pub(crate) fn terminate(&self) {
        self.say(Word::Terminate);
    }

    /// Asks for a TCP socket of the sandbox's network namespace.
    pub(crate) fn ask_socket(&self, family: i32) {
        self.say(Word::MakeSocket { family });
    }

    fn say(&self, word: Word) {
        // Fails only when the other end is gone, which is an event of its own, or has a full buffer of words that
        // it did not read in seconds; then its answer is missing and the asker's time-out holds.
        let _ = fdmsg::send(self.control.get_ref(), &word.encode(), &[], SendFlags::DONTWAIT);
    }

    /// Kills everything in the sandbox.
    pub(crate) fn kill(&self) {
        let _ = rustix::process::pidfd_send_signal(self.pidfd.get_ref().as_fd(), Signal::KILL);
    }

    /// Kills everything and waits until it has ended and its output has been read.
    pub(crate) async fn end(mut self, outputs: &mut Outputs) {
        self.kill();
        self.control_open = false;
        self.event().await;
        outputs.drain().await;
    }
}
