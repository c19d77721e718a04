//! [`Poller`]: the lists of registrations, and the threads that wait.
//!
//! # Invariants (under the poller's lock)
//! * A registration is on `ready` if its [`Membership`] is `Ready` or `Again`, on `gone` if it is
//!   `Gone`.
//! * If `ready` holds a registration with membership `Ready`, a thread was woken for it that has
//!   not looked at the list since, or none waited.
//! * At most one thread waits in `leader`, and only while there are timers; if there are timers and
//!   threads wait, one of them is the leader, or has been woken and will be.

use super::events::Events;
use super::interest::{Interest, Mode, Readiness, Ready};
use super::registration::{Local, Membership, Registration};
use super::source::{Key, Object, Sealed, Side, Source};
use super::timers::Timers;
use crate::ground::list::List;
use crate::ground::spin::SpinLock;
use crate::records::runtime::deadline_after;
use crate::sync::Mutex;
use crate::token::Token;
use crate::verbs::wait::{WaitList, check_may_block, wait, wake_all};
use crate::verbs::watch::Watchers;
use core::fmt;
use core::hash::{BuildHasherDefault, Hasher};
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed, Ordering::SeqCst};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};
use tailwater_shm::{Cycles, clock};

/// Registrations that one `wait` takes off the ready list under one lock, at most: about 1 us.
const BATCH: usize = 64;

/// See the module documentation.
pub struct State {
    ready: List<Registration>,
    /// Number of registrations on `ready`.
    listed: usize,
    /// Number of those with membership `Ready`.
    changed: usize,
    gone: List<Registration>,
    /// Pollers in which this one is registered: see [`Nested`].
    watchers: Watchers,
    timers: Timers,
    /// True after [`Poller::wake`], until a `wait` returns for it.
    woken: bool,
    /// Threads that wait, and watch no timers.
    followers: WaitList,
    /// The thread that waits until the first timer.
    leader: WaitList,
    /// True while a thread waits in `leader`, or was woken there and has not locked since.
    has_leader: bool,
}

// SAFETY: registrations on the lists are alive, and used under the lock, by their module's rules.
unsafe impl Send for State {}

impl State {
    /// Writes the membership of a registration and returns the previous one. The caller moves it
    /// from list to list.
    fn set_membership(&mut self, registration: &Registration, membership: Membership) -> Membership {
        let before = core::mem::replace(&mut registration.local(self).membership, membership);
        let is_listed = |membership| usize::from(matches!(membership, Membership::Ready | Membership::Again));
        self.listed += is_listed(membership);
        self.listed -= is_listed(before);
        self.changed += usize::from(membership == Membership::Ready);
        self.changed -= usize::from(before == Membership::Ready);
        before
    }

    /// Wakes another thread if a change is left for which this one was woken, wherever on the list:
    /// registrations by level may stand before it.
    fn pass_on(&mut self) {
        if self.changed > 0 {
            self.wake_one();
        }
    }

    /// Wakes a thread that waits.
    fn wake_one(&mut self) {
        if !self.followers.wake_one() {
            self.leader.wake_one();
        }
    }
}

/// What a poller's registrations share with it.
pub struct Shared {
    state: SpinLock<State>,
    /// Whether `gone` has registrations. Written under the lock, and read without it, so that calls
    /// for the registry need not take it: one that closes meanwhile is found by the next call.
    has_gone: AtomicBool,
}

impl Shared {
    /// Puts a registration on the ready list for a change of one side, or of any, and wakes a
    /// thread, unless both was done since the list was last looked at.
    pub(super) fn put(&self, registration: &Registration, side: Option<Side>) {
        let mut state = self.state.lock();
        let local = registration.local(&mut state);
        if !local.enabled || side.is_some_and(|side| !side.concerns(local.interest)) {
            return;
        }
        match local.membership {
            Membership::Gone => return,
            // A poller around this one looks for itself, and may have looked since.
            Membership::Ready => return state.watchers.notify(),
            Membership::Again => {}
            // SAFETY: it is on no list, and `forget` takes it out before it dies.
            Membership::Unlisted => unsafe { state.ready.push_back(registration) },
        }
        state.set_membership(registration, Membership::Ready);
        state.wake_one();
        state.watchers.notify();
    }

