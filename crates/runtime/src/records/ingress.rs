//! The reading end of a kthread's ingress ring, and the order in which rings are read.
//!
//! Any kthread reads any ring, one at a time. Frames of one flow are in one ring, in order, until
//! the IOKernel has the flow continue in another: a fence there names the older ring, and a
//! position. The frames behind it are read after those, whichever kthreads read the two.

use crate::ground::guard::NoPreempt;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering};
use tailwater_shm::ring::{Consumer, Hint, Next, Record};

/// A ring's reading end that any kthread of the runtime may use, one at a time: idle kthreads take
/// a busy kthread's frames.
#[derive(Debug)]
pub struct Ingress {
    busy: AtomicBool,
    consumer: UnsafeCell<Consumer>,
    /// What threads that do not hold `busy` look at.
    hint: Hint,
}

// SAFETY: `busy` gives one kthread at a time the consumer; the hint is made of atomics.
unsafe impl Sync for Ingress {}

impl Ingress {
    /// Wraps the reading end.
    pub fn new(consumer: Consumer) -> Self {
        let hint = Hint::new(&consumer);
        Self { busy: AtomicBool::new(false), consumer: UnsafeCell::new(consumer), hint }
    }

    /// Returns whether a frame seems to wait; may be stale while another kthread reads the ring.
    #[inline(always)]
    pub fn has_record(&self) -> bool {
        self.hint.has_record()
    }

    /// Returns whether the frames before `position` have been processed.
    pub fn has_passed(&self, position: u64) -> bool {
        self.hint.has_passed(position)
    }

    /// Runs `f` on the consumer; `None` if another kthread uses it at the moment.
    #[inline]
    pub fn try_with<R>(&self, _guard: &NoPreempt, f: impl FnOnce(&mut Consumer) -> R) -> Option<R> {
        // Acquire: pairs with the Release below.
        if self.busy.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return None;
        }
        // SAFETY: the exchange above made this the only user of the consumer until `busy` is
        // cleared.
        let consumer = unsafe { &mut *self.consumer.get() };
        let result = f(consumer);
        self.hint.follow(consumer);
        // Release: pairs with the Acquire above.
        self.busy.store(false, Ordering::Release);
        Some(result)
    }
}

/// What became of the frames of a ring.
#[derive(Debug, Clone, Copy)]
pub struct Taken {
    /// Number of frames processed.
    pub frames: u64,
    /// Kthread whose ring must be read before this one can be read on: flows moved from there.
    pub behind: Option<u16>,
}

