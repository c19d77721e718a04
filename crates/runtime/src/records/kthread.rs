//! A kthread: one OS thread that runs user threads, and how running code reaches its own.
//!
//! Owns the [`Kthread`] record. What a kthread does is in [`verbs`](crate::verbs).
//!
//! # Access rules
//! * Any thread may use a `&Kthread`: its fields are atomics or locked.
//! * [`Private`] belongs to the kthread's OS thread. The way to it is [`ThisKthread`], which only a
//!   [`NoPreempt`] gives out: preemption is off for as long as a reference to it exists.
//! * `ThisKthread` is meaningful until its holder switches. A function that switches takes the
//!   `NoPreempt` by value, which ends all references.

use super::identity::IdBlock;
use super::ingress::Ingress;
use super::meter::{Meter, Totals};
use super::placing;
use super::stack::StackCache;
use super::uthread::{Runnable, Uthread};
use crate::ground::blocks::BlockCache;
use crate::ground::guard::{Head, NoPreempt, inside};
use crate::ground::owner_cell::OwnerCell;
use crate::ground::random::Random;
use crate::ground::slice::Slice;
use crate::ground::spin::SpinLock;
use crate::ground::timer::TimerHeap;
use crate::ground::words::mailbox::Mailbox;
use crate::ground::{arch, runq};
use core::cell::{Cell, RefCell};
use core::marker::PhantomData;
use core::mem::offset_of;
use core::ops::Deref;
use core::sync::atomic::{
    AtomicI32, AtomicPtr, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed,
};
use std::collections::VecDeque;
use tailwater_shm::Cycles;
use tailwater_shm::account::Account;
use tailwater_shm::adaptive_spin::AdaptiveSpin;
use tailwater_shm::grant::{Generation, PREEMPT_SIGNAL};
use tailwater_shm::layout::{KthreadShared, RuntimeEnds};
use tailwater_shm::ring::Producer;
use tailwater_shm::trace::TraceWriter;

/// The core of a kthread that runs on no managed core.
pub const NO_CORE: u16 = u16::MAX;

/// The number of no turn.
const NO_TURN: u64 = u64::MAX;

/// What a kthread counts. Its own OS thread writes, any thread reads.
#[derive(Debug, Default)]
pub struct Counters {
    /// User threads taken from other kthreads.
    pub stolen_threads: AtomicU64,
    /// Timers of other kthreads fired.
    pub stolen_timers: AtomicU64,
    /// Frames processed.
    pub frames: AtomicU64,
    /// Frames taken from other kthreads' rings.
    pub stolen_frames: AtomicU64,
    /// Cores given up on request.
    pub cedes: AtomicU64,
    /// Cores given up for lack of work.
    pub parks: AtomicU64,
    /// User threads interrupted by the preempt signal.
    pub preemptions: AtomicU64,
    /// Turns given up at a poll point because they were over.
    pub yields: AtomicU64,
}

/// Adds to a counter that only the calling OS thread writes: cheaper than an atomic addition.
#[inline(always)]
pub fn count(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(n), Relaxed);
}

/// The part of a kthread that only its OS thread uses, with preemption off.
#[derive(Debug)]
#[repr(C)]
pub struct Private {
    /// Where the scheduler context waits while a user thread runs.
    pub sched_rsp: Cell<usize>,
    /// Direct switches left until the next visit to the scheduler.
    pub switch_budget: Cell<u32>,
    /// Direct switches until frames are looked for again, and the time at which they are in any
    /// case.
    pub batch: Cell<(u32, Cycles)>,
    /// True if the thread that last left the kthread for the scheduler was queued again: then it is
    /// not one of those that waited while it ran.
    pub ran_is_queued: Cell<bool>,
    /// True if the thread that was taken from a queue last is a pinned one.
    pub ran_pinned: Cell<bool>,
    /// Time from which the work of kthreads without a core is looked for again.
    pub next_round: Cell<Cycles>,
    /// Time from which stale timers are pruned again before the core is given up.
    pub next_prune: Cell<Cycles>,
    /// Tenancy in progress.
    pub generation: Cell<Generation>,
    /// The time slice in progress, where poll points are counted.
    pub slice: Cell<Slice>,
    /// The thread that this kthread hosts, while it is runnable and does not run.
    pub own: RefCell<Option<Runnable>>,
    /// What `arch::switch` clears when it leaves the scheduler context.
    pub unused_flag: Cell<u8>,
    /// Generator of victims.
    pub random: Random,
    /// The owner's end of the run queue.
    pub runq: runq::Owner<Runnable>,
    /// Frames to the IOKernel; `None` standalone.
    pub egress: Option<RefCell<Producer>>,
    /// The buffer of steps of traced requests; `None` standalone.
    pub trace: Option<TraceWriter>,
    /// Ids for the threads that it starts.
    pub thread_ids: IdBlock,
    /// Free stacks.
    pub stacks: StackCache,
    /// Free small blocks.
    pub blocks: BlockCache,
    /// How long it polls without work before it gives its core back; `None` before it first idles.
    pub spin: RefCell<Option<AdaptiveSpin>>,
    /// When it last began to work: with a tenancy, or after it had idled.
    pub works_since: Cell<Cycles>,
    /// How long it waited for the core that it has, or had last.
    pub waited: Cell<Cycles>,
    /// Wakes at the board without a grant.
    pub strays: Cell<Account>,
    /// Its number of frames when it last idled.
    pub frames_before: Cell<u64>,
    /// For how long it works for a frame, as a running average.
    pub work: Cell<Cycles>,
}

