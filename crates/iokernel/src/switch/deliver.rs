//! Frames into ingress rings and ports: the path of a frame after its checks.

use tailwater_ports::{Delivery, Port};
use tailwater_sched::ledger::RuntimeClass;
use tailwater_sched::{KthreadId, RuntimeId};
use tailwater_shm::ring::{ReserveError, lines_of};
use tailwater_shm::trace::{TraceEvent, event};
use tailwater_shm::{Cycles, clock};
use tailwater_wire::packet::decode;

use super::broadcast::leaves_room;
use super::check::{Heading, is_group};
use super::mac::Destination;
use super::multicast::{Audience, audience};
use super::shares::{PortQueue, Shares};
use super::source::{Origin, Source};
use super::{Held, Switch};
use crate::capture::Point;
use crate::firewall::Direction;
use crate::runtime::{EndReason, Kthread, Sender};
use crate::tenant::TenantId;
use crate::trace;
use crate::world::{Lender, World};

impl Switch {
    /// Sends a frame to its destination address.
    #[inline(always)]
    pub(super) fn route<S: Source>(
        &mut self,
        origin: Origin,
        source: &S,
        heading: Heading,
        world: &mut World,
        lender: &mut impl Lender,
        now: Cycles,
    ) -> Delivery {
        let port = match self.macs.find(heading.destination) {
            Some(Destination::Runtime(id)) => {
                return self.deliver::<false, _>((origin, id), source, heading.hash, world, lender, now);
            }
            Some(Destination::Port(number)) => Some(number),
            None if is_group(heading.destination) => {
                return self.flood(origin, source, heading, world, lender, now);
            }
            None if self.absent.may_be_absent(heading.destination)
                && self.refuse_absent(origin, source, heading, world, lender, now) =>
            {
                return Delivery::Unknown;
            }
            None => self.uplink,
        };
        match port {
            Some(number) if origin != Origin::Port(number) => {
                self.transmit(number, origin, source, world, now)
            }
            _ => {
                world.stats.switch.dropped_unknown.add(1);
                Delivery::Unknown
            }
        }
    }

    /// Broadcast and multicast: delivers a copy to every member of the group but the sender, if
    /// that may cause so many copies.
    #[cold]
    fn flood<S: Source>(
        &mut self,
        origin: Origin,
        source: &S,
        heading: Heading,
        world: &mut World,
        lender: &mut impl Lender,
        now: Cycles,
    ) -> Delivery {
        let mut best = Delivery::Unknown;
        let mut receivers = core::mem::take(&mut self.receivers);
        match audience(heading.destination, self.multicast) {
            Audience::AllRuntimes => receivers.extend(world.runtimes.iter().map(|runtime| runtime.id)),
            Audience::Solicited(low) => receivers.extend_from_slice(self.solicited.owners(low)),
            Audience::PortsOnly => {}
        }
        let copies = receivers.len() + self.ports.len();
        let clock = world.clock();
        if let Origin::Runtime(from, tenant) = origin
            && !self.broadcasts.take(&mut world.runtimes.tenants.get_mut(tenant).copies, copies, clock, now)
        {
            receivers.clear();
            self.receivers = receivers;
            self.refused += 1;
            world.stats.switch.dropped_broadcast.add(1);
            if let Some(runtime) = world.runtimes.get(from) {
                runtime.stats.counters.tx_broadcast.add(1);
            }
            return Delivery::Denied;
        }
        world.stats.switch.flooded.add(1);
        self.slow = true;
        self.resolve_absent(origin, source, world, lender, now);
        for id in receivers.drain(..) {
            if !matches!(origin, Origin::Runtime(from, _) if from == id) {
                let to = self.deliver::<true, _>((origin, id), source, heading.hash, world, lender, now);
                best = better(best, to);
            }
        }
        self.receivers = receivers;
        for number in 0..self.ports.len() as u16 {
            if origin != Origin::Port(number) {
                best = better(best, self.transmit(number, origin, source, world, now));
            }
        }
        best
    }

