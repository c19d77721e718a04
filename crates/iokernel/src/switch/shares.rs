//! The shares of the programs that send to one ingress ring, or to one queue of a port.
//!
//! Owns [`Shares`], a ring's account of who fills it, and the rule by which a frame of a program is
//! refused although the ring has room. Frames of ports are not counted: they have the whole ring,
//! of which programs always leave a part. The programs of one user by one grant have one share
//! ([`Party`](crate::party::Party)), of which each has an equal part.
//!
//! A ring that is at most [`CALM`] full, as rings are whose receiver keeps up, has no account.
//! Above that there are *epochs*. One ends when the receiver has read all that was in the ring when
//! it began, and in each a program may put an equal share of [`EPOCH`] of the ring. So the ring
//! holds what was put before the account began and the shares of two epochs at most, and as many
//! lines of each sender leave it. A program that sends no more than its share in an epoch loses
//! nothing, whatever the others send. One that sends alone may fill [`ALONE`] of the ring, as a TCP
//! window presumes; one that joins it finds the rest of the ring free, where each may put half its
//! share.
//!
//! # Programs of one user
//!
//! A program may put more than its *part*, the user's share divided by the user's programs, out of
//! what its fellows leave: as much as they put within their parts in the epoch before is reserved
//! for them, and [`SLACK`] of the share for fellows that did not send then. So a program within its
//! part loses nothing whatever its fellows send, unless those within their parts together put more
//! by over [`SLACK`] than in the epoch before; after a few epochs all their parts are reserved.
//! Other users see one sender that keeps to its share.
//!
//! An epoch's number of senders holds for the next one, unless more than a ring was read in
//! between: then they are as good as gone.
//!
//! All numbers are the IOKernel's own but the receiver's position, which the ring checks: a false
//! one changes only what the receiver itself gets.

use tailwater_shm::ring::Producer;

use crate::party::Member;
use crate::port::{Port, SendQueue};

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
/// what all programs together may put in an epoch,
const EPOCH: u32 = 3;
/// and up to which a program may fill it that sends alone.
const ALONE: u32 = 6;
const PARTS: u32 = 8;
/// 1 / `LEFT` of a ring is left to ports, however many programs begin to send.
const LEFT: u32 = 16;
/// 1 / `SLACK` of a user's share is left to those of its programs that begin to send.
const SLACK: u32 = 8;

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    /// Position of the ring's head when the epoch began.
    began: u64,
    epoch: u32,
    /// Number of parties that put frames in the epoch before, and in this one.
    senders: (u32, u32),
    /// The same of programs.
    programs: (u32, u32),
    /// Lines that each party may put in this epoch: a division for each frame would cost as much as
    /// the rest of the account.
    share: u32,
    /// By number of the party.
    put: Vec<Put>,
    /// By number of the program: those of parties of several.
    put_by_program: Vec<PutByProgram>,
}

/// The part of a ring that a party has filled.
#[derive(Debug, Clone, Copy, Default)]
struct Put {
    epoch: u32,
    lines: u32,
    /// Lines that its programs have put within their parts in this epoch,
    modest: u32,
    /// and in the epoch before.
    reserved: u32,
}

/// The part of a ring that a program of a party with several programs has filled.
#[derive(Debug, Clone, Copy, Default)]
struct PutByProgram {
    epoch: u32,
    lines: u32,
}

impl Shares {
    /// Returns whether a ring of `size` lines may take so many more lines from program `from`, and
    /// counts them if so.
    #[inline(always)]
    pub(super) fn admit(&mut self, ring: &mut impl Filled, size: u32, from: Member, lines: u32) -> bool {
        ring.filled() <= size / PARTS * CALM || self.admit_to_filled(ring, size, from, lines)
    }

    fn admit_to_filled(&mut self, ring: &mut impl Filled, size: u32, from: Member, lines: u32) -> bool {
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
        let before = |(_, now): (u32, u32)| (if is_recent { now } else { 0 }, 0);
        (self.senders, self.programs) = (before(self.senders), before(self.programs));
        self.began = head;
    }

