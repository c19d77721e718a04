//! A program with an exclusive thread, which computes until its input ends, and with user threads
//! that come and go.
//!
//! Prints `on CORE` when the exclusive thread has the core that it was granted; from then on it
//! counts, and at the end prints `moved N shared M looks K`: how often the exclusive thread went on
//! elsewhere, how often another thread ran where it was, and how often they looked.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tailwater::cores;
use tailwater::thread::{self, Builder, ThreadClass};

#[derive(Default)]
struct Shared {
    /// The core and the OS thread of the exclusive thread, as [`here`] has them; 0: it does not
    /// run yet.
    place: AtomicU64,
    counts: AtomicBool,
    ended: AtomicBool,
    moved: AtomicU64,
    shared: AtomicU64,
    looks: AtomicU64,
}

/// Returns the core and the OS thread of the caller, which is not preempted meanwhile.
fn here() -> u64 {
    let tid = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
    (rustix::thread::sched_getcpu() as u64) << 32 | u64::from(tid)
}

impl Shared {
    /// Counts a look of a thread other than the exclusive one.
    fn look(&self) {
        tailwater::no_preempt(|| {
            let (here, place) = (here(), self.place.load(Ordering::SeqCst));
            let same = here >> 32 == place >> 32 || here as u32 == place as u32;
            if self.counts.load(Ordering::SeqCst) {
                self.looks.fetch_add(1, Ordering::SeqCst);
                self.shared.fetch_add(same.into(), Ordering::SeqCst);
            }
        });
    }

    fn compute(&self) {
        while !self.ended.load(Ordering::SeqCst) {
            tailwater::no_preempt(|| {
                let here = here();
                let before = self.place.swap(here, Ordering::SeqCst);
                if before != here && self.counts.load(Ordering::SeqCst) {
                    self.moved.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        // From here on others may run there.
        self.counts.store(false, Ordering::SeqCst);
    }

    fn create_threads(self: &Arc<Self>) {
        while !self.ended.load(Ordering::SeqCst) {
            let shared = Arc::clone(self);
            let visit = move || {
                shared.look();
                thread::yield_now();
                shared.look();
            };
            thread::spawn(visit).join().expect("it does not panic");
            thread::sleep(Duration::from_micros(200));
            self.look();
        }
    }
}

pub fn run() {
    let shared = Arc::new(Shared::default());
    super::ready();
    let of = |body: fn(&Arc<Shared>)| {
        let shared = Arc::clone(&shared);
        move || body(&shared)
    };
    let alone =
        Builder::new().class(ThreadClass::Exclusive).spawn(of(|shared| shared.compute())).expect("a core");
    let parents: Vec<_> = (0..3).map(|_| thread::spawn(of(Shared::create_threads))).collect();
    while cores::granted() == 0 || shared.place.load(Ordering::SeqCst) == 0 {
        thread::sleep(Duration::from_millis(1));
    }
    super::say(&format!("on {}", shared.place.load(Ordering::SeqCst) >> 32));
    shared.counts.store(true, Ordering::SeqCst);
    let reader = of(|shared| {
        std::io::stdin().read_to_end(&mut Vec::new()).expect("standard input");
        shared.ended.store(true, Ordering::SeqCst);
    });
    std::thread::spawn(reader);
    parents.into_iter().chain([alone]).for_each(|thread| thread.join().expect("it does not panic"));
    let [moved, beside, looks] =
        [&shared.moved, &shared.shared, &shared.looks].map(|count| count.load(Ordering::SeqCst));
    super::say(&format!("moved {moved} shared {beside} looks {looks}"));
}