/// One OS thread of the runtime.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct Kthread {
    /// The words that assembly reaches from GS base.
    head: Head,
    /// Written by its OS thread; read by the dump and the stall detector too.
    current: AtomicPtr<Uthread>,
    /// The exclusive thread whose [host](crate::verbs::host) this kthread is; null if it is none.
    hosted: AtomicPtr<Uthread>,
    /// Number of the last turn that was ended, [`NO_TURN`] at first: see
    /// [`quantum`](crate::verbs::quantum).
    over: AtomicU64,
    /// Number of the turn that was in progress at the last tick.
    pub ticked: AtomicU64,
    /// When the preempt signal first found that turn in progress.
    pub ticked_at: AtomicU64,
    /// Number within the runtime.
    pub index: u16,
    /// Core lent, or [`NO_CORE`]. Written by [`set_core`](Self::set_core).
    pub core: AtomicU16,
    /// Classes whose threads may be placed with it, a bit each; see
    /// [`placing`](crate::records::placing).
    pub classes: AtomicU64,
    /// Number of threads in `pinned`.
    pub pinned_len: AtomicU32,
    /// When it wakes by itself, while it sleeps in a standalone runtime; otherwise
    /// [`Cycles::MAX`]. Written by its own OS thread.
    pub sleeps_until: AtomicU64,
    private: OwnerCell<Private>,
    /// Its words in the region (private memory, standalone).
    pub shared: &'static KthreadShared,
    /// The thieves' end of its run queue.
    pub runq: runq::Stealer<Runnable>,
    /// Frames from the IOKernel; `None` standalone.
    pub ingress: Option<Ingress>,
    /// CPU that it was last seen on, standalone; `usize::MAX` before that.
    pub cpu: AtomicUsize,
    /// Where it receives threads while it polls.
    pub mailbox: Mailbox,
    /// User threads that did not fit the run queue; `shared.status.overflow` publishes the number.
    pub overflow: SpinLock<VecDeque<Runnable>>,
    /// User threads that are [pinned](crate::verbs::pinned) to its core.
    pub pinned: SpinLock<VecDeque<Runnable>>,
    /// Its timers; `shared.status.next_timer` publishes the earliest.
    pub timers: SpinLock<TimerHeap>,
    /// What it counts.
    pub counters: Counters,
    /// Its load.
    pub meter: Meter,
    /// Linux's id of the OS thread; 0 before it runs.
    pub os_tid: AtomicI32,
}

const CURRENT: usize = offset_of!(Kthread, current);

