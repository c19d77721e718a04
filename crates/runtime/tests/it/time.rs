//! Sleeping and ticking on user threads. One runtime per process, so one test function runs all.

use tailwater::thread;
use tailwater::time::{Duration, Instant, MissedTicks, interval, sleep, sleep_until};
use tailwater_testkit::own_process;

#[test]
fn waits_are_never_short() {
    own_process(|| {
        tailwater::RuntimeBuilder::new()
            .kthreads(2)
            .run(|| {
                a_sleep_lasts_at_least_as_long_as_asked();
                an_interval_gives_as_many_ticks_as_periods();
                many_sleepers_all_wake();
            })
            .unwrap();
    });
}

fn a_sleep_lasts_at_least_as_long_as_asked() {
    for us in [0, 1, 2, 10, 100, 1000] {
        let start = Instant::now();
        sleep(Duration::from_micros(us));
        assert!(start.elapsed() >= Duration::from_micros(us));
        let deadline = Instant::now() + Duration::from_micros(us);
        sleep_until(deadline);
        assert!(Instant::now() >= deadline);
    }
    sleep_until(Instant::now() - Duration::from_millis(1));
    // `Duration::MAX` does not overflow: the thread still sleeps when the runtime ends.
    let forever = thread::spawn(|| sleep(Duration::MAX));
    sleep(Duration::from_millis(1));
    assert!(!forever.is_finished());
}

fn an_interval_gives_as_many_ticks_as_periods() {
    let period = Duration::from_micros(300);
    let mut burst = interval(period);
    let first = burst.tick();
    sleep(4 * period);
    let last = (0..4).map(|_| burst.tick()).last().unwrap();
    assert_eq!(last, first + 4 * period, "missed ticks are made up for");
    let mut skip = interval(period).missed_ticks(MissedTicks::Skip);
    let first = skip.tick();
    sleep(4 * period);
    skip.tick();
    let late = skip.tick() - first;
    assert!(late >= 4 * period, "missed ticks are left out");
    assert_eq!(late.as_nanos() % period.as_nanos(), 0, "the schedule stays");
}

fn many_sleepers_all_wake() {
    let sleepers: Vec<_> = (0..10_000u64)
        .map(|i| {
            thread::spawn(move || {
                let (start, time) = (Instant::now(), Duration::from_micros(i * 7919 % 20_000));
                sleep(time);
                start.elapsed() >= time
            })
        })
        .collect();
    assert!(sleepers.into_iter().all(|s| s.join().unwrap()));
}
