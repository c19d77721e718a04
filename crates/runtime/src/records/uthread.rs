//! The record of one user thread, at the upper end of its stack.
//!
//! Owns what is needed to resume a thread: [`Runnable`] is the right to do so.
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `rsp` | the kthread leaving the thread, in `arch::switch` | the kthread resuming it, after it saw `on_cpu` 0 (Acquire) |
//! | `on_cpu` | 1 by the kthread resuming the thread; 0 by `arch::switch` when the context is saved | a kthread about to resume it |
//! | `entry` | its creator, before the thread is first queued | the thread itself, once |
//! | `limit`, `custom`, `resident` | the record's creator, before it is shared | any thread |
//! | `fs` | the record's creator, before it is shared; for an ordinary thread, before its context is first queued | a kthread about to resume the thread |
//! | `class` | its creator, before it is first queued; itself, as it ends | any thread |
//! | `host` | see [`host`](crate::verbs::host) | any thread |
//! | `pinned` | see [`pinned`](crate::verbs::pinned) | any thread |
//! | `carried` | the thread itself, and its creator before it is first queued | the thread itself |
//! | `destructors` | the thread itself | the thread itself |
//! | `identity` | see [`identity`](super::identity) | any thread |
//! | `serving` | the thread itself, with preemption off | its kthread, and the signal handlers on it |
//! | `woken` | true by wakers of the future that the thread runs; false by the thread itself | the thread itself, and wakers |
//! | `handles` | the thread itself | the thread itself |
//! | `next_record` | [`registry`](super::registry), before the record is published | any thread |

use super::identity::Identity;
use super::request::Carried;
use super::serving::Serving;
use crate::ground::arch;
use crate::ground::runq::Token;
use crate::ground::tls::Destructors;
use core::cell::UnsafeCell;
use core::mem::offset_of;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicUsize, Ordering};
use tailwater_shm::sync::spin_hint;

/// Cache lines at the end of a stack that a new thread with a small closure uses first.
const FIRST_LINES: usize = 4;

/// The host of a thread without one.
const NO_HOST: u16 = u16::MAX;
/// The core of a thread that is not pinned.
const NO_PIN: u16 = u16::MAX;

/// The limit of a stack that is not the runtime's: no address that a fault reports is near it.
const NO_STACK: usize = 1 << 62;

/// Looks at a thread that another kthread is leaving before this kthread yields to Linux. On a core
/// that both share, the other kthread would otherwise wait for the end of this one's time slice.
const LOOKS_BEFORE_YIELD: u32 = 1000;

/// What a thread is to its program; see [`Builder::class`](crate::thread::Builder::class).
///
/// # Examples
/// ```standalone_crate
/// use tailwater::thread::{Builder, ThreadClass};
///
/// #[tailwater::main]
/// fn main() {
///     let batch = Builder::new().class(ThreadClass::Background).spawn(|| 6 * 7).unwrap();
///     assert_eq!(batch.join().unwrap(), 42);
/// }
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum ThreadClass {
    /// It runs before all background threads.
    #[default]
    Normal,
    /// It runs only on a kthread that has nothing else to do, and gives way to anything else at a
    /// poll point within about a microsecond. An IOKernel takes its core as if that were idle, for
    /// any program that needs one.
    Background,
    /// It runs alone on a kthread: no other user thread runs or is queued there, as long as the
    /// program has another core for its other threads. From its creation to its end the program
    /// requests one more core, as by [`cores::request`](crate::cores::request) at priority 0; see
    /// there for when a requested core can be taken. If the IOKernel wants the core back, the
    /// thread gives it up at its next poll point, and goes on when the program has one again.
    ///
    /// A program has at most one less than it has kthreads, and than the IOKernel manages cores;
    /// beyond that no more can be made. The IOKernel must have `policy = "arbiter"`. Without an
    /// IOKernel the thread has a kthread of its own, and Linux decides where that runs.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicBool, Ordering};
    /// use tailwater::thread::{self, Builder, ThreadClass};
    ///
    /// # tailwater::allocator!();
    /// fn main() {
    ///     let rounds = tailwater::RuntimeBuilder::new().kthreads(2).run(|| {
    ///         let stop = Arc::new(AtomicBool::new(false));
    ///         let stopped = Arc::clone(&stop);
    ///         let poller = Builder::new().class(ThreadClass::Exclusive).spawn(move || {
    ///             let mut rounds = 0u64;
    ///             while !stopped.load(Ordering::Relaxed) {
    ///                 tailwater::poll();
    ///                 rounds += 1;
    ///             }
    ///             rounds
    ///         });
    ///         // Other threads run beside it.
    ///         thread::spawn(move || stop.store(true, Ordering::Relaxed));
    ///         poller.unwrap().join().unwrap()
    ///     });
    ///     println!("{} rounds", rounds.unwrap());
    /// }
    /// ```
    Exclusive,
}

