//! The launcher's life: set up, then one request at a time.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, UnmountFlags};
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{Resource, Rlimit, WaitOptions};
use rustix::thread::LinkNameSpaceType;

use crate::fdmsg;
use crate::given::GIVEN_DIR;
use crate::launcher::netns::NetnsPool;
use crate::launcher::protocol::{self, Config, PACKET_BYTES_MAX, Powers, Reply, Request};
use crate::launcher::spawn;
use crate::launcher::userns;
use crate::seccomp::Filters;
use crate::sys::{self, SingleThreaded};
use crate::{recover, root};

/// Kinds of mount that a sandbox never needs to copy; the fewer, the faster it starts. Only the launcher's own view
/// changes.
const UNNEEDED_MOUNTS: [&str; 2] = ["/sys", "/dev/pts"];

/// Runs as the launcher until the daemon's socket, which is standard input, ends. A program that uses
/// [`crate::ProcessRuntime`] calls this as the first thing in `main` when its first argument is
/// [`crate::LAUNCHER_ARGUMENT`].
pub fn launcher_main() -> ! {
    let status = match run() {
        Ok(()) => 0,
        Err(error) => {
            // The daemon has been told; this is for the one who starts it by hand.
            let _ = rustix::io::write(rustix::stdio::stderr(), format!("launcher: {error}\n").as_bytes());
            1
        }
    };
    sys::exit_now(status)
}

fn run() -> io::Result<()> {
    let proof = SingleThreaded::check()?;
    let socket = sys::inherited(0)?;
    let mut buffer = vec![0; PACKET_BYTES_MAX];
    let Some((Request::Hello(config), lock)) = protocol::receive(&socket, &mut buffer, RecvFlags::empty())?
    else {
        return Err(io::Error::other("standard input is not a daemon's socket"));
    };
    match Launcher::start(proof, &config) {
        Ok((mut launcher, powers, given)) => {
            protocol::send(&socket, &Reply::Ready(powers), &[given.as_fd()], SendFlags::empty())?;
            drop(given);
            let served = launcher.serve(&socket, &mut buffer);
            launcher.end_all();
            // After an error of its own the daemon lives, and cleans up itself.
            if served.is_ok() {
                launcher.clean_up();
            }
            drop(lock);
            served
        }
        Err(error) => {
            let why = error.to_string();
            protocol::send(&socket, &Reply::Unable { why }, &[], SendFlags::empty())?;
            Err(error)
        }
    }
}

struct Launcher {
    proof: SingleThreaded,
    run_dir: PathBuf,
    root: PathBuf,
    pool: NetnsPool,
    filters: Filters,
    children: OwnedFd,
    /// The mount namespace that the launcher was started in; `None` where it may not go back.
    host_mounts: Option<OwnedFd>,
    /// pidfds of what runs, by pid.
    running: std::collections::BTreeMap<i32, OwnedFd>,
}

