//! One direction of a bad link: which frames are lost, duplicated, damaged or reordered, and when
//! each arrives.
//!
//! Owns [`Link`], a pure queue of frames: time in nanoseconds and the seed are arguments, so the
//! same frames at the same times are treated the same. Steps, in this order: loss, duplication,
//! corruption (of each copy independently), the rate with its queue, delay with jitter. Frames keep
//! their order except those picked for reordering, which wait longer than the others. Memory is
//! bounded: at most [`MAX_HELD`] frames, each at most as long as the switch allows.

use std::collections::{BTreeMap, VecDeque};

/// Maximum number of frames that one direction holds; further ones are dropped and counted. At 1500
/// bytes, 24 MiB.
pub const MAX_HELD: usize = 16 * 1024;
/// Certainty, in parts per billion.
pub(super) const CERTAIN_PPB: u32 = 1_000_000_000;

/// What a direction does to its frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkSpec {
    /// Probability that a frame is lost, in parts per billion.
    pub loss_ppb: u32,
    /// Probability that a frame arrives twice, in parts per billion.
    pub duplicate_ppb: u32,
    /// Probability that one bit of a frame is flipped, in parts per billion.
    pub corrupt_ppb: u32,
    /// Probability that a frame is held back for `reorder_delay_ns` while others pass, in parts per
    /// billion.
    pub reorder_ppb: u32,
    /// Additional delay of a reordered frame.
    pub reorder_delay_ns: u64,
    /// Delay of every frame.
    pub delay_ns: u64,
    /// Maximum additional delay, uniformly distributed. Jitter does not reorder frames.
    pub jitter_ns: u64,
    /// Bits per second; 0 means unlimited.
    pub rate_bps: u64,
    /// Maximum number of frames that wait for the rate; further ones are dropped at the tail of the
    /// queue.
    pub queue_frames: u32,
}

impl Default for LinkSpec {
    fn default() -> Self {
        Self {
            loss_ppb: 0,
            duplicate_ppb: 0,
            corrupt_ppb: 0,
            reorder_ppb: 0,
            reorder_delay_ns: 1_000_000,
            delay_ns: 0,
            jitter_ns: 0,
            rate_bps: 0,
            queue_frames: 1000,
        }
    }
}

impl LinkSpec {
    /// Returns whether any frame may be treated otherwise than on a good network.
    pub(super) fn impairs(&self) -> bool {
        [self.loss_ppb, self.duplicate_ppb, self.corrupt_ppb, self.reorder_ppb].iter().any(|&ppb| ppb > 0)
            || [self.delay_ns, self.jitter_ns, self.rate_bps].iter().any(|&value| value > 0)
    }
}

/// Counters of one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Frames that entered the link.
    pub offered: u64,
    /// Frames (and second copies) that left the link.
    pub passed: u64,
    /// Frames lost by chance.
    pub lost: u64,
    /// Frames duplicated.
    pub duplicated: u64,
    /// Frames with a flipped bit.
    pub corrupted: u64,
    /// Frames held back.
    pub reordered: u64,
    /// Frames dropped because the queue for the rate was full.
    pub queue_full: u64,
    /// Frames dropped because [`MAX_HELD`] frames were in the link already.
    pub held_full: u64,
}

/// SplitMix64 (Steele, Lea and Flood, OOPSLA'14).
#[derive(Debug, Clone)]
struct Rng(u64);

impl Rng {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `bound`, uniformly distributed; `bound` is above 0.
    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.roll()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns true with this probability. Draws a number even when the outcome is certain, so that
    /// changing one probability leaves the other draws as they were.
    fn chance(&mut self, ppb: u32) -> bool {
        self.below(CERTAIN_PPB.into()) < ppb.into()
    }
}

/// See the module documentation.
#[derive(Debug)]
pub struct Link {
    spec: LinkSpec,
    rng: Rng,
    /// Frames in flight, by arrival time and then by order of entry.
    held: BTreeMap<(u64, u64), Vec<u8>>,
    next_number: u64,
    /// Times at which frames that wait for the rate, or are being sent, will have been sent.
    departures: VecDeque<u64>,
    /// Latest arrival of a frame that keeps its order.
    last_arrival: u64,
    counters: LinkCounters,
}

