//! The switch: frames from egress rings and ports to ingress rings and ports.
//!
//! Owns the MAC table, the egress rings that are being polled, and the ports. A frame is copied
//! once, from the sender's ring or the port's buffer into the receiver's ring; the checks read a
//! private copy of its first line, and that copy is delivered. IPv6, ICMP and IPv4 options cannot
//! be checked by a first line: such a frame is copied whole, checked, and delivered from the copy.
//! Firewall rules and rate limits ([`crate::firewall`]) apply after the anti-spoofing checks. The
//! switch decides nothing about cores: before it puts a frame into a ring of a runtime without one,
//! it calls the [`Lender`], so that the frame lies in the ring of the kthread that gets the core.
//! An acknowledgment that no thread waits for does without (see [`lone`]). A flow whose kthread
//! changes stays in order (see [`moves`]).
//!
//! Batches are bounded ([`EGRESS_BATCH`] per runtime and iteration,
//! [`PORT_BUDGET`](crate::port::PORT_BUDGET) per port), so that hand-offs are followed every few
//! microseconds however much traffic there is.
//!
//! | module | does |
//! |---|---|
//! | `mod` | takes frames out of egress rings and has them judged |
//! | [`ports`] | takes frames out of ports |
//! | [`deliver`] | puts frames into ingress rings and ports |
//! | [`broadcast`] | limits copies of broadcasts |
//! | [`lone`] | tells acknowledgments that no thread waits for |
//! | [`shares`] | divides a ring among the programs that send to it |
//! | [`moves`] | keeps flows in order that continue in another ring |
//! | [`rest`] | bounds the time of best-effort programs while services are served |
//!
//! # Crash and lie
//!
//! | what a runtime writes | what happens |
//! |---|---|
//! | a frame with foreign addresses, or none that make sense | dropped and counted, for the runtime too |
//! | a message that only routers send, a VLAN tag, another protocol | the same |
//! | an impossible ring record or position, a record of an earlier lap | its registration ends ([`World::doom`]) |
//! | a frame that changes while it is copied | the checked first line is delivered; to a port, nothing |
//! | more frames than its receivers or a port take | dropped and counted once it has had its share of the ring or of the port's queue ([`shares`]) |
//! | broadcasts and multicasts without end | dropped beyond a number of copies ([`broadcast`]), and always before unicast |
//! | more frames than its share of an iteration, or than its user's programs together may send in one | they wait in its rings |
//! | frames to a port above the network's MTU | dropped and counted, no offence: a sender cannot know that a peer has moved |
//! | frames to a port that takes long for each | they count as several ([`Port::weight`]) |
//! | frames without end from best-effort programs, beside a service | they wait in its rings ([`rest`]) |
//! | refused frames without end | its rings are not read for a while, then its registration ends ([`crate::budget`]) |

mod broadcast;
pub(crate) mod check;
mod deliver;
pub(crate) mod flow;
mod inspect;
mod lone;
pub(crate) mod mac;
mod moves;
mod multicast;
mod offload;
pub(crate) mod packet;
mod ports;
mod rest;
pub(crate) mod shares;
mod source;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::net::Ipv4Addr;
use tailwater_sched::ledger::Class;
use tailwater_sched::{KthreadId, RuntimeId};
use tailwater_shm::ring::{FirstLine, FrameBuffer, MAX_PACKET, Record};
use tailwater_shm::trace::{Event, FLAG_TRACED};
use tailwater_shm::{Clock, Cycles, clock};

use crate::capture::{Captures, Point};
use crate::config::Config;
use crate::firewall::{Direction, Multicast};
use crate::frame::{ETHERNET_HEADER, MacAddr};
use crate::port::{Attachment, Delivery, Port};
use crate::runtime::{Egress, EndReason, Runtime, Sender};
use crate::stats::Stats;
use crate::trace;
use crate::world::{Lender, World};
use broadcast::BroadcastLimit;
use check::{Heading, Offence, Verdict};
use inspect::inspect;
use lone::LoneAnswers;
use mac::{Destination, MacTable};
use moves::Moves;
use multicast::SolicitedNodes;
use rest::Rests;
use shares::Shares;
use source::{FromRing, Origin, Private, Source};

