//! User threads that wait for futex words, hashed by address.
//!
//! A waiting thread's [`Waiter`] lies on its stack and is linked in the list of its bucket, under
//! the bucket's lock. The word is compared under that lock, after the thread was counted
//! ([`Bucket`](tailwater_libc_waits::table::Bucket)).
//!
//! | event | holds | does |
//! |---|---|---|
//! | wake | bucket's lock | unlinks the waiter and counts it down; swaps `WAITING` for `WOKEN`, or stores it without a timeout; makes the thread runnable, after unlocking |
//! | signal for the thread's home | bucket's lock | as a wake, with `INTERRUPTED` |
//! | timeout | timer lock | swaps `WAITING` for `TIMED_OUT`; makes the thread runnable; the waiter stays linked |
//! | the thread resumes, timed out | bucket's lock | unlinks the waiter and counts it down, unless a wake did |
//!
//! So a waiter outlives every access, as in [`verbs::wait`](crate::verbs::wait): a wake that wins
//! is the one that makes the thread runnable.

use crate::ground::guard::NoPreempt;
use crate::ground::list::{Linked, Links, List};
use crate::ground::spin::{SpinGuard, SpinLock};
use crate::ground::timer::TimerNode;
use crate::records::kthread::current_uthread;
use crate::records::runtime::Runtime;
use crate::records::uthread::{Runnable, Uthread};
use crate::verbs::ready::{announce_injected, ready, ready_all};
use crate::verbs::switch::{block, poll};
use crate::verbs::timers::arm;
use crate::verbs::wait::WAKE_BATCH;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::OnceLock;
use tailwater_libc_waits::Call;
use tailwater_libc_waits::table::{BUCKETS, bucket, bucket_of};
use tailwater_shm::Cycles;
use tailwater_shm::sync::spin_hint;

const WAITING: u8 = 0;
const WOKEN: u8 = 1;
const TIMED_OUT: u8 = 2;
const INTERRUPTED: u8 = 3;

/// Looks at a lock before a wake is left to the keeper: a few microseconds. A bucket's lock is held
/// for less than one, unless Linux runs another thread in its holder's place.
const PATIENCE: u32 = 200;

/// A thread that waits. The timer comes first: a timer node's address is its waiter's.
#[repr(C)]
#[derive(Debug)]
struct Waiter {
    timer: TimerNode,
    state: AtomicU8,
    /// True if a timeout may end the wait.
    timed: bool,
    bits: u32,
    address: usize,
    thread: &'static Uthread,
    links: Links<Waiter>,
}

impl Linked for Waiter {
    fn links(&self) -> &Links<Self> {
        &self.links
    }
}

/// The waiters of one bucket.
#[derive(Debug)]
struct Waiters {
    list: SpinLock<List<Waiter>>,
    /// True if threads in the kernel are woken first next time.
    kernel_next: AtomicBool,
}

// SAFETY: waiters are reached only under the lock that the list lies in.
unsafe impl Send for Waiters {}
// SAFETY: as above.
unsafe impl Sync for Waiters {}

static WAITERS: OnceLock<Box<[Waiters]>> = OnceLock::new();

/// Makes the lists, so that nothing is allocated later.
pub fn prepare() {
    let new = |_| Waiters { list: SpinLock::new(List::new()), kernel_next: AtomicBool::new(false) };
    WAITERS.get_or_init(|| (0..BUCKETS).map(new).collect());
}

fn waiters(index: usize) -> &'static Waiters {
    &WAITERS.get().expect("prepared before the hook is called")[index]
}

/// Returns whether it is the turn of threads in the kernel to be woken first.
pub fn is_kernels_turn(index: usize) -> bool {
    waiters(index).kernel_next.fetch_xor(true, Ordering::Relaxed)
}

/// Returns the futex word at `address`, which is a multiple of four.
///
/// # Safety
/// The word is mapped for as long as the reference is used, as it is for a futex call.
pub unsafe fn word<'a>(address: usize) -> &'a AtomicU32 {
    // SAFETY: by the caller's contract; futex words are atomic.
    unsafe { &*(address as *const AtomicU32) }
}