/// What a new thread runs: two functions, and a pointer to what they share on the thread's own
/// stack.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// Called once on the new stack; must not unwind.
    pub run: unsafe fn(*mut u8),
    /// Called when the thread-local destructors have run: announces the result. Returns the thread
    /// that waits for it.
    pub finish: unsafe fn(*mut u8) -> Option<Runnable>,
    /// Argument of both.
    pub data: *mut u8,
}

/// A user thread. Lives as long as the process; between threads it is a free stack.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Uthread {
    rsp: AtomicUsize,
    on_cpu: AtomicU8,
    /// The traced request that the thread works on.
    pub carried: Carried,
    class: AtomicU8,
    host: AtomicU16,
    pinned: AtomicU16,
    /// True if the stack has a size of its own and belongs to
    /// [`CustomStacks`](super::custom_stacks::CustomStacks).
    pub custom: bool,
    /// True if the context is that of an ordinary thread, whose stack is its own: see
    /// [`resident`](crate::resident).
    pub resident: bool,
    fs: AtomicUsize,
    /// Lowest usable stack address.
    pub limit: usize,
    entry: UnsafeCell<Option<Entry>>,
    /// Thread-local destructors.
    pub destructors: Destructors,
    /// The thread that runs here.
    pub identity: Identity,
    /// What the thread is to the dispatcher whose request it runs, if it runs one.
    pub serving: Serving,
    /// True if the future that the thread runs was woken since its last poll began: see
    /// [`waker`](crate::future::waker).
    pub woken: AtomicBool,
    /// True while the thread runs a handler of an [event loop](crate::events), which may not wait.
    pub handles: AtomicBool,
    /// Next in the list of all records.
    pub(super) next_record: AtomicPtr<Uthread>,
}

// SAFETY: only `entry` is not `Sync` by itself; `prepare` and `take_entry` give it one user at a
// time by their contracts.
unsafe impl Sync for Uthread {}

impl Uthread {
    /// Where a debugger finds the saved stack pointer, the "on a kthread" byte, the identity word
    /// (id, two bits of park state) and the next record.
    pub const DEBUGGER_OFFSETS: [usize; 4] = [
        offset_of!(Self, rsp),
        offset_of!(Self, on_cpu),
        offset_of!(Self, identity) + Identity::WORD_OFFSET,
        offset_of!(Self, next_record),
    ];

    /// Returns the record of a stack without a thread.
    pub fn new(limit: usize, fs: usize, custom: bool) -> Self {
        Self {
            rsp: AtomicUsize::new(0),
            on_cpu: AtomicU8::new(0),
            carried: Carried::default(),
            class: AtomicU8::new(ThreadClass::Normal as u8),
            host: AtomicU16::new(NO_HOST),
            pinned: AtomicU16::new(NO_PIN),
            custom,
            resident: false,
            fs: AtomicUsize::new(fs),
            limit,
            entry: UnsafeCell::new(None),
            destructors: Destructors::default(),
            identity: Identity::default(),
            serving: Serving::default(),
            woken: AtomicBool::new(false),
            handles: AtomicBool::new(false),
            next_record: AtomicPtr::new(core::ptr::null_mut()),
        }
    }

    /// Returns the record for contexts of ordinary threads.
    pub fn of_resident() -> Self {
        Self { resident: true, ..Self::new(NO_STACK, 0, false) }
    }

