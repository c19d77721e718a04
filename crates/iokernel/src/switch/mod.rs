//! The switch: frames from egress rings and ports to ingress rings and ports.
//!
//! Owns the MAC table, the egress rings that are being polled, and the ports. A frame is copied
//! once, from the sender's ring or the port's buffer into the receiver's ring; the checks read a
//! private copy of its first line, and that copy is delivered. IPv6, ICMP and IPv4 options cannot
//! be checked by a first line: such a frame is copied whole, checked, and delivered from the copy.
//! Firewall rules and rate limits ([`crate::firewall`]) apply after the anti-spoofing checks. The
//! switch decides nothing about cores: before it puts a frame into a ring of a runtime without one,
//! it calls the [`Lender`], so that the frame lies in the ring of the kthread that gets the core.
//! An acknowledgment that no thread waits for does without ([`Lender::hold`]). A flow whose kthread
//! changes stays in order (see [`moves`]).
//!
//! An iteration takes frames out of egress rings for [4 us](Timing::iteration), in the
//! [turns](crate::tenant::turns) of the tenants, and [`PORT_BUDGET`](tailwater_ports::PORT_BUDGET)
//! frames out of each port. So hand-offs are followed every few microseconds however much traffic
//! there is.
//!
//! | module | does |
//! |---|---|
//! | `mod` | takes frames out of egress rings and has them judged |
//! | [`ports`] | takes frames out of ports |
//! | [`absent`] | answers for addresses without a program |
//! | [`foreign`] | detects frames from ports that claim to be a program's |
//! | [`deliver`] | puts frames into ingress rings and ports |
//! | [`broadcast`] | limits copies of broadcasts |
//! | [`shares`] | divides a ring among the programs that send to it |
//! | [`moves`] | keeps flows in order that continue in another ring |
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
//! | more frames than its turn takes | they wait in its rings |
//! | a frame that it passes on to the [earlier instance](crate::control::directory) of its program, or says so of | it reaches that one alone, unchecked: both are of one tenant |
//! | frames to a port above the network's MTU | dropped and counted, no offence: a sender cannot know that a peer has moved |
//! | frames without end from a best-effort program to a service | they take a sixteenth of a core ([`crate::tenant`]) |
//! | refused frames without end | its rings are not read until its tenant has paid ([`crate::tenant`]) |

mod absent;
mod broadcast;
pub(crate) mod check;
mod deliver;
pub(crate) mod flow;
mod foreign;
mod inspect;
pub(crate) mod mac;
mod moves;
mod multicast;
mod offload;
mod ports;
pub(crate) mod shares;
mod source;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::net::Ipv4Addr;
use tailwater_ports::frame::{ETHERNET_HEADER, MacAddr};
use tailwater_ports::{Attachment, Delivery, Port};
use tailwater_sched::ledger::Class;
use tailwater_sched::{KthreadId, RuntimeId};
use tailwater_shm::ring::{FLAG_PASSED_ON, FirstLine, FrameBuffer, MAX_PACKET, Record};
use tailwater_shm::trace::{Event, FLAG_TRACED};
use tailwater_shm::{Clock, Cycles, clock};

use crate::bounds::bounds;
use crate::capture::{Captures, Point};
use crate::config::Config;
use crate::firewall::{Direction, Multicast};
use crate::runtime::{Egress, EndReason, Runtime, Sender};
use crate::stats::Stats;
use crate::tenant::turns::{Tag, Turns};
use crate::tenant::{TenantId, Work};
use crate::trace;
use crate::world::{Lender, World};
use absent::Absent;
use broadcast::BroadcastLimit;
use check::{Heading, Offence, Verdict};
use foreign::Locals;
use inspect::inspect;
use mac::{Destination, MacTable};
use moves::Moves;
use multicast::SolicitedNodes;
use shares::Shares;
use source::{FromRing, Origin, Private, Source};

