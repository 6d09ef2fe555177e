//! What the daemon, its launcher and the first process of each sandbox say to each other.
//!
//! Daemon and launcher exchange JSON packets over a `SOCK_SEQPACKET` socket; descriptors travel beside them.
//! The first process of a sandbox has a *control* socket of its own to the daemon with packets of [`Word::LEN`] bytes.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{RecvFlags, SendFlags};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::fdmsg;

/// Bytes of one packet between daemon and launcher. Fits the default send buffer of a unix socket.
pub(crate) const PACKET_BYTES_MAX: usize = 160 << 10;

/// First argument of a process that shall be a launcher.
pub const LAUNCHER_ARGUMENT: &str = "__launcher";

/// Daemon to launcher.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// First. Descriptor: the lock on the run directory.
    Hello(Config),
    /// Start a sandbox. Descriptors, in order: control, stdout, stderr, those of `spec.fds`, those of `spec.cgroup`.
    Spawn { seq: u64, spec: Box<SpawnSpec> },
    /// Make file systems in memory of these sizes, in the order of their descriptors in the answer, which a child of a
    /// template is to mount.
    MakeTmp { seq: u64, bytes: Vec<u64>, uid: Option<u32> },
}

/// Launcher to daemon.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// Answer to `Hello`: what this machine lets us do. Descriptor: the directory of what revisions are given.
    Ready(Powers),
    /// The launcher cannot work at all.
    Unable { why: String },
    /// Started; descriptor: pidfd.
    Spawned { seq: u64, pid: i32 },
    /// Made; descriptors: one for each file system, mounted nowhere.
    Made { seq: u64 },
    /// Not done.
    Failed { seq: u64, step: String, errno: i32 },
}

/// Settings of a launcher.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Config {
    /// The runtime's directory on the host.
    pub(crate) run_dir: String,
    /// Whether to separate users by a user namespace, for want of root.
    pub(crate) user_namespace: bool,
    /// Network namespaces kept ready.
    pub(crate) netns_pool: usize,
}

/// What the launcher found that it can do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Powers {
    /// Why device nodes are bound from the host instead of made, if so.
    pub(crate) devices_bound: Option<String>,
    /// Whether `/etc/ssl/certs` exists in the template.
    pub(crate) certificates: bool,
    /// Version of the kernel's Landlock; 0 without it.
    pub(crate) landlock: i32,
}

/// One sandbox process to start.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct SpawnSpec {
    /// Host name inside.
    pub(crate) name: String,
    /// User and group, the same number; `None` keeps the launcher's.
    pub(crate) uid: Option<u32>,
    /// Program (a path inside the sandbox) and arguments.
    pub(crate) argv: Vec<String>,
    /// Environment as `NAME=value`, complete. It may hold secrets: what is cloned from the launcher has its memory.
    pub(crate) env: Zeroizing<Vec<String>>,
    /// Working directory inside.
    pub(crate) cwd: String,
    /// Numbers under which the program gets the descriptors that follow stdout and stderr.
    pub(crate) fds: Vec<i32>,
    /// How it joins its cgroup.
    pub(crate) cgroup: CgroupJoin,
    /// Directories and files of the host shown inside.
    pub(crate) binds: Vec<Bind>,
    /// Size of `/tmp`, a file system in memory of its own.
    pub(crate) tmp_bytes: u64,
    /// Whether it is a template, which may give its children namespaces of their own.
    pub(crate) template: bool,
    /// Calls that the daemon wants to see.
    pub(crate) watch: Watch,
    /// Open files.
    pub(crate) nofile: u64,
    /// Private memory of each process, where no cgroup limits what they all have.
    pub(crate) data_bytes: Option<u64>,
    /// Most likely victim of a machine that is out of memory.
    pub(crate) oom_score_adj: i32,
}

/// Leaves out the environment, which holds secrets.
impl std::fmt::Debug for SpawnSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SpawnSpec").field("name", &self.name).finish_non_exhaustive()
    }
}

/// How a process enters its cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum CgroupJoin {
    /// It has none.
    None,
    /// By writing `0` to so many `tasks` files.
    V1(usize),
    /// At its creation, through the directory's descriptor.
    V2,
}

/// One bind mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Bind {
    /// On the host.
    pub(crate) from: String,
    /// Inside; exists in the template.
    pub(crate) to: String,
    /// Whether the sandbox may write it.
    pub(crate) writable: bool,
}

/// System calls of which the sandbox's filter notifies the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Watch {
    /// None.
    Nothing,
    /// `listen`.
    Listen,
    /// Also the calls by which a server begins to wait for connections on a listener that it inherited.
    Accept,
}