    /// FS base: the thread control block.
    #[inline(always)]
    pub fn fs(&self) -> usize {
        // Relaxed: queues hand it over with the thread.
        self.fs.load(Ordering::Relaxed)
    }

    /// Sets FS base. The record's thread is not queued.
    pub fn set_fs(&self, fs: usize) {
        self.fs.store(fs, Ordering::Relaxed);
    }

    /// Records that a kthread is about to leave the context, as far as others see: they wait in
    /// [`wait_until_left`](Self::wait_until_left) for the switch that saves it.
    pub fn begin_leaving(&self) {
        // Relaxed: the queue that the thread is put into afterwards hands it over.
        self.on_cpu.store(1, Ordering::Relaxed);
    }

    /// Returns whether the thread is a background thread.
    #[inline(always)]
    pub fn is_background(&self) -> bool {
        // Relaxed: queues hand it over with the thread.
        self.class.load(Ordering::Relaxed) == ThreadClass::Background as u8
    }

    /// Returns whether the thread is an exclusive thread.
    #[inline(always)]
    pub fn is_exclusive(&self) -> bool {
        // Relaxed: as above.
        self.class.load(Ordering::Relaxed) == ThreadClass::Exclusive as u8
    }

    /// Sets the class of the thread about to begin here, or of the calling thread.
    pub fn set_class(&self, class: ThreadClass) {
        self.class.store(class as u8, Ordering::Relaxed);
    }

    /// Returns the core that the thread is pinned to.
    #[inline(always)]
    pub fn pinned(&self) -> Option<u16> {
        // Relaxed: queues hand it over with the thread.
        Some(self.pinned.load(Ordering::Relaxed)).filter(|&core| core != NO_PIN)
    }

    /// Sets the core of the thread about to begin here.
    pub fn pin_to(&self, core: Option<u16>) {
        self.pinned.store(core.unwrap_or(NO_PIN), Ordering::Relaxed);
    }

    /// Returns the kthread whose exclusive thread this is.
    pub fn host(&self) -> Option<u16> {
        // Relaxed: a hint where to queue it.
        Some(self.host.load(Ordering::Relaxed)).filter(|&host| host != NO_HOST)
    }

    /// Records that kthread `host` hosts the thread.
    pub fn set_host(&self, host: u16) {
        self.host.store(host, Ordering::Relaxed);
    }

