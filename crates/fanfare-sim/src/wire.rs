//! Between data planes and sandboxes: requests, answers, and user code in between.

use crate::event::{Event, MachineTimer, Visit, Wire, Word};
use crate::net::Site;
use crate::request::Place;
use crate::world::World;
use fanfare_types::{NodeId, SandboxId};

impl World<'_> {
    pub(crate) fn send_word(&mut self, wire: Wire) {
        let at = self.now + self.delay(wire.from, wire.to);
        self.queue.schedule(at, Event::Wire(wire));
    }

    /// A word arrives, unless those two cannot reach each other; then it does when they can.
    pub(crate) fn wire(&mut self, wire: Wire) {
        if !self.net.reaches(wire.from, wire.to) {
            return self.held.push(wire);
        }
        match wire.to {
            Site::Plane(index) => match wire.what {
                // Whoever forwards finds nobody there, and serves it itself.
                Word::Forward if !self.planes[index].up || self.planes[index].life != wire.life => {
                    if let Site::Plane(from) = wire.from {
                        self.serve_here(from, wire.visit);
                    }
                }
                _ if self.planes[index].life == wire.life => self.plane_word(index, wire),
                _ => {}
            },
            Site::Node(index) => {
                if let Word::Request(sandbox) = wire.what {
                    self.request_reaches(index, sandbox, wire);
                }
            }
            Site::Control(_) | Site::Store => {}
        }
    }

    /// A request reaches its sandbox: user code begins with it.
    fn request_reaches(&mut self, index: usize, sandbox: SandboxId, wire: Wire) {
        let Site::Plane(plane) = wire.from else { return };
        if self.planes[plane].life != wire.life {
            // Nobody sends the rest of it.
            return;
        }
        let back = |what| Wire { from: wire.to, to: wire.from, what, ..wire };
        let request = wire.visit.request;
        let machine_life = self.nodes[index].machine.life;
        let body = self.nodes[index].machine.bodies.get_mut(&sandbox);
        let Some(body) = body.filter(|body| body.ready && !body.ending) else {
            if !self.nodes[index].machine.down {
                self.send_word(back(Word::Refused));
            }
            return;
        };
        body.meter.count(self.now, body.running.len());
        body.running.insert(request);
        let record = &mut self.requests[request];
        record.executions += 1;
        record.started.get_or_insert(self.now);
        self.did.sandboxes.push((NodeId(u32::try_from(index).unwrap_or(u32::MAX) + 1), sandbox));
        self.did.requests.push(request);
        if let Some(execution) = record.arrival.execution {
            let done = MachineTimer::Executed(sandbox, wire.visit);
            self.queue.schedule(self.now + execution, Event::Machine(index, machine_life, done));
        }
        self.log.line(self.now, format_args!("request {request} runs in {sandbox}"));
    }

    /// User code is done with a request.
    pub(crate) fn executed(&mut self, index: usize, sandbox: SandboxId, visit: Visit) {
        let body = self.nodes[index].machine.bodies.get_mut(&sandbox);
        let Some(body) = body.filter(|body| body.running.contains(&visit.request)) else { return };
        body.meter.count(self.now, body.running.len());
        body.running.remove(&visit.request);
        self.back_to_plane(index, visit.request, sandbox, Word::Answer);
    }

    /// A sandbox that had a request in it has closed the connection.
    pub(crate) fn hang_up(&mut self, index: usize, sandbox: SandboxId, request: usize) {
        self.back_to_plane(index, request, sandbox, Word::HungUp);
    }

    fn back_to_plane(&mut self, index: usize, request: usize, sandbox: SandboxId, what: Word) {
        let record = &self.requests[request];
        let Place::Slotted { plane, sandbox: handle, .. } = record.place else { return };
        if handle.sandbox != sandbox {
            return;
        }
        let (from, to) = (Site::Node(index), Site::Plane(plane));
        let life = self.planes[plane].life;
        self.send_word(Wire { visit: record.visit(request), from, to, life, what });
    }
}