    /// Puts a frame into the ingress ring of the kthread that serves its flow, first waking the
    /// runtime if it has no core. A frame to a `GROUP` leaves part of the ring to others, and one
    /// of a program the shares of other programs.
    #[inline(always)]
    pub(super) fn deliver<const GROUP: bool, S: Source>(
        &mut self,
        (origin, id): (Origin, RuntimeId),
        source: &S,
        hash: u32,
        world: &mut World,
        lender: &mut impl Lender,
        now: Cycles,
    ) -> Delivery {
        if matches!(origin, Origin::Port(_)) && !GROUP {
            self.note_addressee(id);
        }
        let unserved = match world.runtimes.get_mut(id) {
            Some(runtime) if !runtime.is_ended => {
                let unserved = runtime.groups.is_unserved();
                // Before a kthread is woken for the frame.
                if runtime.guard.is_some()
                    && !runtime.permits(Direction::Ingress, source.shown(), source.len(), &world.stats, now)
                {
                    return Delivery::Denied;
                }
                unserved
            }
            _ => return Delivery::Unknown,
        };
        // Before a kthread is woken for the frame: its trace begins here.
        let traced = match source.arrival() {
            Some(arrival) if world.trace.is_due() => {
                world.trace.sample(&mut world.runtimes, id, source.shown(), source.len(), arrival)
            }
            _ => None,
        };
        if unserved && !(is_bare_ack(source) && lender.hold(world, id, hash, now)) {
            // Before the frame is put into a ring: the flow groups move to the kthread that gets
            // the core.
            lender.wakeup(world, id, now);
            self.slow = true;
        }
        let Some(runtime) = world.runtimes.get_mut(id) else { return Delivery::Unknown };
        let to_service = runtime.spec.class == RuntimeClass::LatencyCritical;
        if to_service && !self.best_effort && !GROUP {
            self.served_until = now.saturating_add(self.timing.served);
            // What a program sends to itself, or is answered by the switch, is no client's.
            if !self.from_local_peer && !matches!(origin, Origin::Runtime(from, _) if from == id) {
                self.others_served_until = now.saturating_add(self.timing.others_served);
            }
        }
        let kthread = runtime.groups.kthread(hash);
        let Kthread { ingress, shares, .. } = &mut runtime.kthreads[usize::from(kthread)];
        let may_put = match origin {
            _ if GROUP => leaves_room(ingress, runtime.ring_lines),
            Origin::Runtime(_, from) => {
                shares.admit(ingress, runtime.ring_lines, from, lines_of(source.len()))
            }
            Origin::Port(_) => true,
        };
        if !may_put {
            runtime.stats.counters.rx_full.add(1);
            world.stats.switch.dropped_full.add(1);
            return Delivery::Full;
        }
        if ingress.cork() {
            self.corked.push(KthreadId::new(id, kthread));
        }
        let followed = if runtime.groups.has_moved(hash) {
            self.moves.follow(runtime, hash, &world.stats.switch, now)
        } else {
            Ok(())
        };
        let ingress = &mut runtime.kthreads[usize::from(kthread)].ingress;
        let put = match traced {
            None => followed.and_then(|()| source.put(ingress, hash, now)),
            Some(number) => {
                let lines = ingress.head().wrapping_sub(ingress.unchecked_tail());
                let put = followed.and_then(|()| source.put_traced(ingress, number, now));
                let who = trace::who(KthreadId::new(id, kthread));
                let event = in_ring(number, who, &put, (unserved, lines));
                world.trace.emit(clock::now(), &event);
                put
            }
        };
        match put {
            Ok(()) => {
                runtime.groups.note(hash, ingress.position());
                runtime.stats.counters.rx_frames.add(1);
                runtime.stats.counters.rx_bytes.add(source.len() as u64);
                world.stats.switch.delivered.add(1);
                if to_service && self.best_effort && now < self.served_until {
                    self.to_services += 1;
                }
                if self.captures.is_on() {
                    self.capture(Point::ToRuntime(id), source);
                }
                Delivery::Delivered
            }
            Err(ReserveError::Full) => {
                runtime.stats.counters.rx_full.add(1);
                world.stats.switch.dropped_full.add(1);
                Delivery::Full
            }
            Err(ReserveError::Lie(lie)) => {
                world.mark_ended(id, EndReason::IngressLie { kthread, lie });
                Delivery::Unknown
            }
        }
    }

    /// Makes the records of the batch visible to the receivers.
    #[inline(always)]
    pub(super) fn uncork(&mut self, world: &mut World) {
        while let Some(kthread) = self.corked.pop() {
            world.runtimes.kthread_mut(kthread).ingress.uncork();
        }
    }

