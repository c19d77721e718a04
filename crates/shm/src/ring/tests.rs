use super::private::PrivateRing;
use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

/// The operations of the property test and the hostile test.
#[derive(Debug, Clone)]
enum Operation {
    Push { len: usize, seed: u8 },
    Abandon { len: usize },
    Pop,
    Publish,
    Cork,
    Uncork,
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let length = prop_oneof![
        8 => MIN_FRAME..200usize,
        1 => Just(MIN_FRAME),
        1 => 1400..1600usize,
        1 => (MAX_FRAME - 100)..=MAX_FRAME,
    ];
    let operation = prop_oneof![
        6 => (length.clone(), any::<u8>()).prop_map(|(len, seed)| Operation::Push { len, seed }),
        1 => length.prop_map(|len| Operation::Abandon { len }),
        6 => Just(Operation::Pop),
        2 => Just(Operation::Publish),
        1 => Just(Operation::Cork),
        2 => Just(Operation::Uncork),
    ];
    prop::collection::vec(operation, 1..400)
}

fn payload(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| seed.wrapping_mul(31).wrapping_add(i as u8)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn behaves_like_a_queue(operations in operations()) {
        let ring = PrivateRing::new(MIN_LINES);
        // SAFETY: called once; the ring outlives both ends.
        let (mut producer, mut consumer) = unsafe { ring.ends() };
        let mut model: VecDeque<(Vec<u8>, u32)> = VecDeque::new();
        // Committed, and not to be seen before the ring is uncorked.
        let (mut corked, mut hidden) = (false, VecDeque::new());
        let mut buffer = FrameBuffer::new();
        for (number, operation) in operations.into_iter().enumerate() {
            match operation {
                Operation::Push { len, seed } => match producer.reserve(len) {
                    Ok(mut slot) => {
                        let bytes = payload(len, seed);
                        slot.write(0, &bytes);
                        slot.commit(number as u32, seed, number as u64);
                        if corked { &mut hidden } else { &mut model }.push_back((bytes, number as u32));
                    }
                    Err(error) => {
                        prop_assert_eq!(error, ReserveError::Full);
                        prop_assert!(!model.is_empty() || !hidden.is_empty() || consumer.published != consumer.tail
                            || lines_of(len) > MIN_LINES / 2, "an empty, published ring refused {} bytes", len);
                    }
                },
                Operation::Abandon { len } => drop(producer.reserve(len)),
                Operation::Pop => {
                    let record = consumer.peek().unwrap();
                    prop_assert_eq!(record.is_some(), !model.is_empty());
                    if let (Some(record), Some((bytes, tag))) = (record, model.pop_front()) {
                        prop_assert_eq!(record.hash(), tag);
                        prop_assert_eq!(record.stamp(), u64::from(tag));
                        // SAFETY: this thread is the producer and writes nothing meanwhile.
                        prop_assert_eq!(unsafe { record.frame() }, &bytes[..]);
                        prop_assert_eq!(record.copy_frame(&mut buffer), &bytes[..]);
                        let first = record.first_line();
                        let shown = bytes.len().min(FIRST_LINE_FRAME);
                        prop_assert_eq!(&first.frame()[..shown], &bytes[..shown]);
                        record.advance();
                    }
                }
                Operation::Publish => consumer.publish(),
                Operation::Cork => {
                    prop_assert_eq!(producer.cork(), !corked);
                    corked = true;
                }
                Operation::Uncork => {
                    producer.uncork();
                    corked = false;
                    model.append(&mut hidden);
                }
            }
        }
    }

    #[test]
    fn forwarding_delivers_the_first_line_that_was_checked(len in MIN_FRAME..3000usize, seed in any::<u8>()) {
        let (a, b) = (PrivateRing::new(MIN_LINES), PrivateRing::new(MIN_LINES));
        // SAFETY: called once each; the rings outlive their ends.
        let ((mut producer, consumer), (mut to, mut out)) = unsafe { (a.ends(), b.ends()) };
        let mut from = consumer;
        let bytes = payload(len, seed);
        let mut slot = producer.reserve(len).unwrap();
        slot.write(0, &bytes);
        slot.commit(0, !FLAG_CHECKSUM_OK, 0);
        let record = from.peek().unwrap().unwrap();
        let first = record.first_line();
        // A hostile producer rewrites the header part after it was checked.
        a.lines[0].words[2].store(u64::MAX, Ordering::Relaxed);
        forward(&record, &first, &mut to, 0x1234, FLAG_CHECKSUM_OK, 77).unwrap();
        let delivered = out.peek().unwrap().unwrap();
        // The sender's flags are unchecked and not passed on.
        let numbers = (delivered.len(), delivered.hash(), delivered.flags());
        prop_assert_eq!(numbers, (len, 0x1234, FLAG_CHECKSUM_OK));
        // SAFETY: `b` is not written any more.
        prop_assert_eq!(unsafe { delivered.frame() }, &bytes[..]);
    }

    #[test]
    fn garbage_in_the_ring_is_an_error_or_a_bounded_record(
        garbage in prop::collection::vec((0..MIN_LINES as usize, 0..8usize, any::<u64>()), 1..200),
        plausible in prop::collection::vec((0..MIN_LINES as usize, any::<u16>(), 0..4u8, 0..3u8), 1..50),
    ) {
        let ring = PrivateRing::new(MIN_LINES);
        // SAFETY: called once; the ring outlives both ends.
        let (_, mut consumer) = unsafe { ring.ends() };
        for (line, word, value) in garbage {
            ring.lines[line].words[word].store(value, Ordering::Relaxed);
        }
        for (line, len, kind, lap) in plausible {
            ring.lines[line].words[0].store(Header::new(kind, lap, len % 2000, 0, 0).0, Ordering::Relaxed);
        }
        let mut buffer = FrameBuffer::new();
        for start in 0..u64::from(MIN_LINES) {
            consumer.tail = start;
            for _ in 0..MIN_LINES {
                let Ok(Some(record)) = consumer.peek() else { break };
                prop_assert!(record.index + record.lines <= MIN_LINES);
                prop_assert_eq!(record.copy_frame(&mut buffer).len(), record.len());
                record.advance();
            }
        }
    }

    #[test]
    fn a_lying_consumer_never_makes_the_producer_overwrite_or_overflow(
        tails in prop::collection::vec(any::<u64>(), 1..100),
        small in prop::collection::vec(0..2000u64, 1..100),
    ) {
        let ring = PrivateRing::new(MIN_LINES);
        // SAFETY: called once; the ring outlives both ends.
        let (mut producer, _consumer) = unsafe { ring.ends() };
        for tail in tails.into_iter().chain(small) {
            ring.tail.store(tail, Ordering::Relaxed);
            for _ in 0..MIN_LINES {
                match producer.reserve(60) {
                    Ok(slot) => slot.commit(0, 0, 0),
                    Err(ReserveError::Full) => break,
                    Err(ReserveError::Lie(lie)) => {
                        let RingLie::Tail { tail, head } = lie else { panic!("{lie}") };
                        prop_assert!(tail > head || tail < producer.tail);
                        break;
                    }
                }
            }
            prop_assert!(producer.head - producer.tail <= u64::from(MIN_LINES));
        }
    }
}

