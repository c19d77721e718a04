//! The engine of the generator, without sockets and without a clock.
//!
//! # Contract
//! A transport creates a [`Generator`], then loops on one thread:
//! - It reads its clock and calls [`Generator::poll_due`], and sends each request returned at once,
//!   with its bytes from [`Generator::encode`].
//! - It calls [`Generator::handle_reply`] for each datagram that arrived, or
//!   [`Generator::handle_answer`] for each answer of a stream whose request it knows, with a clock
//!   reading taken after the arrival.
//! - It ends when [`Generator::is_done`] returns true.
//!
//! In between it either sleeps until [`Generator::next_event_ns`], or spins and calls
//! [`Generator::observe_spin`] on every turn. All times are nanoseconds of the transport's clock,
//! which must not go back.
//!
//! The engine never blocks, allocates nothing after its creation (except two numbers per 100 ms
//! window after the first ten minutes, and the table of work at the first answer that states it),
//! and does at most [`EXPIRE_BATCH`] + [`OVERFLOW_BATCH`] steps of housekeeping per call.
//!
//! # What is counted
//! Only requests **due** in the measured part of the schedule, from the end of the warm-up to the
//! end. Each of them ends as exactly one of: completed (the first reply arrived within the timeout
//! and is right), lost (no reply within the timeout, a wrong one, refused by the server or by the
//! transport, or no room to track it), or, if the run was cut short, unfinished. The counts of
//! oddities include the warm-up.

use std::sync::Arc;

use tailwater_workload::random::{Prng, stream};
use tailwater_workload::{Arrivals, Interval, LatencyRecorder};

use crate::delivery::Delivery;
use crate::noise::GapCounter;
use crate::outstanding::{Answer, Outstanding};
use crate::plan::{Plan, PlanError};
use crate::protocol::{Ids, Medium, Protocol, Request, Spin, Ticket, Verdict};
use crate::report::{Measurement, Oddities};

/// Maximum number of requests given up on per call.
pub const EXPIRE_BATCH: usize = 64;

/// Maximum number of requests dropped for lack of a slot per call.
pub const OVERFLOW_BATCH: usize = 64;

/// A gap in the generator's own loop that makes the window it falls into count as cut: long enough
/// to hold up more than a thousandth of a window's requests.
pub const STALL_NS: u64 = 200_000;

/// Bits of a request's id that hold its number; the rest is the run's tag, so that a late reply of
/// an earlier run is not taken for an answer.
const SEQUENCE_BITS: u32 = 40;

/// Number of requests that 16-bit ids distinguish.
const SHORT_IDS: usize = 1 << 16;

/// Stream of the plan's seed for each purpose, see [`stream`].
const ARRIVAL_STREAM: u32 = 0;
const SERVICE_STREAM: u32 = 1;
const TAG_STREAM: u32 = 2;

/// See the [module](self).
#[derive(Debug)]
pub struct Generator {
    plan: Plan,
    protocol: Arc<dyn Protocol>,
    medium: Medium,
    ids: Ids,
    /// Clock reading at the schedule's start.
    start_ns: u64,
    /// Clock readings between which a due request is counted.
    measured: std::ops::Range<u64>,
    arrivals: Arrivals,
    arrival_prng: Prng,
    service_prng: Prng,
    tag: u64,
    /// The next request, drawn ahead; `None` when the schedule is over.
    pending: Option<Pending>,
    outstanding: Outstanding,
    recorder: LatencyRecorder,
    delivery: Delivery,
    /// Of the requests of the protocol's first class, if the plan keeps them apart.
    first_class: Option<LatencyRecorder>,
    oddities: Oddities,
    gaps: GapCounter,
}

#[derive(Debug, Clone, Copy)]
struct Pending {
    due_ns: u64,
    ticket: Ticket,
}

