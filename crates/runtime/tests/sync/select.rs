use crate::support::{in_both_worlds, mixed, panic_message, spawn};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tailwater::internals::SpinLock;
use tailwater::sync::channel::{self, RecvError, Select, SendError};
use tailwater::sync::mpsc;
use tailwater::thread;
use tailwater_testkit::PATIENCE;

#[test]
fn a_select_takes_what_is_there_and_waits_for_what_is_not() {
    in_both_worlds(|| {
        let (numbers, from_numbers) = channel::bounded(1);
        let (words, from_words) = mpsc::channel();
        let (full, _keep) = mpsc::sync_channel(0);
        let mut slot = Some(());
        for round in 0..50 {
            let thread = (round % 2 == 0).then(|| {
                let (numbers, words) = (numbers.clone(), words.clone());
                spawn(round, move || {
                    if round % 4 == 0 { numbers.send(round).unwrap() } else { words.send("w").unwrap() }
                })
            });
            let select = Select::new()
                .recv(&from_numbers, |n| n.unwrap().to_string())
                .recv(&from_words, |w| w.unwrap().to_owned())
                .send(&full, &mut slot, |_| unreachable!("no thread receives"));
            match thread {
                Some(thread) => {
                    assert_eq!(
                        select.wait(),
                        if round % 4 == 0 { round.to_string() } else { "w".to_owned() }
                    );
                    thread.join().unwrap();
                }
                None => assert_eq!(select.try_wait(), None),
            }
            assert_eq!(slot, Some(()), "the message of an operation that was not chosen is gone");
        }
    });
}

#[test]
fn a_timed_select_gives_up_in_time() {
    in_both_worlds(|| {
        let (sender, receiver) = channel::bounded::<u8>(0);
        let mut slot = Some(1);
        let start = Instant::now();
        let select = Select::new().send(&sender, &mut slot, |_| ()).recv(&receiver, |_| ());
        assert_eq!(select.wait_timeout(Duration::from_millis(5)), None);
        assert!(start.elapsed() >= Duration::from_millis(5));
        assert_eq!(Select::<()>::new().wait_timeout(Duration::from_millis(1)), None);
        assert_eq!(slot, Some(1));
    });
}

#[test]
fn disconnected_channels_complete_with_an_error() {
    in_both_worlds(|| {
        let (sender, receiver) = channel::bounded::<u8>(0);
        drop(sender);
        assert_eq!(Select::new().recv(&receiver, |m| m).wait(), Err(RecvError));
        let (sender, receiver) = channel::bounded(0);
        drop(receiver);
        let mut slot = Some(3);
        assert_eq!(Select::new().send(&sender, &mut slot, |sent| sent).wait(), Err(SendError(3)));
        assert_eq!(slot, None);
    });
    let (sender, receiver) = channel::bounded::<u8>(0);
    let (_keep, other) = channel::bounded::<u8>(0);
    let waiting = spawn(0, move || Select::new().recv(&receiver, |m| m).recv(&other, |m| m).wait());
    drop(sender);
    assert_eq!(waiting.join().unwrap(), Err(RecvError));
}

#[test]
fn a_select_that_could_never_end_is_refused() {
    assert!(panic_message(|| Select::<()>::new().wait()).contains("without operations"));
    let (sender, _receiver) = channel::bounded::<u8>(0);
    let mut empty = None;
    assert!(
        panic_message(|| Select::new().send(&sender, &mut empty, |_| ()).wait())
            .contains("without operations")
    );
}

#[test]
fn blocking_under_a_spin_lock_is_refused_and_leaves_the_channel_whole() {
    let refused = spawn(0, || {
        let (sender, receiver) = channel::bounded::<u8>(1);
        let lock = SpinLock::new(());
        for _ in 0..2 {
            let message = panic_message(|| {
                let _guard = lock.lock();
                receiver.recv()
            });
            assert!(message.contains("spin lock"), "{message}");
            let message = panic_message(|| {
                let _guard = lock.lock();
                Select::new().recv(&receiver, |m| m).wait()
            });
            assert!(message.contains("spin lock"), "{message}");
        }
        sender.send(4).unwrap();
        assert_eq!(receiver.recv(), Ok(4));
    });
    refused.join().unwrap();
}

