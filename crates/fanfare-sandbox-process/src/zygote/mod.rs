//! Templates of Python revisions: a process that has imported the handler's module, from which sandboxes are forked.
//!
//! It runs user code, so it is isolated like a sandbox (what it may do beyond one: `launcher/userns.rs`). Its children
//! share its process and network namespaces; each has mount and IPC namespaces, a cgroup, temporary directories, a
//! listener, a process group and a Landlock domain of its own, out of which it reaches no sibling. That is the shim's work,
//! which an import can replace: cgroup, namespaces and capabilities are checked (`launch.rs`). The protocol is `shims/PROTOCOL.md`, section 2.2;
//! after `imported` nothing that it says is trusted beyond its own revision.

mod leftovers;
mod start;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fanfare_sandbox::LogStream;
use fanfare_types::StartFailure;
use parking_lot::Mutex;
use rustix::net::{RecvFlags, SendFlags};
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::Instant;

use crate::attempts::Attempts;
use crate::cgroup::{Cgroup, Limits};
use crate::fdmsg;
use crate::gate::{MESSAGE_BYTES_MAX, ShimFailure};
use crate::given::SecretEnv;
use crate::logs::Log;
use crate::process::Event;
use crate::procfs::Namespaces;
use crate::revision::{Prepared, Revision, meddled, node_failure, unread};
use crate::shared::Shared;
use leftovers::Leftovers;

/// The control socket's number in the zygote.
const CONTROL_FD: i32 = 4;
/// Children of one zygote at once.
const CHILDREN_MAX: usize = 10_000;
/// What a child may cost its zygote's cgroup: page tables and pages copied before it is moved to its own stay charged
/// where they were made.
const CHILD_MEMORY_BYTES: u64 = 4 << 20;
/// Children that room is made for at a time.
const CHILDREN_STEP: usize = 64;
/// Children of a zygote that may be on their way to their own cgroups.
const FORKS_MAX: u32 = 1_024;
/// A zygote that has not answered for so long stands still, and another one is made. A fork takes milliseconds.
const FORK_TIMEOUT: Duration = Duration::from_secs(5);
/// Forks that may fail in a row before another one is made. What it has forked lives on.
const FORK_FAILURES_MAX: u32 = 8;
/// Zygotes of a revision that are replaced (they fork no more, or a secret in their environment has changed) and still
/// have sandboxes; beyond it the oldest is ended with them.
const LEAVING_MAX: usize = 4;

/// How sandboxes of a revision are started.
#[derive(Clone, Debug)]
pub(crate) enum Template {
    /// By forking this.
    Zygote(Arc<Zygote>),
    /// Each by itself: a copy of this revision's process would not work.
    Fresh,
}

/// The template of one revision, made at its first use and again when it has ended.
#[derive(Debug, Default)]
pub(crate) struct Zygotes {
    current: Attempts<Template>,
    /// Ends the making of one.
    stop: Arc<Notify>,
    /// What the import that is under way writes, or the last one that failed.
    importing: Mutex<Option<Log>>,
    /// Those that have been replaced, until nothing of them is left.
    leaving: Mutex<Vec<Arc<Zygote>>>,
}

impl Zygotes {
    /// The template, which is needed since `since`.
    pub(crate) async fn get(
        &self,
        shared: &Arc<Shared>,
        revision: &Arc<Revision>,
        prepared: &Arc<Prepared>,
        since: std::time::Instant,
    ) -> Result<Template, StartFailure> {
        let secrets = shared.values.env(revision)?;
        let is_over = |made: &Template| made.forks_no_more() || made.has_other(&secrets);
        if let Some(Template::Zygote(replaced)) = self.current.renew(is_over) {
            replaced.retire();
            let mut leaving = self.leaving.lock();
            leaving.retain(|zygote| !*zygote.gone.borrow());
            leaving.push(replaced);
            // Those that are ending already are told in vain.
            let surplus = leaving.len().saturating_sub(LEAVING_MAX);
            leaving[..surplus].iter().for_each(|zygote| zygote.stop.notify_one());
        }
        if let Some(made) = self.current.get() {
            return Ok(made);
        }
        let (shared, revision, prepared) = (shared.clone(), revision.clone(), prepared.clone());
        // A task of its own: a sandbox that gives up must not take the template that others wait for with it.
        let made = tokio::spawn(async move {
            let zygotes = &revision.zygotes;
            let start = start::start(shared, revision.clone(), prepared, zygotes.stop.clone());
            zygotes.current.get_or_make(since, start).await
        });
        made.await.map_err(|e| node_failure("template", e))?
    }