/// A request to send now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outgoing {
    /// When it was due; not after the reading that was passed in.
    pub due_ns: u64,
    /// Index of its source port, from 0 to the plan's `flows` - 1.
    pub flow: u16,
    /// Its number within the run.
    pub sequence: u64,
    /// The request.
    pub request: Request,
}

/// The result of handling an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyOutcome {
    /// The first reply to a request of this run.
    Completed {
        /// Time since the request was due.
        latency_ns: u64,
    },
    /// Another reply to a request that was answered.
    Duplicate,
    /// A reply to a request that was settled long ago, mostly one given up on.
    Stale,
    /// A reply to a request that this run never sent.
    Unknown,
    /// Not a reply at all.
    Malformed,
    /// The first reply to a request, but not the right one.
    Wrong,
    /// The server refused the request.
    Refused,
}

impl Generator {
    /// Creates a generator of spin requests in datagrams, with the plan's service times, whose
    /// schedule starts at clock reading `start_ns`. `plan` and `seed` fix every due time, every
    /// service time and every byte sent.
    ///
    /// # Errors
    /// As [`Plan::check`].
    pub fn new(plan: Plan, seed: u64, start_ns: u64) -> Result<Self, PlanError> {
        let protocol = Arc::new(Spin::new(plan.service.clone()));
        Self::with_protocol(plan, protocol, Medium::Datagram, seed, start_ns)
    }

    /// Creates a generator for any protocol, otherwise as [`Generator::new`] does. With ids of 16
    /// bits in datagrams at most 65,536 requests are in flight for each flow.
    ///
    /// # Errors
    /// As [`Plan::check`].
    pub fn with_protocol(
        plan: Plan,
        protocol: Arc<dyn Protocol>,
        medium: Medium,
        seed: u64,
        start_ns: u64,
    ) -> Result<Self, PlanError> {
        plan.check()?;
        let mut slots = plan.outstanding_slots();
        if protocol.ids(medium) == Ids::Short && medium == Medium::Datagram {
            // More could not be distinguished. A power of two for each flow, and so for any number
            // of them.
            slots = slots.min(SHORT_IDS << plan.flows.ilog2());
        }
        Ok(Self::with_slots(plan, protocol, medium, seed, start_ns, slots))
    }

    /// `plan` has been checked; `slots` is a power of two.
    fn with_slots(
        plan: Plan,
        protocol: Arc<dyn Protocol>,
        medium: Medium,
        seed: u64,
        start_ns: u64,
        slots: usize,
    ) -> Self {
        let measured = start_ns + plan.warm_up_ns..start_ns + plan.schedule.length_ns();
        let recorder = || match plan.interval_length_ns() {
            Some(interval_ns) => LatencyRecorder::with_intervals(measured.start, interval_ns),
            None => LatencyRecorder::new(measured.start),
        };
        let (first_class, recorder) = (plan.first_class.then(recorder), recorder());
        let mut generator = Self {
            start_ns,
            arrivals: Arrivals::new(plan.arrivals, plan.schedule.clone()).with_phase(plan.phase),
            arrival_prng: stream(seed, ARRIVAL_STREAM),
            service_prng: stream(seed, SERVICE_STREAM),
            tag: draw_tag(seed),
            pending: None,
            outstanding: Outstanding::new(slots),
            recorder,
            first_class,
            delivery: Delivery::default(),
            oddities: Oddities::default(),
            gaps: GapCounter::new(start_ns),
            measured,
            ids: protocol.ids(medium),
            protocol,
            medium,
            plan,
        };
        generator.draw_next();
        generator
    }

