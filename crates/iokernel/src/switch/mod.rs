//! The switch: frames from egress rings and ports to ingress rings and ports.
//!
//! Owns the MAC table, the egress rings that are being polled, and the ports. A frame is copied once, from the sender's ring or
//! the port's buffer into the receiver's ring; what is checked is a private copy of its first line, which is what is
//! delivered. IPv6, ICMP and IPv4 options are not to be judged by a first line: such a frame is copied whole, judged, and
//! delivered from the copy. Firewall rules and rate limits ([`crate::firewall`]) are asked after the anti-spoofing checks. It decides nothing about cores: a frame for a runtime without one is told to the allocator, which may grant
//! a core before the frame is put into the ring of the kthread that will get it.
//!
//! Batches are bounded ([`EGRESS_BATCH`] per ring and iteration, [`PORT_BUDGET`] per port), so that hand-offs are looked at
//! every few microseconds however much traffic there is.
//!
//! # Crash and lie
//!
//! | what a runtime writes | what happens |
//! |---|---|
//! | a frame with foreign addresses, or none that make sense | dropped and counted, for the runtime too |
//! | a message that only routers send, a VLAN tag, another protocol | the same |
//! | an impossible ring record or position | its registration ends ([`Allocator::doom`]) |
//! | a frame that changes while it is copied | the checked first line is delivered; to a port, nothing |
//! | more frames than its receivers take | dropped at the full ring and counted |

pub(crate) mod check;
#[cfg(test)]
mod firewall_tests;
pub(crate) mod flow;
mod inspect;
pub(crate) mod mac;
mod multicast;
mod offload;
pub(crate) mod packet;
mod source;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::net::Ipv4Addr;
use tailwater_sched::{KthreadId, RuntimeId};
use tailwater_shm::ring::{FIRST_LINE_FRAME, FirstLine, FrameBuffer, MIN_FRAME, Record, ReserveError};
use tailwater_shm::trace::{Event, FLAG_TRACED, event};
use tailwater_shm::{Cycles, clock};

use crate::allocator::Allocator;
use crate::capture::{Captures, Point};
use crate::config::Config;
use crate::firewall::{Direction, Multicast, Ruling};
use crate::frame::{ETHERNET_HEADER, Mac};
use crate::port::{Attachment, Delivery, Inject, PORT_BUDGET, Port};
use crate::runtime::{Egress, EndReason, Runtime};
use crate::stats::Stats;
use crate::trace::{self, Arrival};
use check::{Heading, Offence, Verdict, is_group};
use inspect::inspect;
use mac::{Destination, MacTable};
use multicast::{Audience, SolicitedNodes, audience};
use source::{FromRing, Private, Source};

/// Most frames taken from one egress ring per iteration.
const EGRESS_BATCH: usize = 32;

/// See the module documentation.
pub(crate) struct Switch {
    macs: MacTable,
    /// Addresses of runtimes and stations, for ports that do without ARP.
    ips: HashMap<Ipv4Addr, Mac>,
    polled: Vec<Egress>,
    ports: Vec<PortLine>,
    uplink: Option<u16>,
    max_frame: usize,
    /// EtherTypes that runtimes may send beside those that are checked.
    ethertypes: Vec<u16>,
    solicited: SolicitedNodes,
    /// What becomes of frames for other IPv6 groups.
    multicast: Multicast,
    buffer: FrameBuffer,
    /// Where frames are copied that must be judged whole; `None` while one is.
    whole: Option<FrameBuffer>,
    /// Ingress rings that hold back what the present batch put into them; see [`Producer::cork`].
    corked: Vec<KthreadId>,
    /// Receivers of the present broadcast; kept for its memory.
    receivers: Vec<RuntimeId>,
    /// Copies made for broadcasts in the present batch.
    flooded: usize,
    pub(crate) captures: Captures,
}

struct PortLine {
    /// `None` while it is being polled, and for ever once it has failed.
    port: Option<Box<dyn Port>>,
    /// It was handed frames and wants to be flushed.
    dirty: bool,
    /// When it was last polled, while somebody traces.
    polled: Cycles,
}

