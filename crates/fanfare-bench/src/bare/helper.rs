//! The process that makes bare sandboxes.

use std::fs;
use std::io::{self, BufRead, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Pid, Resource, Rlimit, Signal, WaitOptions};
use rustix::thread::{CapabilitySet, CapabilitySets, Gid, LinkNameSpaceType, Uid};
use seccompiler::BpfProgram;

use super::cgroup::Cgroups;
use super::clone::{self, Descriptors, Program};
use super::root::{self, Root};
use super::{Kind, filter};
use crate::error::{Context, Error, Result};
use crate::wire;

/// First argument of this mode.
pub(crate) const ARGUMENT: &str = "__bare";
/// The user of bare sandboxes.
const USER: u32 = 1_879_000_000;
const PORT: u16 = 8080;
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n";
/// Longest wait for one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
const NAMESPACES: libc::c_int =
    libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;

/// Takes orders until its input ends.
pub(crate) fn run(mut args: impl Iterator<Item = String>) -> Result<()> {
    let mut arg = || args.next().ok_or_else(|| Error::new("usage: CODE-DIRECTORY PROGRAM DIRECTORY"));
    let (code, program, dir) = (PathBuf::from(arg()?), arg()?, PathBuf::from(arg()?));
    let mut maker = Maker::new(&code, &program, &dir)?;
    let mut out = io::stdout();
    for line in io::stdin().lock().lines() {
        let line = line.context("read an order")?;
        let made =
            Kind::of(&line).ok_or_else(|| Error::new("no such order")).and_then(|kind| maker.sandbox(kind));
        let answer = match made {
            Ok(elapsed) => format!("ns {}\n", elapsed.as_nanos()),
            Err(error) => format!("error {error}\n"),
        };
        out.write_all(answer.as_bytes()).and_then(|()| out.flush()).context("answer")?;
    }
    Ok(())
}

struct Maker {
    root: Root,
    cgroups: Cgroups,
    filter: BpfProgram,
    inherits: Program,
    binds: Program,
    null: OwnedFd,
    dir: PathBuf,
    host_network: OwnedFd,
    /// The next sandbox's network namespace, made between two measurements as a pool would.
    network: Option<OwnedFd>,
    made: u64,
}

impl Maker {
    fn new(code: &Path, program: &str, dir: &Path) -> Result<Maker> {
        let threads = fs::read_dir("/proc/self/task").context("count threads")?.count();
        if threads != 1 {
            return Err(Error::new(format!("has {threads} threads, and must have one")));
        }
        let path = format!("{}/{program}", root::CODE_DIR);
        let env = |last: &[&str]| -> Vec<String> {
            ["PATH=/usr/bin:/bin", "HOME=/tmp"].iter().chain(last).map(|s| (*s).to_owned()).collect()
        };
        let port = format!("PORT={PORT}");
        let program = |env: &[String]| Program::new(&path, env).context(&path);
        let mut maker = Maker {
            root: root::build(dir, code, USER).context("build a root directory")?,
            cgroups: Cgroups::open()?,
            filter: filter::compile()?,
            inherits: program(&env(&["LISTEN_FDS=1"]))?,
            binds: program(&env(&[&port]))?,
            null: fs::OpenOptions::new()
                .read(true)
                .write(true)
                .open("/dev/null")
                .context("/dev/null")?
                .into(),
            dir: dir.to_owned(),
            host_network: current_network().context("the host's network namespace")?,
            network: None,
            made: 0,
        };
        maker.network = Some(maker.new_network().context("a network namespace")?);
        Ok(maker)
    }

    fn sandbox(&mut self, kind: Kind) -> Result<Duration> {
        let network = match self.network.take() {
            Some(network) => network,
            None => self.new_network().context("a network namespace")?,
        };
        self.made += 1;
        let result = self.timed(kind, &network, &format!("s{}", self.made));
        self.network = Some(self.new_network().context("a network namespace")?);
        result
    }

    fn timed(&self, kind: Kind, network: &OwnedFd, name: &str) -> Result<Duration> {
        let begun = Instant::now();
        let (cgroup, joins) = self.cgroups.create(name).context("make a cgroup")?;
        let set_up = || self.set_up(kind, &joins, network.as_fd());
        let (pid, answered) = match kind {
            Kind::Unfiltered | Kind::Inherited => self.inherited(name, &set_up)?,
            Kind::Port => self.port(network, &set_up)?,
        };
        let elapsed = begun.elapsed();
        end(pid).context("end a sandbox")?;
        drop(cgroup);
        answered.map(|()| elapsed)
    }