    /// The log of the import that is under way, or of the last one that failed.
    pub(crate) fn importing(&self) -> Option<Log> {
        self.importing.lock().clone()
    }

    /// Ends it and waits until nothing of it is left.
    pub(crate) async fn close(&self) {
        self.stop.notify_one();
        // Waits for a making that is under way, which has just been told to end.
        let now = std::time::Instant::now();
        let made =
            self.current.get_or_make(now, async { Err(node_failure("template", "it is not needed")) }).await;
        let mut leaving = std::mem::take(&mut *self.leaving.lock());
        if let Ok(Template::Zygote(zygote)) = made {
            leaving.push(zygote);
        }
        leaving.iter().for_each(|zygote| zygote.stop.notify_one());
        for zygote in leaving {
            // An error means that its task has ended, too.
            let _ = zygote.gone.clone().wait_for(|gone| *gone).await;
        }
    }
}

impl Template {
    /// Whether its environment has other values of secrets.
    fn has_other(&self, secrets: &SecretEnv) -> bool {
        matches!(self, Template::Zygote(zygote) if zygote.secrets != *secrets)
    }

    fn forks_no_more(&self) -> bool {
        matches!(self, Template::Zygote(zygote) if zygote.ended() || zygote.children.lock().retired())
    }
}

/// A running zygote.
#[derive(Debug)]
pub(crate) struct Zygote {
    control: AsyncFd<OwnedFd>,
    /// The first process of its namespace, from which its children descend.
    pid: i32,
    /// Its own, which its children leave.
    namespaces: Namespaces,
    children: Mutex<Children>,
    stop: Arc<Notify>,
    /// A fork is asked for, after all before it were answered.
    asking: Notify,
    /// It has been retired.
    retiring: Notify,
    gone: watch::Receiver<bool>,
    /// What the function's code did that it is ended for.
    fault: OnceLock<StartFailure>,
    cgroup: Arc<Cgroup>,
    log: Log,
    /// What its cgroup allows the import itself.
    limits: Limits,
    /// What the secrets in its environment, and so in its children's, hold.
    secrets: SecretEnv,
    leftovers: Leftovers,
    /// Bytes that ended children may have left: as much as one sandbox may use.
    leftover_bytes_max: u64,
}

#[derive(Debug, Default)]
struct Children {
    ended: bool,
    /// So many children there is room for in the cgroup.
    room: usize,
    next: u64,
    waiting: BTreeMap<u64, Child>,
    /// Forks that were asked for, oldest first, answered ones among them.
    asked: VecDeque<(Instant, u64)>,
    /// Forks that have failed since the last one that did not.
    failed: u32,
    /// Another one has taken its place.
    replaced: bool,
    /// Those who are about to ask for a fork.
    claims: usize,
}

/// Keeps a template from ending for want of children while one is about to be asked for.
#[derive(Debug)]
pub(crate) struct Claim(Arc<Zygote>);

impl Drop for Claim {
    fn drop(&mut self) {
        self.0.children.lock().claims -= 1;
        self.0.retiring.notify_one();
    }
}

impl Children {
    /// Whether another one takes its place, while what it has forked lives on.
    fn retired(&self) -> bool {
        self.replaced || self.failed >= FORK_FAILURES_MAX
    }

    /// When the oldest fork without an answer was asked for.
    fn unanswered(&mut self) -> Option<Instant> {
        while let Some((at, id)) = self.asked.front() {
            if self.waiting.get(id).is_some_and(|child| child.forked.is_some()) {
                return Some(*at);
            }
            self.asked.pop_front();
        }
        None
    }