    /// Puts a registration on the list of those gone.
    pub(super) fn close(&self, registration: &Registration) {
        let mut state = self.state.lock();
        if state.set_membership(registration, Membership::Gone) == Membership::Gone {
            return;
        }
        // SAFETY: it is on the ready list or on none.
        unsafe { state.ready.remove(registration) };
        // SAFETY: as in `put`.
        unsafe { state.gone.push_back(registration) };
        self.has_gone.store(true, Relaxed);
    }

    /// Takes the next registration off the list of those gone; returns its key.
    fn take_gone(&self) -> Option<Key> {
        if !self.has_gone.load(Relaxed) {
            return None;
        }
        let mut state = self.state.lock();
        let registration = state.gone.pop_front();
        self.has_gone.store(registration.is_some(), Relaxed);
        let registration = registration?;
        // SAFETY: it is in the registry, from which the caller alone removes it.
        Some(unsafe { registration.as_ref() }.key())
    }

    /// Returns the registrations on the ready list, with what was asked of them.
    fn listed(&self) -> Vec<(Arc<Registration>, Interest)> {
        let mut state = self.state.lock();
        let mut all = Vec::with_capacity(state.listed);
        for _ in 0..state.listed {
            let Some(registration) = state.ready.pop_front() else { break };
            // SAFETY: as in `Poller::take`; it goes back to the list under the same lock.
            let registration = unsafe {
                Arc::increment_strong_count(registration.as_ptr().cast_const());
                Arc::from_raw(registration.as_ptr().cast_const())
            };
            // SAFETY: as in `put`.
            unsafe { state.ready.push_back(&registration) };
            let interest = registration.local(&mut state).interest;
            all.push((registration, interest));
        }
        all
    }

    /// Takes a registration off all lists, for ever.
    pub(super) fn forget(&self, registration: &Registration) {
        let mut state = self.state.lock();
        let before = state.set_membership(registration, Membership::Gone);
        let list = if before == Membership::Gone { &mut state.gone } else { &mut state.ready };
        // SAFETY: it is on this list, or on none.
        unsafe { list.remove(registration) };
    }
}

type Registry = HashMap<Key, Arc<Registration>, BuildHasherDefault<AddressHasher>>;

/// Hashes keys, which are addresses of the runtime's own objects: no peer chooses them.
#[derive(Default)]
struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_usize(byte.into()));
    }

    fn write_usize(&mut self, value: usize) {
        // 2^64 divided by the golden ratio (Knuth, The Art of Computer Programming 6.4).
        self.0 = (self.0 ^ value as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        // Tables use the lower bits, which a multiplication mixes least.
        self.0.rotate_left(26)
    }
}

/// Waits for several sources and timers at once.
///
/// # Examples
/// ```
/// use tailwater::readiness::{Events, Interest, Mode, Poller, Token};
/// use tailwater::sync::{Arc, Event};
///
/// let (poller, mut events) = (Poller::new(), Events::with_capacity(8));
/// let stop = Arc::new(Event::new());
/// poller.register(&stop, Token(7), Interest::READABLE, Mode::Edge).unwrap();
/// std::thread::scope(|scope| {
///     scope.spawn(|| stop.set());
///     poller.wait(&mut events, None);
/// });
/// assert!(events.iter().all(|event| event.token() == Token(7) && event.is_readable()));
/// ```
pub struct Poller {
    shared: Arc<Shared>,
    registry: Mutex<Registry>,
}

impl Default for Poller {
    fn default() -> Self {
        Self::new()
    }
}