impl Kthread {
    /// Makes kthread `index`, the only one of its runtime if `only`, with its ends of the rings if
    /// it is attached. It lives as long as the process.
    pub fn leak(
        index: u16,
        shared: &'static KthreadShared,
        ends: Option<RuntimeEnds>,
        only: bool,
    ) -> &'static Self {
        let (egress, ingress, trace) = ends.map_or((None, None, None), |ends| {
            (Some(RefCell::new(ends.egress)), Some(Ingress::new(ends.ingress)), Some(ends.steps))
        });
        let (runq, stealer) = runq::new(&shared.status, only);
        Box::leak(Box::new(Self {
            head: Head::new(&shared.grant.0),
            current: AtomicPtr::new(core::ptr::null_mut()),
            hosted: AtomicPtr::new(core::ptr::null_mut()),
            over: AtomicU64::new(NO_TURN),
            ticked: AtomicU64::new(NO_TURN),
            ticked_at: AtomicU64::new(0),
            index,
            core: AtomicU16::new(NO_CORE),
            classes: AtomicU64::new(0),
            pinned_len: AtomicU32::new(0),
            sleeps_until: AtomicU64::new(Cycles::MAX),
            private: OwnerCell::new(Private {
                sched_rsp: Cell::new(0),
                switch_budget: Cell::new(0),
                batch: Cell::new((0, 0)),
                ran_is_queued: Cell::new(false),
                ran_pinned: Cell::new(false),
                next_round: Cell::new(0),
                next_prune: Cell::new(0),
                generation: Cell::new(Generation(0)),
                slice: Cell::new(Slice::default()),
                own: RefCell::new(None),
                unused_flag: Cell::new(0),
                random: Random::new(0x9e37_79b9_7f4a_7c15 ^ (u64::from(index) + 1) << 32),
                runq,
                egress,
                trace,
                thread_ids: IdBlock::default(),
                stacks: StackCache::default(),
                blocks: BlockCache::default(),
                spin: RefCell::new(None),
                works_since: Cell::new(0),
                waited: Cell::new(0),
                strays: Cell::new(Account::default()),
                frames_before: Cell::new(0),
                work: Cell::new(0),
            }),
            shared,
            runq: stealer,
            ingress,
            cpu: AtomicUsize::new(usize::MAX),
            mailbox: Mailbox::new(),
            overflow: SpinLock::new(VecDeque::new()),
            pinned: SpinLock::new(VecDeque::new()),
            timers: SpinLock::new(TimerHeap::new()),
            counters: Counters::default(),
            meter: Meter::default(),
            os_tid: AtomicI32::new(0),
        }))
    }

    /// Makes the calling OS thread this kthread, and returns the proof that preemption is off,
    /// which the scheduler keeps.
    ///
    /// # Panics
    /// If another OS thread is this kthread, or the calling one is a kthread.
    pub fn adopt_os_thread(&'static self) -> NoPreempt {
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        let first = self.os_tid.compare_exchange(0, tid, Relaxed, Relaxed).is_ok();
        assert!(first, "kthread {} has an OS thread", self.index);
        // SAFETY: 1. the head is the first field of this record. 2. By the exchange above.
        unsafe { self.head.adopt() }
    }

    /// Returns the first words of the record.
    #[inline(always)]
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// Returns the user thread that this kthread runs, `None` in the scheduler.
    #[inline(always)]
    pub fn current(&self) -> Option<&'static Uthread> {
        // SAFETY: user-thread records are never freed.
        unsafe { self.current.load(Relaxed).as_ref() }
    }

    /// Returns the exclusive thread whose host this kthread is.
    pub fn hosted(&self) -> Option<&'static Uthread> {
        // Relaxed: a hint to others. SAFETY: user-thread records are never freed.
        unsafe { self.hosted.load(Relaxed).as_ref() }
    }

    /// Returns whether this kthread is the host of an exclusive thread.
    #[inline(always)]
    pub fn hosts(&self) -> bool {
        // Relaxed: as above.
        !self.hosted.load(Relaxed).is_null()
    }

    /// Returns whether the running thread should give the core up: to the IOKernel, or because its
    /// turn is over.
    #[inline(always)]
    pub fn yield_requested(&self) -> bool {
        let turn = self.turn();
        self.over.load(Relaxed) == turn || self.head.cede_requested() || self.head.turn_ended(turn)
    }

    /// Returns the number of the turn in progress: of user threads resumed.
    #[inline(always)]
    pub fn turn(&self) -> u64 {
        self.shared.turn.turns.load(Relaxed)
    }

    /// Begins the next turn. On its OS thread.
    #[inline(always)]
    pub fn begin_turn(&self) {
        count(&self.shared.turn.turns, 1);
        self.head.begin_turn();
    }

    /// Ends turn `turn`, if it is in progress, at its next poll point. Any thread may call this.
    pub fn end_turn(&self, turn: u64) {
        self.over.store(turn, Relaxed);
        self.head.expect_poll();
    }

    /// Records which core it is lent, or [`NO_CORE`].
    #[inline(always)]
    pub fn set_core(&self, core: u16) {
        self.core.store(core, Relaxed);
        placing::count_change();
    }

    /// Returns whether a frame seems to wait in its ingress ring.
    #[inline(always)]
    pub fn has_frame(&self) -> bool {
        self.ingress.as_ref().is_some_and(Ingress::has_record)
    }

    /// Publishes the length of the overflow list.
    pub fn publish_overflow(&self, len: usize) {
        self.shared.status.overflow.store(len as u32, Relaxed);
    }

    /// Ends a slice of its meter, and returns the sums up to now. On any thread.
    pub fn look_at_meter(&self, now: Cycles) -> Totals {
        // What is queued with a host is taken by others.
        self.meter.look(now, (!self.hosts()).then(|| self.waiting()))
    }

    /// Returns how many threads seem to wait for it, in its run queue and its lists.
    pub fn waiting(&self) -> u32 {
        let pinned = self.pinned_len.load(Relaxed);
        self.runq.len().saturating_add(self.overflowed()).saturating_add(pinned)
    }

    /// Returns whether threads that are pinned to its core seem to wait for it.
    #[inline(always)]
    pub fn has_pinned(&self) -> bool {
        self.pinned_len.load(Relaxed) > 0
    }

    /// Returns the number of threads in the overflow list, as published.
    #[inline(always)]
    pub fn overflowed(&self) -> u32 {
        self.shared.status.overflow.load(Relaxed)
    }

    /// Sends the preempt signal to the OS thread; false if that fails.
    pub fn interrupt(&self) -> bool {
        let tid = self.os_tid.load(Relaxed);
        // SAFETY: tgkill has no memory operands; the kthread's OS thread lives as long as the
        // process.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, PREEMPT_SIGNAL) == 0 }
    }
}

