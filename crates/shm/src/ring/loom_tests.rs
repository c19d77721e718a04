//! The ring under every interleaving loom can make of two threads: `RUSTFLAGS="--cfg loom" cargo
//! test -p tailwater-shm --lib`.

use super::private::PrivateRing;
use super::*;
use loom::thread;
use std::sync::Arc;

/// A four-line ring forces a wrap marker and reuse of lines within three records.
#[test]
fn no_record_is_lost_torn_or_seen_early() {
    loom::model(|| {
        let ring = Arc::new(PrivateRing::new(4));
        // SAFETY: called once; both threads are joined before the ring goes.
        let (mut producer, mut consumer) = unsafe { ring.ends() };
        let writer = thread::spawn(move || {
            for number in 0..3u32 {
                loop {
                    if let Ok(slot) = producer.reserve(40) {
                        let line = slot.producer.memory.line(slot.index());
                        line.words[2].store(u64::from(number) + 100, Ordering::Relaxed);
                        slot.commit(number, 0, 0);
                        break;
                    }
                    thread::yield_now();
                }
            }
        });
        let mut next = 0;
        while next < 3 {
            if let Some(record) = consumer.peek().unwrap() {
                assert_eq!(record.hash(), next);
                assert_eq!(record.line().words[2].load(Ordering::Relaxed), u64::from(next) + 100);
                record.advance();
                consumer.publish();
                next += 1;
            } else {
                thread::yield_now();
            }
        }
        writer.join().unwrap();
        drop(ring);
    });
}

/// The consumer sees nothing of a corked batch, or all of it.
#[test]
fn a_corked_batch_appears_at_once() {
    loom::model(|| {
        let ring = Arc::new(PrivateRing::new(4));
        // SAFETY: called once; both threads are joined before the ring goes.
        let (mut producer, mut consumer) = unsafe { ring.ends() };
        let writer = thread::spawn(move || {
            assert!(producer.cork());
            for number in 0..2u32 {
                let slot = producer.reserve(40).unwrap();
                let line = slot.producer.memory.line(slot.index());
                line.words[2].store(u64::from(number) + 100, Ordering::Relaxed);
                slot.commit(number, 0, 0);
            }
            producer.uncork();
        });
        let first = loop {
            if let Some(record) = consumer.peek().unwrap() {
                let hash = record.hash();
                record.advance();
                break hash;
            }
            thread::yield_now();
        };
        let second = consumer.peek().unwrap().expect("the batch was not published at once");
        assert_eq!((first, second.hash()), (0, 1));
        assert_eq!(second.line().words[2].load(Ordering::Relaxed), 101);
        writer.join().unwrap();
        drop(ring);
    });
}
