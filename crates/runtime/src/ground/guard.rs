//! Preemption off, as a value.
//!
//! Owns the flag [`inside`], the first words of every kthread record ([`Head`]), and [`NoPreempt`],
//! the proof that the code that holds it stays on its kthread. Knows nothing of what a kthread
//! runs.
//!
//! # Access rules
//! * GS base of a kthread's OS thread points to its [`Head`], which the OS thread sets once.
//!   Ordinary threads have none. The thread-local flag [`inside`] distinguishes the two: it is true
//!   in the block of every user thread and every kthread.
//! * Which kthread the caller runs on is only meaningful while preemption is off:
//!   [`NoPreempt::head`] returns it, and the reference cannot outlive the proof.
//!
//! | word of the head | written by | read by |
//! |---|---|---|
//! | `this`, `own_fs` | its OS thread, when it adopts the head | its OS thread |
//! | `preempt_off`, `preempt_pending` | its OS thread and the signal handlers on it | the same |
//! | `grant` | any thread ([`Head::expect_poll`], [`Head::count_polls`]); its OS thread ([`Head::note_poll`]): see [`Polled`] | poll points of its OS thread |
//! | `counting` | any thread ([`Head::count_polls`]) | its OS thread |
//! | `left`, `first` | its OS thread | the same |
//!
//! # Counted poll points
//! Where no IOKernel watches the clock, poll points do ([`Head::count_polls`]): each then takes its
//! slow path, which counts down to the next look at the clock. Other poll points pay nothing for
//! this, because the word that they read anyway is another one.

use super::arch;
use super::words::polled::Polled;
use core::marker::PhantomData;
use core::mem::offset_of;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicU32, AtomicUsize, compiler_fence};
use std::sync::OnceLock;
use tailwater_shm::grant::{GRANT_KIND_BYTE, GrantWord, POLL_BITS};

/// True on a kthread: in a user thread or in the scheduler.
#[inline(always)]
pub fn inside() -> bool {
    arch::inside_flag()
}

/// Sets the flag in the caller's thread-local block, for a context that moves between an ordinary
/// thread and kthreads.
///
/// # Safety
/// The caller is about to be, or has just been, switched to where the flag is true, and uses
/// nothing of this module in between.
pub unsafe fn set_inside(is_inside: bool) {
    // SAFETY: by the caller's contract.
    unsafe { arch::set_inside_flag(is_inside) };
}

/// Returns the address of the flag in the caller's thread-local block, for the image of user
/// threads' blocks.
pub fn inside_flag_address() -> usize {
    arch::inside_flag_address()
}

/// Runs when preemption is on again and a preempt signal came while it was off.
static DEFERRED: OnceLock<fn()> = OnceLock::new();

/// Sets the function that handles a preempt signal which came while preemption was off. The first
/// call counts.
pub fn set_deferred(handle: fn()) {
    DEFERRED.get_or_init(|| handle);
}

#[cold]
fn deferred() {
    if let Some(handle) = DEFERRED.get() {
        handle();
    }
}

/// The first words of a kthread record. Assembly reaches them by offset from GS base.
#[repr(C)]
#[derive(Debug)]
pub struct Head {
    this: AtomicUsize,
    preempt_off: AtomicU32,
    preempt_pending: AtomicU32,
    /// The word that poll points read: at home `own_grant`, or [`COUNTING`] if they are counted;
    /// [`EXPECTING`] until the next one.
    grant: Polled<GrantWord>,
    own_grant: &'static GrantWord,
    /// 1 if poll points are counted.
    counting: AtomicU32,
    /// Poll points until the next look at the clock.
    left: AtomicU32,
    /// What `left` is at the beginning of a turn.
    first: AtomicU32,
    /// FS base of the OS thread itself.
    own_fs: AtomicUsize,
}

const THIS: usize = offset_of!(Head, this);
const PREEMPT_OFF: usize = offset_of!(Head, preempt_off);
const PREEMPT_PENDING: usize = offset_of!(Head, preempt_pending);
pub(super) const GRANT: usize = offset_of!(Head, grant) + Polled::<GrantWord>::TARGET;
const OWN_GRANT: usize = offset_of!(Head, own_grant);
const LEFT: usize = offset_of!(Head, left);

/// A word with the layout of a grant that sends every poll point to its slow path. Only its kind
/// byte is read, and it never changes.
static EXPECTING: u64 = ALWAYS_SLOW;
/// The same, at another address.
static COUNTING: u64 = ALWAYS_SLOW;
const ALWAYS_SLOW: u64 = (POLL_BITS as u64) << (8 * GRANT_KIND_BYTE);

/// Poll points before the first look at the clock, until their distance is known.
const FIRST_POLLS: u32 = 16;

/// Returns the pointer that makes poll points read `word` in place of a grant.
fn in_place_of_grant(word: &'static u64) -> *mut GrantWord {
    core::ptr::from_ref(word).cast_mut().cast()
}