/// A packet on a sandbox's control socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// Sandbox: setting up failed at a step, with an error number.
    Failed { step: Step, errno: i32 },
    /// Sandbox: here is the descriptor of the filter's notifications.
    Notifications,
    /// Sandbox: the program has been executed.
    Running,
    /// Sandbox: the program ended, with its wait status.
    Exited { status: i32 },
    /// Sandbox: here is a socket of the family that was asked for (`errno` 0), or why not.
    Socket { errno: i32 },
    /// Daemon: send SIGTERM to the program and its process group.
    Terminate,
    /// Daemon: make a TCP socket in your network namespace.
    MakeSocket { family: i32 },
}

impl Word {
    /// Bytes of every such packet.
    pub(crate) const LEN: usize = 12;

    /// As bytes.
    pub(crate) fn encode(self) -> [u8; Self::LEN] {
        let (tag, a, b) = match self {
            Word::Failed { step, errno } => (1, step as i32, errno),
            Word::Notifications => (2, 0, 0),
            Word::Running => (3, 0, 0),
            Word::Exited { status } => (4, status, 0),
            Word::Socket { errno } => (5, errno, 0),
            Word::Terminate => (6, 0, 0),
            Word::MakeSocket { family } => (7, family, 0),
        };
        let mut bytes = [0; Self::LEN];
        for (slot, value) in bytes.chunks_exact_mut(4).zip([tag, a, b]) {
            slot.copy_from_slice(&i32::to_ne_bytes(value));
        }
        bytes
    }

    /// From bytes; `None` when they are not such a packet.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Word> {
        let bytes: [u8; Self::LEN] = bytes.try_into().ok()?;
        let field = |i: usize| i32::from_ne_bytes([bytes[i], bytes[i + 1], bytes[i + 2], bytes[i + 3]]);
        let (a, b) = (field(4), field(8));
        Some(match field(0) {
            1 => Word::Failed { step: *Step::ALL.get(usize::try_from(a).ok()?)?, errno: b },
            2 => Word::Notifications,
            3 => Word::Running,
            4 => Word::Exited { status: a },
            5 => Word::Socket { errno: a },
            6 => Word::Terminate,
            7 => Word::MakeSocket { family: a },
            _ => return None,
        })
    }
}

macro_rules! steps {
    ($($name:ident = $text:literal,)*) => {
        /// Steps of setting a sandbox up.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Step { $(#[doc = $text] $name,)* }

        impl Step {
            const ALL: &'static [Step] = &[$(Step::$name,)*];

            /// What was being done.
            pub(crate) const fn describe(self) -> &'static str { match self { $(Step::$name => $text,)* } }
        }
    };
}

steps! {
    Cgroup = "joining the cgroup",
    Network = "entering the network namespace",
    Bind = "mounting the code",
    Tmp = "mounting /tmp",
    Proc = "mounting /proc",
    Root = "changing the root",
    Limits = "setting resource limits",
    Descriptors = "arranging descriptors",
    User = "changing the user",
    Capabilities = "dropping capabilities",
    UserNamespace = "entering a user namespace",
    Leash = "tying its life to the daemon",
    Filter = "installing the system call filter",
    Exec = "executing the program",
}

/// Sends a message with descriptors.
pub(crate) fn send(
    socket: impl AsFd,
    message: &impl Serialize,
    fds: &[std::os::fd::BorrowedFd<'_>],
    flags: SendFlags,
) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    if bytes.len() > PACKET_BYTES_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("a message of {} bytes exceeds {PACKET_BYTES_MAX}", bytes.len()),
        ));
    }
    fdmsg::send(socket, &bytes, fds, flags)
}

/// Receives a message with descriptors; `None` at the end of the stream.
pub(crate) fn receive<T: for<'a> Deserialize<'a>>(
    socket: impl AsFd,
    buffer: &mut [u8],
    flags: RecvFlags,
) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let packet = fdmsg::receive(socket, buffer, flags)?;
    match packet.len {
        0 => Ok(None),
        len => {
            let message = serde_json::from_slice(&buffer[..len]);
            // It may have held secrets, and what is cloned from this process has its memory.
            buffer[..len].fill(0);
            Ok(Some((message?, packet.fds)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_their_encoding() {
        let mut words = vec![
            Word::Notifications,
            Word::Running,
            Word::Exited { status: 256 },
            Word::Socket { errno: 24 },
            Word::Terminate,
            Word::MakeSocket { family: 2 },
        ];
        words.extend(Step::ALL.iter().map(|step| Word::Failed { step: *step, errno: 13 }));
        for word in words {
            assert_eq!(Word::decode(&word.encode()), Some(word));
        }
        assert_eq!(Word::decode(&[9; Word::LEN]), None);
        assert_eq!(Word::decode(&[1; Word::LEN]), None);
        assert_eq!(Word::decode(b"short"), None);
    }
}
