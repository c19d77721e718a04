//! Futures of time: [`sleep`] and [`timeout`].
//!
//! A sleep that is polled on a kthread sets a timer there, like a sleeping thread. On an ordinary
//! thread, which has none, a user thread sleeps in its place.
//!
//! The alarm is on the heap from the first poll that waits, so a [`Sleep`] can be moved; one that
//! is never polled costs nothing.
//!
//! Locks are taken in this order: a kthread's timers, then `waiting`.

use super::operation::Armed;
use crate::ground::guard::NoPreempt;
use crate::ground::spin::SpinLock;
use crate::ground::timer::TimerNode;
use crate::records::runtime::about;
use crate::sync::Event;
use crate::time::Interval;
use crate::verbs::timers;
use core::fmt;
use core::future::Future;
use core::pin::{Pin, pin};
use core::ptr::NonNull;
use core::task::{Context, Poll};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What fires. The timer comes first: its address is the alarm's.
#[repr(C)]
struct Alarm {
    timer: TimerNode,
    /// Whom it wakes. Taken when it fires.
    waiting: SpinLock<Option<Armed>>,
}

// SAFETY: the timer is used by the kthread's heap, under its lock, and by `arm` and `Armed`, under
// the same.
unsafe impl Send for Alarm {}
// SAFETY: as above.
unsafe impl Sync for Alarm {}

impl Alarm {
    fn fire(&self) {
        let armed = self.waiting.lock().take();
        if let Some(armed) = armed {
            armed.wake();
        }
    }
}

/// The callback of an alarm's timer.
///
/// # Safety
/// `timer` is that of a live [`Alarm`].
unsafe fn fire(timer: NonNull<TimerNode>) {
    // SAFETY: the timer is the first field of a repr(C) Alarm, alive by contract.
    unsafe { timer.cast::<Alarm>().as_ref() }.fire();
}

/// Where an alarm is set.
enum Set {
    /// In a kthread's heap; dropping it takes it out.
    Kthread(#[expect(dead_code, reason = "dropped")] timers::Armed<'static>),
    /// A user thread sleeps; the event, which is its own, ends it.
    Thread(Arc<Event>),
}

// SAFETY: the timer in it is used under its heap's lock alone, from whichever thread.
unsafe impl Send for Set {}
// SAFETY: as above.
unsafe impl Sync for Set {}

impl Drop for Set {
    fn drop(&mut self) {
        if let Self::Thread(cancelled) = self {
            cancelled.set();
        }
    }
}

/// Waits until a moment; see [`sleep`].
///
/// # Examples
/// ```standalone_crate
/// use tailwater::future::{block_on, sleep};
/// use tailwater::time::{Duration, Instant};
///
/// #[tailwater::main]
/// fn main() {
///     let mut late = sleep(Duration::from_secs(3600));
///     late.reset(Instant::now());
///     block_on(late);
/// }
/// ```
#[must_use = "a future does nothing unless it is awaited"]
pub struct Sleep {
    deadline: Option<Instant>,
    /// Before `alarm`, whose timer it uses: fields are dropped in order.
    set: Option<Set>,
    alarm: Option<Arc<Alarm>>,
}

/// Returns a future that is ready after `duration`, however long its polls take. Polled again and
/// again, it keeps its deadline.
///
/// # Panics
/// Polled where no runtime of Tailwater's was started, if it has to wait.
///
/// # Examples
/// ```standalone_crate
/// use tailwater::future::{block_on, sleep};
/// use tailwater::time::{Duration, Instant};
///
/// #[tailwater::main]
/// fn main() {
///     let start = Instant::now();
///     block_on(sleep(Duration::from_micros(100)));
///     assert!(start.elapsed() >= Duration::from_micros(100));
/// }
/// ```
pub fn sleep(duration: Duration) -> Sleep {
    Sleep { deadline: Instant::now().checked_add(duration), set: None, alarm: None }
}

/// Returns a future that is ready at `deadline`.
///
/// # Panics
/// As [`sleep`].
pub fn sleep_until(deadline: Instant) -> Sleep {
    Sleep { deadline: Some(deadline), set: None, alarm: None }
}

impl Sleep {
    /// Returns when it is ready; `None` if that is beyond the clock's range.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Sets another deadline. Like any change of a future, it takes effect with the next poll.
    pub fn reset(&mut self, deadline: Instant) {
        self.deadline = Some(deadline);
        self.set = None;
        if let Some(alarm) = &self.alarm {
            // So that the next poll sets the alarm anew.
            drop(take(alarm));
        }
    }