/// Waits, on a user thread that may, while the word of `call` has the value expected; until a wake
/// with one of `bits`, the deadline, or an [`interrupt`], before which `ends` is set to other than
/// 0. Returns what futex(2) does.
pub fn wait(call: &Call, bits: u32, deadline: Option<Cycles>, ends: &AtomicU8) -> isize {
    let index = bucket_of(call.address);
    let (counts, lists) = (bucket(index), waiters(index));
    let thread = current_uthread().expect("a user thread waits here");
    counts.add_user();
    let mut list = lists.list.lock();
    // SAFETY: the caller of the library's function vouches for the word. Acquire: pairs with
    // whatever changed it.
    let changed = unsafe { word(call.address) }.load(Ordering::Acquire) != call.value;
    // SeqCst: see `resident::wait_for_word`. Under the lock: an `interrupt` that finds the waiter
    // not linked yet is seen here.
    if changed || ends.load(Ordering::SeqCst) != 0 {
        drop(list);
        counts.remove_user();
        return -(if changed { libc::EAGAIN } else { libc::EINTR } as isize);
    }
    let waiter = Waiter {
        timer: TimerNode::new(time_out),
        state: AtomicU8::new(WAITING),
        timed: deadline.is_some(),
        bits,
        address: call.address,
        thread,
        links: Links::new(),
    };
    // SAFETY: the waiter stays in this frame, which ends after a wake has unlinked it, or after
    // `remove`.
    unsafe { list.push_back(&waiter) };
    let kthread = list.no_preempt().kthread().expect("user threads run on kthreads");
    // SAFETY: 1. it is a new node. 2. Dropped below.
    let timer = deadline.map(|deadline| unsafe { arm(kthread, &waiter.timer, deadline) });
    block(list.unlock_keeping_preemption_off());
    drop(timer);
    // Acquire: pairs with the Release in `end_wait`.
    match waiter.state.load(Ordering::Acquire) {
        WOKEN => return 0,
        INTERRUPTED => return -(libc::EINTR as isize),
        _ => {}
    }
    // SAFETY: the waiter is in this list, or a wake has taken it out.
    if unsafe { lists.list.lock().remove(&waiter) } {
        counts.remove_user();
    }
    -(libc::ETIMEDOUT as isize)
}

/// Ends the wait of `thread` for the word at `address`, if it waits. On an ordinary thread with
/// signals blocked.
pub fn interrupt(thread: &Uthread, address: usize) {
    let index = bucket_of(address);
    let mut list = waiters(index).list.lock();
    let runnable = end_first(&mut list, index, INTERRUPTED, |waiter| core::ptr::eq(waiter.thread, thread));
    drop(list);
    if let Some(runnable) = runnable {
        ready(runnable);
    }
}

/// The callback of each waiter's timer.
///
/// # Safety
/// `node` is the timer of a live [`Waiter`].
unsafe fn time_out(node: NonNull<TimerNode>) {
    // SAFETY: the timer is the first field of a repr(C) Waiter, alive by contract.
    let waiter = unsafe { node.cast::<Waiter>().as_ref() };
    if let Some(runnable) = waiter.end_wait(TIMED_OUT) {
        ready(runnable);
    }
}

impl Waiter {
    /// Ends the wait; returns the right to resume the thread, unless the wait has ended already.
    /// Called for a waiter that the caller has unlinked under the list's lock, and by its timer.
    fn end_wait(&self, outcome: u8) -> Option<Runnable> {
        let thread = self.thread;
        let won = if self.timed {
            // Release: pairs with the Acquire load of the waiter.
            self.state.compare_exchange(WAITING, outcome, Ordering::Release, Ordering::Relaxed).is_ok()
        } else {
            // Release: as above. The one that has unlinked it alone ends it.
            self.state.store(outcome, Ordering::Release);
            true
        };
        // SAFETY: 1. the thread blocks with preemption off since it linked the waiter. 2. One
        // outcome wins.
        won.then(|| unsafe { Runnable::new(thread) })
    }
}

