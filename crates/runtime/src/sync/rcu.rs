//! A value that is often read and seldom replaced (read-copy-update).
//!
//! A reader on a kthread turns preemption off, announces itself in its kthread's [`Section`], loads
//! the pointer and reads: four plain stores and no locked instruction. A writer replaces the
//! pointer and waits until every kthread that was reading has ended its section; then no reader can
//! hold the old value any more.
//!
//! Both sides need a full barrier. The writer pays for both, with `membarrier(2)`, which makes
//! every running thread of the process execute one. If the kernel lacks it, readers fence. Ordinary
//! OS threads have no section: they count a reference under a spin lock, which writers hold while
//! they replace the pointer.
//!
//! Why not `arc-swap` (src/debt): its readers need a sequentially consistent read-modify-write, its
//! slots belong to a thread-local node that each of a million user threads would claim, and its
//! writers walk all nodes that ever existed.

use crate::ground::guard::NoPreempt;
use crate::ground::membarrier;
use crate::ground::spin::SpinLock;
use crate::ground::words::section::Section;
use crate::records::kthread::current_uthread;
use crate::sync::{Mutex, OnceLock};
use crate::verbs::{switch, wait};
use core::fmt;
use core::panic::{RefUnwindSafe, UnwindSafe};
use core::sync::atomic::{AtomicPtr, Ordering, compiler_fence, fence};
use std::sync::{Arc, PoisonError};
use tailwater_shm::layout::MAX_KTHREADS;
use tailwater_shm::sync::spin_hint;

/// Spins before a writer that waits for a reader yields: about 10 us.
const SPINS_BEFORE_YIELD: u32 = 1000;

/// The read section of each kthread, by index. Shared by all values: one section may read several.
static SECTIONS: [Section; MAX_KTHREADS as usize] = [const { Section::new() }; MAX_KTHREADS as usize];

/// True if writers fence on behalf of readers. Set before the first value exists.
static ASYMMETRIC: OnceLock<bool> = OnceLock::new();

/// The reader's half of a full barrier.
#[inline]
fn light_barrier() {
    if ASYMMETRIC.get() == Some(&true) {
        // The writer's `membarrier` makes it a barrier for the processor as well.
        compiler_fence(Ordering::SeqCst);
    } else {
        // Pairs with the fence in `heavy_barrier`.
        fence(Ordering::SeqCst);
    }
}

/// The writer's half of a full barrier, and the readers' if `membarrier` is available.
fn heavy_barrier() {
    if ASYMMETRIC.get() == Some(&true) {
        membarrier::everywhere().expect("the process has registered for it");
    }
    // Pairs with the fence in `light_barrier`.
    fence(Ordering::SeqCst);
}

/// Waits until every section that may have begun before the call has ended.
fn wait_for_readers() {
    heavy_barrier();
    for section in &SECTIONS {
        let seen = section.look();
        if !seen.is_reading() {
            continue;
        }
        let mut spins = 0u32;
        // Ends with the reader's section: a few dozen of its instructions, with preemption off.
        while !seen.is_over(section.look()) {
            spins += 1;
            if spins.is_multiple_of(SPINS_BEFORE_YIELD) {
                switch::yield_now();
                // Linux may have descheduled the reader.
                std::thread::yield_now();
            }
            spin_hint();
        }
    }
}

/// A read section of this kthread; preemption is on again after it has ended.
struct Reading<'a> {
    section: &'a Section,
    _preempt: NoPreempt,
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        // SAFETY: entered when this was made; preemption is still off.
        unsafe { self.section.leave() };
    }
}