    fn rest(&self) -> Duration {
        self.deadline.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()))
    }

    /// Sets the alarm to fire in `rest`.
    fn arm(&mut self, rest: Duration) {
        self.set = None;
        let alarm = self.alarm.as_ref().expect("made by the caller");
        let guard = NoPreempt::new();
        let Some(kthread) = guard.kthread() else {
            self.set = Some(Set::Thread(sleep_for(Arc::clone(alarm), rest)));
            return;
        };
        // SAFETY: the alarm lives on the heap until `alarm` is dropped, after `set`.
        let timer = unsafe { &*core::ptr::from_ref(&alarm.timer) };
        // SAFETY: 1. `set` was dropped above, which took it out. 2. `set` is dropped before the
        // alarm.
        self.set = Some(Set::Kthread(unsafe { timers::arm(kthread, timer, about(rest)) }));
    }
}

/// Starts a user thread that sleeps for `rest` and fires the alarm; returns what ends it at once.
fn sleep_for(alarm: Arc<Alarm>, rest: Duration) -> Arc<Event> {
    let cancelled = Arc::new(Event::new());
    let event = Arc::clone(&cancelled);
    crate::thread::spawn_normal(move || {
        if !event.wait_timeout(rest) {
            alarm.fire();
        }
    });
    cancelled
}

/// Takes what an alarm would wake.
fn take(alarm: &Alarm) -> Option<Armed> {
    alarm.waiting.lock().take()
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        crate::poll();
        if this.rest().is_zero() {
            this.set = None;
            return Poll::Ready(());
        }
        let alarm = this.alarm.get_or_insert_with(|| {
            let (timer, waiting) = (TimerNode::new(fire), SpinLock::new(None));
            Arc::new(Alarm { timer, waiting })
        });
        let armed = Armed::new(context);
        let replaced = alarm.waiting.lock().replace(armed);
        // Otherwise it is set, and has not fired. It may have fired early: the cycle clock was
        // calibrated in a few milliseconds and may be slightly fast.
        if replaced.is_none() {
            let rest = this.rest();
            this.arm(rest);
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.set = None;
        if let Some(alarm) = &self.alarm {
            // Of a sleeping thread, the alarm may outlive this.
            drop(take(alarm));
        }
    }
}

impl fmt::Debug for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleep").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

impl Interval {
    /// As [`tick`](Self::tick), as a future. One that is dropped before it is ready has taken no
    /// tick.
    ///
    /// # Panics
    /// As [`sleep`].
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::future::block_on;
    /// use tailwater::time::{Duration, interval};
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let mut ticks = interval(Duration::from_micros(200));
    ///     block_on(async {
    ///         let first = ticks.tick_async().await;
    ///         assert_eq!(ticks.tick_async().await - first, Duration::from_micros(200));
    ///     });
    /// }
    /// ```
    pub async fn tick_async(&mut self) -> Instant {
        sleep_until(self.due()).await;
        self.advance()
    }
}

/// The time of a [`timeout`] has passed.
///
/// # Examples
/// ```standalone_crate
/// use tailwater::future::{Elapsed, block_on, sleep, timeout};
/// use tailwater::time::Duration;
///
/// #[tailwater::main]
/// fn main() {
///     let late = timeout(Duration::from_millis(1), sleep(Duration::from_secs(60)));
///     assert_eq!(block_on(late), Err(Elapsed));
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the time for this operation has passed")]
pub struct Elapsed;

impl From<Elapsed> for std::io::Error {
    fn from(elapsed: Elapsed) -> Self {
        Self::new(std::io::ErrorKind::TimedOut, elapsed)
    }
}

/// Runs a future for at most `limit`, then drops it.
///
/// # Errors
/// [`Elapsed`].
///
/// # Examples
/// ```standalone_crate
/// use tailwater::future::{block_on, timeout};
/// use tailwater::time::Duration;
///
/// #[tailwater::main]
/// fn main() {
///     assert_eq!(block_on(timeout(Duration::from_secs(60), async { 1 })), Ok(1));
/// }
/// ```
pub async fn timeout<F: Future>(limit: Duration, future: F) -> Result<F::Output, Elapsed> {
    within(sleep(limit), future).await
}

/// As [`timeout`], until `deadline`.
///
/// # Errors
/// [`Elapsed`].
pub async fn timeout_at<F: Future>(deadline: Instant, future: F) -> Result<F::Output, Elapsed> {
    within(sleep_until(deadline), future).await
}

async fn within<F: Future>(mut sleep: Sleep, future: F) -> Result<F::Output, Elapsed> {
    let mut future = pin!(future);
    core::future::poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Ok(output));
        }
        Pin::new(&mut sleep).poll(context).map(|()| Err(Elapsed))
    })
    .await
}
