//! The first process of a sandbox: sets everything up, starts the program, reaps, and tells the daemon how it ended.
//!
//! It stays as process 1 of the sandbox's process namespace: so signals have their usual meaning for the program,
//! orphans are reaped, and when it ends the kernel ends everything inside. It has the sandbox's user, no capability
//! and the sandbox's filter, and cannot be inspected from inside.

use std::fs;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::process::{DumpableBehavior, Pid, Resource, Rlimit, Signal, WaitOptions};
use rustix::thread::{Gid, Uid};

use crate::fdmsg;
use crate::launcher::protocol::{SpawnSpec, Step, Watch, Word};
use crate::launcher::{netns, userns};
use crate::root::Layout;
use crate::sys::{self, BpfInstruction, Exec, SingleThreaded};

/// The control socket's number in this process; above those that a program is given.
const CONTROL_FD: i32 = 100;
/// Received descriptors are moved above this number first, so that fixed numbers are free.
const FD_SAFE: i32 = 200;

/// All that a new sandbox needs, prepared by the launcher.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) spec: SpawnSpec,
    pub(crate) exec: Exec,
    pub(crate) control: OwnedFd,
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: OwnedFd,
    /// For the program, in the order of `spec.fds`.
    pub(crate) fds: Vec<OwnedFd>,
    /// `tasks` files to write to.
    pub(crate) cgroup_tasks: Vec<OwnedFd>,
    /// Its network.
    pub(crate) netns: Netns,
    /// The filter to install.
    pub(crate) filter: Vec<BpfInstruction>,
}

/// The network namespace of a new sandbox.
#[derive(Debug)]
pub(crate) enum Netns {
    /// This one, made ahead.
    Ready(OwnedFd),
    /// One to be made.
    New,
}

type SetupError = (Step, i32);

fn step<T>(step: Step, result: Result<T, impl Into<io::Error>>) -> Result<T, SetupError> {
    result.map_err(|e| (step, e.into().raw_os_error().unwrap_or(libc::EIO)))
}

/// Runs in the copy of the launcher that is process 1 of the new namespaces.
pub(crate) fn run(proof: &SingleThreaded, plan: Plan, root: &Path) -> ! {
    // Descriptors are closed by number here; their owners must not close them again.
    let plan = ManuallyDrop::new(plan);
    let raised = match step(Step::Descriptors, Raised::new(&plan)) {
        Ok(raised) => ManuallyDrop::new(raised),
        Err(why) => fail(&plan.control, why),
    };
    let control = match surroundings(proof, &plan, root).and_then(|()| descriptors(&plan.spec, &raised)) {
        Ok(control) => control,
        Err(why) => fail(&raised.control, why),
    };
    match program(proof, &plan, &control) {
        Ok(pid) => serve(pid, &control),
        Err(why) => fail(&control, why),
    }
}

fn fail(control: &OwnedFd, (step, errno): SetupError) -> ! {
    say(control, Word::Failed { step, errno }, &[]);
    sys::exit_now(1)
}

/// Copies of the plan's descriptors above [`FD_SAFE`].
struct Raised {
    control: OwnedFd,
    stdout: OwnedFd,
    stderr: OwnedFd,
    fds: Vec<OwnedFd>,
}

impl Raised {
    fn new(plan: &Plan) -> io::Result<Self> {
        let high = |fd: &OwnedFd| rustix::io::fcntl_dupfd_cloexec(fd, FD_SAFE);
        Ok(Raised {
            control: high(&plan.control)?,
            stdout: high(&plan.stdout)?,
            stderr: high(&plan.stderr)?,
            fds: plan.fds.iter().map(high).collect::<Result<_, _>>()?,
        })
    }
}

