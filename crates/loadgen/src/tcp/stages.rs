//! The stages of a request's time: stamps at each boundary that can be seen without touching the
//! measured system.
//!
//! Owns the stamps that a service writes into its echo ([`Stamps`]) and the histograms of the parts
//! ([`Stages`]). All stamps are readings of one time-stamp counter, shared by all processes of a
//! machine. A reading takes some 20 cycles, and is part of the stage it ends.

use hdrhistogram::Histogram;
use tailwater_shm::Cycles;

/// The stamps that a service writes into the first 24 bytes of an echo.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stamps {
    /// Time at which the request had been read.
    pub received: Cycles,
    /// Time at which the echo was handed over.
    pub replied: Cycles,
    /// End of handing over the *previous* echo; zero in the first.
    pub last_sent: Cycles,
}

impl Stamps {
    /// Their length in bytes.
    pub const LEN: usize = 24;

    /// Writes them into the beginning of `payload`.
    ///
    /// # Panics
    /// If it is shorter than [`LEN`](Self::LEN).
    pub fn encode(&self, payload: &mut [u8]) {
        for (at, stamp) in [self.received, self.replied, self.last_sent].into_iter().enumerate() {
            payload[at * 8..at * 8 + 8].copy_from_slice(&stamp.to_le_bytes());
        }
    }

    /// Reads them; `None` if `payload` is too short.
    pub fn decode(payload: &[u8]) -> Option<Self> {
        let (words, _) = payload.as_chunks::<8>();
        let &[received, replied, last_sent, ..] = words else { return None };
        let [received, replied, last_sent] = [received, replied, last_sent].map(u64::from_le_bytes);
        Some(Self { received, replied, last_sent })
    }
}

/// Names of the stages, in order.
pub const STAGES: [&str; 7] = [
    "client_tcp_out",
    "switch_in",
    "ring_tcp_in_wake",
    "application",
    "tcp_out",
    "ring_switch_out",
    "client_tcp_in",
];

/// Cycles of each stage of a request, one connection, one outstanding.
#[derive(Debug, Clone)]
pub struct Stages {
    cycles: [Histogram<u64>; STAGES.len()],
    /// Of the request under way: handed to the client's TCP, and its frame given to the switch and
    /// taken by it.
    asked: Cycles,
    injected: [Cycles; 2],
    /// When the last echo's frame came back, and was handed over.
    last_replied: Cycles,
    last_returned: Cycles,
}

impl Default for Stages {
    fn default() -> Self {
        let histogram = || Histogram::new_with_bounds(1, 1 << 36, 3).expect("constant bounds are in range");
        Self {
            cycles: std::array::from_fn(|_| histogram()),
            asked: 0,
            injected: [0; 2],
            last_replied: 0,
            last_returned: 0,
        }
    }
}

impl Stages {
    /// Returns the median of stage `number` in cycles; 0 if nothing was measured.
    pub fn median(&self, number: usize) -> u64 {
        let histogram = &self.cycles[number];
        if histogram.is_empty() { 0 } else { histogram.value_at_quantile(0.5) }
    }

    /// A request was handed to the client's TCP; said again with other frames until the next.
    pub(super) fn on_asked(&mut self, at: Cycles) {
        if at != self.asked {
            (self.asked, self.injected) = (at, [0; 2]);
        }
    }

    /// A frame was given to the switch, and taken. The first after a request carries it.
    pub(super) fn on_injected(&mut self, from: Cycles, to: Cycles) {
        if self.injected[0] == 0 {
            self.injected = [from, to];
        }
    }

    /// The echo's frame came at `returned` and was read by `done`.
    pub(super) fn on_answered(&mut self, stamps: Stamps, returned: Cycles, done: Cycles) {
        let Self { asked, injected: [from, to], .. } = *self;
        let whole = stamps.last_sent != 0 && self.last_returned != 0 && from >= asked && from != 0;
        if whole {
            let parts = [
                (asked, from),
                (from, to),
                (to, stamps.received),
                (stamps.received, stamps.replied),
                (self.last_replied, stamps.last_sent),
                (stamps.last_sent, self.last_returned),
                (returned, done),
            ];
            for (histogram, (from, to)) in self.cycles.iter_mut().zip(parts) {
                histogram.saturating_record(to.saturating_sub(from));
            }
        }
        (self.last_replied, self.last_returned) = (stamps.replied, returned);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stage_is_from_one_stamp_to_the_next() {
        let mut stages = Stages::default();
        for base in [1_000, 2_000, 3_000] {
            stages.on_asked(base);
            stages.on_injected(base + 1, base + 3);
            stages.on_injected(base + 900, base + 950);
            let last_sent = if base == 1_000 { 0 } else { base - 1_000 + 28 };
            let stamps = Stamps { received: base + 7, replied: base + 15, last_sent };
            stages.on_answered(stamps, base + 60, base + 124);
        }
        let medians: Vec<u64> = (0..STAGES.len()).map(|number| stages.median(number)).collect();
        assert_eq!(medians, [1, 2, 4, 8, 13, 32, 64]);
    }

    #[test]
    fn stamps_read_back() {
        let stamps = Stamps { received: 1, replied: u64::MAX, last_sent: 3 };
        let mut payload = [0; 64];
        stamps.encode(&mut payload);
        assert_eq!(Stamps::decode(&payload), Some(stamps));
        assert_eq!(Stamps::decode(&payload[..23]), None);
    }
}