    /// As [`admit`](Self::admit), for a ring with this head, in which so many lines are not read.
    fn count(&mut self, head: u64, filled: u32, size: u32, from: Member, lines: u32) -> bool {
        let part = |parts| size / PARTS * parts;
        if filled <= part(CALM) {
            return true;
        }
        if self.is_over(head, filled) {
            self.begin_epoch(head, filled, size);
        }
        let past = self.epoch.wrapping_sub(1);
        let put = entry(&mut self.put, from.party.0, Put { epoch: past, ..Put::default() });
        if put.epoch != self.epoch {
            let reserved = if put.epoch == past { put.modest } else { 0 };
            *put = Put { epoch: self.epoch, lines: 0, modest: 0, reserved };
            self.senders.1 += 1;
            self.programs.1 += u32::from(from.programs == 1);
            self.share = part(EPOCH) / self.senders.0.max(self.senders.1);
        }
        if filled + lines > size - size / LEFT {
            return false;
        }
        let fits = filled + lines <= part(ALONE);
        let share = if fits { self.share } else { self.share / 2 };
        // A share may be smaller than a frame, and lines without a record at the end of the ring
        // are among those that are filled.
        let first = put.lines == 0 && fits;
        let within = put.lines + lines <= share;
        if from.programs == 1 {
            let alone = self.programs.0.max(self.programs.1) == 1;
            let may = first || within || alone && filled < part(ALONE);
            if may {
                put.lines += lines;
            }
            return may;
        }
        let none = PutByProgram { epoch: past, lines: 0 };
        let own = entry(&mut self.put_by_program, from.program.0, none);
        if own.epoch != self.epoch {
            *own = PutByProgram { epoch: self.epoch, lines: 0 };
            self.programs.1 += 1;
        }
        let alone = self.programs.0.max(self.programs.1) == 1;
        let has_part = |share: u32| u64::from(own.lines + lines) * u64::from(from.programs) <= share.into();
        let modest = has_part(share) || own.lines == 0 && fits;
        let is_only_party = self.senders.0.max(self.senders.1) == 1;
        let left = put.reserved.saturating_sub(put.modest);
        let in_excess = put.lines + lines + left <= share - share / SLACK;
        let may = first
            || modest && within
            // Beside a fellow that was alone; another party that joins must find room, too.
            || is_only_party && has_part(if fits { share } else { share / 2 })
            || in_excess
            || alone && filled < part(ALONE);
        if may {
            put.lines += lines;
            own.lines += lines;
            put.modest += if modest { lines } else { 0 };
        }
        may
    }
}