impl Poller {
    /// Returns a poller without registrations.
    pub fn new() -> Self {
        let state = State {
            ready: List::new(),
            listed: 0,
            changed: 0,
            gone: List::new(),
            watchers: Watchers::new(),
            timers: Timers::default(),
            woken: false,
            followers: WaitList::new(),
            leader: WaitList::new(),
            has_leader: false,
        };
        let shared = Shared { state: SpinLock::new(state), has_gone: AtomicBool::new(false) };
        Self { shared: Arc::new(shared), registry: Mutex::default() }
    }

    /// Calls `change` with the registry, without the registrations of closed sources.
    fn with_registry<R>(&self, change: impl FnOnce(&mut Registry) -> R) -> R {
        let mut registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        self.purge(&mut registry);
        change(&mut registry)
    }

    /// Frees the registrations of closed sources.
    fn purge(&self, registry: &mut Registry) {
        // Each turn takes one off a list to which closing sources add.
        while let Some(key) = self.shared.take_gone() {
            let registration = registry.remove(&key).expect("one that is gone stays until this");
            // A close takes it out of the watchers after it has put it on the list, under the
            // source's lock, which `unlink` takes.
            registration.unlink();
        }
    }

    /// Adds a source. It is reported as `token`, at once if it is ready.
    ///
    /// # Errors
    /// [`AlreadyExists`](io::ErrorKind::AlreadyExists) if the source, or a clone of the same
    /// socket, is registered here: use [`modify`](Self::modify).
    ///
    /// # Examples
    /// ```
    /// use tailwater::readiness::{Interest, Mode, Poller, Token};
    /// use tailwater::sync::channel;
    ///
    /// let poller = Poller::new();
    /// let (_sender, receiver) = channel::unbounded::<u32>();
    /// poller.register(&receiver, Token(0), Interest::READABLE, Mode::Level).unwrap();
    /// let twice = poller.register(&receiver, Token(1), Interest::READABLE, Mode::Level);
    /// assert_eq!(twice.unwrap_err().kind(), std::io::ErrorKind::AlreadyExists);
    /// ```
    pub fn register(
        &self,
        source: &impl Source,
        token: Token,
        interest: Interest,
        mode: Mode,
    ) -> io::Result<()> {
        self.with_registry(|registry| {
            let entry = match registry.entry(source.key()) {
                Entry::Vacant(entry) => entry,
                Entry::Occupied(entry) if self.change(entry.get(), (token, interest, mode), true) => {
                    return Ok(());
                }
                Entry::Occupied(_) => {
                    let why = "the source is registered with this poller already: use modify";
                    return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
                }
            };
            let shared = Arc::clone(&self.shared);
            let registration = Registration::new(source, shared, token, interest, mode);
            let registration = entry.insert(Arc::new(registration));
            // SAFETY: it is unlinked before it leaves the registry.
            unsafe { registration.link(interest) };
            self.check(registration, interest);
            Ok(())
        })
    }

    /// Changes what is reported of a registration that is or is not suspended, as `suspended` says;
    /// false if it is otherwise.
    fn change(
        &self,
        registration: &Registration,
        (token, interest, mode): (Token, Interest, Mode),
        suspended: bool,
    ) -> bool {
        let mut state = self.shared.state.lock();
        let local = registration.local(&mut state);
        if local.suspended != suspended {
            return false;
        }
        let membership = local.membership;
        *local = Local { token, interest, mode, enabled: true, suspended: false, membership };
        drop(state);
        // SAFETY: as in `register`.
        unsafe { registration.link(interest) };
        self.check(registration, interest);
        true
    }

    /// Puts a registration on the ready list if its source is ready. It is linked already, so no
    /// change is missed in between.
    fn check(&self, registration: &Registration, interest: Interest) {
        if registration.object().ready().of_interest(interest.ready()) != Ready::NONE {
            self.shared.put(registration, None);
        }
    }

