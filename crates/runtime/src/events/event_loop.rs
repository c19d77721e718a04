//! The rounds of a loop: what is visited, in which order, and when commands take effect.
//!
//! # Invariants
//! * A slot is in `waiting` or `later` at most once, and exactly while its `queued` is set.
//! * A socket that may have something to report and is in neither list is in the inbox, or a change
//!   will put it there: a visit that finds nothing is made with the socket locked.
//! * A connection reports one condition in a round, so what a condition says of its data is so when
//!   the program looks.
//! * A queue of datagrams is exchanged in a round in which none of it was reported.

use super::condition::{Batch, CommandError, Condition, DatagramRange, Handle};
use super::datagrams::{Arrival, Next};
use super::inbox::Inbox;
use super::slots::{Kind, Slots};
use super::stream::Change;
use super::waker::LoopWaker;
use crate::egress;
use crate::ground::guard::NoPreempt;
use crate::records::runtime::{clock as clock_of_machine, deadline_after};
use crate::thread::yield_now;
use crate::verbs::wait::check_may_block;
use crate::verbs::worker::take_frames_here;
use core::cell::RefCell;
use core::fmt;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tailwater_shm::{Cycles, clock};
use tailwater_tcp::Buffer;

/// Conditions in a round unless the program chooses: IX's bound (TOCS'17 section 5.1). From 16 on a
/// larger one gains nothing there (section 6).
const DEFAULT_BATCH: usize = 64;
const MAX_BATCH: usize = 256;
/// Connections whose segments are shown to the IOKernel together. It polls the cache line in which
/// the next frame begins, so showing one at a time has both wait for that line each time.
const SHOWN_TOGETHER: usize = 8;
/// Time after which other threads of the kthread run, though conditions follow without a pause.
const TURN_NS: u64 = 50_000;
/// Stands for the loop's wakers among the slots to visit.
const WAKER: u32 = u32::MAX;

/// A loop over any number of sockets, in one thread. See the [module's documentation](super).
///
/// A loop belongs to the thread that uses it; another thread has a [`LoopWaker`].
///
/// # Examples
/// A connection to oneself:
/// ```standalone_crate
/// use std::io::IoSlice;
/// use tailwater::events::{Batch, Condition, EventLoop, Token};
/// use tailwater::net::TcpListener;
///
/// #[tailwater::main]
/// fn main() {
///     let mut events = EventLoop::new();
///     let listener = TcpListener::bind("127.0.0.1:0").unwrap();
///     let address = listener.local_addr().unwrap();
///     events.listen(listener, Token(0));
///     let client = events.connect(address, Token(1)).unwrap();
///     events.send(client, &[IoSlice::new(b"to "), IoSlice::new(b"myself")]).unwrap();
///     let mut batch = Batch::new();
///     loop {
///         events.poll(&mut batch, None);
///         for condition in batch.iter() {
///             match condition {
///                 Condition::Incoming { handle, .. } => events.accept(handle, Token(2)).unwrap(),
///                 Condition::Received { token, handle, .. } => {
///                     assert_eq!(token, Token(2));
///                     assert_eq!(events.data(handle).unwrap(), b"to myself");
///                     return;
///                 }
///                 _ => {}
///             }
///         }
///     }
/// }
/// ```
pub struct EventLoop {
    pub(super) inbox: Arc<Inbox>,
    pub(super) slots: Slots,
    /// Slots to visit in this round, or the next, and [`WAKER`].
    waiting: VecDeque<u32>,
    /// Slots to visit in the next round.
    later: Vec<u32>,
    /// True while `waiting` has [`WAKER`].
    woken: bool,
    /// Connections with commands of this round.
    pub(super) commanded: RefCell<Vec<Handle>>,
    /// Connections reported as closed in this round.
    over: Vec<Handle>,
    spares: Vec<Buffer>,
    /// Conditions that a handler has not seen yet.
    pub(super) unhandled: VecDeque<Condition>,
    /// Where a datagram in several slices is put together.
    pub(super) scratch: RefCell<Vec<u8>>,
    bound: usize,
    round: u64,
    /// Time at which other threads could last run.
    turn_began: Cycles,
}

impl Default for EventLoop {
    fn default() -> Self {
        Self::new()
    }
}

impl EventLoop {
    /// Returns a loop without sockets, whose rounds have up to 64 conditions.
    pub fn new() -> Self {
        Self {
            inbox: Arc::new(Inbox::new()),
            slots: Slots::default(),
            waiting: VecDeque::new(),
            later: Vec::new(),
            woken: false,
            commanded: RefCell::default(),
            over: Vec::new(),
            spares: Vec::new(),
            unhandled: VecDeque::new(),
            scratch: RefCell::default(),
            bound: DEFAULT_BATCH,
            round: 0,
            turn_began: clock::now(),
        }
    }

