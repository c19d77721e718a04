//! The scoreboard compared with one flag for each byte.

use alloc::vec::Vec;
use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Op {
    Push(u32),
    Ack(u32),
    Sack(u32, u32),
    Lose(u32),
    LoseFirst(u32),
    Resend(u32),
    Renege,
    Unmark,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (1_u32..40).prop_map(Op::Push),
        3 => (0_u32..60).prop_map(Op::Ack),
        6 => (0_u32..250, 1_u32..40).prop_map(|(at, len)| Op::Sack(at, len)),
        3 => (0_u32..20).prop_map(Op::Lose),
        1 => (1_u32..20).prop_map(Op::LoseFirst),
        6 => (1_u32..30).prop_map(Op::Resend),
        1 => Just(Op::Renege),
        1 => Just(Op::Unmark),
    ]
}

/// Per byte: its fate, its time of sending, and true if it was sent again.
type Naive = VecDeque<(Fate, u64, bool)>;

fn bytes(naive: &Naive, fate: Fate) -> u32 {
    naive.iter().filter(|byte| byte.0 == fate).count() as u32
}

fn apply(op: &Op, board: &mut Scoreboard, naive: &mut Naive, now: u64) -> Result<(), TestCaseError> {
    let una = board.una();
    let len = naive.len() as u32;
    match *op {
        Op::Push(bytes) => {
            board.push(Range::new(board.nxt(), bytes), Instant(now));
            naive.extend((0..bytes).map(|_| (Fate::InFlight, now, false)));
        }
        Op::Ack(bytes) => {
            let bytes = bytes.min(len);
            let mut new = 0;
            prop_assert_eq!(board.acknowledge(una + bytes, |sent| new += sent.len()), bytes);
            let expected = naive.drain(..bytes as usize).filter(|byte| byte.0 != Fate::Delivered).count();
            prop_assert_eq!(new as usize, expected);
        }
        Op::Sack(at, bytes) => {
            let mut seen = Vec::new();
            let new = board.deliver(Range::new(una + at, bytes), |sent| seen.push(*sent));
            let mut expected = 0;
            if at + bytes <= len {
                for index in at..at + bytes {
                    let byte = &mut naive[index as usize];
                    if byte.0 != Fate::Delivered {
                        let sent =
                            seen.iter().find(|sent| sent.start <= una + index && una + index < sent.end);
                        prop_assert_eq!(sent.map(|sent| (sent.fate, sent.again)), Some((byte.0, byte.2)));
                        prop_assert!(byte.2 || sent.is_some_and(|sent| sent.at.0 == byte.1));
                        expected += 1;
                    }
                    byte.0 = Fate::Delivered;
                }
            }
            prop_assert_eq!(new, expected);
        }
        Op::Lose(age) => {
            // Data that was reported and dropped forgets when it was sent, but not that it was sent
            // again.
            let lost = |at: u64, again: bool| again || at + u64::from(age) <= now;
            let new = board.mark_lost(|sent| Some(lost(sent.at.0, sent.again)));
            let mut expected = 0;
            for byte in naive.iter_mut().filter(|byte| byte.0 == Fate::InFlight && lost(byte.1, byte.2)) {
                byte.0 = Fate::Lost;
                expected += 1;
            }
            prop_assert_eq!(new, expected);
        }
        Op::LoseFirst(most) => {
            let applies = naive.front().is_some_and(|byte| byte.0 != Fate::Delivered && !byte.2);
            let before = bytes(naive, Fate::Lost);
            let new = board.mark_first_lost(most);
            for byte in naive.iter_mut().take(if applies { most as usize } else { 0 }) {
                if byte.0 == Fate::InFlight && !byte.2 {
                    byte.0 = Fate::Lost;
                }
            }
            prop_assert_eq!(new, bytes(naive, Fate::Lost) - before);
        }
        Op::Resend(bytes) => {
            let first = naive.iter().position(|byte| byte.0 == Fate::Lost);
            let next = board.next_lost();
            prop_assert_eq!(next.map(|range| (range.start - una) as usize), first);
            if let Some(range) = next {
                let range = Range::new(range.start, range.len().min(bytes));
                board.retransmit(range, Instant(now));
                for byte in naive.range_mut(first.expect("the same")..).take(range.len() as usize) {
                    prop_assert_eq!(byte.0, Fate::Lost);
                    *byte = (Fate::InFlight, now, true);
                }
            }
        }
        Op::Renege => {
            board.renege();
            for byte in naive.iter_mut().filter(|byte| byte.0 == Fate::Delivered) {
                (byte.0, byte.2) = (Fate::Lost, true);
            }
        }
        Op::Unmark => {
            board.unmark_lost();
            for byte in naive.iter_mut().filter(|byte| byte.0 == Fate::Lost) {
                byte.0 = Fate::InFlight;
            }
        }
    }
    Ok(())
}