/// Unlinks the oldest waiter for the word with one of `bits` whose wait has not timed out. Returns
/// the right to resume its thread.
fn take(list: &mut List<Waiter>, index: usize, address: Option<usize>, bits: u32) -> Option<Runnable> {
    let fits = |w: &Waiter| address.is_none_or(|address| w.address == address) && w.bits & bits != 0;
    end_first(list, index, WOKEN, fits)
}

/// Unlinks the oldest waiter that `fits` and whose wait has not timed out, and ends its wait with
/// `outcome`. Returns the right to resume its thread.
fn end_first(
    list: &mut List<Waiter>,
    index: usize,
    outcome: u8,
    fits: impl Fn(&Waiter) -> bool,
) -> Option<Runnable> {
    // Each turn unlinks a waiter, so the loop ends with the list.
    loop {
        let waiter = NonNull::from(list.iter().find(|waiter| fits(waiter))?);
        // SAFETY: a linked waiter is alive. Unlinked, its thread is not runnable before `end_wait`,
        // or, timed out, needs the list's lock before it may leave.
        let waiter = unsafe { waiter.as_ref() };
        // SAFETY: it was found in this list.
        unsafe { list.remove(waiter) };
        bucket(index).remove_user();
        if let Some(runnable) = waiter.end_wait(outcome) {
            return Some(runnable);
        }
    }
}

/// Wakes up to `limit` user threads that wait for the word with one of `bits`; returns how many. On
/// a user thread with preemption on, or the keeper.
pub fn wake(address: usize, limit: u32, bits: u32) -> u32 {
    wake_up_to(bucket_of(address), Some(address), limit, bits)
}

/// Wakes all user threads that wait in a bucket.
pub fn wake_all(index: usize) {
    wake_up_to(index, None, u32::MAX, u32::MAX);
}

/// Wakes in batches, between which it unlocks and passes a poll point.
fn wake_up_to(index: usize, address: Option<usize>, limit: u32, bits: u32) -> u32 {
    let mut woken = 0;
    // Threads that wait again meanwhile are woken again, up to the limit: as many as there are.
    loop {
        let mut batch = [const { None }; WAKE_BATCH];
        let room = WAKE_BATCH.min((limit - woken) as usize);
        // Preemption stays off until the batch is runnable: its threads are in no queue.
        let guard = NoPreempt::new();
        let mut list = waiters(index).list.lock();
        let mut taken = 0;
        while taken < room
            && let Some(runnable) = take(&mut list, index, address, bits)
        {
            batch[taken] = Some(runnable);
            taken += 1;
        }
        drop(list);
        ready_all(batch.into_iter().take(taken).flatten());
        drop(guard);
        woken += taken as u32;
        if taken < WAKE_BATCH || woken == limit {
            return woken;
        }
        poll();
    }
}

/// As [`wake`], on a thread that must neither wait for a lock nor touch a run queue. `None` if it
/// would have to; then no thread was woken.
pub fn wake_from_outside(runtime: &Runtime, address: usize, limit: u32, bits: u32) -> Option<u32> {
    let index = bucket_of(address);
    // Background, exclusive and pinned threads have queues of their own, with locks.
    if runtime.has_classes() {
        return None;
    }
    let mut list = try_for(&waiters(index).list)?;
    let mut injected = try_for(runtime.injected.lock())?;
    let mut woken = 0;
    // The queue does not grow: that would allocate.
    while woken < limit && injected.len() < injected.capacity() {
        let Some(runnable) = take(&mut list, index, Some(address), bits) else { break };
        injected.push_back(runnable);
        woken += 1;
    }
    let full = woken < limit && injected.len() == injected.capacity();
    runtime.publish_injected(injected.len());
    drop(injected);
    drop(list);
    if woken > 0 {
        announce_injected(runtime);
    }
    (!full).then_some(woken)
}

fn try_for<T>(lock: &SpinLock<T>) -> Option<SpinGuard<'_, T>> {
    for _ in 0..PATIENCE {
        if let Some(guard) = lock.try_lock() {
            return Some(guard);
        }
        spin_hint();
    }
    None
}