/// The thread whose send completes is woken before; a user thread may not wait while it holds that
/// one locked.
#[test]
fn destructors_of_functions_that_are_not_chosen_may_wait() {
    struct Sleepy;
    impl Drop for Sleepy {
        fn drop(&mut self) {
            thread::sleep(Duration::from_micros(100));
        }
    }
    in_both_worlds(|| {
        let (sender, receiver) = channel::bounded(0);
        let (_idle, idle) = channel::bounded::<u8>(0);
        let sending = spawn(0, move || sender.send(5).unwrap());
        let start = Instant::now();
        let received = std::iter::repeat_with(|| {
            assert!(start.elapsed() < PATIENCE, "no thread sends");
            let sleepy = Sleepy;
            let other = move |_| {
                drop(sleepy);
                0
            };
            Select::new().recv(&receiver, Result::unwrap).recv(&idle, other).try_wait()
        });
        assert_eq!(received.flatten().next(), Some(5));
        sending.join().unwrap();
    });
}

/// All threads select over sends and receives on all channels at once, so that selects meet
/// selects, with buffers and without; exactly the sent messages are received.
#[test]
fn selects_that_meet_selects_complete_one_operation_each() {
    const THREADS: usize = 9;
    const ROUNDS: usize = 400;
    for capacity in [0, 1] {
        let channels: Arc<Vec<_>> = Arc::new((0..3).map(|_| channel::bounded::<usize>(capacity)).collect());
        let totals = Arc::new((AtomicUsize::new(0), AtomicUsize::new(0)));
        let (shared, sums) = (Arc::clone(&channels), Arc::clone(&totals));
        mixed(THREADS, move |number| {
            for round in 0..ROUNDS {
                let mut slots = [0, 1, 2].map(|i| Some(number * ROUNDS * 3 + round * 3 + i));
                let before = slots;
                let mut select = Select::new();
                for (i, slot) in slots.iter_mut().enumerate() {
                    let (sender, receiver) = &shared[(i + round) % 3];
                    select = select.send(sender, slot, |sent| {
                        sent.unwrap();
                        None
                    });
                    select = select.recv(receiver, |received| Some(received.unwrap()));
                }
                let outcome = select.wait_timeout(Duration::from_micros(200));
                let sent: usize =
                    before.iter().zip(&slots).filter_map(|(b, s)| b.filter(|_| s.is_none())).sum();
                let gone = slots.iter().filter(|slot| slot.is_none()).count();
                assert_eq!(gone, usize::from(outcome == Some(None)), "one operation, no more and no less");
                sums.0.fetch_add(sent, Ordering::Relaxed);
                sums.1.fetch_add(outcome.flatten().unwrap_or(0), Ordering::Relaxed);
                if round.is_multiple_of(16) {
                    thread::yield_now();
                }
            }
        });
        let left: usize = channels.iter().flat_map(|(_, receiver)| receiver.try_iter()).sum();
        assert_eq!(totals.0.load(Ordering::Relaxed), totals.1.load(Ordering::Relaxed) + left);
    }
}

#[test]
fn workers_that_select_between_jobs_and_stop_do_all_jobs() {
    let (jobs, work) = channel::bounded(4);
    let (stop, stopped) = channel::bounded::<()>(0);
    let workers: Vec<_> = (0..6)
        .map(|number| {
            let (work, stopped) = (work.clone(), stopped.clone());
            spawn(number, move || {
                let mut sum = 0u64;
                while let Some(job) = Select::new().recv(&work, Result::ok).recv(&stopped, |_| None).wait() {
                    sum += job;
                }
                // Stopped with jobs left: the last worker takes them.
                sum + work.try_iter().sum::<u64>()
            })
        })
        .collect();
    (1..=1000).for_each(|job| jobs.send(job).unwrap());
    drop((jobs, stop));
    let sum: u64 = workers.into_iter().map(|w| w.join().unwrap()).sum();
    assert_eq!(sum + work.try_iter().sum::<u64>(), 500_500);
}

