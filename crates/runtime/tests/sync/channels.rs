use crate::support::{in_both_worlds, mixed, spawn, until};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tailwater::sync::channel::{self, RecvError, RecvTimeoutError, SendError, TryRecvError, TrySendError};
use tailwater::sync::mpsc;
use tailwater::thread;
use tailwater_testkit::PATIENCE;

#[test]
fn every_message_arrives_once_and_in_the_order_of_its_sender() {
    const SENDERS: usize = 6;
    const RECEIVERS: usize = 3;
    const MESSAGES: usize = 500;
    for capacity in [Some(0), Some(1), Some(7), None] {
        let (sender, receiver) = capacity.map_or_else(channel::unbounded, channel::bounded);
        let received: Vec<Vec<(usize, usize)>> = mixed(SENDERS + RECEIVERS, {
            let ends = Arc::new(std::sync::Mutex::new((vec![sender; SENDERS], vec![receiver; RECEIVERS])));
            move |number| {
                if number < SENDERS {
                    let sender = ends.lock().unwrap().0.pop().unwrap();
                    (0..MESSAGES).for_each(|n| sender.send((number, n)).unwrap());
                    return Vec::new();
                }
                let receiver = ends.lock().unwrap().1.pop().unwrap();
                receiver.into_iter().collect()
            }
        });
        let mut all = Vec::new();
        for messages in &received {
            for sender in 0..SENDERS {
                let of_sender: Vec<_> = messages.iter().filter(|(s, _)| *s == sender).collect();
                assert!(
                    of_sender.is_sorted(),
                    "capacity {capacity:?}: two messages of one sender changed places"
                );
            }
            all.extend_from_slice(messages);
        }
        all.sort_unstable();
        let expected: Vec<_> = (0..SENDERS).flat_map(|s| (0..MESSAGES).map(move |n| (s, n))).collect();
        assert!(all == expected, "capacity {capacity:?}: messages were lost or doubled");
    }
}

#[test]
fn a_send_into_a_channel_without_room_waits_for_its_receive() {
    let (sender, receiver) = channel::bounded(0);
    let sent = Arc::new(AtomicUsize::new(0));
    let thread = {
        let sent = Arc::clone(&sent);
        spawn(0, move || {
            sender.send(1).unwrap();
            sent.store(1, Ordering::SeqCst);
        })
    };
    for _ in 0..100 {
        thread::yield_now();
        assert_eq!(sent.load(Ordering::SeqCst), 0, "a rendezvous ended before its receive");
    }
    assert_eq!(receiver.recv(), Ok(1));
    thread.join().unwrap();
}

#[test]
fn timed_operations_end_in_time_and_lose_nothing() {
    in_both_worlds(|| {
        let (sender, receiver) = channel::bounded(1);
        let start = Instant::now();
        assert_eq!(receiver.recv_timeout(Duration::from_millis(5)), Err(RecvTimeoutError::Timeout));
        assert!(start.elapsed() >= Duration::from_millis(5));
        sender.send_timeout(1, PATIENCE).unwrap();
        let error = sender.send_timeout(2, Duration::from_millis(5)).unwrap_err();
        assert_eq!(error, channel::SendTimeoutError::Timeout(2));
        assert_eq!(error.into_inner(), 2);
        assert_eq!(receiver.recv_timeout(PATIENCE), Ok(1));
        assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty), "a send that timed out left its message");
    });
}

#[test]
fn timeouts_race_with_messages_and_nothing_is_lost() {
    const MESSAGES: usize = 2000;
    let (sender, receiver) = channel::bounded(0);
    let taken = Arc::new(AtomicUsize::new(0));
    let thread = {
        let taken = Arc::clone(&taken);
        spawn(1, move || {
            loop {
                match receiver.recv_timeout(Duration::from_micros(3)) {
                    Ok(()) => taken.fetch_add(1, Ordering::SeqCst),
                    Err(RecvTimeoutError::Timeout) => continue,
                    Err(RecvTimeoutError::Disconnected) => return,
                };
            }
        })
    };
    let mut sent = 0;
    for _ in 0..MESSAGES {
        sent += usize::from(sender.send_timeout((), Duration::from_micros(3)).is_ok());
    }
    drop(sender);
    thread.join().unwrap();
    assert_eq!(taken.load(Ordering::SeqCst), sent);
}