/// Maximum charge for one runtime's egress rings together per iteration, in frames of up to
/// [`FRAME_UNIT`] bytes and copies of broadcasts. It is the same for each runtime, so a sender that
/// never stops takes no more from the others than an honest one.
const EGRESS_BATCH: usize = 32;
/// The same for all programs of one user by one grant ([`Party`](crate::party::Party)): two
/// batches, so that a program whose user has others keeps its own as long as one of them, at most,
/// sends without end.
const PARTY_BATCH: usize = 2 * EGRESS_BATCH;
/// Number of bytes of a frame that count like another frame: copying them takes as long.
const FRAME_UNIT: usize = 2_048;
/// Length of the longest frame from a program. To a port or a group it is as long as the network's
/// MTU allows.
const MAX_LOCAL_FRAME: usize = MAX_PACKET as usize + ETHERNET_HEADER;
/// Charge for a refused frame of a runtime that was not charged before: its time was not taken.
const FIRST_OFFENCE: Cycles = 500;

/// See the module documentation.
pub(crate) struct Switch {
    macs: MacTable,
    /// Addresses of runtimes and stations, for ports that do not use ARP.
    ips: HashMap<Ipv4Addr, MacAddr>,
    polled: Vec<Egress>,
    /// Number of iterations that polled egress rings,
    round: usize,
    /// and of those in which none rested; the ring to begin with follows from it.
    turn: usize,
    ports: Vec<PortLine>,
    uplink: Option<u16>,
    /// Length of the longest frame from and to a port.
    max_port_frame: usize,
    /// EtherTypes that runtimes may send beside those that are checked.
    ethertypes: Vec<u16>,
    solicited: SolicitedNodes,
    /// What happens to frames for IPv6 groups other than those of neighbour discovery.
    multicast: Multicast,
    buffer: FrameBuffer,
    /// Buffer for frames that must be checked whole; `None` while one is in use.
    whole: Option<FrameBuffer>,
    /// Ingress rings whose records of the present batch are not yet visible; see
    /// [`Producer::cork`].
    corked: Vec<KthreadId>,
    /// Receivers of the present broadcast; kept for its memory.
    receivers: Vec<RuntimeId>,
    /// The last small answer of each TCP flow, whose acknowledgment can wait; `None` if none may.
    lone: Option<LoneAnswers>,
    moves: Moves,
    /// Charge for the present batch beyond its frames: copies made for broadcasts, and ports that
    /// take long ([`Port::weight`]).
    extra: usize,
    broadcasts: BroadcastLimit,
    /// The present frame was refused.
    refused: bool,
    rests: Rests,
    /// The present batch is a best-effort program's.
    best_effort: bool,
    /// Returns the time, for what a batch takes.
    stopwatch: fn() -> Cycles,
    pub(crate) captures: Captures,
}

struct PortLine {
    /// `None` while it is being polled, and permanently once it has failed.
    port: Option<Box<dyn Port>>,
    /// It took frames and must be flushed.
    dirty: bool,
    /// Its peer is a program of this machine.
    local: bool,
    /// As [`Port::weight`].
    weight: usize,
    /// Time of its last poll, while a tracer is connected.
    polled: Cycles,
    /// The senders' shares of its queues.
    shares: Vec<Shares>,
}

impl Switch {
    /// Returns a switch with these started ports, without runtimes. The caller has checked that
    /// addresses are unique and that there is at most one uplink. `stopwatch` returns the time by
    /// `clock`.
    pub(crate) fn new(
        ports: Vec<Box<dyn Port>>,
        config: &Config,
        clock: Clock,
        stopwatch: fn() -> Cycles,
    ) -> Self {
        let (mut macs, mut ips, mut uplink) = (MacTable::new(), HashMap::new(), None);
        for (number, port) in (0u16..).zip(&ports) {
            match port.attachment() {
                Attachment::Station { mac, ip } => {
                    macs.insert(mac, Destination::Port(number));
                    ips.extend(ip.map(|ip| (ip, mac)));
                }
                Attachment::Uplink { .. } => {
                    uplink = Some(number);
                    // Before any runtime's: the first owner keeps an address.
                    if let Some(mac) = port.mac() {
                        macs.insert(mac, Destination::Port(number));
                    }
                }
            }
        }
        Self {
            macs,
            ips,
            polled: Vec::new(),
            round: 0,
            turn: 0,
            ports: ports
                .into_iter()
                .map(|port| PortLine {
                    local: port.has_local_peer(),
                    weight: port.weight(),
                    port: Some(port),
                    dirty: false,
                    polled: 0,
                    shares: Vec::new(),
                })
                .collect(),
            uplink,
            max_port_frame: usize::from(config.mtu) + ETHERNET_HEADER,
            ethertypes: config.firewall.ethertypes.clone(),
            solicited: SolicitedNodes::default(),
            multicast: config.firewall.multicast,
            buffer: FrameBuffer::new(),
            whole: Some(FrameBuffer::new()),
            corked: Vec::new(),
            receivers: Vec::new(),
            lone: (config.ack_hold_us > 0).then(LoneAnswers::new),
            moves: Moves::default(),
            extra: 0,
            broadcasts: BroadcastLimit::new(config),
            refused: false,
            rests: Rests::new(clock),
            best_effort: false,
            stopwatch,
            captures: Captures::default(),
        }
    }

