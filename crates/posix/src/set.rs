//! One epoll set with descriptors that Tailwater serves.
//!
//! A set is the kernel's until a served descriptor is added. From then on it is two: a poller of
//! the runtime for what is served, and the kernel's set of the same number for all else. A wait
//! takes from both.
//!
//! Owns the translation of epoll's flags, and the wait.

use crate::file::{Errno, File, What, errno, of_event};
use crate::kernel::Kernel;
use crate::real;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use core::time::Duration;
use libc::{
    EPOLLET, EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLRDHUP, EPOLLRDNORM, EPOLLWRNORM, c_int, epoll_event,
};
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Instant;
use tailwater::internals::SpinLock;
use tailwater::readiness::{Events, Interest, Mode, Nested, Poller, Token};
use tailwater::resident::{self, Waited};

/// Events of the runtime that one wait returns at most.
const BATCH: usize = 64;
/// Bits of poll(2) that epoll reports only to programs that ask for them.
const BANDS: u32 = (EPOLLRDNORM | EPOLLWRNORM) as u32;
/// Sets within sets that the kernel allows (`EP_MAX_NESTS`, fs/eventpoll.c).
const MAX_NESTS: u32 = 4;

/// See the module documentation.
pub struct Set {
    poller: Arc<Poller>,
    kernel: Arc<Kernel>,
    /// Listeners, UDP sockets and sets of this set by descriptor: both sides may report them at
    /// once.
    twofold: SpinLock<HashMap<i32, Twofold>>,
    /// Room for the events of a wait.
    room: SpinLock<Option<Events>>,
    /// True if the kernel's events filled the last wait with room for one.
    kernel_was_first: AtomicBool,
}

/// A file that the kernel's set has, too.
struct Twofold {
    data: u64,
    file: Weak<File>,
}

/// Returns what a program asked for with epoll_ctl(2) in the poller's terms.
fn translate(events: u32) -> (Interest, Mode) {
    let has = |bits: c_int| events & bits as u32 != 0;
    let mut interest = Interest::HANGUP;
    for (bits, one) in [
        (EPOLLIN | EPOLLRDNORM, Interest::READABLE),
        (EPOLLOUT | EPOLLWRNORM, Interest::WRITABLE),
        (EPOLLRDHUP, Interest::READ_CLOSED),
    ] {
        if has(bits) {
            interest = interest | one;
        }
    }
    let mode = match (has(EPOLLONESHOT), has(EPOLLET)) {
        (true, _) => Mode::OneShot,
        (false, true) => Mode::Edge,
        (false, false) => Mode::Level,
    };
    (interest, mode)
}

impl Set {
    /// Returns the set of descriptor `fd`, with what the kernel has of it; `None` if the kernel
    /// gives no descriptor.
    pub fn new(fd: i32) -> Option<Arc<Self>> {
        let poller = Arc::new(Poller::new());
        let kernel = Kernel::watch(fd, &poller)?;
        Some(Arc::new(Self {
            poller,
            kernel,
            twofold: SpinLock::default(),
            room: SpinLock::new(None),
            kernel_was_first: AtomicBool::new(false),
        }))
    }

    /// Changes the registration of a served file, as epoll_ctl(2).
    ///
    /// # Errors
    /// What `errno` becomes.
    pub fn control(
        &self,
        operation: c_int,
        fd: i32,
        file: &Arc<File>,
        event: Option<epoll_event>,
    ) -> Result<(), Errno> {
        if operation == libc::EPOLL_CTL_DEL {
            self.twofold.lock().remove(&fd);
            return self.change(file, Token(0), Interest::NONE, Mode::Level, operation);
        }
        let event = event.ok_or(libc::EFAULT)?;
        if !matches!(file.what, What::Stream(_)) {
            self.nest(fd, file, event.u64)?;
        }
        let (interest, mode) = translate(event.events);
        self.change(file, Token(event.u64 as usize), interest, mode, operation)
    }

    fn change(
        &self,
        file: &File,
        token: Token,
        interest: Interest,
        mode: Mode,
        operation: c_int,
    ) -> Result<(), Errno> {
        macro_rules! change {
            ($source:expr) => {
                match operation {
                    libc::EPOLL_CTL_ADD => self.poller.register($source, token, interest, mode),
                    libc::EPOLL_CTL_MOD => self.poller.modify($source, token, interest, mode),
                    _ => self.poller.deregister($source),
                }
            };
        }
        let result = match &file.what {
            // Clients such as redis-benchmark remove and add a connection twice for each request.
            What::Stream(stream) if operation == libc::EPOLL_CTL_DEL => self.poller.suspend(&stream.tcp),
            What::Stream(stream) => change!(&stream.tcp),
            What::Listener(listener) => listener.tailwater().map_or(Ok(()), |tcp| change!(tcp)),
            What::Datagrams(datagrams) => datagrams.udp().map_or(Ok(()), |udp| change!(udp)),
            What::Set(set) => change!(&Nested(&set.poller)),
        };
        result.map_err(|error| errno(&error))
    }

