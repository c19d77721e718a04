//! A port around another one that does not state when its next frame is due.
//!
//! Owns a timer that ends the IOKernel's sleep when that frame is due, as the interrupt of a
//! network card does: the polling thread sleeps without knowing of it, and its core wakes
//! afterwards. The timer is set while the thread sleeps only: its interrupt takes a polling core
//! some 12 us, which a card that is polled does not. All else is the inner port's, whose own
//! descriptor still wakes the thread.

use std::cell::Cell;
use std::sync::Arc;

use anyhow::Context as _;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tailwater_ports::{Account, Attachment, Context, Inject, Port, PortError};
use tailwater_shm::{Clock, Cycles, clock};
use tailwater_wire::MacAddr;

/// Shortest time for which a timer is set: zero would stop it.
const SOON_NS: u64 = 1;

/// See the [module](self).
pub struct Unannounced {
    inner: Box<dyn Port>,
    clock: Option<Clock>,
    timer: OwnedFd,
    /// The time for which the timer is set. A cell, because the question for the descriptor, which
    /// comes right before each sleep, sets it.
    set_for: Cell<Option<Cycles>>,
    /// Readable when the timer or the inner port's descriptor is.
    either: OwnedFd,
}

impl Unannounced {
    /// Puts one around a port.
    ///
    /// # Errors
    /// If the kernel refuses a descriptor.
    pub fn new(inner: Box<dyn Port>) -> anyhow::Result<Self> {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)
            .context("no timer")?;
        let either = epoll::create(epoll::CreateFlags::CLOEXEC).context("no epoll instance")?;
        epoll::add(&either, &timer, EventData::new_u64(0), EventFlags::IN)?;
        if let Some(fd) = inner.pollable() {
            epoll::add(&either, fd, EventData::new_u64(1), EventFlags::IN)?;
        }
        Ok(Self { inner, clock: None, timer, set_for: Cell::new(None), either })
    }

    /// Sets the timer for `at`, or stops it.
    fn set(&self, at: Option<Cycles>) {
        let Some(clock) = self.clock.filter(|_| self.set_for.get() != at) else { return };
        let left_ns = at.map_or(0, |at| clock.to_ns(at.saturating_sub(clock::now())).max(SOON_NS));
        let left =
            Timespec { tv_sec: (left_ns / 1_000_000_000) as i64, tv_nsec: (left_ns % 1_000_000_000) as i64 };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: left };
        // A timer that is not set leaves the thread asleep for the longest sleep of 100 ms, which
        // the latencies show.
        if timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once).is_ok() {
            self.set_for.set(at);
        }
    }
}

impl Port for Unannounced {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn attachment(&self) -> Attachment {
        self.inner.attachment()
    }

    fn mac(&self) -> Option<MacAddr> {
        self.inner.mac()
    }

    fn start(&mut self, context: &Context) -> Result<(), PortError> {
        self.clock = Some(context.clock);
        self.inner.start(context)
    }

    fn poll(&mut self, now: Cycles, budget: usize, switch: &mut dyn Inject) -> Result<usize, PortError> {
        // The thread polls again. An expired timer would stay readable, and no sleep would last.
        self.set(None);
        self.inner.poll(now, budget, switch)
    }

    fn has_local_peer(&self) -> bool {
        self.inner.has_local_peer()
    }

    fn transmit(&mut self, now: Cycles, frame: &[u8]) -> bool {
        self.inner.transmit(now, frame)
    }

    fn flush(&mut self) {
        self.inner.flush();
    }

    /// States an event only if it is due.
    fn next_event(&self) -> Option<Cycles> {
        self.inner.next_event().filter(|at| *at <= clock::now())
    }

    fn account(&self) -> Option<Arc<dyn Account>> {
        self.inner.account()
    }

    /// Sets the timer, also for an event that has become due meanwhile.
    fn pollable(&self) -> Option<BorrowedFd<'_>> {
        self.set(self.inner.next_event());
        Some(self.either.as_fd())
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use rustix::event::{PollFd, PollFlags, poll};
    use tailwater_ports::Delivery;

    use super::*;

    /// A port with a frame at a time, until it is polled.
    struct Once(Option<Cycles>);

    impl Port for Once {
        fn name(&self) -> &str {
            "once"
        }

        fn attachment(&self) -> Attachment {
            Attachment::Uplink { gateway: None }
        }

        fn start(&mut self, _context: &Context) -> Result<(), PortError> {
            Ok(())
        }

        fn poll(&mut self, _: Cycles, _: usize, _: &mut dyn Inject) -> Result<usize, PortError> {
            self.0 = None;
            Ok(0)
        }

        fn transmit(&mut self, _now: Cycles, _frame: &[u8]) -> bool {
            false
        }

        fn next_event(&self) -> Option<Cycles> {
            self.0
        }
    }

    struct Nowhere;

    impl Inject for Nowhere {
        fn inject(&mut self, _frame: &[u8]) -> Delivery {
            Delivery::Unknown
        }

        fn resolve(&self, _ip: Ipv4Addr) -> Option<MacAddr> {
            None
        }
    }

    #[test]
    fn a_frame_that_is_not_announced_wakes_when_it_is_due_and_once() {
        let clock = Clock::calibrate(5);
        let due = clock::now() + clock.from_ns(20_000_000);
        let mut port = Unannounced::new(Box::new(Once(Some(due)))).unwrap();
        port.start(&Context { clock, mtu: 1500, prefix_len: 16, network6: None }).unwrap();
        assert_eq!(port.next_event(), None, "not announced");
        // For ever, or until the timer ends it.
        poll(&mut [PollFd::from_borrowed_fd(port.pollable().unwrap(), PollFlags::IN)], None).unwrap();
        assert!(clock::now() + clock.from_ns(1_000_000) >= due, "not before");
        while clock::now() < due {
            std::hint::spin_loop();
        }
        assert_eq!(port.next_event(), Some(due), "due");
        port.poll(clock::now(), 32, &mut Nowhere).unwrap();
        let at_once = Some(&Timespec { tv_sec: 0, tv_nsec: 0 });
        let readable =
            poll(&mut [PollFd::from_borrowed_fd(port.pollable().unwrap(), PollFlags::IN)], at_once).unwrap();
        assert_eq!(readable, 0, "its timer is over");
    }
}