    /// Returns a request that is due at clock reading `now_ns`, if any; call again until there is
    /// none.
    #[inline]
    pub fn poll_due(&mut self, now_ns: u64) -> Option<Outgoing> {
        self.expire(now_ns);
        for _ in 0..OVERFLOW_BATCH {
            let Pending { due_ns, ticket } = self.pending.filter(|p| p.due_ns <= now_ns)?;
            self.draw_next();
            self.note(due_ns, ticket, |recorder| recorder.count_offered(now_ns));
            let Some(sequence) = self.outstanding.insert(due_ns, ticket) else {
                self.oddities.overflowed += 1;
                self.count_lost(due_ns, ticket, now_ns);
                continue;
            };
            self.check_schedule(due_ns, ticket, now_ns);
            let request = Request { id: self.id_of(sequence), ticket, due_ns };
            let flow = (sequence % u64::from(self.plan.flows)) as u16;
            return Some(Outgoing { due_ns, flow, sequence, request });
        }
        None
    }

    /// Records that the transport's loop came round at clock reading `now_ns`. A transport that
    /// spins calls this on every turn, so that disturbances of its core are seen; one that sleeps
    /// between events never does.
    #[inline]
    pub fn observe_spin(&mut self, now_ns: u64) {
        if let Some(gap) = self.gaps.observe(now_ns)
            && gap.end - gap.start >= STALL_NS
            && self.is_measured(gap.end)
        {
            self.recorder.note_stall(gap.start, gap.end);
            if let Some(first) = &mut self.first_class {
                first.note_stall(gap.start, gap.end);
            }
        }
    }

    /// Records a turn as [`Generator::observe_spin`] does if the transport may have slept since the
    /// last call: the time between is no sign of machine noise.
    #[inline]
    pub fn skip_sleep(&mut self, now_ns: u64) {
        self.gaps.skip(now_ns);
    }

    /// Returns the next interval that is over at clock reading `now_ns` and was not returned yet;
    /// none unless the plan keeps intervals.
    #[inline]
    pub fn poll_interval(&mut self, now_ns: u64) -> Option<&Interval> {
        self.recorder.poll_interval(now_ns)
    }

    /// Appends the bytes of a request.
    #[inline]
    pub fn encode(&self, outgoing: &Outgoing, out: &mut Vec<u8>) {
        self.protocol.encode(&outgoing.request, self.medium, out);
    }

    /// Returns the protocol.
    #[must_use]
    pub fn protocol(&self) -> &Arc<dyn Protocol> {
        &self.protocol
    }

    /// Handles a datagram that had arrived at `flow` by clock reading `now_ns`.
    #[inline]
    pub fn handle_reply(&mut self, now_ns: u64, flow: u16, bytes: &[u8]) -> ReplyOutcome {
        let Some(id) = self.protocol.id(bytes, self.medium) else {
            self.oddities.malformed += 1;
            return ReplyOutcome::Malformed;
        };
        let Some(sequence) = self.sequence_of(id, flow) else {
            self.oddities.unknown += 1;
            return ReplyOutcome::Unknown;
        };
        self.handle_answer(now_ns, sequence, bytes)
    }

    /// Handles an answer to request `sequence` that had arrived by clock reading `now_ns`.
    #[inline]
    pub fn handle_answer(&mut self, now_ns: u64, sequence: u64, bytes: &[u8]) -> ReplyOutcome {
        match self.outstanding.answer(sequence) {
            Answer::First { due_ns, ticket } => {
                let request = Request { id: self.id_of(sequence), ticket, due_ns };
                self.settle(now_ns, &request, bytes)
            }
            Answer::Duplicate => {
                self.oddities.duplicate += 1;
                ReplyOutcome::Duplicate
            }
            Answer::Stale => {
                self.oddities.stale += 1;
                ReplyOutcome::Stale
            }
            Answer::Unknown => {
                self.oddities.unknown += 1;
                ReplyOutcome::Unknown
            }
        }
    }