/// A value that is often read and seldom replaced: a configuration, a routing table.
///
/// | operation | costs |
/// |---|---|
/// | [`with`](Self::with) on a user thread | 6 ns: a few plain loads and stores; never waits |
/// | `with` on an OS thread, [`get`](Self::get) | a spin lock (OS threads) and a reference count |
/// | [`replace`](Self::replace), [`update`](Self::update) | 0.45 us for an allocation and a system call (`membarrier`), more if that has to interrupt other cores, and the longest `with` going on |
/// | the first [`new`](Self::new) of a process | up to about ten milliseconds, to register for `membarrier` |
///
/// Figures are those of the book's page "Measured", on one core.
///
/// # Examples
/// ```
/// use std::collections::HashMap;
/// use tailwater::sync::Rcu;
///
/// let routes = Rcu::new(HashMap::from([("a", 1)]));
/// routes.update(|routes| {
///     let mut routes = routes.clone();
///     routes.insert("b", 2);
///     routes
/// });
/// assert_eq!(routes.with(|routes| routes["b"]), 2);
/// ```
pub struct Rcu<T> {
    /// From `Arc::into_raw`; the cell owns one reference.
    value: AtomicPtr<T>,
    /// Held to replace the pointer, and by OS threads to load it and count a reference.
    pointer: SpinLock<()>,
    /// Held by writers from reading the old value to replacing it.
    writer: Mutex<()>,
}

// SAFETY: readers share the value, and any thread may be the one that drops it.
unsafe impl<T: Send + Sync> Send for Rcu<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Rcu<T> {}
impl<T: RefUnwindSafe> UnwindSafe for Rcu<T> {}
impl<T: RefUnwindSafe> RefUnwindSafe for Rcu<T> {}

impl<T> Rcu<T> {
    /// Returns a cell with a value.
    ///
    /// # Examples
    /// ```
    /// let limit = tailwater::sync::Rcu::new(100);
    /// assert_eq!(*limit.get(), 100);
    /// ```
    pub fn new(value: T) -> Self {
        // A filter of system calls may have been installed since the process has registered.
        ASYMMETRIC.get_or_init(|| membarrier::decide() && membarrier::everywhere().is_ok());
        Self {
            value: AtomicPtr::new(Arc::into_raw(Arc::new(value)).cast_mut()),
            pointer: SpinLock::new(()),
            writer: Mutex::new(()),
        }
    }

    /// Reads the value. Preemption is off in `read`: keep it to a few dozen instructions, and
    /// [`get`](Self::get) the value for more. It may read other cells.
    ///
    /// # Panics
    /// If `read` waits for anything, or replaces the value of an [`Rcu`], on a user thread.
    ///
    /// # Examples
    /// ```
    /// let names = tailwater::sync::Rcu::new(vec!["a", "b"]);
    /// assert!(names.with(|names| names.contains(&"b")));
    /// ```
    #[inline]
    pub fn with<R>(&self, read: impl FnOnce(&T) -> R) -> R {
        let preempt = NoPreempt::new();
        let Some(index) = preempt.kthread().map(|kthread| kthread.index) else {
            return read(&self.get_outside());
        };
        let section = &SECTIONS[usize::from(index)];
        // SAFETY: the kthread's own word, and `reading` leaves it before preemption is on again.
        unsafe { section.enter(light_barrier) };
        let reading = Reading { section, _preempt: preempt };
        // SAFETY: the value was current in the section, so its writer waits for the end of the
        // section before it lets go. Acquire: pairs with the Release in `exchange`.
        let result = read(unsafe { &*self.value.load(Ordering::Acquire) });
        drop(reading);
        result
    }

    /// Returns the value; it stays as it is while others replace the cell's value.
    ///
    /// # Examples
    /// ```
    /// use tailwater::sync::Rcu;
    ///
    /// let cell = Rcu::new(1);
    /// let kept = cell.get();
    /// cell.replace(2);
    /// assert_eq!((*kept, *cell.get()), (1, 2));
    /// ```
    pub fn get(&self) -> Arc<T> {
        if current_uthread().is_none() {
            return self.get_outside();
        }
        self.with(|value| {
            let value = core::ptr::from_ref(value);
            // SAFETY: the pointer comes from `Arc::into_raw`, and the section we are in keeps the
            // cell's reference counted.
            unsafe {
                Arc::increment_strong_count(value);
                Arc::from_raw(value)
            }
        })
    }