/// Where a frame comes from, so that it does not go back there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    Runtime(RuntimeId),
    Port(u16),
}

impl Switch {
    /// A switch of these started ports, without runtimes. The caller has checked that addresses are unique and that there is
    /// one uplink at most.
    pub(crate) fn new(ports: Vec<Box<dyn Port>>, config: &Config) -> Self {
        let (mut macs, mut ips, mut uplink) = (MacTable::new(), HashMap::new(), None);
        for (number, port) in (0u16..).zip(&ports) {
            match port.attachment() {
                Attachment::Station { mac, ip } => {
                    macs.insert(mac, Destination::Port(number));
                    ips.extend(ip.map(|ip| (ip, mac)));
                }
                Attachment::Uplink { .. } => uplink = Some(number),
            }
        }
        Self {
            macs,
            ips,
            polled: Vec::new(),
            ports: ports
                .into_iter()
                .map(|port| PortLine { port: Some(port), dirty: false, polled: 0 })
                .collect(),
            uplink,
            max_frame: usize::from(config.mtu) + ETHERNET_HEADER,
            ethertypes: config.firewall.ethertypes.clone(),
            solicited: SolicitedNodes::default(),
            multicast: config.firewall.multicast,
            buffer: FrameBuffer::new(),
            whole: Some(FrameBuffer::new()),
            corked: Vec::new(),
            receivers: Vec::new(),
            flooded: 0,
            captures: Captures::default(),
        }
    }

    pub(crate) fn attach(&mut self, runtime: &Runtime) {
        self.macs.insert(runtime.mac, Destination::Runtime(runtime.id));
        self.ips.insert(runtime.ip, runtime.mac);
        self.captures.handle_attached(&runtime.stats.name, runtime.id);
        self.solicited.insert(runtime.id, runtime.identity.ipv6());
    }

    /// Forgets a runtime: no ring of it is touched after this.
    pub(crate) fn detach(&mut self, id: RuntimeId, ip: Option<Ipv4Addr>) {
        self.macs.remove(Destination::Runtime(id));
        self.solicited.remove(id);
        if let Some(ip) = ip {
            self.ips.remove(&ip);
        }
        self.polled.retain(|egress| egress.owner.runtime != id);
        self.captures.handle_detached(id);
    }

    /// The ports that still work.
    pub(crate) fn ports(&self) -> impl Iterator<Item = &dyn Port> {
        self.ports.iter().filter_map(|line| line.port.as_deref())
    }

    /// Whether a frame waits in a ring that is polled.
    pub(crate) fn has_egress(&self) -> bool {
        self.polled.iter().any(|egress| egress.consumer.has_record())
    }

    /// Takes up to a batch from every egress ring that may hold frames. Returns how many frames were moved.
    pub(crate) fn poll_egress(&mut self, alloc: &mut Allocator, now: Cycles) -> usize {
        if !alloc.arriving.is_empty() {
            self.polled.append(&mut alloc.arriving);
        }
        let mut polled = core::mem::take(&mut self.polled);
        let mut moved = 0;
        let mut i = 0;
        while i < polled.len() {
            let taken = self.drain(&mut polled[i], alloc, now);
            moved += taken;
            if taken == 0 && self.put_aside(&mut polled, i, alloc) {
                continue;
            }
            i += 1;
        }
        self.polled = polled;
        if moved > 0 {
            self.flush();
        }
        moved
    }

    /// Stops polling the empty ring of a kthread that lost its core. True if it did.
    fn put_aside(&self, polled: &mut Vec<Egress>, i: usize, alloc: &mut Allocator) -> bool {
        let owner = polled[i].owner;
        // The order matters: "may not run" was set after Parked was seen, which came after the last frame.
        if alloc.runtimes.kthread(owner).1.may_run || polled[i].consumer.has_record() {
            return false;
        }
        let egress = polled.swap_remove(i);
        alloc.runtimes.kthread_mut(owner).egress = Some(egress);
        true
    }

