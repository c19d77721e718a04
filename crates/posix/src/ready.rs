//! poll(2) over descriptors of both networks, and with it every wait of a blocking call.
//!
//! Owns the wait: what is served is registered with a poller made for it, the kernel's descriptors
//! are in a set of the kernel that belongs to the poller. A poll of the kernel's descriptors alone
//! is the kernel's.

use crate::file::{Errno, File, What};
use crate::kernel::Kernel;
use crate::real;
use crate::start::{self, Call};
use crate::table;
use core::time::Duration;
use libc::{
    ERESTART, POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLRDHUP, POLLRDNORM, POLLWRNORM, c_short,
    pollfd, timespec,
};
use std::sync::Arc;
use std::time::Instant;
use tailwater::readiness::{Events, Interest, Mode, Nested, Poller, Token};
use tailwater::resident::{self, Waited};

/// No time: a call with it does not wait.
pub static NOW: timespec = timespec { tv_sec: 0, tv_nsec: 0 };
/// What poll(2) reports without being asked.
const ALWAYS: c_short = POLLERR | POLLHUP | POLLNVAL;

/// Waits until `fd`, which is served, is ready for `events`. A wait without a limit goes on after
/// handlers with `SA_RESTART`, as the kernel's do (signal(7)).
///
/// # Errors
/// `EINTR`, and `EAGAIN` when `limit` has passed.
pub fn wait_for(fd: i32, events: c_short, limit: Option<Duration>) -> Result<(), Errno> {
    let mut fds = [pollfd { fd, events, revents: 0 }];
    loop {
        match poll_or_restart(&mut fds, limit) {
            Ok(0) => return Err(libc::EAGAIN),
            Ok(_) => return Ok(()),
            Err(ERESTART) if limit.is_none() => {}
            Err(error) => return Err(as_poll(error)),
        }
    }
}

/// Returns what poll(2) fails with: no handler restarts it.
fn as_poll(error: Errno) -> Errno {
    if error == ERESTART { libc::EINTR } else { error }
}

/// Returns whether the kernel's side of `fd` is ready for `events` now.
pub fn kernel_is_ready(fd: i32, events: c_short) -> bool {
    let mut fd = pollfd { fd, events, revents: 0 };
    // SAFETY: one valid pollfd.
    unsafe { real::ppoll(&raw mut fd, 1, &raw const NOW, core::ptr::null()) > 0 }
}

/// Returns the served files of `fds`, in their order; `None` if there are none.
pub fn served(fds: &[pollfd]) -> Option<Vec<Option<Arc<File>>>> {
    if !start::may_serve() {
        return None;
    }
    let mut files: Vec<Option<Arc<File>>> = Vec::new();
    for (index, fd) in fds.iter().enumerate() {
        if let Some(file) = table::get(fd.fd) {
            files.resize(fds.len(), None);
            files[index] = Some(file);
        }
    }
    let is_served = |file: &Arc<File>| match &file.what {
        What::Listener(listener) => listener.tailwater().is_some(),
        What::Datagrams(datagrams) => datagrams.for_wait().is_some(),
        _ => true,
    };
    files.iter().flatten().any(is_served).then_some(files)
}

/// Waits as poll(2); the caller may be at home afterwards.
///
/// # Errors
/// What `errno` becomes: `EINTR`.
pub fn poll(fds: &mut [pollfd], timeout: Option<Duration>) -> Result<usize, Errno> {
    poll_or_restart(fds, timeout).map_err(as_poll)
}

/// As [`poll`], but fails with `ERESTART` if all handlers that ran have `SA_RESTART`.
fn poll_or_restart(fds: &mut [pollfd], timeout: Option<Duration>) -> Result<usize, Errno> {
    let Some(files) = served(fds) else { return poll_kernel(fds, timeout) };
    let call = Call::within();
    let mut wait = None;
    let since = Instant::now();
    loop {
        let found = look(fds, &files);
        let left = timeout.map(|timeout| timeout.saturating_sub(since.elapsed()));
        if found > 0 || left == Some(Duration::ZERO) || call.is_none() {
            return Ok(found);
        }
        let Some(wait) = &mut wait else {
            wait = Some(Wait::new(fds, &files).ok_or(libc::ENOMEM)?);
            continue;
        };
        if let Waited::Interrupted(interrupted) = wait.lasts(left) {
            return Err(if interrupted.restarts { ERESTART } else { libc::EINTR });
        }
    }
}

