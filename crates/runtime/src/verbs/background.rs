//! Background threads: run on a kthread that has found nothing else, give way to anything else.
//!
//! Owns how a kthread runs one; the queue is in
//! [`records::background`](crate::records::background).
//!
//! * A background thread that becomes runnable goes to their queue, whatever wakes it
//!   ([`ready`](super::ready)).
//! * A kthread that has found no work takes one of them in place of idling. It does not come to a
//!   direct switch: while a background thread runs the switch budget is 0, and whatever runs next
//!   is chosen by the scheduler.
//! * Poll points are counted, and once per microsecond one looks for all that an idle kthread would
//!   look for ([`quantum`](super::quantum)). If there is anything, the thread is queued again.
//! * To the IOKernel the kthread is `Idle`: its core is taken at once by any program that needs one
//!   more, and given up at the next poll point or by the preempt signal. Then ordinary work of this
//!   program competes for a core as if the kthread had idled.
//! * The IOKernel does not see them. An attached program without a core would resume none before
//!   its next ordinary work, and an ordinary thread that joins one, or waits for a lock that one
//!   holds, might wait for ever. So the **keeper**, an ordinary thread, wakes every
//!   [`KEEPER_INTERVAL`] while any of them waits: its timer fetches a core, on which they go on
//!   until a program needs it.

use super::lease;
use super::wait::{WaitList, wait};
use crate::ground::spin::SpinLock;
use crate::records::kthread::ThisKthread;
use crate::records::runtime::Runtime;
use crate::records::uthread::Runnable;
use core::time::Duration;

/// Time after which background threads of a program without a core have one for a moment.
pub const KEEPER_INTERVAL: Duration = Duration::from_millis(10);

struct Keeper {
    roused: bool,
    sleeper: WaitList,
}

static KEEPER: SpinLock<Keeper> = SpinLock::new(Keeper { roused: false, sleeper: WaitList::new() });

/// Ends the rest of the keeper.
pub fn rouse_keeper() {
    let mut keeper = KEEPER.lock();
    keeper.roused = true;
    keeper.sleeper.wake_one();
}

/// Returns when a background thread waits; on the keeper.
pub fn wait_for_one(runtime: &Runtime) {
    if !runtime.background.rest() {
        return;
    }
    loop {
        let mut keeper = KEEPER.lock();
        if core::mem::take(&mut keeper.roused) {
            return;
        }
        // SAFETY: `sleeper` is the only list that the lock guards, and it stays there.
        unsafe { wait(keeper, |keeper| &mut keeper.sleeper, None) };
    }
}

/// Runs a background thread by `run`, if one waits, until it gives way. False if none does. On a
/// kthread that has found no work, with its core, if it is lent one.
pub fn run_next(kthread: ThisKthread<'_>, runtime: &Runtime, run: impl FnOnce(Runnable)) -> bool {
    if kthread.hosts() {
        return false;
    }
    let Some(runnable) = runtime.background.pop() else { return false };
    // Its time is no load: it uses what ordinary threads leave.
    kthread.meter.pause();
    if runtime.is_attached() {
        lease::as_idle(kthread, runtime, || run(runnable));
    } else {
        run(runnable);
    }
    true
}
