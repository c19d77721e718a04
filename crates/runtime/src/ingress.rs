//! Frames that enter this process: from a kthread's ingress ring into the network stack.

use crate::net;
use crate::verbs::trace;
use tailwater_shm::ring::Consumer;
use tailwater_shm::trace::FLAG_TRACED;

/// Processes frames of kthread `ring`'s ring, at most `limit`; returns how many. Deferred
/// acknowledgments leave at the end, after the ring was published. Runs in the scheduler context.
///
/// # Panics
/// If the IOKernel breaks the ring protocol.
pub fn take_frames(consumer: &mut Consumer, ring: u16, limit: u64) -> u64 {
    let mut frames = 0;
    let mut batch = net::Batch::default();
    while frames < limit {
        let record = match consumer.peek() {
            Ok(Some(record)) => record,
            Ok(None) => break,
            Err(lie) => panic!("the IOKernel broke the ring protocol: {lie}"),
        };
        // SAFETY: the IOKernel, which this process attached to and trusts, writes no record before
        // it is freed.
        let frame = unsafe { record.frame() };
        let flags = record.flags();
        if flags & FLAG_TRACED == 0 {
            batch.input(frame, flags);
        } else {
            batch.input_traced(frame, flags, trace::taken(record.hash(), ring, frame));
        }
        record.advance();
        frames += 1;
    }
    consumer.publish();
    frames
}