impl Launcher {
    fn start(proof: SingleThreaded, config: &Config) -> io::Result<(Self, Powers, OwnedFd)> {
        rustix::process::setsid()?;
        sys::new_session_keyring();
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
        let children = sys::launcher_signals()?;
        // One for each process, as long as it runs.
        let most = rustix::process::getrlimit(Resource::Nofile).maximum;
        rustix::process::setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most })?;
        if config.user_namespace {
            userns::enter(&proof).map_err(|e| userns::forbidden(&e))?;
        }
        drop_bounding_set()?;
        rustix::thread::set_no_new_privs(true)?;
        let host_mounts = match config.user_namespace {
            true => None,
            false => Some(std::fs::File::open("/proc/self/ns/mnt")?.into()),
        };
        let made = sys::unshare(&proof, libc::CLONE_NEWNS);
        made.map_err(|e| if config.user_namespace { userns::forbidden(&e) } else { e })?;
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        rustix::mount::mount_change("/", private)?;
        if !config.user_namespace {
            for path in UNNEEDED_MOUNTS {
                // Not mounted is as good.
                let _ = rustix::mount::unmount(path, UnmountFlags::DETACH);
            }
        }
        let run_dir = PathBuf::from(&config.run_dir);
        let root = run_dir.join("root");
        let powers = root::build(&root)?;
        let given = root::mount_given(&run_dir.join(GIVEN_DIR))?;
        let launcher = Launcher {
            pool: NetnsPool::new(config.netns_pool)?,
            filters: Filters::new(!fdmsg::descriptors_are_refused()),
            proof,
            run_dir,
            root,
            children,
            host_mounts,
            running: std::collections::BTreeMap::new(),
        };
        Ok((launcher, powers, given))
    }

    /// Until the daemon's end of the socket is closed.
    fn serve(&mut self, socket: &OwnedFd, buffer: &mut [u8]) -> io::Result<()> {
        loop {
            let idle = self.pool.pause();
            let mut poll = [PollFd::new(socket, PollFlags::IN), PollFd::new(&self.children, PollFlags::IN)];
            match rustix::event::poll(&mut poll, idle) {
                Ok(0) => {
                    self.pool.add(&self.proof)?;
                    continue;
                }
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(e) => return Err(e.into()),
            }
            let (ready, ended) = (!poll[0].revents().is_empty(), !poll[1].revents().is_empty());
            if ended {
                self.reap();
            }
            if ready {
                match protocol::receive::<Request>(socket, buffer, RecvFlags::empty())? {
                    Some((request, fds)) => match self.handle(socket, request, fds) {
                        // It ended while it waited for this answer.
                        Err(e) if matches!(e.raw_os_error(), Some(libc::EPIPE | libc::ECONNRESET)) => {
                            return Ok(());
                        }
                        other => other?,
                    },
                    None => return Ok(()),
                }
            }
        }
    }

    fn handle(&mut self, socket: &OwnedFd, request: Request, fds: Vec<OwnedFd>) -> io::Result<()> {
        let failed = |seq, step: &str, e: &io::Error| Reply::Failed {
            seq,
            step: format!("{step}: {e}"),
            errno: e.raw_os_error().unwrap_or(0),
        };
        let reply = match request {
            Request::Hello(_) => return Err(io::Error::other("a second greeting")),
            Request::Spawn { seq, spec } => {
                match spawn::spawn(&self.proof, &self.root, &mut self.pool, &self.filters, *spec, fds) {
                    Ok((pid, pidfd)) => {
                        let reply = Reply::Spawned { seq, pid };
                        let sent = protocol::send(socket, &reply, &[pidfd.as_fd()], SendFlags::empty());
                        self.running.insert(pid, pidfd);
                        return sent;
                    }
                    Err((step, e)) => failed(seq, step, &e),
                }
            }
            Request::MakeTmp { seq, bytes, uid } => {
                match bytes.iter().map(|bytes| root::make_tmp(*bytes, uid)).collect::<Result<Vec<_>, _>>() {
                    Ok(made) => {
                        let fds: Vec<_> = made.iter().map(AsFd::as_fd).collect();
                        return protocol::send(socket, &Reply::Made { seq }, &fds, SendFlags::empty());
                    }
                    Err(e) => failed(seq, "making a temporary directory", &e.into()),
                }
            }
        };
        protocol::send(socket, &reply, &[], SendFlags::empty())
    }

    fn reap(&mut self) {
        let mut pending = [0; 128];
        let _ = rustix::io::read(&self.children, &mut pending);
        while let Ok(Some((pid, _))) = rustix::process::wait(WaitOptions::NOHANG) {
            self.running.remove(&pid.as_raw_nonzero().get());
        }
    }

    /// Ends everything that was started.
    fn end_all(&mut self) {
        for pidfd in self.running.values() {
            let _ = rustix::process::pidfd_send_signal(pidfd, rustix::process::Signal::KILL);
        }
        while !self.running.is_empty() {
            match rustix::process::wait(WaitOptions::empty()) {
                Ok(Some((pid, _))) => {
                    self.running.remove(&pid.as_raw_nonzero().get());
                }
                Ok(None) | Err(Errno::INTR) => {}
                Err(_) => break,
            }
        }
    }

    /// Removes what a daemon that is gone has left.
    fn clean_up(&mut self) {
        // The template's mounts end with this namespace; the host's own view has the cgroups.
        if let Some(host) = self.host_mounts.take() {
            let kind = Some(LinkNameSpaceType::Mount);
            let _ = rustix::thread::move_into_link_name_space(host.as_fd(), kind);
        }
        recover::sweep(&self.run_dir);
    }
}

/// Nothing that the launcher starts can ever gain a capability.
fn drop_bounding_set() -> io::Result<()> {
    for capability in 0..64 {
        match sys::drop_bounding_capability(capability) {
            Ok(()) => {}
            // Beyond the last one that this kernel knows.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => return Ok(()),
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
