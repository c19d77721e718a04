//! An attacker that moves sleepers: `FUTEX_REQUEUE` on every word of its region, which it shares
//! with the IOKernel (futex(2)).
//!
//! Only its own kthreads sleep there. They are moved as soon as they sleep, so that no wake of the
//! IOKernel finds them; each starts when its sleep ends by itself.

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

pub(super) fn move_all(
    socket: &str,
    spec: &RawSpec,
    stop: &AtomicBool,
    report: &mut impl FnMut(Event),
) -> Result<(), RawError> {
    let start = || RawRuntime::start_with_words(socket, spec, |_| Box::<Burn>::default());
    runtimes(stop, report, start, |region| {
        let (head, rings) = sys::words(region).split_at(HEAD);
        let (prison, others) = head.split_first().expect("a region has a header");
        for stretch in rings.chunks(STRETCH) {
            for word in others.iter().chain(stretch) {
                // Fails if nothing sleeps there.
                let _ = futex::requeue(word, futex::Flags::empty(), 0, i32::MAX as u32, prison);
            }
        }
    })
}