    /// Sets the most conditions of a round, 1 to 256. A round never waits for more than one: the
    /// bound matters under load alone, where large rounds cost fewer cycles for each condition, and
    /// small ones send the first reply sooner.
    ///
    /// # Errors
    /// [`CommandError::Batch`] outside that range.
    ///
    /// # Examples
    /// ```
    /// let mut events = tailwater::events::EventLoop::new();
    /// events.set_batch(256).unwrap();
    /// assert!(events.set_batch(257).is_err());
    /// ```
    pub fn set_batch(&mut self, conditions: usize) -> Result<(), CommandError> {
        if !(1..=MAX_BATCH).contains(&conditions) {
            return Err(CommandError::Batch(conditions));
        }
        self.bound = conditions;
        Ok(())
    }

    /// Returns the number of sockets, listeners included.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns whether it has no socket.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns what wakes the loop from other threads.
    ///
    /// # Examples
    /// ```
    /// use tailwater::events::{Batch, Condition, EventLoop};
    ///
    /// let (mut events, mut batch) = (EventLoop::new(), Batch::new());
    /// let waker = events.waker();
    /// std::thread::spawn(move || waker.wake());
    /// events.poll(&mut batch, None);
    /// assert_eq!(batch.iter().next(), Some(Condition::Woken));
    /// ```
    pub fn waker(&self) -> LoopWaker {
        LoopWaker::new(&self.inbox)
    }

    /// Ends the round, and begins the next: sends what was sent in this one, waits until there is a
    /// condition, and puts up to the bound of them into `batch`, in place of those there. Returns
    /// their number; zero if `timeout` has passed. With a time of zero, other threads of the
    /// kthread have run before it returns zero.
    ///
    /// A command on one socket may end another of the same batch: a program that closes sockets
    /// other than the condition's own must expect invalid handles behind it.
    ///
    /// # Panics
    /// On a user thread within [`no_preempt`](crate::no_preempt), and in a handler of
    /// [`run`](Self::run).
    pub fn poll(&mut self, batch: &mut Batch, timeout: Option<Duration>) -> usize {
        check_may_block(&NoPreempt::new());
        let deadline = timeout.map(deadline_after);
        batch.conditions.clear();
        self.carry_out();
        if !self.unhandled.is_empty() {
            // A handler has left them, and their round goes on.
            while batch.len() < self.bound
                && let Some(condition) = self.next_unhandled()
            {
                batch.conditions.push(condition);
            }
            if !batch.is_empty() {
                return batch.len();
            }
        }
        self.begin_round();
        while batch.is_empty() {
            crate::poll();
            self.collect(batch);
            if batch.is_empty() && !self.pause(deadline) {
                self.collect(batch);
                break;
            }
        }
        batch.len()
    }

    /// Removes the oldest condition that no handler has seen. One of a socket that was closed since
    /// is dropped.
    pub(super) fn next_unhandled(&mut self) -> Option<Condition> {
        let Self { unhandled, slots, .. } = self;
        let is_open = |condition: &Condition| condition.handle().is_none_or(|it| slots.get(it).is_ok());
        core::iter::from_fn(|| unhandled.pop_front()).find(is_open)
    }

    /// Waits for a change, until `deadline`; false if that has passed. Other threads of the kthread
    /// run in both cases: a program that polls with a time of zero does not stop them.
    fn pause(&mut self, deadline: Option<Cycles>) -> bool {
        if take_frames_here() {
            return true;
        }
        if deadline.is_some_and(|deadline| clock::now() >= deadline) {
            self.let_others_run();
            return false;
        }
        if self.inbox.wait(deadline) {
            self.turn_began = clock::now();
        }
        true
    }

    fn let_others_run(&mut self) {
        yield_now();
        self.turn_began = clock::now();
    }

    /// Carries out the commands of the round.
    fn carry_out(&mut self) {
        let mut commanded = core::mem::take(self.commanded.get_mut());
        for together in commanded.chunks(SHOWN_TOGETHER) {
            self.complete(together);
            crate::poll();
        }
        commanded.clear();
        *self.commanded.get_mut() = commanded;
    }

    /// Forgets the connections that were reported as closed, and lets other threads run if rounds
    /// have followed one another for long.
    fn begin_round(&mut self) {
        self.round += 1;
        while let Some(handle) = self.over.pop() {
            if let Ok(Kind::Stream(mut stream)) = self.slots.remove(handle) {
                stream.return_all();
            }
        }
        if clock::now().saturating_sub(self.turn_began) >= clock_of_machine().from_ns(TURN_NS) {
            self.let_others_run();
        }
    }

