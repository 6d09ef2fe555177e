//! The daemon's one task: what it knows, and what it does with what it hears.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fanfare_link::{Batch, Dialer, EpochGate, Link, Sender};
use fanfare_roster::Roster;
use fanfare_sandbox::{SandboxExit, Started};
use fanfare_types::limits::LIVENESS_TIMEOUT;
use fanfare_types::{
    CodeDigest, FromNode, FunctionId, NodeHello, Resources, RevisionId, SandboxId, SandboxUsage, SecretName,
    SecretValue, StartFailure, ToNode,
};
use futures_util::StreamExt;
use futures_util::future::join_all;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, timeout};

use crate::LogStore;
use crate::logs::{Wanted, platform_record};
use crate::node::Runtimes;
use crate::revisions::{Eviction, Marks};
use crate::uplink::{News, Uplink, random};

/// How often CPU use is reported: a third of the autoscaler's period.
const USAGE_INTERVAL: Duration = Duration::from_secs(5);
/// Log transfers at once.
const TRANSFERS_MAX: usize = 64;
/// After how many links in a row without a welcome that is told: one may have met a control plane at its end.
const UNWELCOME_TOLD: u32 = 2;
/// How long runtimes may take to end everything at shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

/// What reaches the daemon from its own tasks and from the runtimes. The queue of these needs no limit of its own:
/// each is the one end of something that was limited when it began.
#[derive(Debug)]
pub(crate) enum Event {
    Created { sandbox: SandboxId, result: Result<Started, StartFailure> },
    Exit(SandboxExit),
    Stopped(SandboxId),
    Prepared { revision: RevisionId, result: Result<(), StartFailure> },
    Forgotten(RevisionId),
    Evict { code: CodeDigest, reply: oneshot::Sender<bool> },
    Usage(Vec<SandboxUsage>),
}

/// Creations at once that nobody waits for, per CPU, and on few CPUs at least: enough to keep the machine busy.
const UNWAITED_PER_CPU: u64 = 2;
const UNWAITED_MIN: u64 = 8;

/// What a daemon is made of.
pub(crate) struct Parts {
    pub(crate) name: Arc<str>,
    pub(crate) capacity: Resources,
    pub(crate) creations_max: usize,
    pub(crate) heartbeat_interval: Duration,
    pub(crate) runtimes: Runtimes,
    pub(crate) dialer: Dialer,
    pub(crate) logs: LogStore,
    pub(crate) marks: Marks,
    pub(crate) events: mpsc::UnboundedSender<Event>,
    pub(crate) company: Company,
}

fn unwaited_max(capacity: Resources) -> usize {
    let busy = capacity.cpu_milli.div_ceil(1_000).saturating_mul(UNWAITED_PER_CPU);
    usize::try_from(busy.max(UNWAITED_MIN)).unwrap_or(usize::MAX)
}

/// What a daemon shares with the others of its process.
#[derive(Clone, Debug)]
pub(crate) struct Company {
    /// Of those that share a log, one speaks: it sends what functions wrote, and says what befalls the links.
    pub(crate) speaks: bool,
    /// Connections that may be opened at once.
    pub(crate) dials: Arc<Semaphore>,
    /// Counts daemons that a control plane has welcomed.
    pub(crate) welcomed: watch::Sender<usize>,
    /// When its turn is within each interval, as a share of it: daemons that began together do not all speak at once.
    pub(crate) phase: f64,
}

impl Company {
    /// Of a daemon that has a process to itself.
    pub(crate) fn alone(welcomed: watch::Sender<usize>) -> Self {
        Company { speaks: true, dials: Arc::new(Semaphore::new(1)), welcomed, phase: 0.0 }
    }

    /// A timer with this daemon's phase, which first fires within the first interval.
    fn every(&self, period: Duration) -> Interval {
        let mut timer = interval_at(Instant::now() + period.mul_f64(self.phase), period);
        timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        timer
    }
}

/// All state of a node daemon; owned by one task.
pub(crate) struct Daemon {
    name: Arc<str>,
    capacity: Resources,
    incarnation: u64,
    heartbeat_interval: Duration,
    pub(crate) runtimes: Runtimes,
    dialer: Dialer,
    gate: EpochGate,
    pub(crate) logs: LogStore,
    pub(crate) marks: Marks,
    pub(crate) events: mpsc::UnboundedSender<Event>,
    company: Company,
    /// Whether any control plane has ever welcomed it.
    known: bool,
    /// The link, while it is up.
    tx: Option<Sender<FromNode>>,
    /// Whether the control plane has made itself known on this link.
    welcomed: bool,
    /// When something was last sent.
    spoke_at: Instant,
    transfers: JoinSet<()>,
    /// CPU use is being read.
    reading_usage: bool,
    /// Links since the last welcome that ended without one.
    unwelcome: u32,

    /// Its sandboxes and revisions.
    pub(crate) roster: Roster,
    /// What the secrets hold of revisions that this stream has told of, or that are in use.
    pub(crate) secrets: HashMap<RevisionId, Vec<(SecretName, SecretValue)>>,
    pub(crate) evictions: Vec<Eviction>,
}