/// Returns the entry of this number; those that are missing are made as `past`.
#[inline(always)]
fn entry<T: Copy>(entries: &mut Vec<T>, number: u32, past: T) -> &mut T {
    let at = number as usize;
    if at >= entries.len() {
        entries.resize(at + 1, past);
    }
    &mut entries[at]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::party::PartyId;
    use tailwater_sched::RuntimeId;

    const SIZE: u32 = 512;

    /// A ring without bytes.
    #[derive(Default)]
    struct Ring {
        shares: Shares,
        /// The senders of the lines that are not read.
        lines: std::collections::VecDeque<u32>,
        head: u64,
        /// Its size as a multiple of [`SIZE`], as a power of two.
        scale: u32,
        lost: [u32; 17],
        read: [u32; 17],
    }

    impl Ring {
        fn put(&mut self, from: u32) {
            self.put_of(Member { program: RuntimeId(from), party: PartyId(from), programs: 1 });
        }

        /// Puts a line of one of several programs of a party.
        fn put_of(&mut self, from: Member) {
            let (filled, program) = (self.lines.len() as u32, from.program.0);
            let size = SIZE << self.scale;
            let may = self.shares.count(self.head, filled, size, from, 1);
            if may && filled < size {
                self.lines.push_back(program);
                self.head += 1;
            } else {
                self.lost[program as usize] += 1;
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

    /// Program `n` of a user's; their numbers begin at 1, behind a stranger's.
    fn fellow(n: u32, programs: u32) -> Member {
        Member { program: RuntimeId(n + 1), party: PartyId(1), programs }
    }

    /// The first of a user's programs sends without end, the others nine tenths of an equal part
    /// each, all beside a stranger that sends without end, if there is one. Returns the lines that
    /// the others lost.
    fn lost_beside_a_greedy_fellow(programs: u32, stranger: bool, divided: bool) -> u32 {
        let of = |n| fellow(n, if divided { programs } else { 1 });
        // As large as a program's by default: small parts are whole numbers of lines.
        let (mut ring, mut due) = (Ring { scale: 3, ..Ring::default() }, 0);
        for pass in 0..8_000 {
            (0..16).for_each(|_| ring.put_of(of(0)));
            if stranger {
                (0..16).for_each(|_| ring.put(0));
            }
            // 16 lines are read in each pass.
            due += 16 * 9 / if stranger { 2 } else { 1 };
            while due >= 10 * programs {
                (1..programs).for_each(|n| ring.put_of(of(n)));
                due -= 10 * programs;
            }
            ring.read(16);
            if pass < 1_000 {
                // Until all parts are reserved.
                ring.lost = [0; 17];
            }
        }
        assert!(ring.lost[1] > 0);
        ring.lost[2..].iter().sum()
    }

    #[test]
    fn a_program_within_its_part_loses_nothing_beside_a_greedy_one_of_its_user() {
        for programs in [2, 4, 16] {
            for stranger in [false, true] {
                assert_eq!(lost_beside_a_greedy_fellow(programs, stranger, true), 0, "{programs} {stranger}");
            }
            assert!(lost_beside_a_greedy_fellow(programs, true, false) > 0, "where the share is not divided");
        }
    }

    #[test]
    fn a_program_that_sends_seldom_loses_nothing_beside_a_greedy_one_of_its_user() {
        for stranger in [false, true] {
            let mut ring = Ring::default();
            for pass in 0..4_000 {
                (0..16).for_each(|_| ring.put_of(fellow(0, 16)));
                if stranger {
                    (0..16).for_each(|_| ring.put(0));
                }
                if pass % 97 == 0 {
                    ring.put_of(fellow(1 + pass % 15, 16));
                }
                ring.read(16);
            }
            assert_eq!(ring.lost[2..].iter().sum::<u32>(), 0, "{stranger}");
        }
    }

    #[test]
    fn a_stranger_that_joins_a_ring_that_one_user_has_filled_has_room() {
        for programs in [2, 16] {
            let mut ring = Ring::default();
            (0..SIZE).for_each(|_| ring.put_of(fellow(0, programs)));
            // Nothing is read.
            for _ in 0..SIZE {
                (0..programs).for_each(|n| ring.put_of(fellow(n, programs)));
            }
            assert!(ring.lines.len() as u32 > SIZE / 4 * 3, "its other programs have room, too");
            (0..SIZE).for_each(|_| ring.put(0));
            let joined = ring.lines.iter().filter(|&&from| from == 0).count() as u32;
            assert_eq!(joined, SIZE / 8 * 3 / 2 / 2, "{programs}");
        }
    }

    #[test]
    fn a_busy_program_has_what_its_fellows_leave_of_the_share() {
        let mut ring = Ring::default();
        for _ in 0..10_000 {
            (0..16).for_each(|_| ring.put_of(fellow(0, 16)));
            (0..16).for_each(|_| ring.put(0));
            ring.read(16);
        }
        let (busy, all) = (ring.read[1], ring.read[0] + ring.read[1]);
        assert!(busy * 100 / all >= 46, "{busy} of {all}");
    }

    #[test]
    fn programs_of_one_user_that_send_by_turns_take_nothing_from_a_stranger_within_its_share() {
        for period in [8, 12, 16, 24, 48, 96] {
            let (mut ring, mut due) = (Ring::default(), 0);
            for pass in 0..10_000 {
                let all = pass / period % 2 == 0;
                for _ in 0..16 {
                    (0..if all { 16 } else { 1 }).for_each(|n| ring.put_of(fellow(n, 16)));
                }
                due += 16 * 9;
                (0..due / 20).for_each(|_| ring.put(0));
                due %= 20;
                ring.read(16);
                if pass < 100 {
                    // The ring was full when the stranger joined.
                    ring.lost[0] = 0;
                }
            }
            assert_eq!(ring.lost[0], 0, "{period} passes each");
        }
    }
}
