//! Publishes a dispatcher's counters for `tailwater stats`, in the page of the region that the
//! IOKernel shows.
//!
//! Owns the entries of that page, and a thread for each dispatcher that has some. The thread sleeps
//! until something has changed, and then an [`INTERVAL`] more: a program without requests has no
//! timer, and requests pay for a look at one word.

use super::stats::{ClassStats, Times};
use crate::ground::guard::NoPreempt;
use crate::records::iokernel::IoKernel;
use crate::sync::Notify;
use crate::time;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicUsize, fence};
use std::time::Duration;
use tailwater_shm::classes::{CLASSES, ClassRecord, Percentiles};

/// Time from the first change to the next publication.
const INTERVAL: Duration = Duration::from_millis(100);

/// First free entry, and number of dispatchers: a process has one runtime.
static NEXT_ENTRY: AtomicUsize = AtomicUsize::new(0);
static NEXT_DISPATCHER: AtomicUsize = AtomicUsize::new(0);

/// Whether what is published is out of date.
#[derive(Debug, Default)]
pub struct Changes {
    /// Set after a change, and cleared before the counters are read, with a full fence between the
    /// two on either side: a change is read, or finds this cleared. Taking the dispatcher's lock is
    /// such a fence.
    pending: AtomicBool,
    notify: Notify,
}

impl Changes {
    /// Records that a counter has changed. Not with the dispatcher's lock.
    #[inline]
    pub fn note(&self) {
        if !self.pending.load(Relaxed) && !self.pending.swap(true, Relaxed) {
            self.notify.notify_one();
        }
    }

    /// Records a change that was made without the dispatcher's lock.
    #[inline]
    pub fn note_unlocked(&self) {
        fence(SeqCst);
        self.note();
    }

    fn wait(&self) {
        self.notify.wait();
        time::sleep(INTERVAL);
        self.pending.store(false, Relaxed);
        fence(SeqCst);
    }
}

/// Entries of the page that belong to one dispatcher.
#[derive(Debug, Clone, Copy)]
pub struct Entries {
    iokernel: &'static IoKernel,
    dispatcher: usize,
    first: usize,
}

impl Entries {
    /// Takes entries for so many classes. `None`: none is left, or no IOKernel shows them. Those
    /// beyond the end of the page are not published.
    pub fn take(iokernel: Option<&'static IoKernel>, classes: usize) -> Option<Self> {
        let iokernel = iokernel?;
        let dispatcher = NEXT_DISPATCHER.fetch_add(1, Relaxed);
        let first = NEXT_ENTRY.fetch_add(classes, Relaxed);
        (first < CLASSES).then_some(Self { iokernel, dispatcher, first })
    }

    /// Publishes the counters, now and after changes, for ever.
    pub fn publish(self, changes: &Changes, stats: impl Fn() -> Vec<ClassStats>) -> ! {
        loop {
            for (i, class) in stats().iter().enumerate() {
                let record = record(class, self.dispatcher);
                // The thread is not exchanged amid an entry, and its kthread does not stop for
                // another region.
                let _guard = NoPreempt::new();
                self.iokernel.region.classes().write(self.first + i, &record);
            }
            changes.wait();
        }
    }
}

fn record(class: &ClassStats, dispatcher: usize) -> ClassRecord {
    ClassRecord {
        name: class.name.clone(),
        dispatcher: dispatcher as u64,
        slo_ns: nanos(class.slo),
        accepted: class.accepted,
        dropped: class.dropped,
        finished: class.finished,
        panicked: class.panicked,
        preemptions: class.preemptions,
        held: class.held,
        late: class.late,
        queue_delay: percentiles(&class.queue_delay),
        service: percentiles(&class.service),
        latency: percentiles(&class.latency),
    }
}

fn percentiles(times: &Times) -> Percentiles {
    Percentiles { p50_ns: nanos(times.quantile(0.5)), p99_ns: nanos(times.quantile(0.99)) }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