impl Daemon {
    pub(crate) fn new(parts: Parts) -> Self {
        let runtimes = parts.runtimes.0.iter().map(|runtime| runtime.name().into()).collect();
        let roster = Roster::new(runtimes, parts.creations_max, unwaited_max(parts.capacity));
        Daemon {
            name: parts.name,
            capacity: parts.capacity,
            incarnation: random(),
            heartbeat_interval: parts.heartbeat_interval,
            runtimes: parts.runtimes,
            dialer: parts.dialer,
            gate: EpochGate::default(),
            logs: parts.logs,
            marks: parts.marks,
            events: parts.events,
            company: parts.company,
            known: false,
            tx: None,
            welcomed: false,
            spoke_at: Instant::now(),
            transfers: JoinSet::new(),
            roster,
            secrets: HashMap::new(),
            evictions: Vec::new(),
            reading_usage: false,
            unwelcome: 0,
        }
    }

    pub(crate) async fn run(
        mut self,
        mut events: mpsc::UnboundedReceiver<Event>,
        shutdown: impl Future<Output = ()>,
    ) {
        let mut uplink = Uplink::new(self.dialer.clone(), self.gate.clone(), &self.company);
        let mut heartbeat = self.company.every(self.heartbeat_interval);
        let mut usage = self.company.every(USAGE_INTERVAL);
        let mut shutdown = std::pin::pin!(shutdown);
        loop {
            tokio::select! {
                () = &mut shutdown => break,
                // The daemon holds a sender itself: there is always a next event.
                Some(event) = events.recv() => self.on_event(event),
                news = uplink.next() => self.on_news(news, &mut uplink),
                _ = heartbeat.tick() => {
                    // A word a little early saves a timer that would fire again at once.
                    if self.spoke_at.elapsed() < self.heartbeat_interval / 2 {
                        heartbeat.reset_at(self.spoke_at + self.heartbeat_interval);
                    } else {
                        self.send(FromNode::Heartbeat);
                    }
                }
                _ = usage.tick() => self.read_usage(),
                Some(_) = self.transfers.join_next() => {}
            }
        }
        self.shut_down(events, uplink).await;
    }

    fn on_event(&mut self, event: Event) {
        let mut orders = Vec::new();
        match event {
            Event::Created { sandbox, result } => {
                let result = result.map(|started| (started.endpoint, started.stages));
                self.roster.created(sandbox, result, &mut orders);
            }
            Event::Exit(SandboxExit { sandbox, cause, log_tail }) => {
                self.roster.exited(sandbox, cause, log_tail, &mut orders);
            }
            Event::Stopped(sandbox) => self.roster.stopped(sandbox, &mut orders),
            Event::Prepared { revision, result } => self.roster.prepared(revision, result, &mut orders),
            Event::Forgotten(revision) => {
                self.roster.forgotten(revision, &mut orders);
                self.forgotten(revision);
            }
            Event::Evict { code, reply } => self.evict(code, reply, &mut orders),
            Event::Usage(usage) => self.report_usage(usage),
        }
        self.carry_out(orders);
    }

    fn on_news(&mut self, news: News, uplink: &mut Uplink) {
        match news {
            News::Up(tx) => {
                if self.company.speaks && self.unwelcome == 0 {
                    tracing::info!(node = %self.name, sandboxes = self.roster.sandboxes().len(), "connected to the control plane");
                }
                self.tx = Some(tx);
                self.welcomed = false;
                self.begin_anew();
                let hello = self.hello();
                self.send(FromNode::Hello(hello));
            }
            News::Down => {
                if !self.welcomed {
                    self.unwelcome = self.unwelcome.saturating_add(1);
                }
                match (self.welcomed, self.unwelcome) {
                    _ if !self.company.speaks => {}
                    (true, _) => {
                        uplink.complain();
                        tracing::warn!(node = %self.name, "lost the control plane");
                    }
                    (false, UNWELCOME_TOLD) => tracing::warn!(
                        node = %self.name,
                        links = self.unwelcome,
                        "the control plane ends each link without a welcome, as it does when another living node has \
                         this name: give one of them another with --name. It is tried on, and not told again"
                    ),
                    (false, _) => {}
                }
                self.tx = None;
            }
            News::Batch(batch) => self.on_batch(batch, uplink),
        }
    }

    fn on_batch(&mut self, batch: Batch<ToNode>, uplink: &mut Uplink) {
        for message in batch.messages {
            if let ToNode::Welcome { you, epoch } = message {
                if self.company.speaks {
                    // After a complaint, that it is over is said as loudly.
                    match uplink.complained() {
                        true => {
                            tracing::warn!(node = %self.name, %you, %epoch, "connected to the control plane again");
                        }
                        false => tracing::info!(node = %self.name, %you, %epoch, "welcomed"),
                    }
                }
                self.welcomed = true;
                self.unwelcome = 0;
                if !std::mem::replace(&mut self.known, true) {
                    self.company.welcomed.send_modify(|count| *count += 1);
                }
                uplink.confirmed();
            } else if self.welcomed {
                self.on_command(message);
            } else {
                tracing::error!(?message, "a command came before the welcome; cutting the link");
                self.tx = None;
                uplink.redial();
                return;
            }
        }
    }