    /// Replaces what the firewall says about frames that no rule is about.
    pub(crate) fn set_rules(&mut self, ethertypes: Vec<u16>, multicast: Multicast) {
        (self.ethertypes, self.multicast) = (ethertypes, multicast);
    }

    pub(crate) fn attach(&mut self, runtime: &Runtime) {
        self.macs.insert(runtime.mac, Destination::Runtime(runtime.id));
        self.ips.insert(runtime.ip, runtime.mac);
        self.captures.handle_attached(&runtime.stats.name, runtime.id);
        self.solicited.insert(runtime.id, runtime.identity.ipv6());
    }

    /// Removes a runtime: its rings are not accessed after this.
    pub(crate) fn detach(&mut self, id: RuntimeId, ip: Option<Ipv4Addr>) {
        self.macs.remove(Destination::Runtime(id));
        self.solicited.remove(id);
        self.broadcasts.remove(id);
        self.moves.detach(id);
        if let Some(ip) = ip {
            self.ips.remove(&ip);
        }
        self.polled.retain(|egress| egress.sender.owner.runtime != id);
        self.captures.handle_detached(id);
    }

    /// Returns the ports that have not failed.
    pub(crate) fn ports(&self) -> impl Iterator<Item = &dyn Port> {
        self.ports.iter().filter_map(|line| line.port.as_deref())
    }

    /// Returns whether a port's peer is a program of this machine.
    #[inline(always)]
    pub(crate) fn has_local_peer(&self) -> bool {
        self.ports.iter().any(|line| line.local)
    }

    /// Returns how many frames have gone to and come from programs of this machine through ports.
    #[inline]
    pub(crate) fn local_frames(&self, stats: &Stats) -> u64 {
        let local = self.ports.iter().zip(stats.ports()).filter(|(line, _)| line.local);
        local.map(|(_, port)| port.injected.get() + port.transmitted.get()).sum()
    }

    /// Returns whether a frame waits in a ring that is polled, of a runtime that is not throttled.
    pub(crate) fn has_egress(&self, world: &World, now: Cycles) -> bool {
        let served = |id| world.runtimes.get(id).is_some_and(|runtime| !runtime.budget.is_throttled(now));
        let waits = |egress: &Egress| egress.consumer.has_record() && served(egress.sender.owner.runtime);
        self.polled.iter().any(waits)
    }

    /// Returns whether a frame of this runtime waits in a ring that is polled.
    pub(crate) fn has_egress_of(&self, id: RuntimeId) -> bool {
        self.polled.iter().any(|egress| egress.sender.owner.runtime == id && egress.consumer.has_record())
    }