/// Maximum number of frames of a turn.
const TURN_FRAMES: usize = 64;
/// Number of frames between two readings of the clock, unless one of them was large, was sent to a
/// port or a group, or was checked whole.
const CLOCK_FRAMES: usize = 8;
/// Number of bytes above which a frame is large: copying it takes as long as another frame.
const LARGE: usize = 2_048;
/// Number of egress rings above which the look at them is charged: 0.1 us, or 1 if each is a cache
/// miss.
const MANY_RINGS: usize = 16;
/// Length of the longest frame from a program. To a port or a group it is as long as the network's
/// MTU allows.
const MAX_LOCAL_FRAME: usize = MAX_PACKET as usize + ETHERNET_HEADER;

/// See the module documentation.
pub(crate) struct Switch {
    macs: MacTable,
    /// Addresses of runtimes and stations, for ports that do not use ARP.
    ips: HashMap<Ipv4Addr, MacAddr>,
    polled: Vec<Egress>,
    turns: Turns,
    /// Egress rings with frames, as numbers in `polled`, and the tags of their tenants.
    waiting: Vec<(Tag, usize)>,
    /// Number of iterations; the ring to begin with among those of one tag follows from it.
    round: usize,
    timing: Timing,
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
    moves: Moves,
    /// The present frame took long, and the clock is to be read.
    slow: bool,
    broadcasts: BroadcastLimit,
    absent: Absent,
    /// Addresses of programs, which no frame from a port may claim.
    locals: Locals,
    /// Frames of the present turn that were refused.
    refused: u32,
    /// The present turn is a best-effort program's.
    best_effort: bool,
    /// Services are served until then.
    served_until: Cycles,
    /// Frames of the present turn that a best-effort program has sent to services.
    to_services: u32,
    /// Returns the time, for what a turn takes.
    stopwatch: fn() -> Cycles,
    pub(crate) captures: Captures,
}

bounds! {
    /// The switch's bounds on time.
    struct Timing {
        /// A turn, and all turns of an iteration. A frame between programs takes 80 ns, one to a
        /// TAP device 2 us (2-vCPU VM).
        turn = 2 us,
        iteration = 4 us,
        /// Longest time of a turn that is charged: a longer one is not the tenant's fault.
        longest_turn = 50 us,
        /// For how long after a frame for a service it is still being served.
        served = 1 ms,
        /// Time in which a service reads and drops a frame.
        read = 125 ns,
    }
}