    /// Records that no kthread hosts the thread, unless that is another one than `host`.
    pub fn leave_host(&self, host: u16) {
        let _ = self.host.compare_exchange(host, NO_HOST, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Returns the saved stack pointer if the thread is suspended at this moment: for a look from
    /// outside, which may be stale at once.
    pub fn suspended_at(&self) -> Option<usize> {
        // Acquire: as in `wait_until_left`. Relaxed: the reader checks that the pointer lies in the
        // stack.
        (self.on_cpu.load(Ordering::Acquire) == 0).then(|| self.rsp.load(Ordering::Relaxed))
    }

    /// Waits until the kthread that runs the thread, or ran the one that ended here, has left its
    /// stack: a few instructions with preemption off, unless Linux runs another program in that
    /// kthread's place.
    #[inline]
    pub fn wait_until_left(&self) {
        // Acquire: pairs with the store of 0 in `arch::switch` (x86 stores are releases): rsp and
        // stack are whole.
        if self.on_cpu.load(Ordering::Acquire) != 0 {
            self.wait_for_kthread();
        }
    }

    #[cold]
    fn wait_for_kthread(&self) {
        let mut looks: u32 = 0;
        // Acquire: as in `wait_until_left`.
        while self.on_cpu.load(Ordering::Acquire) != 0 {
            looks += 1;
            if looks.is_multiple_of(LOOKS_BEFORE_YIELD) {
                std::thread::yield_now();
            }
            spin_hint();
        }
    }

    /// Upper end of the stack proper.
    pub fn top(&self) -> *mut u8 {
        core::ptr::from_ref(self).cast_mut().cast()
    }

    /// Prepares the thread to call `main` on its record when first resumed, which
    /// [takes](Self::take_entry) `entry`. `top` is where its captures end and its stack begins.
    /// Returns the right to start it.
    ///
    /// # Safety
    /// 1. The stack is free, and the caller's.
    /// 2. `top` lies within it.
    /// 3. `main` may be called once, on this record.
    pub unsafe fn prepare(
        &'static self,
        entry: Entry,
        top: *mut u8,
        main: unsafe extern "sysv64" fn(*mut u8) -> !,
    ) -> Runnable {
        // SAFETY: by point 1 no thread uses the record.
        unsafe { *self.entry.get() = Some(entry) };
        // SAFETY: the stack below `top` is free by points 1 and 2; point 3 is the callee's point 2.
        let rsp = unsafe { arch::initial_stack(top, main, core::ptr::from_ref(self).cast_mut().cast()) };
        self.rsp.store(rsp, Ordering::Relaxed);
        // SAFETY: 1. the thread is as if it had blocked. 2. The stack was free.
        unsafe { Runnable::new(self) }
    }

    /// Returns the entry that [`prepare`](Self::prepare) was given.
    ///
    /// # Safety
    /// The caller is the thread that runs on this record.
    pub unsafe fn take_entry(&self) -> Entry {
        // SAFETY: by contract the creator is done with it.
        unsafe { (*self.entry.get()).take() }.expect("a thread is started once")
    }

    /// Returns where `arch::switch` saves the stack pointer and what it clears.
    #[inline]
    pub fn leave_slots(&self) -> (*mut usize, *mut u8) {
        (self.rsp.as_ptr(), self.on_cpu.as_ptr())
    }
}

/// Makes the processor fetch what resuming the thread of a record needs, all lines at once rather
/// than one after the other: `lines` of the record, and the end of the stack, where a new thread's
/// captures and first frames are. Reads nothing.
#[inline]
fn prefetch_first_lines(record: *const Uthread, lines: usize) {
    for line in (-(FIRST_LINES as isize)..lines as isize).rev() {
        arch::prefetch_for_writing(record.cast::<u8>().wrapping_offset(64 * line));
    }
}

/// Makes the processor fetch what a thread on this record uses from its creation to its end, its
/// thread-local block excepted. Reads nothing.
#[inline]
pub fn prefetch_record(record: *const Uthread) {
    prefetch_first_lines(record, size_of::<Uthread>() / 64);
}

/// The right to resume a suspended user thread. Each suspended thread has at most one, and a thread
/// is in at most one place: it runs, or its `Runnable` is in one queue, or the event it waits for
/// will make one.
#[derive(Debug)]
#[must_use = "the thread never runs again if its Runnable is lost"]
pub struct Runnable(&'static Uthread);

impl Runnable {
    /// Returns the right to resume `thread`.
    ///
    /// # Safety
    /// 1. The thread is suspended, or suspends itself before its kthread turns preemption on again.
    /// 2. No other `Runnable` of it exists, nor will any other event make one for this suspension.
    pub unsafe fn new(thread: &'static Uthread) -> Self {
        Self(thread)
    }

    /// Returns the thread.
    pub fn thread(&self) -> &'static Uthread {
        self.0
    }

    /// Claims the thread for the calling kthread, and waits while another kthread is still leaving
    /// it. Returns its record and its stack pointer.
    #[inline]
    pub fn claim(self) -> (&'static Uthread, usize) {
        self.0.wait_until_left();
        // Relaxed: the right to resume is handed over by queues and locks.
        self.0.on_cpu.store(1, Ordering::Relaxed);
        (self.0, self.0.rsp.load(Ordering::Relaxed))
    }

    /// Makes the processor fetch what resuming the thread needs.
    #[inline]
    pub fn prefetch(&self) {
        prefetch_first_lines(self.0, 1);
    }
}

// SAFETY: a reference as a pointer; the contract of `Runnable::new` holds on every thread.
unsafe impl Token for Runnable {
    type Target = Uthread;

    #[inline]
    fn into_raw(self) -> *mut Uthread {
        core::ptr::from_ref(self.0).cast_mut()
    }

    #[inline]
    unsafe fn from_raw(raw: *mut Uthread) -> Self {
        // SAFETY: `into_raw` made it of a reference to a record, and records live as long as the
        // process.
        Self(unsafe { &*raw })
    }
}
