//! What a sandbox costs when it is made by hand: one clone into the same namespaces, the same mounts, limits, user and
//! filter, then the same program, until its first answer. The floor under the `process` runtime's cold starts.
//!
//! A process of its own with one thread does it (`fanfare-bench __bare`), since only such a one may run code between
//! clone and exec; it takes orders on its standard input and answers on its standard output.

mod cgroup;
mod clone;
mod filter;
mod helper;
mod root;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use crate::error::{Context, Error, Result};

pub(crate) use helper::{ARGUMENT, run};

/// Moves this thread, and what it starts from now on, into a network namespace of its own.
pub(crate) fn own_network() -> std::io::Result<()> {
    clone::unshare(libc::CLONE_NEWNET)
}

/// How a sandbox is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The program inherits a listening unix socket; no filter of system calls.
    Unfiltered,
    /// The same with a filter.
    Inherited,
    /// With a filter; the program binds `$PORT` on the loopback interface of its network namespace.
    Port,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::Unfiltered, Kind::Inherited, Kind::Port];

    fn word(self) -> &'static str {
        match self {
            Kind::Unfiltered => "unfiltered",
            Kind::Inherited => "inherited",
            Kind::Port => "port",
        }
    }

    fn of(word: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.word() == word)
    }
}

/// Makes sandboxes by hand, one at a time.
#[derive(Debug)]
pub(crate) struct Bare {
    child: Child,
    /// `None` once it was told to end.
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Bare {
    /// Starts the maker of sandboxes that run `program`, a file in the directory `code`. `dir` is for its sockets.
    pub(crate) fn start(code: &Path, program: &str, dir: &Path) -> Result<Bare> {
        let mut command = Command::new(std::env::current_exe().context("find this program")?);
        Bare::over(command.arg(ARGUMENT).arg(code).arg(program).arg(dir))
    }

    fn over(command: &mut Command) -> Result<Bare> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start the maker of bare sandboxes")?;
        let missing = || Error::new("the maker of bare sandboxes has no pipes");
        let orders = child.stdin.take().ok_or_else(missing)?;
        let answers = BufReader::new(child.stdout.take().ok_or_else(missing)?);
        Ok(Bare { child, orders: Some(orders), answers })
    }

    /// Makes one, asks it once and removes it. Gives the time from nothing to the answer's last byte.
    pub(crate) fn sandbox(&mut self, kind: Kind) -> Result<Duration> {
        let orders =
            self.orders.as_mut().ok_or_else(|| Error::new("the maker of bare sandboxes was ended"))?;
        writeln!(orders, "{}", kind.word()).context("order a bare sandbox")?;
        let mut line = String::new();
        self.answers.read_line(&mut line).context("wait for a bare sandbox")?;
        match line.trim_end().split_once(' ') {
            Some(("ns", nanos)) => nanos.parse().map(Duration::from_nanos).context(nanos),
            Some((_, error)) => Err(Error::new(format!("a bare sandbox ({}): {error}", kind.word()))),
            None => Err(Error::new("the maker of bare sandboxes has ended")),
        }
    }
}

impl Bare {
    /// Ends it, by when it has removed everything it made.
    pub(crate) fn stop(mut self) -> Result<()> {
        self.orders = None;
        match self.child.wait().context("end the maker of bare sandboxes")? {
            status if status.success() => Ok(()),
            status => Err(Error::new(format!("the maker of bare sandboxes: {status}"))),
        }
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        // The end of its input ends it, at the latest after the sandbox that it is making, which has a timeout.
        self.orders = None;
        let _ = self.child.wait();
    }
}
