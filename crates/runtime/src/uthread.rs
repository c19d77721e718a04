//! The record of one user thread, at the upper end of its stack.
//!
//! Owns what the scheduler needs to resume a thread. What the thread library adds, it adds in
//! [`identity`](Uthread::identity): see [`thread`](crate::thread).
//!
//! | field | written by | read by |
//! |---|---|---|
//! | `rsp` | the kthread leaving the thread, in `arch::switch` | the kthread resuming it, after it saw `on_cpu` 0 (Acquire) |
//! | `on_cpu` | 1 by the kthread resuming it; 0 by `arch::switch` when the context is saved | a kthread about to resume it |
//! | `entry`, `fs`, `limit` | its creator, before it is first queued | its kthread |
//! | `carried` | the thread itself, and its creator before it is first queued | the thread itself |
//! | `destructors` | the thread itself | the thread itself |
//! | `identity` | see [`thread::identity`](crate::thread::identity) | anybody |
//! | `next_record` | [`registry`](crate::registry), before the record is published | anybody |

use crate::arch;
use crate::thread::identity::Identity;
use crate::tls::Destructors;
use crate::trace::Carried;
use core::cell::Cell;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU8, Ordering};
use tailwater_shm::sync::spin_hint;

/// Lines at the end of a stack that a new thread with a small closure uses before anything else.
const FIRST_LINES: usize = 4;

/// Looks at a thread that another kthread is leaving before Linux may run somebody else here: on a core that both have to share, that
/// kthread, which otherwise would wait for the end of this one's time slice.
const LOOKS_BEFORE_YIELD: u32 = 1000;

/// What a new thread runs: two functions and a pointer to what they share, on the thread's own stack.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// Called once on the new stack; must not unwind.
    pub run: unsafe fn(*mut u8),
    /// Called when the thread-local destructors have run: tells whoever joins.
    pub finish: unsafe fn(*mut u8),
    /// Argument of both.
    pub data: *mut u8,
}

/// A user thread. Lives as long as the process; between threads it is a free stack.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Uthread {
    rsp: Cell<usize>,
    on_cpu: AtomicU8,
    /// The traced request that the thread works on.
    pub carried: Carried,
    /// Whether the stack has a size of its own and belongs to [`CustomStacks`](crate::custom_stacks::CustomStacks).
    pub custom: bool,
    /// FS base: the thread control block.
    pub fs: usize,
    /// Lowest usable stack address.
    pub limit: usize,
    entry: Cell<Option<Entry>>,
    /// Thread-local destructors.
    pub destructors: Destructors,
    /// Which thread runs here.
    pub identity: Identity,
    /// Next in the list of all records.
    pub next_record: Cell<*const Uthread>,
}

// SAFETY: the table above: every field has one writer at a time, handed over through `on_cpu` and the run queues.
unsafe impl Sync for Uthread {}

impl Uthread {
    /// Where a debugger finds the saved stack pointer, whether the thread is on a kthread, its identity word (id, two bits of park
    /// state), and the next record.
    pub const DEBUGGER_OFFSETS: [usize; 4] = [
        offset_of!(Self, rsp),
        offset_of!(Self, on_cpu),
        offset_of!(Self, identity) + Identity::WORD_OFFSET,
        offset_of!(Self, next_record),
    ];

    /// The record of a stack without a thread.
    pub fn new(limit: usize, fs: usize) -> Self {
        Self {
            rsp: Cell::new(0),
            on_cpu: AtomicU8::new(0),
            carried: Carried::default(),
            custom: false,
            fs,
            limit,
            entry: Cell::new(None),
            destructors: Destructors::default(),
            identity: Identity::default(),
            next_record: Cell::new(core::ptr::null()),
        }
    }

    /// The saved stack pointer, if the thread is suspended right now: for a look from outside, which may be stale at once.
    pub fn suspended_at(&self) -> Option<usize> {
        // Acquire: as in `claim`. The pointer is one aligned word, read as such; whoever uses it checks that it lies in the stack.
        if self.on_cpu.load(Ordering::Acquire) != 0 {
            return None;
        }
        // SAFETY: the cell is alive; a switch may write the word meanwhile, hence volatile.
        Some(unsafe { self.rsp.as_ptr().read_volatile() })
    }

    /// Waits until the kthread that runs the thread, or ran the one that ended here, has left its stack: a few instructions with
    /// preemption off, unless Linux runs another program in that kthread's place.
    #[inline]
    pub fn wait_until_left(&self) {
        // Acquire: pairs with the store of 0 in `arch::switch` (x86 stores are releases): rsp and stack are whole.
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

    /// Prepares the thread to call `entry` when first resumed; `top` is where its captures end and its stack begins.
    ///
    /// # Safety
    /// The stack is free and `top` lies within it.
    pub unsafe fn prepare(&'static self, entry: Entry, top: *mut u8, main: extern "sysv64" fn(*mut u8) -> !) {
        self.entry.set(Some(entry));
        // SAFETY: the stack below `top` is free by contract.
        self.rsp.set(unsafe { arch::initial_stack(top, main, core::ptr::from_ref(self).cast_mut().cast()) });
    }

    /// What [`prepare`](Self::prepare) was given.
    pub fn take_entry(&self) -> Entry {
        self.entry.take().expect("a thread is started once")
    }

    /// Claims the thread for the calling kthread and returns its stack pointer. Waits while another kthread is still leaving it.
    #[inline]
    pub fn claim(&self) -> usize {
        self.wait_until_left();
        // Relaxed: only who claimed it from a queue gets here.
        self.on_cpu.store(1, Ordering::Relaxed);
        self.rsp.get()
    }

    /// Has the processor fetch what resuming the thread needs, all lines at once rather than each when it is asked for: the record, and
    /// the end of the stack, where a new thread's captures and first frames are.
    #[inline]
    pub fn prefetch(&self) {
        for line in (-(FIRST_LINES as isize)..1).rev() {
            arch::prefetch_for_writing(self.top().wrapping_offset(64 * line));
        }
    }

    /// Where `arch::switch` saves the stack pointer and what it clears.
    #[inline]
    pub fn leave_slots(&self) -> (*mut usize, *mut u8) {
        (self.rsp.as_ptr(), self.on_cpu.as_ptr())
    }
}