fn say(control: &OwnedFd, word: Word, fds: &[BorrowedFd<'_>]) {
    // A daemon that is gone hears nothing; the end of its socket ends this process soon.
    let _ = fdmsg::send(control, &word.encode(), fds, SendFlags::empty());
}

/// What the process is in: cgroup, network, root directory. Uses the plan's descriptors, whose numbers may be any.
fn surroundings(proof: &SingleThreaded, plan: &Plan, root: &Path) -> Result<(), SetupError> {
    let spec = &plan.spec;
    for tasks in &plan.cgroup_tasks {
        // `0` is the writer itself: the kernel then need not stop other migrations, which would cost a grace period.
        step(Step::Cgroup, rustix::io::write(tasks, b"0"))?;
    }
    match &plan.netns {
        Netns::Ready(namespace) => step(Step::Network, netns::enter(namespace))?,
        Netns::New => step(Step::Network, netns::enter_new(proof))?,
    }
    let layout = Layout::new(root);
    step(Step::Bind, layout.binds(&spec.binds))?;
    step(Step::Tmp, layout.tmp(spec.tmp_bytes, spec.uid))?;
    step(Step::Proc, layout.proc())?;
    step(Step::Root, layout.enter())?;
    step(Step::Root, rustix::system::sethostname(spec.name.as_bytes()))?;
    limits(spec)
}

/// Gives up all power and starts the program, whose pid it returns.
fn program(proof: &SingleThreaded, plan: &Plan, control: &OwnedFd) -> Result<i32, SetupError> {
    let spec = &plan.spec;
    if spec.template {
        step(Step::Capabilities, rustix::thread::set_keep_capabilities(true))?;
    }
    change_user(spec.uid)?;
    match spec.template {
        true => step(Step::UserNamespace, userns::enter_as_template(proof))?,
        false => step(Step::Capabilities, userns::drop_capabilities())?,
    }
    step(Step::Capabilities, rustix::thread::set_no_new_privs(true))?;
    leash(control)?;
    let notify = spec.watch != Watch::Nothing;
    if let Some(notifications) = step(Step::Filter, sys::install_filter(&plan.filter, notify))? {
        say(control, Word::Notifications, &[notifications.as_fd()]);
    }
    step(Step::Exec, rustix::process::chdir(spec.cwd.as_str()))?;
    let pid = step(Step::Exec, sys::spawn(&plan.exec))?;
    if spec.template {
        step(Step::Capabilities, userns::drop_capabilities())?;
    }
    say(control, Word::Running, &[]);
    // Its outputs and its listener must end with the program, not with this process.
    step(Step::Descriptors, sys::close_range(1, CONTROL_FD - 1))?;
    Ok(pid)
}

fn limits(spec: &SpawnSpec) -> Result<(), SetupError> {
    let set = |resource: Resource, wanted: u64| {
        let hard = rustix::process::getrlimit(resource).maximum.unwrap_or(u64::MAX).min(wanted);
        step(
            Step::Limits,
            rustix::process::setrlimit(resource, Rlimit { current: Some(hard), maximum: Some(hard) }),
        )
    };
    set(Resource::Nofile, spec.nofile)?;
    if let Some(bytes) = spec.data_bytes {
        set(Resource::Data, bytes)?;
    }
    // The kernel takes 1 for "none", 0 only for "no file": a program of the host's would still be started.
    set(Resource::Core, 1)?;
    set(Resource::Memlock, 64 << 10)?;
    set(Resource::Msgqueue, 64 << 10)?;
    step(Step::Limits, fs::write("/proc/self/oom_score_adj", spec.oom_score_adj.to_string()))
}

/// Gives the program its descriptors by number, and closes all others but the control socket, which it returns.
fn descriptors(spec: &SpawnSpec, raised: &Raised) -> Result<OwnedFd, SetupError> {
    let s = Step::Descriptors;
    if spec.fds.iter().any(|number| !(3..CONTROL_FD).contains(number)) {
        return Err((s, libc::EBADF));
    }
    step(s, sys::close_range(3, CONTROL_FD))?;
    let null = step(s, rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()))?;
    step(s, sys::place_fd(null.as_fd(), 0, false))?;
    drop(null);
    step(s, sys::place_fd(raised.stdout.as_fd(), 1, false))?;
    step(s, sys::place_fd(raised.stderr.as_fd(), 2, false))?;
    for (number, fd) in spec.fds.iter().zip(&raised.fds) {
        step(s, sys::place_fd(fd.as_fd(), *number, false))?;
    }
    step(s, sys::place_fd(raised.control.as_fd(), CONTROL_FD, true))?;
    let control = step(s, sys::inherited(CONTROL_FD))?;
    // The last that may fail: it closes the raised copies, too.
    step(s, sys::close_range(CONTROL_FD + 1, i32::MAX))?;
    Ok(control)
}

