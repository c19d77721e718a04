//! Frames out of ports: every port injects up to its budget, and the switch routes each frame at
//! once.
//!
//! A port is read for as long as all turns of an iteration take together: it asks before each
//! further frame ([`Inject::may_go_on`]), so one frame is always read, however long that takes. The
//! clock is read where a frame may have taken long, and after every eighth. Reading a TAP device is
//! a system call of 1 us for each frame, so without that a flood from Linux would keep every frame
//! of a service waiting for 32 of them.
//!
//! The sender of a frame from a port is no tenant; its time is charged to the tenant of the
//! receiver, also if a rule or a full ring drops the frame. The time of a poll is divided equally
//! among its frames, and what falls to frames for groups, for other ports or for no program is
//! charged to none. It is [collected](crate::tenant::Tenant::cost_of_turn) with the tenant's turns,
//! of which it takes three quarters at most: while others send, a flooded program has fewer turns
//! for its answers, but it has some.

use std::net::{IpAddr, Ipv4Addr};
use tailwater_ports::{Delivery, Inject, PORT_BUDGET};
use tailwater_sched::RuntimeId;
use tailwater_shm::Cycles;
use tailwater_shm::ring::{FIRST_LINE_FRAME, MIN_FRAME};
use tailwater_wire::MacAddr;

use super::absent::station_of;
use super::egress::CLOCK_FRAMES;
use super::mac::Destination;
use super::source::{Origin, Private};
use super::{Switch, check};
use crate::capture::Point;
use crate::trace::Arrival;
use crate::world::{Lender, World};

impl Switch {
    /// Lets every port inject for a while. Returns the number of frames injected.
    pub(crate) fn poll_ports(&mut self, world: &mut World, lender: &mut impl Lender, now: Cycles) -> usize {
        if self.ports.is_empty() {
            return 0;
        }
        let mut injected = 0;
        // When a port begins: when the last one that injected anything ended. One that has nothing
        // costs no reading of the clock.
        let mut began = (self.stopwatch)();
        for number in 0..self.ports.len() {
            let Some(mut port) = self.ports[number].port.take() else { continue };
            let polled = core::mem::replace(&mut self.ports[number].polled, now);
            let origin = number as u16;
            self.addressees.clear();
            (self.slow, self.aside) = (false, 0);
            self.from_local_peer = self.ports[number].local;
            let until = began.saturating_add(self.timing.iteration);
            let mut injector = Injector {
                switch: self,
                world,
                lender,
                origin,
                now,
                polled,
                until,
                asked: 0,
                is_over: false,
            };
            let result = port.poll(now, PORT_BUDGET, &mut injector);
            self.uncork(world);
            match result {
                Ok(count) => {
                    if count > 0 {
                        injected += count;
                        let took = (self.stopwatch)().saturating_sub(began + self.aside);
                        self.charge_port_time(count, took, world);
                    }
                    port.resume();
                    self.ports[number].port = Some(port);
                    self.flush_answers(origin, world, now);
                    if count > 0 {
                        began = (self.stopwatch)();
                    }
                }
                Err(error) => {
                    world.stats.ports()[number].failed.set(1);
                    tracing::error!(%error, "a port failed and is detached");
                }
            }
        }
        self.from_local_peer = false;
        if injected > 0 {
            self.flush();
        }
        injected
    }

    /// Charges the tenants that frames were for with the `took` in which a port has injected
    /// `count` of them.
    fn charge_port_time(&mut self, count: usize, took: Cycles, world: &mut World) {
        let most = self.timing.longest_turn;
        let took = took.min(most);
        for (id, frames) in self.addressees.drain(..) {
            let Some(runtime) = world.runtimes.get(id) else { continue };
            let part = took * Cycles::from(frames) / count as Cycles;
            world.runtimes.tenants.get_mut(runtime.tenant).charge_port_time(part, most);
        }
    }

    /// Notes that a frame of the port that is being polled is for this program.
    #[inline]
    pub(super) fn note_addressee(&mut self, id: RuntimeId) {
        match self.addressees.iter_mut().find(|(other, _)| *other == id) {
            Some((_, frames)) => *frames += 1,
            None => self.addressees.push((id, 1)),
        }
    }
}

/// The switch as passed to the port that is being polled.
struct Injector<'a, L> {
    switch: &'a mut Switch,
    world: &'a mut World,
    lender: &'a mut L,
    origin: u16,
    now: Cycles,
    /// Time of the port's previous poll.
    polled: Cycles,
    /// When the port is to stop,
    until: Cycles,
    /// how often it has asked, and whether that time has come.
    asked: usize,
    is_over: bool,
}

impl<L: Lender> Inject for Injector<'_, L> {
    #[inline]
    fn inject(&mut self, frame: &[u8]) -> Delivery {
        self.take(frame, None)
    }

    #[inline]
    fn inject_due(&mut self, frame: &[u8], due: Cycles) -> Delivery {
        self.take(frame, Some(due))
    }

    #[inline]
    fn may_go_on(&mut self, took_long: bool) -> bool {
        self.asked += 1;
        if core::mem::take(&mut self.switch.slow) || took_long || self.asked >= CLOCK_FRAMES {
            self.asked = 0;
            self.is_over = (self.switch.stopwatch)() >= self.until;
        }
        !self.is_over
    }

    fn resolve(&self, ip: Ipv4Addr) -> Option<MacAddr> {
        self.switch.ips.get(&ip).copied()
    }

    fn station(&self, ip: IpAddr) -> Option<MacAddr> {
        station_of(self.switch.absent.config(), ip).map(|(mac, _)| mac)
    }

    #[cold]
    fn renewed(&mut self, mac: Option<MacAddr>, has_local_peer: bool) {
        let port = Destination::Port(self.origin);
        self.switch.macs.remove(port);
        if let Some(mac) = mac {
            self.switch.macs.insert(mac, port);
        }
        self.switch.ports[usize::from(self.origin)].local = has_local_peer;
    }
}

impl<L: Lender> Injector<'_, L> {
    #[inline]
    fn take(&mut self, frame: &[u8], due: Option<Cycles>) -> Delivery {
        let stats = &self.world.stats;
        stats.switch.from_ports.add(1);
        stats.ports()[usize::from(self.origin)].injected.add(1);
        if !(MIN_FRAME..=self.switch.max_port_frame).contains(&frame.len()) {
            stats.switch.dropped_malformed.add(1);
            return Delivery::BadLength;
        }
        if self.switch.captures.is_on() {
            self.switch.captures.push(Point::FromPort(self.origin), frame);
        }
        let mut head = [0; FIRST_LINE_FRAME];
        let shown = frame.len().min(FIRST_LINE_FRAME);
        head[..shown].copy_from_slice(&frame[..shown]);
        let Switch { locals, macs, absent, .. } = &*self.switch;
        if locals.are_claimed_by(&head, frame, macs, absent.config()) {
            self.world.stats.switch.dropped_foreign.add(1);
            return Delivery::Denied;
        }
        let heading = check::heading(&head, frame);
        let arrival = Arrival { port: self.origin, due, polled: self.polled };
        let source = Private::from_port(frame, arrival);
        self.switch.route(Origin::Port(self.origin), &source, heading, self.world, self.lender, self.now)
    }
}