    /// Changes what is reported of a source and as what, and enables it after
    /// [`OneShot`](Mode::OneShot). It is reported at once if it is ready.
    ///
    /// # Errors
    /// [`NotFound`](io::ErrorKind::NotFound) if it is not registered here.
    ///
    /// # Examples
    /// ```
    /// use tailwater::readiness::{Events, Interest, Mode, Poller, Token};
    /// use tailwater::sync::{Arc, Event};
    /// use tailwater::time::Duration;
    ///
    /// let (poller, mut events) = (Poller::new(), Events::with_capacity(8));
    /// let event = Arc::new(Event::new());
    /// event.set();
    /// poller.register(&event, Token(1), Interest::READABLE, Mode::OneShot).unwrap();
    /// assert_eq!(poller.wait(&mut events, None), 1);
    /// assert_eq!(poller.wait(&mut events, Some(Duration::ZERO)), 0, "reported once");
    /// poller.modify(&event, Token(2), Interest::READABLE, Mode::OneShot).unwrap();
    /// assert_eq!(poller.wait(&mut events, None), 1);
    /// ```
    pub fn modify(
        &self,
        source: &impl Source,
        token: Token,
        interest: Interest,
        mode: Mode,
    ) -> io::Result<()> {
        self.with_registry(|registry| {
            let registration = registry.get(&source.key()).ok_or_else(not_found)?;
            self.change(registration, (token, interest, mode), false).then_some(()).ok_or_else(not_found)
        })
    }

    /// As [`deregister`](Self::deregister), for a source that is likely to be registered again: its
    /// record stays, so that this needs no memory then. For `epoll` sets of unmodified programs.
    ///
    /// # Errors
    /// As [`deregister`](Self::deregister).
    #[doc(hidden)]
    pub fn suspend(&self, source: &impl Source) -> io::Result<()> {
        self.with_registry(|registry| {
            let registration = registry.get(&source.key()).ok_or_else(not_found)?;
            let mut state = self.shared.state.lock();
            let local = registration.local(&mut state);
            if local.suspended {
                return Err(not_found());
            }
            (local.suspended, local.enabled, local.interest) = (true, false, Interest::NONE);
            Ok(())
        })
    }

    /// Removes a source. Events of it that no `wait` has returned are dropped; a `wait` that runs
    /// at the same time may still return one.
    ///
    /// # Errors
    /// [`NotFound`](io::ErrorKind::NotFound) if it is not registered here.
    ///
    /// # Examples
    /// ```
    /// use tailwater::readiness::{Interest, Mode, Poller, Token};
    /// use tailwater::sync::{Arc, Event};
    ///
    /// let (poller, event) = (Poller::new(), Arc::new(Event::new()));
    /// poller.register(&event, Token(0), Interest::READABLE, Mode::Level).unwrap();
    /// poller.deregister(&event).unwrap();
    /// assert_eq!(poller.deregister(&event).unwrap_err().kind(), std::io::ErrorKind::NotFound);
    /// ```
    pub fn deregister(&self, source: &impl Source) -> io::Result<()> {
        self.with_registry(|registry| {
            let registration = registry.remove(&source.key()).ok_or_else(not_found)?;
            registration.unlink();
            Ok(())
        })
    }

    /// Sets a timer, reported as `token` once at `at`. A token has one timer: a later call moves
    /// it.
    ///
    /// # Examples
    /// ```
    /// use tailwater::readiness::{Events, Poller, Token};
    /// use tailwater::time::{Duration, Instant};
    ///
    /// let (poller, mut events) = (Poller::new(), Events::with_capacity(8));
    /// poller.set_timer(Token(9), Instant::now() + Duration::from_millis(1));
    /// assert_eq!(poller.wait(&mut events, None), 1);
    /// assert!(events.iter().all(|event| event.is_timer()));
    /// ```
    pub fn set_timer(&self, token: Token, at: Instant) {
        let mut state = self.shared.state.lock();
        let earliest = state.timers.next().is_none_or(|next| at < next);
        state.timers.set(token, at);
        if !earliest {
            return;
        }
        if state.has_leader {
            state.leader.wake_one();
        } else {
            state.followers.wake_one();
        }
    }