/// The kthread that the caller runs on and stays on: the way to its [`Private`] part.
#[derive(Debug, Clone, Copy)]
pub struct ThisKthread<'g> {
    kthread: &'g Kthread,
    _not_send: PhantomData<*mut ()>,
}

impl Deref for ThisKthread<'_> {
    type Target = Kthread;
    #[inline(always)]
    fn deref(&self) -> &Kthread {
        self.kthread
    }
}

impl<'g> ThisKthread<'g> {
    /// Returns the part that only this OS thread uses.
    #[inline(always)]
    pub fn private(self) -> &'g Private {
        // SAFETY: 1. and 2. `NoPreempt::kthread` made this of a proof that its OS thread is the
        // kthread's and that preemption is off for 'g. Signal handlers, which may come in between,
        // do not call this.
        unsafe { self.kthread.private.get() }
    }

    /// Returns the record, which lives as long as the process. It may be another kthread's than the
    /// caller's later on.
    #[inline(always)]
    pub fn for_ever(self) -> &'static Kthread {
        // SAFETY: kthreads are made by `Kthread::leak`.
        unsafe { &*core::ptr::from_ref(self.kthread) }
    }

    /// Publishes what the kthread does, for the account of cores. Not at direct switches between
    /// user threads, which go on doing the same.
    #[inline(always)]
    pub fn note_doing(self, doing: u32) {
        self.shared.status.doing.store(doing, Relaxed);
    }

    /// Makes this kthread the host of `thread`, or of none.
    pub fn set_hosted(self, thread: Option<&'static Uthread>) {
        let record = thread.map_or(core::ptr::null(), core::ptr::from_ref);
        self.hosted.store(record.cast_mut(), Relaxed);
        // Relaxed: a hint to the IOKernel.
        self.shared.status.hosted.store(thread.is_some().into(), Relaxed);
    }

    /// Enters a visit to the scheduler at `now` in the meter. `queued` threads are queued here; one
    /// of them is the thread that ran, if it was queued again. `None` if the kthread was a host up
    /// to now.
    pub fn meter_visit(self, now: Cycles, queued: Option<u32>) {
        let again = u32::from(self.private().ran_is_queued.get());
        self.meter.visit(now, queued.map(|queued| queued.saturating_sub(again)));
    }

    /// Records which user thread runs from now on, `None` for the scheduler.
    ///
    /// # Safety
    /// The caller switches to it next.
    #[inline(always)]
    pub unsafe fn set_current(self, uthread: Option<&'static Uthread>) {
        let record = uthread.map_or(core::ptr::null(), core::ptr::from_ref);
        self.current.store(record.cast_mut(), Relaxed);
    }
}

impl NoPreempt {
    /// Returns the kthread that the caller stays on, `None` on an ordinary thread.
    #[inline(always)]
    pub fn kthread(&self) -> Option<ThisKthread<'_>> {
        let head = core::ptr::from_ref(self.head()?);
        // SAFETY: a head that was adopted is the first field of a Kthread, which lives as long as
        // the process.
        let kthread = unsafe { &*head.cast::<Kthread>() };
        Some(ThisKthread { kthread, _not_send: PhantomData })
    }

    /// Returns the user thread that the caller runs in, if this guard alone keeps preemption off.
    #[inline(always)]
    pub fn lone_uthread(&self) -> Option<&'static Uthread> {
        let depth = self.head().map_or(0, Head::preempt_depth);
        self.kthread().and_then(|kthread| kthread.current()).filter(|_| depth == 1)
    }
}

/// Returns the user thread that the caller runs in, if any.
#[inline(always)]
pub fn current_uthread() -> Option<&'static Uthread> {
    if !inside() {
        return None;
    }
    // SAFETY: inside, GS base points to a Kthread. The value is the caller's own record, on
    // whichever kthread it is read.
    unsafe { (arch::gs_word::<CURRENT>() as *const Uthread).as_ref() }
}