    /// Takes up to a batch from the egress rings of every runtime that may hold frames. Returns how
    /// many frames were moved. Begins with another ring each time, so that the rings of one runtime
    /// share its batches.
    pub(crate) fn poll_egress(&mut self, world: &mut World, lender: &mut impl Lender, now: Cycles) -> usize {
        self.moves.measure(world, now);
        if !world.arriving.is_empty() {
            self.polled.append(&mut world.arriving);
        }
        let mut polled = core::mem::take(&mut self.polled);
        self.round = self.round.wrapping_add(1);
        if !self.rests.are_on(now) {
            // Or the rests would decide which of the rings that rest comes first.
            self.turn = self.turn.wrapping_add(1);
        }
        let first = self.turn.checked_rem(polled.len()).unwrap_or(0);
        let (mut moved, mut visited) = (0, 0);
        while visited < polled.len() {
            // What is put aside leaves its place to the last ring.
            let i = (first + visited) % polled.len();
            let taken = self.drain(&mut polled[i], world, lender, now);
            moved += taken;
            if taken > 0 || !self.put_aside(&mut polled, i, world) {
                visited += 1;
            }
        }
        self.polled = polled;
        if moved > 0 {
            let counts = self.rests.has_taken();
            let began = if counts { (self.stopwatch)() } else { 0 };
            self.flush();
            if counts {
                self.rests.add((self.stopwatch)().saturating_sub(began));
            }
        }
        if self.rests.end_iteration(now) {
            world.stats.switch.rests.add(1);
        }
        moved
    }

    /// Stops polling the empty ring of a kthread that lost its core; returns whether it did.
    fn put_aside(&self, polled: &mut Vec<Egress>, i: usize, world: &mut World) -> bool {
        let owner = polled[i].sender.owner;
        // The order matters: `may_run` was cleared after Parked was seen, which came after the last
        // frame.
        if world.runtimes.kthread(owner).1.may_run || polled[i].consumer.has_record() {
            return false;
        }
        let egress = polled.swap_remove(i);
        world.runtimes.kthread_mut(owner).egress = Some(egress);
        true
    }

    /// Moves frames out of one egress ring, as many as are left of its runtime's batch.
    #[inline]
    fn drain(
        &mut self,
        egress: &mut Egress,
        world: &mut World,
        lender: &mut impl Lender,
        now: Cycles,
    ) -> usize {
        let Egress { consumer, sender } = egress;
        if !consumer.has_record() {
            return 0;
        }
        let Some(runtime) = world.runtimes.get(sender.owner.runtime) else { return 0 };
        let best_effort = runtime.spec.class == Class::BestEffort;
        if runtime.budget.is_throttled(now) || best_effort && self.rests.are_on(now) {
            return 0;
        }
        let (spent, suspect) = (runtime.spent.in_round(self.round), runtime.budget.is_suspect(now));
        let party = runtime.party;
        let spent_by_party = world.runtimes.parties.get(party).spent.in_round(self.round);
        let left = (EGRESS_BATCH.saturating_sub(spent)).min(PARTY_BATCH.saturating_sub(spent_by_party));
        let (mut taken, mut bytes, mut large, mut offences) = (0, 0, 0, 0);
        sender.guarded = runtime.guard.is_some();
        sender.member = world.runtimes.parties.member(runtime.id, party);
        self.extra = 0;
        self.best_effort = best_effort;
        let batch_began = if best_effort { (self.stopwatch)() } else { 0 };
        while taken + large + self.extra < left {
            let began = if suspect { clock::now() } else { 0 };
            let record = match consumer.peek() {
                Ok(Some(record)) => record,
                Ok(None) => break,
                Err(lie) => {
                    let kthread = sender.owner.index;
                    world.doom(sender.owner.runtime, EndReason::EgressLie { kthread, lie });
                    break;
                }
            };
            let first = record.first_line();
            let source = FromRing { record: &record, first: &first };
            if self.captures.is_on() {
                // Before the checks, so also frames refused below: a capture shows what was sent.
                self.capture(Point::FromRuntime(sender.owner.runtime), &source);
            }
            // The trace number is the runtime's claim.
            let traced = record.flags() & FLAG_TRACED != 0 && world.trace.is_on();
            if traced {
                let (id, who) = (record.hash(), trace::who(sender.owner));
                world.trace.emit(clock::now(), &Event::Seen { id, who });
            }
            let delivery = match self.judge(&first, &record, sender) {
                Verdict::Pass(heading) => self.send(sender, &source, heading, world, lender, now),
                Verdict::Inspect => self.send_whole(sender, &record, world, lender, now),
                Verdict::Offence(offence) => self.refuse(offence, sender, world),
            };
            if core::mem::take(&mut self.refused) {
                offences += if suspect { clock::now().saturating_sub(began) } else { FIRST_OFFENCE };
            }
            if traced {
                let (id, who) = (record.hash(), trace::who(sender.owner));
                let taken = delivery == Delivery::Delivered;
                world.trace.emit(clock::now(), &Event::Left { id, who, taken });
            }
            taken += 1;
            bytes += record.len();
            large += record.len() / FRAME_UNIT;
            record.advance();
        }
        if taken > 0 {
            let units = taken + large + self.extra;
            world.runtimes.parties.get_mut(party).spent.add(self.round, units);
            if let Some(runtime) = world.runtimes.get_mut(sender.owner.runtime) {
                runtime.spent.add(self.round, units);
            }
            self.uncork(world);
            consumer.publish();
            sender.stats.counters.tx_frames.add(taken as u64);
            sender.stats.counters.tx_bytes.add(bytes as u64);
            world.stats.switch.from_runtimes.add(taken as u64);
        }
        if offences > 0 {
            world.charge(sender.owner.runtime, offences, now);
        }
        if best_effort {
            self.best_effort = false;
            self.rests.add((self.stopwatch)().saturating_sub(batch_began));
        }
        taken
    }