    /// Replaces the value and returns the old one, once all its readers have ended except holders
    /// of [`get`](Self::get)'s result.
    ///
    /// # Panics
    /// On a user thread in [`with`](Self::with) of any [`Rcu`], which it would wait for, or
    /// within [`no_preempt`](crate::no_preempt).
    ///
    /// # Examples
    /// ```
    /// let limit = tailwater::sync::Rcu::new(100);
    /// assert_eq!(*limit.replace(200), 100);
    /// assert_eq!(*limit.get(), 200);
    /// ```
    pub fn replace(&self, value: T) -> Arc<T> {
        self.update_with(|_| value)
    }

    /// Replaces the value by the result of `next`. Writers take turns; readers go on meanwhile.
    ///
    /// # Panics
    /// As [`replace`](Self::replace). If `next` panics the value stays.
    ///
    /// # Examples
    /// ```
    /// let count = tailwater::sync::Rcu::new(1);
    /// assert_eq!(*count.update(|n| n + 1), 1, "the old value");
    /// assert_eq!(*count.get(), 2);
    /// ```
    pub fn update(&self, next: impl FnOnce(&T) -> T) -> Arc<T> {
        self.update_with(|this| next(&this.get()))
    }

    /// Returns the value mutably, without counting: the exclusive borrow proves that no thread
    /// reads it in [`with`](Self::with). `None` if a result of [`get`](Self::get) still exists.
    ///
    /// # Examples
    /// ```
    /// let mut limit = tailwater::sync::Rcu::new(100);
    /// *limit.get_mut().expect("no clone is left") += 1;
    /// let kept = limit.get();
    /// assert!(limit.get_mut().is_none());
    /// assert_eq!(*kept, 101);
    /// ```
    pub fn get_mut(&mut self) -> Option<&mut T> {
        // SAFETY: the pointer comes from `Arc::into_raw`; the Arc made of it is forgotten, so the
        // cell's reference stays.
        let mut value = core::mem::ManuallyDrop::new(unsafe { Arc::from_raw(*self.value.get_mut()) });
        // SAFETY: the value lives as long as the cell, which is borrowed exclusively for as long as
        // the result.
        Arc::get_mut(&mut value).map(|value| unsafe { &mut *core::ptr::from_mut(value) })
    }

    fn update_with(&self, next: impl FnOnce(&Self) -> T) -> Arc<T> {
        wait::check_may_block(&NoPreempt::new());
        let old = {
            // A writer that panicked has changed nothing.
            let _turn = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
            self.exchange(Arc::new(next(self)))
        };
        wait_for_readers();
        // SAFETY: the pointer comes from `Arc::into_raw`, its reference was the cell's, and no
        // thread uses it uncounted any more: OS threads counted theirs under the lock, the sections
        // that may have loaded it have ended.
        unsafe { Arc::from_raw(old) }
    }

    fn exchange(&self, value: Arc<T>) -> *const T {
        let _pointer = self.pointer.lock();
        // Release: pairs with the Acquire loads. AcqRel: the old value was made by another writer.
        self.value.swap(Arc::into_raw(value).cast_mut(), Ordering::AcqRel)
    }

    #[cold]
    fn get_outside(&self) -> Arc<T> {
        let _pointer = self.pointer.lock();
        // Acquire: pairs with the Release in `exchange`.
        let value = self.value.load(Ordering::Acquire);
        // SAFETY: the pointer comes from `Arc::into_raw`, and its reference stays the cell's while
        // we hold the lock.
        unsafe {
            Arc::increment_strong_count(value);
            Arc::from_raw(value)
        }
    }
}

impl<T> Drop for Rcu<T> {
    fn drop(&mut self) {
        // SAFETY: the cell's reference; it is dropped once, and the exclusive borrow proves that no
        // thread reads.
        drop(unsafe { Arc::from_raw(*self.value.get_mut()) });
    }
}

impl<T: Default> Default for Rcu<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> From<T> for Rcu<T> {
    fn from(value: T) -> Self {
        Self::new(value)
    }
}

impl<T: fmt::Debug> fmt::Debug for Rcu<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Rcu").field(&self.get()).finish()
    }
}
