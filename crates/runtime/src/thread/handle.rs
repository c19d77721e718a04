//! [`Thread`] and [`ThreadId`]: handles to threads, running or ended.

use crate::records::identity::Identity;
use crate::records::kthread::current_uthread;
use crate::records::uthread::{Runnable, Uthread};
use crate::verbs::ready::ready;
use core::fmt;
use core::num::NonZeroU64;
use core::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;

/// A handle to a thread. Keeps its name alive, not the thread.
///
/// Handles to ordinary OS threads ([`current`] on one) delegate to `std::thread`.
///
/// # Examples
/// ```standalone_crate
/// use tailwater::thread;
///
/// #[tailwater::main]
/// fn main() {
///     let main = thread::current();
///     assert_eq!(main.name(), Some("main"));
///     thread::spawn(move || main.unpark());
///     thread::park();
/// }
/// ```
#[derive(Clone)]
pub struct Thread(Inner);

// The thread's records, which a panic might leave inconsistent, change with preemption off and
// without unwinding.
impl UnwindSafe for Thread {}
impl RefUnwindSafe for Thread {}

#[derive(Clone)]
enum Inner {
    User(UserThread),
    Os(std::thread::Thread),
}

/// A handle to a user thread.
#[derive(Clone)]
pub(crate) struct UserThread {
    pub record: &'static Uthread,
    pub id: NonZeroU64,
    pub name: Option<Arc<str>>,
}

impl UserThread {
    /// Returns the thread that the caller runs in.
    pub fn current() -> Option<Self> {
        Self::of_record(current_uthread()?)
    }

    /// Returns the thread that runs on `record`, if any.
    pub fn of_record(record: &'static Uthread) -> Option<Self> {
        Some(Self { record, id: record.identity.id()?, name: record.identity.name() })
    }

    /// Returns the record's identity, which may be another thread's by now.
    pub fn identity(&self) -> &'static Identity {
        &self.record.identity
    }
}

/// Writes `'name' (id)`, or the id alone.
impl fmt::Display for UserThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "'{name}' ({})", self.id),
            None => write!(f, "{}", self.id),
        }
    }
}

impl From<UserThread> for Thread {
    fn from(thread: UserThread) -> Self {
        Self(Inner::User(thread))
    }
}

impl Thread {
    /// Returns the thread's identifier.
    pub fn id(&self) -> ThreadId {
        ThreadId(match &self.0 {
            Inner::User(thread) => Id::User(thread.id),
            Inner::Os(thread) => Id::Os(thread.id()),
        })
    }

    /// Returns the thread's name; `main` for the first user thread.
    ///
    /// # Examples
    /// ```standalone_crate
    /// #[tailwater::main]
    /// fn main() {
    ///     assert_eq!(tailwater::thread::current().name(), Some("main"));
    ///     let unnamed = tailwater::thread::spawn(|| ());
    ///     assert_eq!(unnamed.thread().name(), None);
    /// }
    /// ```
    pub fn name(&self) -> Option<&str> {
        match &self.0 {
            Inner::User(thread) => thread.name.as_deref(),
            Inner::Os(thread) => thread.name(),
        }
    }

    /// Gives the thread its token: [`park`](crate::thread::park) returns, now or at its next call.
    /// A thread has at most one token. Does nothing if the thread has ended. May be called from any
    /// thread, also ordinary ones.
    ///
    /// # Examples
    /// ```standalone_crate
    /// use tailwater::thread;
    ///
    /// #[tailwater::main]
    /// fn main() {
    ///     let sleeper = thread::spawn(thread::park);
    ///     sleeper.thread().unpark();
    ///     sleeper.join().unwrap();
    /// }
    /// ```
    pub fn unpark(&self) {
        match &self.0 {
            Inner::User(thread) => {
                if thread.identity().give_token(thread.id) {
                    // SAFETY: 1. it parks with preemption off since `PARKED`. 2. `give_token` is
                    // true once a wait.
                    ready(unsafe { Runnable::new(thread.record) });
                }
            }
            Inner::Os(thread) => thread.unpark(),
        }
    }
}

impl fmt::Debug for Thread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Thread").field("id", &self.id()).field("name", &self.name()).finish_non_exhaustive()
    }
}

/// Identifies a thread among all threads, past and present, of this process.
///
/// # Examples
/// ```standalone_crate
/// use tailwater::thread;
///
/// #[tailwater::main]
/// fn main() {
///     let other = thread::spawn(|| thread::current().id()).join().unwrap();
///     assert_ne!(thread::current().id(), other);
/// }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ThreadId(Id);

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Id {
    User(NonZeroU64),
    Os(std::thread::ThreadId),
}

impl fmt::Debug for ThreadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Id::User(id) => write!(f, "ThreadId({id})"),
            Id::Os(id) => write!(f, "Os{id:?}"),
        }
    }
}

/// Returns the calling thread.
///
/// # Examples
/// ```
/// // On an ordinary thread this is what `std::thread::current` returns.
/// let (here, std) = (tailwater::thread::current(), std::thread::current());
/// assert_eq!(here.name(), std.name());
/// ```
pub fn current() -> Thread {
    Thread(match UserThread::current() {
        Some(thread) => Inner::User(thread),
        None => Inner::Os(std::thread::current()),
    })
}
