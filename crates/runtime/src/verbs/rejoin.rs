//! Moves the kthreads of a runtime that has lost its IOKernel to another one: they stop in their
//! schedulers, the shared memory is replaced, and they wait for the first core.
//!
//! Owns the order of these steps. A thread off the kthreads leads ([`all_respond`], [`stop_all`],
//! [`Stopped`]); a kthread stops in [`stop`]. The registration itself is
//! [`attach`](crate::attach)'s.
//!
//! A kthread comes to the gate by the same ways by which it gives up a core: its grant word says
//! `Cede`, which ends every turn at the next poll point; it is roused if it sleeps, and gets the
//! preempt signal if it reaches no poll point. The IOKernel that wrote that word before is gone, or
//! about to notice that the program has hung up.
//!
//! Kthreads that stand at the gate wait for the slowest. So the leader first looks, with the gate
//! open, whether all respond: each that comes withdraws its order, and goes on.
//!
//! | the leader finds | consequence |
//! |---|---|
//! | a kthread that does not respond in time (`no_preempt`, a library without poll points, Linux does not run it) | no kthread is stopped, and the leader tries again later |
//! | a kthread that responds, and then does not stop in time | the gate opens, all go on as before, and the leader tries again later, with more patience |
//! | an IOKernel that ends, or does not answer, meanwhile | the runtime is orphaned again, with the new memory |
//!
//! | who lies or dies | consequence |
//! |---|---|
//! | an IOKernel writes a grant word of an orphan, which has hung up | `Cede`: the kthread withdraws it in [`stop`]; `Run`: it is read by no kthread |

use super::{lease, pinned, quantum};
use crate::ground::guard::NoPreempt;
use crate::records::kthread::{Kthread, NO_CORE, ThisKthread};
use crate::records::runtime::Runtime;
use std::time::{Duration, Instant};
use tailwater_shm::grant::{Generation, Grant, NextOwner};
use tailwater_shm::layout::Successor;
use tailwater_shm::memory::MemoryError;
use tailwater_shm::ring::Consumer;

/// Time between the first two requests to stop; doubled from one to the next, up to the maximum.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// Maximum time between two requests.
const LAST_PAUSE: Duration = Duration::from_millis(128);

/// All kthreads stand at the gate. It opens when this is dropped.
#[derive(Debug)]
#[must_use = "the kthreads go on at once if this is dropped"]
pub struct Stopped(&'static Runtime);

/// Returns whether all kthreads come to their schedulers within `patience`. None of them waits
/// there. Not on a kthread.
pub fn all_respond(runtime: &'static Runtime, patience: Duration) -> bool {
    let (deadline, mut pause) = (Instant::now() + patience, FIRST_PAUSE);
    for kthread in &runtime.kthreads {
        order(kthread);
    }
    loop {
        std::thread::sleep(pause);
        // A kthread withdraws its order when it comes.
        let silent = || runtime.kthreads.iter().filter(|kthread| kthread.head().cede_requested());
        if silent().next().is_none() {
            return true;
        }
        if Instant::now() >= deadline {
            runtime.withdraw_orders();
            return false;
        }
        for kthread in silent() {
            kthread.shared.parker.wake_always();
            let _ = kthread.interrupt();
        }
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

/// Makes a kthread of an orphan come to its scheduler.
fn order(kthread: &Kthread) {
    kthread.shared.grant.0.store(Grant::Cede { successor: NextOwner::None }, Generation(0));
    kthread.shared.parker.wake_always();
}

/// Stops all kthreads; `None` if one of them has not stopped after `patience`. Not on a kthread.
pub fn stop_all(runtime: &'static Runtime, patience: Duration) -> Option<Stopped> {
    runtime.halt.close();
    let stopped = Stopped(runtime);
    let (deadline, mut pause) = (Instant::now() + patience, FIRST_PAUSE);
    loop {
        for kthread in &runtime.kthreads {
            order(kthread);
        }
        if runtime.halt.wait_until_stopped(runtime.kthreads.len(), pause) {
            return Some(stopped);
        }
        if Instant::now() >= deadline {
            return None;
        }
        for kthread in &runtime.kthreads {
            // One that stands at the gate ignores it.
            let _ = kthread.interrupt();
        }
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

impl Stopped {
    /// Puts the memory of a new registration in the place of the old one's, and lets the kthreads
    /// wait for cores: when this returns they may be announced to the IOKernel.
    ///
    /// # Errors
    /// If the kernel refuses to move the memory. If that of the runtime is
    /// [gone](MemoryError::Gone), the kthreads stay stopped, and the caller ends the process.
    pub fn rejoin(self, next: Successor) -> Result<(), MemoryError> {
        let runtime = self.0;
        let iokernel = runtime.iokernel.expect("a runtime that had an IOKernel");
        {
            let held = runtime.hold_region_words();
            // SAFETY: 1. and 2. All kthreads stand at the gate, so none uses an end, writes or
            // sleeps. Other threads write under the lock, and read. One that has claimed a sleeper
            // before that kthread came to the gate may still count up the word of its parker: in
            // either memory a wake that nothing waits for.
            let moved = unsafe { iokernel.region.succeed(next) };
            if matches!(moved, Err(MemoryError::Gone { .. })) {
                // No thread is to touch it until the process has ended.
                core::mem::forget((held, self));
                return moved;
            }
            moved?;
            drop(held);
        }
        let guard = NoPreempt::new();
        for kthread in &runtime.kthreads {
            if let Some(ingress) = &kthread.ingress {
                ingress.try_with(&guard, Consumer::restart).expect("no kthread reads a ring");
            }
        }
        quantum::leave_to_iokernel(runtime);
        runtime.rejoin();
        Ok(())
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        if !self.0.is_attached() {
            self.0.withdraw_orders();
        }
        self.0.halt.open();
    }
}

/// Stops the calling kthread while the gate is closed. If the memory was replaced meanwhile, the
/// kthread begins anew: it has no core and waits for one. If the gate is open, withdraws the order
/// to come: it is the leader's, which sees that the kthread has responded, or that of an IOKernel
/// which has lost the program.
#[cold]
pub fn stop(kthread: ThisKthread<'_>, runtime: &Runtime) {
    let stopped = runtime.halt.pass();
    if !runtime.is_attached() {
        if !stopped {
            // A leader that has closed the gate meanwhile repeats its order.
            kthread.shared.grant.0.store(Grant::Park, Generation(0));
        }
        return;
    }
    if !stopped {
        return;
    }
    let private = kthread.private();
    // Tenancies are counted from the beginning by each IOKernel.
    private.generation.set(Generation(0));
    kthread.set_core(NO_CORE);
    pinned::release(&kthread);
    if let Some(egress) = &private.egress {
        egress.borrow_mut().restart();
    }
    if let Some(trace) = &private.trace {
        trace.restart();
    }
    if let Some(iokernel) = runtime.iokernel {
        iokernel.rank_kthread();
    }
    lease::wait_for_first_core(kthread, runtime);
}