    /// Moves up to a batch of frames out of one egress ring.
    #[inline]
    fn drain(&mut self, egress: &mut Egress, alloc: &mut Allocator, now: Cycles) -> usize {
        let mut taken = 0;
        let mut bytes = 0;
        self.flooded = 0;
        // A broadcast costs as much as the copies it takes.
        while taken + self.flooded < EGRESS_BATCH {
            let record = match egress.consumer.peek() {
                Ok(Some(record)) => record,
                Ok(None) => break,
                Err(lie) => {
                    let kthread = egress.owner.index;
                    alloc.doom(egress.owner.runtime, EndReason::EgressLie { kthread, lie });
                    break;
                }
            };
            let first = egress.consumer.first_line(&record);
            let source = FromRing { consumer: &egress.consumer, record: &record, first: &first };
            if self.captures.is_on() {
                // Also what is refused below: a capture shows what was sent.
                self.capture(Point::FromRuntime(egress.owner.runtime), &source);
            }
            // Its number is the runtime's word.
            let traced = record.flags & FLAG_TRACED != 0 && alloc.trace.is_on();
            if traced {
                let (id, who) = (record.hash, trace::who(egress.owner));
                alloc.trace.emit(clock::now(), &Event::Seen { id, who });
            }
            let delivery = match self.judge(&first, &record, egress) {
                Verdict::Pass(heading) => self.send(egress, &source, heading, alloc, now),
                Verdict::Inspect => self.send_whole(egress, &record, alloc, now),
                Verdict::Offence(offence) => {
                    count_offence(offence, egress, alloc);
                    Delivery::Denied
                }
            };
            if traced {
                let (id, who) = (record.hash, trace::who(egress.owner));
                let taken = delivery == Delivery::Delivered;
                alloc.trace.emit(clock::now(), &Event::Left { id, who, taken });
            }
            egress.consumer.advance(&record);
            taken += 1;
            bytes += record.len;
        }
        if taken > 0 {
            self.uncork(alloc);
            egress.consumer.publish();
            egress.stats.counters.tx_frames.add(taken as u64);
            egress.stats.counters.tx_bytes.add(bytes as u64);
            alloc.stats.switch.from_runtimes.add(taken as u64);
        }
        taken
    }

    /// Copies a frame for those who watch.
    #[cold]
    fn capture<S: Source>(&mut self, point: Point, source: &S) {
        if self.captures.wants(point)
            && let Some(frame) = source.copy(&mut self.buffer)
        {
            self.captures.push(point, frame);
        }
    }

    /// Shows the receivers what the batch brought them.
    #[inline(always)]
    fn uncork(&mut self, alloc: &mut Allocator) {
        while let Some(kthread) = self.corked.pop() {
            alloc.runtimes.kthread_mut(kthread).ingress.uncork();
        }
    }

    #[inline(always)]
    fn judge(&self, first: &FirstLine, record: &Record, egress: &Egress) -> Verdict {
        if record.len > self.max_frame {
            return Verdict::Offence(Offence::Malformed);
        }
        match check::check(first.frame(), record.len, &egress.identity) {
            Verdict::Offence(Offence::Ethertype) => self.judge_ethertype(first),
            verdict => verdict,
        }
    }

    /// A frame of another protocol, from whom it says: passes if the configuration names its EtherType.
    #[cold]
    fn judge_ethertype(&self, first: &FirstLine) -> Verdict {
        let head = first.frame();
        let ethertype = u16::from_be_bytes([head[12], head[13]]);
        match check::mac_key(head, 0) {
            Some(destination) if self.ethertypes.contains(&ethertype) => {
                Verdict::Pass(Heading { destination, hash: 0 })
            }
            _ => Verdict::Offence(Offence::Ethertype),
        }
    }