/// Two threads send at once; the select gets one message, and the other is still in its channel.
#[test]
fn two_senders_at_once_complete_one_operation_of_a_select() {
    const ROUNDS: usize = 2000;
    for capacity in [None, Some(0)] {
        let channels: Arc<Vec<_>> =
            Arc::new((0..2).map(|_| capacity.map_or_else(channel::unbounded, channel::bounded)).collect());
        let (pace, paced): (Vec<_>, Vec<_>) = (0..2).map(|_| channel::bounded(1)).unzip();
        let shared = Arc::clone(&channels);
        let senders = paced.into_iter().enumerate().map(|(number, paced)| {
            let shared = Arc::clone(&shared);
            // An OS thread and a user thread.
            spawn(number + 1, move || {
                paced.iter().for_each(|round: usize| shared[number].0.send(round).unwrap());
            })
        });
        let senders: Vec<_> = senders.collect();
        let receiver = spawn(0, move || {
            for round in 0..ROUNDS {
                pace.iter().for_each(|pace| pace.send(round).unwrap());
                let [first, second] = [&channels[0].1, &channels[1].1];
                let select = Select::new().recv(first, |m| (0, m)).recv(second, |m| (1, m));
                let (chosen, message) = select.wait();
                assert_eq!(message, Ok(round));
                assert_eq!(channels[1 - chosen].1.recv(), Ok(round), "the message not chosen");
                assert!(channels.iter().all(|(_, receiver)| receiver.try_recv().is_err()));
            }
        });
        receiver.join().unwrap();
        senders.into_iter().for_each(|sender| sender.join().unwrap());
    }
}

/// Timeouts of the attempts at something, ever longer, of odd lengths.
fn timeouts(odd: u64) -> impl Iterator<Item = Duration> {
    let start = Instant::now();
    (1..).map(move |attempt| {
        assert!(start.elapsed() < PATIENCE, "this never happens");
        Duration::from_nanos(attempt * (1 + odd % 7) * 200)
    })
}

/// A message that comes as the deadline passes is received, or stays where it was.
#[test]
fn a_message_that_meets_the_deadline_of_a_select_is_not_lost() {
    const ROUNDS: u64 = 2000;
    for capacity in [0, 1] {
        let (numbers, from_numbers) = channel::bounded(capacity);
        let (_idle, idle) = channel::unbounded::<u64>();
        let receiver = spawn(0, move || {
            (0..ROUNDS).for_each(|expected| {
                let number = timeouts(expected).find_map(|timeout| {
                    Select::new().recv(&idle, |m| m).recv(&from_numbers, |m| m).wait_timeout(timeout)
                });
                assert_eq!(number, Some(Ok(expected)));
            });
            from_numbers
        });
        let sender = spawn(2, move || {
            (0..ROUNDS).for_each(|number| {
                let mut slot = Some(number);
                timeouts(number + 1).find(|&timeout| {
                    let select = Select::new().send(&numbers, &mut slot, |sent| sent.unwrap());
                    let sent = select.wait_timeout(timeout).is_some();
                    assert_eq!(slot, (!sent).then_some(number), "sent, or still there");
                    sent
                });
            });
        });
        sender.join().unwrap();
        assert!(receiver.join().unwrap().try_recv().is_err());
    }
}

/// The last sender goes while a select waits, or is about to.
#[test]
fn a_channel_that_closes_as_a_select_begins_to_wait_ends_it() {
    for number in 0..600 {
        let (sender, receiver) = channel::bounded::<usize>(number % 2);
        let (_idle, idle) = channel::bounded::<usize>(1);
        let has_message = number % 4 == 1;
        let closer = spawn(number, move || {
            if has_message {
                sender.send(number).unwrap();
            }
        });
        let waiting = spawn(number / 3, move || {
            let receive = || Select::new().recv(&idle, |m| m).recv(&receiver, |m| m).wait();
            let first = receive();
            (first, receive())
        });
        let first = if has_message { Ok(number) } else { Err(RecvError) };
        assert_eq!(waiting.join().unwrap(), (first, Err(RecvError)));
        closer.join().unwrap();
    }
}
