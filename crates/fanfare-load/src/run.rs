//! A plan, replayed.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fanfare_trace::Plan;
use rustix::event::{EventfdFlags, eventfd};

use crate::clock::Clock;
use crate::error::{Context, Error, Result};
use crate::names::Names;
use crate::pacing;
use crate::record::Record;
use crate::request::Requests;
use crate::sender::Sender;
use crate::server_timing::STAGES;

/// From when everything is ready until the plan begins.
const LEAD: Duration = Duration::from_millis(20);
/// Threads that send.
const SENDERS_MAX: usize = 64;
/// Connections of all of them together.
const CONNECTIONS_MAX: usize = 1_000_000;

/// How a plan is replayed.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Where requests go.
    pub address: SocketAddr,
    /// Threads that send and read.
    pub senders: usize,
    /// Connections at once. What is due while all are busy is sent when one is free: that much later.
    pub connections: usize,
    /// Longest wait for an answer, from when it was sent.
    pub timeout: Duration,
    /// Whether the threads of this program run before all ordinary ones (SCHED_FIFO), which takes root.
    pub realtime: bool,
}

/// How far a run has come, and the way to stop it.
#[derive(Debug, Default)]
pub struct Progress {
    /// Requests sent.
    pub sent: AtomicU64,
    /// Of these, what was answered or has failed.
    pub ended: AtomicU64,
    /// Of these, what has failed.
    pub failed: AtomicU64,
    interrupted: AtomicBool,
}

impl Progress {
    /// Has the run end at once: nothing more is sent, and what is under way is given up.
    pub fn interrupt(&self) {
        self.interrupted.store(true, Ordering::Release);
    }

    /// Whether it is to end.
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Acquire)
    }
}

/// An invocation's place in the plan, and the milliseconds of each of [`STAGES`].
pub type ColdStages = (usize, [f32; STAGES.len()]);

/// What a replay came to.
#[derive(Clone, Debug)]
pub struct Run {
    /// By the plan's invocations.
    pub records: Vec<Record>,
    /// Of each answer that waited for a new sandbox.
    pub cold_stages: Vec<ColdStages>,
    /// Names of the sandboxes that records have the numbers of.
    pub sandboxes: Vec<String>,
    /// When it began, in microseconds since 1970.
    pub began_epoch_us: u64,
    /// From its beginning to the last answer.
    pub elapsed: Duration,
    /// Whether all was sent and waited for.
    pub is_complete: bool,
}

/// What the threads of a run share.
#[derive(Debug)]
pub(crate) struct Shared<'a> {
    pub(crate) progress: &'a Progress,
    /// All invocations before this one are due.
    pub(crate) due: AtomicUsize,
    /// No more become due.
    pub(crate) paced: AtomicBool,
    /// One for each sender.
    pub(crate) bells: Vec<OwnedFd>,
}

impl Shared<'_> {
    /// Wakes the senders.
    pub(crate) fn ring(&self) -> Result<()> {
        for bell in &self.bells {
            match rustix::io::write(bell, &1_u64.to_ne_bytes()) {
                // It is ringing already, so often that it can count no further.
                Ok(_) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).context("wake a sender"),
            }
        }
        Ok(())
    }
}

/// Replays a plan, and blocks until all is answered or given up.
///
/// # Errors
/// The settings are over a limit, or the system refuses what threads, timers and sockets need. Requests that fail are in
/// the records.
pub fn run(plan: &Plan, requests: &Requests, settings: &Settings, progress: &Progress) -> Result<Run> {
    if !(1..=SENDERS_MAX).contains(&settings.senders) {
        return Err(Error::new(format!("there are 1 to {SENDERS_MAX} senders")));
    }
    if !(settings.senders..=CONNECTIONS_MAX).contains(&settings.connections) {
        return Err(Error::new(format!("there are {} to {CONNECTIONS_MAX} connections", settings.senders)));
    }
    if requests.targets.len() != plan.functions.len() {
        return Err(Error::new("there is not one target for each function of the plan"));
    }
    let bell = |_| eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).context("make an eventfd");
    let shared = Shared {
        progress,
        due: AtomicUsize::new(0),
        paced: AtomicBool::new(false),
        bells: (0..settings.senders).map(bell).collect::<Result<_>>()?,
    };
    let mut senders = Vec::with_capacity(settings.senders);
    for number in 0..settings.senders {
        senders.push(Sender::new(plan, requests, settings, number, &shared)?);
    }
    let clock = Clock::beginning_in(LEAD);
    let epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default() + LEAD;
    let shared = &shared;
    let ended = std::thread::scope(|scope| -> Result<Vec<Sender<'_>>> {
        // Whatever cannot go on ends the others, which would wait for it.
        let stopping = |error: Error| {
            progress.interrupt();
            error
        };
        let start = |name: String| std::thread::Builder::new().name(name);
        let mut threads = Vec::new();
        for sender in senders {
            let thread = start(format!("load-send-{}", sender.number()));
            let thread = thread.spawn_scoped(scope, move || sender.run(clock).map_err(stopping));
            threads.push(thread.context("start a thread").map_err(stopping)?);
        }
        let pace = move || pacing::pace(plan, clock, shared, settings.realtime).map_err(stopping);
        let pacing = start("load-pace".to_owned()).spawn_scoped(scope, pace);
        let pacing = pacing.context("start a thread").map_err(stopping)?;
        let broke = |_| Error::new("a thread of the load generator broke off");
        let paced = pacing.join().map_err(broke)?;
        let ended: Result<Vec<_>> = threads.into_iter().map(|thread| thread.join().map_err(broke)?).collect();
        paced.and(ended)
    })?;
    let elapsed = Duration::from_micros(clock.now_us());
    Ok(merge(plan, ended, epoch, elapsed, !progress.is_interrupted()))
}

/// Puts together what the senders have.
fn merge(
    plan: &Plan,
    senders: Vec<Sender<'_>>,
    epoch: Duration,
    elapsed: Duration,
    is_complete: bool,
) -> Run {
    let mut records = vec![Record::default(); plan.invocations.len()];
    let (mut all, mut cold_stages) = (Names::default(), Vec::new());
    for sender in senders {
        let (of_sender, stages, names) = sender.into_records();
        cold_stages.extend(stages);
        for (index, mut record) in of_sender {
            record.sandbox = record.sandbox.and_then(|number| all.number(&names[number as usize]));
            records[index] = record;
        }
    }
    let began_epoch_us = u64::try_from(epoch.as_micros()).unwrap_or(u64::MAX);
    Run { records, cold_stages, sandboxes: all.into_vec(), began_epoch_us, elapsed, is_complete }
}

#[cfg(test)]
mod tests;