    /// Removes the timer of a token; false if there is none.
    ///
    /// # Examples
    /// ```
    /// use tailwater::readiness::{Poller, Token};
    ///
    /// let poller = Poller::new();
    /// poller.set_timer(Token(9), std::time::Instant::now());
    /// assert!(poller.clear_timer(Token(9)) && !poller.clear_timer(Token(9)));
    /// ```
    pub fn clear_timer(&self, token: Token) -> bool {
        self.shared.state.lock().timers.clear(token)
    }

    /// Makes one [`wait`](Self::wait) return, now or later, maybe without events. Several calls
    /// before it returns count as one.
    ///
    /// # Examples
    /// ```
    /// use tailwater::readiness::{Events, Poller};
    ///
    /// let (poller, mut events) = (Poller::new(), Events::with_capacity(8));
    /// poller.wake();
    /// assert_eq!(poller.wait(&mut events, None), 0);
    /// ```
    pub fn wake(&self) {
        let mut state = self.shared.state.lock();
        state.woken = true;
        state.wake_one();
    }

    /// Waits until there are events, and returns their number: at most the capacity of `events`,
    /// and at most 64. Zero means that `timeout` has passed and no source was ready then, or that
    /// [`wake`](Self::wake) was called.
    ///
    /// # Panics
    /// On a user thread within [`no_preempt`](crate::no_preempt).
    pub fn wait(&self, events: &mut Events, timeout: Option<Duration>) -> usize {
        static NEVER: AtomicU8 = AtomicU8::new(0);
        self.wait_unless(events, timeout, &NEVER)
    }

    /// Has each thread that waits look at what [ends](Self::wait_unless) its wait.
    pub(crate) fn interrupt(&self) {
        let mut state = self.shared.state.lock();
        state.leader.wake_one();
        wake_all(state, |state| &mut state.followers);
    }

    /// As [`wait`](Self::wait), as if the timeout had passed while `ends` is not 0, which is set
    /// before an [`interrupt`](Self::interrupt).
    pub(crate) fn wait_unless(
        &self,
        events: &mut Events,
        timeout: Option<Duration>,
        ends: &AtomicU8,
    ) -> usize {
        events.list.clear();
        let deadline = timeout.map(deadline_after);
        let mut late_looks = None;
        loop {
            crate::poll();
            let woken = self.take(events);
            self.report(events);
            let is_ended = ends.load(SeqCst) != 0;
            let late = is_ended || deadline.is_some_and(|deadline| clock::now() >= deadline);
            if woken || !events.list.is_empty() || late && self.has_seen_all(&mut late_looks) {
                self.leave();
                if woken && is_ended {
                    // The caller may not look for what it was woken for.
                    self.wake();
                }
                return events.list.len();
            }
            if !late {
                self.block(deadline, ends);
            }
        }
    }

    /// Returns whether a `wait` whose time has passed has looked at all registrations that were on
    /// the ready list when it first called this. `looks_left` is the number of further looks, each
    /// of which takes at least one registration.
    fn has_seen_all(&self, looks_left: &mut Option<usize>) -> bool {
        let listed = self.shared.state.lock().listed;
        let left = looks_left.map_or(listed, |left| listed.min(left - 1));
        *looks_left = Some(left);
        left == 0
    }

    /// Takes due timers and a batch of registrations off the lists; returns whether
    /// [`wake`](Self::wake) was called.
    fn take(&self, events: &mut Events) -> bool {
        let room = events.list.capacity().min(BATCH).min(events.limit);
        let mut state = self.shared.state.lock();
        if state.timers.next().is_some() {
            let now = Instant::now();
            while events.list.len() < room
                && let Some(token) = state.timers.pop_due(now)
            {
                events.list.push(Readiness { token, ready: Ready::TIMER });
            }
        }
        while events.list.len() + events.taken.len() < room
            && let Some(registration) = state.ready.pop_front()
        {
            let registration = registration.as_ptr().cast_const();
            // SAFETY: a registration on the list is in the registry, whose reference it keeps until
            // it has left the list, under the lock that is held.
            let registration = unsafe {
                Arc::increment_strong_count(registration);
                Arc::from_raw(registration)
            };
            state.set_membership(&registration, Membership::Unlisted);
            events.taken.push((registration, Ready::NONE));
        }
        state.pass_on();
        core::mem::take(&mut state.woken)
    }