    /// Takes a word. Each has its place once: what user code says beside that would keep the daemon busy for nothing.
    fn hear(&mut self, word: ZygoteWord) -> Result<(), ZygoteWord> {
        match word {
            ZygoteWord::Forked { id } => {
                let forked = self.waiting.get_mut(&id).and_then(|c| c.forked.take()).ok_or(word)?;
                let _ = forked.send(Ok(()));
            }
            ZygoteWord::ForkFailed { id, ref detail } => {
                let child = self.waiting.get_mut(&id);
                let Some(forked) = child.and_then(|c| c.forked.take()) else { return Err(word) };
                let _ = forked.send(Err(detail.clone()));
                self.waiting.remove(&id);
            }
            ZygoteWord::Exited { id, code, signal } => {
                let forked = self.waiting.get(&id).is_some_and(|c| c.forked.is_none());
                let child = self.waiting.remove(&id).filter(|_| forked).ok_or(word)?;
                // As `wait` would have given it.
                let _ = child.exited.send(code.unwrap_or(0) << 8 | signal.unwrap_or(0) & 0x7f);
            }
            ZygoteWord::Imported {} | ZygoteWord::Unsafe { .. } | ZygoteWord::Failed(_) => return Err(word),
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Child {
    forked: Option<oneshot::Sender<Result<(), String>>>,
    exited: oneshot::Sender<i32>,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
enum ZygoteWord {
    Imported {},
    Unsafe { why: String, detail: String },
    Failed(ShimFailure),
    Forked { id: u64 },
    ForkFailed { id: u64, detail: String },
    Exited { id: u64, code: Option<i32>, signal: Option<i32> },
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
enum ToZygote<'a> {
    Fork { id: u64, processes: u32, env: BTreeMap<&'a str, &'a str> },
}

async fn word(control: &AsyncFd<OwnedFd>) -> io::Result<Option<ZygoteWord>> {
    let receive = |fd: &OwnedFd| fdmsg::receive_sized(fd, MESSAGE_BYTES_MAX, RecvFlags::DONTWAIT);
    let (bytes, _) = control.async_io(Interest::READABLE, receive).await?;
    match bytes.is_empty() {
        true => Ok(None),
        false => Ok(Some(fdmsg::parse(&bytes)?)),
    }
}

/// Packets of any bytes: what they say is only of children that there are, and of each once.
pub(crate) fn fuzz(packets: &[&[u8]]) {
    let mut children = Children::default();
    let mut answers = Vec::new();
    for id in 1..=4 {
        let (forked, answer) = oneshot::channel();
        let (exited, end) = oneshot::channel();
        children.waiting.insert(id, Child { forked: Some(forked), exited });
        answers.push((answer, end));
    }
    for packet in packets {
        let before = children.waiting.len();
        let Ok(word) = serde_json::from_slice::<ZygoteWord>(packet) else { continue };
        let taken = children.hear(word).is_ok();
        assert!(children.waiting.len() == before || children.waiting.len() + 1 == before);
        assert!(taken || children.waiting.len() + 1 >= before);
    }
    for (mut answer, mut end) in answers {
        let forked = answer.try_recv();
        assert!(end.try_recv().is_err() || forked.is_ok(), "an end before a beginning");
    }
}

/// The zygote's task: hands its words on, until it has ended or must.
async fn live(mut parts: start::Parts, zygote: Arc<Zygote>, gone: watch::Sender<bool>) {
    let Some(mut process) = parts.process.take() else { return };
    let mut fault = None;
    loop {
        tokio::select! {
            event = process.event() => if let Event::Ended = event { break },
            () = zygote.stop.notified() => break,
            () = zygote.left_alone() => break,
            () = zygote.stands_still() => {
                tracing::warn!(zygote = parts.name, limit = ?FORK_TIMEOUT, "ended, for it does not answer");
                break;
            }
            word = word(&zygote.control) => match word {
                Ok(Some(word)) => if let Err(word) = zygote.children.lock().hear(word) {
                    tracing::warn!(zygote = parts.name, ?word, "ended for a word out of place");
                    fault = Some(meddled("has spoken of sandboxes that there are not, on the template's socket"));
                    break;
                },
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!(zygote = parts.name, %error, "ended for what it said");
                    fault = Some(unread("template", &error));
                    break;
                }
            },
        }
    }
    let children = {
        let mut children = zygote.children.lock();
        children.ended = true;
        std::mem::take(&mut children.waiting)
    };
    parts.process = Some(process);
    let shared = parts.shared.clone();
    parts.release().await;
    if let Some(fault) = fault {
        // With its last lines, which a sandbox that never was does not have. Only this task says so, once.
        let _ = zygote.fault.set(StartFailure { log_tail: zygote.log.tail(), ..fault });
    }
    zygote.leftovers.end(&shared).await;
    // Its children have ended with it; whoever waits for their status learns that there is none.
    drop(children);
    gone.send_replace(true);
}

impl Zygote {
    /// Whether it can fork no more.
    pub(crate) fn ended(&self) -> bool {
        self.children.lock().ended
    }

    /// Says that a fork will be asked for; `None` when it has ended.
    pub(crate) fn claim(self: &Arc<Self>) -> Option<Claim> {
        let mut children = self.children.lock();
        if children.ended {
            return None;
        }
        children.claims += 1;
        Some(Claim(self.clone()))
    }

    /// Another one takes its place; it ends with its last child.
    fn retire(&self) {
        self.children.lock().replaced = true;
        self.retiring.notify_one();
    }

    /// The first process of its namespace, from which its children descend.
    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// Its namespaces, which its children leave.
    pub(crate) fn namespaces(&self) -> &Namespaces {
        &self.namespaces
    }

    /// Has a child forked that takes these descriptors: listener, stdout, stderr, gate. Returns where its wait status
    /// will arrive.
    pub(crate) async fn fork(
        &self,
        sandbox: &str,
        processes: u32,
        fds: Vec<OwnedFd>,
    ) -> Result<oneshot::Receiver<i32>, StartFailure> {
        let (forked_sender, forked) = oneshot::channel();
        let (exited_sender, exited) = oneshot::channel();
        let (id, grown) = {
            let mut children = self.children.lock();
            if children.ended || children.waiting.len() >= CHILDREN_MAX {
                return Err(self.ending("it has ended, or has too many children"));
            }
            children.next += 1;
            let id = children.next;
            children.waiting.insert(id, Child { forked: Some(forked_sender), exited: exited_sender });
            if children.unanswered().is_none() {
                self.asking.notify_one();
            }
            children.asked.push_back((Instant::now(), id));
            let short = children.waiting.len() > children.room;
            if short {
                children.room = children.waiting.len() + CHILDREN_STEP;
            }
            (id, short.then_some(children.room as u64))
        };
        if let Some(room) = grown {
            self.cgroup.raise(Limits {
                memory_bytes: self.limits.memory_bytes + CHILD_MEMORY_BYTES * room,
                pids: self.limits.pids + FORKS_MAX,
                ..self.limits
            });
        }
        let env = BTreeMap::from([("FANFARE_SANDBOX_ID", sandbox)]);
        let message = serde_json::to_vec(&ToZygote::Fork { id, processes, env });
        let message = message.map_err(|e| node_failure("zygote", e))?;
        let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let send = |fd: &OwnedFd| fdmsg::send(fd, &message, &borrowed, SendFlags::DONTWAIT);
        if let Err(e) = self.control.async_io(Interest::WRITABLE, send).await {
            self.children.lock().waiting.remove(&id);
            return Err(node_failure("zygote", e));
        }
        match forked.await {
            Ok(Ok(())) => Ok(exited),
            Ok(Err(detail)) => Err(node_failure("fork", detail)),
            Err(_) => Err(self.ending("it ended")),
        }
    }

    /// Why it forks no more: what its function's code did, or else `why`.
    fn ending(&self, why: &str) -> StartFailure {
        self.fault.get().cloned().unwrap_or_else(|| node_failure("zygote", why))
    }

    /// Counts a fork, by whether its child came so far as to say hello.
    pub(crate) fn count(&self, born: bool) {
        let retired_now = {
            let mut children = self.children.lock();
            let before = children.retired();
            children.failed = match born {
                // Once retired it stays so: another one is being made.
                _ if before => children.failed,
                true => 0,
                false => children.failed + 1,
            };
            children.retired() && !before
        };
        if retired_now {
            let text = format!(
                "the template could not fork {FORK_FAILURES_MAX} times in a row: another one takes its place, its sandboxes live on"
            );
            self.log.line(LogStream::Platform, text);
            self.retiring.notify_one();
        }
    }

    /// Resolves when it has been retired and its last child has ended; it takes no more from then on.
    async fn left_alone(&self) {
        loop {
            {
                let mut children = self.children.lock();
                if children.retired() && children.waiting.is_empty() && children.claims == 0 {
                    children.ended = true;
                    return;
                }
            }
            self.retiring.notified().await;
        }
    }

    /// Resolves when a fork has waited for too long, whether or not somebody still waits for it.
    async fn stands_still(&self) {
        loop {
            let oldest = self.children.lock().unanswered();
            match oldest {
                Some(at) if at.elapsed() >= FORK_TIMEOUT => return,
                Some(at) => tokio::time::sleep_until(at + FORK_TIMEOUT).await,
                None => self.asking.notified().await,
            }
        }
    }
}