struct PortLine {
    /// `None` while it is being polled, and permanently once it has failed.
    port: Option<Box<dyn Port>>,
    /// It took frames and must be flushed.
    dirty: bool,
    /// Its peer is a program of this machine.
    local: bool,
    /// Time of its last poll.
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
        let absent = Absent::new(config, clock, &ports);
        Self {
            macs,
            ips,
            absent,
            locals: Locals::new(),
            polled: Vec::new(),
            turns: Turns::default(),
            waiting: Vec::new(),
            round: 0,
            timing: Timing::new(clock),
            ports: ports
                .into_iter()
                .map(|port| PortLine {
                    local: port.has_local_peer(),
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
            moves: Moves::default(),
            slow: false,
            broadcasts: BroadcastLimit(config.broadcast_copies),
            refused: 0,
            best_effort: false,
            served_until: 0,
            to_services: 0,
            stopwatch,
            captures: Captures::default(),
        }
    }

    /// Replaces what the firewall says about frames that no rule is about.
    pub(crate) fn set_rules(&mut self, ethertypes: Vec<u16>, multicast: Multicast) {
        (self.ethertypes, self.multicast) = (ethertypes, multicast);
    }

    /// Adds a runtime. A second one with an address gets no frames before [`pair`](Self::pair).
    pub(crate) fn attach(&mut self, runtime: &Runtime, world: &World) {
        self.absent.attach(runtime.mac);
        if world.runtimes.other_instance(runtime.id, runtime.ip).is_none() {
            self.give_address(runtime);
        }
        self.captures.handle_attached(&runtime.stats.name, runtime.id);
        self.solicited.insert(runtime.id, runtime.identity.ipv6());
    }

    /// Gives the frames for the address of two instances to the later one. Has no effect if one of
    /// them has ended, or if that is so already.
    pub(crate) fn pair(&mut self, earlier: RuntimeId, later: RuntimeId, world: &mut World) {
        let Some(ip) = world.runtimes.get(earlier).map(|runtime| runtime.ip) else { return };
        let Some(runtime) = world.runtimes.get_mut(later).filter(|runtime| runtime.ip == ip) else { return };
        runtime.earlier = Some(earlier);
        self.give_up_address(earlier);
        self.give_address(runtime);
        if let Some(runtime) = world.runtimes.get_mut(earlier) {
            runtime.earlier = None;
        }
    }

    /// Notes that a runtime was sent `Ready`.
    pub(crate) fn begin(&mut self, id: RuntimeId) {
        self.absent.begin(id);
    }

    /// Removes a runtime: its rings are not accessed after this.
    pub(crate) fn detach(&mut self, id: RuntimeId, world: &mut World) {
        self.solicited.remove(id);
        self.moves.detach(id);
        self.give_up_address(id);
        if let Some(ip) = world.runtimes.get(id).map(|runtime| runtime.ip) {
            self.ips.remove(&ip);
            if let Some(other) = world.runtimes.other_instance_mut(id, ip) {
                other.earlier = None;
                self.give_address(other);
            }
        }
        self.polled.retain(|egress| egress.sender.owner.runtime != id);
        self.captures.handle_detached(id);
    }

    fn give_address(&mut self, runtime: &Runtime) {
        self.macs.insert(runtime.mac, Destination::Runtime(runtime.id));
        self.locals.insert(runtime.ip, runtime.id);
        self.ips.insert(runtime.ip, runtime.mac);
    }

    fn give_up_address(&mut self, id: RuntimeId) {
        self.macs.remove(Destination::Runtime(id));
        self.locals.remove(id);
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

    /// Returns whether a frame waits in a ring that is polled, of a runtime that has paid.
    pub(crate) fn has_egress(&self, world: &World, now: Cycles) -> bool {
        let served = |id| world.runtimes.get(id).is_some_and(|runtime| now >= runtime.waits_until);
        let waits = |egress: &Egress| served(egress.sender.owner.runtime) && egress.consumer.has_record();
        self.polled.iter().any(waits)
    }

    /// Returns whether a frame of this runtime waits in a ring that is polled.
    pub(crate) fn has_egress_of(&self, id: RuntimeId) -> bool {
        self.polled.iter().any(|egress| egress.sender.owner.runtime == id && egress.consumer.has_record())
    }

    /// Takes frames from egress rings, in the turns of the tenants. Returns how many were moved.
    pub(crate) fn poll_egress(&mut self, world: &mut World, lender: &mut impl Lender, now: Cycles) -> usize {
        self.absent.note_time(now);
        self.moves.measure(world, now);
        if !world.arriving.is_empty() {
            self.polled.append(&mut world.arriving);
        }
        let mut waiting = core::mem::take(&mut self.waiting);
        self.find_waiting(&mut waiting, world, now);
        let Some(&(first, _)) = waiting.first() else {
            self.waiting = waiting;
            return 0;
        };
        let mut polled = core::mem::take(&mut self.polled);
        let last = self.turns.begin(first, self.timing.turn);
        let (mut moved, began) = (0, (self.stopwatch)());
        let mut at = began;
        for &(_, ring) in &waiting {
            // Another ring of the tenant may have had the turn.
            if world.runtimes.tenants.get(polled[ring].sender.tenant).tag > last {
                continue;
            }
            moved += self.drain(&mut polled[ring], world, lender, &mut at, now);
            if at.saturating_sub(began) >= self.timing.iteration {
                break;
            }
        }
        self.polled = polled;
        self.best_effort = false;
        waiting.clear();
        self.waiting = waiting;
        if moved > 0 {
            self.flush();
        }
        moved
    }

    /// Finds the rings with frames that may be served, in the order of turns. Those of one tag
    /// begin with another ring each time. Puts aside empty rings of kthreads that have lost their
    /// cores.
    ///
    /// A program may leave frames in the rings of many kthreads without a core. Where there are
    /// many rings, the time of the look is charged to the owner of the ring whose turn it is to
    /// pay.
    fn find_waiting(&mut self, waiting: &mut Vec<(Tag, usize)>, world: &mut World, now: Cycles) {
        let began = (self.polled.len() > MANY_RINGS).then(self.stopwatch);
        let mut ring = 0;
        while ring < self.polled.len() {
            let owner = self.polled[ring].sender.owner.runtime;
            // A ring of a tenant that has to pay is not even looked at: its program may write to it
            // all the time.
            if world.runtimes.get(owner).is_some_and(|runtime| !runtime.is_left_alone(now)) {
                if !self.polled[ring].consumer.has_record() {
                    // What is put aside leaves its place to the last ring.
                    if self.put_aside(ring, world) {
                        continue;
                    }
                } else if let Some((tenant, tag)) = self.turn_of(&self.polled[ring].sender, world, now) {
                    self.polled[ring].sender.tenant = tenant;
                    waiting.push((tag, ring));
                }
            }
            ring += 1;
        }
        self.round = self.round.wrapping_add(1);
        if waiting.len() > 1 {
            let first = self.round % self.polled.len();
            waiting.sort_by_key(|&(tag, ring)| (tag, ring < first));
        }
        if let Some(began) = began
            && let Some(egress) = self.polled.get(self.round % self.polled.len().max(1))
        {
            let (runtime, kthread) = world.runtimes.kthread(egress.sender.owner);
            if !kthread.may_run && !runtime.is_left_alone(now) {
                let took = (self.stopwatch)().saturating_sub(began).min(self.timing.longest_turn);
                world.charge(egress.sender.owner.runtime, Work::Look, took, now);
            }
        }
    }

    /// Returns the tenant of a sender that has paid, and its tag, if its frames may be taken.
    #[inline(always)]
    fn turn_of(&self, sender: &Sender, world: &World, now: Cycles) -> Option<(TenantId, Tag)> {
        let runtime = world.runtimes.get(sender.owner.runtime)?;
        let tenant = world.runtimes.tenants.get(runtime.tenant);
        let keeps_services_waiting = now < self.served_until
            && runtime.spec.class == Class::BestEffort
            && world.owes_cores(sender.owner.runtime, now);
        (!keeps_services_waiting).then_some((runtime.tenant, tenant.tag))
    }

    /// Stops polling the empty ring of a kthread that lost its core; returns whether it did.
    fn put_aside(&mut self, ring: usize, world: &mut World) -> bool {
        let owner = self.polled[ring].sender.owner;
        // The order matters: `may_run` was cleared after Parked was seen, which came after the last
        // frame.
        if world.runtimes.kthread(owner).1.may_run || self.polled[ring].consumer.has_record() {
            return false;
        }
        let egress = self.polled.swap_remove(ring);
        world.runtimes.kthread_mut(owner).egress = Some(egress);
        true
    }

    /// Moves frames out of one egress ring for a turn, which begins at `at`; that becomes its end.
    #[inline]
    fn drain(
        &mut self,
        egress: &mut Egress,
        world: &mut World,
        lender: &mut impl Lender,
        at: &mut Cycles,
        now: Cycles,
    ) -> usize {
        let Egress { consumer, sender } = egress;
        let Some(runtime) = world.runtimes.get(sender.owner.runtime) else { return 0 };
        let class = runtime.spec.class;
        sender.guarded = runtime.guard.is_some();
        self.best_effort = class == Class::BestEffort;
        (self.slow, self.refused, self.to_services) = (false, 0, 0);
        let (mut taken, mut bytes, mut next_look) = (0, 0, CLOCK_FRAMES);
        while taken < TURN_FRAMES {
            if taken == next_look || core::mem::take(&mut self.slow) {
                if (self.stopwatch)().saturating_sub(*at) >= self.timing.turn {
                    break;
                }
                next_look = taken + CLOCK_FRAMES;
            }
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
            let traced = record.flags() & FLAG_TRACED != 0
                && world.trace.takes_claim(&mut world.runtimes, sender.owner.runtime);
            if traced {
                let (id, who) = (record.hash(), trace::who(sender.owner));
                world.trace.emit(clock::now(), &Event::Seen { id, who });
            }
            let delivery = if record.flags() & FLAG_PASSED_ON == 0 {
                match self.judge(&first, &record, sender) {
                    Verdict::Pass(heading) => self.send(sender, &source, heading, world, lender, now),
                    Verdict::Inspect => self.send_whole(sender, &record, world, lender, now),
                    Verdict::Offence(offence) => self.refuse(offence, sender, world),
                }
            } else {
                self.pass_on(sender, &record, world, lender, now)
            };
            if traced {
                let (id, who) = (record.hash(), trace::who(sender.owner));
                let taken = delivery == Delivery::Delivered;
                world.trace.emit(clock::now(), &Event::Left { id, who, taken });
            }
            taken += 1;
            bytes += record.len();
            self.slow |= record.len() > LARGE;
            record.advance();
        }
        if taken > 0 {
            self.uncork(world);
            consumer.publish();
            sender.stats.counters.tx_frames.add(taken as u64);
            sender.stats.counters.tx_bytes.add(bytes as u64);
            world.stats.switch.from_runtimes.add(taken as u64);
        }
        self.end_turn_at_ports();
        self.charge_turn(sender, class, taken, world, at, now);
        taken
    }

    /// Charges a turn of `taken` frames that began at `at`, which becomes its end.
    #[inline]
    fn charge_turn(
        &mut self,
        sender: &Sender,
        class: Class,
        taken: usize,
        world: &mut World,
        at: &mut Cycles,
        now: Cycles,
    ) {
        let end = (self.stopwatch)();
        let took = end.saturating_sub(core::mem::replace(at, end)).min(self.timing.longest_turn);
        let tenant = world.runtimes.tenants.get_mut(sender.tenant);
        self.turns.charge(&mut tenant.tag, class, took);
        if self.to_services > 0 {
            let read = self.timing.read * Cycles::from(self.to_services);
            tenant.charge_reading(read, now);
        }
        if self.refused > 0 {
            let refused = took * Cycles::from(self.refused) / taken.max(1) as Cycles;
            world.charge(sender.owner.runtime, Work::Refused, refused, now);
        }
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
        self.slow = true;
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

    /// Delivers a frame that a program has received to the earlier instance of that program, as it
    /// was received: no address of it is the sender's. Drops it if there is none any more, which
    /// the sender may not have read yet.
    #[inline(never)]
    fn pass_on(
        &mut self,
        sender: &Sender,
        record: &Record<'_>,
        world: &mut World,
        lender: &mut impl Lender,
        now: Cycles,
    ) -> Delivery {
        self.slow = true;
        let from = sender.owner.runtime;
        let Some(earlier) = world.runtimes.get(from).and_then(|runtime| runtime.earlier) else {
            world.stats.switch.dropped_unknown.add(1);
            return Delivery::Unknown;
        };
        let Some(mut buffer) = self.whole.take() else { return Delivery::Unknown };
        let frame = record.copy_frame(&mut buffer);
        let source = Private::passed_on(frame, record.flags());
        let hash = check::packet_hash(frame);
        let route = (Origin::Runtime(from, sender.tenant), earlier);
        let delivery = self.deliver::<false, _>(route, &source, hash, world, lender, now);
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
        self.route(Origin::Runtime(from, sender.tenant), source, heading, world, lender, now)
    }

    /// Drops the present frame and counts why.
    #[cold]
    fn refuse(&mut self, offence: Offence, sender: &Sender, world: &World) -> Delivery {
        self.refused += 1;
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
