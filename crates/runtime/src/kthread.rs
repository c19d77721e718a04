//! A kthread: one OS thread that runs user threads, and how running code reaches its own.
//!
//! Owns the [`Kthread`] record, the "am I inside the runtime" flag, and [`NoPreempt`], the proof that the code holding it stays
//! on its kthread. Scheduling itself is in [`worker`](crate::worker).
//!
//! # Access rules
//! * The record is found through GS base, which every OS thread of the runtime sets once. Ordinary threads have none; the
//!   thread-local flag [`inside`] tells them apart, and is true in the block of every user thread and every kthread.
//! * A reference to "my kthread" is only meaningful while preemption is off: it is handed out by [`NoPreempt::kthread`]
//!   and cannot outlive the proof.
//! * `preempt_off` and `preempt_pending` are written by this OS thread and its signal handler only.
//! * Fields that other kthreads use (run queue, timers, ingress) are atomics or locked; the rest is this OS thread's.

use crate::arch;
use crate::mailbox::Mailbox;
use crate::random::Random;
use crate::runq::RunQueue;
use crate::stack::StackCache;
use crate::sync::spin::SpinLock;
use crate::timer::TimerHeap;
use crate::uthread::Uthread;
use core::cell::{Cell, UnsafeCell};
use core::marker::PhantomData;
use core::mem::offset_of;
use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};
use std::collections::VecDeque;
use tailwater_shm::Cycles;
use tailwater_shm::grant::{GRANT_KIND_BYTE, Generation, GrantWord, PREEMPT_SIGNAL};
use tailwater_shm::layout::KthreadShared;
use tailwater_shm::lot::Slot;
use tailwater_shm::ring::{Consumer, Producer};
use tailwater_shm::trace::TraceWriter;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether the caller runs on a kthread (in a user thread or in the scheduler).
#[inline(always)]
pub fn inside() -> bool {
    INSIDE.get()
}

/// Marks this OS thread as a kthread's.
pub fn enter() {
    INSIDE.set(true);
}

/// Address of the flag in this thread's block, for the image of user threads' blocks.
pub fn inside_flag_address() -> usize {
    INSIDE.with(|flag| core::ptr::from_ref(flag) as usize)
}

/// No core: the kthread is not running on a managed core.
pub const NO_CORE: u16 = u16::MAX;

/// The reading end of a kthread's ingress ring. Any kthread of the runtime may take over a busy one's packets.
#[derive(Debug)]
pub struct Ingress {
    busy: AtomicBool,
    consumer: UnsafeCell<Consumer>,
}

// SAFETY: `busy` gives one kthread at a time the consumer.
unsafe impl Sync for Ingress {}

impl Ingress {
    /// Wraps the reading end.
    pub fn new(consumer: Consumer) -> Self {
        Self { busy: AtomicBool::new(false), consumer: UnsafeCell::new(consumer) }
    }

    /// Whether a frame waits; a hint that may be stale while another kthread reads the ring.
    #[inline(always)]
    pub fn has_record(&self) -> bool {
        // SAFETY: `has_record` reads the consumer's position, one aligned word another kthread may be advancing; a stale
        // value only makes the hint stale. The ring outlives the runtime.
        unsafe { (*self.consumer.get()).has_record() }
    }

    /// Runs `f` on the consumer unless another kthread does so already.
    #[inline]
    pub fn try_with<R>(&self, _guard: &NoPreempt, f: impl FnOnce(&mut Consumer) -> R) -> Option<R> {
        // Acquire: pairs with the Release below.
        if self.busy.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return None;
        }
        // SAFETY: `busy` was ours to take.
        let result = f(unsafe { &mut *self.consumer.get() });
        // Release: pairs with the Acquire above.
        self.busy.store(false, Ordering::Release);
        Some(result)
    }
}

/// What a kthread counts; read by anybody, written by its own OS thread.
#[derive(Debug, Default)]
pub struct Counters {
    /// User threads resumed.
    pub switches: AtomicU64,
    /// User threads taken from other kthreads.
    pub stolen_threads: AtomicU64,
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
}