/// Waits as poll(2) for descriptors of the kernel alone.
fn poll_kernel(fds: &mut [pollfd], timeout: Option<Duration>) -> Result<usize, Errno> {
    let time = timeout.map(|time| timespec {
        tv_sec: time.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: time.subsec_nanos().into(),
    });
    let time = time.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    // Linux looks before it waits: only a wait is ended.
    let is_over = timeout != Some(Duration::ZERO) && resident::go_home_within().is_some();
    let time = if is_over { &raw const NOW } else { time };
    // SAFETY: a slice of pollfds; no mask.
    let found = unsafe { real::ppoll(fds.as_mut_ptr(), fds.len() as u64, time, core::ptr::null()) };
    match usize::try_from(found) {
        Ok(0) if is_over => Err(libc::EINTR),
        found => found.map_err(|_| real::errno()),
    }
}

/// Fills in what is ready now; returns the number of descriptors that are.
fn look(fds: &mut [pollfd], files: &[Option<Arc<File>>]) -> usize {
    let mut found = 0;
    for (fd, file) in fds.iter_mut().zip(files) {
        fd.revents = 0;
        if let Some(file) = file {
            fd.revents = file.readiness() & (fd.events | ALWAYS);
        }
        if fd.fd >= 0 && is_of_kernel(file.as_deref()) {
            let mut one = pollfd { revents: 0, ..*fd };
            // SAFETY: one valid pollfd.
            if unsafe { real::ppoll(&raw mut one, 1, &raw const NOW, core::ptr::null()) } > 0 {
                fd.revents |= one.revents;
            }
        }
        found += usize::from(fd.revents != 0);
    }
    found
}

/// Returns whether a descriptor has a side in the kernel.
fn is_of_kernel(file: Option<&File>) -> bool {
    file.is_none_or(|file| !matches!(file.what, What::Stream(_)))
}

/// A poller for one wait.
struct Wait {
    poller: Arc<Poller>,
    kernel: Option<Arc<Kernel>>,
    events: Events,
}

impl Wait {
    /// Returns `None` if the kernel gives no descriptor.
    fn new(fds: &[pollfd], files: &[Option<Arc<File>>]) -> Option<Self> {
        let poller = Arc::new(Poller::new());
        let mut kernel = None;
        for (fd, file) in fds.iter().zip(files).filter(|(fd, _)| fd.fd >= 0) {
            if let Some(file) = file {
                register(&poller, file, fd.events);
            }
            if is_of_kernel(file.as_deref()) {
                let kernel = match &kernel {
                    Some(kernel) => kernel,
                    None => kernel.insert(Kernel::new(&poller)?),
                };
                // A file is refused, and was found ready before.
                kernel.add(fd.fd, u32::from(fd.events as u16));
            }
        }
        Some(Self { poller, kernel, events: Events::with_capacity(1) })
    }

    /// Waits until something may have changed, or `left` has passed.
    fn lasts(&mut self, left: Option<Duration>) -> Waited {
        if self.kernel.as_ref().is_some_and(|kernel| kernel.take_ready()) {
            return Waited::Events(0);
        }
        resident::wait(&self.poller, &mut self.events, left)
    }
}

/// Registers a file for what `events` of poll(2) ask, or for all changes if it is there twice.
fn register(poller: &Poller, file: &File, events: c_short) {
    let mut asked = Interest::HANGUP;
    for (bits, interest) in [
        (POLLIN | POLLRDNORM, Interest::READABLE),
        (POLLOUT | POLLWRNORM, Interest::WRITABLE),
        (POLLRDHUP, Interest::READ_CLOSED),
    ] {
        if events & bits != 0 {
            asked = asked | interest;
        }
    }
    let all = Interest::READABLE | Interest::WRITABLE | Interest::READ_CLOSED | Interest::HANGUP;
    let token = Token(0);
    macro_rules! register {
        ($source:expr) => {
            if poller.register($source, token, asked, Mode::Edge).is_err() {
                // The one error is that it is registered already.
                let _ = poller.modify($source, token, all, Mode::Edge);
            }
        };
    }
    match &file.what {
        What::Stream(stream) => register!(&stream.tcp),
        What::Listener(listener) => {
            if let Some(tcp) = listener.tailwater() {
                register!(tcp);
            }
        }
        What::Datagrams(datagrams) => {
            if let Some(udp) = datagrams.udp() {
                register!(udp);
            }
        }
        What::Set(set) => register!(&Nested(set.poller())),
    }
}
