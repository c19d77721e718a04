//! Attackers by the words and rings that a program may write: they write them all the time.

use std::sync::atomic::AtomicBool;

use tailwater_shm::layout::MAX_KTHREADS;

use super::{Event, Puppet, puppets};
use crate::kthread::{Behaviour, RawKthread, Step};
use crate::runtime::{RawError, RawSpec};

// Offsets in a region, in bytes (docs/src/protocols/memory.md).
const KTHREADS: u64 = 4096;
const KTHREAD_BYTES: u64 = 512;
const RUN_QUEUE: u64 = 128;
const OVERFLOW: u64 = 136;
const INGRESS_POSITION: u64 = 192;
const LINE: u64 = 64;
/// A record of a frame of 40 bytes, of a ring's first lap.
const RECORD: u64 = 40 | 1 << 16;

/// Has many kthreads, and rewrites both words of each that a look reads: their cache lines are
/// never where the look is.
pub(super) fn rewrite(
    socket: &str,
    spec: RawSpec,
    stop: &AtomicBool,
    report: &mut impl FnMut(Event),
) -> Result<(), RawError> {
    let mut spec = spec.kthreads(MAX_KTHREADS);
    // Its user may have 64 MiB or so.
    spec.register.ring_bytes = 1 << 15;
    let mut next = 0;
    puppets(socket, &spec, stop, report, move |puppet| {
        next += 1;
        let words = KTHREADS + KTHREAD_BYTES * (next % u64::from(MAX_KTHREADS));
        // An empty queue at another position, and a ring from which nothing was read.
        puppet.store((words + RUN_QUEUE) / 8, next << 32 | next & 0xffff_ffff);
        puppet.store((words + INGRESS_POSITION) / 8, 0);
    })
}

/// Fills its egress ring with records that stay valid for as long as laps do not count.
pub(super) fn repeat(
    socket: &str,
    spec: &RawSpec,
    stop: &AtomicBool,
    report: &mut impl FnMut(Event),
) -> Result<(), RawError> {
    let ring_bytes = u64::from(spec.register.ring_bytes);
    // Behind the words of up to eight kthreads, and the ingress ring.
    let ring = 2 * KTHREADS + ring_bytes;
    let mut line = 0;
    puppets(socket, spec, stop, report, move |puppet: &mut Puppet| {
        // For the work that it claims to have it is lent a core, and its ring is read.
        puppet.store((KTHREADS + OVERFLOW) / 8, 1);
        puppet.store((ring + line * LINE) / 8, RECORD);
        line = (line + 1) % (ring_bytes / LINE);
    })
}

/// Says that it is idle, then that it runs, as often as it can while it has a core.
pub(super) struct Flapping;

/// Changes of its state in one step.
const CHANGES: u32 = 64;

impl Behaviour for Flapping {
    fn step(&mut self, kthread: &mut RawKthread) -> Step {
        let state = &kthread.words().state.0;
        let (_, generation) = state.load();
        for _ in 0..CHANGES {
            state.set_idle(generation);
            if !state.try_resume(generation) {
                // It was taken at its word: the request to cede follows.
                break;
            }
        }
        Step::Busy
    }

    fn has_work(&self, _: &RawKthread) -> bool {
        true
    }

    fn ceding(&mut self, kthread: &mut RawKthread) {
        kthread.set_queued(1);
    }
}

/// As [`Flapping`], once at each poll point: it reads its grant in between.
pub(super) struct Flips;

impl Behaviour for Flips {
    fn step(&mut self, kthread: &mut RawKthread) -> Step {
        let state = &kthread.words().state.0;
        let (_, generation) = state.load();
        state.set_idle(generation);
        // Fails if it was taken at its word: the request to cede follows.
        let _ = state.try_resume(generation);
        Step::Busy
    }

    fn has_work(&self, _: &RawKthread) -> bool {
        true
    }

    fn ceding(&mut self, kthread: &mut RawKthread) {
        kthread.set_queued(1);
    }
}