    fn on_command(&mut self, command: ToNode) {
        match command {
            ToNode::Secrets { revision, values } => self.take_secrets(revision, values),
            ToNode::Logs { transfer, function, tail_lines, follow, select } => {
                self.send_logs(transfer, function, Wanted { tail_lines, follow, select });
            }
            command => {
                let removed =
                    if let ToNode::RevisionRemoved(revision) = command { Some(revision) } else { None };
                let mut orders = Vec::new();
                self.roster.hear(command, &mut orders);
                if let Some(revision) = removed {
                    self.drop_secrets(revision);
                }
                self.carry_out(orders);
            }
        }
    }

    /// Tells the control plane, if there is one. What it misses, the next hello makes up for.
    pub(crate) fn send(&mut self, message: FromNode) {
        self.spoke_at = Instant::now();
        // An error closes the link, which the uplink notices.
        if self.tx.as_ref().is_some_and(|tx| tx.send(message).is_err()) {
            self.tx = None;
        }
    }

    fn hello(&self) -> NodeHello {
        NodeHello {
            name: self.name.clone(),
            incarnation: self.incarnation,
            epoch_seen: self.gate.newest(),
            capacity: self.capacity,
            runtimes: self.runtimes.0.iter().map(|runtime| runtime.name().into()).collect(),
            sandboxes: self.roster.sandboxes().collect(),
            logs: self.logs.id(),
        }
    }

    /// Has CPU use read, which takes files of the kernel's for each sandbox; skipped while that still goes on.
    fn read_usage(&mut self) {
        if std::mem::replace(&mut self.reading_usage, true) {
            return;
        }
        let (runtimes, events) = (self.runtimes.clone(), self.events.clone());
        tokio::task::spawn_blocking(move || {
            let read = || runtimes.0.iter().flat_map(|runtime| runtime.usage()).collect();
            let usage = std::panic::catch_unwind(std::panic::AssertUnwindSafe(read)).unwrap_or_default();
            // An error says that the daemon has ended.
            let _ = events.send(Event::Usage(usage));
        });
    }

    fn report_usage(&mut self, usage: Vec<SandboxUsage>) {
        self.reading_usage = false;
        if !usage.is_empty() {
            self.send(FromNode::Usage(usage));
        }
    }

    fn send_logs(&mut self, transfer: u64, function: FunctionId, wanted: Wanted) {
        if !self.company.speaks {
            if !wanted.follow {
                self.send_no_logs(transfer);
            }
            // A follower waits for further lines, and none of this daemon's own will ever come.
            return;
        }
        let lines = if self.transfers.len() < TRANSFERS_MAX {
            self.logs.read(function, wanted)
        } else {
            let refusal = format!("this node sends logs to {TRANSFERS_MAX} readers already");
            futures_util::stream::iter([platform_record(refusal)]).boxed()
        };
        let dialer = self.dialer.clone();
        self.transfers.spawn(async move {
            if let Err(error) = dialer.push_logs(transfer, lines).await {
                tracing::warn!(transfer, %error, "a log transfer broke off");
            }
        });
    }

    /// Says that nothing is here, for whoever waits for every node's last lines.
    fn send_no_logs(&mut self, transfer: u64) {
        let (dialer, dials) = (self.dialer.clone(), self.company.dials.clone());
        self.transfers.spawn(async move {
            let _permit = dials.acquire().await;
            if let Err(error) = dialer.push_logs(transfer, futures_util::stream::empty().boxed()).await {
                tracing::debug!(transfer, %error, "a log transfer broke off");
            }
        });
    }

    async fn shut_down(mut self, mut events: mpsc::UnboundedReceiver<Event>, uplink: Uplink) {
        let ends = join_all(self.runtimes.0.iter().map(|runtime| runtime.shutdown()));
        let in_time = timeout(SHUTDOWN_TIMEOUT, ends).await.is_ok();
        if !in_time {
            tracing::error!(limit = ?SHUTDOWN_TIMEOUT, "a runtime did not end its sandboxes in time");
        }
        // What ended is told while somebody listens; nothing new begins.
        self.roster.close();
        while let Ok(event) = events.try_recv() {
            self.on_event(event);
        }
        self.logs.flush().await;
        if let (Some(tx), Some(rx)) = (self.tx.take(), uplink.into_receiver()) {
            if in_time {
                // An error means that the link is closed, which is seen below.
                let _ = tx.send(FromNode::Left);
            }
            // A control plane that does not answer learns of the end by the cut.
            let _ = timeout(LIVENESS_TIMEOUT, Link { tx, rx }.finish()).await;
        }
    }
}
