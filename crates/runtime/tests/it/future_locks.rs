//! What futures wait for in a queue: semaphores, locks; and sets of tasks, ticks.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tailwater::future::{JoinSet, Mutex, RwLock, block_on, sleep, spawn, yield_now};
use tailwater::sync::{Semaphore, channel};
use tailwater::time::{Instant, interval};
use tailwater::{RuntimeBuilder, thread};
use tailwater_testkit::{PATIENCE, own_process};

#[test]
fn futures_wait_in_a_queue() {
    own_process(|| {
        let run = RuntimeBuilder::new().kthreads(2).run(|| {
            futures_and_threads_are_served_in_turn();
            a_large_request_is_not_overtaken();
            a_dropped_future_gives_back_what_it_was_granted();
            a_dropped_future_lets_those_behind_it_pass();
            permits_are_conserved_under_a_storm_of_cancellations();
            a_mutex_is_held_across_waits_by_one_task_at_a_time();
            writers_exclude_readers_and_are_not_starved();
            a_panic_unlocks();
            tasks_of_a_set_come_back_as_they_end();
            a_set_that_is_dropped_cancels_its_tasks();
            a_wait_for_a_set_that_is_dropped_loses_no_result();
            ticks_of_futures_are_a_period_apart();
        });
        run.unwrap();
    });
}

fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn futures_and_threads_are_served_in_turn() {
    let semaphore = Arc::new(Semaphore::new(0));
    let (sender, order) = channel::unbounded();
    let mut first = pin!(semaphore.acquire_async());
    assert!(poll_once(first.as_mut()).is_pending());
    let waiting = Arc::clone(&semaphore);
    let thread = thread::spawn(move || {
        waiting.acquire().forget();
        sender.send("thread").unwrap();
    });
    // The future was first, whether the thread waits yet or not.
    semaphore.add_permits(1);
    let Poll::Ready(permit) = poll_once(first.as_mut()) else { panic!("the first was served") };
    assert!(order.try_recv().is_err(), "the thread came second");
    drop(permit);
    thread.join().unwrap();
    assert_eq!(order.recv(), Ok("thread"));
}

fn a_large_request_is_not_overtaken() {
    let semaphore = Semaphore::new(1);
    let mut large = pin!(semaphore.acquire_many_async(2));
    assert!(poll_once(large.as_mut()).is_pending());
    let mut small = pin!(semaphore.acquire_async());
    assert!(poll_once(small.as_mut()).is_pending(), "a permit is free, but another waits");
    semaphore.add_permits(1);
    assert!(poll_once(small.as_mut()).is_pending());
    let Poll::Ready(permits) = poll_once(large.as_mut()) else { panic!("two permits are free") };
    drop(permits);
    assert!(poll_once(small.as_mut()).is_ready());
}

fn a_dropped_future_gives_back_what_it_was_granted() {
    let semaphore = Semaphore::new(0);
    {
        let mut granted = pin!(semaphore.acquire_many_async(3));
        assert!(poll_once(granted.as_mut()).is_pending());
        semaphore.add_permits(3);
        assert_eq!(semaphore.available_permits(), 0, "granted, and not seen yet");
    }
    assert_eq!(semaphore.available_permits(), 3);
}

fn a_dropped_future_lets_those_behind_it_pass() {
    let semaphore = Semaphore::new(1);
    let mut small = pin!(semaphore.acquire_async());
    {
        let mut large = pin!(semaphore.acquire_many_async(2));
        assert!(poll_once(large.as_mut()).is_pending());
        assert!(poll_once(small.as_mut()).is_pending());
    }
    assert!(poll_once(small.as_mut()).is_ready());
}

fn permits_are_conserved_under_a_storm_of_cancellations() {
    const PERMITS: usize = 3;
    let semaphore = Arc::new(Semaphore::new(PERMITS));
    let tasks: Vec<_> = (0..8u64)
        .map(|task| {
            let semaphore = Arc::clone(&semaphore);
            spawn(async move {
                for round in 0..500u64 {
                    let wanted = 1 + (task + round) as usize % PERMITS;
                    let mut acquire = pin!(semaphore.acquire_many_async(wanted));
                    if round % 3 == 0 {
                        // Dropped where it waits, or where it was granted meanwhile.
                        let _ = poll_once(acquire.as_mut());
                        yield_now().await;
                    } else {
                        let _permits = acquire.await;
                        yield_now().await;
                    }
                }
            })
        })
        .collect();
    tasks.into_iter().for_each(|task| task.join().unwrap());
    assert_eq!(semaphore.available_permits(), PERMITS);
}