/// Passes the frames of a ring to `input`, at most `limit`, up to a fence whose older ring has not
/// been read that far, and publishes how far it has read. `has_passed` returns whether the ring of
/// a kthread has been read up to a position.
///
/// # Panics
/// If the IOKernel breaks the ring protocol.
#[inline]
pub fn read(
    consumer: &mut Consumer,
    limit: u64,
    has_passed: impl Fn(u16, u64) -> bool,
    mut input: impl FnMut(&Record<'_>),
) -> Taken {
    let mut taken = Taken { frames: 0, behind: None };
    while taken.frames < limit {
        match consumer.next() {
            Ok(Some(Next::Frame(record))) => {
                input(&record);
                record.advance();
                taken.frames += 1;
            }
            Ok(Some(Next::Fence(fence))) => {
                if !has_passed(fence.kthread(), fence.position()) {
                    taken.behind = Some(fence.kthread());
                    break;
                }
                fence.advance();
            }
            Ok(None) => break,
            Err(lie) => panic!("the IOKernel broke the ring protocol: {lie}"),
        }
    }
    consumer.publish();
    taken
}

/// Has `take` read the ring of kthread `first`, of `rings`, and if a fence holds it up, the older
/// ring instead, which may be held up by one that is older still. `take` returns `None` for a ring
/// that another kthread is reading. Returns the number of frames processed.
#[inline]
pub fn read_older_first(first: u16, rings: usize, mut take: impl FnMut(u16) -> Option<Taken>) -> u64 {
    let (mut ring, mut frames) = (first, 0);
    // A fence names older records than itself, so no ring is met twice unless others read on.
    for _ in 0..rings {
        let Some(taken) = take(ring) else { break };
        frames += taken.frames;
        let Some(older) = taken.behind else { break };
        ring = older;
    }
    frames
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU32;
    use std::thread;
    use std::time::Instant;
    use tailwater_shm::layout::{Region, RegionSpec};
    use tailwater_shm::memory::Mapping;
    use tailwater_shm::ring::Producer;
    use tailwater_testkit::PATIENCE;

    const RINGS: u16 = 3;
    const FLOWS: usize = 4;
    const FRAMES: u32 = 20_000;

    /// Writes the frames of all flows, each of which continues in another ring now and then, as the
    /// switch does. The hash of a frame is its number within its flow, its flags name the flow.
    fn write(mut rings: Vec<Producer>) {
        let mut random = 1_u64;
        let mut below = |n: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % n
        };
        let mut at = [(0_usize, 0_u64); FLOWS];
        let mut numbers = [0; FLOWS];
        for _ in 0..FRAMES {
            let flow = below(FLOWS as u64) as usize;
            let (ring, position) = at[flow];
            let next = if below(8) == 0 { below(RINGS.into()) as usize } else { ring };
            if next != ring && !rings[ring].has_passed(position) {
                while rings[next].fence(ring as u16, position).is_err() {
                    thread::yield_now();
                }
            }
            while rings[next].reserve(60).is_err() {
                thread::yield_now();
            }
            rings[next].reserve(60).expect("there is room").commit(numbers[flow], flow as u8, 0);
            numbers[flow] += 1;
            at[flow] = (next, rings[next].position());
        }
    }

    #[test]
    fn flows_stay_in_order_over_rings_that_several_threads_read() {
        let spec = RegionSpec::new(RINGS, 1 << 15).unwrap();
        let (_region, ours, file) = Region::create("ingress-test", spec, 1_000_000_000).unwrap();
        let (_peer, theirs) = Region::attach(Mapping::new(&file, "region").unwrap()).unwrap();
        let rings: Vec<_> = theirs.into_iter().map(|ends| Ingress::new(ends.ingress)).collect();
        let next: [AtomicU32; FLOWS] = Default::default();
        let (total, misplaced) = (AtomicU32::new(0), AtomicU32::new(0));
        let began = Instant::now();
        let take = |ring: u16| {
            rings[usize::from(ring)].try_with(&NoPreempt::new(), |consumer| {
                let has_passed = |older: u16, position| rings[usize::from(older)].has_passed(position);
                read(consumer, 7, has_passed, |record| {
                    // Relaxed: the rings alone must order the frames of a flow.
                    let flow = &next[usize::from(record.flags())];
                    if flow.load(Ordering::Relaxed) != record.hash() {
                        misplaced.fetch_add(1, Ordering::Relaxed);
                    }
                    flow.store(record.hash() + 1, Ordering::Relaxed);
                    total.fetch_add(1, Ordering::Relaxed);
                })
            })
        };
        thread::scope(|scope| {
            let writer = scope.spawn(|| write(ours.into_iter().map(|ends| ends.ingress).collect()));
            let readers = (0..RINGS).map(|first| {
                let (take, total) = (&take, &total);
                scope.spawn(move || {
                    let mut ring = first;
                    while total.load(Ordering::Relaxed) < FRAMES {
                        read_older_first(ring, RINGS.into(), take);
                        ring = (ring + 1) % RINGS;
                        assert!(began.elapsed() < PATIENCE, "no ring can be read on");
                        thread::yield_now();
                    }
                })
            });
            // ThreadSanitizer does not see how a scope waits for its threads.
            [writer].into_iter().chain(readers.collect::<Vec<_>>()).for_each(|thread| thread.join().unwrap());
        });
        assert_eq!(misplaced.into_inner(), 0, "a frame overtook another of its flow");
    }
}