#[test]
fn frames_cross_between_two_threads_in_order_and_whole() {
    const FRAMES: u32 = 200_000;
    let ring = PrivateRing::new(MIN_LINES);
    // SAFETY: called once; the scope ends both threads before the ring is dropped.
    let (mut producer, mut consumer) = unsafe { ring.ends() };
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for number in 0..FRAMES {
                let len = MIN_FRAME + number as usize % 300;
                let bytes = payload(len, number as u8);
                let mut slot = loop {
                    // The borrow checker requires that the retry is decided before the slot is
                    // kept.
                    if producer.reserve(len).is_ok() {
                        break producer.reserve(len).unwrap();
                    }
                    std::thread::yield_now();
                };
                slot.write(0, &bytes);
                slot.commit(number, 0, 0);
            }
        });
        let mut number = 0;
        while number < FRAMES {
            let Some(record) = consumer.peek().unwrap() else {
                consumer.publish();
                std::thread::yield_now();
                continue;
            };
            assert_eq!(record.hash(), number);
            // SAFETY: the producer keeps the protocol.
            let frame = unsafe { record.frame() };
            assert_eq!(frame, &payload(MIN_FRAME + number as usize % 300, number as u8)[..]);
            record.advance();
            number += 1;
            if number % 32 == 0 {
                consumer.publish();
            }
        }
    });
}

