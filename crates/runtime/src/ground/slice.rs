//! Decides when a poll point reads the clock: a pure function of the number of poll points and the
//! time.
//!
//! Reading the cycle counter takes 10 to 20 ns in a virtual machine, ten times a poll point's cost.
//! So poll points are counted, and the clock is read after the number of poll points that is
//! expected to take half of the rest of the quantum. Their distance is that between the last two
//! looks. Code whose poll points are suddenly further apart is noticed late, by at most
//! [`MAX_POLLS`] of them.
//!
//! A turn shorter than a quarter of the quantum never looks at the clock.

use tailwater_shm::Cycles;

/// Maximum number of poll points between two looks.
pub const MAX_POLLS: u32 = 128;
/// The first look is due after a quarter of the quantum.
const FIRST_SHARE: Cycles = 4;
/// Shortest time between two looks, as a share of the quantum.
const LEAST_SHARE: Cycles = 16;

/// The time slice of the thread that a kthread runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Slice {
    turn: u64,
    began: Cycles,
    looked: Cycles,
    /// Cycles from one poll point to the next.
    distance: Cycles,
    /// Poll points until the next look.
    pub next: u32,
    /// Poll points until the first look at a later turn.
    pub first: u32,
}

impl Slice {
    /// Looks at the clock, at a poll point of turn `turn` with `left` counted poll points to go.
    /// Returns whether the turn has lasted for `quantum`.
    pub fn look(&mut self, turn: u64, left: u32, now: Cycles, quantum: Cycles) -> bool {
        self.measure(turn, left, now, quantum / FIRST_SHARE);
        let spent = now.saturating_sub(self.began);
        self.next = self.polls_in((quantum.saturating_sub(spent) / 2).max(quantum / LEAST_SHARE));
        self.first = self.polls_in(quantum / FIRST_SHARE);
        spent >= quantum
    }

    /// Looks at the clock, as [`look`](Self::look), in a turn without a quantum: the next look is
    /// due after about `interval`, and so is the first one of a later turn.
    pub fn pace(&mut self, turn: u64, left: u32, now: Cycles, interval: Cycles) {
        self.measure(turn, left, now, interval);
        self.next = self.polls_in(interval);
        self.first = self.next;
    }

    /// Counts the poll points since the last look. A turn that this look is the first of began at
    /// most `longest` ago.
    fn measure(&mut self, turn: u64, left: u32, now: Cycles, longest: Cycles) {
        let same = turn == self.turn;
        let polls = Cycles::from(if same { self.next } else { self.first }.saturating_sub(left).max(1));
        if same {
            self.distance = (now.saturating_sub(self.looked) / polls).max(1);
        } else {
            self.turn = turn;
            self.began = now.saturating_sub((self.distance * polls).min(longest));
        }
        self.looked = now;
    }

    fn polls_in(&self, time: Cycles) -> u32 {
        (time / self.distance.max(1)).clamp(1, MAX_POLLS.into()) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUANTUM: Cycles = 10_000;

    /// Runs one turn with poll points `distance` apart; returns when it was over, and the number of
    /// looks.
    fn run(slice: &mut Slice, turn: u64, start: Cycles, distance: Cycles) -> (Cycles, u32) {
        let (mut left, mut now) = (slice.first.max(1), start);
        for looks in 1.. {
            now += Cycles::from(left) * distance;
            if slice.look(turn, 0, now, QUANTUM) {
                return (now - start, looks);
            }
            left = slice.next;
        }
        unreachable!()
    }

    #[test]
    fn a_turn_ends_within_a_sixteenth_after_its_quantum_and_a_few_looks() {
        for distance in [25, 100, 700, 3_000] {
            let mut slice = Slice::default();
            run(&mut slice, 1, 50, distance);
            for turn in 2..20 {
                let (took, looks) = run(&mut slice, turn, turn * 1_000_000, distance);
                assert!(took >= QUANTUM, "{took} at {distance}");
                let late = (QUANTUM / LEAST_SHARE + FIRST_SHARE).max(distance) + distance;
                assert!(took <= QUANTUM + late, "{took} at {distance}");
                assert!(looks <= 8, "{looks} at {distance}");
            }
        }
    }

    #[test]
    fn a_turn_without_a_quantum_looks_once_per_interval() {
        let (mut slice, mut now, mut last) = (Slice::default(), 5, 0);
        for look in 0..20 {
            now += Cycles::from(slice.next.max(1)) * 100;
            slice.pace(1, 0, now, 2_500);
            assert!(look < 3 || now - last == 2_500, "{} at look {look}", now - last);
            last = now;
        }
    }

    #[test]
    fn rare_poll_points_all_look() {
        let mut slice = Slice::default();
        assert_eq!(run(&mut slice, 1, 5, 20_000).1, 2, "the first look learns when the turn began");
        assert_eq!((slice.next, slice.first), (1, 1));
    }

    #[test]
    fn many_poll_points_between_two_looks_are_bounded() {
        let mut slice = Slice::default();
        run(&mut slice, 1, 5, 1);
        assert_eq!(slice.first, MAX_POLLS);
    }
}