/// Adds to a counter that only this OS thread writes: cheaper than an atomic addition.
#[inline(always)]
pub fn count(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

/// One OS thread of the runtime. The first fields are reached by offset from GS base.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct Kthread {
    this: *const Kthread,
    preempt_off: AtomicU32,
    preempt_pending: AtomicU32,
    /// Written by this OS thread, read by the dump and the stall detector too.
    current: AtomicPtr<Uthread>,
    /// What poll points look at: `shared.grant`, or for a moment a word that says yes (see [`ask`](Self::ask)).
    grant: AtomicPtr<GrantWord>,
    /// The running thread's time slice is over: see [`quantum`](crate::quantum).
    turn_over: AtomicBool,
    /// FS base of the OS thread itself.
    own_fs: Cell<usize>,
    /// Where the scheduler context waits while a user thread runs.
    pub sched_rsp: Cell<usize>,
    /// Scheduler visits are due after this many direct switches.
    pub switch_budget: Cell<u32>,
    /// Direct switches until frames are looked for again, and the time at which they are in any case.
    pub batch: Cell<(u32, Cycles)>,
    /// From when on timers set for nothing are put off again, before a core is given up.
    pub tidy_at: Cell<Cycles>,
    /// Tenancy in progress.
    pub generation: Cell<Generation>,
    /// What `arch::switch` clears when it leaves the scheduler context.
    pub unused_flag: Cell<u8>,
    /// Number within the runtime.
    pub index: u16,
    /// Core lent, or [`NO_CORE`].
    pub core: AtomicU16,
    /// CPU it was last seen on, standalone; `usize::MAX` before that.
    pub cpu: AtomicUsize,
    /// State of the victim generator.
    pub random: Random,
    /// Its words in the region (or private ones, standalone).
    pub shared: &'static KthreadShared,
    /// Where it parks.
    pub slot: &'static Slot,
    /// Its run queue.
    pub runq: RunQueue,
    /// Where it receives threads while it polls.
    pub mailbox: Mailbox,
    /// User threads that did not fit the run queue; the count is published in `shared.status.overflow`.
    pub overflow: SpinLock<VecDeque<&'static Uthread>>,
    /// Its timers; the earliest is published in `shared.status.next_timer`.
    pub timers: SpinLock<TimerHeap>,
    /// Frames from the IOKernel; none standalone.
    pub ingress: Option<Ingress>,
    /// Frames to the IOKernel; used by this OS thread with preemption off.
    pub egress: Option<UnsafeCell<Producer>>,
    /// Where it writes down the steps of traced requests; none standalone. Used by this OS thread with preemption off.
    pub trace: Option<TraceWriter>,
    /// Free stacks.
    pub stacks: StackCache,
    /// Free small blocks.
    pub blocks: crate::alloc::BlockCache,
    /// What it counts.
    pub counters: Counters,
    /// Linux's id of the OS thread; 0 before it runs.
    pub os_tid: AtomicI32,
    /// Identities for the threads it starts.
    pub thread_ids: crate::thread::identity::IdBlock,
}

// SAFETY: the access rules in the module documentation.
unsafe impl Sync for Kthread {}
// SAFETY: as above; a record is built on one thread and used on another.
unsafe impl Send for Kthread {}

const THIS: usize = offset_of!(Kthread, this);
const PREEMPT_OFF: usize = offset_of!(Kthread, preempt_off);
const PREEMPT_PENDING: usize = offset_of!(Kthread, preempt_pending);
const CURRENT: usize = offset_of!(Kthread, current);
const GRANT: usize = offset_of!(Kthread, grant);
/// The bit of the grant's kind byte that means "cede".
const CEDE_BIT: u8 = 2;

/// A word like a grant's that asks every poll point in. Only its kind byte is ever looked at, and it never changes.
static ASKING: u64 = (CEDE_BIT as u64) << (8 * GRANT_KIND_BYTE);

