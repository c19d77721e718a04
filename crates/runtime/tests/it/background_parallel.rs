//! Background threads beside ordinary ones on several kthreads. One runtime per process, so one
//! test function runs all.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tailwater::sync::{Mutex, mpsc};
use tailwater::thread::{self, Builder, JoinHandle, ThreadClass};
use tailwater_testkit::own_process;

#[test]
fn background_threads_beside_others() {
    own_process(|| {
        tailwater::RuntimeBuilder::new()
            .kthreads(3)
            .run(|| {
                all_kthreads_in_the_background_give_way();
                threads_of_both_classes_wake_each_other();
                ordinary_os_threads_wake_both_classes();
            })
            .unwrap();
    });
}

fn background(body: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    Builder::new().class(ThreadClass::Background).spawn(body).unwrap()
}

fn all_kthreads_in_the_background_give_way() {
    let stop = Arc::new(AtomicBool::new(false));
    let batch: Vec<_> = (0..6)
        .map(|_| {
            let stop = Arc::clone(&stop);
            background(move || {
                while !stop.load(Ordering::Relaxed) {
                    tailwater::poll();
                }
            })
        })
        .collect();
    for _ in 0..20 {
        thread::sleep(Duration::from_millis(1));
        let ordinary: Vec<_> = (0..6).map(|n| thread::spawn(move || n)).collect();
        assert_eq!(ordinary.into_iter().map(|thread| thread.join().unwrap()).sum::<i32>(), 15);
    }
    stop.store(true, Ordering::Relaxed);
    batch.into_iter().for_each(|thread| thread.join().unwrap());
}

fn threads_of_both_classes_wake_each_other() {
    let total = Arc::new(Mutex::new(0u64));
    let add = |total: &Mutex<u64>| {
        for _ in 0..200 {
            *total.lock().unwrap() += 1;
            thread::yield_now();
        }
    };
    let threads: Vec<_> = (0..24)
        .map(|n| {
            let total = Arc::clone(&total);
            let class = if n % 2 == 0 { ThreadClass::Background } else { ThreadClass::Normal };
            Builder::new().class(class).spawn(move || add(&total)).unwrap()
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(*total.lock().unwrap(), 24 * 200);
}

fn ordinary_os_threads_wake_both_classes() {
    let received = Arc::new(AtomicUsize::new(0));
    let (senders, threads): (Vec<_>, Vec<_>) = [ThreadClass::Background, ThreadClass::Normal]
        .into_iter()
        .map(|class| {
            let (sender, receiver) = mpsc::channel::<u32>();
            let received = Arc::clone(&received);
            let body = move || {
                while receiver.recv().is_ok() {
                    received.fetch_add(1, Ordering::Relaxed);
                }
            };
            (sender, Builder::new().class(class).spawn(body).unwrap())
        })
        .unzip();
    tailwater::blocking(move || {
        for n in 0..200 {
            senders.iter().for_each(|sender| sender.send(n).unwrap());
            if n % 20 == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    });
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(received.load(Ordering::Relaxed), 400);
}
