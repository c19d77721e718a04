//! Frames that enter this process: from a kthread's ingress ring into the network stack.

use crate::net;
use crate::records::ingress::{Taken, read};
use crate::records::runtime::runtime;
use crate::verbs::trace;
use tailwater_shm::ring::Consumer;
use tailwater_shm::trace::FLAG_TRACED;

/// Processes frames of kthread `ring`'s ring, at most `limit`. Deferred acknowledgments leave at
/// the end, after the ring was published. Runs in the scheduler context.
///
/// # Panics
/// If the IOKernel breaks the ring protocol.
pub fn take_frames(consumer: &mut Consumer, ring: u16, limit: u64) -> Taken {
    let mut batch = net::Batch::default();
    let has_passed = |kthread: u16, position| {
        let older = runtime().kthreads.get(usize::from(kthread)).and_then(|older| older.ingress.as_ref());
        older.expect("the IOKernel names kthreads that have a ring").has_passed(position)
    };
    read(consumer, limit, has_passed, |record| {
        // SAFETY: the IOKernel, which this process attached to and trusts, writes no record before
        // it is freed.
        let frame = unsafe { record.frame() };
        let flags = record.flags();
        if flags & FLAG_TRACED == 0 {
            batch.input(frame, flags);
        } else {
            batch.input_traced(frame, flags, trace::taken(record.hash(), ring, frame));
        }
    })
}
