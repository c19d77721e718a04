//! A runnable thread goes straight to a kthread that polls for work, without passing through a queue.
//!
//! Stealing costs about a dozen cache-line transfers between the two cores, and a kthread that watches the queues of others takes
//! their lines away with every look. So a kthread without work watches its own [mailbox](crate::mailbox), and looks at the others now and then
//! only; who makes a thread runnable offers it to a mailbox first. What is offered to nobody is queued, and stolen, as before.
//!
//! [`Pollers`] has a bit for each mailbox worth a look, a hint: set by the kthread when it polls, cleared by who finds the mailbox closed or filled. A
//! kthread whose bit is lost sets it again at its next look around. While all kthreads are busy nobody writes these words.
//!
//! Never here: who sleeps ([`local`](crate::local)), who holds a core ([`lease`](crate::lease)).

use crate::kthread::Kthread;
use crate::runtime::Runtime;
use crate::uthread::Uthread;
use crate::worker::work_visible;
use core::sync::atomic::{AtomicU64, Ordering};
use crossbeam_utils::CachePadded;
use tailwater_shm::layout::MAX_KTHREADS;
use tailwater_shm::sync::spin_hint;
use tailwater_shm::{Cycles, clock};

/// Mailboxes tried for one thread: more are not likely to be open if so many were not.
const MAX_OFFERS: u32 = 4;
/// Looks at the mailbox between two looks around: a third to half a microsecond.
const GLANCES: u32 = 8;

/// Which mailboxes are worth a look. See the module documentation.
#[derive(Debug, Default)]
pub struct Pollers([CachePadded<AtomicU64>; MAX_KTHREADS as usize / 64]);

impl Pollers {
    fn bit(&self, index: u16) -> (&AtomicU64, u64) {
        (&self.0[usize::from(index) / 64], 1 << (index % 64))
    }

    fn announce(&self, index: u16) {
        let (word, bit) = self.bit(index);
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    fn withdraw(&self, index: u16) {
        let (word, bit) = self.bit(index);
        word.fetch_and(!bit, Ordering::Relaxed);
    }

    /// Whether nobody polls, as far as is known.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| word.load(Ordering::Relaxed) == 0)
    }

    fn iter(&self) -> impl Iterator<Item = u16> {
        (0..).step_by(64).zip(&self.0).flat_map(|(first, word)| {
            let mut left = word.load(Ordering::Relaxed);
            core::iter::from_fn(move || {
                let next = left.trailing_zeros() as u16;
                left &= left.wrapping_sub(1);
                (next < 64).then_some(first + next)
            })
        })
    }
}

/// Hands `uthread` to a kthread that polls, if there is one. `from` is the caller's.
#[cold]
pub fn offer(runtime: &Runtime, from: Option<&Kthread>, uthread: &'static Uthread) -> bool {
    let mine = from.map(|kthread| kthread.index);
    let others = runtime.pollers.iter().filter(|&index| Some(index) != mine);
    for index in others.take(MAX_OFFERS as usize) {
        let mailbox = &runtime.kthreads[usize::from(index)].mailbox;
        if mailbox.offer(core::ptr::from_ref(uthread) as u64) {
            return true;
        }
        runtime.pollers.withdraw(index);
    }
    false
}

/// Why a kthread stopped polling.
#[derive(Debug)]
pub enum Found {
    /// It was given this thread, which is in no queue.
    Thread(&'static Uthread),
    /// There is work that it may find.
    Work,
    /// It is to stop.
    Stop,
    /// Nothing, until the deadline.
    Nothing,
}

/// Polls until there is work, `stop` says so, or `deadline` has passed.
pub fn poll(kthread: &Kthread, runtime: &Runtime, deadline: Cycles, stop: impl Fn() -> bool) -> Found {
    kthread.mailbox.open();
    let found = look_around(kthread, runtime, deadline, stop);
    let Some(token) = kthread.mailbox.close() else { return found };
    // SAFETY: `offer` put the address of a record there, and records live for ever.
    let uthread = unsafe { &*(token as *const Uthread) };
    uthread.prefetch();
    Found::Thread(uthread)
}

fn look_around(kthread: &Kthread, runtime: &Runtime, deadline: Cycles, stop: impl Fn() -> bool) -> Found {
    loop {
        runtime.pollers.announce(kthread.index);
        let now = clock::now();
        if work_visible(kthread, runtime, now) {
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
