//! Frames out of egress rings, in the turns of the tenants.
//!
//! Owns which ring is read next and for how long, what of a frame is judged before it is sent on,
//! and what a turn is charged. What to do with a frame that passes is the business of [`deliver`].
//!
//! [`deliver`]: super::deliver

use tailwater_ports::Delivery;
use tailwater_sched::RuntimeId;
use tailwater_sched::ledger::RuntimeClass;
use tailwater_shm::ring::{FLAG_PASSED_ON, FirstLine, MAX_PACKET, Record};
use tailwater_shm::trace::{FLAG_TRACED, TraceEvent};
use tailwater_shm::{Cycles, clock};
use tailwater_wire::ETHERNET_HEADER;

use super::Switch;
use super::check::{self, Heading, Offence, Verdict};
use super::inspect::inspect;
use super::source::{FromRing, Origin, Private, Source};
use crate::capture::Point;
use crate::firewall::Direction;
use crate::runtime::{Egress, EndReason, Sender};
use crate::tenant::turns::Tag;
use crate::tenant::{TenantId, Work};
use crate::trace;
use crate::world::{Lender, World};

/// Maximum number of frames of a turn.
pub(super) const TURN_FRAMES: usize = 64;
/// Number of frames between two readings of the clock, unless one of them was large, was sent to a
/// port or a group, or was checked whole.
pub(super) const CLOCK_FRAMES: usize = 8;
/// Number of bytes above which a frame is large: copying it takes as long as another frame.
const LARGE: usize = 2_048;
/// Number of egress rings above which the look at them is charged: 0.1 us, or 1 if each is a cache
/// miss.
const MANY_RINGS: usize = 16;
/// Length of the longest frame from a program. To a port or a group it is as long as the network's
/// MTU allows.
const MAX_LOCAL_FRAME: usize = MAX_PACKET as usize + ETHERNET_HEADER;

impl Switch {
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

    /// Takes frames from egress rings, in the turns of the tenants. Returns how many were moved, at
    /// least one while a port waits for more.
    pub(crate) fn poll_egress(&mut self, world: &mut World, lender: &mut impl Lender, now: Cycles) -> usize {
        self.absent.note_time(now);
        self.moves.measure(world, now);
        if !world.arriving.is_empty() {
            self.polled.append(&mut world.arriving);
        }
        let mut waiting = core::mem::take(&mut self.waiting);
        self.find_waiting(&mut waiting, world, now);
        let moved = match waiting.first() {
            Some(&(first, _)) => self.give_turns(&waiting, first, world, lender, now),
            None => 0,
        };
        waiting.clear();
        self.waiting = waiting;
        if self.held.is_some_and(|held| now >= held.until) {
            self.send_held(world);
        }
        moved.max(usize::from(self.held.is_some()))
    }

    /// Gives those that wait their turns, of which the first has this tag, for as long as an
    /// iteration may take. Returns how many frames were moved.
    fn give_turns(
        &mut self,
        waiting: &[(Tag, usize)],
        first: Tag,
        world: &mut World,
        lender: &mut impl Lender,
        now: Cycles,
    ) -> usize {
        let mut polled = core::mem::take(&mut self.polled);
        let last = self.turns.begin(first, self.timing.turn);
        let (mut moved, began) = (0, (self.stopwatch)());
        let mut at = began;
        for &(_, ring) in waiting {
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
            && runtime.spec.class == RuntimeClass::BestEffort
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
        self.best_effort = class == RuntimeClass::BestEffort;
        (self.slow, self.refused, self.to_services, self.aside) = (false, 0, 0, 0);
        let (mut taken, mut bytes, mut next_look) = (0, 0, CLOCK_FRAMES);
        while taken < TURN_FRAMES {
            if taken == next_look || core::mem::take(&mut self.slow) {
                if (self.stopwatch)().saturating_sub(*at + self.aside) >= self.timing.turn {
                    break;
                }
                next_look = taken + CLOCK_FRAMES;
            }
            let record = match consumer.peek() {
                Ok(Some(record)) => record,
                Ok(None) => break,
                Err(lie) => {
                    let kthread = sender.owner.index;
                    world.mark_ended(sender.owner.runtime, EndReason::EgressLie { kthread, lie });
                    break;
                }
            };
            self.take(sender, &record, world, lender, now);
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
        self.hold_at_ports(sender, class, now);
        self.charge_turn(sender, class, taken, world, at, now);
        taken
    }

    /// Sends the frame of a record on, if it may pass.
    #[inline(always)]
    fn take(
        &mut self,
        sender: &Sender,
        record: &Record<'_>,
        world: &mut World,
        lender: &mut impl Lender,
        now: Cycles,
    ) {
        let first = record.first_line();
        let source = FromRing { record, first: &first };
        if self.captures.is_on() {
            // Before the checks, so also frames refused below: a capture shows what was sent.
            self.capture(Point::FromRuntime(sender.owner.runtime), &source);
        }
        // The trace number is the runtime's claim.
        let traced = record.flags() & FLAG_TRACED != 0
            && world.trace.takes_claim(&mut world.runtimes, sender.owner.runtime);
        if traced {
            let (id, who) = (record.hash(), trace::who(sender.owner));
            world.trace.emit(clock::now(), &TraceEvent::Seen { id, who });
        }
        let delivery = if record.flags() & FLAG_PASSED_ON == 0 {
            match self.judge(&first, record, sender) {
                Verdict::Pass(heading) => self.send(sender, &source, heading, world, lender, now),
                Verdict::Inspect => self.send_whole(sender, record, world, lender, now),
                Verdict::Offence(offence) => self.refuse(offence, sender, world),
            }
        } else {
            self.pass_on(sender, record, world, lender, now)
        };
        if traced {
            let (id, who) = (record.hash(), trace::who(sender.owner));
            let taken = delivery == Delivery::Delivered;
            world.trace.emit(clock::now(), &TraceEvent::Left { id, who, taken });
        }
    }

    /// Charges a turn of `taken` frames that began at `at`, which becomes its end.
    #[inline]
    fn charge_turn(
        &mut self,
        sender: &Sender,
        class: RuntimeClass,
        taken: usize,
        world: &mut World,
        at: &mut Cycles,
        now: Cycles,
    ) {
        let end = (self.stopwatch)();
        let took = end.saturating_sub(core::mem::replace(at, end) + self.aside).min(self.timing.longest_turn);
        let tenant = world.runtimes.tenants.get_mut(sender.tenant);
        let cost = tenant.cost_of_turn(took);
        self.turns.charge(&mut tenant.tag, class, cost);
        if self.to_services > 0 {
            let read = self.timing.read * Cycles::from(self.to_services);
            tenant.charge_reading(read, now);
        }
        if self.refused > 0 {
            let refused = took * Cycles::from(self.refused) / taken.max(1) as Cycles;
            world.charge(sender.owner.runtime, Work::Refused, refused, now);
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
    let (sent, dropped) = match offence {
        Offence::Spoofed => (&counters.tx_spoofed, &switch.dropped_spoofed),
        Offence::Malformed => (&counters.tx_malformed, &switch.dropped_malformed),
        Offence::Ethertype => (&counters.tx_refused, &switch.dropped_ethertype),
        Offence::Tagged => (&counters.tx_refused, &switch.dropped_tagged),
        Offence::Refused => (&counters.tx_refused, &switch.dropped_refused),
    };
    sent.add(1);
    dropped.add(1);
}
