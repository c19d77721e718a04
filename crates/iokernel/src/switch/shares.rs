//! The shares of the programs that send to one ingress ring, or to one queue of a port.
//!
//! Owns [`Shares`], a ring's account of who fills it, and the rule by which a frame of a program is
//! refused although the ring has room. Frames of ports are not counted: they have the whole ring,
//! of which programs always leave a part. All programs of one [tenant](crate::tenant) have one
//! share together.
//!
//! A ring that is at most [`CALM`] full, as rings are whose receiver keeps up, has no account.
//! Above that there are *epochs*. One ends when the receiver has read all that was in the ring when
//! it began, and in each a tenant may put an equal share of [`EPOCH`] of the ring. So the ring
//! holds what was put before the account began and the shares of two epochs at most, and as many
//! lines of each sender leave it. A tenant that sends no more than its share in an epoch loses
//! nothing, whatever the others send. One that sends alone may fill [`ALONE`] of the ring, as a TCP
//! window presumes; one that joins it finds the rest of the ring free, where each may put half its
//! share.
//!
//! An epoch's number of senders holds for the next one, unless more than a ring was read in
//! between: then they are as good as gone.
//!
//! All numbers are the IOKernel's own but the receiver's position, which the ring checks: a false
//! one changes only what the receiver itself gets.

use tailwater_ports::{Port, SendQueue};
use tailwater_shm::ring::Producer;

use crate::tenant::TenantId;

/// A queue that senders share: an ingress ring, or a queue of a port.
pub(super) trait Filled {
    /// Returns how many lines were put so far.
    fn head(&self) -> u64;
    /// Returns how many of them were not read when they were last counted.
    fn filled(&self) -> u32;
    /// Counts anew what was read; returns false if that makes no sense.
    fn recount(&mut self) -> bool;
}

impl Filled for Producer {
    #[inline(always)]
    fn head(&self) -> u64 {
        self.position()
    }

    #[inline(always)]
    fn filled(&self) -> u32 {
        Self::filled(self)
    }

    fn recount(&mut self) -> bool {
        self.refresh().is_ok()
    }
}

/// A queue of a port, of which each frame is a line.
pub(super) struct PortQueue<'a> {
    pub(super) port: &'a mut dyn Port,
    pub(super) queue: SendQueue,
}

impl Filled for PortQueue<'_> {
    #[inline(always)]
    fn head(&self) -> u64 {
        self.queue.sent
    }

    #[inline(always)]
    fn filled(&self) -> u32 {
        self.queue.waiting
    }

    fn recount(&mut self) -> bool {
        // A port that does not count is always right.
        self.queue = self.port.recount(self.queue.number).unwrap_or(self.queue);
        true
    }
}

/// Parts of a ring, of [`PARTS`] in all: up to which there is no account,
const CALM: u32 = 1;
/// what all tenants together may put in an epoch,
const EPOCH: u32 = 3;
/// and up to which a tenant may fill it that sends alone.
const ALONE: u32 = 6;
const PARTS: u32 = 8;
/// 1 / `LEFT` of a ring is left to ports, however many programs begin to send.
const LEFT: u32 = 16;

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    /// Position of the ring's head when the epoch began.
    began: u64,
    epoch: u32,
    /// Number of tenants that put frames in the epoch before, and in this one.
    senders: (u32, u32),
    /// Lines that each tenant may put in this epoch: a division for each frame would cost as much
    /// as the rest of the account.
    share: u32,
    /// By number of the tenant.
    put: Vec<Put>,
}

/// The part of a ring that a tenant has filled.
#[derive(Debug, Clone, Copy, Default)]
struct Put {
    epoch: u32,
    lines: u32,
}

impl Shares {
    /// Returns whether a ring of `size` lines may take so many more lines from tenant `from`, and
    /// counts them if so.
    #[inline(always)]
    pub(super) fn admit(&mut self, ring: &mut impl Filled, size: u32, from: TenantId, lines: u32) -> bool {
        ring.filled() <= size / PARTS * CALM || self.admit_to_filled(ring, size, from, lines)
    }

    fn admit_to_filled(&mut self, ring: &mut impl Filled, size: u32, from: TenantId, lines: u32) -> bool {
        // An epoch begins only in a ring that is filled in fact, as far as its receiver says. An
        // impossible position is found when the frame is put.
        if self.is_over(ring.head(), ring.filled())
            && (!ring.recount() || ring.filled() <= size / PARTS * CALM)
        {
            return true;
        }
        if self.count(ring.head(), ring.filled(), size, from, lines) {
            return true;
        }
        // The receiver may have read on.
        !ring.recount() || self.count(ring.head(), ring.filled(), size, from, lines)
    }

    /// Returns whether all that was in the ring when the epoch began is read.
    fn is_over(&self, head: u64, filled: u32) -> bool {
        head - u64::from(filled) >= self.began
    }

    fn begin_epoch(&mut self, head: u64, filled: u32, size: u32) {
        self.epoch = self.epoch.wrapping_add(1);
        let is_recent = head - u64::from(filled) - self.began <= u64::from(size);
        self.senders = (if is_recent { self.senders.1 } else { 0 }, 0);
        self.began = head;
    }