/// Applies all operations and compares every byte after each.
fn run(iss: u32, ops: &[Op]) -> Result<(), TestCaseError> {
    let mut board = Scoreboard::new(Seq(iss));
    let mut naive = Naive::new();
    for (now, op) in ops.iter().enumerate() {
        apply(op, &mut board, &mut naive, now as u64)?;
        board.check();
        let fates: Vec<_> =
            board.ranges().flat_map(|sent| (0..sent.len()).map(|_| (sent.fate, sent.again))).collect();
        // Delivered data no longer records whether it was sent again.
        let expected = naive.iter().map(|byte| (byte.0, byte.2));
        for (index, (got, expected)) in fates.iter().zip(expected).enumerate() {
            prop_assert!(
                got.0 == expected.0 && (got.0 == Fate::Delivered || got.1 == expected.1),
                "byte {index} after {op:?}: {got:?}, not {expected:?}"
            );
        }
        prop_assert_eq!(fates.len(), naive.len());
        prop_assert_eq!(board.in_flight(), bytes(&naive, Fate::InFlight));
        prop_assert_eq!(board.lost(), bytes(&naive, Fate::Lost));
        prop_assert_eq!(board.delivered(), bytes(&naive, Fate::Delivered));
    }
    Ok(())
}

proptest! {
    #[test]
    fn every_byte_has_the_fate_the_naive_one_has(
        iss: u32,
        ops in prop::collection::vec(op(), 1..120),
    ) {
        run(iss, &ops)?;
    }
}

#[test]
fn what_was_dropped_and_reported_anew_beside_a_first_report_is_of_one_fate() {
    // The joined range holds bytes sent again and one that was not, which then begins the window.
    use Op::*;
    let ops = [Push(37), Sack(16, 13), Ack(14), Push(1), Renege, Sack(2, 14), Ack(15), LoseFirst(2)];
    run(0, &ops).expect("as byte by byte");
}

#[test]
fn a_flood_of_sacks_makes_no_more_than_so_many_ranges() {
    let mut board = Scoreboard::new(Seq(7));
    board.push(Range::new(Seq(7), 1 << 20), Instant(1));
    for at in (0..1 << 20).step_by(8) {
        board.deliver(Range::new(Seq(7) + (at + 3), 1), |_| {});
    }
    board.check();
    assert!(board.is_full());
    // It can still be repaired.
    board.mark_lost(|_| Some(true));
    let mut sent = 0;
    while let Some(range) = board.next_lost() {
        board.retransmit(Range::new(range.start, range.len().min(1000)), Instant(2));
        sent += 1;
    }
    assert!(sent <= MAX_RANGES);
    board.acknowledge(board.nxt(), |_| {});
    board.check();
}

#[test]
fn a_large_window_sent_a_segment_at_a_time_is_kept_in_few_ranges() {
    let mut board = Scoreboard::new(Seq(0));
    for at in 0..100_000 {
        board.push(Range::new(board.nxt(), 1448), Instant(at));
    }
    board.check();
    assert!(!board.is_full());
    assert!(board.ranges().zip(board.ranges().skip(1)).all(|(sent, next)| sent.at < next.at));
}

#[test]
fn what_goes_out_at_once_is_one_range() {
    let mut board = Scoreboard::new(Seq(0));
    for _ in 0..100 {
        board.push(Range::new(board.nxt(), 1448), Instant(3));
    }
    assert_eq!(board.ranges().count(), 1);
}
