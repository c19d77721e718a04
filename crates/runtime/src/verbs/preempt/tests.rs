//! Further signals at each step of the handler.

use super::Step;
use crate::ground::guard::NoPreempt;
use crate::records::kthread::Kthread;
use crate::thread;
use crate::verbs::quantum;
use core::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use tailwater_shm::grant::PREEMPT_SIGNAL;

// The sanitizers watch the allocations of their own.
#[cfg(not(sanitizing))]
crate::allocator!();

/// Signals sent at one step.
const SIGNALS: u32 = 20;

/// The step at which the handler has signals sent to its thread, each of which ends the turn.
static STEP: Mutex<Option<Step>> = Mutex::new(None);
/// Signals that are yet to be sent there.
static LEFT: AtomicU32 = AtomicU32::new(0);
/// Most frames of the signal that a stack has held.
static MOST: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// Frames of the signal on the stack of the user thread.
    static FRAMES: Cell<u32> = const { Cell::new(0) };
}

/// Counts frames, and sends the next signal if this is the step for it.
#[inline(never)]
pub fn reached(step: Step) {
    if step == Step::Entered {
        FRAMES.set(FRAMES.get() + 1);
        MOST.fetch_max(FRAMES.get(), Relaxed);
    }
    if STEP.try_lock().is_ok_and(|chosen| *chosen == Some(step)) && LEFT.load(Relaxed) > 0 {
        LEFT.fetch_sub(1, Relaxed);
        quantum::end_turn(own_kthread());
    }
    if step == Step::Returning {
        FRAMES.set(FRAMES.get() - 1);
    }
}

fn own_kthread() -> &'static Kthread {
    let guard = NoPreempt::new();
    let kthread = guard.kthread().expect("on a kthread").for_ever();
    guard.drop_quietly();
    kthread
}

/// Returns whether the preempt signal is blocked on the OS thread.
fn is_masked() -> bool {
    let mut signals = 0u64;
    let none = core::ptr::null::<u64>();
    // SAFETY: the kernel writes a set of the size that is passed.
    unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, none, &raw mut signals, size_of::<u64>())
    };
    signals >> (PREEMPT_SIGNAL - 1) & 1 == 1
}

fn send_at(step: Step) {
    *STEP.lock().unwrap() = Some(step);
    LEFT.store(SIGNALS, Relaxed);
    MOST.store(0, Relaxed);
    while LEFT.load(Relaxed) > 0 {
        quantum::end_turn(own_kthread());
        // With one kthread, the signal was handled before this.
        assert!(!own_kthread().yield_requested(), "a request at {step:?} was lost");
        assert!(!is_masked(), "after {step:?}");
    }
    let most = MOST.load(Relaxed);
    assert!((1..=2).contains(&most), "{most} frames of the signal on one stack, at {step:?}");
    assert_eq!(FRAMES.get(), 0, "at {step:?}");
}

/// Ends the other thread, also if this one panics.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
#[cfg_attr(sanitizing, ignore = "the sanitizers do not follow an OS thread that becomes a kthread")]
fn a_stack_holds_two_frames_of_the_signal_at_most() {
    let run = crate::RuntimeBuilder::new().kthreads(1).run(|| {
        let (done, turns) = (AtomicBool::new(false), AtomicU32::new(0));
        thread::scope(|s| {
            s.spawn(|| {
                while !done.load(Relaxed) {
                    assert!(!is_masked(), "this thread could not be preempted");
                    turns.fetch_add(1, Relaxed);
                    thread::yield_now();
                }
            });
            let _end = SetOnDrop(&done);
            for step in [Step::Entered, Step::Leaving, Step::Resumed, Step::Returning] {
                let before = turns.load(Relaxed);
                send_at(step);
                assert!(turns.load(Relaxed) > before, "the other thread has run");
            }
        });
    });
    run.unwrap();
}