impl Kthread {
    /// Kthread `index`, the only one of its runtime if `only`.
    pub fn new(
        index: u16,
        shared: &'static KthreadShared,
        slot: &'static Slot,
        ends: Option<(Producer, Consumer, TraceWriter)>,
        only: bool,
    ) -> Self {
        let (egress, ingress, trace) = ends.map_or((None, None, None), |(p, c, t)| {
            (Some(UnsafeCell::new(p)), Some(Ingress::new(c)), Some(t))
        });
        Self {
            this: core::ptr::null(),
            preempt_off: AtomicU32::new(1),
            preempt_pending: AtomicU32::new(0),
            current: AtomicPtr::new(core::ptr::null_mut()),
            grant: AtomicPtr::new(core::ptr::from_ref(&shared.grant.0).cast_mut()),
            turn_over: AtomicBool::new(false),
            own_fs: Cell::new(0),
            sched_rsp: Cell::new(0),
            switch_budget: Cell::new(0),
            batch: Cell::new((0, 0)),
            tidy_at: Cell::new(0),
            generation: Cell::new(Generation(0)),
            unused_flag: Cell::new(0),
            index,
            core: AtomicU16::new(NO_CORE),
            cpu: AtomicUsize::new(usize::MAX),
            random: Random::new(0x9e37_79b9_7f4a_7c15 ^ (u64::from(index) + 1) << 32),
            shared,
            slot,
            runq: RunQueue::new(&shared.status, only),
            mailbox: Mailbox::new(),
            overflow: SpinLock::new(VecDeque::new()),
            timers: SpinLock::new(TimerHeap::new()),
            ingress,
            egress,
            trace,
            stacks: StackCache::default(),
            blocks: crate::alloc::BlockCache::default(),
            counters: Counters::default(),
            os_tid: AtomicI32::new(0),
            thread_ids: Default::default(),
        }
    }

    /// Makes the record point to itself; call once at its final address.
    pub fn anchor(&mut self) {
        self.this = core::ptr::from_ref(self);
    }

    /// Makes the calling OS thread this kthread. Preemption is off from here on (the scheduler's one count).
    pub fn adopt_os_thread(&'static self) {
        enter();
        self.os_tid.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Relaxed);
        self.own_fs.set(arch::fs_base());
        // SAFETY: the record lives as long as the process, and nothing else uses GS.
        unsafe { arch::set_gs(core::ptr::from_ref(self) as usize) };
    }

    /// The user thread this kthread runs, `None` in the scheduler.
    #[inline(always)]
    pub fn current(&self) -> Option<&'static Uthread> {
        // SAFETY: user-thread records are never freed.
        unsafe { self.current.load(Ordering::Relaxed).as_ref() }
    }

    /// Says which user thread runs now.
    #[inline(always)]
    pub fn set_current(&self, uthread: Option<&'static Uthread>) {
        let record = uthread.map_or(core::ptr::null(), core::ptr::from_ref);
        self.current.store(record.cast_mut(), Ordering::Relaxed);
    }

    /// FS base of the OS thread itself.
    #[inline(always)]
    pub fn own_fs(&self) -> usize {
        self.own_fs.get()
    }

    /// Whether the IOKernel wants the core back.
    #[inline(always)]
    pub fn asked_to_cede(&self) -> bool {
        self.shared.grant.0.asks_to_cede()
    }

    /// Whether the running thread is to give the core up: to the IOKernel, or because its time slice is over.
    #[inline(always)]
    pub fn asked_to_yield(&self) -> bool {
        self.turn_over.load(Ordering::Relaxed) || self.asked_to_cede()
    }

    /// Says whether the running thread's time slice is over.
    pub fn set_turn_over(&self, over: bool) {
        self.turn_over.store(over, Ordering::Relaxed);
    }

    /// Whether a frame waits in its ingress ring; a hint.
    #[inline(always)]
    pub fn has_frame(&self) -> bool {
        self.ingress.as_ref().is_some_and(Ingress::has_record)
    }

    /// Sends the preempt signal to the OS thread. False if it cannot be sent.
    pub fn interrupt(&self) -> bool {
        let tid = self.os_tid.load(Ordering::Relaxed);
        // SAFETY: tgkill has no memory operands; the kthread's OS thread lives as long as the process.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, PREEMPT_SIGNAL) == 0 }
    }

    /// Makes the next poll point take its slow path and [`answer`](Self::answer): how the stall detector learns of poll points without
    /// making them slower. For any thread.
    pub fn ask(&self) {
        self.grant.store(core::ptr::from_ref(&ASKING).cast_mut().cast(), Ordering::Relaxed);
    }

    /// Whether a poll point was reached since [`ask`](Self::ask).
    pub fn has_answered(&self) -> bool {
        self.grant.load(Ordering::Relaxed).cast_const() == &raw const self.shared.grant.0
    }

    /// A poll point was reached.
    #[inline]
    pub fn answer(&self) {
        if !self.has_answered() {
            self.grant.store(core::ptr::from_ref(&self.shared.grant.0).cast_mut(), Ordering::Relaxed);
        }
    }

    /// Depth of preemption-off sections; 1 in a block point.
    #[inline(always)]
    pub fn preempt_depth(&self) -> u32 {
        self.preempt_off.load(Ordering::Relaxed)
    }

    /// Remembers a preempt signal that came while preemption was off.
    pub fn set_preempt_pending(&self, pending: bool) {
        self.preempt_pending.store(pending.into(), Ordering::Relaxed);
    }
}