    /// As [`admit`](Self::admit), for a ring with this head, in which so many lines are not read.
    fn count(&mut self, head: u64, filled: u32, size: u32, from: TenantId, lines: u32) -> bool {
        let part = |parts| size / PARTS * parts;
        if filled <= part(CALM) {
            return true;
        }
        if self.is_over(head, filled) {
            self.begin_epoch(head, filled, size);
        }
        let number = from.0 as usize;
        if number >= self.put.len() {
            // Of no present epoch.
            self.put.resize(number + 1, Put { epoch: self.epoch.wrapping_sub(1), lines: 0 });
        }
        let put = &mut self.put[number];
        if put.epoch != self.epoch {
            *put = Put { epoch: self.epoch, lines: 0 };
            self.senders.1 += 1;
            self.share = part(EPOCH) / self.senders.0.max(self.senders.1);
        }
        if filled + lines > size - size / LEFT {
            return false;
        }
        let fits = filled + lines <= part(ALONE);
        let share = if fits { self.share } else { self.share / 2 };
        let alone = self.senders.0.max(self.senders.1) == 1;
        // A share may be smaller than a frame, and lines without a record at the end of the ring
        // are among those that are filled.
        let first = put.lines == 0 && fits;
        let may = first || put.lines + lines <= share || alone && filled < part(ALONE);
        if may {
            put.lines += lines;
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u32 = 512;

    /// A ring without bytes.
    #[derive(Default)]
    struct Ring {
        shares: Shares,
        /// The senders of the lines that are not read.
        lines: std::collections::VecDeque<u32>,
        head: u64,
        lost: [u32; 17],
        read: [u32; 17],
    }

    impl Ring {
        fn put(&mut self, from: u32) {
            let filled = self.lines.len() as u32;
            let may = self.shares.count(self.head, filled, SIZE, TenantId(from), 1);
            if may && filled < SIZE {
                self.lines.push_back(from);
                self.head += 1;
            } else {
                self.lost[from as usize] += 1;
            }
        }

        fn read(&mut self, lines: usize) {
            let lines = lines.min(self.lines.len());
            self.lines.drain(..lines).for_each(|from| self.read[from as usize] += 1);
        }
    }

    #[test]
    fn whoever_sends_alone_has_three_quarters_of_the_ring_and_one_that_joins_has_room() {
        let mut ring = Ring::default();
        (0..SIZE).for_each(|_| ring.put(1));
        assert_eq!(ring.lines.len() as u32, SIZE / 4 * 3);
        // Nothing is read.
        (0..SIZE).for_each(|_| [1, 0].into_iter().for_each(|from| ring.put(from)));
        let joined = ring.lines.iter().filter(|&&from| from == 0).count() as u32;
        assert_eq!(joined, SIZE / 8 * 3 / 2 / 2);
        assert!((ring.lines.len() as u32) < SIZE);
    }

    #[test]
    fn greedy_senders_get_equal_shares_of_what_is_read() {
        for greedy in [1, 2, 4, 8_u32] {
            let mut ring = Ring::default();
            for _ in 0..10_000 {
                (0..=greedy).for_each(|from| (0..8).for_each(|_| ring.put(from)));
                ring.read(16);
            }
            let fair = 160_000 / (greedy + 1);
            for from in 0..=greedy {
                let read = ring.read[from as usize];
                assert!(read.abs_diff(fair) < fair / 20, "{read} of {fair} lines, {greedy} others");
            }
        }
    }

    #[test]
    fn a_sender_within_its_share_loses_nothing() {
        for greedy in [1, 2, 4, 8_u32] {
            let (mut ring, mut due) = (Ring::default(), 0);
            for _ in 0..10_000 {
                (1..=greedy).for_each(|from| (0..16).for_each(|_| ring.put(from)));
                // 16 lines are read in each pass.
                due += 15;
                (0..due / (greedy + 1)).for_each(|_| ring.put(0));
                due %= greedy + 1;
                ring.read(16);
            }
            assert_eq!(ring.lost[0], 0, "{greedy} others");
            assert!(ring.lost[1..=greedy as usize].iter().all(|&lost| lost > 0));
        }
    }

    #[test]
    fn senders_that_are_long_gone_take_nothing_from_one_that_sends_alone() {
        let mut ring = Ring::default();
        (0..SIZE).for_each(|at| ring.put(at % 8));
        ring.read(SIZE as usize);
        let mut alone = |calm: u32| {
            (0..calm).for_each(|_| {
                ring.put(0);
                ring.read(1);
            });
            (0..SIZE).for_each(|_| ring.put(0));
            let filled = ring.lines.len() as u32;
            ring.read(SIZE as usize);
            filled
        };
        assert!(alone(0) < SIZE / 4, "just now there were eight");
        assert_eq!(alone(2 * SIZE), SIZE / 4 * 3);
    }

    #[test]
    fn a_ring_whose_receiver_keeps_up_has_no_account() {
        let mut ring = Ring::default();
        for _ in 0..1_000 {
            (0..9).for_each(|from| ring.put(from));
            ring.read(9);
        }
        assert_eq!((ring.lost, ring.shares.put.len()), ([0; 17], 0));
    }
}
