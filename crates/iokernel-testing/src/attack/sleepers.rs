//! Attackers at the words where kthreads sleep (futex(2)).
//!
//! One moves sleepers: `FUTEX_REQUEUE` on every word of its region, which it shares with the
//! IOKernel, and of the board, which it shares with all programs of its user. Of its region only
//! its own kthreads are moved, as soon as they sleep, so that no wake of the IOKernel finds them;
//! each starts when its sleep ends by itself. Those of others, which are moved off the board, miss
//! the wakes there.
//!
//! The other wakes whatever sleeps at the board.

use std::sync::atomic::{AtomicBool, AtomicU32};

use rustix::thread::futex;

use super::{Event, runtimes};
use crate::roles::Burn;
use crate::runtime::{RawError, RawRuntime, RawSpec};
use crate::sys;

/// Words of a region before its rings: of the header and of kthreads up to the seventh.
const HEAD: usize = 2 * 4096 / size_of::<AtomicU32>();
/// Number of words of rings between two passes over the head.
const STRETCH: usize = 4096;
/// Words of the board that are tried: places are given from the first on.
const FEW: usize = 16;
/// Number of passes over them at a time.
const PASSES: usize = 1_000;

pub(super) fn move_all(
    socket: &str,
    spec: &RawSpec,
    stop: &AtomicBool,
    report: &mut impl FnMut(Event),
) -> Result<(), RawError> {
    at_words(socket, spec, stop, report, |region, board| {
        let (head, rings) = region.split_at(HEAD);
        let (prison, others) = head.split_first().expect("a region has a header");
        for stretch in rings.chunks(STRETCH) {
            for word in others.iter().chain(stretch).chain(board) {
                // Fails if nothing sleeps there.
                let _ = futex::requeue(word, futex::Flags::empty(), 0, i32::MAX as u32, prison);
            }
        }
    })
}

pub(super) fn wake_all(
    socket: &str,
    spec: &RawSpec,
    stop: &AtomicBool,
    report: &mut impl FnMut(Event),
) -> Result<(), RawError> {
    at_words(socket, spec, stop, report, |_, board| {
        // Between two looks whether it was expelled.
        for _ in 0..PASSES {
            for word in board {
                // Cannot fail on a mapped, aligned word.
                let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
            }
        }
    })
}

/// Does `deed` again and again to the words of its region, and to those of the board that programs
/// of a small machine have.
fn at_words(
    socket: &str,
    spec: &RawSpec,
    stop: &AtomicBool,
    report: &mut impl FnMut(Event),
    mut deed: impl FnMut(&[AtomicU32], &[AtomicU32]),
) -> Result<(), RawError> {
    let start = || RawRuntime::start_with_words(socket, spec, |_| Box::<Burn>::default());
    runtimes(stop, report, start, |(region, board)| {
        let board = board.as_ref().map_or(&[][..], |board| &sys::words(board)[..FEW]);
        deed(sys::words(region), board);
    })
}