    fn inherited(&self, name: &str, set_up: &dyn Fn() -> io::Result<()>) -> Result<(i32, Result<()>)> {
        let path = self.dir.join(name);
        let listener = UnixListener::bind(&path).context(path.display())?;
        let null = self.null.as_fd();
        let descriptors = Descriptors { null, out: null, inherited: Some(listener.as_fd()) };
        let pid = clone::spawn(NAMESPACES, &self.inherits, descriptors, set_up).context("clone")?;
        drop(listener);
        let answered = UnixStream::connect(&path).context("connect").and_then(|stream| {
            stream.set_read_timeout(Some(ANSWER_TIMEOUT)).context("set a timeout")?;
            ask(stream)
        });
        fs::remove_file(&path).context(path.display())?;
        Ok((pid, answered))
    }

    fn port(&self, network: &OwnedFd, set_up: &dyn Fn() -> io::Result<()>) -> Result<(i32, Result<()>)> {
        let (mut listening, out) = io::pipe().context("make a pipe")?;
        let descriptors = Descriptors { null: self.null.as_fd(), out: out.as_fd(), inherited: None };
        let pid = clone::spawn(NAMESPACES, &self.binds, descriptors, set_up).context("clone")?;
        drop(out);
        // The program says that it listens; its end says that it never will.
        let said = listening.read(&mut [0; 64]).context("wait for the program");
        let answered = said.and_then(|n| match n {
            0 => Err(Error::new("the program ended before it listened")),
            _ => self.socket_in(network).context("connect").and_then(ask),
        });
        Ok((pid, answered))
    }

    /// Runs in the new process, which shares this one's memory.
    fn set_up(&self, kind: Kind, joins: &[OwnedFd], network: BorrowedFd<'_>) -> io::Result<()> {
        for join in joins {
            rustix::io::write(join, b"0")?;
        }
        rustix::thread::move_into_link_name_space(network, Some(LinkNameSpaceType::Network))?;
        self.root.enter()?;
        rustix::system::sethostname(b"bare")?;
        for (resource, limit) in
            [(Resource::Nofile, 1024), (Resource::Core, 0), (Resource::Memlock, 64 << 10)]
        {
            rustix::process::setrlimit(resource, Rlimit { current: Some(limit), maximum: Some(limit) })?;
        }
        let (user, group) = (Uid::from_raw(USER), Gid::from_raw(USER));
        rustix::thread::set_thread_groups(&[])?;
        rustix::thread::set_thread_res_gid(group, group, group)?;
        rustix::thread::set_thread_res_uid(user, user, user)?;
        let none = CapabilitySet::empty();
        let none = CapabilitySets { effective: none, permitted: none, inheritable: none };
        rustix::thread::set_capabilities(None, none)?;
        rustix::thread::set_no_new_privs(true)?;
        // After the change of user, which clears it.
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        if kind != Kind::Unfiltered {
            clone::install_filter(&self.filter)?;
        }
        Ok(())
    }

    fn new_network(&self) -> io::Result<OwnedFd> {
        clone::unshare(libc::CLONE_NEWNET)?;
        let made = (|| {
            let socket = socket(SocketType::DGRAM)?;
            clone::loopback_up(socket.as_fd())?;
            current_network()
        })();
        enter_network(&self.host_network)?;
        made
    }

    /// A connection to the program, made in its network namespace.
    fn socket_in(&self, network: &OwnedFd) -> io::Result<TcpStream> {
        enter_network(network)?;
        let made = socket(SocketType::STREAM);
        enter_network(&self.host_network)?;
        let made = made?;
        rustix::net::connect(&made, &SocketAddr::from((Ipv4Addr::LOCALHOST, PORT)))?;
        let stream = TcpStream::from(made);
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

fn socket(kind: SocketType) -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(AddressFamily::INET, kind, SocketFlags::CLOEXEC, None)?)
}

fn current_network() -> io::Result<OwnedFd> {
    Ok(fs::File::open("/proc/self/ns/net")?.into())
}

fn enter_network(network: &OwnedFd) -> io::Result<()> {
    Ok(rustix::thread::move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?)
}

fn ask(mut stream: impl Read + Write) -> Result<()> {
    stream.write_all(REQUEST).context("write")?;
    let (mut buffer, mut filled) = ([0; 4096], 0);
    while filled < buffer.len() {
        let n = stream.read(&mut buffer[filled..]).context("read")?;
        if n == 0 {
            break;
        }
        filled += n;
        if let Some(frame) = wire::parse(&buffer[..filled])? {
            return match frame.status {
                200 => Ok(()),
                status => Err(Error::new(format!("answered {status}"))),
            };
        }
    }
    Err(Error::new("no complete answer"))
}

fn end(pid: i32) -> io::Result<()> {
    let Some(pid) = Pid::from_raw(pid) else { return Ok(()) };
    rustix::process::kill_process(pid, Signal::KILL)?;
    loop {
        match rustix::process::waitpid(Some(pid), WaitOptions::empty()) {
            Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}
