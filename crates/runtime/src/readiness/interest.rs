//! What a registration asks for, and what is reported of it.
//!
//! Owns the sets [`Interest`] and [`Ready`], and [`Readiness`], which programs see. Knows neither
//! sources nor pollers.

use crate::token::Token;
use core::fmt;
use core::ops::{BitOr, BitOrAssign};

/// Which readiness is reported. The end of a stream counts as readable, its failure as both: a call
/// would not wait.
///
/// # Examples
/// ```
/// use tailwater::readiness::Interest;
///
/// let both = Interest::READABLE | Interest::WRITABLE;
/// assert!(both.contains(Interest::WRITABLE) && !Interest::NONE.contains(Interest::READABLE));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Interest(Ready);

impl Interest {
    /// Nothing: the registration stays and reports nothing.
    pub const NONE: Self = Self(Ready::NONE);
    /// A read, an `accept` or a `recv` would not wait.
    pub const READABLE: Self = Self(Ready::READABLE);
    /// A write or a `send` would not wait.
    pub const WRITABLE: Self = Self(Ready::WRITABLE);

    /// The peer sends nothing more (`EPOLLRDHUP`), though received data may not be read yet.
    pub const READ_CLOSED: Self = Self(Ready::READ_CLOSED);
    /// The connection has failed, or is over in both directions: what `epoll` reports without being
    /// asked (`EPOLLERR`, `EPOLLHUP`).
    pub const HANGUP: Self = Self(Ready(Ready::FAILED.0 | Ready::HUNG_UP.0));

    /// Returns whether all of `other` is in.
    pub const fn contains(self, other: Self) -> bool {
        self.0.0 & other.0.0 == other.0.0
    }

    pub(super) fn ready(self) -> Ready {
        self.0
    }
}

impl BitOr for Interest {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// When a ready source is reported.
///
/// # Examples
/// ```
/// use tailwater::readiness::{Interest, Mode, Poller, Token};
///
/// let (poller, event) = (Poller::new(), tailwater::sync::Arc::new(tailwater::sync::Event::new()));
/// poller.register(&event, Token(1), Interest::READABLE, Mode::OneShot).unwrap();
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Mode {
    /// After a change, and by each later call of [`wait`](super::Poller::wait) while it is ready.
    #[default]
    Level,
    /// When it is registered or modified, and after each change: use it up until it would wait.
    Edge,
    /// Once, until it is [modified](super::Poller::modify).
    OneShot,
}

/// A set of what a source is ready for.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ready(u8);

impl Ready {
    pub const NONE: Self = Self(0);
    pub const READABLE: Self = Self(1);
    pub const WRITABLE: Self = Self(1 << 1);
    /// Nothing more will be read.
    pub const END: Self = Self(1 << 2);
    pub const FAILED: Self = Self(1 << 3);
    pub const TIMER: Self = Self(1 << 4);
    /// The peer has closed its direction.
    pub const READ_CLOSED: Self = Self(1 << 5);
    /// Both directions are closed.
    pub const HUNG_UP: Self = Self(1 << 6);

    pub fn when(self, condition: bool) -> Self {
        if condition { self } else { Self::NONE }
    }

    pub fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns what is reported of this to a registration with `interest`.
    pub fn of_interest(self, interest: Self) -> Self {
        let asked = Self(self.0 & interest.0);
        if asked == Self::NONE { asked } else { asked | Self(self.0 & (Self::END | Self::FAILED).0) }
    }
}

impl BitOr for Ready {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Ready {
    fn bitor_assign(&mut self, other: Self) {
        *self = *self | other;
    }
}

impl fmt::Debug for Ready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (Self::READABLE, "readable"),
            (Self::WRITABLE, "writable"),
            (Self::END, "end"),
            (Self::FAILED, "failed"),
            (Self::TIMER, "timer"),
            (Self::READ_CLOSED, "read closed"),
            (Self::HUNG_UP, "hung up"),
        ];
        f.debug_set()
            .entries(names.iter().filter(|(bit, _)| self.intersects(*bit)).map(|(_, name)| name))
            .finish()
    }
}

/// A registration whose source is ready, or a timer whose time has come.
///
/// # Examples
/// ```
/// use tailwater::readiness::{Events, Poller, Token};
/// use tailwater::time::Instant;
///
/// let (poller, mut events) = (Poller::new(), Events::with_capacity(1));
/// poller.set_timer(Token(5), Instant::now());
/// poller.wait(&mut events, None);
/// let event = events.iter().next().unwrap();
/// assert!(event.is_timer() && event.token() == Token(5));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Readiness {
    pub(super) token: Token,
    pub(super) ready: Ready,
}

impl Readiness {
    /// Returns the name that the registration or timer was given.
    pub fn token(&self) -> Token {
        self.token
    }

    /// Returns whether a read would not wait.
    pub fn is_readable(&self) -> bool {
        self.ready.intersects(Ready::READABLE)
    }

    /// Returns whether a write would not wait.
    pub fn is_writable(&self) -> bool {
        self.ready.intersects(Ready::WRITABLE)
    }

    /// Returns whether the end of the stream can be read, or the other side of the channel is gone.
    pub fn is_end(&self) -> bool {
        self.ready.intersects(Ready::END)
    }

    /// Returns whether the connection has failed; the next call reports why.
    pub fn is_failed(&self) -> bool {
        self.ready.intersects(Ready::FAILED)
    }

    /// Returns whether the peer has closed its direction; received data may still be there.
    pub fn is_read_closed(&self) -> bool {
        self.ready.intersects(Ready::READ_CLOSED)
    }

    /// Returns whether the connection is over in both directions.
    pub fn is_hung_up(&self) -> bool {
        self.ready.intersects(Ready::HUNG_UP)
    }

    /// Returns whether this is a timer.
    pub fn is_timer(&self) -> bool {
        self.ready.intersects(Ready::TIMER)
    }
}
