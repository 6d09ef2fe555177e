//! A thread that sends what is due and reads what is answered.
//!
//! The plan itself is the queue: a sender takes every so-manyth of its invocations, in their order, and is behind where
//! all its connections are busy. So nothing is dropped, and nothing is kept twice.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fanfare_trace::Plan;
use rustix::event::{Timespec, epoll};

use crate::clock::Clock;
use crate::connection::{Connection, Progressed};
use crate::error::{Context, Result};
use crate::names::Names;
use crate::realtime;
use crate::record::{Outcome, Record};
use crate::request::Requests;
use crate::run::{ColdStages, Settings, Shared};
use crate::server_timing;
use crate::wire::Answer;

/// Events taken from the kernel at once.
const EVENTS: usize = 256;
/// The bell's name among the connections'.
const BELL: u64 = u64::MAX;
/// Longest sleep: so soon it is seen that the run is interrupted.
const SLEEP_MAX: Duration = Duration::from_millis(50);
/// A connection that has rested for longer is not used again: its server may be about to close it.
const REST_MAX_US: u64 = 5_000_000;

/// A request under way.
#[derive(Debug)]
struct Exchange {
    index: usize,
    record: Record,
}

/// A place for a connection.
#[derive(Debug, Default)]
struct Place {
    connection: Option<Connection>,
    exchange: Option<Exchange>,
    /// Counts what was done here: what is remembered of an earlier use is known to be that.
    uses: u64,
}

/// One of the run's senders.
#[derive(Debug)]
pub(crate) struct Sender<'a> {
    plan: &'a Plan,
    requests: &'a Requests,
    settings: &'a Settings,
    shared: &'a Shared<'a>,
    number: usize,
    /// The next invocation of its own.
    next: usize,
    epoll: OwnedFd,
    places: Vec<Place>,
    /// Places without a connection.
    free: Vec<usize>,
    /// Places whose connections rest, the last used one at the end, with their uses and since when.
    resting: VecDeque<(usize, u64, u64)>,
    /// When requests have been waited for long enough, the earliest first, with their places and uses.
    deadlines: VecDeque<(u64, usize, u64)>,
    under_way: usize,
    records: Vec<(usize, Record)>,
    cold_stages: Vec<ColdStages>,
    names: Names,
}