fn change_user(uid: Option<u32>) -> Result<(), SetupError> {
    if let Some(id) = uid {
        let (user, group) = (Uid::from_raw(id), Gid::from_raw(id));
        step(Step::User, rustix::thread::set_thread_groups(&[]))?;
        step(Step::User, rustix::thread::set_thread_res_gid(group, group, group))?;
        step(Step::User, rustix::thread::set_thread_res_uid(user, user, user))?;
    }
    Ok(())
}

/// Ties this process's life to the launcher and the daemon, and hides it from the program.
fn leash(control: &OwnedFd) -> Result<(), SetupError> {
    // After the change of user, which clears it.
    step(Step::Leash, rustix::process::set_parent_process_death_signal(Some(Signal::KILL)))?;
    step(Step::Leash, rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable))?;
    let mut poll = [PollFd::new(control, PollFlags::empty())];
    step(
        Step::Leash,
        rustix::event::poll(&mut poll, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 })),
    )?;
    match poll[0].revents().intersects(PollFlags::HUP | PollFlags::ERR) {
        true => Err((Step::Leash, libc::EPIPE)),
        false => Ok(()),
    }
}

/// Reaps, forwards SIGTERM, makes sockets; ends when the program or the daemon has ended.
fn serve(program: i32, control: &OwnedFd) -> ! {
    let Ok(children) = sys::child_signals() else { sys::exit_now(1) };
    let mut buffer = [0; 128];
    loop {
        if let Some(status) = reap(program) {
            say(control, Word::Exited { status }, &[]);
            sys::exit_now(0);
        }
        let mut poll = [PollFd::new(control, PollFlags::IN), PollFd::new(&children, PollFlags::IN)];
        match rustix::event::poll(&mut poll, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => sys::exit_now(1),
        }
        if poll[1].revents().contains(PollFlags::IN) {
            let _ = rustix::io::read(&children, &mut buffer);
        }
        if !poll[0].revents().is_empty() {
            match fdmsg::receive(control, &mut buffer, RecvFlags::DONTWAIT) {
                Ok(packet) if packet.len > 0 => obey(program, control, Word::decode(&buffer[..packet.len])),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                // The daemon is gone: the kernel ends the rest of the sandbox with this process.
                _ => sys::exit_now(1),
            }
        }
    }
}

fn obey(program: i32, control: &OwnedFd, word: Option<Word>) {
    match word {
        Some(Word::Terminate) => {
            if let Some(pid) = Pid::from_raw(program) {
                // The program leads a session and a process group of its own.
                let _ = rustix::process::kill_process_group(pid, Signal::TERM);
            }
        }
        Some(Word::MakeSocket { family }) => {
            let family = AddressFamily::from_raw(u16::try_from(family).unwrap_or(0));
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::socket_with(family, SocketType::STREAM, flags, None) {
                Ok(socket) => say(control, Word::Socket { errno: 0 }, &[socket.as_fd()]),
                Err(e) => say(control, Word::Socket { errno: e.raw_os_error() }, &[]),
            }
        }
        _ => {}
    }
}

/// Reaps what has ended; the program's wait status once that is among it.
fn reap(program: i32) -> Option<i32> {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid.as_raw_nonzero().get() == program => return Some(status.as_raw()),
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) | Err(_) => return None,
        }
    }
}
