//! Settings that few connections have, on the heap, so that the others do not pay for them.

use super::fast_open::FastOpening;
use super::{Connection, Events, MAX_ACK_DELAY, Set, micros, millis};
use crate::config::{Config, DEFAULT_ACK_DELAY, DEFAULT_USER_TIMEOUT, DEFAULT_WAIT, Keepalive};
use alloc::boxed::Box;
use core::time::Duration;

/// See the module's documentation. Times are in milliseconds unless their names say otherwise.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Rare {
    keepalive: Option<Probing>,
    /// The user timeout that was set, if one was.
    user_timeout: Option<u32>,
    time_wait: u32,
    fin_wait: u32,
    /// Longest delay of an ACK, in microseconds.
    ack_delay_us: u32,
    /// Unsent bytes above which no more are accepted; meaningful with [`Set::LOWAT`].
    notsent_lowat: u32,
    /// While a handshake with Fast Open is under way.
    fast_opening: Option<Box<FastOpening>>,
}

impl Default for Rare {
    fn default() -> Self {
        Self {
            keepalive: None,
            user_timeout: None,
            time_wait: millis(DEFAULT_WAIT),
            fin_wait: millis(DEFAULT_WAIT),
            ack_delay_us: micros(DEFAULT_ACK_DELAY),
            notsent_lowat: 0,
            fast_opening: None,
        }
    }
}

impl Rare {
    /// Returns what differs from the defaults; `None` if nothing does.
    pub fn of(config: &Config) -> Option<Box<Self>> {
        let timeout = config.user_timeout;
        let rare = Self {
            keepalive: config.keepalive.map(Into::into),
            user_timeout: (timeout != DEFAULT_USER_TIMEOUT).then(|| millis(timeout).max(1)),
            time_wait: millis(config.time_wait),
            fin_wait: millis(config.fin_wait),
            ack_delay_us: micros(config.delayed_ack.min(MAX_ACK_DELAY)),
            notsent_lowat: config.notsent_lowat.unwrap_or(0),
            fast_opening: None,
        };
        (rare != Self::default()).then(|| Box::new(rare))
    }
}

/// A [`Keepalive`] as stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Probing {
    idle: u32,
    interval: u32,
    pub probes: u8,
}

impl Probing {
    /// Returns the time without a segment from the peer until the probe after `sent` ones.
    pub fn after(&self, sent: u8) -> Duration {
        Duration::from_millis(u64::from(self.idle) + u64::from(self.interval) * u64::from(sent))
    }
}

impl From<Keepalive> for Probing {
    fn from(it: Keepalive) -> Self {
        Self { idle: millis(it.idle), interval: millis(it.interval), probes: it.probes }
    }
}

impl From<Probing> for Keepalive {
    fn from(it: Probing) -> Self {
        let ms = |ms: u32| Duration::from_millis(ms.into());
        Self { idle: ms(it.idle), interval: ms(it.interval), probes: it.probes }
    }
}

impl Connection {
    /// Returns how an idle connection is probed, if it is.
    #[inline]
    pub(super) fn probing(&self) -> Option<Probing> {
        self.rare.as_ref()?.keepalive
    }

    pub(super) fn set_probing(&mut self, keepalive: Option<Keepalive>) {
        self.change_rare(|rare| rare.keepalive = keepalive.map(Into::into));
    }

    /// Returns the user timeout that was set.
    #[inline]
    pub(super) fn own_user_timeout(&self) -> Option<Duration> {
        Some(Duration::from_millis(self.rare.as_ref()?.user_timeout?.into()))
    }

    pub(super) fn set_own_user_timeout(&mut self, timeout: Option<Duration>) {
        self.change_rare(|rare| rare.user_timeout = timeout.map(|timeout| millis(timeout).max(1)));
    }

    /// Returns the user timeout in force.
    #[inline]
    pub(super) fn user_timeout(&self) -> Duration {
        self.own_user_timeout().unwrap_or(DEFAULT_USER_TIMEOUT)
    }

    pub(super) fn time_wait_period(&self) -> Duration {
        self.rare.as_ref().map_or(DEFAULT_WAIT, |rare| Duration::from_millis(rare.time_wait.into()))
    }

    pub(super) fn fin_wait(&self) -> Duration {
        self.rare.as_ref().map_or(DEFAULT_WAIT, |rare| Duration::from_millis(rare.fin_wait.into()))
    }

    /// Returns the longest delay of an ACK on a long path.
    #[inline]
    pub(super) fn longest_ack_delay(&self) -> Duration {
        self.rare.as_ref().map_or(DEFAULT_ACK_DELAY, |rare| Duration::from_micros(rare.ack_delay_us.into()))
    }

    /// Returns the low-water mark of unsent data; meaningful with [`Set::LOWAT`].
    #[inline]
    pub(super) fn low_water(&self) -> u32 {
        self.rare.as_ref().map_or(0, |rare| rare.notsent_lowat)
    }

    /// Returns the low-water mark of unsent data, if there is one.
    pub fn notsent_lowat(&self) -> Option<u32> {
        self.set.contains(Set::LOWAT).then(|| self.low_water())
    }

    /// Sets the low-water mark of unsent data (TCP_NOTSENT_LOWAT), or removes it. With so many
    /// bytes unsent no more are accepted; below, as many as lead to the mark, and at least a
    /// segment. [`Events::WRITABLE`] follows when less than half of the mark is unsent. Zero is no
    /// mark.
    pub fn set_notsent_lowat(&mut self, bytes: Option<u32>) -> Events {
        let bytes = bytes.filter(|&bytes| bytes > 0);
        self.set.set(Set::LOWAT, bytes.is_some());
        self.change_rare(|rare| rare.notsent_lowat = bytes.unwrap_or(0));
        if self.has_room() { Events::WRITABLE } else { Events::empty() }
    }

    pub(super) fn fast_opening(&self) -> Option<&FastOpening> {
        self.rare.as_ref()?.fast_opening.as_deref()
    }

    pub(super) fn set_fast_opening(&mut self, opening: Option<Box<FastOpening>>) {
        self.change_rare(|rare| rare.fast_opening = opening);
    }

    pub(super) fn change_fast_opening(&mut self, change: impl FnOnce(&mut FastOpening)) {
        if let Some(opening) = self.rare.as_mut().and_then(|rare| rare.fast_opening.as_deref_mut()) {
            change(opening);
        }
    }

    fn change_rare(&mut self, change: impl FnOnce(&mut Rare)) {
        let mut rare = self.rare.take().unwrap_or_default();
        change(&mut rare);
        self.rare = (*rare != Rare::default()).then_some(rare);
    }

    /// Returns the bytes on the heap for these settings.
    pub(super) fn rare_bytes(&self) -> usize {
        self.rare.as_ref().map_or(0, |_| size_of::<Rare>())
    }
}