/// The user thread the caller runs in, if any.
#[inline(always)]
pub fn current_uthread() -> Option<&'static Uthread> {
    if !inside() {
        return None;
    }
    // SAFETY: inside, GS base points to a Kthread. The value is the caller's own record, on whichever kthread it is read.
    unsafe { (gs_current() as *const Uthread).as_ref() }
}

#[inline(always)]
unsafe fn gs_current() -> usize {
    // SAFETY: by the caller's contract: inside.
    unsafe { arch::gs_word::<CURRENT>() }
}

/// Whether a poll point should give the core up: two loads and a test. False on ordinary threads.
#[inline(always)]
pub fn should_cede() -> bool {
    // SAFETY: inside, GS base points to a Kthread whose grant pointer is valid for the process's life. Migration between
    // the load of the pointer and the load of the byte reads another kthread's word: a spurious or a late answer.
    inside() && unsafe { arch::gs_points_to_bits::<GRANT, GRANT_KIND_BYTE, CEDE_BIT>() }
}

/// Proof that the holder is not preempted and stays on its kthread; counts, so it nests. On an ordinary thread it proves
/// nothing and costs one load.
#[derive(Debug)]
pub struct NoPreempt {
    inside: bool,
    _not_send: PhantomData<*mut ()>,
}

impl NoPreempt {
    /// Turns preemption off until the proof is dropped.
    #[inline(always)]
    pub fn new() -> Self {
        let inside = inside();
        if inside {
            // SAFETY: inside, GS base points to a Kthread.
            unsafe { arch::gs_increment::<PREEMPT_OFF>() };
        }
        Self { inside, _not_send: PhantomData }
    }

    /// Adopts a count somebody else has already made (a fresh user thread starts with one).
    ///
    /// # Safety
    /// The caller is inside and the count is not adopted twice.
    pub unsafe fn adopt() -> Self {
        Self { inside: true, _not_send: PhantomData }
    }

    /// The kthread the caller stays on, `None` on an ordinary thread.
    #[inline(always)]
    pub fn kthread(&self) -> Option<&Kthread> {
        // SAFETY: inside, GS base points to a Kthread that lives as long as the process; the borrow ends with the proof.
        self.inside.then(|| unsafe { &*(arch::gs_word::<THIS>() as *const Kthread) })
    }

    /// Ends the proof without honouring a preempt signal that came meanwhile: for signal handlers.
    pub fn drop_quietly(self) {
        if self.inside {
            // SAFETY: as in `drop`. A pending signal stays noted for whoever turns preemption on next.
            unsafe { arch::gs_decrement::<PREEMPT_OFF>() };
        }
        core::mem::forget(self);
    }

    /// Runs `f` with FS base of the OS thread itself, so that foreign code (malloc, the dynamic linker) sees the kthread's
    /// thread-locals and not the user thread's. Nests.
    #[inline]
    pub fn on_own_fs<R>(&self, f: impl FnOnce() -> R) -> R {
        struct Restore(usize);
        impl Drop for Restore {
            fn drop(&mut self) {
                // SAFETY: the block belongs to the running user thread; preemption is still off.
                unsafe { arch::set_fs_base(self.0) };
            }
        }
        if arch::shares_tls() {
            return f();
        }
        let Some((kthread, uthread)) = self.kthread().and_then(|k| Some((k, k.current()?))) else {
            return f();
        };
        if arch::fs_base() == kthread.own_fs() {
            return f();
        }
        let _restore = Restore(uthread.fs);
        // SAFETY: the OS thread's own block; preemption is off; thread-locals used by `f` are the OS thread's on purpose.
        unsafe { arch::set_fs_base(kthread.own_fs()) };
        f()
    }
}

impl Drop for NoPreempt {
    #[inline(always)]
    fn drop(&mut self) {
        if !self.inside {
            return;
        }
        // SAFETY: inside, GS base points to a Kthread; the count is the one `new` made (on this kthread or, if the thread
        // blocked in between, handed over by the one that resumed it).
        let pending =
            unsafe { arch::gs_decrement::<PREEMPT_OFF>() && arch::gs_half::<PREEMPT_PENDING>() != 0 };
        if pending {
            crate::preempt::deferred();
        }
    }
}