impl<'a> Sender<'a> {
    pub(crate) fn new(
        plan: &'a Plan,
        requests: &'a Requests,
        settings: &'a Settings,
        number: usize,
        shared: &'a Shared<'a>,
    ) -> Result<Sender<'a>> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).context("epoll")?;
        let (data, flags) = (epoll::EventData::new_u64(BELL), epoll::EventFlags::IN);
        epoll::add(&epoll, &shared.bells[number], data, flags).context("epoll")?;
        // Together the senders have as many as the settings say.
        let more = usize::from(number < settings.connections % settings.senders);
        let places = settings.connections / settings.senders + more;
        Ok(Sender {
            plan,
            requests,
            settings,
            shared,
            number,
            next: number,
            epoll,
            places: (0..places).map(|_| Place::default()).collect(),
            free: (0..places).rev().collect(),
            resting: VecDeque::new(),
            deadlines: VecDeque::new(),
            under_way: 0,
            // No pause to make room in mid-run.
            records: Vec::with_capacity(plan.invocations.len() / settings.senders + 1),
            cold_stages: Vec::new(),
            names: Names::default(),
        })
    }

    pub(crate) fn number(&self) -> usize {
        self.number
    }

    /// The records of what it has sent, with the stages of cold starts and the names that records have the numbers of.
    pub(crate) fn into_records(self) -> (Vec<(usize, Record)>, Vec<ColdStages>, Vec<String>) {
        (self.records, self.cold_stages, self.names.into_vec())
    }

    /// Sends and reads until the plan is at its end and everything has come to one.
    pub(crate) fn run(mut self, clock: Clock) -> Result<Sender<'a>> {
        if self.settings.realtime {
            realtime::raise()?;
        }
        let mut events = Vec::with_capacity(EVENTS);
        loop {
            // In this order: what became due before the end of pacing is seen here.
            let paced = self.shared.paced.load(Ordering::Acquire);
            self.send_due(clock);
            if self.shared.progress.is_interrupted() {
                self.give_up(clock);
                return Ok(self);
            }
            if paced && self.under_way == 0 && self.next >= self.shared.due.load(Ordering::Acquire) {
                return Ok(self);
            }
            self.wait(&mut events, clock)?;
            for event in events.drain(..) {
                match event.data.u64() {
                    BELL => self.hush()?,
                    place => self.advance(place as usize, clock),
                }
            }
            self.expire(clock);
        }
    }

    /// Sends what is due, as far as there are connections.
    fn send_due(&mut self, clock: Clock) {
        let due = self.shared.due.load(Ordering::Acquire);
        while self.next < due {
            let now_us = clock.now_us();
            let Some(at) = self.place(now_us) else { return };
            let index = self.next;
            self.next += self.settings.senders;
            self.begin(at, index, clock);
        }
    }

    /// A place for a request: one whose connection rests, else a free one.
    fn place(&mut self, now_us: u64) -> Option<usize> {
        while let Some((at, uses, since_us)) = self.resting.pop_back() {
            let place = &mut self.places[at];
            if place.uses != uses {
                continue;
            }
            // Its server may have closed it a moment ago, of which the kernel has not told yet.
            let open = place.connection.as_mut().is_some_and(|c| matches!(c.advance(), Ok(Progressed::Open)));
            if open && now_us.saturating_sub(since_us) <= REST_MAX_US {
                return Some(at);
            }
            self.clear(at);
        }
        self.free.pop()
    }

    fn begin(&mut self, at: usize, index: usize, clock: Clock) {
        let place = &mut self.places[at];
        place.uses += 1;
        let sent_us = clock.now_us();
        place.exchange = Some(Exchange { index, record: Record { sent_us, ..Record::default() } });
        self.under_way += 1;
        self.shared.progress.sent.fetch_add(1, Ordering::Relaxed);
        let timeout_us = u64::try_from(self.settings.timeout.as_micros()).unwrap_or(u64::MAX);
        self.deadlines.push_back((sent_us.saturating_add(timeout_us), at, place.uses));
        if place.connection.is_none() && self.connect(at).is_err() {
            return self.end(at, Outcome::ConnectError, clock);
        }
        if let Some(connection) = &mut self.places[at].connection {
            connection.begin();
            self.requests.write(&self.plan.invocations[index], &mut connection.out);
        }
        self.advance(at, clock);
    }

    fn connect(&mut self, at: usize) -> Result<()> {
        let connection = Connection::open(self.settings.address).context("connect")?;
        let flags =
            epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        epoll::add(&self.epoll, &connection, epoll::EventData::new_u64(at as u64), flags).context("epoll")?;
        self.places[at].connection = Some(connection);
        Ok(())
    }

    /// Goes on with what is at a place.
    fn advance(&mut self, at: usize, clock: Clock) {
        let place = &mut self.places[at];
        let Some(connection) = &mut place.connection else { return };
        let Some(exchange) = &mut place.exchange else {
            // Something happened to a connection that rests. That it could be written to is not worth a look.
            if !matches!(connection.advance(), Ok(Progressed::Open)) {
                self.clear(at);
            }
            return;
        };
        let before = connection.answering;
        let advanced = connection.advance();
        if connection.answering && !before {
            exchange.record.first_byte_us = clock.now_us();
        }
        match advanced {
            Ok(Progressed::Open) => {}
            Err(outcome) => self.end(at, outcome, clock),
            Ok(Progressed::Answered(frame)) => {
                exchange.record.done_us = clock.now_us();
                let answer = Answer::new(frame, connection.answer());
                exchange.record.take(&answer, &mut self.names);
                if exchange.record.cold {
                    let header = answer.header("server-timing").unwrap_or_default();
                    self.cold_stages.push((exchange.index, server_timing::stages(header)));
                }
                let done_us = exchange.record.done_us;
                self.finish(at);
                if frame.closes {
                    self.clear(at);
                } else {
                    self.resting.push_back((at, self.places[at].uses, done_us));
                }
            }
        }
    }

    /// A request has ended without an answer, and its connection with it.
    fn end(&mut self, at: usize, outcome: Outcome, clock: Clock) {
        if let Some(exchange) = &mut self.places[at].exchange {
            exchange.record.outcome = outcome;
            exchange.record.done_us = clock.now_us();
        }
        self.finish(at);
        self.clear(at);
    }

    /// Keeps the record of the request at a place.
    fn finish(&mut self, at: usize) {
        let Some(Exchange { index, record }) = self.places[at].exchange.take() else { return };
        self.under_way -= 1;
        self.shared.progress.ended.fetch_add(1, Ordering::Relaxed);
        self.shared.progress.failed.fetch_add(record.outcome.is_failure().into(), Ordering::Relaxed);
        self.records.push((index, record));
    }

    /// Closes the connection at a place, which is free then.
    fn clear(&mut self, at: usize) {
        let place = &mut self.places[at];
        place.uses += 1;
        // That closes it, and the kernel forgets it in `epoll`.
        place.connection = None;
        self.free.push(at);
    }

    /// Ends requests that have been waited for long enough, and forgets the times of those that have ended.
    fn expire(&mut self, clock: Clock) {
        let now_us = clock.now_us();
        while let Some(&(deadline_us, at, uses)) = self.deadlines.front() {
            let place = &self.places[at];
            let open = place.uses == uses && place.exchange.is_some();
            if open && deadline_us > now_us {
                return;
            }
            self.deadlines.pop_front();
            if open {
                self.end(at, Outcome::Timeout, clock);
            }
        }
    }

    /// Ends everything that is under way.
    fn give_up(&mut self, clock: Clock) {
        for at in 0..self.places.len() {
            if self.places[at].exchange.is_some() {
                self.end(at, Outcome::Interrupted, clock);
            }
        }
    }

    fn wait(&mut self, events: &mut Vec<epoll::Event>, clock: Clock) -> Result<()> {
        let until =
            self.deadlines.front().map(|(deadline_us, ..)| deadline_us.saturating_sub(clock.now_us()));
        // Rounded up: a deadline is over when it is looked at again.
        let limit = until.map_or(SLEEP_MAX, |us| Duration::from_micros(us + 1)).min(SLEEP_MAX);
        let timeout = Timespec { tv_sec: 0, tv_nsec: limit.subsec_nanos().into() };
        events.clear();
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error).context("epoll"),
        }
    }

    /// Takes the bell's count.
    fn hush(&self) -> Result<()> {
        match rustix::io::read(&self.shared.bells[self.number], &mut [0; 8]) {
            Ok(_) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error).context("read an eventfd"),
        }
    }
}
