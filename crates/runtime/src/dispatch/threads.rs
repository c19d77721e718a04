//! Threads of a dispatcher, and their supply.
//!
//! Owns what it takes to make one, and when the last one could not be made. The threads without a
//! request are kept in [`Spares`], under the dispatcher's lock; a thread is made while the lock is
//! free, since a stack takes 10 us and more.

use super::pool::{Spare, Task, ThreadRecord};
use super::spares::Spares;
use crate::ground::spin::{SpinGuard, SpinLock};
use crate::records::serving::{RequestThread, Requests};
use crate::thread::{Options, prepare};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;
use tailwater_sched::Nanos;
use tailwater_shm::{Clock, Cycles, clock};

/// Time without preemption after there was no memory for a thread: a stack that cannot be mapped
/// costs system calls.
const MEMORY_PAUSE: Nanos = Nanos(1_000_000);

/// How a dispatcher makes its threads.
#[derive(Debug)]
pub struct Maker {
    name: Arc<str>,
    stack_size: Option<usize>,
    /// Cycle count until which no request is preempted, because there was no memory for a thread.
    no_memory_until: AtomicU64,
    clock: Clock,
}

impl Maker {
    pub fn new(stack_size: Option<usize>, clock: Clock) -> Self {
        Self { name: "dispatch".into(), stack_size, no_memory_until: AtomicU64::new(0), clock }
    }

    /// Returns the cycle count until which no request is preempted.
    pub fn no_memory_until(&self) -> Cycles {
        self.no_memory_until.load(Relaxed)
    }
}

/// What the lock of a dispatcher protects.
pub trait HasSpares {
    /// Returns the threads without a request.
    fn spares(&mut self) -> &mut Spares;
}

/// A dispatcher that has threads. Lives as long as the process.
pub trait Threads: Requests + Sized + 'static {
    /// What its lock protects.
    type Pool: HasSpares + 'static;

    /// Returns its lock.
    fn pool(&self) -> &SpinLock<Self::Pool>;

    /// Returns how it makes threads.
    fn maker(&self) -> &Maker;

    /// The life of a thread.
    fn run(&'static self, record: &'static ThreadRecord);

    /// Makes a thread that begins with `task`, or with what it is given before it first runs.
    ///
    /// # Errors
    /// If there is no memory for a stack.
    fn new_thread(&'static self, task: Task) -> Result<Spare, crate::StackError> {
        // In a statement of its own, so that the lock is free afterwards.
        let free = self.pool().lock().spares().free_record();
        let record = free.unwrap_or_else(|| {
            Box::leak(Box::new(ThreadRecord { thread: RequestThread::new(self), task: SpinLock::new(task) }))
        });
        *record.task.lock() = task;
        let options = Options {
            name: Some(Arc::clone(&self.maker().name)),
            stack_size: self.maker().stack_size,
            unrelated: true,
            ..Options::default()
        };
        // SAFETY: everything is 'static.
        match unsafe { prepare(move || self.run(record), options, None) } {
            Ok((joiner, runnable)) => {
                drop(joiner);
                Ok(Spare { runnable, record })
            }
            Err(error) => {
                self.pool().lock().spares().return_record(record);
                Err(error)
            }
        }
    }

    /// Locks the pool if `is_needed` and there is a spare thread for a lane, which is made if all
    /// are reserved for idle lanes.
    ///
    /// # Errors
    /// The locked pool, if it is not needed, or there is no memory for a thread.
    fn lock_with_spare(
        &'static self,
        is_needed: impl Fn(&mut Self::Pool) -> bool,
    ) -> Result<SpinGuard<'static, Self::Pool>, SpinGuard<'static, Self::Pool>> {
        let mut pool = self.pool().lock();
        if !is_needed(&mut pool) {
            return Err(pool);
        }
        if pool.spares().has_spare() {
            return Ok(pool);
        }
        drop(pool);
        // The lane is not known yet, and is given to the thread under the lock.
        let made = self.new_thread(Task::End);
        let mut pool = self.pool().lock();
        let Ok(spare) = made else {
            let until = clock::now().saturating_add(self.maker().clock.from_ns(MEMORY_PAUSE.0));
            self.maker().no_memory_until.store(until, Relaxed);
            return Err(pool);
        };
        pool.spares().add(spare);
        if is_needed(&mut pool) { Ok(pool) } else { Err(pool) }
    }
}