fn a_mutex_is_held_across_waits_by_one_task_at_a_time() {
    let count = Arc::new(Mutex::new(0));
    let add = |_| {
        let count = Arc::clone(&count);
        spawn(async move {
            for _ in 0..200 {
                let mut count = count.lock().await;
                let before = *count;
                yield_now().await;
                *count = before + 1;
            }
        })
    };
    let tasks: Vec<_> = (0..4).map(add).collect();
    tasks.into_iter().for_each(|task| task.join().unwrap());
    assert_eq!(*block_on(count.lock()), 800);
}

fn writers_exclude_readers_and_are_not_starved() {
    let pair = Arc::new(RwLock::new((0, 0)));
    let first = pair.try_read().unwrap();
    let mut write = pin!(pair.write());
    assert!(poll_once(write.as_mut()).is_pending());
    assert!(pair.try_read().is_none(), "a writer waits");
    drop(first);
    let Poll::Ready(guard) = poll_once(write.as_mut()) else { panic!("no reader is left") };
    drop(guard);
    let writers = (0..2).map(|_| {
        let pair = Arc::clone(&pair);
        spawn(async move {
            for _ in 0..200 {
                let mut pair = pair.write().await;
                pair.0 += 1;
                yield_now().await;
                pair.1 += 1;
            }
        })
    });
    let readers = (0..2).map(|_| {
        let pair = Arc::clone(&pair);
        spawn(async move {
            for _ in 0..200 {
                let pair = pair.read().await;
                assert_eq!(pair.0, pair.1);
                yield_now().await;
            }
        })
    });
    let tasks: Vec<_> = writers.chain(readers).collect();
    tasks.into_iter().for_each(|task| task.join().unwrap());
    assert_eq!(*block_on(pair.read()), (400, 400));
}

fn a_panic_unlocks() {
    let mutex = Arc::new(Mutex::new(1));
    let held = Arc::clone(&mutex);
    let failing = spawn(async move {
        let _guard = held.lock().await;
        panic!("on purpose")
    });
    assert!(failing.join().is_err());
    assert_eq!(*mutex.try_lock().unwrap(), 1);
}

fn tasks_of_a_set_come_back_as_they_end() {
    let mut set = JoinSet::new();
    assert!(block_on(set.join_next()).is_none());
    let (sender, receiver) = channel::unbounded();
    set.spawn(async move { receiver.recv_async().await.unwrap() });
    set.spawn(async { 2 });
    assert_eq!(set.len(), 2);
    assert_eq!(block_on(set.join_next()).unwrap().unwrap(), 2);
    sender.send(1).unwrap();
    assert_eq!(block_on(set.join_next()).unwrap().unwrap(), 1);
    set.spawn(async { panic!("on purpose") });
    assert!(block_on(set.join_next()).unwrap().is_err());
    assert!(set.is_empty());
}

fn a_set_that_is_dropped_cancels_its_tasks() {
    let (sender, receiver) = channel::unbounded::<()>();
    let mut set = JoinSet::new();
    set.spawn(async move {
        sleep(PATIENCE).await;
        drop(sender);
    });
    drop(set);
    assert!(receiver.recv().is_err(), "the sender was dropped with its future");
}

fn a_wait_for_a_set_that_is_dropped_loses_no_result() {
    let mut set = JoinSet::new();
    (0..100u64).for_each(|n| set.spawn(async move { n }));
    let (mut sum, mut polls) = (0, 0);
    while !set.is_empty() {
        polls += 1;
        if let Poll::Ready(Some(result)) = poll_once(pin!(set.join_next())) {
            sum += result.unwrap();
        }
        thread::yield_now();
    }
    assert_eq!(sum, (0..100).sum::<u64>(), "{polls} polls");
}

fn ticks_of_futures_are_a_period_apart() {
    let start = Instant::now();
    let mut ticks = interval(Duration::from_micros(300));
    block_on(async {
        let first = ticks.tick_async().await;
        // Dropped before it is ready: no tick is taken.
        assert!(poll_once(pin!(ticks.tick_async())).is_pending() || start.elapsed() > ticks.period());
        for n in 1..=4 {
            let due = ticks.tick_async().await;
            assert!((due - first).as_micros() % 300 == 0 && due - first >= n * ticks.period());
        }
    });
}