impl Head {
    /// Returns the head of a kthread whose grant is `own_grant`. Preemption is off: the count is
    /// the scheduler's.
    pub fn new(own_grant: &'static GrantWord) -> Self {
        Self {
            this: AtomicUsize::new(0),
            preempt_off: AtomicU32::new(1),
            preempt_pending: AtomicU32::new(0),
            grant: Polled::new(core::ptr::from_ref(own_grant).cast_mut()),
            own_grant,
            counting: AtomicU32::new(0),
            left: AtomicU32::new(FIRST_POLLS),
            first: AtomicU32::new(FIRST_POLLS),
            own_fs: AtomicUsize::new(0),
        }
    }

    /// Makes the calling OS thread the one of this head, and returns the proof that stands for the
    /// scheduler's count.
    ///
    /// # Safety
    /// 1. The head is the first field of a kthread record.
    /// 2. No other OS thread has adopted it.
    ///
    /// # Panics
    /// If the calling thread has a head already.
    pub unsafe fn adopt(&'static self) -> NoPreempt {
        assert!(!inside(), "an OS thread is one kthread");
        let address = core::ptr::from_ref(self) as usize;
        self.this.store(address, Relaxed);
        self.own_fs.store(arch::fs_base(), Relaxed);
        // SAFETY: 1. only this module sets GS. 2. The head lives as long as the process.
        unsafe { arch::set_gs(address) };
        // SAFETY: GS base points to a head from here on.
        unsafe { arch::set_inside_flag(true) };
        NoPreempt { inside: true, _not_send: PhantomData }
    }

    /// Returns whether the IOKernel reclaims the core.
    #[inline(always)]
    pub fn cede_requested(&self) -> bool {
        self.own_grant.asks_to_cede()
    }

    /// Sends the kthread's next poll point to its slow path, which calls
    /// [`note_poll`](Self::note_poll). Costs poll points nothing. Any thread may call this.
    pub fn expect_poll(&self) {
        self.grant.expect(in_place_of_grant(&EXPECTING));
    }

    /// Returns whether a poll point was reached since [`expect_poll`](Self::expect_poll).
    pub fn has_polled(&self) -> bool {
        self.grant.has_returned(in_place_of_grant(&EXPECTING))
    }

    /// Records that a poll point was reached.
    #[inline]
    pub fn note_poll(&self) {
        self.grant.returns(in_place_of_grant(&EXPECTING));
    }

    /// Sets whether poll points are counted. Any thread may call this; those that do so at the same
    /// time set the same.
    pub fn count_polls(&self, count: bool) {
        let own = core::ptr::from_ref(self.own_grant).cast_mut();
        self.counting.store(count.into(), Relaxed);
        let home = if count { in_place_of_grant(&COUNTING) } else { own };
        self.grant.set_home(home, in_place_of_grant(&EXPECTING));
    }

    /// Returns whether poll points are counted.
    #[inline]
    pub fn counts_polls(&self) -> bool {
        self.counting.load(Relaxed) != 0
    }

    /// Begins to count the poll points of a turn. On its OS thread.
    #[inline(always)]
    pub fn begin_turn(&self) {
        self.left.store(self.first.load(Relaxed), Relaxed);
    }

    /// Sets the number of poll points until the next slow path in this turn. On its OS thread.
    pub fn set_polls_left(&self, left: u32) {
        self.left.store(left, Relaxed);
    }

    /// Returns the number of poll points left until the next look at the clock. On its OS thread.
    #[inline]
    pub fn polls_left(&self) -> u32 {
        self.left.load(Relaxed)
    }

    /// Sets the number of poll points until the next look at the clock, and at the beginning of
    /// later turns. On its OS thread.
    pub fn set_polls(&self, next: u32, first: u32) {
        self.left.store(next, Relaxed);
        self.first.store(first, Relaxed);
    }

    /// Returns whether the IOKernel's word ends turn `turn`.
    #[inline(always)]
    pub fn turn_ended(&self, turn: u64) -> bool {
        self.own_grant.ends_turn(turn)
    }

    /// Returns the number of nested sections with preemption off; 1 where a thread may block.
    #[inline(always)]
    pub fn preempt_depth(&self) -> u32 {
        self.preempt_off.load(Relaxed)
    }

    /// Records that a preempt signal came while preemption was off.
    pub fn note_preempt_pending(&self) {
        self.preempt_pending.store(1, Relaxed);
    }

    /// Forgets such a signal, before a look at what it was about.
    pub fn clear_preempt_pending(&self) {
        self.preempt_pending.store(0, Relaxed);
        // The look comes after this for the handler, which runs on this thread: a signal in between
        // is seen by the look, or noted again.
        compiler_fence(SeqCst);
    }

