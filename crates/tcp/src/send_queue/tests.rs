//! The queue against a model, and when its memory goes.

use super::*;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use proptest::prelude::*;

/// Returns shared bytes and their memory.
fn shared(len: usize) -> (SharedBytes, Arc<Vec<u8>>) {
    let memory = Arc::new(vec![7; len]);
    (SharedBytes::from(Arc::clone(&memory)), memory)
}

#[test]
fn a_connection_without_shared_pieces_pays_nothing_for_them() {
    assert_eq!(size_of::<SendQueue>(), size_of::<Ring>());
    let mut queue = SendQueue::default();
    queue.push(&[1; 10_000]);
    queue.push_shared(&shared(LEAST_SHARED).0, LEAST_SHARED - 1);
    assert!(matches!(queue, SendQueue::Copied(_)), "a short piece is copied");
}

#[test]
fn the_memory_of_a_piece_is_held_until_its_last_byte_is_gone() {
    let (first, first_memory) = shared(3000);
    let (second, second_memory) = shared(4000);
    let mut queue = SendQueue::default();
    queue.push(&[1; 100]);
    queue.push_shared(&first, 3000);
    drop(first);
    queue.push(&[2; 50]);
    queue.push_shared(&second.slice(500..), 3000);
    drop(second);
    assert_eq!(queue.len(), 100 + 3000 + 50 + 3000);
    let held = || [&first_memory, &second_memory].map(|it| Arc::strong_count(it) - 1);
    queue.consume(99 + 3000);
    assert_eq!((held(), queue.len()), ([1, 1], 1 + 50 + 3000));
    queue.consume(1);
    assert_eq!((held(), queue.len()), ([0, 1], 50 + 3000));
    queue.consume(51);
    queue.release();
    assert_eq!((held(), queue.len(), queue.capacity()), ([0, 0], 0, 0));
}

/// Returns an empty queue whose positions start at `start`, and its counters of shared bytes at
/// `ever`.
fn queue_after(start: u32, ever: u32) -> SendQueue {
    SendQueue::Mixed(Box::new(Mixed { start, shared: ever, shared_gone: ever, ..Mixed::default() }))
}

#[test]
fn positions_and_counters_wrap_within_a_piece() {
    let data: Vec<u8> = (0..LEAST_SHARED).map(|i| i as u8).collect();
    let mut queue = queue_after(u32::MAX - 10, u32::MAX - 20);
    queue.push(b"before");
    queue.push_shared(&data.clone().into(), data.len());
    queue.push(b"behind");
    let all = [b"before", &data[..], b"behind"].concat();
    for gone in 0..all.len() {
        queue.check();
        let rest = &all[gone..];
        let mut out = vec![0; rest.len()];
        queue.payload(0, rest.len()).copy_to(&mut out);
        assert!(queue.len() == rest.len() && out == rest, "behind {gone} bytes");
        queue.consume(1);
    }
    queue.check();
    assert_eq!(queue.len(), 0);
}

#[derive(Debug, Clone)]
enum Step {
    Copy(usize),
    Share(usize),
    Consume(usize),
    Rewind,
    Release,
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..3000_usize).prop_map(Step::Copy),
        4 => (0..6000_usize).prop_map(Step::Share),
        6 => (0..5000_usize).prop_map(Step::Consume),
        2 => Just(Step::Rewind),
        1 => Just(Step::Release),
    ]
}

proptest! {
    #[test]
    fn bytes_are_found_where_they_were_queued(
        steps in prop::collection::vec((any_step(), any::<prop::sample::Index>(), 0..4000_usize), 0..60),
        // Positions and counters wrap within the steps.
        start in (0_u32..30_000).prop_map(u32::wrapping_neg),
        ever in (0_u32..30_000).prop_map(u32::wrapping_neg),
    ) {
        let mut queue = queue_after(start, ever);
        let (mut model, mut next) = (Vec::new(), 0_u8);
        let mut bytes = |len| (0..len).map(|_| { next = next.wrapping_mul(5).wrapping_add(1); next }).collect::<Vec<u8>>();
        for (step, from, len) in steps {
            match step {
                Step::Copy(len) => {
                    let data = bytes(len);
                    queue.push(&data);
                    model.extend(data);
                }
                Step::Share(len) => {
                    let data = bytes(len);
                    model.extend(&data);
                    queue.push_shared(&data.into(), len);
                }
                Step::Consume(len) => {
                    let len = len.min(model.len());
                    queue.consume(len);
                    model.drain(..len);
                }
                Step::Rewind => queue.rewind(),
                Step::Release => {
                    queue.release();
                    prop_assert_eq!((queue.len(), queue.capacity()), (0, 0));
                    queue = queue_after(start, ever);
                    model.clear();
                }
            }
            queue.check();
            prop_assert_eq!(queue.len(), model.len());
            prop_assert!(queue.capacity() >= queue.len());
            let from = from.index(model.len() + 1);
            let len = len.min(model.len() - from);
            let payload = queue.payload(from, len);
            let mut out = vec![0; len];
            payload.copy_to(&mut out);
            prop_assert_eq!(payload.len(), len);
            prop_assert!(out == model[from..from + len], "{} bytes from {}", len, from);
        }
    }
}