    /// Records that descriptor `fd`, which is no connection, is in this set, with `data`.
    fn nest(&self, fd: i32, file: &Arc<File>, data: u64) -> Result<(), Errno> {
        if let What::Set(inner) = &file.what
            && inner.contains(self, MAX_NESTS)
        {
            return Err(libc::ELOOP);
        }
        let mut twofold = self.twofold.lock();
        // A closed descriptor is not deleted.
        twofold.retain(|_, other| other.file.strong_count() > 0);
        twofold.insert(fd, Twofold { data, file: Arc::downgrade(file) });
        Ok(())
    }

    /// Returns whether `other` is this set or in it, or the sets are nested more than `depth` deep.
    fn contains(&self, other: &Self, depth: u32) -> bool {
        if core::ptr::eq(self, other) || depth == 0 {
            return true;
        }
        let inner: Vec<_> = self.twofold.lock().values().filter_map(|inner| inner.file.upgrade()).collect();
        inner.iter().any(|file| matches!(&file.what, What::Set(set) if set.contains(other, depth - 1)))
    }

    /// Returns whether what is no connection has `data`.
    fn is_twofold(&self, data: u64) -> bool {
        self.twofold.lock().values().any(|other| other.data == data)
    }

    /// Returns the poller, for waits of others.
    pub fn poller(&self) -> &Poller {
        &self.poller
    }

    /// Waits for events, as epoll_wait(2). The caller is at home afterwards if the result is
    /// `EINTR`.
    ///
    /// # Errors
    /// `EINTR`.
    pub fn wait(&self, out: &mut [epoll_event], timeout: Option<Duration>) -> Result<usize, Errno> {
        let since = timeout.filter(|timeout| !timeout.is_zero()).map(|_| Instant::now());
        loop {
            let mut found = self.take_from_kernel(out);
            let left = match (timeout, since) {
                _ if found > 0 => Some(Duration::ZERO),
                (Some(timeout), Some(since)) => Some(timeout.saturating_sub(since.elapsed())),
                (timeout, _) => timeout,
            };
            if found < out.len() {
                found += self.take_from_poller(out, found, left)?;
            }
            if found > 0 || left == Some(Duration::ZERO) {
                return Ok(found);
            }
        }
    }

    /// Takes events of the kernel's descriptors. At most half of the room is theirs, and with room
    /// for one every other turn, so that neither side keeps the other from being reported.
    fn take_from_kernel(&self, out: &mut [epoll_event]) -> usize {
        if out.len() == 1 && self.kernel_was_first.swap(false, Relaxed) || !self.kernel.take_ready() {
            return 0;
        }
        let room = out.len().div_ceil(2) as c_int;
        let none = core::ptr::null();
        // SAFETY: room for that many events.
        let found = unsafe { real::epoll_pwait(self.kernel.fd(), out.as_mut_ptr(), room, 0, none) };
        let found = usize::try_from(found).unwrap_or(0);
        if found > 0 {
            self.kernel.put_ready();
            self.kernel_was_first.store(true, Relaxed);
        }
        found
    }

    /// Takes events of served descriptors, behind the `found` events that are there.
    fn take_from_poller(
        &self,
        out: &mut [epoll_event],
        found: usize,
        timeout: Option<Duration>,
    ) -> Result<usize, Errno> {
        let room = self.room.lock().take();
        let mut events = room.unwrap_or_else(|| Events::with_capacity(BATCH));
        events.limit(out.len() - found);
        let waited = resident::wait(&self.poller, &mut events, timeout);
        let mut added = 0;
        for event in &events {
            let data = event.token().0 as u64;
            let bits = u32::from(of_event(event) as u16) & !BANDS;
            if let Some(other) = out[..found].iter_mut().find(|other| other.u64 == data)
                && self.is_twofold(data)
            {
                other.events |= bits;
                continue;
            }
            out[found + added] = epoll_event { events: bits, u64: data };
            added += 1;
        }
        *self.room.lock() = Some(events);
        let interrupted = matches!(waited, Waited::Interrupted { .. });
        if interrupted && found == 0 && timeout != Some(Duration::ZERO) {
            Err(libc::EINTR)
        } else {
            Ok(added)
        }
    }
}