impl Link {
    /// Returns an empty link.
    pub fn new(spec: LinkSpec, seed: u64) -> Self {
        Self {
            spec,
            rng: Rng(seed),
            held: BTreeMap::new(),
            next_number: 0,
            departures: VecDeque::new(),
            last_arrival: 0,
            counters: LinkCounters::default(),
        }
    }

    /// Takes a frame that is sent at `now_ns`, which never decreases.
    pub fn offer(&mut self, now_ns: u64, frame: &[u8]) {
        self.counters.offered += 1;
        let spec = self.spec;
        if self.rng.chance(spec.loss_ppb) {
            self.counters.lost += 1;
            return;
        }
        if self.rng.chance(spec.duplicate_ppb) {
            self.counters.duplicated += 1;
            self.send(now_ns, frame.to_vec());
        }
        self.send(now_ns, frame.to_vec());
    }

    fn send(&mut self, now_ns: u64, mut frame: Vec<u8>) {
        if self.rng.chance(self.spec.corrupt_ppb) && !frame.is_empty() {
            let bit = self.rng.below(frame.len() as u64 * 8) as usize;
            frame[bit / 8] ^= 1 << (bit % 8);
            self.counters.corrupted += 1;
        }
        if self.held.len() >= MAX_HELD {
            self.counters.held_full += 1;
            return;
        }
        let Some(departure) = self.depart(now_ns, frame.len()) else {
            self.counters.queue_full += 1;
            return;
        };
        let jitter = if self.spec.jitter_ns > 0 { self.rng.below(self.spec.jitter_ns + 1) } else { 0 };
        let arrival = departure + self.spec.delay_ns + jitter;
        let arrival = if self.rng.chance(self.spec.reorder_ppb) {
            self.counters.reordered += 1;
            arrival.max(self.last_arrival) + self.spec.reorder_delay_ns
        } else {
            self.last_arrival = self.last_arrival.max(arrival);
            self.last_arrival
        };
        self.held.insert((arrival, self.next_number), frame);
        self.next_number += 1;
    }

    /// Returns when a frame of `len` bytes will have been sent at the link's rate; `None` if the
    /// queue for the rate is full.
    fn depart(&mut self, now_ns: u64, len: usize) -> Option<u64> {
        if self.spec.rate_bps == 0 {
            return Some(now_ns);
        }
        while self.departures.front().is_some_and(|&departure| departure <= now_ns) {
            self.departures.pop_front();
        }
        // The frame being sent does not count as waiting.
        if self.departures.len() > self.spec.queue_frames as usize {
            return None;
        }
        let start = self.departures.back().map_or(now_ns, |&last| last.max(now_ns));
        let takes = (len as u128 * 8 * 1_000_000_000).div_ceil(self.spec.rate_bps.into()) as u64;
        self.departures.push_back(start + takes);
        Some(start + takes)
    }

    /// Returns the next frame that has arrived by `now_ns`.
    pub fn poll(&mut self, now_ns: u64) -> Option<Vec<u8>> {
        let first = self.held.first_entry().filter(|entry| entry.key().0 <= now_ns)?;
        self.counters.passed += 1;
        Some(first.remove())
    }

    /// Returns when the next frame arrives.
    pub fn next_arrival(&self) -> Option<u64> {
        self.held.first_key_value().map(|(key, _)| key.0)
    }

    /// Returns the counters.
    pub fn counters(&self) -> LinkCounters {
        self.counters
    }

    /// Checks that every frame that entered is accounted for.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let c = self.counters;
        let gone = c.lost + c.queue_full + c.held_full + c.passed + self.held.len() as u64;
        assert_eq!(c.offered + c.duplicated, gone, "{c:?}");
        assert!(self.held.len() <= MAX_HELD);
        assert!(self.departures.len() <= self.spec.queue_frames as usize + 1);
    }
}

#[cfg(test)]
mod tests;