    /// Judges a frame that must be seen whole, and sends it on from the copy that was judged.
    #[inline(never)]
    fn send_whole(
        &mut self,
        egress: &Egress,
        record: &Record,
        alloc: &mut Allocator,
        now: Cycles,
    ) -> Delivery {
        let Some(mut buffer) = self.whole.take() else { return Delivery::Unknown };
        let frame = egress.consumer.copy_frame(record, &mut buffer);
        let delivery = match inspect(frame, &egress.identity) {
            Ok(heading) => {
                let source = Private::from_ring(frame, record.flags);
                self.send(egress, &source, heading, alloc, now)
            }
            Err(offence) => {
                count_offence(offence, egress, alloc);
                Delivery::Denied
            }
        };
        self.whole = Some(buffer);
        delivery
    }

    /// Sends on what a runtime may send, if its rules and limits say so too.
    #[inline(always)]
    fn send<S: Source>(
        &mut self,
        egress: &Egress,
        source: &S,
        heading: Heading,
        alloc: &mut Allocator,
        now: Cycles,
    ) -> Delivery {
        let from = egress.owner.runtime;
        if egress.guarded
            && !permits(Direction::Egress, alloc.runtimes.get_mut(from), source, &alloc.stats, now)
        {
            return Delivery::Denied;
        }
        self.route(Origin::Runtime(from), source, heading, alloc, now)
    }

    /// Sends a frame where its destination address says.
    #[inline(always)]
    fn route<S: Source>(
        &mut self,
        origin: Origin,
        source: &S,
        heading: Heading,
        alloc: &mut Allocator,
        now: Cycles,
    ) -> Delivery {
        match self.macs.find(heading.destination) {
            Some(Destination::Runtime(id)) => self.deliver(id, source, heading.hash, alloc, now),
            Some(Destination::Port(number)) => self.transmit(number, source, alloc, now),
            None if is_group(heading.destination) => self.flood(origin, source, heading, alloc, now),
            None => match self.uplink {
                Some(number) if origin != Origin::Port(number) => self.transmit(number, source, alloc, now),
                _ => {
                    alloc.stats.switch.dropped_unknown.add(1);
                    Delivery::Unknown
                }
            },
        }
    }

    /// Broadcast and multicast: a copy for all who are meant but the sender.
    #[cold]
    fn flood<S: Source>(
        &mut self,
        origin: Origin,
        source: &S,
        heading: Heading,
        alloc: &mut Allocator,
        now: Cycles,
    ) -> Delivery {
        alloc.stats.switch.flooded.add(1);
        let mut best = Delivery::Unknown;
        let mut receivers = core::mem::take(&mut self.receivers);
        match audience(heading.destination, self.multicast) {
            Audience::Everybody => receivers.extend(alloc.runtimes.iter().map(|runtime| runtime.id)),
            Audience::Solicited(low) => receivers.extend_from_slice(self.solicited.owners(low)),
            Audience::Nobody => {}
        }
        self.flooded += receivers.len() + self.ports.len();
        for id in receivers.drain(..) {
            if origin != Origin::Runtime(id) {
                best = better(best, self.deliver(id, source, heading.hash, alloc, now));
            }
        }
        self.receivers = receivers;
        for number in 0..self.ports.len() as u16 {
            if origin != Origin::Port(number) {
                best = better(best, self.transmit(number, source, alloc, now));
            }
        }
        best
    }

