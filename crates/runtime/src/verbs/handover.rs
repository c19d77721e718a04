//! Hands a runnable thread straight to a kthread that polls for work, without a queue.
//!
//! Stealing costs about a dozen cache-line transfers between two cores, and a kthread that watches
//! the queues of others takes their lines away with every look. So a kthread without work watches
//! its own [mailbox](crate::ground::words::mailbox), and looks at the others now and then only. A
//! thread that makes another one runnable offers it to a mailbox first. What no mailbox takes is
//! queued, and stolen.
//!
//! [`Pollers`](crate::ground::pollers::Pollers) shows which mailboxes are worth an offer. A kthread
//! whose bit is lost sets it again at its next look around.
//!
//! Never here: sleeping ([`local`](super::local)), holding a core ([`lease`](super::lease)).

use super::look::{any_work_visible, host_work_visible};
use crate::ground::runq::Token;
use crate::records::kthread::{Kthread, ThisKthread};
use crate::records::runtime::Runtime;
use crate::records::uthread::{Runnable, Uthread};
use tailwater_shm::sync::spin_hint;
use tailwater_shm::{Cycles, clock};

/// Mailboxes tried for one thread. If so many were not open, more are not likely to be.
const MAX_OFFERS: usize = 4;
/// Looks at the mailbox between two looks around: a third to half a microsecond.
const GLANCES: u32 = 8;

/// Hands a thread to a kthread that polls, other than the caller's, kthread `from`. Returns the
/// thread if none takes it.
#[cold]
pub fn offer(runtime: &Runtime, from: Option<u16>, runnable: Runnable) -> Result<(), Runnable> {
    let token = runnable.into_raw();
    let others = runtime.pollers.iter().filter(|&index| Some(index) != from);
    for index in others.take(MAX_OFFERS) {
        if runtime.kthreads[usize::from(index)].mailbox.offer(token as u64) {
            return Ok(());
        }
        runtime.pollers.withdraw(index);
    }
    // SAFETY: `into_raw` made it above, and no mailbox took it.
    Err(unsafe { Runnable::from_raw(token) })
}

/// Hands a thread to this kthread if it polls; returns the thread if not.
pub fn offer_to(kthread: &Kthread, runnable: Runnable) -> Result<(), Runnable> {
    let token = runnable.into_raw();
    if kthread.mailbox.offer(token as u64) {
        return Ok(());
    }
    // SAFETY: `into_raw` made it above, and the mailbox did not take it.
    Err(unsafe { Runnable::from_raw(token) })
}

/// Why a kthread stopped polling.
#[derive(Debug)]
pub enum Found {
    /// It was handed this thread, which is in no queue.
    Thread(Runnable),
    /// There is work that it may find.
    Work,
    /// `stop` was true.
    Stop,
    /// The deadline has passed.
    Nothing,
}

/// Polls until there is work, `stop` returns true, or `deadline` has passed.
pub fn poll(kthread: ThisKthread<'_>, runtime: &Runtime, deadline: Cycles, stop: impl Fn() -> bool) -> Found {
    kthread.mailbox.open();
    let found = look_around(kthread, runtime, deadline, stop);
    let Some(token) = kthread.mailbox.close() else { return found };
    // SAFETY: `offer` put a token there, and `close` takes it out once.
    let runnable = unsafe { Runnable::from_raw(token as *mut Uthread) };
    runnable.prefetch();
    Found::Thread(runnable)
}

fn look_around(
    kthread: ThisKthread<'_>,
    runtime: &Runtime,
    deadline: Cycles,
    stop: impl Fn() -> bool,
) -> Found {
    loop {
        let now = clock::now();
        let has_work = if kthread.hosts() {
            host_work_visible(&kthread, runtime, now)
        } else {
            runtime.pollers.announce(kthread.index);
            any_work_visible(&kthread, runtime, now)
        };
        if has_work {
            return Found::Work;
        }
        if now >= deadline {
            return Found::Nothing;
        }
        for _ in 0..GLANCES {
            if stop() {
                return Found::Stop;
            }
            if kthread.mailbox.is_filled() || kthread.has_frame() {
                return Found::Work;
            }
            spin_hint();
        }
    }
}