    /// Sends what connections have to send; the IOKernel sees it at once.
    fn complete(&mut self, together: &[Handle]) {
        let _on_one_kthread = NoPreempt::new();
        let mut corked = egress::cork();
        for &handle in together {
            let Ok(stream) = self.slots.stream_mut(handle) else { continue };
            if corked && stream.is_large() {
                // The IOKernel empties the ring while it is filled.
                egress::uncork();
                corked = false;
            }
            stream.complete(&mut self.spares);
        }
        if corked {
            egress::uncork();
        }
    }

    /// Returns whether datagrams of `round` are on loan.
    pub(super) fn lends_round(&self, round: u64) -> bool {
        self.round == round
    }

    /// Visits sockets that may have something to report, until the batch is full. Changed sockets
    /// line up behind those that wait in each round, so one that always has more delays the others
    /// by one condition at a time.
    fn collect(&mut self, batch: &mut Batch) {
        self.waiting.extend(self.later.drain(..));
        let (waiting, slots) = (&mut self.waiting, &mut self.slots);
        let woken = self.inbox.take(self.bound, |index| {
            if !core::mem::replace(&mut slots.at(index).queued, true) {
                waiting.push_back(index);
            }
        });
        if woken && !core::mem::replace(&mut self.woken, true) {
            self.waiting.push_back(WAKER);
        }
        self.visit_waiting(batch);
    }

    fn visit_waiting(&mut self, batch: &mut Batch) {
        while batch.len() < self.bound
            && let Some(index) = self.waiting.pop_front()
        {
            if index == WAKER {
                self.woken = false;
                batch.conditions.push(Condition::Woken);
                continue;
            }
            self.slots.at(index).queued = false;
            let (condition, next) = self.visit(index);
            match next {
                Next::Change => {}
                Next::Turn => self.queue(index, false),
                Next::Round => self.queue(index, true),
            }
            batch.conditions.extend(condition);
        }
    }

    /// Has a slot visited, in this round or in the next.
    fn queue(&mut self, index: u32, in_next_round: bool) {
        if core::mem::replace(&mut self.slots.at(index).queued, true) {
            return;
        }
        if in_next_round {
            self.later.push(index);
        } else {
            self.waiting.push_back(index);
        }
    }

    /// Has a socket visited in the next round.
    pub(super) fn visit_later(&mut self, handle: Handle) {
        self.queue(handle.index, true);
    }

    /// Returns what a socket has to report, and when to come again.
    fn visit(&mut self, index: u32) -> (Option<Condition>, Next) {
        let handle = self.slots.handle(index);
        let round = self.round;
        let slot = self.slots.at(index);
        let token = slot.token;
        match &mut slot.kind {
            None => (None, Next::Change),
            Some(Kind::Stream(_)) if slot.reported == round => (None, Next::Round),
            Some(Kind::Stream(stream)) => {
                let (change, again) = stream.visit(&mut self.spares);
                let Some(change) = change else { return (None, Next::Change) };
                slot.reported = round;
                let condition = match change {
                    Change::Connected => Condition::Connected { token, handle },
                    Change::Received(fresh) => Condition::Received { token, handle, fresh },
                    Change::Window { room, acknowledged } => {
                        Condition::Window { token, handle, room, acknowledged }
                    }
                    Change::Eof => Condition::Eof { token, handle },
                    Change::Closed(reason) => {
                        self.over.push(handle);
                        Condition::Closed { token, handle, reason }
                    }
                };
                (Some(condition), if again { Next::Round } else { Next::Change })
            }
            Some(Kind::Datagrams(datagrams)) => {
                let (arrival, next) = datagrams.visit(round);
                let condition = arrival.map(|arrival| match arrival {
                    Arrival::Datagram(from, bytes) => {
                        let range = DatagramRange::new(handle, &bytes, round);
                        Condition::Datagram { token, handle, from, range }
                    }
                    Arrival::Undelivered(reason) => Condition::Undelivered { token, handle, reason },
                });
                (condition, next)
            }
            Some(Kind::Listener(listener)) => {
                let Some(stream) = listener.get().accept_or(drop) else { return (None, Next::Change) };
                let peer = stream.peer();
                // A connection reports nothing before the program accepts it.
                let handle = self.insert_incoming(stream);
                (Some(Condition::Incoming { listener: token, handle, peer }), Next::Turn)
            }
        }
    }
}

impl fmt::Debug for EventLoop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventLoop").field("sockets", &self.len()).field("batch", &self.bound).finish()
    }
}