    /// Reads the state of the sources that were taken, and reports those that are ready.
    fn report(&self, events: &mut Events) {
        if events.taken.is_empty() {
            return;
        }
        for (registration, ready) in &mut events.taken {
            *ready = registration.object().ready();
        }
        let mut state = self.shared.state.lock();
        for (registration, ready) in &events.taken {
            let local = registration.local(&mut state);
            let ready = ready.of_interest(local.interest.ready());
            if ready == Ready::NONE || !local.enabled || local.membership == Membership::Gone {
                continue;
            }
            let token = local.token;
            match local.mode {
                Mode::OneShot => local.enabled = false,
                Mode::Level if local.membership == Membership::Unlisted => {
                    state.set_membership(registration, Membership::Again);
                    // SAFETY: as in `put`.
                    unsafe { state.ready.push_back(registration) };
                }
                Mode::Level | Mode::Edge => {}
            }
            events.list.push(Readiness { token, ready });
        }
        drop(state);
        // Outside the lock: a reference may be the last.
        events.taken.clear();
    }

    /// Waits until woken, until the first timer if no other thread waits for that, or until
    /// `deadline`. Does not wait if `ends` is other than 0.
    fn block(&self, deadline: Option<Cycles>, ends: &AtomicU8) {
        let mut state = self.shared.state.lock();
        // Under the lock: an `interrupt` that does not find this thread waiting is seen here.
        if !state.ready.is_empty() || state.woken || ends.load(SeqCst) != 0 {
            return;
        }
        let Some(first) = state.timers.next().filter(|_| !state.has_leader) else {
            // SAFETY: `followers` always returns the same list, which stays behind the lock.
            unsafe { wait(state, |state| &mut state.followers, deadline) };
            return;
        };
        let timer = deadline_after(first.saturating_duration_since(Instant::now()));
        let until = deadline.map_or(timer, |deadline| deadline.min(timer));
        // Before the flag is set, which a panic in `wait` would leave so for ever.
        check_may_block(state.no_preempt());
        state.has_leader = true;
        // SAFETY: as above, for `leader`.
        unsafe { wait(state, |state| &mut state.leader, Some(until)) };
        self.shared.state.lock().has_leader = false;
    }

    /// Makes another waiting thread watch the timers, if none does.
    fn leave(&self) {
        let mut state = self.shared.state.lock();
        if state.timers.next().is_some() && !state.has_leader {
            state.followers.wake_one();
        }
    }
}

fn not_found() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the source is not registered with this poller")
}

/// A poller as a source of other pollers: readable while a wait would return events. For `epoll`
/// sets of unmodified programs; a caller registers no poller in itself, not even through others.
///
/// A change of a source then locks one poller after the other, from the inner to the outer.
#[doc(hidden)]
#[derive(Debug)]
pub struct Nested<'a>(pub &'a Poller);

impl Object for Shared {
    fn watchers(&self, side: Side, change: &mut dyn FnMut(&mut Watchers)) {
        if side == Side::Read {
            change(&mut self.state.lock().watchers);
        }
    }

    fn ready(&self) -> Ready {
        Ready::READABLE.when(self.listed().into_iter().any(|(registration, interest)| {
            registration.object().ready().of_interest(interest.ready()) != Ready::NONE
        }))
    }
}

impl Sealed for Nested<'_> {
    fn key(&self) -> Key {
        (Arc::as_ptr(&self.0.shared) as usize, None)
    }

    fn object(&self) -> Arc<dyn Object> {
        Arc::clone(&self.0.shared) as _
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        let registry = self.registry.get_mut().unwrap_or_else(PoisonError::into_inner);
        for (_, registration) in registry.drain() {
            registration.unlink();
        }
        self.shared.state.lock().watchers.close();
    }
}

impl fmt::Debug for Poller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poller").finish_non_exhaustive()
    }
}