#[test]
fn records_that_were_written_once_are_read_once() {
    let ring = PrivateRing::new(MIN_LINES);
    // SAFETY: called once; the ring outlives both ends.
    let (_, mut consumer) = unsafe { ring.ends() };
    // A record in every line, as no honest producer writes them.
    let record = Header::new(KIND_FRAME, 0, 40, 0, 0);
    for line in &ring.lines {
        line.words[0].store(record.0, Ordering::Relaxed);
    }
    for _ in 0..MIN_LINES {
        consumer.peek().unwrap().expect("every line has a record").advance();
    }
    assert_eq!(consumer.peek().unwrap_err(), RingLie::Lap { found: 0, expected: 1 });
}

#[test]
fn laps_are_counted_beyond_what_a_header_can_name() {
    let ring = PrivateRing::new(MIN_LINES);
    // SAFETY: called once; the ring outlives both ends.
    let (mut producer, mut consumer) = unsafe { ring.ends() };
    // Three lines each, so that laps end with a wrap marker and without.
    for number in 0..MIN_LINES * u32::from(LAPS) {
        producer.reserve(150).unwrap().commit(number, 0, 0);
        let record = consumer.peek().unwrap().unwrap();
        assert_eq!(record.hash(), number);
        record.advance();
        consumer.publish();
    }
}

#[test]
#[should_panic(expected = "cannot carry a frame of 13 bytes")]
fn a_frame_shorter_than_ethernet_is_a_bug_of_the_caller() {
    let ring = PrivateRing::new(MIN_LINES);
    // SAFETY: called once; the ring outlives both ends.
    let (mut producer, _consumer) = unsafe { ring.ends() };
    let _ = producer.reserve(13);
}

#[test]
fn fences_stand_between_frames_wherever_they_fall() {
    let ring = PrivateRing::new(MIN_LINES);
    // SAFETY: called once; the ring outlives both ends.
    let (mut producer, mut consumer) = unsafe { ring.ends() };
    let hint = Hint::new(&consumer);
    for number in 0..3 * MIN_LINES {
        // One to four lines, so that fences fall on each line, and before a wrap marker.
        let len = 40 + 64 * (number as usize % 4);
        let corked = number % 3 == 0 && producer.cork();
        producer.fence(number as u16, number.into()).unwrap();
        producer.reserve(len).unwrap().commit(number, 0, 0);
        if corked {
            assert!(consumer.next().unwrap().is_none(), "a fence is visible before its batch");
            producer.uncork();
        }
        let Ok(Some(Next::Fence(fence))) = consumer.next() else { panic!("no fence before frame {number}") };
        assert_eq!((fence.kthread(), fence.position()), (number as u16, number.into()));
        fence.advance();
        let Ok(Some(Next::Frame(record))) = consumer.next() else { panic!("no frame {number}") };
        assert_eq!((record.hash(), record.len()), (number, len));
        record.advance();
        let position = producer.position();
        assert!(!producer.has_passed(position) && !hint.has_passed(position), "nothing is published yet");
        consumer.publish();
        assert!(producer.has_passed(position) && hint.has_passed(position));
    }
}

#[test]
fn a_fence_needs_room_like_a_frame_and_is_a_lie_where_frames_are_expected() {
    let ring = PrivateRing::new(MIN_LINES);
    // SAFETY: called once; the ring outlives both ends.
    let (mut producer, mut consumer) = unsafe { ring.ends() };
    for _ in 1..MIN_LINES {
        producer.fence(1, 0).unwrap();
    }
    assert_eq!(producer.fence(1, 0), Err(ReserveError::Full));
    assert_eq!(consumer.peek().unwrap_err(), RingLie::Kind(KIND_FENCE));
}