    /// Passes a frame to a port, unless its sender has had its share of a queue that fills.
    pub(super) fn transmit<S: Source>(
        &mut self,
        number: u16,
        origin: Origin,
        source: &S,
        world: &mut World,
        now: Cycles,
    ) -> Delivery {
        if let Some(held) = self.held
            && held.port == number
            && source.len() <= self.max_port_frame
            && !matches!(origin, Origin::Runtime(_, from) if from == held.tenant)
        {
            self.send_held(world);
        }
        let line = &mut self.ports[usize::from(number)];
        let stats = &world.stats.ports()[usize::from(number)];
        // The port that is being polled gets no frames: it would be sending to itself.
        let Some(port) = &mut line.port else { return Delivery::Unknown };
        if source.len() > self.max_port_frame {
            stats.refused.add(1);
            world.stats.switch.dropped_port.add(1);
            return Delivery::BadLength;
        }
        let Some(frame) = source.copy(&mut self.buffer) else {
            world.stats.switch.dropped_torn.add(1);
            return Delivery::BadLength;
        };
        self.slow = true;
        let taken = match origin {
            Origin::Runtime(_, from) => {
                line.used = true;
                send(&mut **port, &mut line.shares, from, now, frame)
            }
            Origin::Port(_) => port.transmit(now, frame),
        };
        if taken {
            line.dirty = true;
            stats.transmitted.add(1);
            world.stats.switch.to_ports.add(1);
            if self.captures.is_on() {
                self.captures.push(Point::ToPort(number), frame);
            }
            Delivery::Delivered
        } else {
            stats.refused.add(1);
            world.stats.switch.dropped_port.add(1);
            Delivery::Full
        }
    }

    /// Notes at the end of a turn of this sender what a port holds back of it. Of two ports only
    /// one may; the other one sends it in this turn.
    #[inline(always)]
    pub(super) fn hold_at_ports(&mut self, sender: &Sender, class: RuntimeClass, now: Cycles) {
        for (number, line) in (0u16..).zip(&mut self.ports) {
            if !core::mem::take(&mut line.used) {
                continue;
            }
            let awaits_more = line.port.as_ref().is_some_and(|port| port.awaits_more());
            let is_held = self.held.is_some_and(|held| held.port == number);
            match (awaits_more, self.held) {
                (true, Some(_)) if !is_held => line.flush(),
                (true, _) => {
                    let until = now.saturating_add(self.timing.hold);
                    self.held = Some(Held { port: number, tenant: sender.tenant, class, until });
                }
                (false, _) if is_held => self.held = None,
                (false, _) => {}
            }
        }
    }

    /// Sends what a port holds back and charges the tenant that it is of, whose turn is over.
    #[inline(never)]
    pub(crate) fn send_held(&mut self, world: &mut World) {
        let Some(Held { port, tenant, class, .. }) = self.held.take() else { return };
        let began = (self.stopwatch)();
        self.ports[usize::from(port)].flush();
        let took = (self.stopwatch)().saturating_sub(began);
        self.aside += took;
        let tenant = world.runtimes.tenants.get_mut(tenant);
        let cost = tenant.cost_of_turn(took.min(self.timing.longest_turn));
        self.turns.charge(&mut tenant.tag, class, cost);
    }

    /// Flushes the ports that took frames, except one that holds some back.
    pub(super) fn flush(&mut self) {
        let held = self.held.map(|held| held.port);
        for (number, line) in (0u16..).zip(&mut self.ports).filter(|(_, line)| line.dirty) {
            if held != Some(number) {
                line.flush();
            }
        }
    }
}

/// Returns whether a frame is a TCP segment that only acknowledges.
#[inline(never)]
fn is_bare_ack<S: Source>(source: &S) -> bool {
    matches!(decode(source.shown(), source.len()), Ok(Some(packet)) if packet.is_bare_ack())
}

/// Passes a frame of this tenant to a port, unless it has had its share of the queue.
fn send(port: &mut dyn Port, shares: &mut Vec<Shares>, from: TenantId, now: Cycles, frame: &[u8]) -> bool {
    let Some(queue) = port.queue(frame) else { return port.transmit(now, frame) };
    let (number, size) = (queue.number, queue.size);
    if number >= shares.len() {
        shares.resize_with(number + 1, Shares::default);
    }
    shares[number].admit(&mut PortQueue { port, queue }, size, from, 1)
        && port.transmit_to(number, now, frame)
}

/// Returns the event of a frame that was put into a ring, or found it full.
fn in_ring(
    id: u32,
    who: event::Who,
    put: &Result<(), ReserveError>,
    (unserved, lines): (bool, u32),
) -> TraceEvent {
    match put {
        Ok(()) => TraceEvent::InRing { id, who, unserved, lines },
        Err(ReserveError::Full) => TraceEvent::Undelivered { id, who, why: event::Undelivered::Full },
        Err(ReserveError::Lie(_)) => TraceEvent::Undelivered { id, who, why: event::Undelivered::Gone },
    }
}

/// Returns the result of a broadcast of which two copies had the results `a` and `b`.
fn better(a: Delivery, b: Delivery) -> Delivery {
    if a == Delivery::Delivered || b == Delivery::Unknown { a } else { b }
}