    /// Puts a frame into the ingress ring of the kthread that serves its flow, waking the runtime first if it has no core.
    #[inline(always)]
    fn deliver<S: Source>(
        &mut self,
        id: RuntimeId,
        source: &S,
        hash: u32,
        alloc: &mut Allocator,
        now: Cycles,
    ) -> Delivery {
        let unserved = match alloc.runtimes.get_mut(id) {
            Some(runtime) if !runtime.doomed => {
                let unserved = runtime.groups.is_unserved();
                // Before anybody is woken for it.
                if runtime.guard.is_some()
                    && !permits(Direction::Ingress, Some(runtime), source, &alloc.stats, now)
                {
                    return Delivery::Denied;
                }
                unserved
            }
            _ => return Delivery::Unknown,
        };
        // Before anybody is woken for it: its time begins here.
        let traced = if alloc.trace.is_on() { sample(id, source, alloc) } else { None };
        if unserved {
            // Before the frame is put anywhere: the groups go to the kthread that gets the core.
            alloc.wakeup(id, now);
        }
        let Some(runtime) = alloc.runtimes.get_mut(id) else { return Delivery::Unknown };
        let kthread = runtime.groups.kthread(hash);
        let ingress = &mut runtime.kthreads[usize::from(kthread)].ingress;
        if ingress.cork() {
            self.corked.push(KthreadId::new(id, kthread));
        }
        let put = match traced {
            None => source.put(ingress, hash, now),
            Some(number) => {
                let lines = ingress.head().wrapping_sub(ingress.alleged_tail());
                let put = source.put_traced(ingress, number, now);
                let who = trace::who(KthreadId::new(id, kthread));
                let event = in_ring(number, who, &put, (unserved, lines));
                alloc.trace.emit(clock::now(), &event);
                put
            }
        };
        match put {
            Ok(()) => {
                runtime.stats.counters.rx_frames.add(1);
                runtime.stats.counters.rx_bytes.add(source.len() as u64);
                alloc.stats.switch.delivered.add(1);
                if self.captures.is_on() {
                    self.capture(Point::ToRuntime(id), source);
                }
                Delivery::Delivered
            }
            Err(ReserveError::Full) => {
                runtime.stats.counters.rx_full.add(1);
                alloc.stats.switch.dropped_full.add(1);
                Delivery::Full
            }
            Err(ReserveError::Lie(lie)) => {
                alloc.doom(id, EndReason::IngressLie { kthread, lie });
                Delivery::Unknown
            }
        }
    }

    fn transmit<S: Source>(&mut self, number: u16, source: &S, alloc: &Allocator, now: Cycles) -> Delivery {
        let line = &mut self.ports[usize::from(number)];
        let stats = &alloc.stats.ports()[usize::from(number)];
        // A port that is being polled is not handed frames: it would be sending to itself.
        let Some(port) = &mut line.port else { return Delivery::Unknown };
        let Some(frame) = source.copy(&mut self.buffer) else {
            alloc.stats.switch.dropped_torn.add(1);
            return Delivery::BadLength;
        };
        if port.transmit(now, frame) {
            line.dirty = true;
            stats.transmitted.add(1);
            alloc.stats.switch.to_ports.add(1);
            if self.captures.is_on() {
                self.captures.push(Point::ToPort(number), frame);
            }
            Delivery::Delivered
        } else {
            stats.refused.add(1);
            alloc.stats.switch.dropped_port.add(1);
            Delivery::Full
        }
    }

    fn flush(&mut self) {
        for line in self.ports.iter_mut().filter(|line| line.dirty) {
            line.dirty = false;
            if let Some(port) = &mut line.port {
                port.flush();
            }
        }
    }

    /// Lets every port inject up to its budget. Returns how many frames came.
    pub(crate) fn poll_ports(&mut self, alloc: &mut Allocator, now: Cycles) -> usize {
        let mut injected = 0;
        for number in 0..self.ports.len() {
            let Some(mut port) = self.ports[number].port.take() else { continue };
            let polled = self.ports[number].polled;
            if alloc.trace.is_on() {
                self.ports[number].polled = now;
            }
            let mut injector = Injector { switch: self, alloc, origin: number as u16, now, polled };
            let result = port.poll(now, PORT_BUDGET, &mut injector);
            self.uncork(alloc);
            let stats = &alloc.stats.ports()[number];
            match result {
                Ok(count) => {
                    injected += count;
                    self.ports[number].port = Some(port);
                }
                Err(error) => {
                    stats.failed.set(1);
                    tracing::error!(%error, "a port failed and is detached");
                }
            }
        }
        if injected > 0 {
            self.flush();
        }
        injected
    }
}

fn count_offence(offence: Offence, egress: &Egress, alloc: &Allocator) {
    let (counters, switch) = (&egress.stats.counters, &alloc.stats.switch);
    match offence {
        Offence::Spoofed => {
            counters.tx_spoofed.add(1);
            switch.dropped_spoofed.add(1);
        }
        Offence::Malformed => {
            counters.tx_malformed.add(1);
            switch.dropped_malformed.add(1);
        }
        Offence::Ethertype => {
            counters.tx_refused.add(1);
            switch.dropped_ethertype.add(1);
        }
        Offence::Tagged => {
            counters.tx_refused.add(1);
            switch.dropped_tagged.add(1);
        }
        Offence::Refused => {
            counters.tx_refused.add(1);
            switch.dropped_refused.add(1);
        }
    }
}

