//! [`Builder`]: a thread's name, stack size, placement and class.

use crate::records::stack::{MAX_STACK, MIN_STACK};
use crate::thread::class::ThreadClass;
use crate::thread::placement::Placement;
use crate::thread::scope::{Scope, ScopedJoinHandle};
use crate::thread::spawn::{JoinHandle, Options, start};
use std::io;

/// Sets the name, the stack size, the placement and the class of a thread before it is spawned.
///
/// # Examples
/// ```standalone_crate
/// use tailwater::thread;
///
/// #[tailwater::main]
/// fn main() -> std::io::Result<()> {
///     let parser = thread::Builder::new().name("parser".to_owned());
///     let parser = parser.stack_size(4 << 20).spawn(|| 42)?;
///     assert_eq!(parser.thread().name(), Some("parser"));
///     assert_eq!(parser.join().unwrap(), 42);
///     Ok(())
/// }
/// ```
#[derive(Debug, Default)]
#[must_use = "a builder does nothing until `spawn`"]
pub struct Builder {
    name: Option<String>,
    stack_size: Option<usize>,
    placement: Placement,
    class: Option<ThreadClass>,
}

impl Builder {
    /// Returns a builder without settings.
    #[inline]
    pub fn new() -> Self {
        Self::default()
    }

    /// Names the thread, for panic messages, dumps and
    /// [`Thread::name`](crate::thread::Thread::name).
    pub fn name(mut self, name: String) -> Self {
        self.name = Some(name);
        self
    }

    /// Sets the usable bytes of the thread's stack: 16 KiB to 128 GiB, rounded up. Memory is
    /// committed as it is touched, and kept for the next thread of the same size. For the part that
    /// the preempt signal may take see [`stack_size`](crate::RuntimeBuilder::stack_size) of the
    /// runtime.
    pub fn stack_size(mut self, bytes: usize) -> Self {
        self.stack_size = Some(bytes);
        self
    }

    /// Sets where the thread is queued. By default that is where it costs least: with a kthread
    /// that looks for work, else with the creator, from whom others steal.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::thread::{self, Placement};
    ///
    /// #[tailwater::main]
    /// fn main() -> std::io::Result<()> {
    ///     let thread = thread::Builder::new().placement(Placement::LeastLoaded(2)).spawn(|| 42)?;
    ///     assert_eq!(thread.join().unwrap(), 42);
    ///     Ok(())
    /// }
    /// ```
    pub fn placement(mut self, placement: Placement) -> Self {
        self.placement = placement;
        self
    }

    /// Sets what the thread is to the program. By default that is what its creator is, and
    /// [`ThreadClass::Normal`] if the creator is exclusive.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::thread::{self, ThreadClass};
    ///
    /// #[tailwater::main]
    /// fn main() -> std::io::Result<()> {
    ///     let sum = thread::Builder::new().class(ThreadClass::Background).spawn(|| {
    ///         let add = |sum: u64, n: u64| {
    ///             // Gives way to ordinary threads.
    ///             tailwater::poll();
    ///             sum + n
    ///         };
    ///         (0..10_000).fold(0, add)
    ///     })?;
    ///     assert_eq!(sum.join().unwrap(), 49_995_000);
    ///     Ok(())
    /// }
    /// ```
    pub fn class(mut self, class: ThreadClass) -> Self {
        self.class = Some(class);
        self
    }

    /// Starts the thread, as [`spawn`](crate::thread::spawn).
    ///
    /// # Errors
    /// `InvalidInput` for a stack size out of range, `OutOfMemory` if there is no memory for the
    /// stack. For an exclusive thread `ResourceBusy` if the program has no kthread or core for one
    /// more, and `Unsupported` if its IOKernel grants no requested cores.
    ///
    /// # Panics
    /// If there is no runtime.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::thread;
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let thread = thread::Builder::new().stack_size(1 << 20).spawn(|| 42).unwrap();
    ///     assert_eq!(thread.join().unwrap(), 42);
    ///     assert!(thread::Builder::new().stack_size(1).spawn(|| ()).is_err());
    /// }
    /// ```
    pub fn spawn<F, T>(self, main: F) -> io::Result<JoinHandle<T>>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        // SAFETY: everything is 'static.
        unsafe { start(main, self.options()?, None) }.map(JoinHandle)
    }

    /// Starts a thread that may borrow from outside `scope`, as [`Scope::spawn`].
    ///
    /// # Errors
    /// As [`spawn`](Self::spawn).
    ///
    /// # Panics
    /// If there is no runtime.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::thread;
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let text = String::from("borrowed");
    ///     let length = thread::scope(|s| {
    ///         let reader = thread::Builder::new().name("reader".to_owned());
    ///         reader.spawn_scoped(s, || text.len()).unwrap().join().unwrap()
    ///     });
    ///     assert_eq!(length, text.len());
    /// }
    /// ```
    pub fn spawn_scoped<'scope, F, T>(
        self,
        scope: &'scope Scope<'scope, '_>,
        main: F,
    ) -> io::Result<ScopedJoinHandle<'scope, T>>
    where
        F: FnOnce() -> T + Send + 'scope,
        T: Send + 'scope,
    {
        scope.start(main, self.options()?)
    }

    /// Inlined in any case: a thread without settings then costs no look at each of them, and no
    /// copies of them. By libtailwater, starting and joining one takes 105 rather than 116 ns
    /// (2-vCPU VM, AMD EPYC).
    #[inline(always)]
    fn options(self) -> io::Result<Options> {
        if let Some(bytes) = self.stack_size
            && !(MIN_STACK..=MAX_STACK).contains(&bytes)
        {
            return Err(out_of_range(bytes));
        }
        Ok(Options {
            name: self.name.map(Into::into),
            stack_size: self.stack_size,
            placement: self.placement,
            class: self.class,
            unrelated: false,
        })
    }
}

#[cold]
fn out_of_range(bytes: usize) -> io::Error {
    let message = format!("a stack of {bytes} bytes is out of range: {MIN_STACK} to {MAX_STACK}");
    io::Error::new(io::ErrorKind::InvalidInput, message)
}
