//! The timer heap with up to a million timers pending: what one wait costs that times out, and one that does not.
//!
//! The nodes lie as far apart as on stacks, in effect: none shares a cache line with another.

use core::cell::Cell;
use core::hint::black_box;
use core::ptr::NonNull;
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};

// Private to the crate, hence included. Its unit tests come along and are not run here.
#[allow(dead_code)]
#[path = "../src/timer.rs"]
mod timer;
use timer::{TimerHeap, TimerNode};

#[repr(align(256))]
struct Node(TimerNode);

thread_local! {
    static FIRED: Cell<Option<NonNull<TimerNode>>> = const { Cell::new(None) };
}

unsafe fn remember(node: NonNull<TimerNode>) {
    FIRED.set(Some(node));
}

/// Xorshift (Marsaglia 2003).
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

fn pending(c: &mut Criterion) {
    let mut group = c.benchmark_group("timers");
    group.sample_size(20);
    for pending in [1_000, 1_000_000] {
        let nodes: Vec<Node> = (0..pending + 1).map(|_| Node(TimerNode::new(remember))).collect();
        let (extra, rest) = nodes.split_last().expect("not empty");
        let (mut heap, mut seed) = (TimerHeap::new(), 0x9e37_79b9_7f4a_7c15);
        for node in rest {
            // SAFETY: the nodes outlive the heap's use of them.
            unsafe { heap.insert(&node.0, random(&mut seed) | 1 << 63) };
        }
        group.bench_function(BenchmarkId::new("set and cancel", pending), |b| {
            b.iter(|| {
                // SAFETY: as above; the node is in no heap.
                unsafe { heap.insert(&extra.0, black_box(random(&mut seed) | 1 << 63)) };
                heap.remove(&extra.0)
            });
        });
        // A thread that sleeps again when it wakes, as in a server with a timer per connection: the earliest timer leaves, and
        // comes back at a random place.
        group.bench_function(BenchmarkId::new("fire and set again", pending), |b| {
            b.iter(|| {
                heap.fire_due(heap.next(), 1);
                let fired = FIRED.get().expect("one was due");
                // SAFETY: it is one of the nodes above, and left the heap when it fired.
                unsafe { heap.insert(fired.as_ref(), black_box(random(&mut seed) | 1 << 63)) };
            });
        });
    }
    group.finish();
}

criterion_group!(benches, pending);
criterion_main!(benches);