    /// Settles a request by its first answer.
    #[inline]
    fn settle(&mut self, now_ns: u64, request: &Request, bytes: &[u8]) -> ReplyOutcome {
        let &Request { due_ns, ticket, .. } = request;
        let verdict = self.protocol.check(request, bytes, self.medium);
        match verdict {
            Verdict::Right => {}
            Verdict::Miss => self.oddities.missed += 1,
            Verdict::Refused => self.oddities.refused += 1,
            Verdict::Wrong => self.oddities.wrong += 1,
        }
        if due_ns.saturating_add(self.plan.timeout_ns) < now_ns {
            self.oddities.stale += 1;
            self.count_lost(due_ns, ticket, now_ns);
            return ReplyOutcome::Stale;
        }
        match verdict {
            Verdict::Right | Verdict::Miss => {
                let latency_ns = now_ns.saturating_sub(due_ns);
                self.note(due_ns, ticket, |recorder| recorder.record(now_ns, latency_ns));
                if self.is_measured(due_ns)
                    && let Some(served) = self.protocol.served(request, bytes)
                {
                    self.delivery.record(served);
                }
                ReplyOutcome::Completed { latency_ns }
            }
            Verdict::Refused => {
                self.count_lost(due_ns, ticket, now_ns);
                ReplyOutcome::Refused
            }
            Verdict::Wrong => {
                self.count_lost(due_ns, ticket, now_ns);
                ReplyOutcome::Wrong
            }
        }
    }

    /// Returns the id that the answer to request `sequence` carries.
    #[inline]
    fn id_of(&self, sequence: u64) -> u64 {
        match (self.ids, self.medium) {
            // The flow's own count, which puts as many ids as possible between two equal ones.
            (Ids::Short, Medium::Datagram) => sequence / u64::from(self.plan.flows),
            _ => self.tag | sequence,
        }
    }

    /// Returns the request that a datagram at `flow` claims to answer; of several with the same id
    /// the last.
    #[inline]
    fn sequence_of(&self, id: u64, flow: u16) -> Option<u64> {
        let flows = u64::from(self.plan.flows);
        let sequence = match self.ids {
            Ids::Long => id ^ self.tag,
            Ids::Order => return None,
            Ids::Short => {
                // Number of requests sent from this flow.
                let sent = (self.outstanding.next() + flows - 1).checked_sub(u64::from(flow))? / flows;
                let back = sent.checked_sub(1)?.wrapping_sub(id) & (SHORT_IDS as u64 - 1);
                (sent - 1).checked_sub(back)? * flows + u64::from(flow)
            }
        };
        (sequence % flows == u64::from(flow)).then_some(sequence)
    }

    /// Returns the id that an answer to request `sequence` carries on a stream.
    #[inline]
    #[must_use]
    pub fn stream_id(&self, sequence: u64) -> u64 {
        self.tag | sequence
    }

    /// Returns true if request `sequence` is neither answered nor given up on.
    #[must_use]
    pub fn is_waiting(&self, sequence: u64) -> bool {
        self.outstanding.is_waiting(sequence)
    }

    /// Returns the time for which an answer is awaited.
    #[must_use]
    pub fn timeout_ns(&self) -> u64 {
        self.plan.timeout_ns
    }

    /// Counts bytes of a stream that are no answer.
    pub fn count_malformed(&mut self) {
        self.oddities.malformed += 1;
    }

    /// Counts a connection that ended and is opened again.
    pub fn count_reconnect(&mut self) {
        self.oddities.reconnects += 1;
    }

    /// Counts a request for which no connection had room.
    pub fn count_held_back(&mut self) {
        self.oddities.held_back += 1;
    }

    /// Records that request `sequence` was sent and will not be answered, because its connection
    /// had ended by clock reading `now_ns`.
    pub fn handle_connection_loss(&mut self, sequence: u64, now_ns: u64) {
        if let Answer::First { due_ns, ticket } = self.outstanding.answer(sequence) {
            self.count_lost(due_ns, ticket, now_ns);
        }
    }

    /// Records that `outgoing`, which this generator returned, could not be sent at clock reading
    /// `now_ns`; it counts as lost at once.
    pub fn handle_send_failure(&mut self, outgoing: &Outgoing, now_ns: u64) {
        self.oddities.send_failed += 1;
        self.handle_connection_loss(outgoing.sequence, now_ns);
    }