/// Whether a frame for `id` is to be traced: then its number.
#[cold]
fn sample<S: Source>(id: RuntimeId, source: &S, alloc: &mut Allocator) -> Option<u32> {
    alloc.trace.sample(id, source.shown(), source.len(), source.arrival()?)
}

/// What a tracer is told when a frame was put into a ring, or not.
fn in_ring(
    id: u32,
    who: event::Who,
    put: &Result<(), ReserveError>,
    (unserved, lines): (bool, u32),
) -> Event {
    match put {
        Ok(()) => Event::InRing { id, who, unserved, lines },
        Err(ReserveError::Full) => Event::Undelivered { id, who, why: event::Undelivered::Full },
        Err(ReserveError::Lie(_)) => Event::Undelivered { id, who, why: event::Undelivered::Gone },
    }
}

/// Whether rules and limits of a runtime let a frame pass; counts it if not.
#[inline(never)]
fn permits<S: Source>(
    direction: Direction,
    runtime: Option<&mut Runtime>,
    source: &S,
    stats: &Stats,
    now: Cycles,
) -> bool {
    let Some(runtime) = runtime else { return false };
    let Some(guard) = &mut runtime.guard else { return true };
    let ruling = guard.judge(direction, source.shown(), source.len(), now, &stats.firewall);
    let counters = &runtime.stats.counters;
    let egress = direction == Direction::Egress;
    match ruling {
        Ruling::Pass => return true,
        Ruling::Denied => {
            if egress { &counters.tx_denied } else { &counters.rx_denied }.add(1);
            stats.switch.dropped_denied.add(1);
        }
        Ruling::Limited => {
            if egress { &counters.tx_limited } else { &counters.rx_limited }.add(1);
            stats.switch.dropped_limited.add(1);
        }
    }
    false
}

fn better(a: Delivery, b: Delivery) -> Delivery {
    if a == Delivery::Delivered || b == Delivery::Unknown { a } else { b }
}

/// The switch as the port that is being polled sees it.
struct Injector<'a> {
    switch: &'a mut Switch,
    alloc: &'a mut Allocator,
    origin: u16,
    now: Cycles,
    /// When the port was polled before.
    polled: Cycles,
}

impl Inject for Injector<'_> {
    #[inline]
    fn inject(&mut self, frame: &[u8]) -> Delivery {
        self.take(frame, None)
    }

    #[inline]
    fn inject_due(&mut self, frame: &[u8], due: Cycles) -> Delivery {
        self.take(frame, Some(due))
    }

    fn resolve(&self, ip: Ipv4Addr) -> Option<Mac> {
        self.switch.ips.get(&ip).copied()
    }
}

impl Injector<'_> {
    #[inline]
    fn take(&mut self, frame: &[u8], due: Option<Cycles>) -> Delivery {
        self.alloc.stats.switch.from_ports.add(1);
        self.alloc.stats.ports()[usize::from(self.origin)].injected.add(1);
        if !(MIN_FRAME..=self.switch.max_frame).contains(&frame.len()) {
            self.alloc.stats.switch.dropped_malformed.add(1);
            return Delivery::BadLength;
        }
        if self.switch.captures.is_on() {
            self.switch.captures.push(Point::FromPort(self.origin), frame);
        }
        let mut head = [0; FIRST_LINE_FRAME];
        let shown = frame.len().min(FIRST_LINE_FRAME);
        head[..shown].copy_from_slice(&frame[..shown]);
        let heading = check::heading(&head, frame);
        let arrival = Arrival { port: self.origin, due, polled: self.polled };
        let source = Private::from_port(frame, arrival);
        self.switch.route(Origin::Port(self.origin), &source, heading, self.alloc, self.now)
    }
}
