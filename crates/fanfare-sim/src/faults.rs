//! What goes wrong, and how it is mended.

use std::time::Duration;

use fanfare_policy::RngExt;
use fanfare_types::{ExitCause, SandboxId, Timestamp};

use crate::event::{ControlTimer, Event, FaultEvent, NodeTimer, PlaneTimer};
use crate::net::Site;
use crate::scenario::{Fault, Faults};
use crate::world::World;

/// How long a partition lasts.
const PARTED: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(3));
/// How long a pair is slow, and how slow.
const SLOW: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(3));
const SLOWER_BY: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(900));
/// How long a process is away.
const AWAY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(3));
/// How long a process stands still.
const STILL: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(2_500));
/// By how much a clock leaps.
const LEAP: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

impl World<'_> {
    pub(crate) fn fault(&mut self, event: FaultEvent) {
        let Some(faults) = &self.scenario.faults else { return };
        match event {
            FaultEvent::Next if self.now < faults.until => {
                self.faulty = true;
                self.something_goes_wrong(faults);
                let after = self.between(Duration::ZERO, faults.every * 2);
                self.queue.schedule(self.now + after, Event::Fault(FaultEvent::Next));
            }
            FaultEvent::Next => {}
            FaultEvent::Unblock(from, to) => self.unblock(from, to),
            FaultEvent::SpeedUp(from, to) => self.net.speed_up(from, to),
            FaultEvent::Ping(stream, end) => self.ping(stream, end),
            FaultEvent::Mend => self.mend(),
        }
    }

    fn something_goes_wrong(&mut self, faults: &Faults) {
        let total: u32 = faults.kinds.iter().map(|(_, weight)| weight).sum();
        let mut draw = self.rng.random_range(0..total.max(1));
        for (kind, weight) in &faults.kinds {
            if draw < *weight {
                if self.inflict(*kind) {
                    self.faults += 1;
                }
                return;
            }
            draw -= weight;
        }
    }

    /// Whether somebody was there to be met.
    fn inflict(&mut self, kind: Fault) -> bool {
        match kind {
            Fault::CutStream => self.cut_stream(),
            Fault::Partition => self.partition(),
            Fault::Isolation => self.isolate(),
            Fault::Slowness => self.slow_down(),
            Fault::KillControl => {
                let index = self.rng.random_range(0..self.controls.len());
                if self.controls[index].up {
                    self.say(format_args!("FAULT: control {index} is killed"));
                    let away = self.between(AWAY.0, AWAY.1);
                    self.kill_control(index, away);
                }
                true
            }
            Fault::KillPlane | Fault::DrainPlane => {
                let index = self.rng.random_range(0..self.planes.len());
                if !self.planes[index].up || self.planes[index].draining {
                    return false;
                }
                self.say(format_args!("FAULT: plane {index}: {kind:?}"));
                if kind == Fault::DrainPlane {
                    self.drain_plane(index);
                } else {
                    let away = self.between(AWAY.0, AWAY.1);
                    self.kill_plane(index, away);
                }
                true
            }
            Fault::KillDaemon | Fault::LoseMachine => {
                let index = self.rng.random_range(0..self.nodes.len());
                if !self.nodes[index].up {
                    return false;
                }
                self.say(format_args!("FAULT: node {index}: {kind:?}"));
                let away = self.between(AWAY.0, AWAY.1);
                if kind == Fault::KillDaemon {
                    self.kill_daemon(index, away);
                } else {
                    self.lose_machine(index, away);
                }
                true
            }
            Fault::Stall => self.stall(),
            Fault::Leap => self.leap(),
            Fault::EndSandbox => self.end_some_sandbox(),
        }
    }

    fn cut_stream(&mut self) -> bool {
        let streams: Vec<_> = self.net.streams.keys().copied().collect();
        if streams.is_empty() {
            return false;
        }
        let stream = streams[self.rng.random_range(0..streams.len())];
        self.say(format_args!("FAULT: stream {} is cut", stream.0));
        self.net.lose(stream);
        self.find_broken(stream, crate::net::End::Control);
        self.find_broken(stream, crate::net::End::Peer);
        true
    }

    /// Pairs that talk to each other.
    fn pairs(&self) -> Vec<(Site, Site)> {
        let controls = || (0..self.controls.len()).map(Site::Control);
        let planes = || (0..self.planes.len()).map(Site::Plane);
        let nodes = || (0..self.nodes.len()).map(Site::Node);
        let mut pairs = Vec::new();
        for control in controls() {
            pairs.extend(planes().chain(nodes()).map(|peer| (control, peer)));
            pairs.push((control, Site::Store));
        }
        for plane in planes() {
            pairs.extend(nodes().map(|node| (plane, node)));
            pairs.extend(planes().filter(|other| *other > plane).map(|other| (plane, other)));
        }
        pairs
    }

    fn partition(&mut self) -> bool {
        let pairs = self.pairs();
        let (a, b) = pairs[self.rng.random_range(0..pairs.len())];
        let until = self.now + self.between(PARTED.0, PARTED.1);
        let ways: &[(Site, Site)] = match self.rng.random_range(0..4) {
            0 => &[(a, b)],
            1 => &[(b, a)],
            _ => &[(a, b), (b, a)],
        };
        self.say(format_args!("FAULT: {ways:?} are parted until {until}"));
        self.part(ways, until);
        true
    }

    fn isolate(&mut self) -> bool {
        let pairs = self.pairs();
        let (a, b) = pairs[self.rng.random_range(0..pairs.len())];
        let lonely = if self.rng.random_bool(0.5) || b == Site::Store { a } else { b };
        let until = self.now + self.between(PARTED.0, PARTED.1);
        self.say(format_args!("FAULT: {lonely:?} is isolated until {until}"));
        let its = pairs.into_iter().filter(|(a, b)| *a == lonely || *b == lonely);
        let ways: Vec<_> = its.flat_map(|(a, b)| [(a, b), (b, a)]).collect();
        self.part(&ways, until);
        true
    }

    fn part(&mut self, ways: &[(Site, Site)], until: Timestamp) {
        for (from, to) in ways {
            if self.net.block(*from, *to) {
                self.queue.schedule(until, Event::Fault(FaultEvent::Unblock(*from, *to)));
                self.pings_fail(*from, *to);
            }
        }
    }

    /// What was held up between two comes now.
    fn unblock(&mut self, from: Site, to: Site) {
        self.net.unblock(from, to);
        for (stream, end) in self.net.between(from, to) {
            for _ in 0..self.net.release(stream, end) {
                self.queue.schedule(self.now, Event::Lane(stream, end));
            }
        }
        let (free, held) =
            std::mem::take(&mut self.held).into_iter().partition(|wire| wire.from == from && wire.to == to);
        self.held = held;
        let free: Vec<_> = free;
        for wire in free {
            self.send_word(wire);
        }
    }

    fn slow_down(&mut self) -> bool {
        let pairs = self.pairs();
        let (a, b) = pairs[self.rng.random_range(0..pairs.len())];
        let (from, to) = if self.rng.random_bool(0.5) { (a, b) } else { (b, a) };
        let (by, lasts) = (self.between(SLOWER_BY.0, SLOWER_BY.1), self.between(SLOW.0, SLOW.1));
        self.say(format_args!("FAULT: from {from:?} to {to:?} it takes {by:?} longer for {lasts:?}"));
        self.net.slow_down(from, to, by);
        self.queue.schedule(self.now + lasts, Event::Fault(FaultEvent::SpeedUp(from, to)));
        true
    }

    /// Any process.
    fn some_process(&mut self) -> Site {
        let (controls, planes) = (self.controls.len(), self.planes.len());
        match self.rng.random_range(0..controls + planes + self.nodes.len()) {
            n if n < controls => Site::Control(n),
            n if n < controls + planes => Site::Plane(n - controls),
            n => Site::Node(n - controls - planes),
        }
    }

    fn stall(&mut self) -> bool {
        let site = self.some_process();
        let until = self.now + self.between(STILL.0, STILL.1);
        if self.stalled.get(&site).is_some_and(|still| self.now < *still) {
            return false;
        }
        self.say(format_args!("FAULT: {site:?} stands still until {until}"));
        self.stalled.insert(site, until);
        true
    }

    fn leap(&mut self) -> bool {
        let site = self.some_process();
        let by = self.between(LEAP.0, LEAP.1);
        self.say(format_args!("FAULT: the clock of {site:?} leaps by {by:?}"));
        let now = self.now;
        match site {
            Site::Control(index) => self.controls[index].clock.leap(now, by),
            Site::Plane(index) => self.planes[index].clock.leap(now, by),
            Site::Node(index) => self.nodes[index].clock.leap(now, by),
            Site::Store => {}
        }
        self.queue.hurry(now, by, |event| event.is_timer_of(site));
        true
    }

    fn end_some_sandbox(&mut self) -> bool {
        let ready = |(index, node): (usize, &crate::node::Node)| {
            let bodies = node.machine.bodies.iter().filter(|(_, body)| body.ready);
            bodies.map(move |(sandbox, _)| (index, *sandbox)).collect::<Vec<_>>()
        };
        let all: Vec<(usize, SandboxId)> = self.nodes.iter().enumerate().flat_map(ready).collect();
        if all.is_empty() {
            return false;
        }
        let (index, sandbox) = all[self.rng.random_range(0..all.len())];
        self.say(format_args!("FAULT: {sandbox} on node {index} ends by itself"));
        self.end_body(index, sandbox, ExitCause::Status(1));
        true
    }

    /// Faults are over: whatever is broken is mended now.
    fn mend(&mut self) {
        self.say(format_args!("faults are over"));
        self.faulty = false;
        for (from, to) in self.net.mend() {
            self.unblock(from, to);
        }
        self.stalled.clear();
        let at = self.now + Duration::from_millis(10);
        for (index, control) in self.controls.iter().enumerate().filter(|(_, c)| !c.up) {
            self.queue.schedule(at, Event::Control(index, control.life, ControlTimer::Start));
        }
        for (index, plane) in self.planes.iter().enumerate().filter(|(_, p)| !p.up) {
            self.queue.schedule(at, Event::Plane(index, plane.life, PlaneTimer::Start));
        }
        for (index, node) in self.nodes.iter().enumerate().filter(|(_, n)| !n.up) {
            self.queue.schedule(at, Event::Node(index, node.life, NodeTimer::Start));
        }
    }
}