    /// Returns when the next request is due; `None` when the schedule is over.
    #[must_use]
    pub fn next_due_ns(&self) -> Option<u64> {
        self.pending.map(|p| p.due_ns)
    }

    /// Returns when the engine next has work without a reply: a request falls due or expires.
    /// `None` when it is done.
    #[must_use]
    pub fn next_event_ns(&self) -> Option<u64> {
        let give_up = self.outstanding.oldest_due().map(|due_ns| due_ns + self.plan.timeout_ns + 1);
        self.next_due_ns().into_iter().chain(give_up).min()
    }

    /// Returns true if the schedule is over and every request is settled.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.pending.is_none() && self.outstanding.oldest_due().is_none()
    }

    /// Ends the run at clock reading `now_ns`. Ended early, it reports the part of the schedule
    /// that was reached.
    #[must_use]
    pub fn finish(self, now_ns: u64) -> Measurement {
        let interrupted = !self.is_done();
        // A run that is over may have seen its last reply before the schedule's last moment, which
        // still counts.
        let end_ns = if interrupted { now_ns } else { self.measured.end };
        let reached = end_ns.clamp(self.measured.start, self.measured.end);
        Measurement {
            summary: self.recorder.finish(reached - self.measured.start),
            delivery: self.delivery,
            first_class: self.first_class.map(|recorder| recorder.finish(reached - self.measured.start)),
            oddities: self.oddities,
            gaps: self.gaps.gaps(),
            late_after_ns: self.plan.late_after_ns,
            interrupted,
        }
    }

    fn draw_next(&mut self) {
        self.pending = self.arrivals.next_ns(&mut self.arrival_prng).map(|offset_ns| Pending {
            due_ns: self.start_ns + offset_ns,
            ticket: self.protocol.draw(&mut self.service_prng),
        });
    }

    fn expire(&mut self, now_ns: u64) {
        let before_ns = now_ns.saturating_sub(self.plan.timeout_ns);
        for _ in 0..EXPIRE_BATCH {
            let Some((due_ns, ticket)) = self.outstanding.poll_expired(before_ns) else { return };
            self.count_lost(due_ns, ticket, now_ns);
        }
    }

    fn check_schedule(&mut self, due_ns: u64, ticket: Ticket, now_ns: u64) {
        let behind_ns = now_ns - due_ns;
        if behind_ns > self.plan.late_after_ns && self.is_measured(due_ns) {
            self.note(due_ns, ticket, LatencyRecorder::count_late);
            self.oddities.worst_behind_ns = self.oddities.worst_behind_ns.max(behind_ns);
        }
    }

    fn count_lost(&mut self, due_ns: u64, ticket: Ticket, now_ns: u64) {
        self.note(due_ns, ticket, |recorder| recorder.count_lost(now_ns));
    }

    /// Applies `note` to the recorders that count the request, if it was due in the measured part.
    #[inline]
    fn note(&mut self, due_ns: u64, ticket: Ticket, note: impl Fn(&mut LatencyRecorder)) {
        if !self.is_measured(due_ns) {
            return;
        }
        note(&mut self.recorder);
        if let Some(first) = &mut self.first_class
            && self.protocol.class(ticket) == 0
        {
            note(first);
        }
    }

    fn is_measured(&self, due_ns: u64) -> bool {
        self.measured.contains(&due_ns)
    }
}

/// Returns the run's tag in the high bits of every id; never 0, so that a zeroed message is not a
/// reply.
fn draw_tag(seed: u64) -> u64 {
    let mut prng = stream(seed, TAG_STREAM);
    let unit = tailwater_workload::random::unit_open_closed(&mut prng);
    let tags = (1u64 << (64 - SEQUENCE_BITS)) as f64;
    (unit * (tags - 1.0)).ceil() as u64 * (1 << SEQUENCE_BITS)
}

#[cfg(test)]
mod tests;