#[test]
fn the_last_sender_wakes_receivers_and_the_last_receiver_wakes_senders() {
    let (sender, receiver) = channel::bounded::<usize>(0);
    let waiting: Vec<_> = (0..6)
        .map(|number| {
            let receiver = receiver.clone();
            spawn(number, move || receiver.recv())
        })
        .collect();
    drop(sender.clone());
    drop(sender);
    waiting.into_iter().for_each(|t| assert_eq!(t.join().unwrap(), Err(RecvError)));
    let (sender, receiver) = channel::bounded(1);
    sender.send(99).unwrap();
    let waiting: Vec<_> = (0..6)
        .map(|number| {
            let sender = sender.clone();
            spawn(number, move || sender.send(number))
        })
        .collect();
    drop(receiver);
    for (number, thread) in waiting.into_iter().enumerate() {
        assert_eq!(thread.join().unwrap(), Err(SendError(number)), "a failed send must return its message");
    }
    assert_eq!(sender.try_send(5), Err(TrySendError::Disconnected(5)));
}

#[test]
fn messages_are_dropped_once_wherever_they_are() {
    in_both_worlds(|| {
        let message = Arc::new(());
        for capacity in [Some(0), Some(5), None] {
            let (sender, receiver) = capacity.map_or_else(channel::unbounded, channel::bounded);
            for _ in 0..100 {
                let _ = sender.try_send(Arc::clone(&message));
            }
            drop(receiver.try_recv());
            drop(receiver);
            assert_eq!(
                Arc::strong_count(&message),
                1,
                "capacity {capacity:?}: the last receiver drops what is left"
            );
            drop(sender.try_send(Arc::clone(&message)));
            assert_eq!(Arc::strong_count(&message), 1);
        }
    });
}

#[test]
fn what_was_sent_before_the_sender_left_still_arrives() {
    in_both_worlds(|| {
        let (sender, receiver) = channel::unbounded();
        (0..100).for_each(|n| sender.send(n).unwrap());
        drop(sender);
        assert_eq!(receiver.len(), 100);
        assert!(receiver.iter().eq(0..100));
        assert_eq!(receiver.try_recv(), Err(TryRecvError::Disconnected));
    });
}

#[test]
fn mpsc_channels_have_the_api_of_std() {
    in_both_worlds(|| {
        let (sender, receiver) = mpsc::channel();
        let other = sender.clone();
        let thread = thread::spawn(move || (0..50).for_each(|n| other.send(n).unwrap()));
        assert!((&receiver).into_iter().take(50).eq(0..50));
        thread.join().unwrap();
        assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
        assert_eq!(receiver.recv_timeout(Duration::from_millis(1)), Err(RecvTimeoutError::Timeout));
        sender.send(1).unwrap();
        assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [1]);
        drop(receiver);
        assert_eq!(sender.send(7), Err(SendError(7)));

        let (sender, receiver) = mpsc::sync_channel(1);
        sender.send(1).unwrap();
        assert_eq!(sender.try_send(2), Err(TrySendError::Full(2)));
        drop(sender);
        assert_eq!(receiver.into_iter().collect::<Vec<_>>(), [1]);
    });
}

#[test]
fn a_pipeline_of_rendezvous_passes_everything_on() {
    const STAGES: usize = 8;
    const ITEMS: usize = 300;
    let (first, mut last) = mpsc::sync_channel(0);
    let mut stages = Vec::new();
    for number in 0..STAGES {
        let (sender, receiver) = mpsc::sync_channel(number % 3);
        let input = std::mem::replace(&mut last, receiver);
        stages.push(spawn(number, move || input.iter().for_each(|n: usize| sender.send(n + 1).unwrap())));
    }
    let feeder = spawn(1, move || (0..ITEMS).for_each(|n| first.send(n).unwrap()));
    assert!(last.iter().eq((0..ITEMS).map(|n| n + STAGES)));
    feeder.join().unwrap();
    stages.into_iter().for_each(|stage| stage.join().unwrap());
}

#[test]
fn a_message_may_use_its_own_channel_when_it_is_dropped() {
    struct Counts(channel::Sender<Option<Counts>>, Arc<AtomicUsize>);
    impl Drop for Counts {
        fn drop(&mut self) {
            assert!(matches!(self.0.try_send(None), Err(TrySendError::Disconnected(None))));
            self.1.fetch_add(1, Ordering::SeqCst);
        }
    }
    let drops = Arc::new(AtomicUsize::new(0));
    let (sender, receiver) = channel::unbounded();
    for _ in 0..3 {
        sender.send(Some(Counts(sender.clone(), Arc::clone(&drops)))).unwrap();
    }
    drop(receiver);
    until(|| drops.load(Ordering::SeqCst) == 3);
}