    /// Copies a frame to the watchers.
    #[cold]
    fn capture<S: Source>(&mut self, point: Point, source: &S) {
        if self.captures.wants(point)
            && let Some(frame) = source.copy(&mut self.buffer)
        {
            self.captures.push(point, frame);
        }
    }

    /// Makes the records of the batch visible to the receivers.
    #[inline(always)]
    fn uncork(&mut self, world: &mut World) {
        while let Some(kthread) = self.corked.pop() {
            world.runtimes.kthread_mut(kthread).ingress.uncork();
        }
    }

    #[inline(always)]
    fn judge(&self, first: &FirstLine, record: &Record<'_>, sender: &Sender) -> Verdict {
        // Copies of a frame to a group are limited by number, so its length stays bounded by the
        // MTU.
        let longest = if first.frame()[0] & 1 == 0 { MAX_LOCAL_FRAME } else { self.max_port_frame };
        if record.len() > longest {
            return Verdict::Offence(Offence::Malformed);
        }
        match check::check(first.frame(), record.len(), &sender.identity) {
            Verdict::Offence(Offence::Ethertype) => self.judge_ethertype(first),
            verdict => verdict,
        }
    }

    /// Rules on a frame of another protocol whose source is verified: passes if the configuration
    /// names its EtherType.
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

    /// Checks a frame that must be read whole, and sends it on from the checked copy.
    #[inline(never)]
    fn send_whole(
        &mut self,
        sender: &Sender,
        record: &Record<'_>,
        world: &mut World,
        lender: &mut impl Lender,
        now: Cycles,
    ) -> Delivery {
        let Some(mut buffer) = self.whole.take() else { return Delivery::Unknown };
        let frame = record.copy_frame(&mut buffer);
        let delivery = match inspect(frame, &sender.identity) {
            Ok(heading) => {
                let source = Private::from_ring(frame, record.flags());
                self.send(sender, &source, heading, world, lender, now)
            }
            Err(offence) => self.refuse(offence, sender, world),
        };
        self.whole = Some(buffer);
        delivery
    }

    /// Sends on a checked frame, if the runtime's rules and limits allow it.
    #[inline(always)]
    fn send<S: Source>(
        &mut self,
        sender: &Sender,
        source: &S,
        heading: Heading,
        world: &mut World,
        lender: &mut impl Lender,
        now: Cycles,
    ) -> Delivery {
        let from = sender.owner.runtime;
        if sender.guarded
            && !world.runtimes.get_mut(from).is_some_and(|runtime| {
                runtime.permits(Direction::Egress, source.shown(), source.len(), &world.stats, now)
            })
        {
            return Delivery::Denied;
        }
        if let Some(lone) = &mut self.lone {
            lone.note_sent(source.shown());
        }
        self.route(Origin::Runtime(sender.member), source, heading, world, lender, now)
    }

    /// Drops the present frame and counts why.
    #[cold]
    fn refuse(&mut self, offence: Offence, sender: &Sender, world: &World) -> Delivery {
        self.refused = true;
        count_offence(offence, sender, world);
        Delivery::Denied
    }
}

fn count_offence(offence: Offence, sender: &Sender, world: &World) {
    let (counters, switch) = (&sender.stats.counters, &world.stats.switch);
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
