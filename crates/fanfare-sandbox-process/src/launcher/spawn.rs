//! Starting one sandbox: from a request with descriptors to a process in its namespaces.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use crate::launcher::init::{self, Netns, Plan};
use crate::launcher::netns::NetnsPool;
use crate::launcher::protocol::{CgroupJoin, SpawnSpec};
use crate::seccomp;
use crate::sys::{self, Exec, Forked, SingleThreaded};

/// Starts a sandbox; returns its pid here and its pidfd. Setting up goes on in the sandbox itself, which reports to
/// the daemon.
pub(crate) fn spawn(
    proof: &SingleThreaded,
    root: &Path,
    pool: &mut NetnsPool,
    filters: &seccomp::Filters,
    spec: SpawnSpec,
    fds: Vec<OwnedFd>,
) -> Result<(i32, OwnedFd), (&'static str, io::Error)> {
    let exec = Exec::new(&spec.argv, &spec.env).map_err(|e| ("reading the command", e))?;
    // Made by the sandbox itself when none is ready: several can do that at once.
    let netns = pool.take().map_or(Netns::New, Netns::Ready);
    let filter = filters.get(spec.watch, spec.template).to_vec();
    let (plan, cgroup) = arrange(spec, fds, exec, netns, filter)
        .ok_or(("receiving descriptors", io::Error::from_raw_os_error(libc::EMFILE)))?;
    let namespaces = libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
    match sys::fork(proof, namespaces, cgroup.as_ref().map(AsFd::as_fd)) {
        Ok(Forked::Child) => init::run(proof, plan, root),
        Ok(Forked::Parent { pid, pidfd }) => Ok((pid, pidfd)),
        Err(e) => Err(("cloning", e)),
    }
}

/// Gives each descriptor its place; `None` when there are not as many as the request says, because this process has
/// too many open to receive them all.
fn arrange(
    spec: SpawnSpec,
    fds: Vec<OwnedFd>,
    exec: Exec,
    netns: Netns,
    filter: Vec<sys::BpfInstruction>,
) -> Option<(Plan, Option<OwnedFd>)> {
    let mut fds = fds.into_iter();
    let (control, stdout, stderr) = (fds.next()?, fds.next()?, fds.next()?);
    let own: Vec<_> = fds.by_ref().take(spec.fds.len()).collect();
    let (cgroup_tasks, cgroup) = match spec.cgroup {
        CgroupJoin::None => (Vec::new(), None),
        CgroupJoin::V1(n) => (fds.by_ref().take(n).collect(), None),
        CgroupJoin::V2 => (Vec::new(), Some(fds.next()?)),
    };
    let complete = match spec.cgroup {
        CgroupJoin::V1(n) => cgroup_tasks.len() == n,
        CgroupJoin::None | CgroupJoin::V2 => true,
    };
    if own.len() != spec.fds.len() || !complete || fds.next().is_some() {
        return None;
    }
    Some((Plan { spec, exec, control, stdout, stderr, fds: own, cgroup_tasks, netns, filter }, cgroup))
}