    /// Returns whether a preempt signal came while preemption was off, and was not handled since.
    pub fn preempt_pending(&self) -> bool {
        self.preempt_pending.load(Relaxed) != 0
    }

    /// FS base of the OS thread itself.
    #[inline(always)]
    pub fn own_fs(&self) -> usize {
        self.own_fs.load(Relaxed)
    }
}

/// Returns whether a poll point should take its slow path: two loads and a test. False on ordinary
/// threads.
#[inline(always)]
pub fn poll_requested() -> bool {
    // SAFETY: inside, GS base points to a Head, whose grant pointer is valid for the life of the
    // process. A migration between the load of the pointer and that of the byte reads another
    // kthread's word: an answer that is spurious or late.
    inside() && unsafe { arch::gs_points_to_bits::<GRANT, GRANT_KIND_BYTE, POLL_BITS>() }
}

/// Counts a poll point whose word asks for the slow path; returns whether that is all there is to
/// do: poll points are counted and none is expected, the next look at the clock is not due, and the
/// IOKernel's own word asks for nothing.
#[inline]
pub fn poll_is_counted() -> bool {
    // SAFETY: as in `poll_requested`. After a migration in between, the count of another kthread is
    // one too low. A look that cannot be taken, because preemption is off, stays due.
    inside()
        && unsafe {
            arch::gs_word::<GRANT>() == in_place_of_grant(&COUNTING) as usize
                && !arch::gs_decrement::<LEFT>()
                && !arch::gs_points_to_bits::<OWN_GRANT, GRANT_KIND_BYTE, POLL_BITS>()
        }
}

/// Proof that its holder is not preempted and stays on its kthread. Proofs nest: they count. On an
/// ordinary thread one proves nothing and costs a load.
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
            // SAFETY: inside, GS base points to a Head.
            unsafe { arch::gs_increment::<PREEMPT_OFF>() };
        }
        Self { inside, _not_send: PhantomData }
    }

    /// Takes over a count that was made elsewhere: a new user thread starts with one.
    ///
    /// # Safety
    /// 1. The caller is [`inside`].
    /// 2. No other proof stands for the count.
    pub unsafe fn adopt() -> Self {
        Self { inside: true, _not_send: PhantomData }
    }

    /// Returns the head of the kthread that the caller stays on, `None` on an ordinary thread.
    #[inline(always)]
    pub fn head(&self) -> Option<&Head> {
        // SAFETY: inside, GS base points to a Head that lives as long as the process; the borrow
        // ends with the proof.
        self.inside.then(|| unsafe { &*(arch::gs_word::<THIS>() as *const Head) })
    }

    /// Ends the proof without handling a preempt signal that came meanwhile: for signal handlers.
    pub fn drop_quietly(self) {
        // A pending signal stays recorded for the next proof's end.
        self.end();
    }

    /// Ends the proof. Returns whether preemption is on again and a preempt signal came while it
    /// was off, which the caller handles.
    #[inline(always)]
    pub fn end(self) -> bool {
        let pending = self.count_down();
        core::mem::forget(self);
        pending
    }

    #[inline(always)]
    fn count_down(&self) -> bool {
        // SAFETY: inside, GS base points to a Head. The count is the one that `new` made, on this
        // kthread or, if the thread blocked in between, on the kthread that resumed it.
        self.inside
            && unsafe { arch::gs_decrement::<PREEMPT_OFF>() && arch::gs_half::<PREEMPT_PENDING>() != 0 }
    }

    /// Runs `f` on the OS thread's own thread-local block, where foreign code (malloc, the dynamic
    /// linker) finds the kthread's variables instead of the user thread's. Nests.
    ///
    /// # Safety
    /// 1. What `f` leaves in thread-locals does not belong to the user thread, and the reverse:
    ///    nothing that is not `Send` passes between the two blocks.
    /// 2. `f` does not switch to another user thread.
    #[inline]
    pub unsafe fn on_own_fs<R>(&self, f: impl FnOnce() -> R) -> R {
        struct Restore(usize);
        impl Drop for Restore {
            fn drop(&mut self) {
                // SAFETY: 1. the block in use before. 2. Preemption is still off, and the user
                // thread's block returns to it.
                unsafe { arch::set_fs_base(self.0) };
            }
        }
        if arch::shares_tls() {
            return f();
        }
        let Some(head) = self.head() else { return f() };
        let fs = arch::fs_base();
        if fs == head.own_fs() {
            return f();
        }
        let _restore = Restore(fs);
        // SAFETY: 1. the OS thread's own block. 2. Preemption is off; `f` is as the caller
        // promises.
        unsafe { arch::set_fs_base(head.own_fs()) };
        f()
    }
}

impl Drop for NoPreempt {
    #[inline(always)]
    fn drop(&mut self) {
        if self.count_down() {
            deferred();
        }
    }
}
